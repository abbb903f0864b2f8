"""Similarity search: exact answers, bounds, removal for good, and graphs that only ever cost recall."""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from shutil import rmtree

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from numpy.typing import NDArray

from cache import vector_slots as fmt
from cache.similarity import ENTRY_BYTES, Limits, Match, SimilarityIndex
from cache.store import StoreError
from cache.vector_file import NAME
from cache.vector_graph import Candidates, NewNodes, Nodes, usearch_nodes
from cache.vector_rows import BLOCK_BYTES, SCALE, Floats, similarities, to_row
from tests.bench.similarity import searches
from tests.test_vector_file import file_size_limit

LARGE = Limits(entries=1_000_000, bytes=1 << 40)
DIM = 8


def key(*parts: object) -> bytes:
    """A digest, as partitions and ids are."""
    return hashlib.sha256(repr(parts).encode()).digest()


def unit(vectors: Floats) -> Floats:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=-1, keepdims=True), np.float32)


def random_vectors(count: int, dim: int, seed: int = 0) -> Floats:
    return unit(np.random.default_rng(seed).standard_normal((count, dim), dtype=np.float32))


def ids(matches: Sequence[Match]) -> list[bytes]:
    return [match.id for match in matches]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


# --- search ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 1_500])
def test_it_finds_what_a_matrix_finds(count: int) -> None:
    index = SimilarityIndex(64, LARGE)
    vectors = random_vectors(count, 64)
    for number, vector in enumerate(vectors):
        assert index.add(key("p"), key(number), vector, b"meta %d" % number) is True
    names = {key(number): number for number in range(count)}
    kept = np.rint(vectors * SCALE).astype(np.float64) / SCALE
    for query in random_vectors(10, 64, seed=1):
        truth = kept @ query.astype(np.float64)
        assert np.abs(truth - vectors @ query).max() < 5e-5
        best = -np.sort(-truth)
        found = index.search(key("p"), query, 20)
        # Two that differ by less than a float32 tells may change places.
        assert [match.similarity for match in found] == pytest.approx(best[:20], abs=1e-6)
        assert truth[[names[match.id] for match in found]] == pytest.approx(best[:20], abs=1e-6)
        assert all(match.meta == b"meta %d" % names[match.id] for match in found)
        floor = float(best[min(5, count - 1)]) + 1e-3
        assert len(index.search(key("p"), query, 20, floor)) == np.count_nonzero(truth >= floor)
    index.check()


@pytest.mark.parametrize("count", [4_095, 4_096, 4_097, 9_000])
def test_blocks_make_no_difference(count: int) -> None:
    rows = np.random.default_rng(5).integers(-SCALE, SCALE, (count, 384), endpoint=True).astype(np.int16) // 20
    query = random_vectors(1, 384)[0]
    assert BLOCK_BYTES // (4 * 384) == 4_096
    expected = rows.astype(np.float64) @ query / SCALE
    assert np.abs(expected).max() < 1, "or it would be cut off"
    assert np.abs(similarities(rows, query) - expected).max() < 1e-6


def test_a_vector_is_most_similar_to_itself() -> None:
    index = SimilarityIndex(384, LARGE)
    vectors = random_vectors(50, 384)
    for number, vector in enumerate(vectors):
        index.add(key("p"), key(number), vector)
    for number, vector in enumerate(vectors):
        [match] = index.search(key("p"), vector)
        assert match.id == key(number)
        assert match.similarity == pytest.approx(1, abs=3e-5)
        assert match.similarity <= 1


def test_a_partition_sees_only_itself() -> None:
    index = SimilarityIndex(DIM, LARGE)
    vector = random_vectors(1, DIM)[0]
    keys = [key("scope")[:16] + bytes(16), key("scope")[:16], key("scope")[:16] + bytes(15), key("other")]
    for number, partition in enumerate(keys):
        index.add(partition, key(number), vector)
    for number, partition in enumerate(keys):
        assert ids(index.search(partition, vector, 10)) == [key(number)]
    assert index.search(key("nobody's"), vector, 10) == []
    stats = index.stats()
    assert (stats.entries, stats.partitions, stats.scopes) == (4, 4, 2)


def test_equals_come_by_their_ids_also_where_not_all_are_wanted() -> None:
    index = SimilarityIndex(DIM, LARGE)
    same, other = np.eye(DIM, dtype=np.float32)[:2]
    names = [key(number) for number in range(30)]
    index.add(key("p"), key("near"), unit(9 * same + other))
    for name in names:
        index.add(key("p"), name, other)
    assert ids(index.search(key("p"), unit(9 * same + other), 5)) == [key("near"), *sorted(names)[:4]]


def test_an_id_has_one_place() -> None:
    index = SimilarityIndex(DIM, LARGE)
    one, two = random_vectors(2, DIM)
    index.add(key("p"), key(1), one, b"old")
    index.add(key("q"), key(1), two, b"new")
    assert len(index) == 1
    assert index.search(key("p"), one) == []
    assert [match.meta for match in index.search(key("q"), one)] == [b"new"]
    index.check()


def test_what_is_no_vector_is_refused() -> None:
    index = SimilarityIndex(DIM, LARGE)
    good = random_vectors(1, DIM)[0]
    index.add(key("p"), key(1), good)
    bad = [good[:7], good * 2, good * 0, good * np.nan, good[np.newaxis], np.full(DIM, np.inf, np.float32)]
    for vector in bad:
        with pytest.raises(ValueError, match="a vector of"):
            index.add(key("p"), key(1), vector)
        with pytest.raises(ValueError, match="a vector of"):
            index.search(key("p"), vector)
    for partition, name, meta in [(b"p" * 15, key(1), b""), (b"p" * 33, key(1), b""), (key("p"), b"1", b"")]:
        with pytest.raises(ValueError, match="key of"):
            index.add(partition, name, good, meta)
    with pytest.raises(ValueError, match="metadata"):
        index.add(key("p"), key(1), good, bytes(1_025))
    with pytest.raises(ValueError, match="the 0 best"):
        index.search(key("p"), good, 0)
    assert ids(index.search(key("p"), good)) == [key(1)], "what was there before is still there"
    for dim, scope_size, max_meta in [(0, 16, 9), (8, 17, 9), (8, 16, 1 << 16)]:
        with pytest.raises(ValueError, match="vectors of"):
            SimilarityIndex(dim, LARGE, scope_size=scope_size, max_meta=max_meta)
    with pytest.raises(ValueError, match="below 1"):
        Limits(entries=0, bytes=1)


# --- bounds ------------------------------------------------------------------------------------------------


def test_the_one_longest_unused_makes_room_and_is_told() -> None:
    told: list[bytes] = []
    index = SimilarityIndex(DIM, Limits(entries=3, bytes=1 << 20), evicted=told.append, clock=Clock())
    vectors = random_vectors(6, DIM)
    for number in range(3):
        index.add(key("p", number), key(number), vectors[number])
    index.touch(key(0))
    index.touch(key("nobody"))
    for number in range(3, 5):
        assert index.add(key("p"), key(number), vectors[number]) is True
    assert told == [key(1), key(2)]
    assert [key(number) in index for number in range(5)] == [True, False, False, True, True]
    assert index.stats().evictions == 2
    assert index.stats().partitions == 2
    index.check()


def test_bytes_are_bounded_and_metadata_counts() -> None:
    size = ENTRY_BYTES + 2 * DIM
    index = SimilarityIndex(DIM, Limits(entries=100, bytes=10 * size), clock=Clock())
    vectors = random_vectors(40, DIM)
    for number, vector in enumerate(vectors):
        assert index.add(key(number), key(number), vector, bytes(number)) is True
        assert index.stats().bytes <= 10 * size
    assert len(index) == 9
    small = SimilarityIndex(DIM, Limits(entries=100, bytes=size + 5))
    assert small.add(key("p"), key(1), vectors[0], bytes(6)) is False
    assert small.add(key("p"), key(1), vectors[0], bytes(5)) is True
    assert small.add(key("p"), key(2), vectors[0], bytes(5)) is True
    assert len(small) == 1


@pytest.mark.parametrize("bound", ["scope_entries", "scope_bytes"])
def test_a_scope_at_its_bound_costs_nobody_else(bound: str) -> None:
    size = ENTRY_BYTES + 2 * DIM
    limit = {"scope_entries": 4} if bound == "scope_entries" else {"scope_bytes": 4 * size + size // 2}
    told: list[bytes] = []
    index = SimilarityIndex(DIM, Limits(entries=100, bytes=100 * size, **limit), evicted=told.append, clock=Clock())
    vector = random_vectors(1, DIM)[0]
    theirs, mine = key("theirs")[:16], key("mine")[:16]
    for number in range(3):
        index.add(theirs + key(number)[:16], key("theirs", number), vector)
    for number in range(10):
        assert index.add(mine + key(number)[:16], key("mine", number), vector) is True
    assert told == [key("mine", number) for number in range(6)]
    assert index.count(mine) == 4
    assert index.count(theirs) == 3
    index.check()


@pytest.mark.parametrize("policy", ["lru", "s3_fifo", "sieve", "gdsf"])
@given(
    history=st.lists(
        st.tuples(
            st.sampled_from(["add", "add", "add", "touch", "remove", "forget"]), st.integers(0, 40), st.integers(0, 3)
        ),
        max_size=60,
    )
)
@settings(max_examples=25, deadline=None, database=None)
def test_no_history_goes_over_a_bound(policy: str, history: list[tuple[str, int, int]]) -> None:
    told: list[bytes] = []
    size = ENTRY_BYTES + 2 * DIM + 30
    limits = Limits(entries=9, bytes=8 * size, scope_entries=4, scope_bytes=3 * size)
    index = SimilarityIndex(DIM, limits, policy=policy, evicted=told.append, clock=Clock())
    here: set[bytes] = set()
    for name, number, scope in history:
        partition = bytes([scope]) * 16 + bytes([number % 2]) * 16
        if name == "add":
            assert index.add(partition, key(number), np.eye(DIM, dtype=np.float32)[0], bytes(number)) is True
            here.add(key(number))
        elif name == "touch":
            index.touch(key(number))
        elif name == "remove":
            assert index.remove(key(number)) is (key(number) in here)
            here.discard(key(number))
        else:
            before = {
                match.id for rest in range(2) for match in everything(index, bytes([scope]) * 16 + bytes([rest]) * 16)
            }
            assert index.forget(bytes([scope])) == len(before)
            here -= before
        here -= {*told}
        told.clear()
        assert {one for one in map(key, range(41)) if one in index} == here
        assert len(index) <= 9
        assert index.stats().bytes <= limits.bytes
        for one in range(4):
            assert index.count(bytes([one]) * 16) <= 4
        index.check()


def everything(index: SimilarityIndex, partition: bytes) -> list[Match]:
    return index.search(partition, np.eye(DIM, dtype=np.float32)[0], 100)


def test_a_full_file_keeps_the_rest_in_memory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    limits = Limits(entries=100, bytes=1 << 20, file_bytes=20_000)
    index = SimilarityIndex(DIM, limits, clock=Clock())
    index.open(tmp_path, "an embedder")
    vectors = random_vectors(30, DIM)
    for number, vector in enumerate(vectors):
        index.add(key("p"), key(number), vector)
    assert len(index.search(key("p"), vectors[0], 50)) == 30
    assert (tmp_path / NAME).stat().st_size == index.stats().file_bytes <= 20_000
    index.close()
    again = SimilarityIndex(DIM, limits, clock=Clock())
    kept = again.open(tmp_path, "an embedder")
    assert kept == (20_000 - 4_096) // 1_136
    assert all(key(number) in again for number in range(kept))
    again.close()
    assert [record.getMessage() for record in caplog.records] == [
        f"the file in {tmp_path} is full: further vectors are kept in memory alone"
    ]


# --- the file ----------------------------------------------------------------------------------------------


def test_it_is_there_again_in_the_order_of_use(tmp_path: Path) -> None:
    index = SimilarityIndex(DIM, LARGE, clock=Clock())
    assert index.open(tmp_path, "an embedder") == 0
    vectors = random_vectors(10, DIM)
    for number, vector in enumerate(vectors):
        index.add(key("p"), key(number), vector, b"%d" % number)
    index.touch(key(2))
    index.remove(key(0))
    index.add(key("p"), key("in its slot"), vectors[0])
    index.close()
    told: list[bytes] = []
    size = ENTRY_BYTES + 2 * DIM + 1
    again = SimilarityIndex(DIM, Limits(entries=10, bytes=3 * size), evicted=told.append, clock=Clock())
    assert again.open(tmp_path, "an embedder") == 3
    assert told == [key(number) for number in (1, 3, 4, 5, 6, 7, 8)]
    assert [key(2) in again, key(9) in again, key("in its slot") in again] == [True, True, True]
    again.close()


def test_searches_answer_the_same_after_it_was_opened_again(tmp_path: Path) -> None:
    index = SimilarityIndex(64, LARGE)
    index.open(tmp_path, "an embedder")
    vectors = random_vectors(300, 64)
    for number, vector in enumerate(vectors):
        index.add(key("p", number % 3), key(number), vector, b"%d" % number)
    answers = [index.search(key("p", number % 3), vector, 10) for number, vector in enumerate(vectors)]
    index.close()
    again = SimilarityIndex(64, LARGE)
    assert again.open(tmp_path, "an embedder") == 300
    for number, (vector, before) in enumerate(zip(vectors, answers, strict=True)):
        found = again.search(key("p", number % 3), vector, 10)
        assert ids(found) == ids(before)
        assert [match.meta for match in found] == [match.meta for match in before]
    again.close()


def test_what_is_forgotten_is_nowhere_even_without_a_clean_end(tmp_path: Path) -> None:
    index = SimilarityIndex(DIM, LARGE)
    index.open(tmp_path, "an embedder")
    vectors = random_vectors(60, DIM)
    scopes = [key("scope", number)[:16] for number in range(3)]
    for number, vector in enumerate(vectors):
        index.add(scopes[number % 3] + key(number % 2)[:16], key(number), vector, b"canary %d." % number)
    assert index.count(scopes[0]) == 20
    assert index.count(b"") == 60
    assert index.forget(scopes[0]) == 20
    assert index.forget(scopes[0]) == 0
    assert index.forget(scopes[1] + key(0)[:16]) == 10
    assert index.remove(key(2)) is True
    assert index.remove(key(2)) is False
    index.check()
    gone = [number for number in range(60) if number % 3 == 0 or (number % 3, number % 2) == (1, 0) or number == 2]
    content = (tmp_path / NAME).read_bytes()
    for number in range(60):
        assert (key(number) in index) is (number not in gone)
        assert (b"canary %d." % number in content) is (number not in gone)
        assert (key(number) in content) is (number not in gone)
    crash(index)
    again = SimilarityIndex(DIM, LARGE)
    assert again.open(tmp_path, "an embedder") == 60 - len(gone)
    for number, vector in enumerate(vectors):
        found = ids(again.search(scopes[number % 3] + key(number % 2)[:16], vector, 100))
        assert not set(found) & {key(other) for other in gone}
    again.close()


@pytest.mark.parametrize(("used", "meta"), [(1, b"new"), (9, b"old")])
def test_of_one_that_was_replaced_and_is_back_the_newer_counts(tmp_path: Path, used: int, meta: bytes) -> None:
    index = SimilarityIndex(DIM, LARGE, max_meta=10)
    index.open(tmp_path, "an embedder")
    old, new = random_vectors(2, DIM)
    index.add(key("p"), key(0), old)
    index.add(key("p"), key(1), new, b"new")
    crash(index)
    layout = fmt.layout(DIM, 10, "an embedder")
    with (tmp_path / NAME).open("ab") as file:
        file.write(fmt.encode_slot(layout, 2, fmt.Record(used, key("q"), key(1), b"old", to_row(old))))
    for _ in range(2):
        again = SimilarityIndex(DIM, LARGE, max_meta=10)
        assert again.open(tmp_path, "an embedder") == 2
        again.check()
        found = [*again.search(key("p"), new, 1, 0.99), *again.search(key("q"), old, 1, 0.99)]
        assert [match.meta for match in found] == [meta]
        crash(again)
    content = (tmp_path / NAME).read_bytes()
    assert (b"old" in content) is (meta == b"old")
    assert (b"new" in content) is (meta == b"new")


def crash(index: SimilarityIndex) -> None:
    """End it as a killed process does."""
    file = index._keeper._file
    assert file is not None
    file.close()


def test_a_disk_that_is_full_costs_no_answer(tmp_path: Path) -> None:
    index = SimilarityIndex(DIM, LARGE)
    index.open(tmp_path, "an embedder")
    vectors = random_vectors(10, DIM)
    with file_size_limit(6_000):
        for number, vector in enumerate(vectors):
            assert index.add(key("p"), key(number), vector) is True
    assert len(index.search(key("p"), vectors[0], 20)) == 10
    assert index.forget(b"") == 10
    index.close()


def test_a_directory_that_is_taken_leaves_it_in_memory(tmp_path: Path) -> None:
    first, second = SimilarityIndex(DIM, LARGE), SimilarityIndex(DIM, LARGE)
    first.open(tmp_path, "an embedder")
    with pytest.raises(StoreError, match="in use"):
        second.open(tmp_path, "an embedder")
    vector = random_vectors(1, DIM)[0]
    assert second.add(key("p"), key(1), vector) is True
    assert ids(second.search(key("p"), vector)) == [key(1)]
    second.close()
    first.close()


# --- any history -------------------------------------------------------------------------------------------

SIDES = np.concatenate([np.eye(4), -np.eye(4), np.array([[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1]]) / 2])
PARTITIONS = [bytes([scope]) * 16 + rest for scope in range(2) for rest in (b"", bytes(16))]
NUMBERS = st.integers(0, 29)


class History(RuleBasedStateMachine):
    """Against a dict; the vectors are such that float32 is exact."""

    new_nodes: NewNodes | None = None
    exact_entries = 50_000

    @initialize()
    def begin(self) -> None:
        self.directory = Path(tempfile.mkdtemp())
        self.model: dict[bytes, tuple[bytes, int, bytes]] = {}
        self.index = self.new()

    def new(self) -> SimilarityIndex:
        index = SimilarityIndex(4, LARGE, max_meta=20, exact_entries=self.exact_entries, new_nodes=self.new_nodes)
        assert index.open(self.directory, "an embedder") == len(self.model)
        return index

    @rule(number=NUMBERS, partition=st.sampled_from(PARTITIONS), side=st.integers(0, 10), meta=st.binary(max_size=20))
    def add(self, number: int, partition: bytes, side: int, meta: bytes) -> None:
        assert self.index.add(partition, key(number), SIDES[side].astype(np.float32), meta) is True
        self.model[key(number)] = partition, side, meta

    @rule(number=NUMBERS)
    def remove(self, number: int) -> None:
        assert self.index.remove(key(number)) is (self.model.pop(key(number), None) is not None)

    @rule(number=NUMBERS)
    def touch(self, number: int) -> None:
        self.index.touch(key(number))

    @rule(prefix=st.sampled_from([*PARTITIONS, PARTITIONS[0][:16], PARTITIONS[-1][:1]]))
    def forget(self, prefix: bytes) -> None:
        gone = [name for name, (partition, _, _) in self.model.items() if partition.startswith(prefix)]
        assert self.index.count(prefix) == self.index.forget(prefix) == len(gone)
        for name in gone:
            del self.model[name]

    @rule(
        partition=st.sampled_from(PARTITIONS),
        side=st.integers(0, 10),
        k=st.integers(1, 12),
        floor=st.sampled_from([-1.0, 0.25, 0.75]),
    )
    def search(self, partition: bytes, side: int, k: int, floor: float) -> None:
        expected = []
        for name, (where, other, meta) in self.model.items():
            similarity = float(SIDES[side] @ SIDES[other])
            if where == partition and similarity >= floor:
                expected.append((-similarity, name, meta))
        found = self.index.search(partition, SIDES[side].astype(np.float32), k, floor)
        assert [(-round(match.similarity, 3), match.id, match.meta) for match in found] == sorted(expected)[:k]

    @rule(clean=st.booleans())
    def open_again(self, *, clean: bool) -> None:
        if clean:
            self.index.close()
        else:
            crash(self.index)
        self.index = self.new()

    @rule(limit=st.integers(1, 20))
    def work(self, limit: int) -> None:
        self.index.work(limit)

    @invariant()
    def books_agree(self) -> None:
        if hasattr(self, "index"):
            self.index.check()
            assert len(self.index) == len(self.model)

    def teardown(self) -> None:
        self.index.close()
        rmtree(self.directory)


HISTORIES = settings(
    max_examples=40, stateful_step_count=40, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)


def test_any_history_is_that_of_a_dict() -> None:
    run_state_machine_as_test(History, settings=HISTORIES)


# --- large partitions --------------------------------------------------------------------------------------


class Graphed(History):
    """All of a graph of a few entries is searched: it must be exact too."""

    exact_entries = 4


def test_any_history_with_graphs_is_that_of_a_dict() -> None:
    pytest.importorskip("usearch")
    run_state_machine_as_test(Graphed, settings=HISTORIES)


@pytest.fixture(scope="module")
def clustered() -> tuple[Floats, Floats]:
    """Vectors of near duplicates, and questions near to some of them."""
    random = np.random.default_rng(3)
    middles = random_vectors(40, 64)
    vectors = unit(middles[np.arange(2_000) % 40] + 0.05 * random.standard_normal((2_000, 64), np.float32))
    return vectors, unit(vectors[::20] + 0.02 * random.standard_normal((100, 64), np.float32))


def graphed(vectors: Floats, exact_entries: int = 500) -> SimilarityIndex:
    index = SimilarityIndex(64, LARGE, exact_entries=exact_entries)
    for number, vector in enumerate(vectors):
        index.add(key("p"), key(number), vector)
    return index


def work_off(index: SimilarityIndex, limit: int = 500) -> None:
    for _ in range(1_000):
        if not index.work(limit):
            return
    raise AssertionError("it does not end")


def recall(index: SimilarityIndex, vectors: Floats, queries: Floats, gone: frozenset[int] = frozenset()) -> float:
    """Of the ten best, but for what rounding puts in another order; similarities are right whoever found them."""
    hits = 0
    for query in queries:
        truth = vectors @ query
        truth[list(gone)] = -2
        found = index.search(key("p"), query, 10)
        names = {key(number): number for number in np.argsort(-truth)[:50].tolist()}
        best = {key(number) for number in np.argsort(-truth)[:10].tolist()}
        for match in found:
            if match.id in names:
                assert match.similarity == pytest.approx(float(truth[names[match.id]]), abs=2e-4)
        hits += len(best & set(ids(found)))
    return hits / (10 * len(queries))


def test_a_graph_holds_no_metadata_of_what_is_gone() -> None:
    pytest.importorskip("usearch")
    index = SimilarityIndex(64, LARGE, exact_entries=5)
    for number, vector in enumerate(random_vectors(20, 64)):
        index.add(key("p"), key(number), vector, b"question %d" % number)
    work_off(index)
    entry = index._entries[key(3)]
    assert index.remove(key(3))
    assert (entry.meta, index.stats().graphs) == (b"", 1)
    index.check()


def test_a_graph_finds_the_same_in_slices_while_entries_come_and_go(clustered: tuple[Floats, Floats]) -> None:
    pytest.importorskip("usearch")
    vectors, queries = clustered
    index = graphed(vectors[:1_500])
    stats = index.stats()
    assert (stats.graphs, stats.waiting) == (1, 1_500)
    assert recall(index, vectors[:1_500], queries) > 0.99, "exact until it is whole"
    assert index.work(100) is True
    assert index.stats().waiting == 1_400
    work_off(index)
    assert index.stats().waiting == 0
    before = index.stats().bytes
    assert recall(index, vectors[:1_500], queries) > 0.97
    for number in range(1_500, 2_000):
        index.add(key("p"), key(number), vectors[number])
    assert recall(index, vectors, queries) > 0.97, "those that wait are searched beside it"
    work_off(index)
    assert index.stats().bytes > before
    gone = frozenset(range(0, 2_000, 3))
    for number in gone:
        index.remove(key(number))
    assert index.work(1) is True, "so much is gone that another is built"
    for query in queries:
        assert not {key(number) for number in gone} & set(ids(index.search(key("p"), query, 50)))
    work_off(index)
    assert recall(index, vectors, queries, gone) > 0.97
    assert len(index.search(key("p"), queries[0], 1_400)) == 1_333, "more than the graph is asked for"
    index.check()
    index.forget(b"")
    stats = index.stats()
    assert (stats.graphs, stats.bytes, stats.waiting) == (0, 0, 0)


def test_a_graph_is_given_up_when_the_partition_is_small_again(clustered: tuple[Floats, Floats]) -> None:
    pytest.importorskip("usearch")
    vectors, queries = clustered
    index = graphed(vectors[:600])
    work_off(index)
    for number in range(249, 600):
        assert index.stats().graphs == 1
        index.remove(key(number))
    assert index.stats().graphs == 0
    assert recall(index, vectors[:249], queries) > 0.99
    index.check()


def test_a_graph_that_would_cost_entries_is_not_begun(clustered: tuple[Floats, Floats]) -> None:
    vectors, _ = clustered
    n_bytes = 600 * (ENTRY_BYTES + 128)
    for limits in (
        Limits(entries=1_000, bytes=n_bytes + 1_000),
        Limits(entries=1_000, bytes=1 << 30, scope_bytes=n_bytes + 1_000),
    ):
        index = SimilarityIndex(64, limits, exact_entries=500)
        for number, vector in enumerate(vectors[:600]):
            index.add(key("p"), key(number), vector)
        stats = index.stats()
        assert (stats.graphs, stats.evictions) == (0, 0)
        index.check()


def test_neighbours_that_are_all_gone_do_not_hide_the_others(clustered: tuple[Floats, Floats]) -> None:
    pytest.importorskip("usearch")
    vectors, _ = clustered
    index = graphed(vectors)
    work_off(index)
    # All that a graph names for this question is of one cluster; it is far from worn when that is gone.
    cluster = range(0, 2_000, 40)
    query = unit(vectors[0::40].mean(axis=0))
    near = [int(number) for number in np.argsort(-(vectors @ query))[:300]]
    for number in near:
        index.remove(key(number))
    assert set(cluster) <= set(near)
    found = index.search(key("p"), query, 1)
    assert len(found) == 1
    assert found[0].id not in {key(number) for number in near}


def test_the_benchmark_runs(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("usearch")
    searches(argparse.Namespace(exact=[50], graph=[60], queries=20))
    assert "clustered" in capsys.readouterr().out


class Failing:
    """Nodes of usearch that stop working."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self.works = True

    def add(self, keys: NDArray[np.uint64], vectors: NDArray[np.int8], *, threads: int) -> object:
        return self._use().add(keys, vectors, threads=threads)

    def search(self, vectors: NDArray[np.int8], count: int, *, threads: int) -> Candidates:
        return self._use().search(vectors, count, threads=threads)

    @property
    def memory_usage(self) -> int:
        return self._nodes.memory_usage

    def _use(self) -> Nodes:
        if not self.works:
            raise RuntimeError("no more")
        return self._nodes


@pytest.mark.parametrize("when", ["made", "built", "searched"])
def test_whatever_usearch_fails_at_the_search_goes_on(
    clustered: tuple[Floats, Floats], caplog: pytest.LogCaptureFixture, when: str
) -> None:
    pytest.importorskip("usearch")
    vectors, queries = clustered
    made: list[Failing] = []

    def new_nodes(dim: int) -> Failing:
        if when == "made":
            raise RuntimeError("no more")
        made.append(Failing(usearch_nodes()(dim)))
        return made[-1]

    index = SimilarityIndex(64, LARGE, exact_entries=500, new_nodes=new_nodes)
    for number, vector in enumerate(vectors[:700]):
        index.add(key("p", number % 2 * (number < 100)), key(number), vector)
    index.work(64)
    if when == "searched":
        work_off(index)
    for nodes in made:
        nodes.works = False
    index.work(64)
    best = key(int(np.argmax(vectors[100:700] @ queries[0])) + 100)
    for _ in range(3):
        assert best in ids(index.search(key("p", 0), queries[0], 3))
    for number, vector in enumerate(vectors[700:]):
        index.add(key("p", 0), key("more", number), vector)
    assert index.work(64) is False
    assert index.stats().graphs == 0
    index.check()
    assert [record.getMessage() for record in caplog.records] == [
        "partitions above 500 entries are searched exactly, which is slower: RuntimeError: no more"
    ]


def test_without_usearch_all_is_searched_exactly(
    clustered: tuple[Floats, Floats], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "usearch.index", None)
    vectors, queries = clustered
    index = graphed(vectors)
    assert index.work() is False
    assert recall(index, vectors, queries) > 0.99
    [record] = caplog.records
    assert record.getMessage().startswith("partitions above 500 entries are searched exactly, which is slower: ")


def test_a_file_with_a_large_partition_gets_its_graph_back(tmp_path: Path, clustered: tuple[Floats, Floats]) -> None:
    pytest.importorskip("usearch")
    vectors, queries = clustered
    index = SimilarityIndex(64, LARGE, exact_entries=500)
    index.open(tmp_path, "an embedder")
    for number, vector in enumerate(vectors[:800]):
        index.add(key("p"), key(number), vector)
    index.close()
    again = SimilarityIndex(64, LARGE, exact_entries=500)
    assert again.open(tmp_path, "an embedder") == 800
    assert again.stats().waiting == 800
    work_off(again)
    assert recall(again, vectors[:800], queries) > 0.97
    again.check()
    again.close()
