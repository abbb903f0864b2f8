"""A gateway that was started from a file, which a test then changes under it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from backends.simulated.engine import EngineConfig
from backends.simulated.fleet import FleetConfig, SimulatedFleet
from gateway.app import running
from gateway.config import load_config
from gateway.program import Program
from tests.gateway_fixtures import eventually, model_text

CHAT = {"model": "simulated", "messages": [{"role": "user", "content": "Who reads this?"}], "max_tokens": 4}
TOKEN = "first-token-of-the-operator"


@dataclass
class Settings:
    """A configuration in the making: each top-level section as YAML."""

    workers: list[str]
    sections: dict[str, str] = field(
        default_factory=lambda: {
            "listen": "{port: 0}",
            "admin": f"{{port: 0, token: {TOKEN}}}",
            "reload": "{watch: 30ms}",
            "limits": "{drain_timeout: 1s}",
            "response_headers": "{worker: x-worker}",
            "health": "{probe: {interval: 200ms}}",
        }
    )

    def text(self, **changes: str) -> str:
        """With some sections changed, for good."""
        self.sections |= changes
        lines = [f"{name}: {value}" for name, value in self.sections.items()]
        return "\n".join([*lines, "workers:", *(f"  - {{{worker}}}" for worker in self.workers)]) + "\n"


@dataclass
class Running:
    """A gateway, its file, and a client that keeps its connection."""

    program: Program
    fleet: SimulatedFleet
    settings: Settings
    file: Path
    http: aiohttp.ClientSession
    url: str
    lines: list[str]

    def write(self, **changes: str) -> None:
        """Write the file anew, as an editor does: another file takes its place."""
        fresh = self.file.with_suffix(".new")
        fresh.write_text(self.settings.text(**changes))
        fresh.replace(self.file)

    async def change(self, **changes: str) -> None:
        """Write it and wait until it is in force."""
        before = self.program.config
        self.write(**changes)
        await eventually(lambda: self.program.config is not before)

    async def chat(self, **changes: Any) -> str:
        """One request that must succeed; the worker that answered."""
        headers = changes.pop("headers", {})
        async with self.http.post(
            f"{self.url}/v1/chat/completions", json={**CHAT, **changes}, headers=headers
        ) as response:
            assert response.status == 200, await response.text()
            assert (await response.json())["choices"][0]["finish_reason"]
            return response.headers["x-worker"]

    async def admin(self, method: str, path: str, *, token: str = TOKEN, **options: Any) -> tuple[int, Any]:
        """Ask the control plane."""
        url = f"http://127.0.0.1:{self.program.admin_port}{path}"
        async with self.http.request(method, url, headers={"authorization": f"Bearer {token}"}, **options) as response:
            return response.status, await response.json()

    def said(self, text: str) -> int:
        """How many lines of the log have it."""
        return sum(text in line for line in self.lines)


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture
def lines() -> Iterator[list[str]]:
    """What the program logs; a reload may replace the root logger's handlers, which are put back."""
    root, handler = logging.getLogger(), _Lines()
    handlers, level = root.handlers[:], root.level
    loggers = [logging.getLogger(name) for name in ("gateway", "backends")]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
    yield handler.lines
    for logger in loggers:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
    root.handlers[:] = handlers
    root.setLevel(level)


def entry(fleet: SimulatedFleet, number: int, name: str = "", more: str = "") -> str:
    """A worker of the configuration."""
    return f"name: {name or f'w{number}'}, url: '{fleet.workers[number].url}'{more}"


@contextlib.asynccontextmanager
async def from_file(
    folder: Path, lines: list[str], *, n: int = 3, used: int = 2, speed: float = 200.0, **sections: str
) -> AsyncIterator[Running]:
    """A gateway started from a file in `folder`, in front of `used` of `n` simulated workers."""
    config = FleetConfig(engine=EngineConfig(speed=speed), record=50)
    async with SimulatedFleet(n, config, text=model_text()) as fleet, aiohttp.ClientSession() as http:
        settings = Settings([entry(fleet, number) for number in range(used)])
        file = folder / "gateway.yaml"
        file.write_text(settings.text(**sections))
        async with running(load_config(file), file=file) as (program, port):
            scheme = "http" if program.tls is None else "https"
            yield Running(program, fleet, settings, file, http, f"{scheme}://127.0.0.1:{port}", lines)
