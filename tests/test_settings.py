"""Every setting does something: what can be written into a configuration is read where the parts are put together."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel

from gateway.config import Config

GATEWAY = Path(__file__).parent.parent / "gateway"
READERS = (
    "app", "assembly", "discover", "logs", "program", "program_control", "reload", "tls", "admin/server",
    "telemetry/span_export", "tenant_assembly", "jwt_tenants", "shared_limits",
    "response_assembly", "semantic_assembly", "observation", "followers",
)  # fmt: skip

# Read by the models themselves, on behalf of what is read.
DERIVED = {"workers.url": "address"}


def settings(model: type[BaseModel], path: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        inner = [kind for kind in nested(field.annotation) if isinstance(kind, type) and issubclass(kind, BaseModel)]
        if inner:
            yield from settings(inner[0], f"{path}{name}.")
        else:
            yield path + name


def nested(annotation: object) -> Iterator[object]:
    arguments = get_args(annotation)
    if not arguments:
        yield annotation
    for argument in arguments:
        yield from nested(argument)


@cache
def names_read() -> set[str]:
    sources = [(GATEWAY / f"{module}.py").read_text() for module in READERS]
    return {node.attr for source in sources for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute)}


@pytest.mark.parametrize("path", sorted(settings(Config)))
def test_the_setting_is_read(path: str) -> None:
    name = DERIVED.get(path, path.rpartition(".")[2])
    assert name in names_read(), f"nothing reads {path}"
