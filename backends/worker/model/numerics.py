"""Which device and which type to compute with, and whether results depend on what is computed together."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from enum import StrEnum
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional


class DeviceChoice(StrEnum):
    """`auto`: CUDA where there is one."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class DtypeChoice(StrEnum):
    """`auto`: bfloat16 where it is the faster one."""

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    FLOAT64 = "float64"


class NumericsError(ValueError):
    """A device or a type that this machine cannot compute with."""


_DTYPES: Final = {
    DtypeChoice.FLOAT32: torch.float32,
    DtypeChoice.BFLOAT16: torch.bfloat16,
    DtypeChoice.FLOAT16: torch.float16,
    DtypeChoice.FLOAT64: torch.float64,
}
_SIZE: Final = 1024
"""Width of the matrices that are measured: that of a small model."""


def set_threads(threads: int | None) -> int:
    """Threads that the CPU computes with; None leaves what torch chose, one a core. Returns how many there are."""
    if threads is not None:
        torch.set_num_threads(threads)
    return torch.get_num_threads()


def choose_device(choice: DeviceChoice) -> torch.device:
    """Raises `NumericsError` where CUDA is asked for and there is none."""
    cuda = torch.cuda.is_available()
    if choice is DeviceChoice.CUDA and not cuda:
        raise NumericsError("device cuda: torch finds no CUDA device here; use cpu or auto")
    if choice is DeviceChoice.CPU or not cuda:
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def choose_dtype(choice: DtypeChoice, device: torch.device) -> torch.dtype:
    """`auto` on a CPU measures both types on one core for some milliseconds, in CPU time: other load changes nothing.

    Prefill depends on products of many rows (arithmetic), decoding on those of one (the memory's bandwidth). The
    geometric mean of the two ratios decides: one of them alone may be too near to 1 to come out the same at every
    start, and workers that choose differently can share no KV.
    """
    if choice is not DtypeChoice.AUTO:
        return _DTYPES[choice]
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    ratios = [_product_seconds(torch.bfloat16, rows) / _product_seconds(torch.float32, rows) for rows in (1, 256)]
    return torch.bfloat16 if math.prod(ratios) < 1 else torch.float32


def rows_are_independent(
    dtype: torch.dtype, device: torch.device, shapes: Iterable[tuple[int, int]] = ((192, 96), (_SIZE, _SIZE))
) -> bool:
    """Is a row of a product the same, bit for bit, however many other rows are computed with it?

    Where it is (bfloat16 by oneDNN's kernels for AVX-512), a sequence's tokens do not depend on what else was in its
    batches, on how its prompt was cut or on what was found in the prefix cache. Elsewhere they may where two tokens are
    equally likely up to rounding. Tried for many numbers of rows and matrices [out, in] of some `shapes`, on the CPU;
    elsewhere the answer is no.
    """
    if device.type != "cpu":
        return False
    generator = torch.Generator().manual_seed(0)

    def matrix(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    for outs, ins in shapes:
        x, weight = matrix(144, ins), matrix(outs, ins)
        whole = functional.linear(x, weight)
        for rows in (*range(1, 40), 63, 64, 65, 127, 129):
            if not torch.equal(functional.linear(x[:rows], weight), whole[:rows]):
                return False
    return True


def _product_seconds(dtype: torch.dtype, rows: int, rounds: int = 7) -> float:
    """CPU time of one product on one core: the shortest of several."""
    weight = torch.ones((_SIZE, _SIZE), dtype=dtype)
    x = torch.ones((rows, _SIZE), dtype=dtype)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        times = []
        for _ in range(rounds + 1):  # the first one warms up
            started = time.thread_time()
            functional.linear(x, weight)
            times.append(time.thread_time() - started)
    finally:
        torch.set_num_threads(threads)
    return max(min(times[1:]), 1e-9)
