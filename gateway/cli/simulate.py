"""`prefixgate simulate`: run engines without weights, for tests, benchmarks and capacity planning."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Annotated

import typer
import uvloop
import zmq
from rich.console import Console

from backends.simulated.engine import EngineConfig
from backends.simulated.fleet import FleetConfig, SimulatedFleet, TierConfig
from backends.simulated.model_text import EMBEDDED_TOKENIZER
from backends.simulated.prometheus_text import Flavour
from backends.simulated.timing import LinearPrefill, PublishedTiming
from cache.kv_events import Encoding
from cache.tokenizer import TokenizerError
from gateway.cli.console import fail_to_listen, plain_table
from gateway.cli.fleet_config import STDOUT, fleet_config, worker_entry
from gateway.cli.fleet_config import write_config as write

_EMBEDDED = "embedded"


def simulate(
    workers: Annotated[int, typer.Option("-n", "--workers", min=1, max=256, help="How many engines.")] = 1,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the first engine; the rest follow. 0: free ports.")
    ] = 8100,
    model: Annotated[str, typer.Option(help="Name of the served model.")] = "simulated",
    tokenizer: Annotated[
        str, typer.Option(metavar="DIR|embedded", help="Directory with tokenizer.json, or the embedded one.")
    ] = _EMBEDDED,
    blocks: Annotated[int, typer.Option(min=1, help="KV blocks an engine holds.")] = 16_384,
    block_size: Annotated[int, typer.Option(min=1, max=1024, help="Tokens in a block.")] = 16,
    max_model_len: Annotated[int, typer.Option(min=2, help="Longest prompt plus answer, in tokens.")] = 32_768,
    max_num_seqs: Annotated[int, typer.Option(min=1, max=8192, help="Sequences an engine runs at once.")] = 256,
    max_waiting: Annotated[
        int | None, typer.Option(min=1, help="Refuse with 503 when so many wait. Default: no limit.")
    ] = None,
    speed: Annotated[
        float, typer.Option(min=0.001, help="Live so many times faster than life, to race through a trace.")
    ] = 1.0,
    prefill_tokens_per_s: Annotated[
        float | None,
        typer.Option(min=1, help="Plain timing instead: prefill in turn at this rate, decoding free."),
    ] = None,
    host_blocks: Annotated[
        int, typer.Option(min=0, help="KV blocks in host memory behind each engine's cache. 0: none.")
    ] = 0,
    store_blocks: Annotated[int, typer.Option(min=0, help="KV blocks in a store that all engines share. 0: none.")] = 0,
    host_tokens_per_s: Annotated[
        float, typer.Option(min=1, help="How fast an engine restores from its host memory.")
    ] = 300_000,
    store_tokens_per_s: Annotated[
        float, typer.Option(min=1, help="How fast an engine restores from the shared store.")
    ] = 100_000,
    kv_events: Annotated[bool, typer.Option(help="Publish KV events over ZMQ.")] = True,
    kv_port: Annotated[
        int,
        typer.Option(min=0, max=65535, help="Port of the first engine's events; replay is on the next. 0: free."),
    ] = 5557,
    kv_encoding: Annotated[Encoding, typer.Option(help="How events are encoded.")] = Encoding.ARRAY,
    name_prefix: Annotated[str, typer.Option(help="Engines are named PREFIX0, PREFIX1, ...")] = "sim-",
    lora: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Serve a LoRA adapter of this name too; may be repeated.")
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Want it as the bearer token on every route under /v1.")
    ] = None,
    flavour: Annotated[Flavour, typer.Option(help="Whose metric names /metrics has.")] = Flavour.VLLM,
    faults: Annotated[bool, typer.Option("--faults", help="Obey x-simulate-fault. For tests only.")] = False,
    write_config: Annotated[
        str | None,
        typer.Option(metavar="FILE|-", help="Write the gateway configuration that fits: for `serve -c FILE`."),
    ] = None,
) -> None:
    r"""Run simulated engines: OpenAI-compatible, with real prefix caches and KV events, and no weights.

    Time passes as a published model of an engine says; prompts are really tokenized and cached in blocks.

    [dim]Two engines, and a gateway in front of them:[/]

        prefixgate simulate -n 2 --write-config fleet.yaml

        prefixgate serve -c fleet.yaml

    [dim]Eight engines that live ten times faster, small caches:[/]

        prefixgate simulate -n 8 --speed 10 --blocks 2000

    [dim]Two engines with small caches, host memory behind each and a store behind both:[/]

        prefixgate simulate -n 2 --blocks 2000 \
            --host-blocks 8000 --store-blocks 50000
    """
    timing = PublishedTiming() if prefill_tokens_per_s is None else LinearPrefill(prefill_tokens_per_s)
    config = FleetConfig(
        model=model,
        tokenizer=EMBEDDED_TOKENIZER if tokenizer == _EMBEDDED else Path(tokenizer),
        engine=EngineConfig(
            blocks=blocks,
            block_size=block_size,
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            max_waiting=max_waiting,
            timing=timing,
            speed=speed,
            host=TierConfig(host_blocks, s_per_token=1 / host_tokens_per_s) if host_blocks else None,
        ),
        store=TierConfig(store_blocks, s_per_token=1 / store_tokens_per_s) if store_blocks else None,
        host=host,
        port=port,
        name_prefix=name_prefix,
        kv_events=kv_events,
        kv_port=kv_port,
        kv_encoding=kv_encoding,
        faults=faults,
        adapters=tuple(lora or ()),
        api_key=api_key,
        flavour=flavour,
    )
    try:
        fleet = SimulatedFleet(workers, config)
        uvloop.run(_serve(fleet, write_config))
    except (TokenizerError, ValueError) as error:
        raise typer.BadParameter(str(error), param_hint="--tokenizer") from None
    except (OSError, zmq.ZMQError) as error:
        fail_to_listen(error)


def gateway_config(fleet: SimulatedFleet) -> dict[str, object]:
    """The configuration of a gateway in front of this running fleet, as YAML data."""
    config = fleet.config
    embedded = config.tokenizer == EMBEDDED_TOKENIZER
    names = [config.model, *config.adapters]
    workers = [
        worker_entry(
            worker.name,
            worker.url,
            names,
            block_size=config.engine.block_size,
            kv_blocks=config.engine.blocks,
            max_model_len=config.engine.context_tokens,
            kv_endpoint=worker.kv_endpoint,
            replay_endpoint=worker.replay_endpoint,
        )
        for worker in fleet.workers
    ]
    source = _EMBEDDED if embedded else str(config.tokenizer.resolve())
    return fleet_config(dict.fromkeys(names, source), workers)


async def _serve(fleet: SimulatedFleet, write_config: str | None) -> None:
    """Run until SIGINT or SIGTERM."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with fleet:
        if write_config is not None:
            await asyncio.to_thread(write, gateway_config(fleet), write_config)
        # Standard output belongs to the configuration where that was asked for.
        _print_fleet(Console(stderr=write_config == STDOUT), fleet)
        await stop.wait()


def _print_fleet(console: Console, fleet: SimulatedFleet) -> None:
    engine = fleet.config.engine
    count = len(fleet.workers)
    console.print(f"{count} simulated engine{'' if count == 1 else 's'}, model {fleet.config.model}", markup=False)
    table = plain_table("engine", "URL", "KV events", "replay")
    for worker in fleet.workers:
        table.add_row(worker.name, worker.url, worker.kv_endpoint or "off", worker.replay_endpoint or "off")
    console.print(table)
    tokens = engine.blocks * engine.block_size
    console.print(
        f"Each holds {engine.blocks} blocks of {engine.block_size} tokens ({tokens} tokens); its speed is "
        f"{engine.speed:g}. Stop with Ctrl+C."
    )
