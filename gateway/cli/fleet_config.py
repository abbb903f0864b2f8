"""The gateway configuration that fits a fleet of engines of our own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import typer
import yaml

STDOUT: Final = "-"


def worker_entry(
    name: str,
    url: str,
    models: Sequence[str],
    *,
    block_size: int,
    kv_blocks: int,
    max_model_len: int,
    kv_endpoint: str | None,
    replay_endpoint: str | None,
) -> dict[str, object]:
    """One item of `workers`, as YAML data."""
    entry: dict[str, object] = {
        "name": name,
        "url": _reachable(url),
        "models": list(models),
        "block_size": block_size,
        "kv_blocks": kv_blocks,
        "max_model_len": max_model_len,
    }
    if kv_endpoint is not None:
        entry["kv_events"] = {
            "endpoint": _reachable(kv_endpoint),
            "replay_endpoint": _reachable(replay_endpoint),
        }
    return entry


def fleet_config(tokenizers: Mapping[str, str], workers: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """The configuration, as YAML data; `tokenizers` names each model's."""
    models = [{"name": name, "tokenizer": source} for name, source in tokenizers.items()]
    return {"models": models, "workers": list(workers)}


def _reachable(address: str | None) -> str | None:
    """An address to connect to: engines that listen everywhere are reached on this machine."""
    return address and address.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")


def write_config(config: Mapping[str, object], target: str) -> None:
    """Write it as YAML to a file, or to standard output for "-". Raises OSError."""
    text = yaml.safe_dump(dict(config), sort_keys=False)
    if target == STDOUT:
        typer.echo(text)
    else:
        Path(target).write_text(text, encoding="utf-8")
