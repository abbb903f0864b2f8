"""How many KV blocks fit: the bound, less the weights, less what the largest step needs while it runs."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from backends.worker.messages import SamplingParams
from backends.worker.model.decoder import Decoder
from backends.worker.model.kv_pool import KvPool, block_bytes
from backends.worker.model.runner import Chunk, ModelRunner
from backends.worker.model.sampler import Sampler, SamplerRow
from cache.block_hash import TOKEN_BYTES

_STATUS: Final = Path("/proc/self/status")
_CLEAR: Final = Path("/proc/self/clear_refs")
_FORGET_PEAK: Final = "5"
"""What resets VmHWM when it is written there (proc(5), where the kernel has it)."""
_POLL_S: Final = 0.002
_SPARE: Final = 0.05
"""Share of a step's peak that is kept free besides: allocators round up."""
_BOOKS: Final = 640
"""Bytes of Python objects of one block that is held and can be found by its hash, besides its token ids."""
_COPIES: Final = 4
"""Of these ids: in the prefix cache, the prompt, the sequence, and an event not yet taken."""
_KERNELS: Final = 256
_KERNEL_BYTES: Final = 400_000
"""Of compiled code of one shape and what comes with it."""
_MMAP_THRESHOLD: Final = -3
_TRIM_THRESHOLD: Final = -1
_LARGEST: Final = 32 << 20
"""The most that glibc takes for its mmap threshold."""


class MemoryBoundError(ValueError):
    """The bound leaves no room for the KV pool. Says what needs how much."""


@dataclass(frozen=True, slots=True)
class StepLimits:
    """The largest step the scheduler makes."""

    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int


@dataclass(frozen=True, slots=True)
class MemoryProfile:
    """Where the memory goes, in bytes."""

    used: int
    """By the process (CPU: resident) or on the device (CUDA) before the pool is made, weights included."""
    step: int
    """What the largest step needs besides, and on a CPU the code that later steps compile."""
    block: int
    """One KV block, and on a CPU what is kept in Python of it."""

    def blocks(self, bound: int, *, least: int = 1) -> int:
        """KV blocks that fit under `bound` bytes. Raises `MemoryBoundError` where it is fewer than `least`."""
        blocks = (bound - self.used - self.step) // self.block
        if blocks < least:
            raise MemoryBoundError(
                f"a memory bound of {_mib(bound)} has no room for {least} KV blocks of {_mib(self.block)}: weights and"
                f" the process take {_mib(self.used)}, the largest step {_mib(self.step)}; allow"
                f" {_mib(self.used + self.step + least * self.block)}, a shorter max_model_len, or smaller steps"
            )
        return blocks


def profile(decoder: Decoder, limits: StepLimits, block_size: int) -> MemoryProfile:
    """Runs the largest steps on a pool of one block and measures what they need.

    Two steps: as many sequences as may run at once, all of whose rows sample with all that sampling can want; and one
    prompt's last chunk, with the longest context and every token of the budget.
    """
    device = decoder.device
    pool = KvPool(decoder.config, n_blocks=1, block_size=block_size, dtype=decoder.dtype, device=device)
    runner = ModelRunner(decoder, pool)
    sampler = Sampler(decoder.config.vocab_size, device)  # keeps its work space from step to step
    params = SamplingParams(max_tokens=1, presence_penalty=1.0, logprobs=1)
    # Every block of these sequences is block 0: what is in it plays no part in how much memory is needed.
    table = [0] * (-(-limits.max_model_len // block_size))
    count = min(limits.max_num_batched_tokens, limits.max_model_len)
    longest = [Chunk([0] * count, limits.max_model_len - count, table, samples=True)]
    sequences = min(limits.max_num_seqs, limits.max_num_batched_tokens)
    each = max(1, limits.max_num_batched_tokens // sequences)
    start = max(0, min(limits.max_model_len - each, 1024))
    most = [Chunk([0] * min(each, limits.max_model_len), start, table, samples=True)] * sequences
    runner.execute(longest)  # what is allocated once and kept (code, kernels' buffers) counts as used
    used = used_bytes(device)
    peaks = []
    for step in (most, longest, most):
        with _peak_bytes(device) as peak:
            sampler.sample(runner.execute(step), [SamplerRow(params, 1, output_ids=(0,))] * len(step))
        peaks.append(peak[0])
    step_bytes = max(0, max(peaks) - used)
    block = block_bytes(decoder.config, block_size, decoder.dtype)
    kept = 0
    if device.type == "cpu":
        kept = _KERNELS * _KERNEL_BYTES
        block += _BOOKS + _COPIES * TOKEN_BYTES * block_size
    return MemoryProfile(used, int(step_bytes * (1 + _SPARE)) + kept, block)


def prepare() -> None:
    """Settings of the process, to be made before anything is computed.

    What is freed is used again (glibc only): a step's large temporaries would else go back to the system and come anew,
    page by page, with each product. And oneDNN, which compiles code for each shape, keeps that of fewer shapes.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(_KERNELS))
    if sys.platform == "linux" and (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        mallopt(_MMAP_THRESHOLD, _LARGEST)
        mallopt(_TRIM_THRESHOLD, 1 << 30)


def used_bytes(device: torch.device) -> int:
    """Bytes in use: of the device (CUDA, other processes included), or resident in this process."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(device)
        return total - free
    _give_back()
    return _status("VmRSS")


def total_bytes(device: torch.device) -> int:
    """Bytes there are: of the device, or of this machine."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1]
    return _kib(Path("/proc/meminfo").read_text(encoding="ascii"), "MemTotal")


@contextmanager
def _peak_bytes(device: torch.device) -> Iterator[list[int]]:
    """The most bytes in use within the block, as the list's one element."""
    peak = [0]
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        reserved = torch.cuda.memory_reserved(device)
        before = used_bytes(device)
        yield peak
        torch.cuda.synchronize(device)
        peak[0] = before - reserved + torch.cuda.max_memory_reserved(device)
        return
    try:
        _CLEAR.write_text(_FORGET_PEAK, encoding="ascii")
    except OSError:
        with _polled(peak):
            yield peak
    else:
        yield peak
        peak[0] = _status("VmHWM")


@contextmanager
def _polled(peak: list[int]) -> Iterator[None]:
    """The same where the kernel's high-water mark cannot be reset."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(_POLL_S):
            peak[0] = max(peak[0], _status("VmRSS"))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
        peak[0] = max(peak[0], _status("VmRSS"))


def _status(name: str) -> int:
    return _kib(_STATUS.read_text(encoding="ascii"), name)


def _kib(text: str, name: str) -> int:
    line = next(line for line in text.splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024


def _give_back() -> None:
    """Returns freed memory to the system, so that what is resident is what is in use (glibc only)."""
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"
