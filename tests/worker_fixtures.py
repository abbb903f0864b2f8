"""Running workers for tests, in front of an engine without a model."""

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
    given = {"drain_within": 0.1, "engine_command": double(*behaviours), **fields}
    return WorkerOptions(engine=msgspec.structs.replace(ENGINE, **(engine or {})), **given)


@contextlib.asynccontextmanager
async def running_worker(*behaviours: str, **fields: Any) -> AsyncIterator[Worker]:
    """A worker whose engine behaves so."""
    async with Worker(worker_options(*behaviours, **fields)) as worker:
        yield worker
