"""Running workers for tests: with a tiny model, or in front of an engine without one that fails on demand."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec

from backends.simulated.model_text import EMBEDDED_TOKENIZER
from backends.worker.options import EngineOptions, WorkerOptions
from backends.worker.worker import Worker

DOUBLE = Path(__file__).parent / "worker_engine_double.py"
MODEL = "tiny"
ENGINE = EngineOptions(model=str(EMBEDDED_TOKENIZER), served_model_name=MODEL, max_model_len=2048)


def double(*behaviours: str) -> tuple[str, ...]:
    """The command of an engine that behaves so."""
    words = [word for each in behaviours for word in ("--behaviour", each)]
    return (sys.executable, str(DOUBLE), *words)


def worker_options(*behaviours: str, engine: dict[str, Any] | None = None, **fields: Any) -> WorkerOptions:
    """`engine` are fields of EngineOptions, `fields` of WorkerOptions."""
    given = {
        "tokenizer": EMBEDDED_TOKENIZER,
        "drain_within": 0.1,
        "engine_command": double(*behaviours),
        **fields,
    }
    return WorkerOptions(engine=msgspec.structs.replace(ENGINE, **(engine or {})), **given)


@contextlib.asynccontextmanager
async def running_worker(*behaviours: str, **fields: Any) -> AsyncIterator[Worker]:
    """A worker whose engine behaves so."""
    async with Worker(worker_options(*behaviours, **fields)) as worker:
        yield worker


def real_options(directory: Path, engine: dict[str, Any] | None = None, **fields: Any) -> WorkerOptions:
    """A worker with the model of this directory, in float32 on one thread."""
    options = EngineOptions(model=str(directory), served_model_name=MODEL, dtype="float32", threads=1, kv_blocks=512)
    return WorkerOptions(engine=msgspec.structs.replace(options, **(engine or {})), **{"drain_within": 0.1, **fields})
