"""A prompt's way to its first token: the step under way, those that prefill what is ahead, and its own.

The time is linear in a few terms: a per step, b per uncached token, c per attended pair, and for decoding beside it
d per step and e per step and token of context. They are learnt from times to first token. How fast a worker goes just
now, its pace, is told by how long each stretch of prefill took, long before those behind it are answered.

A request may also wait because the KV cache is full; then it is those that finish who make room. Whether prompts that
do not fit wait is not certain from outside (running requests share prefixes, and prompts come in pieces), so both
answers are blended by how well each did of late.
"""

from __future__ import annotations

from enum import IntEnum
from math import exp, inf, log
from typing import Final, NamedTuple

from policies.latency_fit import Fit, SharedFit
from policies.latency_load import SAME_STEP_S, Load, Served
from policies.restore_speed import attended

LEAST_S: Final = 1e-4
MOST_S: Final = 1e6
"""What is predicted lies between these."""
_MOST_OFF: Final = 3.0
"""A measurement teaches as if it were at most so many times what was believed: one stall moves little."""
_LONG_QUEUE: Final = 4.0
_BLOCKED: Final = 3.0
"""By so many times must a stretch be late to say that there was no room, where the cache's size is not known."""
_PACE_MEMORY: Final = 0.9
_PACE_PRIOR: Final = 4.0
_MOST_STRETCH: Final = 4.0
_MOST_PACE: Final = 100.0
_JUDGE_GAIN: Final = 0.1
_JUDGE_POWER: Final = 4


class Situation(IntEnum):
    """What a request's wait consists of; each has its own uncertainty."""

    IDLE = 0
    """Nothing waits: the step that decodes, and its own."""
    STEP = 1
    """The step under way, and its own."""
    QUEUE = 2
    """Mostly others' prefill."""
    ROOM = 3
    """The KV cache is full."""


class Estimate(NamedTuple):
    """Before correction."""

    seconds: float
    situation: Situation
    terms: tuple[float, float, float, float, float] | None
    """What the coefficients are multiplied with; None where something else decides."""
    under_way_s: float
    """Of the terms' seconds, those that are over."""
    overdue: bool
    """Whether what is ahead should have been done by now."""
    if_room_s: float
    if_full_s: float


class Judges:
    """Which of two predictions does better, by the mean of |log error| of each; shared by a fleet."""

    __slots__ = ("_errors", "_weight")

    def __init__(self) -> None:
        self._errors = [0.3, 0.3]
        self._weight = 0.5

    def blend(self, first: float, second: float) -> float:
        """Between the two, nearer to the better one; both are above 0."""
        weight = self._weight
        return exp(weight * log(first) + (1.0 - weight) * log(second))

    def observe(self, first: float, second: float, measured: float) -> None:
        """What each said, and what came; all above 0."""
        for i, said in enumerate((first, second)):
            error = min(abs(log(said / measured)), 3.0)
            self._errors[i] = max(self._errors[i] + _JUDGE_GAIN * (error - self._errors[i]), 0.01)
        mine, other = (error**_JUDGE_POWER for error in self._errors)
        self._weight = other / (mine + other)


class PrefillPath:
    """One worker's."""

    __slots__ = ("_done", "_judges", "_prior", "_room_known", "_stretches", "_took", "budget", "fit", "pace", "room")

    def __init__(self, shared: SharedFit, judges: tuple[Judges, Judges], budget: float, kv_tokens: float) -> None:
        """`judges`: of prompts that do not fit, behind others that are overdue, and not."""
        self.fit = Fit(shared)
        self._judges = judges
        self.budget = budget
        self.room = inf
        """Tokens that its KV cache holds, in the measure in which they are counted here."""
        self._room_known = False
        self.pace = 1.0
        """How long it takes just now, over what the coefficients say."""
        self._took = self._stretches = 0.0  # of the last stretches, newer ones counting more; and their terms:
        self._done = [0.0] * 5
        self._prior = _PACE_PRIOR
        self.hold(kv_tokens)

    def hold(self, kv_tokens: float) -> None:
        """Its KV cache holds so many tokens; infinite where not known, to find out."""
        self.room = kv_tokens
        self._room_known = kv_tokens < inf

    def estimate(self, load: Load, uncached: float, context: float) -> Estimate:
        """Until the first token of a prompt of so many uncached tokens after so many cached ones."""
        step_tokens, step_pairs, behind_tokens, behind_pairs, elapsed, waiting, running, held, _, released, *_ = load
        a, b, c, d, e = self.fit.coefficients
        pace, budget = self.pace, self.budget
        decode = d + e * held if running else 0.0
        tokens, pairs = behind_tokens + uncached, behind_pairs + attended(uncached, context)
        steps_ahead = 0.0
        overdue = False
        ahead_s = least = 0.5 * pace * decode
        phase = 0.5
        since = max(load.since_step_s, 0.0)
        if waiting == 0 or elapsed < SAME_STEP_S or elapsed < since < 2.0 * least:
            # It joins what waits, if anything does: their step has not begun, or only just.
            tokens, pairs = tokens + step_tokens, pairs + step_pairs
            step_tokens = step_pairs = elapsed = 0.0
            if since < 2.0 * least:
                ahead_s = 2.0 * least - since
                phase = 0.5 * ahead_s / least
        else:
            steps_ahead = 1.0 + step_tokens / budget
            ahead_s = pace * (steps_ahead * (a + decode) + b * step_tokens + c * step_pairs) - elapsed
            overdue = ahead_s <= 0.0
            if ahead_s < least:
                ahead_s = least
                steps_ahead = step_tokens = step_pairs = elapsed = 0.0
        steps = 1.0 + tokens / budget
        own_s = pace * (steps * (a + decode) + b * tokens + c * pairs)
        seconds = _bounded(ahead_s + own_s)
        lack = uncached + context + held + load.waiting_tokens - self.room
        if lack > 0.0 and released > 0.0 and (wait_s := lack / released) > ahead_s:
            full_s = _bounded(wait_s + own_s)
            blend = self._judges[overdue].blend(seconds, full_s)
            return Estimate(blend, Situation.ROOM, None, 0.0, overdue, seconds, full_s)
        decoding = (steps + (steps_ahead or phase)) if running else 0.0
        terms = (steps + steps_ahead, tokens + step_tokens, pairs + step_pairs, decoding, decoding * held)
        situation = Situation.IDLE
        if waiting:
            alone = pace * (a + decode + b * uncached)
            situation = Situation.QUEUE if seconds > _LONG_QUEUE * alone else Situation.STEP
        return Estimate(seconds, situation, terms, elapsed, overdue, seconds, seconds)

    def observe(self, estimate: Estimate, seconds: float) -> None:
        """What would be estimated now of a request, and how long it took; above 0."""
        if estimate.terms is None:
            self._judges[estimate.overdue].observe(estimate.if_room_s, estimate.if_full_s, seconds)
            return
        believed = estimate.seconds
        taught = min(max(seconds, believed / _MOST_OFF), believed * _MOST_OFF)
        # Half of a change of pace is kept from the coefficients, so that it does not blur them for long. All of it
        # would leave nothing to tell which part of the seconds is pace and which coefficient.
        pace = self.pace**0.5
        self.fit.observe(estimate.terms, (taught + estimate.under_way_s) / pace, believed / pace)
        self._set_pace()

    def served(self, served: Served) -> None:
        """Learn the pace, and how much the cache holds: what runs fits, and where the next one waited without work
        ahead, no more did.
        """
        a, b, c, d, e = self.fit.coefficients
        steps = 1.0 + served.tokens / self.budget
        decoding = steps if served.running else 0.0
        terms = (steps, served.tokens, served.pairs, decoding, decoding * served.running_tokens)
        believed = a * steps + b * served.tokens + c * served.pairs + decoding * (d + e * served.running_tokens)
        if believed <= 0.0:
            return
        held = served.running_tokens
        late = served.running > 0 and served.seconds > _BLOCKED * self.pace * believed
        if late and not self._room_known:
            self.room = self.room + 0.3 * (held - self.room) if self.room < inf else held
            return
        if not late and held > self.room:
            self.room = held
        if late and held + served.waiting_tokens > self.room:
            return
        usual = self.pace * believed
        took = min(max(served.seconds, usual / _MOST_STRETCH), usual * _MOST_STRETCH)
        self._took = self._took * _PACE_MEMORY + took
        self._done = [old * _PACE_MEMORY + new for old, new in zip(self._done, terms, strict=True)]
        self._stretches = self._stretches * _PACE_MEMORY + 1.0
        self._prior *= _PACE_MEMORY
        self._set_pace()

    def _set_pace(self) -> None:
        """From what the last stretches took and what the coefficients of now say of them."""
        believed = sum([coefficient * term for coefficient, term in zip(self.fit.coefficients, self._done)])  # noqa: B905 - five each
        if believed > 0.0:
            known, prior = self._stretches, self._prior
            ratio = min(max(self._took / believed, 1.0 / _MOST_PACE), _MOST_PACE)
            self.pace = (known * ratio + prior) / (known + prior)


def _bounded(seconds: float) -> float:
    return max(seconds, LEAST_S) if seconds < MOST_S else MOST_S  # also for what is no number
