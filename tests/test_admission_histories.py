"""Any history of an admission queue beside a plain model of it: nothing is lost, nobody is passed over, none idles."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from math import inf

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from policies.admission import AdmissionQueue
from policies.admission_types import (
    AdmissionSettings,
    ClassRules,
    Dispatched,
    Expired,
    Late,
    Queued,
    Reason,
    Refused,
    Request,
    ServiceClass,
    Ticket,
)
from policies.batch_yield import BatchYield

MODELS = ("x", "y")
BATCH = ServiceClass.BATCH
SETTINGS = AdmissionSettings(
    interactive=ClassRules(0.0, Late.REFUSE, 30.0),
    standard=ClassRules(0.2, Late.DEMOTE, 60.0),
    batch=ClassRules(0.1, Late.KEEP, 90.0),
    max_waiting=14,
    max_bytes=90,
    tenant_max_waiting=5,
    tenant_max_bytes=60,
    quantum=100.0,
    yield_from=0.5,
    yield_all=1.0,
)

requests = st.builds(
    Request,
    tenant=st.sampled_from("aaabc"),
    model=st.sampled_from("xxxy"),
    tokens=st.sampled_from([0.0, 50.0, 100.0, 333.3, 5_000.0]),
    service_class=st.sampled_from(ServiceClass),
    weight=st.sampled_from([0.5, 1.0, 4.0]),
    deadline=st.sampled_from([5.0, 20.0, inf]),  # from now on
    lead_s=st.sampled_from([0.0, 2.0]),
    size=st.integers(0, 30),
    max_running=st.sampled_from([None, 1, 1, 2]),
)


@dataclass
class Known:
    """A request that waits, as plainly as can be said."""

    request: Request
    service_class: ServiceClass
    deadline: float
    arrived: float
    crowded: bool
    """Others waited for its model when it came."""

    @property
    def ends(self) -> float:
        rules, lead = SETTINGS.rules[self.service_class], self.request.lead_s
        if self.crowded:
            lead += min(lead, 0.1 * max(self.deadline - self.arrived - lead, 0.0))
        late = inf if rules.late is Late.KEEP else self.deadline - lead
        return min(late, self.arrived + rules.max_wait_s)


class Histories(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.queue = AdmissionQueue(SETTINGS, batch_yield=partial(BatchYield, band=0.0, recovery_s=10.0))
        self.now = 0.0
        self.waiting: dict[Ticket, Known] = {}
        self.running: dict[Ticket, Dispatched] = {}
        self.limits: dict[str, int | None] = {}
        self.gone: list[Expired] = []
        """Given up, and not yet told."""
        self.room = dict.fromkeys(MODELS, 0)

    @initialize(x=st.integers(0, 4), y=st.integers(0, 4))
    def start(self, x: int, y: int) -> None:
        self.room = {"x": x, "y": y}

    # What happens

    @rule(asked=requests, wait=st.sampled_from([0.0, 0.0, 10.0]))
    def offer(self, asked: Request, wait: float) -> None:
        asked = asked._replace(deadline=self.now + asked.deadline)
        service_class, deadline = asked.service_class, asked.deadline
        late = self.now + max(wait, asked.lead_s) >= deadline
        if late and service_class is ServiceClass.STANDARD:
            service_class, deadline, late = BATCH, inf, False
        expected = self.refusal(asked, service_class)
        if late and service_class is ServiceClass.INTERACTIVE:
            expected = Reason.DEADLINE
        crowded = self.queue.waiting_for(asked.model) > 0
        answer = self.queue.offer(asked, self.now, wait)
        if isinstance(answer, Refused):
            assert answer.reason is expected
            assert SETTINGS.min_retry_s <= answer.retry_after_s <= SETTINGS.max_retry_s
            return
        assert answer == Queued(answer.ticket, service_class)
        assert expected is None
        assert answer.ticket not in self.waiting.keys() | self.running.keys()
        self.limits[asked.tenant] = asked.max_running
        self.waiting[answer.ticket] = Known(asked, service_class, deadline, self.now, crowded)

    @rule()
    def dispatch(self) -> None:
        self.give_up()
        may = [ticket for ticket in self.waiting if self.may_run(ticket)]
        before = self.queue.running
        picked = self.queue.next(self.now, self.room.__getitem__)
        if picked is None:
            owed = {m: q.credits[BATCH] for m, q in self.queue._models.items()}
            assert not [
                ticket for ticket in may if not self.held(ticket) or owed[self.waiting[ticket].request.model] >= 5_000.0
            ], "idle while something waits that may be dispatched"
            assert self.queue.running == before
            return
        assert picked.ticket in may
        self.check_turn(picked, may)
        known = self.waiting.pop(picked.ticket)
        assert picked == Dispatched(picked.ticket, known.request, known.service_class, self.now - known.arrived)
        self.room[known.request.model] -= 1
        self.running[picked.ticket] = picked

    def check_turn(self, picked: Dispatched, may: list[Ticket]) -> None:
        known = self.waiting[picked.ticket]
        others = [self.waiting[ticket] for ticket in may if self.waiting[ticket].request.model == known.request.model]
        reserved = self.queue._running[picked.ticket].reserved
        if not reserved:
            assert known.service_class == min(each.service_class for each in others), "strict priority"
            assert not self.held(picked.ticket), "batch holds back"
        else:
            assert known.service_class > ServiceClass.INTERACTIVE
        same = [
            (self.waiting[ticket].deadline, ticket)
            for ticket in may
            if self.group(self.waiting[ticket]) == self.group(known)
        ]
        assert min(same)[1] == picked.ticket, "the earliest deadline of its tenant"

    @precondition(lambda self: self.running)
    @rule(data=st.data(), tokens=st.sampled_from([None, 0.0, 100.0, 20_000.0]))
    def finish(self, data: st.DataObject, tokens: float | None) -> None:
        ticket = data.draw(st.sampled_from(sorted(self.running)))
        assert self.queue.finished(ticket, tokens)
        assert not self.queue.finished(ticket, tokens)
        self.room[self.running.pop(ticket).request.model] += 1

    @precondition(lambda self: self.running)
    @rule(data=st.data(), tokens=st.sampled_from([0.0, 100.0, 20_000.0]))
    def correct(self, data: st.DataObject, tokens: float) -> None:
        assert self.queue.correct(data.draw(st.sampled_from(sorted(self.running))), tokens)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def put_back(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(sorted(self.running)))
        picked = self.running.pop(ticket)
        crowded = self.queue.waiting_for(picked.request.model) > 0
        assert self.queue.put_back(ticket)
        self.room[picked.request.model] += 1
        demoted = picked.service_class != picked.request.service_class
        deadline = inf if demoted else picked.request.deadline
        arrived = self.arrivals(ticket)
        self.waiting[ticket] = Known(picked.request, picked.service_class, deadline, arrived, crowded)

    def arrivals(self, ticket: Ticket) -> float:
        return self.queue._waiting[ticket].arrived

    @rule()
    def dispatch_all(self) -> None:
        for _ in range(len(self.waiting)):
            self.dispatch()

    @precondition(lambda self: self.waiting)
    @rule(tenant=st.sampled_from("abc"))
    def cancel_all(self, tenant: str) -> None:
        for ticket in [each for each, known in self.waiting.items() if known.request.tenant == tenant]:
            assert self.queue.cancel(ticket) == (self.waiting.pop(ticket, None) is not None)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(sorted(self.waiting)))
        assert self.queue.cancel(ticket)
        assert not self.queue.cancel(ticket)
        del self.waiting[ticket]

    @rule()
    def strangers(self) -> None:
        for ticket in (Ticket(0), Ticket(10**9), *(gone.ticket for gone in self.gone)):
            assert not self.queue.cancel(ticket)
            assert not self.queue.finished(ticket)
            assert not self.queue.correct(ticket, 1.0)
            assert not self.queue.put_back(ticket)

    @rule()
    def expire(self) -> None:
        self.give_up()
        told = self.queue.expire(self.now)
        assert sorted(told) == sorted(self.gone)
        self.gone = []

    @rule()
    def timer(self) -> None:
        due = self.queue.next_expiry()
        if due is None:
            assert all(known.ends == inf for known in self.waiting.values())
        elif due == -inf:
            assert self.gone
        else:
            assert not self.gone
            assert due == min(known.ends for known in self.waiting.values())

    @rule(seconds=st.sampled_from([0.0, 0.5, 3.0, 10.0, 40.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(model=st.sampled_from(MODELS), value=st.sampled_from([0.0, 0.6, 0.8, 1.0, 3.0]))
    def pressure(self, model: str, value: float) -> None:
        self.queue.pressure(model, value, self.now)

    @rule(model=st.sampled_from(MODELS), room=st.integers(0, 4))
    def capacity(self, model: str, room: int) -> None:
        self.room[model] = room

    # What must be so

    @invariant()
    def nothing_is_lost(self) -> None:
        self.queue.check_integrity()
        assert self.queue._waiting.keys() == self.waiting.keys() - {gone.ticket for gone in self.gone}
        assert self.queue._running.keys() == self.running.keys()
        assert self.queue.bytes == sum(known.request.size for known in self.waiting.values())
        assert all(owed <= 25_000 for queue in self.queue._models.values() for owed in queue.credits)
        counts = Counter(picked.request.tenant for picked in self.running.values())
        assert all(self.queue._accounts[tenant].running == n for tenant, n in counts.items())

    def teardown(self) -> None:
        """Whatever happened, everything comes out again, and nothing is left."""
        for model in MODELS:
            self.queue.pressure(model, 0.0, self.now)
        while self.queue.running or len(self.queue):
            for ticket in list(self.queue._running):
                assert self.queue.finished(ticket)
            self.now += 0.1
            while self.queue.next(self.now, lambda _: 1):
                pass
            self.queue.check_integrity()
        assert (len(self.queue), self.queue.running, self.queue.bytes) == (0, 0, 0)
        assert not self.queue._accounts
        assert not self.queue._models

    # The plain model

    def group(self, known: Known) -> tuple[str, str, ServiceClass]:
        return known.request.tenant, known.request.model, known.service_class

    def may_run(self, ticket: Ticket) -> bool:
        asked = self.waiting[ticket].request
        used = sum(picked.request.tenant == asked.tenant for picked in self.running.values())
        limit = self.limits[asked.tenant]
        return self.room[asked.model] > 0 and (limit is None or used < limit)

    def held(self, ticket: Ticket) -> bool:
        """Batch that must wait for the pressure to fall."""
        known = self.waiting[ticket]
        if known.service_class is not BATCH:
            return False
        running = [each for each in self.running.values() if each.request.model == known.request.model]
        n_batch = sum(each.service_class is BATCH for each in running)
        share = self.queue._share(known.request.model, self.now)
        room, full = self.room[known.request.model], self.queue._models[known.request.model].full
        return n_batch >= share * max(len(running) + room, full)

    def refusal(self, asked: Request, service_class: ServiceClass) -> Reason | None:
        mine = [
            known.request.size
            for known in self.waiting.values()
            if known.request.tenant == asked.tenant and known.service_class is service_class
        ]
        held = sum(known.request.size for known in self.waiting.values())
        if len(mine) >= 5:
            return Reason.TENANT_FULL
        if sum(mine) + asked.size > 60:
            return Reason.TENANT_BYTES
        free, free_bytes = 14 - len(self.waiting) - 1, 90 - held - asked.size
        if len(mine) > 8 * free:
            return Reason.QUEUE_FULL if free < 0 else Reason.TENANT_FULL
        if sum(mine) > 8 * free_bytes:
            return Reason.QUEUE_BYTES if free_bytes < 0 else Reason.TENANT_BYTES
        return None

    def give_up(self) -> None:
        """In the order of their times, as a demotion may leave no room for the next."""
        while due := [(known.ends, ticket) for ticket, known in self.waiting.items() if known.ends <= self.now]:
            ticket = min(due)[1]
            known = self.waiting[ticket]
            late = self.now < known.arrived + SETTINGS.rules[known.service_class].max_wait_s
            mine = [
                each.request.size
                for each in self.waiting.values()
                if each.request.tenant == known.request.tenant and each.service_class is BATCH
            ]
            fits = len(mine) < 5 and sum(mine) + known.request.size <= 60
            if late and known.service_class is ServiceClass.STANDARD and fits:
                known.service_class, known.deadline = BATCH, inf
                continue
            del self.waiting[ticket]
            reason = Reason.DEADLINE if late else Reason.WAITED
            self.gone.append(Expired(ticket, known.request, reason, self.now - known.arrived))


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)
