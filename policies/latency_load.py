"""What of a worker's load decides how long the next request waits, as a gateway sees it from first and last bytes.

Its engine is taken to work as vLLM does: in steps, each of which computes one token for every running request and as
much of the waiting prompts, in the order of arrival, as its budget allows. What comes while a step is under way joins
the next one; so of what waits, what the step under way may be working on is told apart from what came after it began.
"""

from __future__ import annotations

from math import exp, inf
from typing import Final, NamedTuple

from policies.restore_speed import attended

SAME_STEP_S: Final = 1e-3
"""What comes so soon after each other is of one step."""
_LATE_S: Final = 20.0
"""Time constant of what was prefilled and given back "of late"."""
_LEAST_SPAN: Final = 0.05
"""Share of it that a rate is taken over at least."""


class Load(NamedTuple):
    """A worker at the moment of a decision, without the request that is to be decided."""

    step_tokens: float = 0.0
    """Uncached tokens of the requests that were there when the step under way began, and wait for their first byte."""
    step_pairs: float = 0.0
    """Their `attended` pairs."""
    behind_tokens: float = 0.0
    """Uncached tokens of those that came later."""
    behind_pairs: float = 0.0
    elapsed_s: float = 0.0
    """Since its last first byte, or since it got work to prefill if that was later; 0 where nothing waits."""
    waiting: int = 0
    """Requests without a first byte."""
    running: int = 0
    """Requests with one, not finished."""
    running_tokens: float = 0.0
    """Their prompts and what they have generated so far."""
    waiting_tokens: float = 0.0
    """The whole prompts of those that wait, cached or not."""
    release_rate: float = 0.0
    """Tokens per second that finished requests gave back of late."""
    prefill_rate: float = 0.0
    """Uncached tokens per second that it prefilled of late."""
    step_rate: float = 0.0
    """Steps per second, of late, that prefilled something."""
    since_step_s: float = inf
    """Since a step was last seen to end, by a first token or by the end of an answer."""


class Served(NamedTuple):
    """A stretch of time in which a worker had prompts to prefill, and what it got done until its end."""

    seconds: float
    tokens: float
    pairs: float
    running: int
    running_tokens: float
    """At its end, with those that it answered."""
    waiting_tokens: float


class _Request:
    __slots__ = ("answered", "held", "pairs", "sent", "tokens")

    def __init__(self, tokens: float, context: float, sent: float) -> None:
        self.tokens = tokens
        self.pairs = attended(tokens, context)
        self.held = tokens + context
        self.sent = sent
        self.answered = sent


class WorkerLoad:
    """The requests that one worker has. Times are seconds of one clock; tickets are integers that only grow.

    Whatever is told of a ticket that is not known (any more) changes nothing.
    """

    __slots__ = ("_answered_at", "_answered_sum", "_began", "_began_before", "_behind_pairs", "_behind_tokens",
                 "_budget", "_ended_at", "_held_running", "_held_waiting", "_late_at", "_late_from", "_pairs",
                 "_prefilled", "_released", "_running", "_steps", "_stretch", "_tokens", "_unary",
                 "_waiting")  # fmt: skip

    def __init__(self, budget: float = 8_192.0) -> None:
        """`budget`: tokens that one of its steps computes at most."""
        self._budget = budget
        self._waiting: dict[int, _Request] = {}  # oldest first
        self._running: dict[int, _Request] = {}
        self._unary: set[int] = set()  # of the waiting
        self._tokens = self._pairs = self._behind_tokens = self._behind_pairs = 0.0
        self._began = 0.0
        self._answered_at = -inf
        self._ended_at = -inf  # of the last step that was seen to end
        self._began_before = 0.0
        self._stretch: Served | None = None
        self._held_waiting = self._held_running = self._answered_sum = 0.0
        self._late_at = self._prefilled = self._steps = self._released = 0.0
        self._late_from = -inf  # when anything was first told

    def __len__(self) -> int:
        return len(self._waiting) + len(self._running)

    def load(self, now: float, tpot_s: float) -> Load:
        """As of `now`, each running request having made a token every `tpot_s` seconds."""
        running = len(self._running)
        held = self._held(now, tpot_s)
        faded = exp(min(self._late_at - now, 0.0) / _LATE_S)
        per_second = faded / (_LATE_S * max(1.0 - exp(min(self._late_from - now, 0.0) / _LATE_S), _LEAST_SPAN))
        waiting = len(self._waiting)
        return Load(
            self._tokens - self._behind_tokens,
            self._pairs - self._behind_pairs,
            self._behind_tokens,
            self._behind_pairs,
            max(now - self._began, 0.0) if waiting else 0.0,
            waiting,
            running,
            held,
            self._held_waiting,
            self._released * per_second,
            self._prefilled * per_second,
            self._steps * per_second,
            now - self._ended_at,
        )

    def sent(self, ticket: int, uncached: float, context: float, now: float, *, streams: bool = True) -> None:
        """A request with so many uncached tokens after so many cached ones went to it."""
        request = _Request(max(uncached, 1.0), max(context, 0.0), now)
        if not self._waiting:
            self._began = now
            self._none_waits()
        elif now - self._began > SAME_STEP_S:
            self._behind_tokens += request.tokens
            self._behind_pairs += request.pairs
        self._waiting[ticket] = request
        self._tokens += request.tokens
        self._pairs += request.pairs
        self._held_waiting += request.held
        if not streams:
            self._unary.add(ticket)

    def first_token(self, ticket: int, now: float, tpot_s: float) -> Served | None:
        """Its prefill is over, and so is that of every unary request before it. Requests whose first bytes come
        together are one stretch; returned is the one before, which now is complete.
        """
        if ticket not in self._waiting or ticket in self._unary:
            self.ended(ticket, 0.0, now)
            return None
        if now - self._ended_at <= SAME_STEP_S and self._began_before < self._began:
            self._began = self._began_before  # an answer that ended with the same step was told first
        self._ended_at = now
        tokens, pairs = self._answered(ticket, now)
        for earlier in [unary for unary in self._unary if unary < ticket]:
            more_tokens, more_pairs = self._answered(earlier, now)
            tokens, pairs = tokens + more_tokens, pairs + more_pairs
        over, stretch = None, self._stretch
        if stretch is not None and now - self._answered_at <= SAME_STEP_S:
            self._stretch = stretch._replace(tokens=stretch.tokens + tokens, pairs=stretch.pairs + pairs)
        else:
            over = stretch
            running, held = len(self._running) - 1, self._held(now, tpot_s)
            self._stretch = Served(max(now - self._began, 0.0), tokens, pairs, running, held, self._held_waiting)
            self._answered_at = now
            self._fade(now)
            self._steps += max(tokens / self._budget, 1.0)
        self._prefilled += tokens
        self._began = now
        self._behind_tokens = self._behind_pairs = 0.0
        return over

    def presume(self, now: float, token_s: float) -> None:
        """Take unary requests off the head once their prefill must be over, at so many seconds a token: nothing else
        will tell before their end.
        """
        while self._unary:
            ticket, request = next(iter(self._waiting.items()))
            needed = request.tokens * token_s
            if ticket not in self._unary or now - self._began < needed:
                return
            self._answered(ticket, self._began + needed)
            self._began += needed
            self._behind_tokens = self._behind_pairs = 0.0

    def ended(self, ticket: int, output_tokens: float, now: float) -> None:
        """It is over, with so many tokens generated: finished, failed, cancelled or sent elsewhere."""
        if ticket in self._waiting:
            if next(iter(self._waiting)) == ticket:
                self._began = now
                self._behind_tokens = self._behind_pairs = 0.0
            self._take(ticket)
        elif (request := self._running.pop(ticket, None)) is not None:
            self._held_running -= request.held
            self._answered_sum -= request.answered
            if not self._running:
                self._held_running = self._answered_sum = 0.0
            self._fade(now)
            self._released += request.held + output_tokens
            if output_tokens > 0:
                self._step_ended(now)

    def _step_ended(self, now: float) -> None:
        """An answer ended, and with it a step. What waits and fits into one step was not in that one: it is now."""
        if now - self._ended_at > SAME_STEP_S:
            self._ended_at = now
            self._began_before = self._began
            if self._waiting and self._tokens - self._behind_tokens <= self._budget:
                self._began = now
                self._behind_tokens = self._behind_pairs = 0.0

    def _answered(self, ticket: int, now: float) -> tuple[float, float]:
        request = self._take(ticket)
        request.answered = now
        self._running[ticket] = request
        self._held_running += request.held
        self._answered_sum += now
        return request.tokens, request.pairs

    def _take(self, ticket: int) -> _Request:
        request = self._waiting.pop(ticket)
        self._unary.discard(ticket)
        if not self._waiting:
            self._none_waits()
            return request
        self._tokens -= request.tokens
        self._pairs -= request.pairs
        self._held_waiting -= request.held
        if request.sent - self._began > SAME_STEP_S:
            self._behind_tokens = max(self._behind_tokens - request.tokens, 0.0)
            self._behind_pairs = max(self._behind_pairs - request.pairs, 0.0)
        return request

    def _none_waits(self) -> None:
        self._tokens = self._pairs = self._behind_tokens = self._behind_pairs = self._held_waiting = 0.0

    def _held(self, now: float, tpot_s: float) -> float:
        if not self._running:
            return 0.0
        decoding = max(len(self._running) * now - self._answered_sum, 0.0)
        return self._held_running + (decoding / tpot_s if tpot_s > 0 else 0.0)

    def _fade(self, now: float) -> None:
        faded = exp(min(self._late_at - now, 0.0) / _LATE_S)
        self._prefilled *= faded
        self._steps *= faded
        self._released *= faded
        if self._late_from == -inf:
            self._late_from = now
        self._late_at = now
