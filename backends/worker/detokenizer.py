"""Token ids to text as they come: whole characters only, stop strings across tokens."""

from __future__ import annotations

from collections.abc import Sequence

from cache.tokenizer import Tokenizer

_REPLACEMENT = "\ufffd"


class Detokenizer:
    """One choice's text. Text that may become part of a stop string, or of a character, is held back."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special_tokens: bool = True,
        stop: Sequence[str] = (),
        include_stop: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._stops = [each for each in stop if each]
        self._include = include_stop
        self._ids: list[int] = []
        self._text = ""
        self._sent = 0
        self.stopped: str | None = None
        """The stop string that was found."""
        self.tokens_used = 0
        """Tokens taken, up to the one that completed the stop string."""

    def push(self, ids: Sequence[int]) -> str:
        """Take ids; the text that they bring."""
        for each in ids:
            if self.stopped is not None:
                break
            self._ids.append(each)
            self.tokens_used += 1
            text = self._tokenizer.reference.decode(self._ids, skip_special_tokens=self._skip)
            if not text.endswith(_REPLACEMENT):
                self._text = text
                self._find_stop()
        return self._release(final=False)

    def finish(self) -> str:
        """What was held back."""
        if self.stopped is None:
            self._text = self._tokenizer.reference.decode(self._ids, skip_special_tokens=self._skip)
            self._find_stop()
        return self._release(final=True)

    def token_text(self, token_id: int) -> str:
        """One token alone."""
        return self._tokenizer.decode([token_id])

    def token_bytes(self, token_id: int) -> bytes:
        """Its bytes."""
        return self.token_text(token_id).encode()

    def _find_stop(self) -> None:
        found = [(self._text.index(stop, 0) + len(stop), stop) for stop in self._stops if stop in self._text]
        if found:
            end, self.stopped = min(found)
            self._text = self._text[: end if self._include else end - len(self.stopped)]

    def _release(self, *, final: bool) -> str:
        end = len(self._text)
        if not final and self.stopped is None:
            longest = max(map(len, self._stops), default=1) - 1
            for held in range(min(longest, end), 0, -1):
                if any(stop.startswith(self._text[end - held :]) for stop in self._stops):
                    end -= held
                    break
        piece = self._text[self._sent : end]
        self._sent = max(self._sent, end)
        return piece
