"""Limits that several processes hold together, in virtual time: what passes at most, and what is made up for."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import cycle

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.limit_records import decode, encode
from policies.rate_limit import Limited, RateLimiter
from policies.shared_limits import KEPT_S, TOLD_SHARE, LimitLedger, Record, Usage, end_sharing, limiter_id
from policies.tenant import Rates

ACME = limiter_id("acme", None)
INTERVAL, TTL = 0.2, 5.0


@dataclass
class Keeper:
    """What Redis does: keeps bytes by name, and tells the time by a clock of its own."""

    ahead: float = 1e6
    kept: dict[str, bytes] = field(default_factory=dict)

    def read(self, but: str) -> dict[str, Record]:
        records = {name: decode(data) for name, data in self.kept.items() if name != but}
        return {name: record for name, record in records.items() if record is not None}


class Process:
    """One gateway, with a clock of its own."""

    def __init__(self, name: str, rates: Rates, now: float, *, skew: float = 0.0) -> None:
        self.name = name
        self.skew = skew
        self.limiters = {ACME: RateLimiter(rates, now + skew)}
        self.due = False
        self.ledger = LimitLedger(self.limiters, ttl=TTL, now=now + skew, hurry=self.hurry)
        self.taken: list[tuple[float, float]] = []
        """When, and how many tokens."""

    @property
    def limiter(self) -> RateLimiter:
        return self.limiters[ACME]

    def hurry(self) -> None:
        self.due = True

    def hurried(self) -> bool:
        return self.due

    def tell(self, keeper: Keeper, now: float) -> None:
        self.due = False
        record = self.ledger.record(self.limiters, stamp=now + keeper.ahead, now=now + self.skew)
        keeper.kept[self.name] = encode(record)

    def hear(self, keeper: Keeper, now: float) -> None:
        own = now + self.skew
        records = keeper.read(self.name)
        self.ledger.listen(records, own)
        for name, record in records.items():
            self.ledger.hear(name, record, self.limiters, stamp=now + keeper.ahead, now=own)
        self.ledger.count_elsewhere(self.limiters, own)

    def exchange(self, keeper: Keeper, now: float) -> None:
        self.tell(keeper, now)
        self.hear(keeper, now)

    def ask(self, now: float, tokens: float = 0.0) -> bool:
        if self.limiter.refusal(tokens, now + self.skew) is not None:
            return False
        self.limiter.take(tokens, now + self.skew)
        self.taken.append((now, tokens))
        return True

    def requests_left(self, now: float) -> float:
        assert self.limiter.requests is not None
        return self.limiter.requests.level(now + self.skew)


def fleet(n: int, rates: Rates, keeper: Keeper, now: float = 0.0) -> list[Process]:
    """That have heard of each other before anybody asks anything."""
    processes = [Process(f"p{number}", rates, now, skew=1000.0 * number) for number in range(n)]
    for process in processes * 3:
        process.exchange(keeper, now)
    return processes


# --- the bound

STEP = 0.01
REQUESTS, TOKENS = 0, 1
ARRIVALS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 300), st.integers(1, 40)), max_size=120)
"""At which process, how many hundredths of a second after the one before, how many tokens."""


def assert_bound(processes: list[Process], limit: float, late: float, what: int) -> None:
    """In every window: what one process alone would let pass, and what the others took within the last `late` of it."""
    taken = sorted((at, process.name, (1.0, tokens)[what]) for process in processes for at, tokens in process.taken)
    for last, (end, name, _) in enumerate(taken):
        unheard = sum(n for at, other, n in taken if other != name and end - late <= at <= end)
        passed = 0.0
        for at, _, n in reversed(taken[: last + 1]):
            passed += n
            assert passed <= limit * (1 + (end - at) / 60) + unheard + 1e-6


@settings(max_examples=150, deadline=None)
@given(
    st.integers(2, 6),
    st.integers(1, 60),
    st.lists(st.integers(0, 19), min_size=6, max_size=6),
    st.lists(st.integers(0, 5), min_size=1, max_size=20),
    ARRIVALS,
)
def test_all_together_take_what_one_may_and_what_was_not_heard_of_yet(
    n: int, limit: int, phases: list[int], delays: list[int], arrivals: list[tuple[int, int, int]]
) -> None:
    """Exchanges take up to 50 ms; each process has a phase and a clock of its own."""
    keeper = Keeper()
    processes = fleet(n, Rates(requests_per_minute=limit, tokens_per_minute=20 * limit), keeper)
    todo = deque[tuple[float, Process, int]]()
    for number, gap, tokens in arrivals:
        todo.append(((todo[-1][0] if todo else 0.0) + gap / 100, processes[number % n], min(tokens, 20 * limit)))
    due = {process.name: phase * STEP for process, phase in zip(processes, phases, strict=False)}
    answers: list[tuple[float, Process, Keeper]] = []
    took = cycle(delays)
    now = 0.0
    while todo:
        for process in processes:
            if now >= due[process.name]:
                process.tell(keeper, now)
                delay = next(took) * STEP
                answers.append((now + delay, process, Keeper(keeper.ahead, dict(keeper.kept))))
                due[process.name] = now + delay + INTERVAL
        for answer in [answer for answer in answers if answer[0] <= now]:
            answers.remove(answer)
            answer[1].hear(answer[2], now)
        while todo and todo[0][0] <= now:
            _, process, tokens = todo.popleft()
            process.ask(now, tokens)
        now += STEP
    late = 2 * (INTERVAL + 0.05) + 4 * STEP
    assert_bound(processes, limit, late, REQUESTS)
    assert_bound(processes, 20 * limit, late, TOKENS)


def test_the_bound_is_not_kept_by_limits_that_are_not_shared() -> None:
    """A control of the test above."""
    processes = [Process(f"p{number}", Rates(requests_per_minute=10), 0.0) for number in range(3)]
    for number in range(120):
        processes[number % 3].ask(number * 0.5)
    with pytest.raises(AssertionError):
        assert_bound(processes, 10, 2 * INTERVAL, REQUESTS)


@pytest.mark.parametrize("n", [2, 5])
def test_a_tenant_that_asks_for_thrice_its_rate_gets_its_rate_in_the_long_run(n: int) -> None:
    """Steadily, at all gateways in turn: in any minute but the first, which has a full bucket besides."""
    limit, keeper = 600, Keeper()
    processes = fleet(n, Rates(requests_per_minute=limit), keeper)
    for number in range(30 * 300):  # 30 a second, for five minutes
        now = number / 30
        if number % 6 == 0:
            for process in processes:
                process.exchange(keeper, now)
        processes[number % n].ask(now)
    times = sorted(at for process in processes for at, _ in process.taken)
    minutes = [sum(60 * minute <= at < 60 * minute + 60 for at in times) for minute in range(5)]
    assert minutes[0] <= 2 * limit
    for count in minutes[1:]:
        assert limit * 0.97 <= count <= limit * 1.03


def burst(n: int, limit: int, *, hurried: bool) -> int:
    """What passes in a second in which each process is asked a thousand times, from full buckets on. An exchange takes
    2 ms, and the next one comes 20 ms later at the earliest.
    """
    keeper = Keeper()
    processes = fleet(n, Rates(requests_per_minute=limit), keeper)
    begin = dict.fromkeys((process.name for process in processes), 0)
    heard: list[tuple[int, Process, Keeper]] = []
    for ms in range(1000):
        now = ms / 1000
        for process in processes:
            since = ms - begin[process.name]
            if since >= 202 or (hurried and process.due and since >= 22):
                begin[process.name] = ms
                process.tell(keeper, now)
                heard.append((ms + 2, process, Keeper(keeper.ahead, dict(keeper.kept))))
        for entry in [entry for entry in heard if entry[0] <= ms]:
            heard.remove(entry)
            entry[1].hear(entry[2], now)
        for process in processes:
            process.ask(now)
    return sum(len(process.taken) for process in processes)


@pytest.mark.parametrize("n", [2, 4, 8])
@pytest.mark.parametrize("limit", [600, 1500])
def test_a_burst_everywhere_is_told_of_at_once(n: int, limit: int) -> None:
    """From the read that came too early to the one that tells: a share of the limit, 20 ms, two round trips."""
    under_way = n * (20 + 2 * 2 + 1)
    most = limit * (1 + 1 / 60) + TOLD_SHARE * limit + n + under_way
    assert burst(n, limit, hurried=True) <= most
    if limit == 600:
        assert burst(n, limit, hurried=False) > most, "a control"


def test_what_was_taken_too_much_is_paid_back() -> None:
    limit, keeper = 60, Keeper()
    processes = fleet(4, Rates(requests_per_minute=limit), keeper)
    assert sum(process.ask(0.0) for process in processes for _ in range(100)) == 4 * limit
    for _ in range(2):
        for process in processes:
            process.exchange(keeper, 0.2)
    for process in processes:
        assert process.requests_left(0.2) == pytest.approx(limit - 4 * limit + 0.2)
        assert not process.ask(180.0 + 0.9)
        assert process.ask(180.0 + 1.1)


def test_it_hurries_for_requests_tokens_and_what_runs_and_only_until_it_has_told() -> None:
    keeper = Keeper()
    rates = Rates(requests_per_minute=200, tokens_per_minute=10_000, concurrent=100)
    one, other = fleet(2, rates, keeper)
    for _ in range(4):
        assert one.ask(0.0, 10)
    assert not one.hurried(), "a twentieth of 100 is 5"
    assert one.ask(0.0, 10)
    assert one.hurried()
    one.exchange(keeper, 0.0)
    for _ in range(5):
        one.limiter.end(0, one.skew)
        assert one.ask(0.0)
    assert not one.hurried()
    for _ in range(5):
        one.limiter.end(0, one.skew)
        assert one.ask(0.0)
    assert one.hurried(), "a twentieth of 200 requests"
    one.exchange(keeper, 0.0)
    one.limiter.end(499, one.skew)
    assert not one.hurried()
    one.limiter.end(1, one.skew)
    assert one.hurried(), "a twentieth of 10,000 tokens"
    one.exchange(keeper, 0.0)
    end_sharing(one.limiters)
    one.limiter.take(10_000, one.skew)
    assert not one.hurried()
    assert not other.hurried()


# --- what is known when


def test_buckets_agree_once_all_was_heard_and_headers_can_tell_it() -> None:
    keeper = Keeper()
    processes = fleet(3, Rates(requests_per_minute=60, tokens_per_minute=6000), keeper)
    for process, count in zip(processes, (5, 7, 0), strict=True):
        for _ in range(count):
            assert process.ask(1.0, 100)
    for process in processes * 2:
        process.exchange(keeper, 1.0)
    for process in processes:
        assert process.requests_left(1.0) == 60 - 12
        assert process.limiter.tokens is not None
        assert process.limiter.tokens.level(1.0 + process.skew) == 6000 - 1200
    for process in processes:
        for _ in process.taken:
            process.limiter.end(-100, 1.0 + process.skew)
    for process in processes * 2:
        process.exchange(keeper, 1.0)
    for process in processes:
        assert process.limiter.tokens is not None
        assert process.limiter.tokens.level(1.0 + process.skew) == 6000, "what was given back is given back everywhere"


def test_an_exchange_that_is_lost_or_heard_twice_changes_nothing() -> None:
    keeper = Keeper()
    one, other = fleet(2, Rates(requests_per_minute=60), keeper)
    for number in range(10):
        now = 0.4 * number
        assert one.ask(now)
        one.tell(keeper, now)
        if number % 3:
            other.hear(keeper, now)
            other.hear(keeper, now)
    other.hear(keeper, 3.6)
    assert other.requests_left(3.6) == pytest.approx(one.requests_left(3.6), abs=3.6)
    assert other.requests_left(3.6) <= one.requests_left(3.6)


def test_concurrent_requests_count_everywhere_until_their_process_is_gone() -> None:
    keeper = Keeper()
    one, other = fleet(2, Rates(concurrent=3), keeper)
    assert [one.ask(0.0) for _ in range(2)] == [True, True]
    one.exchange(keeper, 0.1)
    other.exchange(keeper, 0.2)
    assert [other.ask(0.3) for _ in range(2)] == [True, False]
    refusal = other.limiter.refusal(0, 0.3 + other.skew)
    assert refusal is not None
    assert refusal.limited is Limited.CONCURRENT
    one.limiter.end(0, 0.4 + one.skew)
    one.exchange(keeper, 0.4)
    for now in (0.5, 1.0, 3.0, 0.4 + TTL):
        other.exchange(keeper, now)
        assert other.limiter.elsewhere == 1
    other.exchange(keeper, 0.4 + TTL + 0.1)
    assert other.limiter.elsewhere == 0, "the one has died"
    assert other.ask(6.0)


def test_while_nothing_can_be_heard_the_others_slots_come_back_too() -> None:
    keeper = Keeper()
    one, other = fleet(2, Rates(concurrent=1), keeper)
    assert one.ask(0.0)
    one.exchange(keeper, 0.0)
    other.exchange(keeper, 0.0)
    assert other.ledger.count_elsewhere(other.limiters, TTL + other.skew) == 1
    assert not other.ask(TTL)
    assert other.ledger.count_elsewhere(other.limiters, TTL + 0.1 + other.skew) == 0
    assert other.ask(TTL + 0.1)


def test_who_begins_late_learns_what_is_left_from_the_living_and_the_dead() -> None:
    keeper = Keeper()
    one, other = fleet(2, Rates(requests_per_minute=60), keeper)
    for _ in range(50):
        assert one.ask(20.0)
    for process in (one, other, one):
        process.exchange(keeper, 20.0)
    fresh = Process("fresh", Rates(requests_per_minute=60), 21.0)
    fresh.exchange(keeper, 21.0)
    assert fresh.requests_left(21.0) == pytest.approx(60 - 50 + 1), "what flowed in since is counted in"
    for process in (one, other, fresh):
        process.exchange(keeper, 21.0)
    assert one.requests_left(21.0) == pytest.approx(fresh.requests_left(21.0))
    for process in (one, other, fresh):
        assert process.ask(21.0)
    for process in (one, other, fresh) * 2:
        process.exchange(keeper, 21.2)
    for process in (one, other, fresh):
        assert process.requests_left(21.2) == pytest.approx(60 - 53 + 1.2)
    heir = Process("heir", Rates(requests_per_minute=60), 40.0)  # all others are dead by now
    heir.exchange(keeper, 40.0)
    assert heir.requests_left(40.0) == pytest.approx(60 - 53 + 20)
    assert heir.limiter.elsewhere == 0


def test_a_process_that_has_just_begun_is_charged_for_whole() -> None:
    keeper = Keeper()
    (one,) = fleet(1, Rates(requests_per_minute=60), keeper)
    one.exchange(keeper, 9.0)
    fresh = Process("fresh", Rates(requests_per_minute=60), 9.1)
    for process in (one, fresh):
        for _ in range(10):
            assert process.ask(9.15)
    fresh.tell(keeper, 9.2)
    one.exchange(keeper, 9.3)
    assert one.requests_left(9.3) == pytest.approx(60 - 20 + 0.15)


def test_what_was_taken_in_a_long_separation_is_not_made_up_for() -> None:
    """An hour apart at full rate each: they begin anew with what is left, not with a debt of an hour."""
    keeper, apart = Keeper(), {"p0": Keeper(), "p1": Keeper()}
    processes = fleet(2, Rates(requests_per_minute=60), keeper)
    for number in range(7200):
        for process in processes:
            process.ask(number / 2)
            if number % 10 == 0:
                process.exchange(apart[process.name], number / 2)
    for process in processes * 2:
        process.exchange(keeper, 3600.0)
    for process in processes:
        assert process.requests_left(3600.0) == pytest.approx(0.5, abs=0.6)
        assert process.ask(3602.0)


def test_a_short_separation_is_made_up_for() -> None:
    keeper = Keeper()
    one, other = fleet(2, Rates(requests_per_minute=60), keeper)
    for process in (one, other, one):
        process.exchange(keeper, 9.0)
    for _ in range(40):
        assert one.ask(10.0)
        assert other.ask(10.0)
    keeper.kept.clear()  # a Redis that was started anew
    one.exchange(keeper, 12.0)
    other.exchange(keeper, 12.0)
    one.exchange(keeper, 12.2)
    assert one.requests_left(12.2) == pytest.approx(60 - 80 + 2.2)
    assert other.requests_left(12.2) == pytest.approx(60 - 80 + 2.2)


def test_another_clock_of_the_keepers_does_no_harm() -> None:
    keeper = Keeper()
    one, other = fleet(2, Rates(requests_per_minute=60, concurrent=50), keeper)
    for ahead in (1e6 + 3600, 1e6 - 3600, 1e6):  # another Redis takes its place, whose clock differs
        for _ in range(5):
            assert one.ask(1.0)
        one.exchange(keeper, 1.0)
        keeper.ahead = ahead
        other.exchange(keeper, 1.0)
        assert other.requests_left(1.0) == pytest.approx(one.requests_left(1.0), abs=0.2)
        one.exchange(keeper, 1.1)
        other.exchange(keeper, 1.1)
        assert other.limiter.elsewhere == one.limiter.running


def test_an_idle_limiter_is_told_of_no_longer_and_comes_back_with_its_next_request() -> None:
    keeper = Keeper()
    one, other = fleet(2, Rates(requests_per_minute=60), keeper)

    def size() -> int:
        record = decode(keeper.kept[one.name])
        assert record is not None
        return len(record.usages)

    def run(start: float, end: float) -> None:
        for second in range(int(end - start)):
            one.exchange(keeper, start + second)
            other.exchange(keeper, start + second)

    assert size() == 0
    assert one.ask(1.0)
    run(1.0, 11.0)
    assert size() == 1
    run(11.0, 200.0)
    assert size() == 1, "it runs still"
    one.limiter.end(0, 200.0)
    run(200.0, 400.0)
    assert size() == 0
    assert one.ask(400.0)
    assert one.ask(400.0)
    run(400.0, 401.0)
    assert size() == 1
    assert other.requests_left(400.0) == pytest.approx(58.0)


def test_a_limiter_that_others_do_not_have_is_passed_over_and_one_that_goes_is_forgotten() -> None:
    keeper = Keeper()
    one, other = fleet(2, Rates(requests_per_minute=60), keeper)
    alone = limiter_id("acme", "big")
    one.limiters = {**one.limiters, alone: RateLimiter(Rates(requests_per_minute=5), one.skew)}
    one.exchange(keeper, 0.0)
    one.limiters[alone].take(0, one.skew)
    one.exchange(keeper, 0.1)
    other.exchange(keeper, 0.1)
    assert set(one.ledger._own) == {ACME, alone}
    one.limiters = {ACME: one.limiter}
    one.exchange(keeper, 0.2)
    assert set(one.ledger._own) == {ACME}
    other.limiter.elsewhere = 3
    end_sharing(other.limiters)
    assert other.limiter.elsewhere == 0
    keeper.kept.clear()
    other.hear(keeper, KEPT_S)
    assert other.ledger._peers == {}


# --- as bytes

USAGES = st.builds(
    Usage,
    limiter=st.binary(max_size=20),
    epoch=st.integers(0, 1 << 40),
    requests=st.integers(0, 10**12),
    tokens=st.floats(-1e15, 1e15),
    running=st.integers(0, 10**6),
    requests_lacking=st.floats(-1e15, 1e15),
    tokens_lacking=st.floats(-1e15, 1e15),
)
RECORDS = st.builds(
    Record, st.integers(0, 1 << 40), st.floats(0, 1e12), st.floats(0, 1e12), st.lists(USAGES, max_size=5)
)


@given(RECORDS)
def test_a_record_is_read_as_it_was_written(record: Record) -> None:
    assert decode(encode(record)) == record


@given(st.binary(max_size=200))
def test_what_is_no_record_is_none(data: bytes) -> None:
    record = decode(data)
    assert record is None or decode(encode(record)) == record


@given(RECORDS.map(encode), st.data())
def test_a_record_that_was_cut_is_none(data: bytes, draw: st.DataObject) -> None:
    assert decode(data[: draw.draw(st.integers(0, len(data) - 1))]) is None


@pytest.mark.parametrize(
    "usage",
    [
        [b"i", 1, 1, float("nan"), 0, 0.0, 0.0],
        [b"i", 1, 1, 0.0, 0, float("inf"), 0.0],
        [b"i", 1, 10**18, 0.0, 0, 0.0, 0.0],
        [b"i", 1, 1, 0.0, -1, 0.0, 0.0],
        [b"i", 1, 1, 0.0, 0, 0.0],
        ["i", 1, 1, 0.0, 0, 0.0, 0.0],
        [b"i", 1, 1.5, 0.0, 0, 0.0, 0.0],
    ],
)
def test_numbers_that_would_spoil_a_bucket_are_none(usage: list[object]) -> None:
    assert decode(msgspec.msgpack.encode([1, 1.0, 2.0, [[b"i", 1, 1, 0.0, 0, 0.0, 0.0]]])) is not None
    assert decode(msgspec.msgpack.encode([1, 1.0, 2.0, [usage]])) is None
    assert decode(bytes(5 << 20)) is None


def test_names_are_not_in_ids_and_models_of_tenants_differ() -> None:
    ids = [limiter_id(tenant, model) for tenant in ("acme", "beta") for model in (None, "small", "big")]
    assert len(set(ids)) == 6
    assert all(len(one) == 12 for one in ids)
    assert b"acme" not in b"".join(ids)
