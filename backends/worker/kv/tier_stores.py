"""The stores that a worker's options name, and what its KV is known by in them."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Final

import torch

from backends.worker.model.kv_pool import KvPool
from backends.worker.model.model_config import ModelConfig
from backends.worker.options import EngineOptions
from cache.disk_store import DiskStore
from cache.kv_keys import Dtype, Geometry
from cache.memory_store import MemoryStore
from cache.redis_settings import RedisSettings
from cache.redis_store import RedisStore
from cache.store import BlockStore, StoreError
from policies.eviction import make_eviction
from policies.eviction_types import EvictionPolicy

_DTYPES: Final = {torch.bfloat16: Dtype.BF16, torch.float16: Dtype.FP16, torch.float32: Dtype.FP32}
_PIECE: Final = 1 << 20


class PoolMemory:
    """The blocks of a pool in the CPU's memory, as bytes that other threads read and write."""

    def __init__(self, pool: KvPool) -> None:
        self._pool = pool

    def view(self, block: int) -> memoryview:
        """One block's bytes; writable."""
        return memoryview(self._pool.block(block).numpy())  # type: ignore[arg-type]  # arrays are buffers from 3.12 on

    def wipe(self, block: int) -> None:
        """Make it zeros."""
        self._pool.block(block).zero_()


def wants_stores(options: EngineOptions) -> bool:
    """Do the options name any?"""
    return bool(options.kv_host or options.kv_disk or options.kv_redis)


def open_stores(options: EngineOptions) -> list[BlockStore]:
    """The stores, the fastest first. Raises ValueError with the option that is at fault."""
    stores: list[BlockStore] = []
    if options.kv_host:
        with _of_option("kv_host"):
            stores.append(MemoryStore(options.kv_host, policy=_policy(options), prefault=False))
    if options.kv_disk:
        with _of_option("kv_disk"):
            stores.append(DiskStore(Path(options.kv_disk), capacity=options.kv_disk_bytes, policy=_policy(options)))
    if options.kv_redis:
        with _of_option("kv_redis"):
            stores.append(RedisStore(RedisSettings(url=options.kv_redis)))
    return stores


def _policy(options: EngineOptions) -> EvictionPolicy:
    with _of_option("kv_eviction"):
        return make_eviction(options.kv_eviction)


@contextlib.contextmanager
def _of_option(name: str) -> Iterator[None]:
    try:
        yield
    except _OptionError:
        raise
    except (ValueError, StoreError) as error:
        raise _OptionError(f"{name}: {error}") from error


class _OptionError(ValueError):
    """It names its option already."""


def geometry_of(config: ModelConfig, block_size: int, dtype: torch.dtype) -> Geometry:
    """The shape of the pool's KV. Raises ValueError for a type that stores do not know."""
    if dtype not in _DTYPES:
        raise ValueError(f"KV of {dtype} cannot be stored; expected bfloat16, float16 or float32")
    return Geometry(
        n_layers=config.num_layers,
        kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        block_size=block_size,
        dtype=_DTYPES[dtype],
    )


def fingerprint(options: EngineOptions, config: ModelConfig, directory: Path) -> bytes:
    """SHA-256 of the weights and of all that the computation depends on besides: two workers share KV only where it
    is equal. Reads the weights once, some seconds for every ten gigabytes.
    """
    state = hashlib.sha256(b"prefixgate weights v1")
    state.update(repr(sorted(asdict(config).items())).encode())
    if options.load_format == "dummy":
        state.update(f"dummy {options.seed} {options.device}".encode())
        return state.digest()
    for path in sorted(directory.glob("*.safetensors")):
        state.update(path.name.encode())
        _add_file(state, path)
    return state.digest()


def _add_file(state: hashlib._Hash, path: Path) -> None:
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            state.update(piece)
