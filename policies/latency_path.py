"""A prompt's way to its first token: the step under way, those that prefill what is ahead, and its own.

The time is linear in a few terms: a per step, b per uncached token, c per attended pair, and for decoding beside it
d per step and e per step and token of context. They are learnt from what a worker got done between two moments at which
a step was seen to end. How fast it goes just now, its pace, is the median of the last such stretches.

A request may also wait because the KV cache is full; then it is those that finish who make room: see `latency_room`.
"""

from __future__ import annotations

from collections import deque
from enum import IntEnum
from math import ceil, exp, log
from typing import Final, NamedTuple

from policies.latency_fit import Fit, SharedFit
from policies.latency_load import Load
from policies.latency_room import RoomWaits
from policies.latency_steps import Fills, Served, Speed
from policies.restore_speed import attended

LEAST_S: Final = 1e-4
MOST_S: Final = 1e6
"""What is predicted lies between these."""
_MOST_OFF: Final = 3.0
"""A measurement teaches as if it were at most so many times what was believed: one stall moves little."""
_LONG_QUEUE: Final = 4.0
_NEARLY_FULL: Final = 0.5
"""Of a cache that is less full, with what waits, nobody waits for room."""
_STUCK: Final = 3.0
"""By so many steps late, it is for want of room."""
_FULL: Final = 0.95
_LATE: Final = 1.15
_MOST_SKIPPED: Final = 12
"""A stretch that took so many times what was believed, with so full a cache, waited for room, and says nothing of the
pace; but not so many after each other.
"""
_STRETCHES: Final = 11
""""Just now" is so many stretches."""
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
    bucket: int
    """When its last step begins; see `Fills`."""
    room: int
    """What it waits for room like, of `RoomWaits`; -1: it should not."""
    base_s: float
    """By which its wait is then measured."""


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

    __slots__ = ("_fills", "_skipped", "_stretches", "_waits", "budget", "fit", "pace", "speed")

    def __init__(self, shared: SharedFit, fills: Fills, waits: RoomWaits, budget: float) -> None:
        """`waits`: of prompts that may not fit."""
        self.fit = Fit(shared)
        self._fills = fills
        self._waits = waits
        self.budget = budget
        self._skipped = 0
        self.pace = 1.0
        """How long it takes just now, over what the coefficients say."""
        self._stretches: deque[Served] = deque(maxlen=_STRETCHES)
        self.speed = Speed(*self.fit.coefficients)

    def estimate(self, load: Load, uncached: float, context: float) -> Estimate:
        """Until the first token of a prompt of so many uncached tokens after so many cached ones."""
        rest_s, join, behind, behind_pairs, budget, waiting, running, held, *_ = load
        a, b, c, d, e = self.speed
        decode = d + e * held if running or waiting else 0.0
        overdue = rest_s < 0.0
        ahead_s = max(rest_s, 0.5 * decode) if overdue else rest_s
        own = min(join, uncached)
        tokens = behind + uncached - own
        steps = ceil(tokens / budget)
        step_s = a + decode + b * budget
        slack = steps * budget - tokens if steps else join - own
        later_s = (ahead_s if waiting else 0.0) + (steps - 1) * step_s
        bucket = Fills.bucket(later_s / step_s) if steps else 0
        tokens += own + self._fills.shares[bucket] * slack
        own_s = steps * (a + decode) + b * tokens + c * (behind_pairs + attended(uncached, context))
        seconds = _bounded(ahead_s + own_s)
        short = self._short(load, uncached, context, late=rest_s < -_STUCK * decode)
        if short is not None:
            given_back_s = short / load.release_rate if load.release_rate > 0.0 else 0.0
            room_s = min(given_back_s + max(-rest_s, 0.0), MOST_S)
            kind = RoomWaits.kind(seconds, room_s, late=overdue)
            base_s = RoomWaits.base(seconds, room_s)
            return Estimate(_bounded(base_s * self._waits.factors[kind]), Situation.ROOM, bucket, kind, base_s)
        situation = Situation.IDLE
        if waiting:
            alone = a + decode + b * uncached
            situation = Situation.QUEUE if seconds > _LONG_QUEUE * alone else Situation.STEP
        return Estimate(seconds, situation, bucket, -1, seconds)

    @staticmethod
    def _short(load: Load, uncached: float, context: float, *, late: bool) -> float | None:
        """Tokens for which the KV cache has no room, with those ahead; None where there is enough for all."""
        if not load.running:
            return None
        held = load.used_tokens + load.needed_tokens
        if held + load.reused_tokens <= _NEARLY_FULL * load.room_tokens:
            return None
        free = load.room_tokens - load.used_tokens
        reused = load.reused_tokens + (context if context <= free else 0.0)
        short = uncached + load.needed_tokens + min(reused, free) - free  # all that is cached and not in use is free
        return max(short, 0.0) if short > 0.0 or late else None

    def observe(self, estimate: Estimate, seconds: float) -> None:
        """What was estimated of a request that might not have fitted, and how long it took; above 0."""
        self._waits.observe(estimate.room, seconds / estimate.base_s)

    def served(self, served: Served) -> None:
        """Learn from a stretch how fast it is."""
        believed = self.speed.seconds(served.terms)
        if believed <= 0.0 or served.seconds <= 0.0:
            return
        full = served.waiting_tokens + served.running_tokens > _FULL * served.room
        if full and served.seconds > _LATE * believed and self._skipped < _MOST_SKIPPED:
            self._skipped += 1
            return
        self._skipped = 0
        self._stretches.append(served)
        taught = min(max(served.seconds, believed / _MOST_OFF), believed * _MOST_OFF)
        # Half of a change of pace is kept from the coefficients, so that it does not blur them for long. All of it
        # would leave nothing to tell which part of the seconds is pace and which coefficient.
        pace = self.pace**0.5
        self.fit.observe(served.terms, taught / pace, believed / pace)
        self._set_pace()

    def _set_pace(self) -> None:
        """From what the last stretches took and what the coefficients of now say of them: their median, with some
        that took what was believed.
        """
        plain = Speed(*self.fit.coefficients)
        a, b, c, d, e = plain
        ratios = [1.0]
        for took, (steps, tokens, pairs, decoding, held), *_ in self._stretches:
            ratios.append(took / max(a * steps + b * tokens + c * pairs + d * decoding + e * held, LEAST_S))
        ratios.sort()
        pace = min(max(ratios[len(ratios) // 2], 1.0 / _MOST_PACE), _MOST_PACE)
        self.pace = pace
        self.speed = Speed(pace * a, pace * b, pace * c, pace * d, pace * e)


def _bounded(seconds: float) -> float:
    return max(seconds, LEAST_S) if seconds < MOST_S else MOST_S  # also for what is no number
