"""Puts an engine together from its options: weights, KV pool, scheduler, sampler."""

from __future__ import annotations

import torch

from backends.worker.block_manager import BlockManager
from backends.worker.decoder import Decoder
from backends.worker.engine import Engine
from backends.worker.kv_pool import KvPool
from backends.worker.messages import Ready
from backends.worker.model_config import ModelConfig
from backends.worker.model_source import model_directory
from backends.worker.options import EngineOptions
from backends.worker.runner import ModelRunner
from backends.worker.sampler import Sampler
from backends.worker.scheduler import Scheduler, SchedulerConfig
from backends.worker.weights import Weights


def load_engine(options: EngineOptions) -> tuple[Engine, Ready]:
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    directory = model_directory(options.model, weights=options.load_format != "dummy")
    config = ModelConfig.read(directory)
    device, dtype = torch.device("cpu"), torch.float32
    if options.load_format == "dummy":
        weights = Weights.dummy(config, dtype=dtype, device=device, seed=options.seed)
    else:
        weights = Weights.load(directory, config, dtype=dtype, device=device)
    n_blocks = options.kv_blocks or 1024
    pool = KvPool(config, n_blocks=n_blocks, block_size=options.block_size, dtype=dtype, device=device)
    max_model_len = options.max_model_len or min(config.max_length, n_blocks * options.block_size)
    scheduler = Scheduler(
        SchedulerConfig(
            max_num_seqs=options.max_num_seqs,
            max_num_batched_tokens=options.max_num_batched_tokens,
            max_model_len=max_model_len,
            max_waiting=options.max_waiting or 4096,
            enable_prefix_caching=options.enable_prefix_caching,
            enable_chunked_prefill=options.enable_chunked_prefill,
            eos_token_ids=frozenset(config.eos_token_ids),
        ),
        BlockManager(n_blocks, options.block_size, options.name),
    )
    engine = Engine(scheduler, ModelRunner(Decoder(config, weights), pool), Sampler(config.vocab_size, device))
    ready = Ready(
        blocks=n_blocks,
        block_size=options.block_size,
        max_model_len=max_model_len,
        vocab_size=config.vocab_size,
        eos_token_ids=config.eos_token_ids,
        device=str(device),
        dtype=str(dtype).removeprefix("torch."),
    )
    return engine, ready
