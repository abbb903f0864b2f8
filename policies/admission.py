"""Which request goes to the workers next, and which one not at all: the admission queue.

Requests wait here and not in the workers. The shell around it asks `next` whenever a worker may have room, and chooses
the worker then. Between classes, `model_queue.py`; between tenants and within one, `fair_queue.py`. `now` is in seconds
of one clock and does not go backwards. Not safe to call from several threads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from math import inf
from typing import Final, NamedTuple

from policies.admission_integrity import check_accounts, check_expiries, check_models
from policies.admission_limits import Limits
from policies.admission_types import (
    MOST_TOKENS,
    AdmissionSettings,
    Dispatched,
    Expired,
    Late,
    Queued,
    Reason,
    Refused,
    Request,
    ServiceClass,
    Ticket,
    check_request,
)
from policies.batch_yield import BatchYield
from policies.class_overload import ClassOverload
from policies.expiry_heap import ExpiryHeap
from policies.fair_queue import Account, Waiting
from policies.model_queue import ModelQueue

__all__ = ["ADMISSION_POLICIES", "AdmissionQueue", "Discipline", "make_admission"]

_CLASSES: Final = tuple(ServiceClass)
_BATCH: Final = int(ServiceClass.BATCH)
_SPARE: Final = 0.1
"""Of the time that a request may wait, what is kept for its lead to turn out longer than was thought; no more than as
long again."""
# Made without a call in Python.
_queued: Final[Callable[[tuple[Ticket, ServiceClass]], Queued]] = partial(tuple.__new__, Queued)
_dispatched: Final[Callable[[tuple[Ticket, Request, ServiceClass, float]], Dispatched]] = partial(
    tuple.__new__, Dispatched
)


class Discipline(NamedTuple):
    """Which distinctions are made at all. What is not distinguished goes first come, first served."""

    classes: bool = True
    tenants: bool = True
    """Turns, and limits of a tenant: how many may wait and run."""
    deadlines: bool = True
    """Order within a tenant; with classes, refusal and demotion too. The longest wait of a class is always kept to."""
    reserves: bool = True
    """Shares of the lower classes, and batch that yields."""


class AdmissionQueue:
    """Everything is O(log n) amortised in the requests that wait, and at worst linear in the models they wait for."""

    def __init__(
        self,
        settings: AdmissionSettings | None = None,
        discipline: Discipline | None = None,
        batch_yield: Callable[[float, float], BatchYield] = BatchYield,
    ) -> None:
        """`batch_yield` makes that of a model from the pressures between which it yields."""
        self._discipline = discipline or Discipline()
        self._by_class, self._by_tenant, *_ = self._discipline
        self._new_yield = batch_yield
        self._yields: dict[str, BatchYield] = {}
        """By model; those that yield, or did when they were last asked."""
        self._models: dict[str, ModelQueue] = {}  # in the order in which they are asked for
        self._accounts: dict[str, Account] = {}
        self._waiting: dict[Ticket, Waiting] = {}
        self._running: dict[Ticket, Waiting] = {}
        self._expiries = ExpiryHeap()
        self._expired: list[Expired] = []
        self._tickets = 0
        self.bytes = 0
        """Of all that wait."""
        self.reconfigure(settings or AdmissionSettings())

    def reconfigure(self, settings: AdmissionSettings) -> None:
        """These settings hold from now on. What waits keeps its class, its charge and the time when it expires."""
        self.settings = settings
        keep = not (self._discipline.deadlines and self._discipline.classes)
        self._rules = tuple(replace(rule, late=Late.KEEP) for rule in settings.rules) if keep else settings.rules
        self._reserves = tuple(rule.reserve if self._discipline.reserves else 0.0 for rule in settings.rules)
        self._limits = Limits(settings, by_tenant=self._discipline.tenants)
        for queue in self._models.values():
            queue.reconfigure(self._reserves, settings.quantum, settings.burst)
        for batch_yield in self._yields.values():
            batch_yield.configure(settings.yield_from, settings.yield_all)

    def __len__(self) -> int:
        """Requests that wait."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Requests dispatched and not finished."""
        return len(self._running)

    def offer(self, request: Request, now: float, predicted_wait: float = 0.0) -> Queued | Refused:
        """Queue it, or say at once that it cannot be served in time or that there is no room for it.

        `predicted_wait`: seconds until its first token, were it queued now. Raises ValueError for a weight, a size,
        tokens or a limit that mean nothing.
        """
        check_request(request)
        rank = int(request.service_class) if self._by_class else 0
        deadline = request.deadline if self._discipline.deadlines else inf
        if now + max(predicted_wait, request.lead_s) >= deadline:
            late = self._rules[rank].late
            if late is not Late.KEEP and now + request.lead_s < deadline:  # it would have been in time without a queue
                self._turned_away(request, rank, now)
            if late is Late.REFUSE:
                return self._refused(Reason.DEADLINE, predicted_wait - max(deadline - now, 0.0))
            if late is Late.DEMOTE:
                rank, deadline = rank + 1, inf
        tenant = request.tenant if self._by_tenant else ""
        account = self._accounts.get(tenant)
        if reason := self._limits.refusal(account, rank, request.size, len(self._waiting), self.bytes):
            self._turned_away(request, rank, now)
            return self._refused(reason, predicted_wait)
        if account is None:
            account = self._accounts[tenant] = Account(len(_CLASSES))
        self._tickets += 1
        ticket = Ticket(self._tickets)
        waiting = Waiting(ticket, request, account, now, self._priced(request.tokens))
        self._enter(waiting, rank, deadline)
        if self._by_tenant and account.max_running != request.max_running:
            account.max_running = request.max_running
            self._unpark(account)
        return _queued((ticket, _CLASSES[rank]))

    def next(self, now: float, room: Callable[[str], int]) -> Dispatched | None:
        """The request to dispatch now; none where nothing may be. It runs until `finished` or `put_back`.

        `room`: how many more requests for a model its workers could start soon. One without room holds up no other;
        models take turns. What has expired meanwhile is for `expire` to tell, which is to be called now and then.
        """
        if self._expiries.due(now):
            self._collect(now)
        for model, queue in self._models.items():
            if not queue.waiting:
                continue
            free = room(model)
            picked = queue.pick(free, self._share(model, now) if self._yields else 1.0) if free > 0 else None
            queue.idle = free > 0 and picked is None
            if picked is not None:
                flow, rank, reserved = picked
                waiting = flow.queue.serve(flow)
                if queue.overload is not None:
                    queue.fade(now)
                self._dispatch(waiting, queue, rank, reserved=reserved)
                if len(self._models) > 1:  # to the end: the next turn is another's
                    self._models[model] = self._models.pop(model)
                return _dispatched((waiting.ticket, waiting.request, _CLASSES[rank], now - waiting.arrived))
        return None

    def cancel(self, ticket: Ticket) -> bool:
        """It does not wait any longer. False where it did not; one that runs ends with `finished`."""
        waiting = self._waiting.get(ticket)
        if waiting is None:
            return False
        self._take_out(waiting)
        return True

    def expire(self, now: float) -> list[Expired]:
        """Those that were given up since the last call: too late, or waiting for too long."""
        self._collect(now)
        expired, self._expired = self._expired, []
        return expired

    def next_expiry(self) -> float | None:
        """When `expire` will have something to tell or to demote, if nothing else happens; None for never."""
        if self._expired:
            return -inf
        return self._expiries.first()

    def correct(self, ticket: Ticket, tokens: float) -> bool:
        """A running request costs so many uncached tokens. False where it does not run."""
        waiting = self._running.get(ticket)
        if waiting is None:
            return False
        self._charge(waiting, self._models[waiting.request.model], self._priced(tokens))
        return True

    def finished(self, ticket: Ticket, tokens: float | None = None) -> bool:
        """A running request is over, however it ended, and cost so many uncached tokens, as far as that is known.
        False where it did not run: a slot is given back once.
        """
        waiting = self._running.pop(ticket, None)
        if waiting is None:
            return False
        queue = self._models[waiting.request.model]
        if tokens is not None:
            self._charge(waiting, queue, self._priced(tokens))
        self._release(waiting, queue)
        self._forget_idle(waiting, queue)
        return True

    def put_back(self, ticket: Ticket) -> bool:
        """A dispatched request could not be placed: it waits again, as if it had not been dispatched, but that its
        tenant's next turn may come later. False where it does not run. It may be above the limits of the queue.
        """
        waiting = self._running.pop(ticket, None)
        if waiting is None:
            return False
        queue = self._models[waiting.request.model]
        self._charge(waiting, queue, 0.0)
        self._release(waiting, queue)
        waiting.charged = self._priced(waiting.request.tokens)
        self._enter(waiting, waiting.rank, waiting.deadline)
        return True

    def pressure(self, model: str, value: float, now: float, until: float | None = None) -> None:
        """Recent interactive latency of a model ÷ its objective, which counts `until` then if nothing more is told; see
        `BatchYield`. Raises ValueError for one below 0.

        Batch work for other models goes on: it takes nothing from these requests.
        """
        if self._discipline.reserves:
            batch_yield = self._yields.get(model)
            if batch_yield is None:
                settings = self.settings
                batch_yield = self._yields[model] = self._new_yield(settings.yield_from, settings.yield_all)
            batch_yield.observe(value, now, until)
            self._share(model, now)

    def waiting_for(self, model: str) -> int:
        """Requests that wait for a model."""
        queue = self._models.get(model)
        return 0 if queue is None else queue.waiting

    def holds_back(self, model: str) -> bool:
        """Does something wait for a model that `next` found room for, and did not dispatch?"""
        queue = self._models.get(model)
        return queue is not None and queue.waiting > 0 and queue.idle

    def longest_wait(self, service_class: ServiceClass) -> float:
        """Seconds that one of that class waits at most, in the classes included to which it may be demoted."""
        longest = 0.0
        for rule in self._rules[service_class:]:
            longest = max(longest, rule.max_wait_s)
            if rule.late is not Late.DEMOTE:
                break
        return longest

    def tokens_ahead(self, request: Request) -> float:
        """About how many uncached tokens will be dispatched for its model before it, were it offered now and nothing
        else afterwards. Other tenants count as far as their turns come before.
        """
        queue = self._models.get(request.model)
        if queue is None:
            return 0.0
        rank = int(request.service_class) if self._by_class else 0
        tenant = request.tenant if self._by_tenant else ""
        weight = request.weight if self._by_tenant else 1.0
        return queue.ahead(rank, tenant, weight, self._priced(request.tokens))

    def waiting_by_class(self) -> Mapping[ServiceClass, int]:
        """How many wait in each class, demoted ones where they are now."""
        queues = self._models.values()
        return {each: sum(queue.classes[each].waiting for queue in queues) for each in _CLASSES}

    def check_integrity(self) -> None:
        """Raises AssertionError where it contradicts itself: for tests and idle times, linear in what it holds."""
        waiting, running = self._waiting.values(), self._running.values()
        check_accounts(self._accounts, waiting, running, self.bytes)
        check_models(self._models, waiting, running)
        check_expiries(self._expiries, waiting)

    def _share(self, model: str, now: float) -> float:
        """Of what a model's workers run, what batch work may have."""
        batch_yield = self._yields.get(model)
        if batch_yield is None:
            return 1.0
        share = batch_yield.share(now)
        if share >= 1.0:
            del self._yields[model]
        return share

    def _priced(self, tokens: float) -> float:
        """What so many tokens are charged. A wrong number must not cost a request its slot: nan is the least."""
        least = self.settings.least_charge
        if tokens > least:
            return min(MOST_TOKENS, tokens)
        return least

    def _refused(self, reason: Reason, after_s: float) -> Refused:
        return Refused(reason, min(max(after_s, self.settings.min_retry_s), self.settings.max_retry_s))

    def _turned_away(self, request: Request, rank: int, now: float) -> None:
        """It is not served, or not in that class."""
        queue = self._models.get(request.model)
        if queue is None or not self._discipline.reserves:
            return
        if queue.overload is None:
            sent = [0.0] * len(_CLASSES)
            for each in self._running.values():
                if each.request.model == request.model:
                    sent[each.rank] += each.charged
            queue.overload = ClassOverload(sent)
        queue.overload.turned_away(rank, self._priced(request.tokens), now)

    def _enter(self, waiting: Waiting, rank: int, deadline: float) -> None:
        request, account = waiting.request, waiting.account
        rule = self._rules[rank if self._by_class else request.service_class]
        waiting.rank = rank
        waiting.deadline = deadline
        waiting.expires = waiting.arrived + rule.max_wait_s
        queue = self._models.get(request.model)
        if queue is None:
            queue = self._models[request.model] = ModelQueue(self._reserves, self.settings.quantum, self.settings.burst)
        if deadline < inf and rule.late is not Late.KEEP:
            due = deadline - (_lead(waiting, deadline) if queue.waiting else request.lead_s)
            waiting.expires = min(waiting.expires, due)
        if self._by_tenant:
            queue.classes[rank].push(request.tenant, request.weight, waiting)
        else:
            queue.classes[rank].push("", 1.0, waiting)
        queue.waiting += 1
        account.counts[rank] += 1
        account.bytes[rank] += request.size
        self.bytes += request.size
        self._waiting[waiting.ticket] = waiting
        if waiting.expires < inf:
            self._expiries.push(waiting)

    def _dispatch(self, waiting: Waiting, queue: ModelQueue, rank: int, *, reserved: bool) -> None:
        self._uncount(waiting, queue)
        self._running[waiting.ticket] = waiting
        waiting.reserved = reserved
        waiting.account.running += 1
        queue.dispatched(rank)
        queue.charge(rank, waiting.charged, reserved=reserved)

    def _take_out(self, waiting: Waiting) -> None:
        """It leaves the queue without having been dispatched."""
        flow = waiting.flow
        assert flow is not None
        queue = self._models[waiting.request.model]
        flow.queue.remove(waiting)
        self._uncount(waiting, queue)
        self._forget_idle(waiting, queue)

    def _uncount(self, waiting: Waiting, queue: ModelQueue) -> None:
        """It does not wait any longer."""
        size, account = waiting.request.size, waiting.account
        del self._waiting[waiting.ticket]
        self._expiries.left(len(self._waiting))
        queue.waiting -= 1
        account.counts[waiting.rank] -= 1
        account.bytes[waiting.rank] -= size
        self.bytes -= size

    @staticmethod
    def _charge(waiting: Waiting, queue: ModelQueue, tokens: float) -> None:
        """A running request costs so much."""
        more = tokens - waiting.charged
        if more and (flow := waiting.paid_by):
            waiting.charged = tokens
            flow.queue.charge(flow, more)
            queue.charge(waiting.rank, more, reserved=waiting.reserved)

    def _release(self, waiting: Waiting, queue: ModelQueue) -> None:
        """It does not run any longer."""
        account = waiting.account
        queue.running -= 1
        queue.running_batch -= waiting.rank == _BATCH
        account.running -= 1
        if flow := waiting.paid_by:
            waiting.paid_by = None
            flow.running -= 1
            if not (flow.running or flow.count):
                flow.queue.rest(flow)
        if account.parked:
            self._unpark(account)

    def _unpark(self, account: Account) -> None:
        if not account.full:
            for flow in list(account.parked):
                flow.queue.unpark(flow)

    def _forget_idle(self, waiting: Waiting, queue: ModelQueue) -> None:
        """Names of models and tenants are kept only while something of theirs is here."""
        if not queue.waiting and not queue.running:
            del self._models[waiting.request.model]
        account = waiting.account
        if not account.running and not any(account.counts):
            del self._accounts[waiting.request.tenant if self._by_tenant else ""]

    def _collect(self, now: float) -> None:
        """Give up, or demote, whose time is over."""
        while waiting := self._expiries.due(now):
            rule = self._rules[waiting.rank if self._by_class else waiting.request.service_class]
            late = now < waiting.arrived + rule.max_wait_s
            self._turned_away(waiting.request, waiting.rank, now)
            if late and rule.late is Late.DEMOTE and self._limits.fits_below(waiting):
                flow = waiting.flow
                assert flow is not None
                flow.queue.remove(waiting)
                self._uncount(waiting, self._models[waiting.request.model])
                self._enter(waiting, waiting.rank + 1, inf)
                continue
            self._take_out(waiting)
            reason = Reason.DEADLINE if late else Reason.WAITED
            self._expired.append(Expired(waiting.ticket, waiting.request, reason, now - waiting.arrived))


def _lead(waiting: Waiting, deadline: float) -> float:
    """How long before its deadline it is given up where others wait too: one that is sent at the last moment and then
    comes half of the time too late has taken the place of one that would have been served in time.
    """
    lead = waiting.request.lead_s
    return lead + min(lead, _SPARE * max(deadline - waiting.arrived - lead, 0.0))


ADMISSION_POLICIES: Final[Mapping[str, Discipline]] = {
    "fair": Discipline(),
    "fcfs": Discipline(classes=False, tenants=False, deadlines=False, reserves=False),
    "priority": Discipline(tenants=False, deadlines=False, reserves=False),
}
"""Name → what it distinguishes. `fcfs` and `priority` are what `fair` is compared with."""


def make_admission(name: str, settings: AdmissionSettings | None = None) -> AdmissionQueue:
    """The admission queue of that name. Raises ValueError with the names there are."""
    try:
        discipline = ADMISSION_POLICIES[name]
    except KeyError:
        raise ValueError(f"no admission policy {name!r}; there are {', '.join(sorted(ADMISSION_POLICIES))}") from None
    return AdmissionQueue(settings, discipline)
