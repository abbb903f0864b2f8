"""The pool's blocks as bytes that I/O threads read and write, wherever the pool lies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import torch

from backends.worker.model.kv_pool import KvPool


class BlockMemory(Protocol):
    """Safe for several threads, as long as nobody else uses the blocks that are written."""

    def read(self, blocks: Sequence[int]) -> AbstractContextManager[list[memoryview]]:
        """The bytes of each of these blocks, valid until the context is left; not to be written."""
        ...

    def write(self, blocks: Sequence[int]) -> AbstractContextManager[list[memoryview]]:
        """What is written here is in these blocks when the context has been left."""
        ...

    def wipe(self, block: int) -> None:
        """Make it zeros: a pool holds numbers only, and what came from a store may be none."""
        ...


def memory_of(pool: KvPool) -> BlockMemory:
    """By the pool's device."""
    return DirectMemory(pool) if pool.data.device.type == "cpu" else CopiedMemory(pool)


class DirectMemory:
    """A pool in the CPU's memory: its own bytes, uncopied."""

    def __init__(self, pool: KvPool) -> None:
        self._pool = pool

    @contextmanager
    def read(self, blocks: Sequence[int]) -> Iterator[list[memoryview]]:
        """See `BlockMemory`."""
        yield [_view(self._pool.block(block)) for block in blocks]

    def write(self, blocks: Sequence[int]) -> AbstractContextManager[list[memoryview]]:
        """See `BlockMemory`."""
        return self.read(blocks)

    def wipe(self, block: int) -> None:
        """See `BlockMemory`."""
        self._pool.block(block).zero_()


class CopiedMemory:
    """A pool on a device: its bytes are copied to the CPU and back, in the order of the device's other work."""

    def __init__(self, pool: KvPool) -> None:
        self._pool = pool

    @contextmanager
    def read(self, blocks: Sequence[int]) -> Iterator[list[memoryview]]:
        """See `BlockMemory`."""
        copies = [self._pool.read_block(block) for block in blocks]
        yield [_view(copy) for copy in copies]

    @contextmanager
    def write(self, blocks: Sequence[int]) -> Iterator[list[memoryview]]:
        """See `BlockMemory`."""
        copies = [torch.zeros(self._pool.block_bytes, dtype=torch.uint8) for _ in blocks]
        yield [_view(copy) for copy in copies]
        for block, copy in zip(blocks, copies, strict=True):
            self._pool.write_block(block, copy)

    def wipe(self, block: int) -> None:
        """See `BlockMemory`."""
        self._pool.block(block).zero_()


def _view(block: torch.Tensor) -> memoryview:
    return memoryview(block.numpy())  # type: ignore[arg-type]  # arrays are buffers from 3.12 on
