"""`prefixgate check`: is this configuration good, and what does it say? Nothing is started."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gateway.cli.console import fail_config
from gateway.config import Config, ConfigError, Worker, json_schema, load_config
from gateway.config.reference import reference


def check(
    config: Annotated[
        Path | None, typer.Option("--config", "-c", metavar="FILE", help="YAML configuration to validate.")
    ] = None,
    schema: Annotated[
        bool,
        typer.Option("--schema", help="Print the JSON Schema of the file, for editors that complete YAML."),
    ] = False,
    docs: Annotated[bool, typer.Option("--docs", help="Print the reference of all settings, in Markdown.")] = False,
) -> None:
    """Validate a configuration without starting anything. Exit code 1 when it has problems; all are listed.

    [dim]Examples:[/]

        prefixgate check -c prefixgate.yaml

        prefixgate check --schema > prefixgate.schema.json
    """
    if sum((config is not None, schema, docs)) != 1:
        raise typer.BadParameter("give one of --config FILE, --schema and --docs")
    if schema:
        typer.echo(json.dumps(json_schema(), indent=2))
    if docs:
        typer.echo(reference(), nl=False)
    if config is None:
        return
    try:
        settings = load_config(config)
    except ConfigError as error:
        fail_config(error)
    _print_summary(Console(), config, settings)


def _print_summary(console: Console, path: Path, config: Config) -> None:
    console.print(f"[bold green]✓[/] {escape(str(path))} is valid", soft_wrap=True)
    listen = config.listen
    console.print(
        f"  listens on [bold]{escape(listen.host)}[/] port [bold]{listen.port or 'chosen at start'}[/],"
        f" routes by [bold]{config.routing.policy}[/]",
        highlight=False,
    )
    workers = Table("worker", "url", "models", "block size", "KV events", box=None, pad_edge=False)
    for worker in config.workers:
        workers.add_row(*(escape(cell) for cell in _cells(worker)))
    console.print(workers)
    if config.models:
        models = Table("model", "tokenizer", "chat template", box=None, pad_edge=False)
        for model in config.models:
            template = str(model.chat_template or ("of the tokenizer" if model.tokenizer else "none"))
            models.add_row(escape(model.name), escape(str(model.tokenizer or "none")), escape(template))
        console.print(models)
    for note in _notes(config):
        console.print(f"[yellow]note:[/] {escape(note)}", highlight=False, soft_wrap=True)


def _cells(worker: Worker) -> tuple[str, ...]:
    models = ", ".join(worker.models) if worker.models else "asked at start"
    events = worker.kv_events.endpoint if worker.kv_events else "predicted"
    return worker.name, worker.url, models, str(worker.block_size), events


def _notes(config: Config) -> list[str]:
    """Valid, but perhaps not what is meant."""
    notes = []
    if config.routing.policy == "cost" and not any(model.tokenizer for model in config.models):
        notes.append("no model has a tokenizer: the cost policy cannot see prefixes and routes by load alone")
    if config.listen.host in {"0.0.0.0", "::"}:  # noqa: S104 - compared with, not bound to
        notes.append("the gateway accepts connections from other machines and asks no one for a key")
    if len(config.workers) == 1:
        notes.append("with a single worker there is nothing to choose")
    return notes
