"""Whether a worker hangs though its `/health` answers, or is merely busy: told by what comes out of it.

An engine that hangs sends no byte of any answer, and its own token counters stand still. But one that prefills a long
prompt also sends nothing, counts nothing before the prompt is done, and holds back short answers behind long ones. So
silence alone is no evidence; a worker hangs only if it is silent although tokens must have come.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf


@dataclass(frozen=True, slots=True)
class ProgressRules:
    """How long silence must last. Raises ValueError unless the numbers make sense."""

    hung_after: float = 60.0
    """Seconds without a byte from a worker of which bytes are due."""
    patience: float = 4.0
    """How many times over its queue's expected time may pass while it can only be prefilling."""

    def __post_init__(self) -> None:
        """Check what types cannot."""
        if not self.hung_after > 0 or not self.patience >= 1:
            raise ValueError("hung_after must be above 0, and patience at least 1")


class Flight:
    """One request on its way, as its watch knows it."""

    __slots__ = ("begun", "over", "paused", "streams")

    def __init__(self, *, streams: bool) -> None:
        self.streams = streams
        self.begun = False
        self.paused = False
        self.over = False


class ProgressWatch:
    """What one worker does with the requests it has. Only requests that make tokens are to be told.

    Times are seconds of one clock. Whatever is told of a request twice, or after its end, changes nothing.
    """

    __slots__ = ("_awaited", "_counted", "_due", "_expected", "_expected_since", "_flowing", "_in_flight", "_moved_at",
                 "_quiet_since", "_read_at", "rules")  # fmt: skip

    def __init__(self, rules: ProgressRules) -> None:
        self.rules = rules
        self._in_flight = 0
        self._due = 0  # those that are not paused, and of them:
        self._awaited = 0  # streams without a byte of an answer yet
        self._flowing = 0  # answers that have begun
        self._quiet_since = -inf
        self._counted: float | None = None
        self._moved_at = -inf
        self._read_at = -inf
        self._expected = 0.0
        self._expected_since = -inf  # the silence in which that was expected

    def sent(self, now: float, *, streams: bool) -> Flight:
        """A request went out. With `streams` its answer begins with its first token, without only with its last."""
        if not self._due:
            self._quiet_since = max(self._quiet_since, now)  # until now, nothing was due
        flight = Flight(streams=streams)
        self._in_flight += 1
        self._count(flight, 1)
        return flight

    def streaming(self, now: float, flight: Flight) -> None:
        """The first byte of an answer: from here on more are due."""
        self._quiet_since = now
        if not flight.begun and not flight.over:
            self._count(flight, -1)
            flight.begun = True
            self._count(flight, 1)

    def progressed(self, now: float) -> None:
        """Some bytes of some answer."""
        self._quiet_since = now

    def paused(self, now: float, flight: Flight) -> None:  # noqa: ARG002 - one signature for what happens to a request
        """We read no more of this answer, because its client does not: its silence is ours."""
        if not flight.paused and not flight.over:
            self._count(flight, -1)
            flight.paused = True

    def resumed(self, now: float, flight: Flight) -> None:
        """Its client reads again."""
        if flight.paused and not flight.over:
            flight.paused = False
            self._count(flight, 1)
            self._quiet_since = max(self._quiet_since, now)

    def ended(self, now: float, flight: Flight) -> None:  # noqa: ARG002 - one signature for what happens to a request
        """A request is over: complete, failed or cancelled. Its end is no sign of life: clients leave hung workers."""
        if not flight.over:
            self._count(flight, -1)
            flight.over = True
            self._in_flight -= 1

    def counters(self, total: float | None, now: float) -> None:
        """The engine's own count of tokens, prompt and generated, as read from its `/metrics`; None if it tells none.
        A count that falls is a restart, and moves too.
        """
        if total is None:
            self._counted = None
            self._read_at = -inf
            return
        if total != self._counted:
            self._counted = total
            self._moved_at = now
        self._read_at = now

    def is_hung(self, now: float, expected_s: float = 0.0) -> bool:
        """Whether tokens must have come by now.

        `expected_s`: how long the prompts it has accepted should take to prefill, 0 where nobody knows. During one
        silence the longest counts, so that it may be given less what must be done by now.
        """
        quiet_since = self._quiet_since
        if not self._due:
            return False
        if self._expected_since != quiet_since:
            self._expected_since = quiet_since
            self._expected = 0.0
        expected = self._expected = max(self._expected, expected_s)
        if now - quiet_since < self._silence_allowed(expected):
            return False
        hung_after = self.rules.hung_after
        if now - self._read_at < hung_after:  # it tells its counters, and has told them of late
            return self._read_at - max(self._moved_at, quiet_since) >= hung_after
        if self._flowing:
            return True
        # Behind answers that we cannot see grow, a stream may wait for long.
        return self._awaited == self._in_flight and expected > 0

    def _count(self, flight: Flight, by: int) -> None:
        if flight.paused:
            return
        self._due += by
        if flight.begun:
            self._flowing += by
        elif flight.streams:
            self._awaited += by

    def _silence_allowed(self, expected: float) -> float:
        hung_after, patience = self.rules.hung_after, self.rules.patience
        if self._flowing:
            return max(hung_after, expected)  # a batch decodes between pieces of prompts, or at the latest after them
        if self._awaited and not expected:
            return hung_after * patience
        return max(hung_after, expected * patience)
