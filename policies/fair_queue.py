"""Requests of one class for one model: deficit round robin between tenants, earliest deadline first within each.

Deficit round robin as in Shreedhar and Varghese (SIGCOMM 1995), with two changes. What a request costs is known for
certain only after it was served, so a tenant keeps its turn while its deficit is above 0 and pays afterwards. And
tenants stand in a heap by the round in which their turn comes: one that has taken much is put as many rounds later at
once, in O(log n), where a ring would be gone around that often. The rounds themselves are only numbers.

Between two tenants that always have something to send, what they were charged ÷ weight differs in any interval by at
most 3 quanta and the largest request ÷ weight of each, and by what one of them had saved up when it began. A tenant
that comes back goes on in the round in which it left, but no more than `burst` tokens × weight before the round of the
day: so one that asks for less than its share on average gets a burst through at once, though another always asks for
everything. That is virtual time that may lag by so much, as in Duda and Cheriton's borrowed virtual time (SOSP 1999).
Debts are kept until their round, savings and debts until nobody waits and nothing runs: as long as what one tenant
has sent while it was alone fills the workers, the others have sent less.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush, heapreplace
from math import ceil, inf
from typing import Final

from policies.admission_types import Request, Ticket

_SLACK: Final = 64
_CREDIT: Final = 8
"""Quanta that corrections of earlier charges can add up to: more would let one tenant take all turns for a while."""


class Account:
    """One tenant, across models and classes."""

    __slots__ = ("bytes", "counts", "max_running", "parked", "running")

    def __init__(self, classes: int) -> None:
        self.running = 0
        self.max_running: int | None = None
        self.counts = [0] * classes
        """Requests that wait, by class."""
        self.bytes = [0] * classes
        """Of these."""
        self.parked: dict[Flow, None] = {}
        """What would have its turn, were the tenant not at its limit, in the order in which it had it."""

    @property
    def full(self) -> bool:
        """Whether nothing more of it may be dispatched."""
        return self.max_running is not None and self.running >= self.max_running


class Waiting:
    """An accepted request. `flow` tells where it waits; None once it does not."""

    __slots__ = ("account", "arrived", "charged", "deadline", "expires", "flow", "paid_by", "rank", "request",
                 "reserved", "ticket")  # fmt: skip

    def __init__(self, ticket: Ticket, request: Request, account: Account, arrived: float, charge: float) -> None:
        self.ticket = ticket
        self.request = request
        self.account = account
        self.arrived = arrived
        self.charged = charge
        """Tokens: what it will be charged, later what it was."""
        self.rank = 0
        self.deadline = 0.0
        self.expires = 0.0
        self.flow: Flow | None = None
        self.paid_by: Flow | None = None
        """Where it waited, once it is running."""
        self.reserved = False
        """It was dispatched because its class was owed."""


class Flow:
    """One tenant's requests in one queue."""

    __slots__ = ("account", "count", "deficit", "heap", "parked", "queue", "round", "running", "tokens", "turn",
                 "weight")  # fmt: skip

    def __init__(self, queue: FairQueue, account: Account) -> None:
        self.queue = queue
        self.account = account
        self.weight = 1.0
        self.heap: list[tuple[float, int, Waiting]] = []
        """By deadline; with requests that have left."""
        self.count = 0
        self.tokens = 0.0
        self.deficit = 0.0
        self.round = -1
        self.turn = 0
        """Its place among those of the same round; 0 where it awaits no turn."""
        self.parked = False
        self.running = 0

    def first(self) -> Waiting:
        """Its next request; it stays. Raises IndexError where there is none."""
        heap = self.heap
        while (waiting := heap[0][2]).flow is not self:
            heappop(heap)
        return waiting


class FairQueue:
    """Who is next is always known; dispatching, adding and removing take O(log n) amortised."""

    __slots__ = ("_heap", "_in_turn", "_lag", "_sweep_at", "_turns", "active", "busy", "flows", "quantum", "round",
                 "tokens", "waiting", "weights")  # fmt: skip

    def __init__(self, quantum: float, burst: float = 0.0) -> None:
        self.quantum = quantum
        self._lag = int(burst / quantum)
        self.round = 0
        self.flows: dict[str, Flow] = {}
        self.waiting = 0
        self.tokens = 0.0
        """What those that wait will be charged."""
        self.weights = 0.0
        """Of all flows with something waiting."""
        self.active = 0.0
        """Of all with something waiting or running..."""
        self.busy = 0
        """...and how many these are."""
        self._heap: list[tuple[int, int, Flow]] = []
        self._in_turn = 0
        self._turns = 0
        self._sweep_at = _SLACK

    def configure(self, quantum: float, burst: float) -> None:
        """These hold from now on."""
        self.quantum = quantum
        self._lag = int(burst / quantum)

    @property
    def earliest(self) -> int:
        """The round in which a tenant starts that was long away; who left in a later one goes on where it was."""
        first = self.round - self._lag
        return max(0, first)

    def turns(self) -> Sequence[tuple[int, int, Flow]]:
        """Round, place and tenant, in no order; with turns that nobody awaits any longer."""
        return self._heap

    def push(self, tenant: str, weight: float, waiting: Waiting) -> None:
        """It waits from now on, by its deadline among the others of `tenant`."""
        flow = self.flows.get(tenant)
        if flow is None:
            if len(self.flows) >= self._sweep_at:
                self._sweep()
            flow = self.flows[tenant] = Flow(self, waiting.account)
        flow.account = waiting.account
        if not flow.count:
            self.weights += weight
            if flow.running:
                self.active += weight - flow.weight
            else:
                self.active += weight
                self.busy += 1
        elif weight != flow.weight:
            self.weights += weight - flow.weight
            self.active += weight - flow.weight
        flow.weight = weight
        flow.count += 1
        flow.tokens += waiting.charged
        self.waiting += 1
        self.tokens += waiting.charged
        waiting.flow = flow
        heappush(flow.heap, (waiting.deadline, waiting.ticket, waiting))
        if not flow.turn and not flow.parked:
            self._enter(flow)

    def top(self) -> Flow | None:
        """Whose turn it is; none where nobody waits but tenants at their limit, who are set aside."""
        heap = self._heap
        while heap:
            _, turn, flow = heap[0]
            if flow.turn != turn:
                heappop(heap)
            elif (most := flow.account.max_running) is not None and flow.account.running >= most:
                heappop(heap)
                self._leave(flow)
                flow.parked = True
                flow.account.parked[flow] = None
            elif flow.deficit <= 0:  # it was charged more since
                self._defer(flow)
                self._replace(flow)
            else:
                return flow
        return None

    def serve(self, flow: Flow) -> Waiting:
        """Its first request is dispatched and charged; `flow` is what `top` has answered."""
        waiting = flow.first()
        heappop(flow.heap)
        self.round = max(self.round, flow.round)
        flow.deficit -= waiting.charged
        flow.running += 1
        waiting.flow = None
        waiting.paid_by = flow
        if flow.count > 1 and flow.deficit <= 0:
            self._defer(flow)
            self._replace(flow)
        self._less(flow, waiting.charged)
        return waiting

    def remove(self, waiting: Waiting) -> None:
        """It does not wait any longer, and was not dispatched."""
        flow = waiting.flow
        assert flow is not None
        waiting.flow = None
        self._less(flow, waiting.charged)
        if len(flow.heap) > 2 * flow.count + _SLACK:
            flow.heap = [item for item in flow.heap if item[2].flow is flow]
            heapify(flow.heap)

    def rest(self, flow: Flow) -> None:
        """Nothing of it waits or runs any longer."""
        self.active -= flow.weight
        self.busy -= 1
        if not self.busy:
            self._forget()

    def charge(self, flow: Flow, tokens: float) -> None:
        """It cost so many more tokens than was thought, or fewer where below 0.

        What is given back brings the next turn nearer. What is left then makes that one longer: by a few quanta, or
        by another request like this one.
        """
        if flow.round < self.earliest and not flow.turn:
            self._begin(flow)
        flow.deficit -= tokens
        if tokens > 0:
            if not flow.turn and flow.deficit <= 0:  # otherwise `top` sees to it
                self._defer(flow)
            return
        share = self.quantum * flow.weight
        if flow.deficit <= share:
            return
        nearer = min(flow.round - self.round, ceil(flow.deficit / share) - 1)
        if nearer > 0:
            flow.round -= nearer
            flow.deficit -= nearer * share
            if flow.turn:
                self._leave(flow)
                self._enter(flow)
        flow.deficit = min(flow.deficit, max(_CREDIT * share, share - tokens))

    def ahead(self, tenant: str, weight: float, tokens: float) -> float:
        """About how many tokens have their turn before a new request of so many."""
        flow = self.flows.get(tenant)
        own, others, debt = 0.0, self.weights, 0.0
        if flow:
            own, debt = flow.tokens, (max(flow.round, self.earliest) - self.round) * self.quantum
            others -= flow.weight if flow.count else 0.0
        return own + min(self.tokens - own, max(debt + (own + tokens) / weight, 0.0) * max(others, 0.0))

    def unpark(self, flow: Flow) -> None:
        """Its tenant is below its limit again."""
        flow.parked = False
        del flow.account.parked[flow]
        self._enter(flow)

    def _less(self, flow: Flow, tokens: float) -> None:
        """One request left that is charged so much."""
        flow.count -= 1
        flow.tokens -= tokens
        self.waiting -= 1
        self.tokens -= tokens
        if flow.count:
            return
        flow.tokens = 0.0
        self.weights -= flow.weight
        if flow.turn:
            self._leave(flow)
        elif flow.parked:
            flow.parked = False
            del flow.account.parked[flow]
        if flow.deficit <= 0:
            self._defer(flow)
        if not self.waiting:
            self.tokens = self.weights = 0.0
        if not flow.running:
            self.rest(flow)

    def _enter(self, flow: Flow) -> None:
        """It awaits its turn, the last of its round."""
        if flow.round < self.earliest:
            self._begin(flow)
        elif flow.deficit <= 0:
            self._defer(flow)
        if len(self._heap) > 2 * self._in_turn + _SLACK:
            self._heap = [item for item in self._heap if item[2].turn == item[1]]
            heapify(self._heap)
        self._in_turn += 1
        self._turns += 1
        flow.turn = self._turns
        heappush(self._heap, (flow.round, flow.turn, flow))

    def _begin(self, flow: Flow) -> None:
        """Whatever it has left over from earlier rounds, it starts in this one with as much as anybody."""
        flow.round = self.earliest
        flow.deficit = self.quantum * flow.weight

    def _leave(self, flow: Flow) -> None:
        flow.turn = 0
        self._in_turn -= 1

    def _replace(self, flow: Flow) -> None:
        """It is first and goes to the end of a later round."""
        self._turns += 1
        flow.turn = self._turns
        heapreplace(self._heap, (flow.round, flow.turn, flow))

    def _defer(self, flow: Flow) -> None:
        """As many rounds as it takes to pay its debt."""
        share = self.quantum * flow.weight
        rounds = int(-flow.deficit / share) + 1
        flow.deficit += rounds * share
        flow.round = max(flow.round, self.earliest) + rounds

    def _sweep(self) -> None:
        """Forget who has nothing here that counts, so that names of the past do not add up. Where most of them are in
        debt, more was sent than the rounds tell: it is the middle one's round.
        """
        flows = self.flows.values()
        next_turn = min((flow.round for flow in flows if flow.turn), default=inf)
        middle = sorted(flow.round for flow in flows)[len(flows) // 2]
        self.round = int(max(self.round, min(middle, next_turn)))
        self.flows = {
            tenant: flow for tenant, flow in self.flows.items() if flow.count or flow.running or flow.round > self.round
        }
        self._sweep_at = 2 * len(self.flows) + _SLACK

    def _forget(self) -> None:
        """Nobody waits, and nobody's runs: whoever comes next finds nobody to be unfair to."""
        self.flows.clear()
        self._heap.clear()
        self._in_turn = 0
        self._sweep_at = _SLACK
        self.round = 0
        self.tokens = self.weights = self.active = 0.0
