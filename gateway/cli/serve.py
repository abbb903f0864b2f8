"""`prefixgate serve`: start the gateway from a file, or from a few flags."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from gateway.cli.console import config_file, fail_config
from gateway.config import Config, ConfigError, config_from_flags, load_config


def serve(
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="The same as --config FILE.")] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", metavar="FILE", help="YAML configuration; takes the place of all flags below."),
    ] = None,
    worker: Annotated[
        list[str] | None,
        typer.Option("--worker", "-w", metavar="URL", help="An engine, http://host:port. Once for each."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="The model's name, as the workers serve it.")
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            metavar="DIR|embedded",
            help="Directory of the model's tokenizer.json; [bold]embedded[/] for the simulated engine's own. "
            "Without it prompts are compared by their text.",
        ),
    ] = None,
    kv_events: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ENDPOINT",
            help="ZMQ endpoint of a worker's KV events, tcp://host:port. Once for each --worker, in order.",
        ),
    ] = None,
    block_size: Annotated[
        int | None,
        typer.Option(metavar="TOKENS", help="Tokens per KV block of the workers. [dim]default: 16[/]"),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="cost, slo, prefix_affinity, consistent_hash, least_loaded, power_of_two, round_robin or random. "
            "[dim]default: cost[/]",
        ),
    ] = None,
    host: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Address to listen on. [dim]default: 127.0.0.1[/]")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(metavar="PORT", help="Port to listen on, 0 for a free one. [dim]default: 8000[/]"),
    ] = None,
    admin_port: Annotated[
        int | None,
        typer.Option(metavar="PORT", help="Port for health and metrics, 0 for a free one. [dim]default: 9400[/]"),
    ] = None,
) -> None:
    r"""Start the gateway. Clients then use its address as their OpenAI base URL.

    [dim]In front of two vLLM workers, with their tokenizer so that prompts go where their prefix is:[/]

        prefixgate serve -w http://10.0.0.1:8000 -w http://10.0.0.2:8000 \
            --model Qwen/Qwen3-8B --tokenizer ./Qwen3-8B

    [dim]Everything else is set in a file; see docs/configuration.md and [bold]prefixgate check[/]:[/]

        prefixgate serve -c prefixgate.yaml
    """
    config = config_file(file, config)
    flags = (worker, model, tokenizer, kv_events, block_size, policy, host, port, admin_port)
    if config is None and not worker:
        raise typer.BadParameter("give --config FILE, or --worker URL at least once")
    if config is not None and any(flag is not None for flag in flags):
        raise typer.BadParameter("--config takes the place of the other flags: write them into the file")
    try:
        settings = (
            load_config(config)
            if config is not None
            else config_from_flags(
                workers=worker or (),
                model=model,
                tokenizer=tokenizer,
                kv_events=kv_events or (),
                host=host,
                port=port,
                admin_port=admin_port,
                policy=policy,
                block_size=block_size,
            )
        )
    except ConfigError as error:
        fail_config(error, exit_code=1 if config is not None else 2)
    _run(settings, config)


_FLAGS: Final = {"listen.port": "--port", "admin.port": "--admin-port"}


def _run(settings: Config, file: Path | None) -> None:
    # --help and a bad configuration need none of the data plane.
    from gateway.app import run  # noqa: PLC0415 - as said above
    from gateway.cli.start_errors import told_plainly  # noqa: PLC0415 - as said above

    with told_plainly(settings.listen.host, settings.listen.port, if_taken="", flags=_FLAGS if file is None else None):
        run(settings, file=file)
