"""Who does not get into the admission queue, or not to its end: deadlines, limits, values that mean nothing."""

from __future__ import annotations

from math import inf, nan

import pytest

from policies.admission_types import (
    ClassRules,
    Dispatched,
    Expired,
    Late,
    Queued,
    Reason,
    Refused,
    Request,
)
from tests.admission_fixtures import BATCH, INTERACTIVE, offer, queue, request, take

# Deadlines


REFUSES = ClassRules(late=Late.REFUSE)
DEMOTES = ClassRules(late=Late.DEMOTE)


def test_what_cannot_make_its_deadline_is_refused_before_it_is_queued() -> None:
    admission = queue(interactive=REFUSES, min_retry_s=0.5, max_retry_s=20.0)
    late = request(service_class=INTERACTIVE, deadline=12.0)
    assert isinstance(admission.offer(late, 10.0, 1.9), Queued)
    assert admission.offer(late, 10.0, 2.0) == Refused(Reason.DEADLINE, 0.5)
    assert admission.offer(late, 10.0, 5.0) == Refused(Reason.DEADLINE, 3.0), "when the wait is short enough again"
    assert admission.offer(late, 10.0, 90.0) == Refused(Reason.DEADLINE, 20.0)
    assert admission.offer(late, 13.0, 4.0) == Refused(Reason.DEADLINE, 4.0)
    assert len(admission) == 1
    admission.check_integrity()


def test_what_it_takes_after_dispatch_counts_too() -> None:
    admission = queue(interactive=REFUSES)
    assert isinstance(admission.offer(request("a", INTERACTIVE, deadline=2.0, lead_s=2.0), 0.0), Refused)
    ticket = offer(admission, request("a", INTERACTIVE, deadline=2.0, lead_s=1.5))
    assert admission.next_expiry() == 0.5
    assert [gone.ticket for gone in admission.expire(0.5)] == [ticket]


def test_what_cannot_make_its_deadline_is_demoted() -> None:
    admission = queue(standard=DEMOTES)
    late = admission.offer(request(deadline=12.0), 10.0, 3.0)
    assert isinstance(late, Queued)
    assert late.service_class is BATCH
    kept = offer(admission, request("a", BATCH, deadline=50.0), 10.0)
    assert [take(admission, 10.0).ticket for _ in range(2)] == [kept, late.ticket], "its deadline counts no more"


def test_what_is_kept_waits_on_behind_its_deadline() -> None:
    admission = queue()
    ticket = offer(admission, request(deadline=1.0), 0.0, 50.0)
    assert admission.next_expiry() is None
    assert take(admission, 90.0).ticket == ticket


def test_a_deadline_that_passes_ends_the_waiting() -> None:
    admission = queue(interactive=REFUSES)
    asked = request("a", INTERACTIVE, deadline=5.0, size=3)
    ticket = offer(admission, asked, 1.0)
    assert admission.next_expiry() == 5.0
    assert admission.expire(4.999) == []
    assert admission.expire(5.0) == [Expired(ticket, asked, Reason.DEADLINE, 4.0)]
    assert admission.expire(5.0) == []
    assert (len(admission), admission.bytes, admission.next_expiry()) == (0, 0, None)
    assert not admission.cancel(ticket)
    admission.check_integrity()


def test_a_deadline_that_passes_demotes() -> None:
    admission = queue(standard=ClassRules(late=Late.DEMOTE, max_wait_s=100.0), batch=ClassRules(max_wait_s=30.0))
    ticket = offer(admission, request(deadline=5.0), 1.0)
    assert admission.expire(5.0) == []
    assert admission.waiting_by_class()[BATCH] == 1
    assert admission.next_expiry() == 31.0
    admission.check_integrity()
    assert take(admission, 6.0) == Dispatched(ticket, request(deadline=5.0), BATCH, 5.0)


def test_nobody_is_demoted_into_a_class_in_which_its_tenant_has_no_room() -> None:
    admission = queue(standard=DEMOTES, tenant_max_waiting=1, tenant_max_bytes=10)
    offer(admission, request("count", BATCH))
    offer(admission, request("bytes", BATCH, size=8))
    tickets = [offer(admission, request(name, deadline=5.0, size=4)) for name in ("count", "other")]
    assert [gone.ticket for gone in admission.expire(5.0)] == [tickets[0]]
    roomier = queue(standard=DEMOTES, tenant_max_bytes=10)
    offer(roomier, request("bytes", BATCH, size=8))
    ticket = offer(roomier, request("bytes", deadline=5.0, size=4))
    assert [gone.ticket for gone in roomier.expire(5.0)] == [ticket]


def test_nothing_waits_for_longer_than_its_class_lets_it() -> None:
    admission = queue(batch=ClassRules(max_wait_s=10.0))
    asked = request(service_class=BATCH, deadline=3.0)
    ticket = offer(admission, asked, 1.0)
    assert admission.next_expiry() == 11.0
    assert admission.expire(11.0) == [Expired(ticket, asked, Reason.WAITED, 10.0)]


def test_nothing_is_dispatched_that_should_have_expired() -> None:
    admission = queue(interactive=REFUSES)
    gone = offer(admission, request("a", INTERACTIVE, deadline=5.0))
    kept = offer(admission, request("a", INTERACTIVE, deadline=9.0))
    assert take(admission, 6.0).ticket == kept
    assert admission.next_expiry() == -inf, "somebody must be told, at once"
    assert [each.ticket for each in admission.expire(6.0)] == [gone]
    assert admission.next_expiry() is None


def test_what_runs_does_not_expire() -> None:
    admission = queue(interactive=REFUSES)
    ticket = offer(admission, request("a", INTERACTIVE, deadline=5.0))
    take(admission, 1.0)
    assert (admission.expire(9.0), admission.next_expiry()) == ([], None)
    assert admission.finished(ticket)


def test_what_is_put_back_expires_once() -> None:
    admission = queue(interactive=REFUSES)
    ticket = offer(admission, request("a", INTERACTIVE, deadline=5.0))
    take(admission, 1.0)
    admission.put_back(ticket)
    assert [each.ticket for each in admission.expire(5.0)] == [ticket]
    admission.check_integrity()


# Limits


def test_a_full_queue_refuses() -> None:
    admission = queue(max_waiting=3, min_retry_s=2.0, max_retry_s=8.0)
    for tenant in "abc":
        offer(admission, request(tenant))
    assert admission.offer(request("d"), 0.0) == Refused(Reason.QUEUE_FULL, 2.0)
    assert admission.offer(request("d"), 0.0, 5.0) == Refused(Reason.QUEUE_FULL, 5.0)
    assert admission.offer(request("d"), 0.0, 50.0) == Refused(Reason.QUEUE_FULL, 8.0)
    assert len(admission) == 3
    admission.check_integrity()


def test_bytes_are_limited() -> None:
    admission = queue(max_bytes=100)
    assert admission.offer(request(size=101), 0.0) == Refused(Reason.QUEUE_BYTES, 1.0)
    offer(admission, request(size=100))
    assert isinstance(admission.offer(request("b", size=1), 0.0), Refused)
    offer(admission, request("b", size=0))


def test_one_tenant_alone_fills_eight_ninths() -> None:
    admission = queue(max_waiting=900, max_bytes=9_000)
    while isinstance(answer := admission.offer(request("flood"), 0.0), Queued):
        pass
    assert answer.reason is Reason.TENANT_FULL, "there is room, but not for this tenant"
    assert len(admission) == 800
    for service_class in (INTERACTIVE, BATCH):
        offer(admission, request("flood", service_class))
    offer(admission, request("other"))
    while isinstance(admission.offer(request("bytes", size=10), 0.0), Queued):
        pass
    assert len(admission) == 889
    offer(admission, request("newcomer"))


def test_one_tenants_bytes_leave_some_to_others() -> None:
    admission = queue(max_bytes=9_000)
    while isinstance(answer := admission.offer(request("flood", size=10), 0.0), Queued):
        pass
    assert answer.reason is Reason.TENANT_BYTES
    assert admission.bytes == pytest.approx(8_000, abs=10)
    assert isinstance(admission.offer(request("other", size=900), 0.0), Queued)


def test_limits_of_a_tenant_hold_for_each_class() -> None:
    admission = queue(tenant_max_waiting=2, tenant_max_bytes=100)
    offer(admission, request(size=60))
    assert admission.offer(request(size=41), 0.0) == Refused(Reason.TENANT_BYTES, 1.0)
    offer(admission, request(size=40))
    assert admission.offer(request(), 0.0) == Refused(Reason.TENANT_FULL, 1.0)
    offer(admission, request(service_class=INTERACTIVE, size=100))
    offer(admission, request("b", size=100))
    admission.check_integrity()


# What means nothing


@pytest.mark.parametrize(
    "asked",
    [request(weight=0), request(weight=1e-7), request(weight=inf), request(weight=nan), request(tokens=-1),
     request(tokens=nan), request(tokens=inf), request(size=-1), request(lead_s=-1), request(lead_s=nan),
     request(deadline=nan), request(max_running=0)],
)  # fmt: skip
def test_requests_that_mean_nothing(asked: Request) -> None:
    admission = queue()
    with pytest.raises(ValueError, match=r"no request|run nothing"):
        admission.offer(asked, 0.0)
    assert len(admission) == 0
    admission.check_integrity()


@pytest.mark.parametrize(
    "settings",
    [{"interactive": ClassRules(reserve=0.1)}, {"standard": ClassRules(reserve=0.5), "batch": ClassRules(reserve=0.5)},
     {"batch": ClassRules(late=Late.DEMOTE)}, {"max_waiting": 0}, {"max_bytes": 0}, {"tenant_max_waiting": 0},
     {"tenant_max_bytes": 0}, {"quantum": 0}, {"quantum": inf}, {"least_charge": 0}, {"min_retry_s": -1},
     {"min_retry_s": 9.0, "max_retry_s": 8.0}],
)  # fmt: skip
def test_settings_that_mean_nothing(settings: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"reserve|class below|limits|below 1|range to retry"):
        queue(**settings)


@pytest.mark.parametrize("rules", [(-0.1, inf), (1.0, inf), (0.0, 0.0), (nan, 1.0), (0.0, nan)])
def test_rules_that_mean_nothing(rules: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="no rules"):
        ClassRules(reserve=rules[0], max_wait_s=rules[1])
