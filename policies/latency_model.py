"""Time to first token and time per output token of one worker, predicted when a request is dispatched.

A prompt's way to its first token is a queue and some engine steps, whose time is linear in a few terms:
a per step, b per uncached token, c per attended pair, and what decoding beside it costs, d per step and e per step and
token of context. Those are learnt by non-negative least squares, workers lending each other what they know. How fast
a worker goes just now, its pace, is told by how long each stretch of prefill took, which is known long before the
requests behind it are answered. A calibration for each kind of situation corrects what is left, and says below what
nine in ten will be.
"""

from __future__ import annotations

from math import exp, inf, isfinite, log
from typing import Final, NamedTuple

from policies.latency_calibration import Calibration
from policies.latency_fit import Fit, Moments
from policies.latency_load import Load, Served
from policies.restore_speed import attended

_IDLE, _STEP, _QUEUE, _ROOM = range(4)
_KINDS: Final = ("idle", "step", "queue", "room")
_LEAST_S: Final = 1e-4
_MOST_S: Final = 1e6
_MOST_OFF: Final = 3.0
_SAME_STEP_S: Final = 1e-3
_PACE_MEMORY: Final = 0.9
_PACE_PRIOR: Final = 4.0
_MOST_PACE: Final = 100.0


class Prior(NamedTuple):
    """What is believed of a worker nobody has seen at work."""

    tokens_per_second: float = 8_000.0
    step_s: float = 0.015
    decode_s: float = 0.015
    budget: int = 8_192
    """Tokens that a step computes at most."""


class Prediction(NamedTuple):
    """Seconds."""

    ttft_s: float
    ttft_p90_s: float
    tpot_s: float
    tpot_p90_s: float
    kind: int


class Fleet:
    """What the workers of one class (a model on one kind of machine) know together."""

    def __init__(self, prior: Prior = Prior()) -> None:
        self.prior = prior
        self.ttft_moments = Moments(5)
        self.tpot_moments = Moments(3)
        self.ttft = [Calibration() for _ in _KINDS]
        self.tpot = Calibration()
        p = prior
        self.ttft_first = [p.step_s, 1.0 / p.tokens_per_second, 0.0, p.decode_s, 0.0]
        self.tpot_first = [p.decode_s, 0.0, 0.0]


class LatencyModel:
    def __init__(self, fleet: Fleet | None = None, capacity: float = inf) -> None:
        self.room = capacity; self._known = capacity < inf; self._recent=None; self._errs=[0.05,0.05]
        self._fleet = fleet = fleet or Fleet()
        self._ttft = Fit(fleet.ttft_first, fleet.ttft_moments)
        self._tpot = Fit(fleet.tpot_first, fleet.tpot_moments)
        self._ttft_cal = [Calibration(parent) for parent in fleet.ttft]
        self._tpot_cal = Calibration(fleet.tpot)
        self._budget = float(fleet.prior.budget)
        self._took = self._believed = 0.0
        self._blocked = [[.3,.3], [.3,.3]]
        self._flag = None

    @property
    def pace(self) -> float:
        return self._pace

    def raw(self, load, uncached, context, restore_s=0.0):
        """-> (seconds, kind, terms, offset) seconds = pace*terms.coef - offset"""
        (step_t, step_p, behind_t, behind_p, elapsed, waiting, running, held, held_waiting, released, _, _) = load
        a, b, c, d, e = self._ttft.coefficients
        budget = self._budget
        pace = self.pace
        own_t = behind_t + uncached
        own_p = behind_p + attended(uncached, context)
        decode = d + e * held if running else 0.0
        if waiting == 0:
            n1, n2, step_t, step_p = (0.5 if running else 0.0), 1.0, 0.0, 0.0
            first = pace * n1 * decode
            kind = _IDLE
            n_pre = 1.0
        elif elapsed < _SAME_STEP_S:
            own_t += step_t
            own_p += step_p
            step_t = step_p = first = n1 = 0.0
            n2 = n_pre = 1.0
            elapsed = 0.0
            kind = _STEP
        else:
            n1, n2 = 1.0 + step_t / budget, 1.0
            first = pace * (n1 * (a + decode) + b * step_t + c * step_p) - elapsed
            n_pre = n1 + 1.0
            kind = _STEP
        n2 += own_t / budget
        own = pace * (n2 * (a + decode) + b * own_t + c * own_p)
        if first < 0.0:
            first = 0.0; step_t = step_p = 0.0; elapsed = 0.0; n1 = 0.0; n_pre = 1.0
        if first + own > 4*pace*(a+decode+b*uncached) and kind==_STEP: kind=_QUEUE
        lack = uncached + context + held + held_waiting - self.room
        if lack > 0 and released > 0:
            wait = lack / released
            overdue = waiting > 0 and pace * (n1 * (a + decode) + b * step_t + c * step_p) - elapsed <= 0 
            self._flag = (int(overdue), first + own, wait + own)
            if wait > first:
                e1, e2 = self._blocked[int(overdue)]
                w = e2 ** 4 / (e1 ** 4 + e2 ** 4)
                return exp(w * log(max(first + own,1e-4)) + (1 - w) * log(wait + own)), _ROOM, None, 0.0
        else:
            self._flag = None
        steps = n1 + n2
        if not running:
            sd = sk = 0.0
        else:
            sd, sk = steps, steps * held
        terms = (n_pre + (own_t) / budget, step_t + own_t, step_p + own_p, sd, sk)
        return max(first + own, _LEAST_S), kind, terms, elapsed

    @property
    def pace(self):
        if not self._believed: return 1.0
        return self._took / self._believed

    def predict(self, load, uncached, context, restore_s=0.0):
        raw, kind, _, _ = self.raw(load, uncached, context)
        mul, up = self._ttft_cal[kind].factors()
        ttft = raw * mul + restore_s
        tp, _ = self._tpot_mix(load, uncached, context)
        tmul, tup = self._tpot_cal.factors()
        return Prediction(ttft, raw * mul * up + restore_s, tp * tmul, tp * tmul * tup, kind)

    def _tpot_terms(self, load, uncached, context):
        n, k = load.running + 1, load.running_tokens + uncached + context
        a, b, c = self._tpot.coefficients
        alone = a + b*n + c*k
        ta, tb, tc, td, te = self._ttft.coefficients
        busy = load.prefill_rate * tb + load.step_rate * ta
        full = ta + tb * self._budget
        share = min(busy, full / (full + alone))
        h = 1.0 / (1.0 - share)
        return (h, h*n, h*k)

    def _tpot_raw(self, load, uncached, context):
        return max(sum([x * y for x, y in zip(self._tpot.coefficients, self._tpot_terms(load, uncached, context))]), 1e-5)

    def _tpot_mix(self, load, uncached, context):
        raw = self._tpot_raw(load, uncached, context)
        if self._recent is None: return raw, raw
        e1, e2 = self._errs
        w = e2 ** 4 / (e1 ** 4 + e2 ** 4)
        return exp(w * log(raw) + (1 - w) * log(self._recent)), raw

    def observe_ttft(self, given, load, uncached, context, ttft_s, restore_s=0.0):
        took = max(ttft_s - restore_s, _LEAST_S)
        raw, kind, terms, offset = self.raw(load, uncached, context)
        if self._flag:
            j, free, full = self._flag
            for q, x in enumerate((free, full)):
                self._blocked[j][q] += 0.1 * (min(abs(log(max(x,1e-4) / took)), 3.0) - self._blocked[j][q])
            if took > 2 * free: terms = None
        self._ttft_cal[kind].observe(took / raw, log(took/max(given.ttft_s-restore_s,1e-4)), missed=ttft_s>given.ttft_p90_s)
        if terms is None: return
        y = min(max(took, raw / _MOST_OFF), raw * _MOST_OFF)
        self._ttft.observe(terms, y + offset, raw)

    def observe_tpot(self, given, load, uncached, context, tpot_s):
        mix, raw = self._tpot_mix(load, uncached, context)
        self._tpot_cal.observe(tpot_s / mix, log(tpot_s/given.tpot_s), missed=tpot_s>given.tpot_p90_s)
        if self._recent is None: self._recent = tpot_s
        for i, x in enumerate((raw, self._recent)):
            self._errs[i] += 0.05 * (min(abs(log(x / tpot_s)), 2.0) - self._errs[i])
        self._recent += 0.05 * (min(tpot_s, 4 * self._recent) - self._recent)
        y = min(max(tpot_s, raw / _MOST_OFF), raw * _MOST_OFF)
        self._tpot.observe(self._tpot_terms(load, uncached, context), y, raw)

    def observe_served(self, served: Served) -> None:
        a, b, c, d, e = self._ttft.coefficients
        decode = d + e * served.running_tokens if served.running else 0.0
        believed = (1 + served.tokens / self._budget) * (a + decode) + b * served.tokens + c * served.pairs
        blocked = not self._known and served.seconds > 3 * self.pace * believed and served.running > 0
        if blocked:
            self.room = self.room + 0.3 * (served.running_tokens - self.room) if self.room < inf else served.running_tokens
            return
        if served.running_tokens > self.room: self.room = served.running_tokens
        took = min(max(served.seconds, believed / 4), believed * 4)
        if not self._believed:
            self._took = self._believed = _PACE_PRIOR * believed
        self._took = self._took * _PACE_MEMORY + took
        self._believed = self._believed * _PACE_MEMORY + believed
