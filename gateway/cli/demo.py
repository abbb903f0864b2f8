"""`prefixgate demo`: a gateway and its workers in one command, something to look at, and a request to paste."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import secrets
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer
import uvloop
import yaml
from rich.console import Console

from backends.simulated.engine import EngineConfig
from backends.simulated.fleet import FleetConfig, SimulatedFleet
from backends.worker.engine_client import EngineError
from backends.worker.model_source import DEFAULT_MODEL
from backends.worker.options import EngineOptions, WorkerOptions
from backends.worker.worker import Worker
from backends.worker_status import Standing
from gateway.app import running, settle_down
from gateway.cli import simulate
from gateway.cli import worker as worker_command
from gateway.cli.console import fail
from gateway.cli.start_errors import told_plainly
from gateway.config import Log, parse_config
from gateway.logs import set_up_logging
from gateway.program import Program

_MEMORY: Final = 1 << 30
"""Bytes for each torch worker: its model is small, and so shall be what it takes of a laptop."""
_DISK: Final = 256 << 20
_PATIENCE: Final = 30.0


class EngineChoice(StrEnum):
    """What answers."""

    auto = "auto"
    worker = "worker"
    simulated = "simulated"


@dataclass(frozen=True, slots=True)
class Fleet:
    """Running workers of either kind."""

    config: dict[str, object]
    """The gateway's, as YAML data."""
    kind: str
    show: tuple[str, ...]
    """Module and arguments of what is shown first."""
    about: str
    """What that is."""
    restart: Callable[[], Awaitable[None]] | None = None
    """Stops the workers and starts them again, where they keep what they have computed."""


def demo(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the gateway, 0 for a free one.")] = 8000,
    workers: Annotated[int, typer.Option("-n", "--workers", min=1, max=64, help="How many workers.")] = 2,
    engine: Annotated[
        EngineChoice, typer.Option(help="The torch worker with its small model, or a timed engine without weights.")
    ] = EngineChoice.auto,
    replay: Annotated[bool, typer.Option(help="Show something first: a chat, or a short replay of chats.")] = True,
    stay: Annotated[bool, typer.Option(help="Go on serving after that, until Ctrl+C.")] = True,
    speed: Annotated[
        float, typer.Option(min=0.001, help="Simulated: replay, and let the workers live, so many times faster.")
    ] = 1.0,
) -> None:
    """Try it without a GPU: a gateway in front of workers, all in one command.

    With torch installed, the workers serve the small model that comes with prefixgate, and a chat of ten turns is held
    before and after they are restarted: a report sets cached tokens and TTFT of both beside each other. Without it,
    simulated engines answer noise in a real engine's time.
    With --no-stay the exit code says whether every request was answered.

    [dim]Everything on embedded defaults; leaves nothing behind:[/]

        prefixgate demo

        prefixgate demo --engine simulated --port 8080 -n 4
    """
    has_torch = importlib.util.find_spec("torch") is not None
    if engine is EngineChoice.worker and not has_torch:
        fail("the worker needs torch: pip install 'prefixgate[worker]', or choose --engine simulated")
    real = engine is EngineChoice.worker or (engine is EngineChoice.auto and has_torch)
    fleet = _torch_fleet(workers) if real else _simulated_fleet(workers, speed)
    try:
        with told_plainly("127.0.0.1", port, if_taken="choose another with --port", flags={"listen.port": "--port"}):
            code = uvloop.run(_demo(port, fleet, show=replay, stay=stay))
    except EngineError as error:
        fail(str(error))
    raise typer.Exit(code)


@contextlib.asynccontextmanager
async def _simulated_fleet(count: int, speed: float) -> AsyncIterator[Fleet]:
    async with SimulatedFleet(count, FleetConfig(engine=EngineConfig(speed=speed))) as fleet:
        yield Fleet(
            simulate.gateway_config(fleet),
            f"{count} simulated workers",
            ("gateway.cli.replay", "demo", "--workers", str(count), "--speed", str(speed)),
            "A short replay first: 60 turns of 12 chats that share a system prompt.",
        )


class _TorchWorkers:
    """Torch workers that keep their KV on disk, and come back on the same ports."""

    def __init__(self, count: int, folder: Path) -> None:
        self._options = [
            WorkerOptions(
                engine=EngineOptions(
                    model=DEFAULT_MODEL,
                    memory=_MEMORY,
                    threads=1,
                    kv_disk=str(folder / str(index)),
                    kv_disk_bytes=_DISK,
                ),
                name=f"worker-{index}",
            )
            for index in range(count)
        ]
        self._stack = contextlib.AsyncExitStack()
        self.running: list[Worker] = []

    async def start(self) -> None:
        """All of them at once; each takes some seconds to load torch."""
        self.running = [Worker(options) for options in self._options]
        async with asyncio.TaskGroup() as starting:
            for each in self.running:
                starting.create_task(self._stack.enter_async_context(each))

    async def restart(self) -> None:
        """Stop them, which empties their pools, and start them where they were."""
        self._options = [
            replace(
                options,
                port=each.port,
                kv_port=_port(each.kv_endpoint),
                kv_replay_port=_port(each.replay_endpoint),
            )
            for options, each in zip(self._options, self.running, strict=True)
        ]
        await self.stop()
        await self.start()

    async def stop(self) -> None:
        """All of them."""
        await self._stack.aclose()


def _port(endpoint: str | None) -> int:
    return int((endpoint or ":0").rpartition(":")[2])


@contextlib.asynccontextmanager
async def _torch_fleet(count: int) -> AsyncIterator[Fleet]:
    with tempfile.TemporaryDirectory(prefix="prefixgate-") as folder:
        workers = _TorchWorkers(count, Path(folder))
        try:
            await workers.start()
            yield Fleet(
                worker_command.gateway_config(workers.running),
                f"{count} torch workers that serve a small model",
                ("gateway.cli.demo_chat", "--transcript", str(Path(folder) / "chat.json")),
                "A chat of ten turns first. It begins with a system prompt of some length.",
                workers.restart,
            )
        finally:
            await workers.stop()


async def _demo(port: int, starting: contextlib.AbstractAsyncContextManager[Fleet], *, show: bool, stay: bool) -> int:
    """The exit code: that of what was shown, unless someone stopped the demo."""
    code = 0
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    console = Console()
    set_up_logging(Log(level="error"))  # workers that are restarted are missed, and need not be told of
    async with contextlib.AsyncExitStack() as stack:
        with console.status("Starting the workers ..."):
            fleet = await stack.enter_async_context(starting)
        token = secrets.token_hex(8)
        settings = {
            "listen": {"port": port},
            "limits": {"drain_timeout": 1},
            "admin": {"port": 0, "token": token},
            "health": {"probe": {"interval": 1}},
            "routing": {"sessions": {"header": "x-session-id"}},
            **fleet.config,
        }
        program, bound = await stack.enter_async_context(running(parse_config(yaml.safe_dump(settings))))
        settle_down()
        url = f"http://127.0.0.1:{bound}"
        console.print(f"[bold green]prefixgate[/] listens on [bold]{url}[/], in front of {fleet.kind}.")
        if show:
            console.print(f"{fleet.about}\n")
            code = await _show(fleet.show, url, stop)
            if fleet.restart is not None and not code and not stop.is_set():
                console.print("\nThe same ten turns before and after a restart of the workers, with KV on disk:\n")
                with console.status("Restarting the workers ..."):
                    await fleet.restart()
                    await _all_well(program, stop)
                code = await _show(fleet.show, url, stop)
        if stay and not stop.is_set():
            console.print("\nTry it, twice, and look at [bold]cached_tokens[/]:\n")
            console.print(_curl(url, fleet.config), soft_wrap=True, highlight=False, markup=False)
            admin = f"http://127.0.0.1:{program.admin_port}"
            console.print("\nWhere the last ones went; [bold]/admin/requests/ID[/] tells why, by the id of one:\n")
            told = f"curl -s -H 'Authorization: Bearer {token}' '{admin}/admin/requests?limit=2'"
            console.print(told, soft_wrap=True, highlight=False, markup=False)
            console.print(f"\nMetrics: {admin}/metrics", highlight=False)
            console.print("\nStop with Ctrl+C.")
            await stop.wait()
    return 0 if stop.is_set() else code


async def _all_well(program: Program, stop: asyncio.Event) -> None:
    """Wait until the gateway has seen that every worker is back, or until `_PATIENCE` is over."""
    now = asyncio.get_running_loop().time
    end = now() + _PATIENCE
    while now() < end and not stop.is_set():
        if all(status.standing is Standing.READY for status in program.fleet.statuses(now())):
            return
        await asyncio.sleep(0.1)


async def _show(words: Sequence[str], url: str, stop: asyncio.Event) -> int:
    """Run it in a process of its own, so that it measures from outside. Returns its exit code."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", *words, "--url", url)
    stopped = asyncio.ensure_future(stop.wait())
    ended = asyncio.ensure_future(process.wait())
    try:
        await asyncio.wait({stopped, ended}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
        if process.returncode is None:
            process.terminate()
        code = await ended
    return code


def _curl(url: str, config: dict[str, object]) -> str:
    models = config["models"]
    assert isinstance(models, list)
    story = "Rivers carry water, sand and stories from the mountains to the sea. " * 8
    return (
        f"curl -s {url}/v1/chat/completions -H 'content-type: application/json' -d '"
        f'{{"model": "{models[0]["name"]}", "max_tokens": 24, '
        f'"messages": [{{"role": "user", "content": "{story.strip()}"}}]}}\''
    )
