"""What a worker still has to prefill and how fast it does so, as seen from outside, from first bytes alone.

An engine prefills in the order of arrival (vLLM's default), so the requests that wait for their first byte are a
FIFO whose head is being worked on. Times are seconds of one clock, chosen by the caller; work is uncached tokens.

A request that first restores some of its prompt from a slower tier is not in that FIFO: nobody outside sees when its
transfer ends, others overtake it meanwhile, and the engine may have nothing to do. What it has to compute counts as
work until it is answered, and its transfer as the worker's I/O; but the time it took teaches nothing.
"""

from __future__ import annotations

from math import exp
from typing import Final, NamedTuple

_MEMORY: Final = 0.98
"""Share of the past that each new observation keeps: about the last fifty count."""
_TELLING_TOKENS: Final = 512
"""Fewer tokens than this tell about the engine's overhead and its batching, not about its speed."""
_TOGETHER_SECONDS: Final = 2e-3
"""First bytes that follow each other so closely are of one step of the engine: its tokens are theirs together, and so
is the time it took. The last of them alone would seem to have been computed in no time."""
_RECENT_SECONDS: Final = 60.0
_LEAST_SECONDS: Final = 1e-4
_PRIOR_SECONDS: Final = 5.0
"""How much busy time a worker must have shown before its own rate outweighs that of the fleet. Without it a worker
that happens to be busy batches more, looks faster, and draws yet more requests."""


class _Restoring(NamedTuple):
    tokens: float
    """To compute once the rest is restored."""
    ready_at: float


class _Step(NamedTuple):
    """First bytes that came together."""

    tokens: float = 0.0
    """Not learnt from yet, as too few; likewise the next ones."""
    beside: float = 0.0
    seconds: float = 0.0
    told: bool = False
    """Their time was learnt from."""


class FleetRate:
    """The prefill rate over all workers: what is believed of one that has not shown much itself."""

    __slots__ = ("_seconds", "_tokens")

    def __init__(self) -> None:
        self._tokens = 0.0
        self._seconds = 0.0

    @property
    def rate(self) -> float | None:
        """Tokens per second and worker while there was work; None before the first telling answer."""
        return self._tokens / self._seconds if self._seconds else None

    def observe(self, tokens: float, seconds: float) -> None:
        """Some worker prefilled so many tokens in so many seconds."""
        self._tokens = self._tokens * _MEMORY + tokens
        self._seconds = self._seconds * _MEMORY + seconds


class PrefillQueue:
    """The uncached tokens a worker has accepted and not yet answered, and its learnt prefill rate."""

    __slots__ = ("_beside", "_busy_since", "_done_seconds", "_done_tokens", "_fleet", "_hint", "_io_free_at", "_recent",
                 "_recent_at",
                 "_restoring", "_step", "_tokens", "_unary", "_unary_restoring", "total")  # fmt: skip

    def __init__(self, fleet: FleetRate | None = None, hint: float | None = None) -> None:
        """`hint` in tokens/s takes the place of the fleet's rate as what is believed at first."""
        self._fleet = fleet or FleetRate()
        self._hint = hint
        self._tokens: dict[int, float] = {}  # ticket -> uncached tokens, oldest first
        self._unary: set[int] = set()
        self._restoring: dict[int, _Restoring] = {}
        self._unary_restoring: set[int] = set()
        self._io_free_at = 0.0
        self._beside = 0.0  # computed for those that restored, since `_busy_since`
        self._busy_since = 0.0
        self._step = _Step()
        self._done_tokens = 0.0
        self._done_seconds = 0.0
        self._recent = 0.0
        self._recent_at = 0.0
        self.total = 0.0

    def __len__(self) -> int:
        return len(self._tokens) + len(self._restoring)

    @property
    def rate(self) -> float | None:
        """Tokens per second while there was work, or None while nobody knows."""
        believed = self._hint or self._fleet.rate
        if believed is None:
            return None
        return (self._done_tokens + _PRIOR_SECONDS * believed) / (self._done_seconds + _PRIOR_SECONDS)

    def push(self, ticket: int, tokens: float, now: float, *, streams: bool, restore_s: float = 0.0) -> None:
        """A request with so many tokens to compute was sent. Without a stream its first byte is also its last,
        so that it tells nothing about prefill. With `restore_s` it restores the rest of its prompt until so many
        seconds from now, what was being restored before it included.
        """
        tokens = max(tokens, 1.0)
        self.total += tokens
        self._recent = self.recent(now) + tokens
        self._recent_at = now
        if restore_s > 0:
            self._restoring[ticket] = _Restoring(tokens, now + restore_s)
            if not streams:
                self._unary_restoring.add(ticket)
            self._io_free_at = max(self._io_free_at, now + restore_s)
            return
        if not self._tokens:
            self._step = _Step()
            self._begin(now)
        self._tokens[ticket] = tokens
        if not streams:
            self._unary.add(ticket)

    def answered(self, ticket: int, now: float) -> None:
        """The first byte of a request came: its prefill is done, and so is that of every unary one before it."""
        if ticket in self._restoring:
            self._beside += self._remove(ticket)  # computed in the time of whoever is at work, if anybody is
            return
        if ticket not in self._tokens:
            return
        if ticket in self._unary:
            self._remove(ticket)
        else:
            tokens = self._remove(ticket)
            if self._unary:
                for earlier in [unary for unary in self._unary if unary < ticket]:
                    tokens += self._remove(earlier)
            self._computed(tokens, now - self._busy_since)
        self._begin(now)

    def drop(self, ticket: int, now: float) -> None:
        """A request went away unanswered: cancelled, failed, or sent elsewhere."""
        if ticket in self._tokens:
            if next(iter(self._tokens)) == ticket:
                self._begin(now)
            self._remove(ticket)
        elif ticket in self._restoring:
            self._remove(ticket)

    def remaining(self, now: float) -> float:
        """Tokens still to prefill, less what the head of the queue must have got done by now."""
        if not self.total:
            return 0.0
        rate = self.rate
        if rate is None:
            return self.total
        if self._unary:
            self._presume(rate, now)
        if self._unary_restoring:
            self._presume_restored(rate, now)
        if not self._tokens:
            return self.total
        head = next(iter(self._tokens.values()))
        return max(self.total - min(rate * (now - self._busy_since), head), 0.0)

    def recent(self, now: float) -> float:
        """Tokens accepted of late, those of `_RECENT_SECONDS` ago counting 1/e."""
        return self._recent * exp((self._recent_at - now) / _RECENT_SECONDS)

    def seconds(self, now: float) -> float:
        """Predicted time until everything accepted so far is prefilled; 0 while the rate is unknown."""
        rate = self.rate
        return self.remaining(now) / rate if rate else 0.0

    def restoring(self, now: float) -> float:
        """Seconds until what is being restored must be there; 0 where nothing is."""
        return max(self._io_free_at - now, 0.0) if self._restoring else 0.0

    def _presume_restored(self, rate: float, now: float) -> None:
        """The same as `_presume` for unary requests that restore."""
        for ticket in list(self._unary_restoring):
            tokens, ready_at = self._restoring[ticket]
            if now - ready_at >= tokens / rate:
                self._remove(ticket)

    def _begin(self, now: float) -> None:
        """The engine takes up the head of the queue."""
        self._busy_since = now
        self._beside = 0.0

    def _presume(self, rate: float, now: float) -> None:
        """Take unary requests off the head once their prefill must be over: nothing else will tell."""
        while self._unary:
            ticket, tokens = next(iter(self._tokens.items()))
            needed = tokens / rate
            if ticket not in self._unary or now - self._busy_since < needed:
                return
            self._remove(ticket)
            self._busy_since += needed

    def _computed(self, tokens: float, seconds: float) -> None:
        """So many tokens more, so long after what was computed before."""
        step = self._step if seconds < _TOGETHER_SECONDS else _Step()
        step = _Step(step.tokens + tokens, step.beside + self._beside, step.seconds + seconds, step.told)
        if step.told or step.tokens >= _TELLING_TOKENS:
            self._learn(step.tokens + step.beside, max(step.seconds, _LEAST_SECONDS))
            step = _Step(told=True)
        self._step = step

    def _learn(self, tokens: float, seconds: float) -> None:
        self._done_tokens = self._done_tokens * _MEMORY + tokens
        self._done_seconds = self._done_seconds * _MEMORY + seconds
        self._fleet.observe(tokens, seconds)

    def _remove(self, ticket: int) -> float:
        self._unary.discard(ticket)
        self._unary_restoring.discard(ticket)
        restoring = self._restoring.pop(ticket, None)
        tokens = self._tokens.pop(ticket) if restoring is None else restoring.tokens
        if not self._restoring:
            self._io_free_at = 0.0
        self.total = self.total - tokens if self._tokens or self._restoring else 0.0
        return tokens
