"""Passive ejection: a worker that keeps failing gets no requests for a while, the longer the more often.

The mechanisms are those of Envoy's outlier detection, and so are the default numbers: consecutive failures, an ejection
time that grows with each ejection and shrinks again with each sweep, a cap on the share that is out, and a panic
threshold below which nobody counts as out. Times are seconds of one clock, chosen by the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeVar

from policies.types import WorkerId

_ROUNDING = 1e-9
_W = TypeVar("_W")


@dataclass(frozen=True, slots=True)
class EjectionRules:
    """When a worker is ejected, and for how long. Raises ValueError where the numbers make no sense."""

    consecutive_failures: int = 5
    """Server errors (gateway failures among them) in a row that eject."""
    consecutive_gateway_failures: int = 5
    """Failures in a row to get a complete answer at all."""
    base_s: float = 30.0
    """Length of the first ejection; the second takes twice as long, the third three times."""
    max_s: float = 300.0
    max_share: float = 0.1
    """Of the fleet, that may be out at a time; one worker always may."""
    panic_share: float = 0.5
    """Where less than this share of the candidates is in, all of them are used."""
    sweep_s: float = 10.0
    """How often `sweep` is to be called; each time a healthy worker is forgiven one ejection."""

    def __post_init__(self) -> None:
        """Check what types cannot."""
        if min(self.consecutive_failures, self.consecutive_gateway_failures) < 1:
            raise ValueError("it takes at least one failure to eject")
        if not 0 < self.base_s <= self.max_s or not self.sweep_s > 0:
            raise ValueError("times must be positive, and base_s at most max_s")
        if not (0 <= self.max_share <= 1 and 0 <= self.panic_share <= 1):
            raise ValueError("shares lie between 0 and 1")


class Outcome(Enum):
    """How a request ended, as far as it tells of the worker's health."""

    OK = auto()
    """An answer that is no server error; a client's own mistake (4xx) is one."""
    SERVER_ERROR = auto()
    """An answer with status 5xx."""
    GATEWAY = auto()
    """No complete answer: connection failed or reset, timeout, truncated."""


@dataclass(slots=True)
class _Record:
    failures: int = 0
    gateway_failures: int = 0
    times: int = 0
    """By how many base times the last ejection lasted, less what was forgiven since."""

    def well(self) -> None:
        self.failures = self.gateway_failures = 0


class Ejections:
    """Who is out until when. A worker that nobody has added is never out."""

    def __init__(self, rules: EjectionRules) -> None:
        self.rules = rules
        self._records: dict[WorkerId, _Record] = {}
        self._until: dict[WorkerId, float] = {}  # of those ejected and not yet swept back
        self._back: list[WorkerId] = []  # let in to keep the cap; the next sweep tells

    @property
    def cap(self) -> int:
        """How many may be out at a time."""
        return max(1, int(self.rules.max_share * len(self._records) + _ROUNDING))

    def add(self, worker: WorkerId) -> None:
        """A worker joins the fleet; nothing changes for one that is known."""
        self._records.setdefault(worker, _Record())

    def remove(self, worker: WorkerId) -> None:
        """It leaves. If the smaller fleet allows fewer to be out, those that are due soonest come back at once."""
        self._records.pop(worker, None)
        self._until.pop(worker, None)
        if worker in self._back:
            self._back.remove(worker)
        while len(self._until) > self.cap:
            soonest = min(self._until, key=self._until.__getitem__)
            del self._until[soonest]
            self._back.append(soonest)

    def record(self, worker: WorkerId, outcome: Outcome, now: float) -> bool:
        """A request ended. True where this has just ejected the worker.

        What ends while the worker is out does not count. Where the cap forbids to eject it, its next failure tries
        again.
        """
        record = self._records.get(worker)
        if record is None:
            return False
        if outcome is Outcome.OK:
            record.well()
            return False
        if self.is_out(worker, now):
            return False
        record.failures += 1
        record.gateway_failures = record.gateway_failures + 1 if outcome is Outcome.GATEWAY else 0
        rules = self.rules
        if (
            record.failures >= rules.consecutive_failures
            or record.gateway_failures >= rules.consecutive_gateway_failures
        ):
            return self._eject(worker, record, now)
        return False

    def force(self, worker: WorkerId, now: float) -> bool:
        """Eject a worker for another reason, as one that hangs. False where it is out already or the cap forbids."""
        record = self._records.get(worker)
        return record is not None and not self.is_out(worker, now) and self._eject(worker, record, now)

    def is_out(self, worker: WorkerId, now: float) -> bool:
        """Whether it is ejected at this moment; its time may end between two sweeps."""
        until = self._until.get(worker)
        return until is not None and now < until

    def until(self, worker: WorkerId) -> float | None:
        """When its last ejection ends, or ended if no sweep has told so yet; None where it is in."""
        return self._until.get(worker)

    def sweep(self, now: float) -> list[WorkerId]:
        """Those that are back since the last sweep. Everybody who has been in since then is forgiven one ejection."""
        back, self._back = self._back, []
        due = [worker for worker, until in self._until.items() if until <= now]
        for worker in due:
            del self._until[worker]
        back += due
        for worker, record in self._records.items():
            if record.times and worker not in self._until and worker not in back:
                record.times -= 1
        return back

    def n_out(self, now: float) -> int:
        """How many are out at this moment."""
        return sum([now < until for until in self._until.values()])

    def panic(self, n_candidates: int, n_out: int) -> bool:
        """Whether so few of the candidates are in that they would break down too: then ejection is ignored."""
        return n_candidates - n_out < self.rules.panic_share * n_candidates

    def usable(self, workers: Sequence[_W], now: float, id_of: Callable[[_W], WorkerId]) -> Sequence[_W]:
        """Those of `workers` that are in; all of them in a panic. The same object where nobody is out."""
        if not self._until:
            return workers
        left = [worker for worker in workers if not self.is_out(id_of(worker), now)]
        if len(left) == len(workers) or self.panic(len(workers), len(workers) - len(left)):
            return workers
        return left

    def _eject(self, worker: WorkerId, record: _Record, now: float) -> bool:
        if self.n_out(now) >= self.cap:
            return False
        for other in [other for other, until in self._until.items() if until <= now and other != worker]:
            del self._until[other]  # its time is over: it holds no place any longer
            self._back.append(other)
        if worker in self._back:
            self._back.remove(worker)
        rules = self.rules
        if record.times * rules.base_s < rules.max_s:
            record.times += 1
        self._until[worker] = now + min(record.times * rules.base_s, rules.max_s)
        record.well()
        return True
