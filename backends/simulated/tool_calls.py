"""Deterministic tool calls: arguments that have the types of the function's JSON schema. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from backends.engine_api.api_errors import ApiError
from backends.simulated.openai_requests import ChatRequest

_MOST_DEPTH = 8


def forced_call(request: ChatRequest, seed: int) -> tuple[str, str] | None:
    """Name and arguments (ASCII JSON) of the call that `tool_choice` forces, if it forces one.

    Raises ApiError when the choice names no listed tool.
    """
    choice, tools = request.tool_choice, request.tools or []
    if choice in (None, "none", "auto"):
        return None
    functions = [tool["function"] for tool in tools if isinstance(tool.get("function"), dict)]
    if choice == "required":
        if not functions:
            raise ApiError(400, "When using `tool_choice`, `tools` must be set.", param="tool_choice")
        function = functions[seed % len(functions)]
        return str(function.get("name")), _arguments(function, seed)
    wanted = choice.get("function") if isinstance(choice, dict) else None
    name = wanted.get("name") if isinstance(wanted, dict) else None
    for function in functions:
        if name is not None and function.get("name") == name:
            return str(name), _arguments(function, seed)
    message = "The tool specified in `tool_choice` does not match any of the specified `tools`"
    raise ApiError(400, message, param="tool_choice")


def _arguments(function: Mapping[str, Any], seed: int) -> str:
    schema = function.get("parameters")
    value = _example(schema, seed, 0) if isinstance(schema, dict) else {}
    return json.dumps(value if isinstance(value, dict) else {})


def _example(schema: Mapping[str, Any], seed: int, depth: int) -> object:  # noqa: PLR0911 - one for each type
    """A value of the schema's type; unknown or deeper than eight levels is null."""
    if depth > _MOST_DEPTH:
        return None
    if isinstance(options := schema.get("enum"), list) and options:
        return options[seed % len(options)]
    if "const" in schema:
        return schema["const"]
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = kind[0] if kind else None
    match kind:
        case "object":
            properties = schema.get("properties")
            fields = properties.items() if isinstance(properties, dict) else ()
            return {key: _example(each, seed, depth + 1) for key, each in fields if isinstance(each, dict)}
        case "array":
            items = schema.get("items")
            return [_example(items, seed, depth + 1)] if isinstance(items, dict) else []
        case "string":
            return f"value {seed % 100}"
        case "integer":
            return seed % 100
        case "number":
            return seed % 100 / 4
        case "boolean":
            return seed % 2 == 0
        case _:
            return None
