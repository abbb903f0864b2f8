"""Token ids to text as they come: no character is shown before it is certain, none is taken back. Pure.

The work for a token does not grow with the text. What is shown, all together, is what the `tokenizers` library
decodes from all ids at once; the library itself is not asked again, since decoding a window of ids anew is exact
for some decoders only.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import tokenizers

from backends.worker.text.decoder_stages import Stage, build_stages, byte_level_bytes, byte_of
from backends.worker.text.stop_strings import StopStrings


class TokenTexts:
    """What a tokenizer's ids stand for; made once for a model, shared by its requests.

    Raises UnsupportedDecoderError.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = json.loads(tokenizer.to_str())["decoder"]
        self._special = frozenset(
            token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special
        )
        kinds = json.dumps(self._decoder)
        self._byte_level = '"ByteLevel"' in kinds
        self._byte_fallback = '"ByteFallback"' in kinds
        self._pieces: dict[int, str | None] = {}
        self.stages(begun=False)

    def stages(self, *, begun: bool) -> list[Stage]:
        """The decoder, for one text; `begun`: it goes on behind other text."""
        return build_stages(self._decoder, begun=begun)

    def piece(self, token_id: int, *, skip_special_tokens: bool) -> str | None:
        """The token as the vocabulary has it; None for one that adds nothing to the text."""
        try:
            piece = self._pieces[token_id]
        except KeyError:
            piece = self._pieces[token_id] = self._tokenizer.id_to_token(token_id)
        return None if skip_special_tokens and piece in self._special else piece

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token adds inside of a text; a special one's name, nothing for an unknown id."""
        piece = self.piece(token_id, skip_special_tokens=False)
        if piece is None:
            return b""
        if piece in self._special:
            return piece.encode()
        if self._byte_level:
            return byte_level_bytes(piece)
        if self._byte_fallback and (byte := byte_of(piece)) is not None:
            return bytes([byte])
        return _run(self.stages(begun=True), [piece]).encode()

    def token_text(self, token_id: int) -> str:
        """`token_bytes` as text, with U+FFFD for what is no whole character."""
        return self.token_bytes(token_id).decode(errors="replace")


class Detokenizer:
    """The text of one sequence's output.

    A stop string is looked for in the text behind the first `min_tokens` tokens (as in vLLM); see `StopStrings` for
    which of several counts. The text ends before it, or behind it with `include_stop`.
    """

    def __init__(
        self,
        texts: TokenTexts,
        prompt_ids: Sequence[int] = (),
        *,
        skip_special_tokens: bool = True,
        stop: Sequence[str] = (),
        include_stop: bool = False,
        min_tokens: int = 0,
    ) -> None:
        """With `prompt_ids` the output goes on behind the prompt, so that the space of a first word stays."""
        self._texts = texts
        self._skip = skip_special_tokens
        begun = any(texts.piece(i, skip_special_tokens=skip_special_tokens) is not None for i in reversed(prompt_ids))
        self._stages = texts.stages(begun=begun)
        self._stops = StopStrings(stop)
        self._include_stop = include_stop
        self._min_tokens = min_tokens
        self.tokens_used = 0
        """Tokens pushed, up to the one that completed a stop string."""

    @property
    def stopped(self) -> str | None:
        """The stop string that ended the text."""
        return self._stops.found

    def push(self, token_ids: Iterable[int]) -> str:
        """New text that is certain. Tokens behind a stop string are ignored."""
        shown = []
        for token_id in token_ids:
            if self.stopped is not None:
                break
            self.tokens_used += 1
            piece = self._texts.piece(token_id, skip_special_tokens=self._skip)
            if piece is not None and (text := _feed(self._stages, [piece])):
                shown.append(self._show(text))
        return "".join(shown)

    def finish(self) -> str:
        """The rest, when no more tokens come: U+FFFD for a broken character, and what might have been a stop string."""
        if self.stopped is not None:
            return ""
        shown = self._show(_end(self._stages))
        return shown + self._stops.finish()

    def _show(self, text: str) -> str:
        if self.tokens_used <= self._min_tokens:
            return text
        shown, found = self._stops.push(text)
        return shown + (self.stopped or "") if found and self._include_stop else shown


def _feed(stages: Sequence[Stage], pieces: list[str]) -> str:
    for stage in stages:
        pieces = stage.feed(pieces)
    return "".join(pieces)


def _end(stages: Sequence[Stage]) -> str:
    """What every stage held back, through those behind it."""
    pieces: list[str] = []
    for stage in stages:
        pieces = [*stage.feed(pieces), *stage.end()]
    return "".join(pieces)


def _run(stages: Sequence[Stage], pieces: list[str]) -> str:
    return _feed(stages, pieces) + _end(stages)
