"""`prefixgate demo`: a gateway and simulated workers in one process, a request to paste, and a short replay."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import Annotated

import typer
import uvloop
import yaml
from rich.console import Console

from backends.simulated.engine import EngineConfig
from backends.simulated.fleet import FleetConfig, SimulatedFleet
from gateway.app import running, settle_down
from gateway.cli.simulate import gateway_config
from gateway.cli.start_errors import told_plainly
from gateway.config import Log, parse_config
from gateway.logs import set_up_logging


def demo(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the gateway, 0 for a free one.")] = 8000,
    workers: Annotated[int, typer.Option("-n", "--workers", min=1, max=64, help="Simulated workers.")] = 2,
    replay: Annotated[bool, typer.Option(help="Replay a short trace of chats, to see hits rise.")] = True,
    stay: Annotated[bool, typer.Option(help="Go on serving after the replay, until Ctrl+C.")] = True,
    speed: Annotated[
        float, typer.Option(min=0.001, help="Replay, and let the workers live, so many times faster than life.")
    ] = 1.0,
) -> None:
    """Try it without a GPU: a gateway in front of simulated workers, all in one command.

    With --no-stay the exit code is the replay's: 0 when every request was answered.

    [dim]Everything on embedded defaults; leaves nothing behind:[/]

        prefixgate demo

        prefixgate demo --port 8080 -n 4
    """
    with told_plainly("127.0.0.1", port, if_taken="choose another with --port", flags={"listen.port": "--port"}):
        code = uvloop.run(_demo(port, workers, replay=replay, stay=stay, speed=speed))
    raise typer.Exit(code)


async def _demo(port: int, workers: int, *, replay: bool, stay: bool, speed: float) -> int:
    """The exit code: the replay's, unless someone stopped the demo."""
    code = 0
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    console = Console()
    set_up_logging(Log(level="warning"))
    async with SimulatedFleet(workers, FleetConfig(engine=EngineConfig(speed=speed))) as fleet:
        settings = {
            "listen": {"port": port},
            "limits": {"drain_timeout": 1},
            "admin": {"port": 0},
            **gateway_config(fleet),
        }
        async with running(parse_config(yaml.safe_dump(settings))) as (program, bound):
            settle_down()
            url = f"http://127.0.0.1:{bound}"
            console.print(
                f"[bold green]prefixgate[/] listens on [bold]{url}[/], in front of {workers} simulated workers."
            )
            if replay:
                console.print("A short replay first: 60 turns of 12 chats that share a system prompt.\n")
                code = await _replay(url, workers, speed, stop)
            if stay and not stop.is_set():
                console.print("\nTry it, twice, and look at [bold]cached_tokens[/]:\n")
                console.print(_curl(url), soft_wrap=True, highlight=False, markup=False)
                console.print(f"\nIts metrics: http://127.0.0.1:{program.admin_port}/metrics", highlight=False)
                console.print("\nStop with Ctrl+C.")
                await stop.wait()
    return 0 if stop.is_set() else code


async def _replay(url: str, workers: int, speed: float, stop: asyncio.Event) -> int:
    """Run the replay in a process of its own, so that it measures from outside. Returns its exit code."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway.cli.replay", "demo"),
        *("--url", url, "--workers", str(workers), "--speed", str(speed)),
    )
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


def _curl(url: str) -> str:
    story = "Rivers carry water, sand and stories from the mountains to the sea. " * 8
    return (
        f"curl -s {url}/v1/chat/completions -H 'content-type: application/json' -d '"
        f'{{"model": "simulated", "max_tokens": 24, "messages": [{{"role": "user", "content": "{story.strip()}"}}]}}\''
    )
