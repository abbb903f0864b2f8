"""The engine as a child process: started, waited for, stopped."""

from __future__ import annotations

import asyncio
import contextlib
import os
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import msgspec

from backends.worker.options import EngineOptions

_ROOT = Path(__file__).parents[2]
_KILLED_WITHIN = 10.0


class EngineChild:
    """One running engine. It writes its log to our standard error."""

    def __init__(self, process: Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, command: Sequence[str], endpoint: str, options: EngineOptions) -> Self:
        """Start it. Raises OSError."""
        config = msgspec.json.encode(options).decode()
        paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        process = await asyncio.create_subprocess_exec(
            *command,
            "--channel",
            endpoint,
            "--config",
            config,
            stdin=DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            # Ctrl+C in a terminal is for the server, which then stops the engine in order.
            start_new_session=True,
        )
        return cls(process)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    async def wait(self) -> int:
        """Wait until it ends; its exit status, or minus the signal that ended it."""
        return await self._process.wait()

    async def stop(self, within: float) -> int:
        """Ask it to end, kill it after `within` seconds; its status as `wait` tells it."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        try:
            return await asyncio.wait_for(self.wait(), within)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        return await asyncio.wait_for(self.wait(), _KILLED_WITHIN)
