"""Disk store: the contract of stores, bounds in bytes, reopening, threads, and disks that fail."""

from __future__ import annotations

import itertools
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cache.disk_files import segment_name
from cache.disk_segment import HEADER_SIZE, extent
from cache.disk_store import DiskStore
from cache.eviction_news import Evicted
from cache.store import ChunkKey, FrameInfo, StoreError
from policies.eviction import EVICTION_POLICIES, make_eviction
from policies.kv_policy import KvPolicy
from policies.types import Tier
from tests.entry_store_contract import EntryStoreContract, NewEntries
from tests.local_store_contract import LocalStoreContract, NewLocal, Wall
from tests.store_contract import ALONE, NewStore, StoreContract, chunk_key, frame_of, in_threads, is_whole, read

ROOT = Path(__file__).parent.parent
CAPACITY = 1 << 20


def on_disk(directory: Path) -> int:
    """Bytes that a directory and all in it take up."""
    return sum(path.lstat().st_blocks * 512 for path in [directory, *directory.rglob("*")])


def files(directory: Path, kind: str) -> list[Path]:
    return sorted(directory.glob(f"*.{kind}"))


def write(store: DiskStore, *keys: ChunkKey, size: int = 20_000) -> None:
    for key in keys:
        assert store.write(key, [frame_of(key, size)], ALONE) is True


def kept(store: DiskStore, keys: list[ChunkKey], size: int = 20_000) -> list[ChunkKey]:
    """Those that are here, all of them whole."""
    here = [key for key in keys if store.contains([key])]
    for key in here:
        assert read(store, key, size) == frame_of(key, size)
    return here


class TestDiskStoreOfEntries(EntryStoreContract):
    @pytest.fixture
    def new_entries(self, tmp_path: Path) -> NewEntries:
        return lambda capacity: DiskStore(tmp_path / "entries", capacity=capacity)


class TestDiskStore(StoreContract):
    has_quotas: ClassVar[bool] = True
    examples: ClassVar[int] = 25

    @pytest.fixture(params=sorted(EVICTION_POLICIES))
    def new_store(self, tmp_path: Path, request: pytest.FixtureRequest) -> NewStore:
        numbers = itertools.count()

        def new(capacity: int, tenant_bytes: int | None = None) -> DiskStore:
            policy = make_eviction(request.param, default_quota=tenant_bytes)
            path = tmp_path / str(next(numbers))
            return DiskStore(path, capacity=capacity, policy=policy, tenant_bytes=tenant_bytes)

        return new


class TestDiskStoreOfOneMachine(LocalStoreContract):
    @pytest.fixture(params=sorted(EVICTION_POLICIES))
    def new_local(self, tmp_path: Path, request: pytest.FixtureRequest) -> NewLocal:
        numbers = itertools.count()

        def new(
            capacity: int,
            *,
            tenant_bytes: int | None = None,
            evicted: Evicted | None = None,
            wall: Callable[[], float] = time.time,
        ) -> DiskStore:
            policy = make_eviction(request.param, default_quota=tenant_bytes)
            path = tmp_path / str(next(numbers))
            return DiskStore(
                path, capacity=capacity, policy=policy, tenant_bytes=tenant_bytes, evicted=evicted, wall=wall
            )

        return new


class TestDiskStoreWithoutHoles(StoreContract):
    """Whole segments go: chains and quotas are kept to only as far as that allows."""

    tail_first: ClassVar[bool] = False
    examples: ClassVar[int] = 15
    rounds: ClassVar[int] = 200

    @pytest.fixture
    def new_store(self, tmp_path: Path) -> NewStore:
        numbers = itertools.count()

        def new(capacity: int, tenant_bytes: int | None = None) -> DiskStore:
            return DiskStore(tmp_path / str(next(numbers)), capacity=capacity, punch_holes=False)

        return new


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kv" / "store"


Opener = Callable[..., DiskStore]


@pytest.fixture
def opened(path: Path) -> Iterator[Opener]:
    """Open the one directory, and close what is open in the end."""
    stores: list[DiskStore] = []

    def new(**options: object) -> DiskStore:
        stores.append(DiskStore(path, **{"capacity": CAPACITY, **options}))  # type: ignore[arg-type]  # any options
        return stores[-1]

    yield new
    for store in stores:
        store.close()


# --- files -------------------------------------------------------------------------------------------------


def test_files_are_for_their_owner_alone(opened: Opener, path: Path) -> None:
    before = os.umask(0)
    try:
        store = opened()
        write(store, *map(chunk_key, range(30)))
        store.close()
    finally:
        os.umask(before)
    assert store.tier is Tier.DISK
    assert path.stat().st_mode & 0o777 == 0o700
    assert {one.suffix for one in path.iterdir()} == {"", ".seg", ".idx"}
    assert {one.stat().st_mode & 0o777 for one in path.iterdir()} == {0o600}


def test_a_tenant_is_not_named_on_disk(opened: Opener, path: Path) -> None:
    store = opened()
    store.write(chunk_key(1), [b"frame"], FrameInfo(tenant="a rather unusual name"))
    store.close()
    assert b"unusual" not in b"".join(one.read_bytes() for one in path.iterdir())


def test_a_directory_is_open_once(opened: Opener, path: Path) -> None:
    first = opened()
    with pytest.raises(StoreError, match="in use"):
        opened()
    script = "import sys; from cache.disk_store import *; DiskStore(Path(sys.argv[1]), capacity=1 << 20)"
    other = subprocess.run(
        [sys.executable, "-c", script, path], cwd=ROOT, capture_output=True, text=True, timeout=50, check=False
    )
    assert other.returncode == 1
    assert (
        other.stderr.splitlines()[-1]
        == f"cache.store.StoreError: {path} is in use by another process: each needs a folder of its own"
    )
    first.close()
    opened()


def test_what_cannot_be_a_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot be opened"):
        DiskStore(tmp_path / "file", capacity=CAPACITY)


def test_files_of_others_count_and_stay(opened: Opener, path: Path) -> None:
    path.mkdir(parents=True)
    (path / "not ours").write_bytes(bytes(CAPACITY // 2))
    (path / "12.seg").write_bytes(b"not one of ours either")
    store = opened()
    keys = [chunk_key(number) for number in range(60)]
    write(store, *keys)
    assert 5 < len(kept(store, keys)) < CAPACITY // 2 // 20_000
    assert on_disk(path) <= CAPACITY
    store.close()
    assert (path / "not ours").read_bytes() == bytes(CAPACITY // 2)
    assert (path / "12.seg").exists()


# --- opened again ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("punch_holes", [True, False])
def test_all_is_there_when_it_is_opened_again(opened: Opener, path: Path, *, punch_holes: bool) -> None:
    store = opened(punch_holes=punch_holes)
    keys = [chunk_key(number) for number in range(30)]
    write(store, *keys)
    for key in keys[::3]:
        assert store.remove(key) is True
    held = store.stats().bytes
    for _ in range(3):
        store.close()
        store = opened(punch_holes=punch_holes)
        assert kept(store, keys) == [key for key in keys if key not in keys[::3]]
        assert on_disk(path) <= store.stats().bytes <= held
        assert store.stats().errors == 0


def test_the_order_of_eviction_is_kept(opened: Opener) -> None:
    store = opened()
    keys = [chunk_key(number) for number in range(30)]
    write(store, *keys)
    for key in keys[:10]:
        assert read(store, key, 20_000) is not None
    store.close()
    store = opened(capacity=CAPACITY // 2)
    assert set(keys[:10]) <= set(kept(store, keys)) <= {*keys[:10], *keys[15:]}
    assert store.stats().bytes <= CAPACITY // 2
    assert store.stats().evictions > 0


def test_chains_are_known_when_it_is_opened_again(opened: Opener) -> None:
    store = opened()
    keys = [chunk_key(number) for number in range(30)]
    for parent, key in zip([None, *keys], keys, strict=False):
        assert store.write(key, [frame_of(key, 20_000)], FrameInfo(parent=parent))
    store.close()
    store = opened(capacity=CAPACITY // 2)
    here = kept(store, keys)
    assert 10 < len(here) < 30
    assert here == keys[: len(here)]


def test_quotas_hold_when_it_is_opened_again(opened: Opener) -> None:
    store = opened(tenant_bytes=200_000)
    mine, theirs = ([chunk_key((name, number)) for number in range(8)] for name in "ab")
    for key in (*theirs, *mine):
        assert store.write(key, [frame_of(key, 20_000)], FrameInfo(tenant="a" if key in mine else "b"))
    store.close()
    store = opened(tenant_bytes=200_000)
    more = [chunk_key(number) for number in range(20)]
    for key in more:
        assert store.write(key, [frame_of(key, 20_000)], FrameInfo(tenant="a"))
    assert kept(store, theirs) == theirs
    assert len(kept(store, [*mine, *more])) == 200_000 // extent(20_000)


def test_a_smaller_quota_holds_from_the_beginning(opened: Opener) -> None:
    store = opened()
    mine, theirs = ([chunk_key((name, number)) for number in range(8)] for name in "ab")
    for key in (*mine, *theirs):
        assert store.write(key, [frame_of(key, 20_000)], FrameInfo(tenant="a" if key in mine else "b"))
    store.close()
    told: list[ChunkKey] = []
    store = opened(tenant_bytes=5 * extent(20_000), evicted=told.append)
    assert kept(store, mine) == mine[3:]
    assert kept(store, theirs) == theirs[3:]
    assert told == [], "nobody has seen them here"


def told_until(end: float, **policy: object) -> FrameInfo:
    return FrameInfo(tenant="t", n_tokens=16, expires=end, policy=KvPolicy(owner="t", **policy))  # type: ignore[arg-type]  # any of its fields


@pytest.mark.parametrize("crashed", [False, True])
@pytest.mark.parametrize("punch_holes", [True, False])
def test_times_go_on_while_nobody_has_it_open(
    opened: Opener, path: Path, tmp_path: Path, *, crashed: bool, punch_holes: bool
) -> None:
    wall = Wall()
    store = opened(wall=wall, punch_holes=punch_holes)
    keys = [chunk_key(number) for number in range(10)]
    for number, key in enumerate(keys):
        assert store.write(key, [frame_of(key, 20_000)], told_until(wall() + 10 * number + 10))
    store.renew(keys[0], told_until(wall() + 1_000))
    if crashed:
        shutil.copytree(path, tmp_path / "copy")
    store.close()
    if crashed:
        shutil.rmtree(path)
        shutil.copytree(tmp_path / "copy", path)
    wall.now += 50
    store = opened(wall=wall, punch_holes=punch_holes)
    assert kept(store, keys) == [*([] if crashed else keys[:1]), *keys[5:]], "after a crash the end that was written"
    assert (store.stats().entries, store.stats().expired) == (len(kept(store, keys)), 5 - (not crashed))
    wall.now += 10
    assert not store.contains(keys[5:6])
    store.close()
    store = opened(wall=wall, punch_holes=punch_holes)
    assert kept(store, keys) == [*([] if crashed else keys[:1]), *keys[6:]]


def test_pinned_beginnings_are_known_when_it_is_opened_again(opened: Opener) -> None:
    store = opened()
    pinned = [chunk_key(("pinned", number)) for number in range(2)]
    for parent, key in zip([None, *pinned], pinned, strict=False):
        info = FrameInfo(parent=parent, tenant="t", n_tokens=16, policy=KvPolicy(owner="t", pin=True))
        assert store.write(key, [frame_of(key, 20_000)], info)
    others = [chunk_key(number) for number in range(30)]
    write(store, *others)
    store.close()
    store = opened(capacity=CAPACITY * 3 // 4)
    assert kept(store, pinned) == pinned, "though they were used before all others"
    write(store, *(chunk_key(("more", number)) for number in range(30)))
    assert kept(store, pinned) == pinned


def test_records_of_the_format_before_are_read(opened: Opener, path: Path) -> None:
    store = opened()
    keys = [chunk_key(number) for number in range(3)]
    write(store, *keys)
    store.close()
    for file in path.glob("*.idx"):
        file.unlink()
    (segment,) = [file for file in path.iterdir() if b"PGKVrec2" in file.read_bytes()]
    data = bytearray(segment.read_bytes())
    for at in (match.start() for match in re.finditer(b"PGKVrec2", bytes(data))):
        header = data[at : at + HEADER_SIZE]
        header[:8] = b"PGKVrec1"
        header[-16:] = xxhash.xxh3_128_digest(bytes(header[:-16]))
        data[at : at + HEADER_SIZE] = header
    segment.write_bytes(data)
    assert kept(opened(), keys) == keys


def test_what_was_not_closed_is_scanned(opened: Opener, path: Path, tmp_path: Path) -> None:
    store = opened()
    keys = [chunk_key(number) for number in range(30)]
    write(store, *keys)
    copy = tmp_path / "copy"
    shutil.copytree(path, copy)
    with_indexes, segments = len(files(copy, "idx")), len(files(copy, "seg"))
    assert 0 < with_indexes < segments
    other = DiskStore(copy, capacity=CAPACITY)
    assert kept(other, keys) == keys
    assert len(files(copy, "idx")) == segments
    other.close()


def test_an_index_that_is_wrong_is_ignored(opened: Opener, path: Path) -> None:
    store = opened()
    keys = [chunk_key(number) for number in range(30)]
    write(store, *keys)
    store.close()
    indexes = files(path, "idx")
    for number, one in enumerate(indexes):
        data = bytearray(one.read_bytes())
        data[number * 31 % len(data)] ^= 1
        one.write_bytes(data if number % 2 else data[: number * 50])
    (path / "ffff000000000000.idx").touch()
    store = opened()
    assert kept(store, keys) == keys
    assert files(path, "idx") == indexes


def test_holes_that_were_never_punched_are_found(opened: Opener, path: Path) -> None:
    store = opened()
    keys = [chunk_key(number) for number in range(12)]
    write(store, *keys)
    store.close()
    # As if a crash had taken the last changes back: half of the index is of no use, its space belongs to nobody.
    segment = files(path, "seg")[0]
    with segment.open("r+b") as file:
        file.write(bytes(HEADER_SIZE))
    files(path, "idx")[0].unlink()
    before = on_disk(path)
    store = opened()
    assert kept(store, keys) == keys[1:]
    assert on_disk(path) <= before - 20_000
    assert on_disk(path) <= store.stats().bytes


# --- bounds ------------------------------------------------------------------------------------------------

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["write", "write", "write", "remove", "read", "reopen", "flush"]),
        st.integers(0, 19),
        st.sampled_from([0, 1, 4_000, 4_096 - HEADER_SIZE, 30_000, 100_000]),
    ),
    max_size=60,
)


@pytest.mark.parametrize("punch_holes", [True, False])
def test_the_directory_stays_within_its_bound(tmp_path: Path, *, punch_holes: bool) -> None:
    numbers = itertools.count()

    @settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None)
    @given(STEPS)
    def holds(steps: list[tuple[str, int, int]]) -> None:
        path = tmp_path / str(next(numbers))
        sizes: dict[ChunkKey, int] = {}
        store = DiskStore(path, capacity=CAPACITY // 2, punch_holes=punch_holes)
        for name, number, size in steps:
            key = chunk_key(number)
            if name == "write":
                if store.write(key, [frame_of(key, size)], ALONE):
                    sizes[key] = size
            elif name == "remove":
                store.remove(key)
            elif name == "flush":
                store.flush()
            elif name == "reopen":
                entries = store.stats().entries
                store.close()
                assert on_disk(path) <= CAPACITY // 2
                store = DiskStore(path, capacity=CAPACITY // 2, punch_holes=punch_holes)
                assert store.stats().entries == entries
            elif store.contains([key]):
                assert read(store, key, sizes[key]) == frame_of(key, sizes[key])
            store._log.check()
            assert on_disk(path) <= store.stats().bytes <= CAPACITY // 2
            assert store.stats().errors == 0
        store.close()

    holds()


def test_nothing_is_pinned_where_whole_segments_go(opened: Opener) -> None:
    store = opened(punch_holes=False)
    write(store, chunk_key(1))
    assert store.pin(chunk_key(1)) is False
    store.unpin(chunk_key(1))


def test_pins_end_with_the_store(opened: Opener) -> None:
    store, keys = opened(), [chunk_key(number) for number in range(60)]
    write(store, keys[0])
    assert store.pin(keys[0]) is True
    store.close()
    for call in store.pin, store.unpin:
        with pytest.raises(StoreError, match="closed"):
            call(keys[0])
    store = opened()
    write(store, *keys[1:])
    assert kept(store, keys[:1]) == []


# --- threads -----------------------------------------------------------------------------------------------


def test_readers_writers_and_evictions_at_once(opened: Opener, path: Path) -> None:
    store = opened(segment_bytes=100_000)

    def work(number: int) -> None:
        for turn in range(300):
            key = chunk_key((turn * 7 + number * 3) % 90)
            size = 15_000 + key[0] * 100
            if (content := read(store, key, size)) is not None:
                assert is_whole(key, content)
            else:
                store.write(key, [frame_of(key, size, variant=number)], ALONE)
            if turn % 40 == number:
                store.flush()
            if turn % 5 == number:
                store.remove(chunk_key(turn % 90))
            assert store.stats().bytes <= CAPACITY

    in_threads(work)
    assert store.stats().errors == 0
    assert store.stats().evictions > 0
    store._log.check()
    assert on_disk(path) <= store.stats().bytes
    entries = store.stats().entries
    store.close()
    store = opened()
    assert store.stats().entries == entries


class Meanwhile(list[memoryview]):
    """Pieces that do something when the store begins to read into them."""

    def __init__(self, pieces: list[memoryview], act: Callable[[], object]) -> None:
        super().__init__(pieces)
        self.acts = iter([lambda: None, act])
        """The store adds up their lengths first."""

    def __iter__(self) -> Iterator[memoryview]:
        next(self.acts, lambda: None)()
        return super().__iter__()


@pytest.mark.parametrize("segment_bytes", [1, 1 << 20])
def test_a_frame_that_goes_while_it_is_read_is_a_miss(opened: Opener, path: Path, segment_bytes: int) -> None:
    store = opened(segment_bytes=segment_bytes)
    keys = [chunk_key(number) for number in range(2)]
    write(store, *keys)
    pieces = Meanwhile([memoryview(bytearray(20_000))], lambda: store.remove(keys[0]))
    assert store.read_into(keys[0], pieces) is False
    assert kept(store, keys) == keys[1:]
    assert (store.stats().misses, store.stats().errors) == (1, 0)
    assert len(files(path, "seg")) == 1


def test_a_flush_closes_no_segment(opened: Opener, path: Path) -> None:
    store = opened()
    for number in range(5):
        write(store, chunk_key(number), size=100)
        store.flush()
    assert len(files(path, "seg")) == 1
    assert files(path, "idx") == []


# --- disks that fail ---------------------------------------------------------------------------------------


def test_a_damaged_frame_is_told_and_forgotten(opened: Opener, path: Path) -> None:
    told: list[ChunkKey] = []
    store = opened(evicted=told.append)
    keys = [chunk_key(number) for number in range(3)]
    write(store, *keys)
    with files(path, "seg")[0].open("r+b") as file:
        file.seek(extent(20_000) + HEADER_SIZE + 12_345)
        file.write(b"?")
    with pytest.raises(StoreError, match="damaged"):
        read(store, keys[1], 20_000)
    assert told == [keys[1]]
    assert kept(store, keys) == [keys[0], keys[2]]
    assert store.stats().errors == 1
    write(store, keys[1])
    assert kept(store, keys) == keys


def test_a_directory_that_was_removed_is_made_anew(opened: Opener, path: Path) -> None:
    told: list[ChunkKey] = []
    store = opened(evicted=told.append)
    keys = [chunk_key(number) for number in range(20)]
    write(store, *keys)
    shutil.rmtree(path)
    with pytest.raises(StoreError, match="read"):
        read(store, keys[0], 20_000)
    with pytest.raises(StoreError, match="write"):
        store.write(chunk_key("more"), [b"x"], ALONE)
    for key in keys:
        store.write(key, [frame_of(key, 20_000)], ALONE)
    assert sorted(told) == sorted(keys)
    write(store, *(key for key in keys if not store.contains([key])))
    assert kept(store, keys) == keys
    assert path.stat().st_mode & 0o777 == 0o700
    store._log.check()
    assert on_disk(path) <= store.stats().bytes <= CAPACITY
    store.close()
    assert kept(opened(), keys) == keys


def test_a_segment_that_was_removed_costs_only_its_frames(opened: Opener, path: Path) -> None:
    told: list[ChunkKey] = []
    store = opened(segment_bytes=100_000, evicted=told.append)
    keys = [chunk_key(number) for number in range(20)]
    write(store, *keys)
    files(path, "seg")[0].unlink()
    with pytest.raises(StoreError, match="read"):
        read(store, keys[0], 20_000)
    here = kept(store, keys)
    assert here == keys[-len(here) :]
    assert told == keys[: -len(here)]
    assert 10 < len(here) < 20
    store._log.check()


@pytest.mark.parametrize("punch_holes", [True, False])
def test_space_is_given_back_though_no_file_can_be_opened(opened: Opener, path: Path, *, punch_holes: bool) -> None:
    told: list[ChunkKey] = []
    store = opened(segment_bytes=100_000, punch_holes=punch_holes, evicted=told.append)
    keys = [chunk_key(number) for number in range(100)]
    failed = 0
    for at, key in enumerate(keys):
        # Where the next segment would be there is something else, now and then.
        obstacle = path / segment_name(store._log.next_number)
        if at % 3 == 0:
            obstacle.mkdir()
        try:
            store.write(key, [frame_of(key, 20_000)], ALONE)
        except StoreError:
            failed += 1
        if at % 3 == 0:
            obstacle.rmdir()
        store._log.check()
        assert on_disk(path) <= store.stats().bytes <= CAPACITY
    assert failed > 5
    assert len(told) == store.stats().evictions
    for key in keys:
        store.remove(key)
    assert store.stats().bytes < 200_000, "nothing was lost from the books"


@pytest.fixture
def small_disk(path: Path) -> Iterator[None]:
    """The directory is a file system of 600 KB."""
    path.mkdir(parents=True)
    mount = shutil.which("mount")
    if (
        mount is None
        or os.geteuid()
        or subprocess.run([mount, "-t", "tmpfs", "-o", "size=600k", "none", path], check=False).returncode
    ):
        pytest.skip("cannot mount a file system here")
    yield
    subprocess.run(["umount", "-l", path], check=True)


@pytest.mark.usefixtures("small_disk")
def test_a_full_file_system_makes_the_store_smaller(opened: Opener, path: Path) -> None:
    store = opened(segment_bytes=100_000)
    keys = [chunk_key(number) for number in range(200)]
    failed = 0
    for key in keys:
        try:
            store.write(key, [frame_of(key, 20_000)], ALONE)
        except StoreError as error:
            failed += "No space left" in str(error)
        store._log.check()
    assert 0 < failed < 40
    assert store.stats().errors >= failed
    here = kept(store, keys)
    assert len(here) > 10
    store.close()
    assert kept(opened(), keys) == here


def test_a_limit_on_the_size_of_files_is_a_full_disk(opened: Opener, path: Path) -> None:
    store = opened()
    keys = [chunk_key(number) for number in range(40)]
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Python ignores SIGXFSZ: the write fails with EFBIG, a part of it may be there.
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
    try:
        with pytest.raises(StoreError, match="File too large"):
            write(store, *keys)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert kept(store, keys) == keys[:2]
    store._log.check()
    store.close()
    store = opened()
    assert kept(store, keys) == keys[:2]
    write(store, *keys[2:])
    assert kept(store, keys) == keys


@pytest.mark.usefixtures("small_disk")
def test_a_file_system_that_may_only_be_read(opened: Opener, path: Path) -> None:
    store = opened(segment_bytes=1)
    keys = [chunk_key(number) for number in range(4)]
    write(store, *keys)
    store.flush()
    # The lock is all that is open for writing, and would keep the file system from it.
    reading = os.open(path / "lock", os.O_RDONLY)
    os.dup2(reading, store._directory._lock)
    os.close(reading)
    subprocess.run(["mount", "-o", "remount,ro", path], check=True)
    try:
        assert kept(store, keys) == keys
        with pytest.raises(StoreError, match="Read-only"):
            store.write(chunk_key("more"), [b"x"], ALONE)
        assert store.remove(keys[0]) is True
        assert kept(store, keys) == keys[1:]
        store._log.check()
        store.close()
        with pytest.raises(StoreError, match="Read-only"):
            opened()
    finally:
        subprocess.run(["mount", "-o", "remount,rw", path], check=True)


# --- killed ------------------------------------------------------------------------------------------------

WRITER = """
import sys, threading
from cache.disk_store import *
from tests.store_contract import *

store = DiskStore(Path(sys.argv[1]), capacity=int(sys.argv[2]), segment_bytes=300_000)
begin = int(sys.argv[3])
said = threading.Lock()

def work(number):
    for turn in range(200):
        key = chunk_key((begin, number, turn))
        if store.write(key, cut(frame_of(key, 20_000 + key[0] * 300), [7_000]), ALONE):
            with said:
                print(begin, number, turn, flush=True)

for number in range(3):
    threading.Thread(target=work, args=(number,), daemon=True).start()
threading.Event().wait()
"""


def test_a_writer_that_is_killed_leaves_a_store_that_opens(path: Path) -> None:
    told: list[ChunkKey] = []
    # Where there is room for everything, nothing that was told is missing. Where there is not, three are evicting, and
    # none waits until the others have given back what is older.
    for begin, capacity in enumerate([128 << 20, 128 << 20, 2 << 20, 2 << 20]):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, path, str(capacity), str(begin)],
            cwd=ROOT, stdout=subprocess.PIPE, text=True,
        ) as child:  # fmt: skip
            assert child.stdout is not None
            for _, line in zip(range(40 + begin * 37), child.stdout, strict=False):
                told.append(chunk_key(tuple(map(int, line.split()))))
            child.send_signal(signal.SIGKILL)
            told += [chunk_key(tuple(map(int, line.split()))) for line in child.stdout if line.endswith("\n")]
        store = DiskStore(path, capacity=capacity, segment_bytes=300_000)
        here = [key for key in told if store.contains([key])]
        assert here == told if capacity > 2 << 20 else len(here) > 20
        for key in here:
            assert read(store, key, 20_000 + key[0] * 300) == frame_of(key, 20_000 + key[0] * 300)
        store._log.check()
        assert on_disk(path) <= store.stats().bytes <= capacity
        store.close()
