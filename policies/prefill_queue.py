"""What a worker still has to prefill and how fast it does so, as seen from outside, from first bytes alone.

An engine prefills in the order of arrival (vLLM's default), so the requests that wait for their first byte are a
FIFO whose head is being worked on. Times are seconds of one clock, chosen by the caller; work is uncached tokens.
"""

from __future__ import annotations

from typing import Final

_MEMORY: Final = 0.95
"""Share of the past that each new observation keeps: about the last twenty count."""
_LEAST_TOKENS: Final = 1.0


class PrefillQueue:
    """The uncached tokens a worker has accepted and not yet answered, and its learnt prefill rate."""

    __slots__ = ("_busy_since", "_done_seconds", "_done_tokens", "_tokens", "_unary", "rate", "total")

    def __init__(self, rate_hint: float | None = None) -> None:
        """`rate_hint` in tokens/s weighs as much as one second of observation."""
        self._tokens: dict[int, float] = {}  # ticket -> uncached tokens, oldest first
        self._unary: set[int] = set()
        self._busy_since = 0.0
        self._done_tokens = rate_hint or 0.0
        self._done_seconds = 1.0 if rate_hint else 0.0
        self.rate = rate_hint  # tokens per second while there was work; None before the first answer
        self.total = 0.0

    def __len__(self) -> int:
        return len(self._tokens)

    def push(self, ticket: int, tokens: float, now: float, *, streams: bool) -> None:
        """A request with so many uncached tokens was sent. Without a stream its first byte is also its last,
        so that it tells nothing about prefill."""
        if not self._tokens:
            self._busy_since = now
        tokens = max(tokens, _LEAST_TOKENS)
        self._tokens[ticket] = tokens
        self.total += tokens
        if not streams:
            self._unary.add(ticket)

    def answered(self, ticket: int, now: float) -> None:
        """The first byte of a request came: its prefill is done, and so is that of every unary one before it."""
        if ticket not in self._tokens:
            return
        tokens = 0.0
        if ticket not in self._unary:
            if self._unary:
                for earlier in [t for t in self._unary if t < ticket]:
                    tokens += self._remove(earlier)
            tokens += self._remove(ticket)
            self._done_tokens = self._done_tokens * _MEMORY + tokens
            self._done_seconds = self._done_seconds * _MEMORY + max(now - self._busy_since, 0.0)
            if self._done_seconds > 0:
                self.rate = self._done_tokens / self._done_seconds
            self._busy_since = now
        else:
            self._remove(ticket)
            self._busy_since = now

    def drop(self, ticket: int, now: float) -> None:
        """A request went away unanswered: cancelled, failed, or sent elsewhere."""
        if ticket in self._tokens:
            if next(iter(self._tokens)) == ticket:
                self._busy_since = now
            self._remove(ticket)

    def remaining(self, now: float) -> float:
        """Tokens still to prefill, less what the head of the queue must have got done by now."""
        self._presume(now)
        if not self._tokens:
            return 0.0
        rate = self.rate
        if rate is None:
            return self.total
        head = next(iter(self._tokens.values()))
        return max(self.total - min(rate * (now - self._busy_since), head), 0.0)

    def seconds(self, now: float) -> float:
        """Predicted time until everything accepted so far is prefilled; 0 while the rate is unknown."""
        rate = self.rate
        return self.remaining(now) / rate if rate else 0.0

    def _presume(self, now: float) -> None:
        """Take unary requests off the head once their prefill must be over: nothing else will tell."""
        rate = self.rate
        while self._unary and rate is not None:
            ticket, tokens = next(iter(self._tokens.items()))
            needed = tokens / rate
            if ticket not in self._unary or now - self._busy_since < needed:
                return
            self._remove(ticket)
            self._busy_since += needed

    def _remove(self, ticket: int) -> float:
        self._unary.discard(ticket)
        tokens = self._tokens.pop(ticket)
        self.total = self.total - tokens if self._tokens else 0.0
        return tokens
