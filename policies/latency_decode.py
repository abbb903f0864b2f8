"""Time per output token: what a step takes that only decodes, longer by the prefill that others' prompts put into it.

The one part is linear in how many requests run and in their context, and learnt; the other follows from how much of
the time went into prefill of late. Where that does not hold (a full cache, an engine that decodes elsewhere), the mean
of what was measured of late does better, so both are blended by how well each did.
"""

from __future__ import annotations

from typing import Final

from policies.latency_fit import Fit, SharedFit
from policies.latency_load import Load
from policies.latency_path import Judges, PrefillPath

LEAST_TPOT_S: Final = 1e-6
_MOST_OFF: Final = 3.0
_RECENT_GAIN: Final = 0.05


class Recent:
    """The mean of what was measured of late."""

    __slots__ = ("seconds",)

    def __init__(self) -> None:
        self.seconds: float | None = None

    def observe(self, seconds: float) -> None:
        """One more; it counts as at most four times the mean."""
        mean = self.seconds
        self.seconds = seconds if mean is None else mean + _RECENT_GAIN * (min(seconds, 4.0 * mean) - mean)


class DecodePace:
    """One worker's."""

    __slots__ = ("_budget", "_fit", "_fleet_recent", "_judges", "_path", "_recent")

    def __init__(self, shared: SharedFit, judges: Judges, recent: Recent, path: PrefillPath, budget: float) -> None:
        """`recent` is the fleet's, `path` the same worker's: it knows what prefill takes."""
        self._fit = Fit(shared)
        self._judges = judges
        self._recent = Recent()
        self._fleet_recent = recent
        self._path = path
        self._budget = budget

    @property
    def recent_s(self) -> float | None:
        """What was measured of late: its own, else the fleet's; None before anything was."""
        own = self._recent.seconds
        return self._fleet_recent.seconds if own is None else own

    def estimate(self, load: Load, tokens: float) -> float:
        """Seconds for a request that will hold so many tokens."""
        fitted = self._fitted(load, tokens)[0]
        recent = self.recent_s
        return fitted if recent is None else self._judges.blend(fitted, recent)

    def observe(self, load: Load, tokens: float, seconds: float) -> None:
        """What it was (above 0) for a request that was sent when the load was that."""
        fitted, stretch = self._fitted(load, tokens)
        if (recent := self.recent_s) is not None:
            self._judges.observe(fitted, recent, seconds)
        self._recent.observe(seconds)
        self._fleet_recent.observe(seconds)
        taught = min(max(seconds, fitted / _MOST_OFF), fitted * _MOST_OFF)
        terms = (stretch, stretch * (load.running + 1), stretch * (load.running_tokens + tokens))
        self._fit.observe(terms, taught, fitted)

    def _fitted(self, load: Load, tokens: float) -> tuple[float, float]:
        """Seconds, and how many times longer that is for the prefill in between."""
        base, each, context = self._fit.coefficients
        alone = max(base + each * (load.running + 1) + context * (load.running_tokens + tokens), LEAST_TPOT_S)
        per_step, per_token, *_ = self._path.fit.coefficients
        busy = load.prefill_rate * per_token + load.step_rate * per_step
        whole_step = per_step + per_token * self._budget  # at most that is prefilled for each token
        stretch = 1.0 / (1.0 - min(busy, whole_step / (whole_step + alone)))
        return alone * stretch, stretch
