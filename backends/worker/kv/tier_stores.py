"""The stores that a worker's options name, and what its KV is known by in them."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Final

import torch

from backends.worker.engine.block_manager import BlockManager
from backends.worker.kv.chunks import Chunking
from backends.worker.kv.framing import Framing, make_framing
from backends.worker.kv.key_file import load_frame_keys
from backends.worker.kv.kv_tiers import KvTiers
from backends.worker.kv.pool_memory import BlockMemory, memory_of
from backends.worker.kv.residency import Residency
from backends.worker.kv.restore_choice import RestorePrice
from backends.worker.kv.tier_report import TierReport
from backends.worker.kv.transfer import Transfer
from backends.worker.model.kv_pool import KvPool
from backends.worker.model.model_config import ModelConfig
from backends.worker.options import EngineOptions
from cache.disk_store import DiskStore
from cache.kv_codec import SealUnavailableError
from cache.kv_keys import Codec, Dtype, Geometry
from cache.memory_store import MemoryStore
from cache.redis_frames import RedisFrames
from cache.redis_settings import RedisSettings
from cache.store import BlockStore, ChunkKey, StoreError
from cache.tiered_store import TieredStore
from policies.eviction import make_eviction
from policies.eviction_types import EvictionPolicy
from policies.types import Tier
from policies.write_behind import WriteRules

_DTYPES: Final = {torch.bfloat16: Dtype.BF16, torch.float16: Dtype.FP16, torch.float32: Dtype.FP32}
_PIECE: Final = 1 << 20


def wants_stores(options: EngineOptions) -> bool:
    """Do the options name any?"""
    return bool(options.kv_host or options.kv_disk or options.kv_redis)


def open_tiers(
    options: EngineOptions, config: ModelConfig, directory: Path, pool: KvPool, blocks: BlockManager
) -> KvTiers:
    """The stores that the options name, and all around them. Raises ValueError with the option that is at fault."""
    with _of_option("kv_key_file"):
        keys = None if options.kv_key_file is None else load_frame_keys(Path(options.kv_key_file))
    geometry = geometry_of(config, options.block_size, pool.data.dtype, int8=options.kv_int8)
    model = fingerprint(options, config, directory)
    # Whoever has another key would refuse these frames, and throw them away: let them not find them.
    chunking = Chunking(model if keys is None else keys.bound(model), geometry)
    residency = Residency(options.block_size)
    losses = _Losses()
    stores = _open_stores(options, losses)
    store = losses.store = TieredStore(stores, rules=WriteRules(uses=options.kv_uses), moved=residency.moved)
    return assemble(
        store,
        {one.tier: _shared_name(options, chunking) if one.tier is Tier.REDIS else "" for one in stores},
        chunking=chunking,
        framing=make_framing(keys=keys, int8=options.kv_int8),
        memory=memory_of(pool),
        blocks=blocks,
        residency=residency,
        price=RestorePrice(step_tokens=options.max_num_batched_tokens, clock=time.monotonic),
        patience=options.kv_patience,
    )


def assemble(
    store: TieredStore,
    names: Mapping[Tier, str],
    *,
    chunking: Chunking,
    framing: Framing,
    memory: BlockMemory,
    blocks: BlockManager,
    residency: Residency,
    price: RestorePrice,
    patience: float,
    wall: Callable[[], float] = time.time,
) -> KvTiers:
    """A pool's KV beyond it. `names`: see `TierReport`; `wall` is the clock of `FrameInfo.expires`."""
    geometry = chunking.geometry
    return KvTiers(
        store,
        Transfer(store, chunking, framing, memory, residency=residency, price=price, wall=wall),
        chunking,
        blocks,
        residency=residency,
        price=price,
        report=TierReport(store, price, names, bytes_per_token=geometry.block_bytes / geometry.block_size),
        patience=patience,
    )


class _Losses:
    """Tells a tiered store what its stores evict: they are there before it is."""

    store: TieredStore | None = None

    def of(self, tier: Tier) -> Callable[[ChunkKey], None]:
        def evicted(key: ChunkKey) -> None:
            if self.store is not None:
                self.store.lost(tier, key)

        return evicted


def _open_stores(options: EngineOptions, losses: _Losses) -> list[BlockStore]:
    """The fastest first."""
    if not 0 < options.kv_tenant_share <= 1:
        raise _OptionError(f"kv_tenant_share is {options.kv_tenant_share}; expected a share above 0, at most 1")
    stores: list[BlockStore] = []
    if options.kv_host:
        quota = int(options.kv_host * options.kv_tenant_share)
        with _of_option("kv_host"):
            stores.append(
                MemoryStore(
                    options.kv_host,
                    policy=_policy(options, quota),
                    tenant_bytes=quota,
                    prefault=False,
                    evicted=losses.of(Tier.HOST),
                )
            )
    if options.kv_disk:
        quota = int(options.kv_disk_bytes * options.kv_tenant_share)
        with _of_option("kv_disk"):
            stores.append(
                DiskStore(
                    Path(options.kv_disk),
                    capacity=options.kv_disk_bytes,
                    policy=_policy(options, quota),
                    tenant_bytes=quota,
                    evicted=losses.of(Tier.DISK),
                )
            )
    if options.kv_redis:
        with _of_option("kv_redis"):
            stores.append(RedisFrames(_redis(options), evicted=losses.of(Tier.REDIS)))
    return stores


def _redis(options: EngineOptions) -> RedisSettings:
    return RedisSettings(
        url=options.kv_redis or "",
        cluster=options.kv_redis_cluster,
        tls_ca=_path(options.kv_redis_ca),
        tls_certificate=_path(options.kv_redis_certificate),
        tls_key=_path(options.kv_redis_key),
    )


def _shared_name(options: EngineOptions, chunking: Chunking) -> str:
    """Equal for all workers that read each other's frames in this Redis, and for nobody else."""
    settings = _redis(options)
    where = f"{settings.address} {settings.db} {settings.prefix}".encode()
    return hashlib.sha256(where + chunking.fingerprint + repr(chunking.geometry).encode()).hexdigest()[:16]


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


def _policy(options: EngineOptions, quota: int) -> EvictionPolicy:
    with _of_option("kv_eviction"):
        return make_eviction(options.kv_eviction, default_quota=quota)


@contextlib.contextmanager
def _of_option(name: str) -> Iterator[None]:
    try:
        yield
    except _OptionError:
        raise
    except (ValueError, StoreError, SealUnavailableError, OSError) as error:
        raise _OptionError(f"{name}: {error}") from error


class _OptionError(ValueError):
    """It names its option already."""


def geometry_of(config: ModelConfig, block_size: int, dtype: torch.dtype, *, int8: bool = False) -> Geometry:
    """The shape of the pool's KV. Raises ValueError for a type that stores do not know."""
    if dtype not in _DTYPES:
        raise ValueError(f"KV of {dtype} cannot be stored; expected bfloat16, float16 or float32")
    return Geometry(
        n_layers=config.num_layers,
        kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        block_size=block_size,
        dtype=_DTYPES[dtype],
        codec=Codec.INT8 if int8 else Codec.RAW,
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
