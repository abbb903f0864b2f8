"""What frames cost beside a plain copy: `python -m tests.bench kv_codec [--megabytes N]`.

GB/s of payload, best of several rounds, for a chunk of Qwen3-0.6B's shape in bf16 (a block of 16 tokens is 1.75 MiB):
sealing and opening, int8, whole frames as a worker makes and opens them, and the host memory tier. Buffers are rotated
through more memory than caches hold; the plain copy that each row is compared with goes through the same ones, in
turns with it.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256

import numpy as np

from backends.worker.kv.framing import Framing, make_framing
from cache.byte_pieces import copy_pieces
from cache.kv_codec import HEADER_BYTES, FrameKeys, FrameSpec, check, encode_header
from cache.kv_int8 import quantize_block, restore_block
from cache.kv_keys import Codec, Dtype, Geometry, chunk_keys
from cache.memory_store import MemoryStore
from cache.store import ChunkKey, FrameInfo
from policies.types import TokenIds

GEOMETRY = Geometry(n_layers=28, kv_heads=8, head_dim=128, block_size=16, dtype=Dtype.BF16)
FINGERPRINT = sha256(b"weights").digest()
ROUNDS = 9


class Chunks:
    """As many chunks of one block as make up some hundred megabytes, and as many to copy them to."""

    def __init__(self, total: int) -> None:
        size = GEOMETRY.block_bytes
        self.count = max(1, total // size)
        source = np.random.default_rng(1).normal(size=self.count * size // 2).astype(np.float32)
        bits = (source.view(np.uint32) >> np.uint32(16)).astype("<u2")
        self.source = [bits.data.cast("B")[at * size :][:size] for at in range(self.count)]
        self.target = [memoryview(bytearray(b"\1" * size)) for _ in range(self.count)]
        tokens = TokenIds(bytes(4 * 16 * self.count))
        self.keys = list(chunk_keys(FINGERPRINT, GEOMETRY, b"salt", tokens, chunk_tokens=16))
        self.specs = [
            FrameSpec(
                key=key,
                parent=parent,
                fingerprint=FINGERPRINT,
                geometry=GEOMETRY,
                first_token=16 * at,
                n_tokens=16,
                salt=b"salt",
            )
            for at, (key, parent) in enumerate(zip(self.keys, [None, *self.keys], strict=False))
        ]


def seconds(chunks: Chunks, work: Callable[[int], object]) -> float:
    start = time.perf_counter()
    for at in range(chunks.count):
        work(at)
    return time.perf_counter() - start


def rates(
    chunks: Chunks, plain: Callable[[int], object], work: Callable[[int], object], setup: Callable[[], None]
) -> tuple[float, float]:
    """GB/s of a plain copy and of the work, each in its fastest round over all chunks; their rounds take turns."""
    copying, working = [], []
    for _ in range(ROUNDS):
        copying.append(seconds(chunks, plain))
        setup()
        working.append(seconds(chunks, work))
    total = chunks.count * GEOMETRY.block_bytes / 1e9
    return total / min(copying), total / min(working)


def rate_of_two_threads(chunks: Chunks, work: Callable[[int], object]) -> float:
    """The same by two threads together, each half of the chunks: tells what lets others run."""

    def half(first: int) -> None:
        for at in range(first, chunks.count, 2):
            work(at)

    best = float("inf")
    for _ in range(ROUNDS):
        threads = [threading.Thread(target=half, args=(first,)) for first in (0, 1)]
        start = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        best = min(best, time.perf_counter() - start)
    return chunks.count * GEOMETRY.block_bytes / best / 1e9


def seals(chunks: Chunks) -> dict[str, Callable[[int], object]]:
    """What sealing and opening does with the chunk of that number."""
    keys = FrameKeys(bytes(32))
    source, target, specs = chunks.source, chunks.target, chunks.specs
    headers = [encode_header(spec, [block]) for spec, block in zip(specs, source, strict=True)]
    encrypted = [memoryview(bytearray(len(block))) for block in source]
    tagged = [keys.encrypt_into([encrypted[at]], specs[at], [source[at]]) for at in range(chunks.count)]

    def decrypt_in_place(at: int) -> None:
        # Encrypted again at once: the next round decrypts it again.
        keys.decrypt_into([encrypted[at]], tagged[at], [encrypted[at]], specs[at])
        tagged[at] = keys.encrypt_into([encrypted[at]], specs[at], [encrypted[at]])

    return {
        "checksum, sealed": lambda at: encode_header(specs[at], [source[at]]),
        "checksum, checked": lambda at: check(headers[at], [source[at]], specs[at]),
        "AES-256-GCM, encrypted": lambda at: keys.encrypt_into([target[at]], specs[at], [source[at]]),
        "AES-256-GCM, decrypted": lambda at: keys.decrypt_into([target[at]], tagged[at], [encrypted[at]], specs[at]),
        "AES-256-GCM, both in place": decrypt_in_place,
    }


def int8(chunks: Chunks) -> tuple[dict[str, Callable[[int], object]], float]:
    """The same for int8, and the error relative to the numbers' root mean square."""
    geometry = replace(GEOMETRY, codec=Codec.INT8)
    coded = [memoryview(bytearray(b"\1" * geometry.block_bytes)) for _ in chunks.source]
    back = memoryview(bytearray(geometry.pool_bytes))
    quantize_block(geometry, chunks.source[0], coded[0])
    restore_block(geometry, coded[0], back)

    def numbers(block: memoryview) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        return (np.frombuffer(block, "<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)

    before = numbers(chunks.source[0])
    error = np.sqrt(np.mean((numbers(back) - before) ** 2) / np.mean(before**2))
    rows: dict[str, Callable[[int], object]] = {
        "int8, quantised": lambda at: quantize_block(geometry, chunks.source[at], coded[at]),
        "int8, restored": lambda at: restore_block(geometry, coded[at], chunks.target[at]),
    }
    return rows, float(error)


def framing_rows(chunks: Chunks) -> dict[str, Callable[[int], object]]:
    """All that happens between the pool and a store: a frame made, and one copied from a store's memory and opened."""
    rows: dict[str, Callable[[int], object]] = {}
    keys = FrameKeys(bytes(32))
    for name, of, codec in (
        ("plain", None, Codec.RAW),
        ("sealed", keys, Codec.RAW),
        ("int8", None, Codec.INT8),
        ("int8, sealed", keys, Codec.INT8),
    ):
        framing = make_framing(keys=of, int8=codec is Codec.INT8)
        specs = [replace(spec, geometry=replace(GEOMETRY, codec=codec)) for spec in chunks.specs]
        frames = []
        for spec, block in zip(specs, chunks.source, strict=True):
            with framing.encode(spec, [block]) as pieces:
                frames.append(memoryview(bytearray(b"".join(pieces))))

        def encode(at: int, framing: Framing = framing, specs: list[FrameSpec] = specs) -> None:
            with framing.encode(specs[at], [chunks.source[at]]):
                pass

        def read(
            at: int,
            framing: Framing = framing,
            specs: list[FrameSpec] = specs,
            frames: list[memoryview] = frames,
        ) -> None:
            with framing.reading(specs[at], [chunks.target[at]]) as reading:
                copy_pieces(reading.pieces, [frames[at]])
                reading.finish()

        rows |= {f"frame {name}, made": encode, f"frame {name}, copied and opened": read}
    return rows


def store_rows(chunks: Chunks, store: MemoryStore) -> dict[str, Callable[[int], object]]:
    """Writes into an empty store and reads."""
    header = bytes(HEADER_BYTES)
    into = memoryview(bytearray(HEADER_BYTES))

    def write(at: int) -> None:
        parent = chunks.specs[at].parent
        assert store.write(chunks.keys[at], [header, chunks.source[at]], FrameInfo(parent=parent, n_tokens=16))

    def read(at: int) -> None:
        assert store.read_into(chunks.keys[at], [into, chunks.target[at]])

    return {"host memory, write": write, "host memory, read_into": read}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=128)
    chunks = Chunks(parser.parse_args().megabytes << 20)
    print(f"{chunks.count} chunks of {GEOMETRY.block_bytes:,} bytes; GB/s")
    print(f"{'':<34}{'alone':>8}{'of a copy':>11}{'two threads':>13}")

    def view_copy(at: int) -> None:
        chunks.target[at][:] = chunks.source[at]

    def copy(at: int) -> None:
        copy_pieces([chunks.target[at]], [chunks.source[at]])

    def row(name: str, work: Callable[[int], object], setup: Callable[[], None] = lambda: None) -> None:
        plain, one = rates(chunks, view_copy, work, setup)
        two = f"{rate_of_two_threads(chunks, work):>13.2f}" if "write" not in name else ""
        print(f"{name:<34}{one:>8.2f}{one / plain:>11.2f}{two}")

    row("copy (memcpy)", view_copy)
    row("copy_pieces", copy)
    for name, work in seals(chunks).items():
        row(name, work)
    rows, error = int8(chunks)
    for name, work in rows.items():
        row(name, work)
    for name, work in framing_rows(chunks).items():
        row(name, work)
    print(f"{'int8, error of normal numbers':<34}{error:>8.2%} of their root mean square")
    capacity = int(1.1 * chunks.count * GEOMETRY.block_bytes) + (4 << 20)
    store = MemoryStore(capacity)

    def empty() -> None:
        for key in chunks.keys:
            store.remove(key)

    writing, reading = store_rows(chunks, store).items()
    row(*writing, empty)
    row(*reading)
    full = MemoryStore(capacity // 2)
    fresh = iter(range(1 << 30))

    def evicting(at: int) -> None:
        key = ChunkKey(sha256(b"%d" % next(fresh)).digest())
        assert full.write(key, [chunks.source[at]], FrameInfo())

    row("host memory, write with eviction", evicting)
    store.close()
    full.close()


if __name__ == "__main__":
    main()
