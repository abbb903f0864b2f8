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


class ProgressWatch:
    """What one worker does with the requests it has. Only those that make tokens are to be told.

    Each request is `sent` once and `ended` once, however it ends; `streaming` in between at the first byte of its
    answer. Times are seconds of one clock.
    """

    __slots__ = ("_awaited", "_begun", "_counted", "_expected", "_expected_since", "_in_flight", "_moved_at", "_paused",
                 "_quiet_since", "_read_at", "_rules")  # fmt: skip

    def __init__(self, rules: ProgressRules) -> None:
        self._rules = rules
        self._in_flight = 0
        self._awaited = 0  # sent as streams, and no byte of an answer yet
        self._begun = 0
        self._paused = 0
        self._quiet_since = -inf
        self._counted: float | None = None
        self._moved_at = -inf
        self._read_at = -inf
        self._expected = 0.0
        self._expected_since = -inf  # the silence in which that was expected

    def sent(self, now: float, *, streams: bool = False) -> None:
        """A request went out. With `streams` its answer begins with its first token, without only with its last."""
        if self._in_flight == self._paused:
            self._quiet_since = max(self._quiet_since, now)  # until now, nothing was due
        self._in_flight += 1
        self._awaited += streams

    def streaming(self, now: float, *, streams: bool = True) -> None:
        """The first byte of an answer: from here on more are due. `streams` as it was sent."""
        self._quiet_since = now
        self._awaited -= streams
        self._begun += 1

    def progressed(self, now: float) -> None:
        """Some bytes of some answer."""
        self._quiet_since = now

    def paused(self, now: float) -> None:  # noqa: ARG002 - one signature for what happens to a request
        """We read no more of an answer that has begun, because its client does not: its silence is ours."""
        self._paused += 1

    def resumed(self, now: float) -> None:
        """Its client reads again."""
        self._paused -= 1
        self._quiet_since = max(self._quiet_since, now)

    def ended(self, now: float, *, streams: bool = False, begun: bool, paused: bool = False) -> None:
        """A request is over: complete, failed or cancelled. `streams` as it was sent; `begun` if `streaming` was told of
        it; `paused` if it was so at its end.
        """
        self._in_flight -= 1
        if begun:
            self._begun -= 1
        else:
            self._awaited -= streams
        if paused:
            self._paused -= 1
            self._quiet_since = max(self._quiet_since, now)

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
        if self._in_flight <= self._paused:
            return False
        if self._expected_since != quiet_since:
            self._expected_since = quiet_since
            self._expected = 0.0
        expected = self._expected = max(self._expected, expected_s)
        if now - quiet_since < self._silence_allowed(expected):
            return False
        hung_after = self._rules.hung_after
        if now - self._read_at < hung_after:  # it tells its counters, and has told them of late
            return self._read_at - max(self._moved_at, quiet_since) >= hung_after
        if self._begun > self._paused:
            return True
        # Behind answers that we cannot see grow, a stream may wait for long.
        return self._awaited == self._in_flight and expected > 0

    def _silence_allowed(self, expected: float) -> float:
        hung_after, patience = self._rules.hung_after, self._rules.patience
        if self._begun > self._paused:
            return max(hung_after, expected)  # a batch decodes between pieces of prompts, or at the latest after them
        if self._awaited and not expected:
            return hung_after * patience
        return max(hung_after, expected * patience)
