"""One contract for all eviction policies, against a model that knows nothing of how they work; then each one's own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from math import inf
from types import FrameType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.eviction import EVICTION_POLICIES, EvictionPolicy, make_eviction
from policies.eviction_chains import ChainedEviction
from policies.eviction_line import RecencyLine
from policies.eviction_queues import S3FifoOrder
from policies.eviction_types import Entry

NAMES = sorted(EVICTION_POLICIES)
QUOTAS = {"a": 40, "b": 0}
TTL = 50.0
each_policy = pytest.mark.parametrize("name", NAMES)


def key(number: int) -> bytes:
    return number.to_bytes(2)


@dataclass
class Held:
    size: int
    parent: bytes | None
    tenant: str
    used: float
    pins: int = 0


@dataclass
class Model:
    """What is here, as plainly as can be said."""

    quotas: dict[str, int] = field(default_factory=dict)
    ttl: float | None = None
    here: dict[bytes, Held] = field(default_factory=dict)

    def ends(self, gone: Iterable[bytes]) -> set[bytes]:
        """Evictable once `gone` are."""
        left = {k: held for k, held in self.here.items() if k not in gone}
        parents = {held.parent for held in left.values()}
        return {k for k, held in left.items() if k not in parents and not held.pins}

    def check_victims(self, named: list[bytes], need: int, now: float, tenant: str | None = None) -> None:
        freed = 0
        for count, victim in enumerate(named):
            gone = named[:count]
            ends = self.of(tenant, self.ends(gone))
            assert victim in ends, "a parent before its child, a pinned one, a stranger, or twice the same"
            assert freed < need, "more than was asked for"
            first = self.outlived(ends, now) or self.above_quota(ends, gone) or ends
            assert victim in (first if tenant is None else ends)
            freed += self.here[victim].size
        assert freed >= need or not self.of(tenant, self.ends(named)), "there was more to take"

    def of(self, tenant: str | None, ends: set[bytes]) -> set[bytes]:
        """Those of one tenant, if it has a quota; None: all."""
        return {k for k in ends if tenant is None or (self.here[k].tenant == tenant and tenant in self.quotas)}

    def outlived(self, ends: set[bytes], now: float) -> set[bytes]:
        return {k for k in ends if self.ttl is not None and self.here[k].used + self.ttl < now}

    def above_quota(self, ends: set[bytes], gone: list[bytes]) -> set[bytes]:
        return {
            k
            for k in ends
            if (quota := self.quotas.get(self.here[k].tenant)) is not None
            and sum(h.size for other, h in self.here.items() if h.tenant == self.here[k].tenant and other not in gone)
            > quota
        }


keys = st.integers(0, 25)
operations = st.lists(
    st.one_of(
        # The parent is a smaller number: keys are chained, so there are no circles.
        st.tuples(st.just("admit"), keys, st.integers(-4, 25), st.integers(1, 20), st.sampled_from("abc")),
        st.tuples(st.just("grow"), keys, st.integers(1, 6), st.integers(1, 20), st.sampled_from("abc")),
        st.tuples(st.sampled_from(["touch", "pin", "unpin", "remove"]), keys),
        st.tuples(st.sampled_from(["ask", "evict", "evict some"]), st.integers(-5, 200)),
        st.tuples(st.just("evict own"), st.integers(-5, 100), st.sampled_from("abc")),
        st.tuples(st.sampled_from(["expired", "expire"]), st.just(0)),
        st.tuples(st.just("wait"), st.integers(1, 40)),
        st.tuples(st.just("limit"), st.none() | st.integers(0, 60), st.sampled_from("abc")),
    ),
    max_size=70,
)


class Subject:
    """A policy and the model, told the same."""

    def __init__(self, name: str, *, quotas: dict[str, int], ttl: float | None) -> None:
        self.policy = make_eviction(name, quotas=quotas, ttl=ttl, tail=10.0)
        self.quotas = quotas
        self.model = Model(dict(quotas), TTL if ttl is None and name == "lru_ttl" else ttl)
        self.now = 0.0
        self.named: list[list[bytes]] = []

    def run(self, operation: tuple[object, ...]) -> None:
        match operation:
            case ("admit", int(number), int(parent), int(size), str(tenant)):
                self.admit(number, parent if 0 <= parent < number else None, size, tenant)
            case ("grow", int(number), int(length), int(size), str(tenant)):
                for offset in range(length):
                    self.admit(100 * number + offset, 100 * number + offset - 1 if offset else None, size, tenant)
            case ("ask" | "evict" | "evict some" as what, int(need)):
                named = self.policy.victims(need, self.now)
                self.model.check_victims(named, need, self.now)
                self.forget(named, what)
            case ("evict own", int(need), str(tenant)):
                named = self.policy.victims(need, self.now, tenant=tenant)
                self.model.check_victims(named, need, self.now, tenant)
                self.forget(named, "evict some")
            case ("expired" | "expire" as what, _):
                named = self.policy.expired(self.now)
                self.check_expired(named)
                self.forget(named, "evict" if what == "expire" else "ask")
            case ("limit", limit, str(tenant)):
                assert limit is None or isinstance(limit, int)
                self.policy.limit(tenant, limit)
                told = [each for each in (self.quotas.get(tenant), limit) if each is not None]
                if told:
                    self.model.quotas[tenant] = min(told)
                else:
                    self.model.quotas.pop(tenant, None)
                assert self.policy.quota_of(tenant) == self.model.quotas.get(tenant, inf)
            case ("wait", int(seconds)):
                self.now += seconds
            case (str(what), int(number)):
                self.tell(what, key(number))

    def admit(self, number: int, parent: int | None, size: int, tenant: str) -> None:
        before = None if parent is None else key(parent)
        self.policy.admit(key(number), size, self.now, parent=before, tenant=tenant, cost=float(1 + number % 7))
        held = self.model.here.setdefault(key(number), Held(size, before, tenant, self.now))
        held.size, held.used = size, self.now

    def tell(self, what: str, name: bytes) -> None:
        held = self.model.here.get(name)
        match what:
            case "touch":
                self.policy.touch(name, self.now)
                if held:
                    held.used = self.now
            case "pin":
                self.policy.pin(name)
                if held:
                    held.pins += 1
            case "unpin":
                self.policy.unpin(name)
                if held:
                    held.pins = max(0, held.pins - 1)
            case _:
                self.policy.remove(name)
                self.model.here.pop(name, None)

    def forget(self, named: list[bytes], what: str) -> None:
        self.named.append(named)
        for name in named[:: {"ask": len(named) + 1, "evict": 1, "evict some": 2}[what]] if what != "ask" else []:
            self.tell("remove", name)

    def check_expired(self, named: list[bytes]) -> None:
        for count, name in enumerate(named):
            assert name in self.model.outlived(self.model.ends(named[:count]), self.now)
        assert not self.model.outlived(self.model.ends(named), self.now)

    def check_sizes(self) -> None:
        here = self.model.here.values()
        assert len(self.policy) == len(here)
        assert self.policy.bytes == sum(held.size for held in here)
        for tenant in "abc":
            assert self.policy.bytes_of(tenant) == sum(held.size for held in here if held.tenant == tenant)


@each_policy
@settings(max_examples=100, deadline=None)
@given(operations, st.booleans(), st.booleans())
def test_it_agrees_with_the_model(name: str, todo: list[tuple[object, ...]], quotas: bool, expiry: bool) -> None:
    subject = Subject(name, quotas=QUOTAS if quotas else {}, ttl=TTL if expiry or name == "lru_ttl" else None)
    for operation in todo:
        subject.run(operation)
        subject.check_sizes()
    everything = sum(held.size for held in subject.model.here.values())
    for name_held, held in subject.model.here.items():
        for _ in range(held.pins):
            subject.policy.unpin(name_held)
        held.pins = 0
    named = subject.policy.victims(everything, subject.now)
    assert sorted(named) == sorted(subject.model.here), "somebody can never be evicted"
    again = subject.policy.victims(everything, subject.now)
    subject.model.check_victims(again, everything, subject.now)
    assert sorted(again) == sorted(named), "whoever was named and stayed is lost"
    subject.forget(named, "evict")
    subject.check_sizes()


@each_policy
@settings(max_examples=30, deadline=None)
@given(operations)
def test_the_same_story_has_the_same_end(name: str, todo: list[tuple[object, ...]]) -> None:
    first, second = (Subject(name, quotas=QUOTAS, ttl=None if name != "lru_ttl" else TTL) for _ in range(2))
    for operation in todo:
        first.run(operation)
        second.run(operation)
    assert first.named == second.named


@each_policy
@settings(max_examples=30, deadline=None)
@given(operations, st.integers(1, 100))
def test_nothing_is_kept_of_what_is_gone(name: str, todo: list[tuple[object, ...]], need: int) -> None:
    subject = Subject(name, quotas=QUOTAS, ttl=TTL)
    for operation in todo:
        subject.run(operation)
    for gone in list(subject.model.here):
        subject.tell("remove", gone)
    subject.check_sizes()
    assert subject.policy.victims(need, subject.now) == subject.policy.expired(subject.now + 1e9) == []


# --- the contract, one by one -----------------------------------------------------------------------------


def fill(policy: EvictionPolicy, chain: Iterable[int], now: float = 0.0, *, size: int = 1, tenant: str = "") -> None:
    before: bytes | None = None
    for number in chain:
        policy.admit(key(number), size, now, parent=before, tenant=tenant, cost=1.0)
        before = key(number)


def use(policy: EvictionPolicy, chain: Iterable[int], now: float) -> None:
    for number in chain:
        policy.touch(key(number), now)


def numbers(named: list[bytes]) -> list[int]:
    return [int.from_bytes(name) for name in named]


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"no eviction policy 'fifo'; there are gdsf, hit_density, lru, lru_ttl, s3_"):
        make_eviction("fifo")


@pytest.mark.parametrize("options", [{"ttl": 0.0}, {"ttl": float("nan")}, {"quotas": {"a": -1}}, {"default_quota": -1}])
def test_senseless_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"quota|time to live"):
        make_eviction("lru", **options)  # type: ignore[arg-type]  # each is of the right type for its name


@each_policy
@pytest.mark.parametrize(
    ("size", "cost", "parent"), [(0, 1.0, None), (1, -1.0, None), (1, float("nan"), None), (1, 1.0, key(1))]
)
def test_senseless_entries_are_refused(name: str, size: int, cost: float, parent: bytes | None) -> None:
    policy = make_eviction(name)
    with pytest.raises(ValueError, match="an entry of"):
        policy.admit(key(1), size, 0.0, parent=parent, tenant="", cost=cost)
    assert len(policy) == policy.bytes == 0


@each_policy
def test_a_chain_goes_from_its_end(name: str) -> None:
    policy = make_eviction(name)
    fill(policy, range(10))
    assert numbers(policy.victims(4, 1.0)) == [9, 8, 7, 6]
    assert numbers(policy.victims(99, 1.0)) == [*reversed(range(10))]


@each_policy
def test_the_trunk_stays_until_its_last_branch_is_gone(name: str) -> None:
    policy = make_eviction(name)
    fill(policy, [0, 1, 2])
    policy.admit(key(3), 1, 1.0, parent=key(1), tenant="", cost=1.0)
    named = numbers(policy.victims(4, 2.0))
    assert sorted(named[:2]) == [2, 3]
    assert named[2:] == [1, 0]


@each_policy
def test_a_pin_protects_all_before_it(name: str) -> None:
    policy = make_eviction(name)
    fill(policy, range(5))
    policy.pin(key(2))
    policy.pin(key(2))
    policy.unpin(key(2))
    assert numbers(policy.victims(99, 1.0)) == [4, 3]
    policy.unpin(key(2))
    policy.unpin(key(2))
    assert numbers(policy.victims(99, 1.0)) == [4, 3, 2, 1, 0]


@each_policy
def test_whoever_is_used_after_it_was_named_is_spared_with_its_chain(name: str) -> None:
    policy = make_eviction(name)
    fill(policy, [0, 1, 2])
    assert len(policy.victims(3, 1.0)) == 3
    policy.pin(key(1))
    assert numbers(policy.victims(3, 1.0)) == [2]


@each_policy
def test_a_parent_that_comes_late_is_held_by_its_child(name: str) -> None:
    policy = make_eviction(name)
    fill(policy, [0, 1])
    policy.remove(key(0))
    policy.pin(key(1))
    policy.admit(key(0), 1, 1.0, parent=None, tenant="", cost=1.0)
    assert policy.victims(2, 1.0) == []


@each_policy
def test_tenants_pay_down_to_their_quota_first(name: str) -> None:
    policy = make_eviction(name, quotas={"small": 2}, default_quota=4)
    fill(policy, [0], tenant="honest")
    fill(policy, [10, 11, 12], 1.0, tenant="small")
    fill(policy, range(20, 26), 2.0, tenant="large")
    use(policy, [10, 11, 12, *range(20, 26)], 3.0)
    assert numbers(policy.victims(3, 4.0)) == [12, 25, 24]
    for victim in policy.victims(3, 4.0):
        policy.remove(victim)
    assert (policy.bytes_of("small"), policy.bytes_of("large"), policy.bytes_of("honest")) == (2, 4, 1)


@each_policy
def test_a_limit_comes_and_goes(name: str) -> None:
    policy = make_eviction(name, quotas={"b": 3})
    fill(policy, [1, 2, 3, 4], tenant="a")
    fill(policy, [11, 12], 1.0, tenant="b")
    assert policy.victims(9, 2.0, tenant="a") == [], "it has no quota"
    policy.limit("a", 2)
    assert numbers(policy.victims(1, 2.0, tenant="a")) == [4]
    assert numbers(policy.victims(3, 2.0))[:2] == [4, 3], "what is above it goes first"
    policy.limit("b", 9)
    assert policy.quota_of("b") == 3, "a limit makes nothing more"
    policy.limit("b", 1)
    assert (policy.quota_of("a"), policy.quota_of("b")) == (2, 1)
    policy.limit("b", None)
    policy.limit("a", None)
    assert (policy.quota_of("a"), policy.quota_of("b")) == (inf, 3)
    assert policy.victims(9, 3.0, tenant="a") == []
    assert len(policy.victims(9, 3.0)) == 6
    with pytest.raises(ValueError, match="below 0"):
        policy.limit("a", -1)


def test_limits_of_tenants_that_have_nothing_are_forgotten() -> None:
    policy = make_eviction("lru", quotas={"configured": 5})
    assert isinstance(policy, ChainedEviction)
    fill(policy, [1], tenant="here")
    policy.limit("here", 7)
    for number in range(5_000):
        policy.limit(f"tenant {number}", 7)
        assert policy.quota_of(f"tenant {number}") == 7
    assert len(policy._quotas) < 600
    assert (policy.quota_of("here"), policy.quota_of("configured")) == (7, 5)


@each_policy
def test_a_tenant_pays_for_itself_alone(name: str) -> None:
    policy = make_eviction(name, quotas={"a": 6}, ttl=10.0)
    fill(policy, [1, 2, 3], now=0.0, tenant="b")
    fill(policy, [11, 12, 13], now=5.0, tenant="a")
    assert numbers(policy.victims(2, 20.0, tenant="a")) == [13, 12], "not those that have expired, nor only above 6"
    assert numbers(policy.victims(9, 20.0, tenant="a")) == [13, 12, 11]
    assert policy.victims(1, 20.0, tenant="b") == policy.victims(1, 20.0, tenant="nobody") == [], "it has no quota"
    policy.pin(key(12))
    assert numbers(policy.victims(9, 20.0, tenant="a")) == [13]


@each_policy
def test_with_a_time_to_live_the_unused_go_first(name: str) -> None:
    policy = make_eviction(name, ttl=10.0)
    fill(policy, [0, 1])
    fill(policy, [2, 3], 5.0)
    use(policy, [0], 8.0)
    assert policy.expired(10.0) == []
    assert numbers(policy.expired(10.5)) == [1]
    assert numbers(policy.victims(1, 10.5)) == [1]
    assert numbers(policy.expired(15.5)) == [1, 3, 2]
    assert numbers(policy.expired(18.5)) == [1, 3, 2, 0]


def replay(policy: EvictionPolicy, chains: Iterable[Iterable[int]], capacity: int) -> Iterator[set[int]]:
    """What is here after each request; sizes are 1."""
    here: set[int] = set()
    for now, chain in enumerate(chains):
        links = list(chain)
        held = next((i for i, number in enumerate(links) if number not in here), len(links))
        use(policy, links[:held], now)
        for victim in numbers(policy.victims(len(here) + len(links) - held - capacity, now)):
            assert victim in here
            policy.remove(key(victim))
            here.discard(victim)
        fill_from = links[held:]
        for index, number in enumerate(fill_from, held):
            before = key(links[index - 1]) if index else None
            policy.admit(key(number), 1, now, parent=before, tenant="", cost=1.0)
            here.add(number)
        yield set(here)


@each_policy
def test_what_was_hot_once_gives_way_to_what_is_hot_now(name: str) -> None:
    old = [[10 * i, 10 * i + 1] for i in range(20)]
    new = [[1000 + 10 * i, 1001 + 10 * i] for i in range(15)]
    *_, here = replay(make_eviction(name), old * 4 + new * 40, capacity=40)
    assert {number for chain in new for number in chain} <= here


# --- each one's own ---------------------------------------------------------------------------------------


def test_lru_takes_the_end_of_the_chain_that_was_used_longest_ago() -> None:
    policy = make_eviction("lru")
    fill(policy, [0, 1])
    fill(policy, [2, 3])
    fill(policy, [4, 5])
    use(policy, [0, 1], 1.0)
    use(policy, [2], 2.0)  # a use of the head alone does not save the end
    assert numbers(policy.victims(99, 3.0)) == [3, 5, 4, 1, 0, 2]


def test_lru_ttl_forgets_after_an_hour_unless_told() -> None:
    policy = make_eviction("lru_ttl")
    fill(policy, [0])
    assert policy.expired(3600.0) == []
    assert numbers(policy.expired(3600.5)) == [0]


def test_sieve_spares_what_was_used_once_around() -> None:
    policy = make_eviction("sieve")
    for number in range(4):
        fill(policy, [number])
    use(policy, [0, 2], 1.0)
    assert numbers(policy.victims(1, 2.0)) == [1]
    policy.remove(key(1))
    fill(policy, [9])
    # The hand is past 0 and 1: it passes 2, takes 3, then what is new, and only then the two that it spared.
    assert numbers(policy.victims(99, 3.0)) == [3, 9, 0, 2]


def test_sieve_takes_a_dead_chain_as_a_whole() -> None:
    policy = make_eviction("sieve")
    fill(policy, [0, 1, 2])
    use(policy, [0, 1, 2], 1.0)
    fill(policy, [5])
    use(policy, [5], 2.0)
    use(policy, [0], 3.0)  # somebody shares the head
    assert numbers(policy.victims(3, 4.0)) == [2, 1, 5]


def test_s3_fifo_keeps_a_scan_out() -> None:
    hot = [[number] for number in range(8)]
    scan = [[100 + number] for number in range(50)]
    *_, here = replay(ChainedEviction(lambda: S3FifoOrder(0.1)), hot * 3 + scan, capacity=10)
    assert set(range(8)) <= here
    *_, here = replay(make_eviction("lru"), hot * 3 + scan, capacity=10)
    assert not set(range(8)) & here


def test_s3_fifo_remembers_whom_it_turned_away() -> None:
    chains = [[0], [1], [2], [3], [4], [0], [5], [6], [7], [8]]
    *_, here = replay(make_eviction("s3_fifo"), chains, capacity=4)
    assert 0 in here
    assert len(here) == 4


def test_tail_lru_takes_the_ends_that_a_next_turn_can_do_without() -> None:
    policy = make_eviction("tail_lru", tail=2.0)
    fill(policy, [0, 1, 2, 3, 4])
    fill(policy, [10, 11], 1.0)
    fill(policy, [20, 21, 22], 2.0)
    # Two of each chain can go, the short one as a whole; then LRU: the oldest chain first.
    assert numbers(policy.victims(99, 3.0)) == [4, 3, 11, 10, 22, 21, 2, 1, 0, 20]


def test_tail_lru_counts_from_where_the_conversation_is_now() -> None:
    policy = make_eviction("tail_lru", tail=2.0)
    fill(policy, [0, 1, 2, 3])
    for victim in policy.victims(2, 1.0):
        policy.remove(victim)
    fill(policy, [10, 11, 12], 2.0)
    use(policy, [0, 1], 3.0)  # whoever came now went another way
    assert numbers(policy.victims(3, 4.0)) == [12, 11, 1]


def test_gdsf_takes_the_cheap_first_and_lets_the_dear_sink() -> None:
    policy = make_eviction("gdsf")
    policy.admit(key(0), 2, 0.0, parent=None, tenant="", cost=8.0)
    policy.admit(key(1), 1, 0.0, parent=None, tenant="", cost=3.0)
    policy.admit(key(2), 1, 0.0, parent=None, tenant="", cost=1.0)
    policy.touch(key(2), 1.0)  # 0: 4, 1: 3, 2: 2
    assert numbers(policy.victims(99, 2.0)) == [2, 1, 0]
    policy.remove(key(2))
    policy.remove(key(1))  # the clock is 3
    policy.admit(key(3), 2, 3.0, parent=None, tenant="", cost=3.0)
    assert numbers(policy.victims(99, 4.0)) == [0, 3]


def test_hit_density_learns_who_comes_back() -> None:
    policy = make_eviction("hit_density")
    *_, _ = replay(policy, _sessions(3000), capacity=64)
    # As old as each other: a session in its third turn, and one that was never heard of again.
    now = 10_000.0
    fill(policy, [60_000], now)
    fill(policy, [60_001], now)
    use(policy, [60_000], now + 1)
    policy.touch(key(60_000), now + 2)
    policy.pin(key(60_001))
    policy.unpin(key(60_001))
    named = numbers(policy.victims(policy.bytes, now + 100))
    assert named.index(60_001) < named.index(60_000)


def _sessions(count: int) -> Iterator[list[int]]:
    """Four in five are never heard of again; of the others each comes ten times."""
    for number in range(count):
        yield [number] if number % 5 else [30_000 + number // 50]


def calls(work: Callable[[], object]) -> int:
    """Function calls that it takes: what it costs, whatever else the machine does."""
    count = 0

    def note(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


@each_policy
@pytest.mark.parametrize("tenant", [None, "a"])
def test_a_victim_among_many_costs_hardly_more(name: str, tenant: str | None) -> None:
    def cost(n_chains: int) -> int:
        policy = make_eviction(name, default_quota=1 << 40)

        def put(number: int) -> None:
            for place in range(4):
                parent = b"%d %d" % (number, place - 1) if place else None
                policy.admit(b"%d %d" % (number, place), 10, number, parent=parent, tenant="a", cost=16.0)

        def turn() -> None:
            for number in range(n_chains, n_chains + 100):
                put(number)
                for victim in policy.victims(40, number, tenant=tenant):
                    policy.remove(victim)

        for number in range(n_chains):
            put(number)
        return calls(turn)

    assert cost(8_000) < 3 * cost(250), "logarithmic at most"


@pytest.mark.parametrize("name", ["hit_density", "lru", "lru_ttl", "tail_lru"])
def test_the_first_victim_after_many_uses_costs_no_more(name: str) -> None:
    def cost(n_entries: int) -> int:
        policy = make_eviction(name)
        for number in range(n_entries):
            policy.admit(b"%d" % number, 10, 0.0, parent=None, tenant="a", cost=16.0)
        for number in range(1, n_entries):
            policy.touch(b"%d" % number, 1.0)
        assert policy.victims(10, 2.0) == [b"0"]
        policy.remove(b"0")
        return calls(lambda: policy.victims(10, 2.0))

    assert cost(4_000) == cost(250)


@given(
    st.lists(st.tuples(st.sampled_from(["push", "push late", "use", "discard", "pin"]), st.integers(0, 9)), max_size=80)
)
def test_a_line_is_in_the_order_of_use(todo: list[tuple[str, int]]) -> None:
    line, offered = RecencyLine(), set[Entry]()
    entries = [Entry(key(number), 1, None, "", 1.0) for number in range(10)]
    for number, entry in enumerate(entries):
        entry.seq = number - 10
    for seq, (what, number) in enumerate(todo, 1):
        entry = entries[number]
        if what == "use":
            entry.seq = seq
            line.used(entry)
        elif what == "pin":
            entry.pins ^= 1
        elif what == "discard":
            line.discard(entry)
            offered.discard(entry)
        elif not entry.pins:
            if what == "push" and entry not in line:
                entry.seq = seq
            line.push(entry)
            offered.add(entry)
        free = [one for one in offered if not one.pins]
        assert line.lowest() is min(free, key=lambda one: one.seq, default=None)
        assert all(one in line for one in free)
        offered &= {one for one in offered if one in line}
