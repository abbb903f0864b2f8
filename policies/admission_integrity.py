"""Does an admission queue agree with itself: everything it keeps count of, recomputed from the requests it holds."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from math import inf, isclose

from policies.admission_types import ServiceClass
from policies.expiry_heap import ExpiryHeap
from policies.fair_queue import Account, FairQueue, Flow, Waiting
from policies.model_queue import ModelQueue

_SLACK = 66


def check_accounts(
    accounts: Mapping[str, Account], waiting: Collection[Waiting], running: Collection[Waiting], n_bytes: int
) -> None:
    """Each slot and byte of a tenant is that of one of its requests, and a tenant without any is forgotten."""
    _require(sum(each.request.size for each in waiting) == n_bytes, "all bytes")
    counts = Counter((id(each.account), each.rank) for each in waiting)
    sizes: Counter[tuple[int, int]] = Counter()
    for each in waiting:
        sizes[id(each.account), each.rank] += each.request.size
    slots = Counter(id(each.account) for each in running)
    known = {id(account) for account in accounts.values()}
    _require({key for key, _ in counts} | slots.keys() == known, "tenants that have something here")
    for account in accounts.values():
        for rank in range(len(account.counts)):
            _require(account.counts[rank] == counts[id(account), rank], "a tenant's waiting requests")
            _require(account.bytes[rank] == sizes[id(account), rank], "a tenant's bytes")
        _require(account.running == slots[id(account)], "a tenant's running requests")
        _require(account.full or not account.parked, "set aside, though the tenant may run more")
        for flow in account.parked:
            _require(flow.parked and flow.account is account, "whom it is set aside for")


def check_models(models: Mapping[str, ModelQueue], waiting: Collection[Waiting], running: Collection[Waiting]) -> None:
    """Each model's counts are those of its requests, and one without any is forgotten."""
    _require({each.request.model for each in (*waiting, *running)} == models.keys(), "models that are waited for")
    for model, queue in models.items():
        mine = [each for each in waiting if each.request.model == model]
        out = [each for each in running if each.request.model == model]
        _require(queue.waiting == len(mine), "a model's waiting requests")
        _require(queue.running == len(out), "a model's running requests")
        _require(queue.running_batch == sum(each.rank == ServiceClass.BATCH for each in out), "running batch requests")
        for rank, fair in enumerate(queue.classes):
            _check_queue(
                fair, [each for each in mine if each.rank == rank], [each for each in out if each.rank == rank]
            )
    _require(all(each.flow is None for each in running), "a running request waits")


def check_expiries(heap: ExpiryHeap, waiting: Collection[Waiting]) -> None:
    """Everything that can expire is there, and not much else."""
    there = {(ticket, when) for when, ticket, _ in heap.items()}
    for each in waiting:
        _require(each.expires == inf or (each.ticket, each.expires) in there, "a request that will not expire")
    _require(len(heap) <= 2 * len(waiting) + _SLACK, "requests that have left and can expire")


def _check_queue(queue: FairQueue, waiting: Collection[Waiting], running: Collection[Waiting]) -> None:
    flows: defaultdict[int, list[Waiting]] = defaultdict(list)
    for each in waiting:
        _require(each.flow is not None, "a request that waits nowhere")
        flows[id(each.flow)].append(each)
    _require(queue.waiting == len(waiting), "a class's waiting requests")
    _require(_close(queue.tokens, sum(each.charged for each in waiting)), "a class's tokens")
    _require(_close(queue.weights, sum(flow.weight for flow in queue.flows.values() if flow.count)), "all weights")
    paying = Counter(id(each.paid_by) for each in running)
    _require(all(flow.running == paying[id(flow)] for flow in queue.flows.values()), "a tenant's running in a class")
    _require(paying.keys() <= {id(flow) for flow in queue.flows.values()}, "a running request that nobody pays for")
    busy = [flow.weight for flow in queue.flows.values() if flow.count or flow.running]
    _require(queue.busy == len(busy) and _close(queue.active, sum(busy)), "who has something waiting or running")
    turns = Counter(turn for _, turn, flow in queue.turns() if flow.turn == turn)
    _require(all(n == 1 for n in turns.values()), "a turn twice")
    _require(flows.keys() <= {id(flow) for flow in queue.flows.values()}, "a tenant that the class does not know")
    for flow in queue.flows.values():
        _check_flow(queue, flow, flows[id(flow)])
        _require(not flow.turn or flow.turn in turns, "a tenant without a turn")
    _require(len(turns) == sum(bool(flow.turn) for flow in queue.flows.values()), "turns of nobody")


def _check_flow(queue: FairQueue, flow: Flow, waiting: Collection[Waiting]) -> None:
    _require(flow.count == len(waiting), "a tenant's requests in a class")
    _require(_close(flow.tokens, sum(each.charged for each in waiting)), "a tenant's tokens in a class")
    live = {ticket for _, ticket, each in flow.heap if each.flow is flow}
    _require(live == {each.ticket for each in waiting}, "a tenant's requests by deadline")
    _require(len(flow.heap) <= 2 * flow.count + _SLACK, "requests that have left, by deadline")
    if flow.count:
        _require(bool(flow.turn) != flow.parked, "neither in turn nor set aside, or both")
        _require(flow.parked or flow.round >= queue.earliest, "a turn of the past")
    else:
        _require(not flow.turn and not flow.parked, "a turn with nothing to send")


def _close(one: float, other: float) -> bool:
    return isclose(one, other, rel_tol=1e-6, abs_tol=1e-3)


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise AssertionError(f"the admission queue contradicts itself: {what}")
