"""The response cache in memory and on disk: what is kept is found, what is forgotten is not, however late it comes."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from math import inf
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cache.disk_store import DiskStore
from cache.entry_tier import EntryTier, Tally
from cache.epoch_log import MemoryEpochLog
from cache.epochs import Epochs
from cache.response_cache import ResponseCache
from cache.response_entry import EntryKeys, ResponseEntry, encode_entry
from cache.response_epochs import ForgetRule
from cache.response_key import ResponseKey, store_key
from cache.response_stores import ResponseStores, open_response_cache
from cache.small_store import SmallStore
from cache.store import Buffer, ChunkKey, FrameInfo, StoreError
from policies.response_freshness import Freshness, FreshnessRules, parse_cache_control
from policies.types import Tier
from tests.gateway_fixtures import eventually
from tests.response_fixtures import RULES, A, B, answer, in_memory, key_of

PATIENT = 20.0


class Caches:
    """Opens caches on one folder, one after the other, and closes them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._open: ResponseCache | None = None

    def open(self, keys: EntryKeys | None = None, **others: int) -> ResponseCache:
        self.close()
        self._open = open_response_cache(
            ResponseStores(memory_bytes=1 << 20, disk=self.folder, disk_bytes=8 << 20, **others),  # type: ignore[arg-type]  # sizes
            keys,
        )
        return self._open

    def close(self) -> None:
        if self._open is not None:
            self._open.close()


@pytest.fixture
def caches(tmp_path: Path) -> Iterator[Caches]:
    caches = Caches(tmp_path / "answers")
    yield caches
    caches.close()


def keep(cache: ResponseCache, key: ResponseKey, entry: ResponseEntry | None = None) -> ResponseEntry:
    entry = answer(cache.begin()) if entry is None else entry
    assert cache.keep(key, entry) is True
    assert cache.flush(PATIENT) is True
    return entry


def found(cache: ResponseCache, key: ResponseKey) -> ResponseEntry | None:
    """In any tier."""
    hit = cache.lookup(key, RULES) or cache.lookup_slower(key, RULES)
    return hit.entry if hit is not None else None


# --- memory ---------------------------------------------------------------------------------------------------------


def test_what_is_kept_is_found() -> None:
    cache = in_memory()
    assert cache.lookup(key_of(1), RULES) is None
    entry = keep(cache, key_of(1))
    hit = cache.lookup(key_of(1), RULES, now=entry.stored_at + 5.9)
    assert hit == (entry, Freshness.FRESH, 5, Tier.HOST)
    assert cache.lookup(key_of(2), RULES) is None
    assert cache.lookup(key_of(1, B), RULES) is None, "another tenant's"
    assert cache.counts() == {"kept": 1, "hit: host": 1}
    assert not cache.has_slower
    assert cache.lookup_slower(key_of(1), RULES) is None


def test_a_newer_answer_takes_the_place_of_an_older_one() -> None:
    cache = in_memory()
    keep(cache, key_of(1))
    newer = keep(cache, key_of(1), answer(cache.begin(), body=b"a better one"))
    assert found(cache, key_of(1)) == newer
    assert cache.stores()[Tier.HOST].entries == 1


@pytest.mark.parametrize(
    ("age", "said", "freshness"),
    [
        (10, "", Freshness.FRESH),
        (70, "", Freshness.STALE_WHILE_REVALIDATE),
        (200, "", Freshness.STALE_IF_ERROR),
        (10, "max-age=5", None),
        (10, "no-cache", None),
        (70, "max-age=100", None),
    ],
)
def test_freshness_is_asked_of_each_request(age: float, said: str, freshness: Freshness | None) -> None:
    cache = in_memory()
    entry = keep(cache, key_of(1))
    hit = cache.lookup(key_of(1), RULES, parse_cache_control(said), now=entry.stored_at + age)
    assert (hit.freshness if hit is not None else None) is freshness
    assert cache.stores()[Tier.HOST].entries == 1, "of use to others"


def test_what_nobody_can_use_any_more_is_removed_when_it_is_met(caches: Caches) -> None:
    cache = caches.open()
    entry = keep(cache, key_of(1))
    late = entry.stored_at + RULES.useful + 1
    assert cache.lookup(key_of(1), RULES, now=late) is None
    assert cache.lookup_slower(key_of(1), RULES, now=late) is None
    assert [stats.entries for stats in cache.stores().values()] == [0, 0]
    assert (cache.counts()["expired: host"], cache.counts()["expired: disk"]) == (1, 1)


def test_shorter_rules_hold_for_what_is_there_already() -> None:
    cache = in_memory()
    entry = keep(cache, key_of(1))
    assert cache.lookup(key_of(1), FreshnessRules(ttl=1), now=entry.stored_at + 2) is None
    assert found(cache, key_of(1)) is None


def test_too_large_an_answer_is_not_kept() -> None:
    cache = ResponseCache(SmallStore(1 << 20), epochs=Epochs(MemoryEpochLog()), most_entry_bytes=1_000)
    keep(cache, key_of(1), answer(cache.begin(), body=bytes(1_000)))
    assert cache.keep(key_of(2), answer(cache.begin(), body=bytes(1_001))) is False
    assert cache.keep(key_of(1), answer(cache.begin(), body=bytes(1_001))) is False
    assert found(cache, key_of(1)) is not None, "the older one stays"


def test_damage_in_memory_is_a_miss() -> None:
    memory = SmallStore(1 << 20)
    cache = ResponseCache(memory, epochs=Epochs(MemoryEpochLog()))
    memory.write(store_key(key_of(1)), [b"no entry"], FrameInfo())
    assert cache.lookup(key_of(1), RULES) is None
    assert cache.counts() == {"damaged: host": 1}
    assert memory.stats().entries == 0


def test_the_bound_holds() -> None:
    cache = in_memory(200_000)
    for number in range(300):
        keep(cache, key_of(number), answer(cache.begin(), body=bytes(1_000)))
        assert cache.stores()[Tier.HOST].bytes <= 200_000
    assert found(cache, key_of(299)) is not None
    assert found(cache, key_of(0)) is None


def test_a_closed_cache_misses() -> None:
    cache = in_memory()
    entry = keep(cache, key_of(1))
    cache.close()
    assert found(cache, key_of(1)) is None
    assert cache.keep(key_of(1), entry) is False
    cache.discard(key_of(1))
    assert cache.forget(A).complete is False
    cache.close()


# --- forgetting -----------------------------------------------------------------------------------------------------


def test_a_tenant_is_forgotten_and_the_others_are_not(caches: Caches) -> None:
    cache = caches.open()
    for number in range(5):
        keep(cache, key_of(number))
        keep(cache, key_of(number, B))
    counted = cache.forget(A, dry_run=True)
    assert counted.entries == {Tier.HOST: 5, Tier.DISK: 5}
    assert found(cache, key_of(0)) is not None
    assert cache.forget(A) == counted
    assert (counted.noted, counted.complete, counted.waiting) == (True, True, 0)
    assert [found(cache, key_of(number)) for number in range(5)] == [None] * 5
    assert None not in [found(cache, key_of(number, B)) for number in range(5)]
    assert [stats.entries for stats in cache.stores().values()] == [5, 5]
    assert cache.forget(A).entries == {Tier.HOST: 0, Tier.DISK: 0}
    again = keep(cache, key_of(0))
    assert found(cache, key_of(0)) == again, "what is asked for afterwards is kept"


def test_all_is_forgotten(caches: Caches) -> None:
    cache = caches.open()
    keep(cache, key_of(1))
    keep(cache, key_of(1, B))
    assert cache.forget().entries == {Tier.HOST: 2, Tier.DISK: 2}
    assert found(cache, key_of(1)) is None
    assert found(cache, key_of(1, B)) is None


@pytest.mark.parametrize("encrypted", [False, True])
def test_one_model_is_forgotten(caches: Caches, encrypted: bool) -> None:
    cache = caches.open(EntryKeys(b"k" * 32) if encrypted else None)
    places = [(scope, model) for scope in (A, B) for model in ("llama", "qwen")]
    for scope, model in places:
        keep(cache, key_of(1, scope, model), answer(cache.begin(), model))
    assert cache.forget(A, model="qwen").entries == {Tier.HOST: 1, Tier.DISK: 1}
    assert [found(cache, key_of(1, *place)) is not None for place in places] == [True, False, True, True]
    assert cache.forget(model="llama", dry_run=True).entries == {Tier.HOST: 2, Tier.DISK: 2}
    assert cache.forget(model="llama").entries == {Tier.HOST: 2, Tier.DISK: 2}
    assert [found(cache, key_of(1, *place)) is not None for place in places] == [False, False, False, True]


def test_what_is_old_is_forgotten(caches: Caches) -> None:
    cache = caches.open()
    now = time.time()
    old = answer(cache.begin(), stored_at=now - 50)
    for scope in (A, B):
        keep(cache, key_of(1, scope), old)
        keep(cache, key_of(2, scope), answer(cache.begin(), stored_at=now - 10))
    assert cache.forget(A, older_than=30, dry_run=True).entries == {Tier.HOST: 1, Tier.DISK: 1}
    assert cache.forget(A, older_than=30).entries == {Tier.HOST: 1, Tier.DISK: 1}
    assert [found(cache, key_of(number)) is not None for number in (1, 2)] == [False, True]
    assert found(cache, key_of(1, B)) is not None
    assert cache.keep(key_of(1), old) is False, "and does not come back"


def test_what_is_of_no_use_any_more_is_swept_away(caches: Caches) -> None:
    cache = caches.open()
    keep(cache, key_of(1), answer(cache.begin(), stored_at=time.time() - RULES.useful - 5))
    fresh = keep(cache, key_of(2))
    stamp = cache.begin()
    assert cache.sweep(RULES.useful) == {Tier.HOST: 1, Tier.DISK: 1}
    assert cache.sweep(RULES.useful) == {Tier.HOST: 0, Tier.DISK: 0}
    assert found(cache, key_of(2)) == fresh
    assert cache.begin() == stamp, "nothing was forgotten"


def test_a_write_under_way_brings_nothing_back(caches: Caches) -> None:
    cache = caches.open()
    begun = {scope: cache.begin() for scope in (A, B)}
    cache.forget(A)
    assert cache.keep(key_of(1), answer(begun[A])) is False
    keep(cache, key_of(1, B), answer(begun[B]))
    cache.forget()
    assert cache.keep(key_of(2, B), answer(begun[B])) is False
    assert [stats.entries for stats in cache.stores().values()] == [0, 0]


class Disk(SmallStore):
    """Memory in the place of a disk."""

    tier = Tier.DISK


class Slow(Disk):
    """Writes wait until they may."""

    def __init__(self) -> None:
        super().__init__(1 << 20)
        self.entered, self.may = threading.Event(), threading.Event()

    def write(self, key: ChunkKey, pieces: Sequence[Buffer], info: FrameInfo) -> bool:
        self.entered.set()
        assert self.may.wait(PATIENT)
        return super().write(key, pieces, info)


def behind(store: SmallStore, **others: int) -> ResponseCache:
    tally = Tally()
    tier = EntryTier(store, time.monotonic, tally.add)
    return ResponseCache(SmallStore(1 << 20), [tier], epochs=Epochs(MemoryEpochLog()), tally=tally, **others)  # type: ignore[arg-type]  # sizes


def test_a_write_behind_that_is_under_way_brings_nothing_back() -> None:
    store = Slow()
    cache = behind(store)
    for number in range(3):
        assert cache.keep(key_of(number), answer(cache.begin())) is True
        assert cache.keep(key_of(number, B), answer(cache.begin())) is True
    assert store.entered.wait(PATIENT)
    threading.Timer(0.05, store.may.set).start()
    report = cache.forget(A)
    assert (report.entries[Tier.HOST], report.waiting) == (3, 2), "one of them was being written"
    assert cache.flush(PATIENT)
    assert store.contains([store_key(key_of(number)) for number in range(3)]) == 0
    assert store.contains([store_key(key_of(number, B)) for number in range(3)]) == 3
    cache.close()


class Kept(Disk):
    """Nothing can be removed from it."""

    def remove(self, key: ChunkKey) -> bool:
        raise StoreError(f"not allowed: {len(key)} bytes")


def test_what_could_not_be_removed_is_told() -> None:
    cache = behind(Kept(1 << 20))
    for number in range(5):
        keep(cache, key_of(number))
    report = cache.forget(A)
    assert (report.noted, report.complete) == (True, False)
    assert report.entries == {Tier.HOST: 5, Tier.DISK: 0}
    assert cache.lookup_slower(key_of(0), RULES) is None
    cache.close()


class Faulty(Disk):
    """One that raises what nobody expects."""

    def write(self, key: ChunkKey, pieces: Sequence[Buffer], info: FrameInfo) -> bool:
        if not self.stats().entries and info.n_tokens:
            raise RuntimeError("a fault of our own")
        return super().write(key, pieces, info)


def test_a_fault_in_one_write_does_not_end_the_others(caplog: pytest.LogCaptureFixture) -> None:
    store = Faulty(1 << 20)
    cache = behind(store)
    cache.keep(key_of(1), answer(cache.begin(), prompt_tokens=5))
    assert cache.flush(PATIENT)
    keep(cache, key_of(2))
    assert store.contains([store_key(key_of(2))]) == 1
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    cache.close()


class Meanwhile(Disk):
    """All is forgotten, and this store purged, just before something is written to it."""

    epochs: Epochs

    def write(self, key: ChunkKey, pieces: Sequence[Buffer], info: FrameInfo) -> bool:
        self.epochs.forget(ForgetRule(None, None, inf))
        return super().write(key, pieces, info)


@pytest.mark.parametrize("near", [True, False])
def test_what_is_forgotten_between_check_and_write_does_not_stay(near: bool) -> None:
    store, tally = Meanwhile(1 << 20), Tally()
    store.epochs = Epochs(MemoryEpochLog())
    tiers = [] if near else [EntryTier(store, time.monotonic, tally.add)]
    cache = ResponseCache(store if near else SmallStore(1 << 20), tiers, epochs=store.epochs, tally=tally)
    assert cache.keep(key_of(1), answer(cache.begin())) is not near
    assert cache.flush(PATIENT)
    assert (store.stats().writes, store.stats().entries) == (1, 0)
    cache.close()


def test_what_waits_is_bounded() -> None:
    store = Slow()
    cache = behind(store, most_waiting_bytes=10_000)
    for number in range(10):
        assert cache.keep(key_of(number), answer(cache.begin(), body=bytes(2_000))) is True, "memory has it"
    assert cache.counts()["dropped: disk"] >= 6
    store.may.set()
    assert cache.flush(PATIENT)
    assert 3 <= store.stats().entries <= 4
    cache.close()


async def test_forgetting_while_others_write_and_read(caches: Caches) -> None:
    """However reads, writes, promotions and forgetting fall together: nothing of before is there after."""
    cache = caches.open()
    stop = threading.Event()
    failures: list[BaseException] = []

    def use(scope: bytes) -> None:
        number = 0
        try:
            while not stop.is_set():
                number += 1
                stamp, key = cache.begin(), key_of(number % 20, scope)
                if found(cache, key) is None and stamp is not None:
                    cache.keep(key, answer(stamp, body=b"%d" % stamp.position))
        except BaseException as error:  # noqa: BLE001 - handed to the test below
            failures.append(error)

    threads = [threading.Thread(target=use, args=(A,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(6):
        await asyncio.sleep(0.02)
        cache.forget(A)
        least = cache.begin()
        assert least is not None
        for number in range(20):
            entry = found(cache, key_of(number))
            assert entry is None or entry.stamp.position >= least.position
    stop.set()
    for thread in threads:
        thread.join(PATIENT)
    assert failures == []
    assert cache.flush(PATIENT)
    cache.forget(A)
    await eventually(lambda: [stats.entries for stats in cache.stores().values()] == [0, 0])


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["begin", "begin", "keep", "keep", "keep", "find", "find", "forget", "later", "sweep"]),
        st.integers(0, 3),
        st.sampled_from([None, A, B]),
        st.sampled_from([None, "llama", "qwen"]),
        st.sampled_from([None, 20.0, 50.0]),
        st.sampled_from([None, None, "Hel", "Help me"]),
    ),
    max_size=40,
)
OPENINGS: list[tuple[str, ...] | None] = [("Hello",), ("Be kind.", "Help me"), (), None]
"""Of the prompts of a history, by their numbers."""


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS)
def test_any_history_agrees_with_a_dict(
    steps: list[tuple[str, int, bytes | None, str | None, float | None, str | None]],
) -> None:
    now = 1e9
    epochs, tally = Epochs(MemoryEpochLog()), Tally()
    tier = EntryTier(Disk(1 << 22), time.monotonic, tally.add)
    cache = ResponseCache(SmallStore(1 << 22), [tier], epochs=epochs, wall=lambda: now, tally=tally)
    begun = {number: (cache.begin(), 0) for number in range(4)}
    kept: dict[tuple[int, bytes, str], tuple[int, float]] = {}
    """What of each key was stored last: how much had been forgotten when it was begun, and when it was stored."""
    forgotten: list[tuple[bytes | None, str | None, float | None, str | None]] = []

    def is_forgotten(place: tuple[int, bytes, str], begun: int, stored_at: float) -> bool:
        number, scope, model = place
        texts = OPENINGS[number]
        for at, (its, of, before, prefix) in enumerate(forgotten):
            about = its in {None, scope} and of in {None, model}
            about = about and (prefix is None or texts is None or any(text.startswith(prefix) for text in texts))
            if about and (at >= begun if before is None else stored_at < before):
                return True
        return False

    for name, number, scope, model, seconds, prefix in steps:
        place = (number, scope or A, model or "llama")
        if name == "begin":
            begun[number] = (cache.begin(), len(forgotten))
        elif name == "keep":
            stamp, since = begun[number]
            taken = cache.keep(key_of(*place), answer(stamp, place[2], stored_at=now, openings=OPENINGS[number]))
            assert taken is not is_forgotten(place, since, now)
            if taken:
                kept[place] = (since, now)
            assert cache.flush(PATIENT)
        elif name == "forget":
            cache.forget(scope, model=model, older_than=seconds, prefix=prefix)
            forgotten.append((scope, model, None if seconds is None else now - seconds, prefix))
            lies = {key for walk in cache._walks() for key in walk.keys(b"")}
            assert lies <= {store_key(key_of(*one)) for one, when in kept.items() if not is_forgotten(one, *when)}
        elif name == "later":
            now += 15.0
        elif name == "sweep":
            cache.sweep(RULES.useful)
        for near in (True, False):
            hit = (cache.lookup if near else cache.lookup_slower)(key_of(*place), RULES)
            since, stored_at = kept.get(place, (0, -1e9))
            gone = now - stored_at > RULES.useful or is_forgotten(place, since, stored_at)
            assert (hit is None) is gone
            assert hit is None or (hit.entry.stored_at, hit.age) == (stored_at, now - stored_at)
    cache.close()


# --- disk -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encrypted", [False, True])
def test_answers_outlive_the_process(caches: Caches, encrypted: bool) -> None:
    keys = EntryKeys(b"k" * 32) if encrypted else None
    cache = caches.open(keys)
    entry = keep(cache, key_of(1), answer(cache.begin(), body=b"secret words"))
    assert any(b"secret" in path.read_bytes() for path in caches.folder.rglob("*.seg")) is not encrypted
    cache = caches.open(keys)
    assert cache.lookup(key_of(1), RULES) is None
    hit = cache.lookup_slower(key_of(1), RULES)
    assert hit is not None
    assert (hit.entry, hit.tier) == (entry, Tier.DISK)
    again = cache.lookup(key_of(1), RULES)
    assert again is not None, "it is in memory now"
    assert (again.entry, again.tier) == (entry, Tier.HOST)
    if encrypted:
        assert caches.open().lookup_slower(key_of(1), RULES) is None
        assert caches.open(EntryKeys(b"l" * 32)).lookup_slower(key_of(1), RULES) is None


def test_what_was_forgotten_is_so_after_a_restart(caches: Caches) -> None:
    cache = caches.open()
    stamp = cache.begin()
    for scope in (A, B):
        keep(cache, key_of(1, scope))
    # Forgotten as by a process that ends before it has removed anything.
    assert cache.forget(A, seconds=-1).complete is False
    assert cache.stores()[Tier.DISK].entries == 2
    cache = caches.open()
    assert found(cache, key_of(1)) is None
    assert found(cache, key_of(1, B)) is not None
    assert cache.stores()[Tier.DISK].entries == 1, "removed when it was met"
    assert cache.keep(key_of(1), answer(stamp)) is False


def test_without_the_log_of_what_was_forgotten_nothing_is_read(caches: Caches) -> None:
    keep(caches.open(), key_of(1))
    caches.close()
    (caches.folder / "forgotten").unlink()
    assert found(caches.open(), key_of(1)) is None


def test_a_damaged_disk_is_a_miss(caches: Caches) -> None:
    keep(caches.open(), key_of(1))
    caches.close()
    for path in caches.folder.rglob("*.seg"):
        data = bytearray(path.read_bytes())
        data[-20] ^= 1
        path.write_bytes(data)
    cache = caches.open()
    assert found(cache, key_of(1)) is None
    keep(cache, key_of(1))
    assert found(cache, key_of(1)) is not None


def test_an_older_answer_of_a_slower_tier_does_not_drive_a_newer_one_out(caches: Caches) -> None:
    cache = caches.open()
    keep(cache, key_of(1), answer(cache.begin(), stored_at=time.time() - 20, body=b"old"))
    newer = answer(cache.begin(), body=b"new")
    # As if it came while the disk was asked, and was not written there yet.
    cache._remember(key_of(1), newer)
    hit = cache.lookup_slower(key_of(1), RULES)
    assert hit is not None
    assert hit.entry.body == b"old"
    near = cache.lookup(key_of(1), RULES)
    assert near is not None
    assert near.entry == newer


class Broken(DiskStore):
    """A disk that fails when it is told."""

    broken = False

    def read(self, key: ChunkKey, limit: int | None = None) -> bytes | None:
        self._check()
        return super().read(key, limit)

    def write(self, key: ChunkKey, pieces: Sequence[Buffer], info: FrameInfo) -> bool:
        self._check()
        return super().write(key, pieces, info)

    def _check(self) -> None:
        if self.broken:
            raise StoreError("as told")


def test_a_tier_that_fails_is_a_miss_and_one_line_each_way(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    now = 0.0
    store = Broken(tmp_path / "entries", capacity=8 << 20)
    tally = Tally()
    tier = EntryTier(store, lambda: now, tally.add)
    cache = ResponseCache(SmallStore(1 << 20), [tier], epochs=Epochs(MemoryEpochLog()), tally=tally)
    keep(cache, key_of(1))
    store.broken = True
    for number in range(20):
        assert cache.lookup_slower(key_of(number), RULES) is None
        keep(cache, key_of(number))
        assert cache.lookup(key_of(number), RULES) is not None
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    store.broken = False
    now = 100.0
    keep(cache, key_of(50))
    assert cache.lookup_slower(key_of(50), RULES) is not None
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    cache.close()


def test_the_newest_of_several_tiers_is_served(tmp_path: Path) -> None:
    stores = [SmallStore(1 << 20) for _ in range(2)]
    tally = Tally()
    tiers = [EntryTier(store, time.monotonic, tally.add) for store in stores]
    cache = ResponseCache(SmallStore(1 << 20), tiers, epochs=Epochs(MemoryEpochLog()), tally=tally)
    now = time.time()
    for store, age in zip(stores, (80, 70), strict=True):
        entry = answer(cache.begin(), stored_at=now - age)
        store.write(store_key(key_of(1)), [encode_entry(key_of(1), entry)], FrameInfo())
    hit = cache.lookup_slower(key_of(1), RULES, now=now)
    assert hit is not None
    assert (hit.age, hit.freshness) == (70, Freshness.STALE_WHILE_REVALIDATE)
    cache.close()
