"""`prefixgate check`: is this configuration good, and what does it say? Nothing is started."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from gateway.cli.console import config_file, fail_config, plain_table
from gateway.config import Config, ConfigError, Model, Problem, Worker, json_schema, load_config
from gateway.config.reference import reference

if TYPE_CHECKING:
    from cache.tokenizer import Tokenizer


def check(
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="The same as --config FILE.")] = None,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", metavar="FILE", help="YAML configuration to validate.")
    ] = None,
    schema: Annotated[
        bool,
        typer.Option("--schema", help="Print the JSON Schema of the file, for editors that complete YAML."),
    ] = False,
    docs: Annotated[bool, typer.Option("--docs", help="Print the reference of all settings, in Markdown.")] = False,
    tokenizers: Annotated[
        bool, typer.Option(help="Load the models' tokenizers and chat templates, as a start would.")
    ] = True,
) -> None:
    """Validate a configuration without starting anything. Exit code 1 when it has problems; all are listed.

    Every tokenizer it names is loaded, which may take a second or two each.

    [dim]Examples:[/]

        prefixgate check -c prefixgate.yaml

        prefixgate check --schema > prefixgate.schema.json
    """
    config = config_file(file, config)
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
        keys = _keys_by_tenant(settings)
        _look_for_model(str(config), settings)
        loaded = _load_tokenizers(str(config), settings) if tokenizers else None
    except ConfigError as error:
        fail_config(error)
    _print_summary(Console(), config, settings, loaded, keys)


def _keys_by_tenant(config: Config) -> Mapping[str, int]:
    """How many keys each tenant has. Raises ConfigError where the file of keys cannot be used."""
    from gateway.tenant_assembly import keys_of  # noqa: PLC0415 - only where there is a configuration

    counts = {tenant.name: 0 for tenant in config.tenants.members}
    for name in keys_of(config).values() if counts else ():
        counts[name] += 1
    return counts


def _look_for_model(source: str, config: Config) -> None:
    """Raises ConfigError where the semantic cache has no model to make vectors with."""
    from gateway.semantic_assembly import lacks_model  # noqa: PLC0415 - only where there is a configuration

    if (lacking := lacks_model(config)) is not None:
        raise ConfigError(source, [lacking])


def _load_tokenizers(source: str, config: Config) -> dict[str, Tokenizer]:
    """Each model's tokenizer, by the model's name. Raises ConfigError with all that cannot be loaded."""
    from backends.simulated.model_text import EMBEDDED_TOKENIZER  # noqa: PLC0415 - only where it is asked for
    from cache.tokenizer import Tokenizer, TokenizerError  # noqa: PLC0415 - tokenizer libraries load slowly

    loaded: dict[str, Tokenizer] = {}
    problems: list[Problem] = []
    for position, model in enumerate(config.models):
        if model.tokenizer is None:
            continue
        directory = model.tokenizer if isinstance(model.tokenizer, Path) else EMBEDDED_TOKENIZER
        backends = ("fastokens", "tokenizers") if config.tokens.fast else ("tokenizers",)
        try:
            loaded[model.name] = Tokenizer.load(directory, backends=backends)
        except TokenizerError as error:
            problems.append(Problem(f"models[{position}].tokenizer", str(error)))
        if model.chat_template is not None and (reason := _template_fault(model.chat_template)):
            problems.append(Problem(f"models[{position}].chat_template", f"{model.chat_template}: {reason}"))
    if problems:
        raise ConfigError(source, problems)
    return loaded


def _template_fault(path: Path) -> str | None:
    from cache.chat_template import ChatTemplate  # noqa: PLC0415 - only where there is one

    try:
        ChatTemplate({"default": path.read_text(encoding="utf-8")}, {})
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    except ValueError as error:
        return str(error)
    return None


def _print_summary(
    console: Console, path: Path, config: Config, loaded: Mapping[str, Tokenizer] | None, keys: Mapping[str, int]
) -> None:
    console.print(f"[bold green]✓[/] {escape(str(path))} is valid", soft_wrap=True)
    listen = config.listen
    console.print(
        f"  listens on [bold]{escape(listen.host)}[/] port [bold]{listen.port or 'chosen at start'}[/],"
        f" routes by [bold]{config.routing.policy}[/]",
        highlight=False,
    )
    workers = plain_table("worker", "url", "models", "block", "KV events")
    for worker in config.workers:
        workers.add_row(*(escape(cell) for cell in _cells(worker)))
    console.print(workers)
    if config.models:
        models = plain_table("model", "tokenizer", "loaded", "chat template")
        for model in config.models:
            models.add_row(*(escape(cell) for cell in _model_cells(model, loaded)))
        console.print(models)
    if keys:
        tenants = plain_table("tenant", "priority", "weight", "keys", "cache")
        for tenant in config.tenants.members:
            cache = "private" if tenant.cache.group is None else f"shared in {tenant.cache.group}"
            cells = tenant.name, tenant.priority, f"{tenant.weight:g}", str(keys[tenant.name]), cache
            tenants.add_row(*(escape(cell) for cell in cells))
        console.print(tenants)
    for note in (*_notes(config, loaded or {}), *_tenant_notes(config, keys)):
        console.print(f"[yellow]note:[/] {escape(note)}", highlight=False, soft_wrap=True)


def _cells(worker: Worker) -> tuple[str, ...]:
    models = ", ".join(worker.models) if worker.models else "asked at start"
    events = worker.kv_events.endpoint if worker.kv_events else "predicted"
    return worker.name, worker.url, models, str(worker.block_size), events


def _model_cells(model: Model, loaded: Mapping[str, Tokenizer] | None) -> tuple[str, ...]:
    tokenizer = loaded.get(model.name) if loaded is not None else None
    own = "of the tokenizer" if model.tokenizer else "none"
    if tokenizer is not None and tokenizer.chat_template is None:
        own = "none"
    state = f"with {tokenizer.backend}" if tokenizer is not None else "not tried" if model.tokenizer else "–"
    return model.name, str(model.tokenizer or "none"), state, str(model.chat_template or own)


def _notes(config: Config, loaded: Mapping[str, Tokenizer]) -> list[str]:
    """Valid, but perhaps not what is meant."""
    notes = [
        f"the tokenizer of {model.name} has no chat template: chats are routed by load, completions by prefix"
        for model in config.models
        if model.name in loaded and loaded[model.name].chat_template is None and model.chat_template is None
    ]
    if config.routing.policy == "cost" and not any(model.tokenizer for model in config.models):
        notes.append("no model has a tokenizer: prompts are compared by their text")
    if config.listen.host in {"0.0.0.0", "::"} and not config.tenants.members:  # noqa: S104 - compared with, not bound to
        notes.append("the gateway accepts connections from other machines and asks no one for a key")
    if len(config.workers) == 1:
        notes.append("with a single worker there is nothing to choose")
    return notes


def _tenant_notes(config: Config, keys: Mapping[str, int]) -> list[str]:
    if not keys:
        return []
    notes = [f"tenant {name} has no key: nobody can be it" for name, count in keys.items() if not count]
    groups = [tenant.cache.group for tenant in config.tenants.members if tenant.cache.group is not None]
    notes += [
        f"cache group {group} has one tenant only: it shares with nobody"
        for group in sorted({*groups})
        if groups.count(group) == 1
    ]
    notes += [
        f"worker {worker.name} is given no cache_salt: its KV cache is not kept apart by tenant"
        for worker in config.workers
        if not worker.cache_salt
    ]
    if config.tenants.salt_key is None:
        notes.append("without tenants.salt_key this gateway makes its own: several gateways need the same one")
    return notes
