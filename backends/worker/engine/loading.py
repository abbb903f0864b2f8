"""Puts an engine together from its options: weights, KV pool, scheduler, sampler."""

from __future__ import annotations

import logging
from enum import StrEnum
from pathlib import Path
from typing import Final, TypeVar

import torch

from backends.worker.engine.block_manager import BlockManager
from backends.worker.engine.engine import Engine
from backends.worker.engine.scheduler import Scheduler, SchedulerConfig
from backends.worker.kv.kv_tiers import KvTiers
from backends.worker.kv.tier_stores import open_tiers, wants_stores
from backends.worker.messages import Ready
from backends.worker.model.decoder import Decoder
from backends.worker.model.kv_pool import KvPool
from backends.worker.model.memory import StepLimits, prepare, profile, total_bytes
from backends.worker.model.model_config import ModelConfig
from backends.worker.model.numerics import DeviceChoice, DtypeChoice, choose_device, choose_dtype, set_threads
from backends.worker.model.runner import ModelRunner
from backends.worker.model.sampler import Sampler
from backends.worker.model.weights import Weights
from backends.worker.model_source import model_directory
from backends.worker.options import EngineOptions

log = logging.getLogger(__name__)

_Choice = TypeVar("_Choice", bound=StrEnum)

_SHARE: Final = {"cpu": 0.25, "cuda": 0.9}
"""Of the memory there is, taken where no bound is named."""
_MOST_WAITING: Final = 4096


class OptionsError(ValueError):
    """Options that do not fit each other or the model. The message names the option."""


def load_engine(options: EngineOptions) -> tuple[Engine, Ready]:
    """Load the model and allocate the pool; takes as long as reading the weights, and some steps.

    Raises ValueError (of several kinds, each with a sentence for the user) and OSError.
    """
    set_threads(options.threads)
    prepare()
    device = choose_device(_named(DeviceChoice, "device", options.device))
    directory = model_directory(options.model, weights=options.load_format != "dummy")
    config = ModelConfig.read(directory)
    for field in config.ignored:
        log.warning("config.json: %s is not known and was ignored", field)
    dtype = choose_dtype(_named(DtypeChoice, "dtype", options.dtype), device)
    decoder = Decoder(config, _weights(options, config, dtype, device))
    limits = StepLimits(
        max_num_batched_tokens=options.max_num_batched_tokens,
        max_num_seqs=options.max_num_seqs,
        max_model_len=_longest(options, config),
    )
    n_blocks = options.kv_blocks
    if n_blocks is None:
        bound = options.memory or int(total_bytes(device) * _SHARE[device.type])
        n_blocks = profile(decoder, limits, options.block_size).blocks(bound)
    # More than the pool holds would never be admitted.
    max_model_len = min(limits.max_model_len, n_blocks * options.block_size)
    pool = KvPool(config, n_blocks=n_blocks, block_size=options.block_size, dtype=dtype, device=device)
    blocks = BlockManager(n_blocks, options.block_size, options.name)
    scheduler = Scheduler(
        SchedulerConfig(
            max_num_seqs=options.max_num_seqs,
            max_num_batched_tokens=options.max_num_batched_tokens,
            max_model_len=max_model_len,
            max_waiting=options.max_waiting or _MOST_WAITING,
            enable_prefix_caching=options.enable_prefix_caching,
            enable_chunked_prefill=options.enable_chunked_prefill,
            eos_token_ids=frozenset(config.eos_token_ids),
        ),
        blocks,
    )
    tiers = _tiers(options, config, directory, pool, blocks) if wants_stores(options) else None
    ready = Ready(
        blocks=n_blocks,
        block_size=options.block_size,
        max_model_len=max_model_len,
        vocab_size=config.vocab_size,
        eos_token_ids=config.eos_token_ids,
        device=str(device),
        dtype=str(dtype).removeprefix("torch."),
    )
    return Engine(scheduler, ModelRunner(decoder, pool), Sampler(config.vocab_size, device), tiers=tiers), ready


def _named(choices: type[_Choice], option: str, value: str) -> _Choice:
    try:
        return choices(value)
    except ValueError:
        *most, last = choices
        raise OptionsError(f"{option} is {value!r}; expected {', '.join(most)} or {last}") from None


def _tiers(options: EngineOptions, config: ModelConfig, directory: Path, pool: KvPool, blocks: BlockManager) -> KvTiers:
    if not options.enable_prefix_caching:
        raise OptionsError("kv_host, kv_disk and kv_redis need prefix caching")
    return open_tiers(options, config, directory, pool, blocks)


def _weights(options: EngineOptions, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> Weights:
    if options.load_format == "dummy":
        return Weights.dummy(config, dtype=dtype, device=device, seed=options.seed)
    return Weights.load(model_directory(options.model), config, dtype=dtype, device=device)


def _longest(options: EngineOptions, config: ModelConfig) -> int:
    if options.max_model_len is None:
        return config.max_length
    if options.max_model_len > config.max_length:
        raise OptionsError(
            f"max_model_len is {options.max_model_len}; the model's positions are made for {config.max_length} tokens"
        )
    return options.max_model_len
