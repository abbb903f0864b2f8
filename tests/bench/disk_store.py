"""What the disk store makes of a disk: `python -m tests.bench.disk_store [DIRECTORY] [--mib N] [--only PART]`.

Reads and writes of frames of 2 and 4 MB in pieces of a block, beside plain `pwrite` and `pread` of the same sizes, in
turn and in the same run. "cold": the page cache was told to forget the files (POSIX_FADV_DONTNEED). Then the time to
open a store of 10 GiB (frames are holes: only what opening reads is real), with and without its indexes; and the hit
share of giving space back by holes against whole segments, over a Zipf-like use of chains.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

from cache import disk_segment as fmt
from cache.disk_segment import Record
from cache.disk_store import DiskStore
from cache.store import ChunkKey, FrameInfo

PIECE = 114_688
"""One token of Qwen3-0.6B in bfloat16; what a frame is scattered over in a worker is of about this size."""
ROUNDS = 5


def key_of(*name: object) -> ChunkKey:
    return ChunkKey(sha256(repr(name).encode()).digest())


def pieces_of(buffer: bytearray) -> list[memoryview]:
    view = memoryview(buffer)
    return [view[at : at + PIECE] for at in range(0, len(view), PIECE)]


def forget(directory: Path) -> None:
    """Drop its files from the page cache, written first."""
    for path in directory.iterdir():
        fd = os.open(path, os.O_RDONLY)
        os.fdatasync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


class Plain:
    """One file, written and read from its beginning to its end."""

    def __init__(self, directory: Path, size: int) -> None:
        directory.mkdir()
        self.size = size
        self.fd = os.open(directory / "file", os.O_RDWR | os.O_CREAT)

    def write(self, number: int, frame: bytearray) -> None:
        assert os.pwrite(self.fd, frame, number * self.size) == self.size

    def read(self, number: int, target: bytearray) -> None:
        assert os.preadv(self.fd, [target], number * self.size) == self.size

    def sync(self) -> None:
        os.fdatasync(self.fd)

    def close(self) -> None:
        os.close(self.fd)


class Stored:
    """The store with room for all of it."""

    def __init__(self, directory: Path, size: int) -> None:
        self.store = DiskStore(directory, capacity=64 << 30)

    def write(self, number: int, frame: bytearray) -> None:
        assert self.store.write(key_of(number), pieces_of(frame), FrameInfo(n_tokens=36))

    def read(self, number: int, target: bytearray) -> None:
        assert self.store.read_into(key_of(number), pieces_of(target))

    def sync(self) -> None:
        self.store.flush()

    def close(self) -> None:
        self.store.close()


def speeds(
    base: Path, kind: Callable[[Path, int], Plain | Stored], size: int, total: int
) -> Iterator[tuple[str, float]]:
    """GB/s of each step, over a new directory."""
    directory = base / kind.__name__
    subject = kind(directory, size)
    frame, target = bytearray(random.Random(1).randbytes(size)), bytearray(size)
    count = total // size

    def timed(run: Callable[[], object]) -> float:
        begin = time.perf_counter()
        run()
        return count * size / (time.perf_counter() - begin) / 1e9

    def write() -> None:
        for number in range(count):
            subject.write(number, frame)

    def read() -> None:
        for number in range(count):
            subject.read(number, target)

    def read_by_four() -> None:
        buffers = [bytearray(size) for _ in range(4)]
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda at: [subject.read(n, buffers[at]) for n in range(at, count, 4)], range(4)))

    begin = time.perf_counter()
    yield "write, unsynced", timed(write)
    subject.sync()
    yield "write and sync", count * size / (time.perf_counter() - begin) / 1e9
    read()
    yield "read, cached", timed(read)
    yield "read, cached, 4 threads", timed(read_by_four)
    forget(directory)
    yield "read, cold", timed(read)
    forget(directory)
    yield "read, cold, 4 threads", timed(read_by_four)
    assert target == frame
    subject.close()
    shutil.rmtree(directory)


def throughput(base: Path, total: int) -> None:
    print(f"GB/s, median and range of {ROUNDS} rounds over {total >> 20} MiB, store and plain in turn")
    for size in (2 << 20, 4 << 20):
        results: dict[tuple[str, str], list[float]] = {}
        for _ in range(ROUNDS):
            for kind in (Plain, Stored):
                for name, speed in speeds(base, kind, size, total):
                    results.setdefault((name, kind.__name__), []).append(speed)
        print(f"{f'frames of {size >> 20} MiB':<26}{'plain':>24}{'store':>24}{'share':>8}")
        for name in dict.fromkeys(name for name, _ in results):
            plain, stored = results[name, "Plain"], results[name, "Stored"]
            middle = statistics.median(stored) / statistics.median(plain)
            print(f"{name:<26}{spread(plain):>24}{spread(stored):>24}{middle:>8.0%}")


def spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


def opening(base: Path) -> None:
    print("time to open 10 GiB, in ms: page cache cold and warm")
    for size, name in ((4 << 20, "4 MiB"), (2 << 20, "2 MiB"), (64 << 10, "64 KiB")):
        directory = base / "open"
        n_records = sparse_store(directory, size, 10 << 30)
        times = []
        for _ in ("no indexes, cold", "indexes, warm"):
            forget(directory)
            for _ in range(2):
                begin = time.perf_counter()
                store = DiskStore(directory, capacity=64 << 30)
                times.append((time.perf_counter() - begin) * 1e3)
                assert store.stats().entries == n_records
                store.close()
        cold, first, indexed_cold, indexed = times
        print(
            f"  {n_records:>7} frames of {name:<7} by headers, cold {cold:8.1f}   by indexes, cold {indexed_cold:8.1f}"
            f"   warm {min(first, indexed):8.1f}"
        )
        shutil.rmtree(directory)


def sparse_store(directory: Path, size: int, total: int) -> int:
    """Segments whose frames were never written: headers alone."""
    directory.mkdir(mode=0o700)
    count = total // size
    per_segment = (128 << 20) // fmt.extent(size)
    for at in range(0, count, per_segment):
        number = at // per_segment + 1
        with (directory / f"{number:016x}.seg").open("wb") as file:
            for place in range(min(per_segment, count - at)):
                offset = place * fmt.extent(size)
                record = Record(number, offset, size, key_of(at + place), None, bytes(16), 36, bytes(16))
                file.seek(offset)
                file.write(fmt.encode_header(record))
                file.truncate(record.end)
    return count


def hit_shares(base: Path) -> None:
    """Chains of 8 frames, asked for with a skew; what misses is written."""
    print("hit share: chains by a Zipf law (exponent 0.9), store of 16 MiB")
    size, chains, length = 64 * 1024 - 192, 200, 8
    weights = [1 / (rank + 1) ** 0.9 for rank in range(chains)]
    asked = random.Random(2).choices(range(chains), weights, k=1_500)
    for punch_holes, name in ((True, "holes"), (False, "whole segments")):
        directory = base / "hits"
        store = DiskStore(directory, capacity=16 << 20, punch_holes=punch_holes)
        frame = [memoryview(bytearray(size))]
        for chain in asked:
            parent = None
            for place in range(length):
                key = key_of(chain, place)
                if not store.read_into(key, frame):
                    store.write(key, frame, FrameInfo(parent=parent, n_tokens=16))
                parent = key
        stats = store.stats()
        share = stats.hits / (stats.hits + stats.misses)
        print(f"  {name:<16} {share:6.1%}  {stats.entries} frames kept, {stats.writes} written, {stats.errors} errors")
        store.close()
        shutil.rmtree(directory)


def main() -> None:
    """Print all of it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", nargs="?", help="on the file system to measure; a temporary one unless told")
    parser.add_argument("--mib", type=int, default=1024, help="written and read in each step")
    parser.add_argument("--only", choices=["open", "hits", "speed"], help="one part of it")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as temporary:
        base = Path(temporary)
        if options.only in {None, "speed"}:
            throughput(base, options.mib << 20)
        if options.only in {None, "open"}:
            opening(base)
    if options.only in {None, "hits"}:
        # It does not depend on the disk.
        with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as temporary:
            hit_shares(Path(temporary))


if __name__ == "__main__":
    main()
