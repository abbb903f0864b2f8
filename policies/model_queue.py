"""Requests for one model: strict priority between classes, of which the lower ones are owed a share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from policies.admission_types import ServiceClass
from policies.class_overload import ClassOverload
from policies.fair_queue import FairQueue, Flow

_BATCH: Final = int(ServiceClass.BATCH)
_ROUNDING: Final = 1e-6
_LEAST_SHARE: Final = 1e-3
_FADES: Final = 1.0 / 512
"""Share of `ModelQueue.full` that is forgotten with each dispatch."""


class ModelQueue:
    """One fair queue a class.

    While a lower class has something that may be dispatched, each token dispatched for the model earns it its reserve.
    As soon as that suffices for its next request, this one goes before all others and is paid with it. So under a
    permanent flood from above a class gets its reserve of all tokens: in any interval short of it by at most its own
    largest request and the reserve of the largest of all, and never more, while charges turn out as expected. What it
    is dispatched because nothing above it could be neither earns it anything nor is paid.

    Strict priority is for classes that what there is suffices for. Where the classes above one ask for more than that,
    some of it is turned away whatever a lower class gets, and one tenant that floods there would take from every other
    below. Then a class with a reserve is owed in addition the share that is turned away, up to that which its tenants
    have of the weights of all.
    """

    __slots__ = ("classes", "credits", "full", "idle", "overload", "reserves", "running", "running_batch", "waiting")

    def __init__(self, reserves: Sequence[float], quantum: float, burst: float = 0.0) -> None:
        self.reserves = reserves
        self.classes = [FairQueue(quantum, burst) for _ in reserves]
        self.credits = [0.0 for _ in reserves]
        """Tokens that each class has earned; below 0 where it cost more than was thought."""
        self.overload: ClassOverload | None = None
        """None where nobody was turned away of late."""
        self.waiting = 0
        self.idle = False
        """Nothing was to be dispatched when there was room last."""
        self.running = 0
        self.running_batch = 0
        self.full = 0.0
        """The most requests that ran at a time of late: what batch may have a share of."""

    def reconfigure(self, reserves: Sequence[float], quantum: float, burst: float = 0.0) -> None:
        """These hold from now on; what was earned and spent stays."""
        self.reserves = reserves
        for queue in self.classes:
            queue.configure(quantum, burst)

    def pick(self, room: int, batch_share: float) -> tuple[Flow, int, bool] | None:
        """Whose turn it is, in which class, and whether because the class was owed. `room`: how many more requests the
        workers can take; batch may have `batch_share` of as many as they run when they are full, unless it is owed.

        A share of those that run just now would be no limit but a fall: whatever else ends makes less room for batch,
        until a fleet that has nothing else to do stands almost idle beside a queue of batch work.
        """
        classes, owed = self.classes, self.credits
        for rank in range(1, len(classes)):
            if owed[rank] > 0 and classes[rank].waiting:
                flow = classes[rank].top()
                if flow and owed[rank] + _ROUNDING >= flow.first().charged:
                    return flow, rank, True
        for rank, queue in enumerate(classes):
            if queue.waiting and (flow := queue.top()):
                held = rank == _BATCH and self.running_batch >= batch_share * max(self.running + room, self.full)
                return None if held else (flow, rank, False)
        return None

    def dispatched(self, rank: int) -> None:
        """One more runs."""
        self.running += 1
        self.running_batch += rank == _BATCH
        self.full = max(self.running, self.full * (1 - _FADES))

    def charge(self, rank: int, tokens: float, *, reserved: bool) -> None:
        """A request of that class was dispatched, or cost so much more than was thought; less, where below 0."""
        owed, shares = self.credits, self.reserves
        if self.overload is not None:
            self.overload.sent[rank] += tokens
            shares = self._shares(self.overload)
        for lower in range(1, len(owed)):
            if lower == rank and not reserved:
                continue
            queue = self.classes[lower]
            if queue.waiting and queue.top():
                owed[lower] += shares[lower] * tokens
            else:
                owed[lower] = min(owed[lower], 0.0)
        if reserved:
            owed[rank] -= tokens

    def ahead(self, rank: int, tenant: str, weight: float, tokens: float) -> float:
        """About how many tokens will be dispatched before a new request of so many, if nothing else comes."""
        queue, shares = self.classes[rank], self.shares()
        before = queue.ahead(tenant, weight, tokens)
        share, behind = shares[rank], sum(shares[rank + 1 :])
        above = sum(higher.tokens for higher in self.classes[:rank])
        if above and share:
            above = min(above, max(before + tokens - self.credits[rank], 0.0) * (1 - share) / share)
        before += above
        own = max(1 - behind, _LEAST_SHARE)  # the highest class has none while nothing of it is here
        return before + min(sum(lower.tokens for lower in self.classes[rank + 1 :]), before * behind / own)

    def fade(self, now: float) -> None:
        """Who was turned away long ago counts less and less; to be called now and then."""
        overload = self.overload
        if overload is not None and now >= overload.fades_at and not overload.fade(now):
            self.overload = None

    def shares(self) -> Sequence[float]:
        """What each class is owed of all tokens. The highest one keeps its part of the weights."""
        return self.reserves if self.overload is None else self._shares(self.overload)

    def _shares(self, overload: ClassOverload) -> Sequence[float]:
        weights = sum(queue.active for queue in self.classes)
        free = 1 - sum(self.reserves)
        return [
            reserve + free * min(queue.active / weights, overload.excess(rank)) if reserve and weights else reserve
            for rank, (reserve, queue) in enumerate(zip(self.reserves, self.classes, strict=True))
        ]
