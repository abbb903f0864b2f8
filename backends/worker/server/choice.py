"""One choice of an answer as it grows: tokens in, text out, and where it ends. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from backends.worker.messages import FinishReason, TokenLogprobs, TokensOut
from backends.worker.server.plan import Plan, PlannedChoice
from backends.worker.text.detokenizer import Detokenizer, TokenTexts
from cache.token_backends import bytes_to_ids
from policies.types import TokenIds

_TAIL_BYTES: Final = 64 * 4
"""Of a prompt's ids: an answer goes on behind them, and is decoded so."""


@dataclass(slots=True)
class Delta:
    """What came of a choice since the last look."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: FinishReason | None = None

    @property
    def empty(self) -> bool:
        """Whether there is nothing to tell."""
        return not (self.text or self.logprobs or self.finish_reason)


class Choice:
    """Takes what the engine tells of one sequence. `finish_reason` is set with the last of it."""

    __slots__ = (
        "_detokenizer",
        "_include_stop",
        "_news",
        "_texts",
        "cached_tokens",
        "finish_reason",
        "n_output",
        "planned",
        "stop_reason",
    )

    def __init__(self, planned: PlannedChoice, plan: Plan, texts: TokenTexts) -> None:
        sampling = plan.sampling
        self.planned = planned
        self._texts = texts
        self._include_stop = sampling.include_stop
        self._detokenizer = Detokenizer(
            texts,
            bytes_to_ids(TokenIds(planned.token_ids[-_TAIL_BYTES:])),
            skip_special_tokens=sampling.skip_special_tokens,
            stop=sampling.stops,
            include_stop=sampling.include_stop,
            min_tokens=planned.params.min_tokens,
        )
        self._news = Delta()
        self.n_output = 0
        """Output tokens, the one that ended it included."""
        self.cached_tokens = 0
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None
        """The stop string, or the id out of `stop_token_ids`, that ended it."""

    def take(self, out: TokensOut) -> None:
        """Tokens of one step. A stop string may end the choice before the engine does."""
        text = self._detokenizer
        if not self.n_output:
            self.cached_tokens = out.cached_tokens
        shown = out.token_ids
        if out.stop_token is not None and not self._include_stop:
            shown = shown[:-1]
        before = text.tokens_used
        piece = text.push(shown)
        if out.finish_reason is not None and text.stopped is None:
            piece += text.finish()
        used = len(out.token_ids)
        if text.stopped is not None:
            used = min(used, text.tokens_used - before)
            self.finish_reason, self.stop_reason = FinishReason.STOP, text.stopped
        elif out.finish_reason is not None:
            self.finish_reason = out.finish_reason
            if out.stop_token in self.planned.params.stop_token_ids:
                self.stop_reason = out.stop_token
        self.n_output += used
        self._add(piece, out, used)

    def drain(self) -> Delta:
        """What is new; the next call tells what is new then."""
        news, self._news = self._news, Delta()
        return news

    def token_bytes(self, token_id: int) -> bytes:
        """One token alone."""
        return self._texts.token_bytes(token_id)

    def token_text(self, token_id: int) -> str:
        """One token alone, with U+FFFD for what is no whole character."""
        return self._texts.token_text(token_id)

    def _add(self, piece: str, out: TokensOut, used: int) -> None:
        news = self._news
        news.text += piece
        news.token_ids += out.token_ids[:used]
        news.logprobs += (out.logprobs or ())[:used]
        news.finish_reason = self.finish_reason
