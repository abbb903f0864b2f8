"""docs/replay.md tells every option, JSON field and error class, and no other option."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import typer

from gateway.cli.replay import replay
from gateway.replay.records import RequestRecord
from gateway.replay.results import SCHEMA, row
from gateway.replay.stats import Distribution, Goodput, Hits, Summary

ROOT = Path(__file__).parent.parent
DOC = (ROOT / "docs" / "replay.md").read_text(encoding="utf-8")


def options() -> set[str]:
    app = typer.Typer(add_completion=False)
    app.command()(replay)
    command = typer.main.get_command(app)
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)} - {"trace"}


def test_every_option_is_documented_and_every_documented_one_exists() -> None:
    table = DOC[DOC.index("## Options") : DOC.index("## The figures")]
    assert set(re.findall(r"--[a-z][a-z0-9-]*", table)) == options() - {"--help"}
    assert set(re.findall(r"--[a-z][a-z0-9-]*", DOC)) <= options()


def test_every_json_field_is_documented() -> None:
    record = RequestRecord(index=0, session=None, scheduled=0.0, input_tokens=1, output_tokens=1, limit_tokens=0)
    names = [*row(record), *(field.name for kind in (Summary, Distribution, Hits, Goodput) for field in fields(kind))]
    table = DOC[DOC.index("## The JSON file") :]
    words = set(re.findall(r"[a-z0-9_]+", " ".join(re.findall(r"`[^`]+`", table))))
    assert set(names) <= words
    assert SCHEMA in DOC


def test_every_error_class_is_documented() -> None:
    source = "".join((ROOT / "gateway" / "replay" / name).read_text() for name in ("client.py", "records.py"))
    kinds = set(re.findall(r'(?:StreamError\(|return \(?|else |error_detail = )"([a-z_]+)"', source))
    assert {"truncated", "timeout", "reset_mid_stream", "error_event", "cancelled"} <= kinds
    assert all(f"`{kind}`" in DOC for kind in kinds)
