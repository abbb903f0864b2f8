"""From a file, a text or command-line flags to a `Config`, or to a `ConfigError` that lists every problem."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from gateway.config.fields import BASE_DIR
from gateway.config.problems import ConfigError, Origins, Problem, problems_of
from gateway.config.schema import Config
from gateway.config.yaml_source import read_yaml


def load_config(path: Path | str, *, environment: Mapping[str, str] | None = None) -> Config:
    """Read and validate a YAML file; files that it names must exist. Relative paths start at its folder.

    Raises ConfigError.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(str(path), [Problem("", f"cannot be read: {error.strerror}")]) from None
    except UnicodeDecodeError:
        raise ConfigError(str(path), [Problem("", "is not UTF-8 text")]) from None
    return parse_config(text, source=str(path), base_dir=path.parent, environment=environment)


def parse_config(
    text: str,
    *,
    source: str = "configuration",
    base_dir: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Config:
    """Validate YAML text. `source` names it in errors; without `base_dir` no file is looked for.

    Raises ConfigError.
    """
    read = read_yaml(text, os.environ if environment is None else environment)
    if read.value is None:
        empty = Problem("", "is empty; it needs at least one entry under workers")
        raise ConfigError(source, read.problems or [empty])
    return _validate(read.value, source, base_dir, read.origins, read.problems)


def config_from_flags(
    *,
    workers: Sequence[str],
    model: str | None = None,
    tokenizer: str | None = None,
    kv_events: Sequence[str] = (),
    host: str | None = None,
    port: int | None = None,
    admin_port: int | None = None,
    policy: str | None = None,
    block_size: int | None = None,
) -> Config:
    """Make the configuration that `serve --worker URL …` stands for; None keeps a setting's default.

    `kv_events` holds one endpoint per worker, in the workers' order, or nothing. Raises ConfigError.
    """
    problems: list[Problem] = []
    if kv_events and len(kv_events) != len(workers):
        problems.append(
            Problem("--kv-events", f"give one for each --worker: {len(workers)} expected, {len(kv_events)} given")
        )
    if tokenizer is not None and model is None:
        problems.append(Problem("--tokenizer", "needs --model NAME, the model's name as the workers serve it"))
    entries: list[dict[str, object]] = [{"url": url, **_given(block_size=block_size)} for url in workers]
    for entry, endpoint in zip(entries, kv_events, strict=False):
        entry["kv_events"] = {"endpoint": endpoint}
    data: dict[str, object] = {
        "listen": _given(host=host, port=port),
        "admin": _given(port=admin_port),
        "routing": _given(policy=policy),
        "workers": entries,
        "models": [_given(name=model, tokenizer=tokenizer)] if model is not None else [],
    }
    return _validate(data, "command line", Path.cwd(), Origins(), problems)


def json_schema() -> dict[str, object]:
    """The JSON Schema of a configuration file."""
    schema = Config.model_json_schema(mode="validation")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "prefixgate configuration",
    }


def _given(**settings: object) -> dict[str, object]:
    return {name: value for name, value in settings.items() if value is not None}


def _validate(data: object, source: str, base_dir: Path | None, origins: Origins, problems: list[Problem]) -> Config:
    """Validate even what has problems already, so that all of them are told at once."""
    try:
        config = Config.model_validate(data, context={BASE_DIR: base_dir} if base_dir is not None else None)
    except ValidationError as error:
        known = {problem.path for problem in problems if problem.path}
        found = problems_of(error.errors(include_url=False), Config, origins)
        raise ConfigError(source, problems + [problem for problem in found if problem.path not in known]) from None
    if problems:
        raise ConfigError(source, problems)
    return config
