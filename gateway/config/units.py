"""Sizes and durations as people write them: `32MiB`, `500ms`, or a plain number of bytes or seconds."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

_SIZE_UNITS: Final = {
    "B": 1,
    "KB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "KIB": 1 << 10,
    "MIB": 1 << 20,
    "GIB": 1 << 30,
}
_DURATION_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_QUANTITY: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")


@dataclass(frozen=True, slots=True)
class Unit:
    """Marks a field's unit, for the reference and for printing its value."""

    name: Literal["bytes", "seconds"]


def parse_size(value: object) -> object:
    """Turn `"32MB"` (10³) or `"64KiB"` (2¹⁰) into bytes; anything but text is left for the type check."""
    if not isinstance(value, str):
        return value
    match = _QUANTITY.fullmatch(value)
    factor = _SIZE_UNITS.get((match[2] or "B").upper()) if match else None
    size = float(match[1]) * factor if match and factor else 0.5
    if not size.is_integer():
        raise PydanticCustomError("size", 'a number of bytes, or text such as "64KiB", "32MB" or "1GiB"')
    return int(size)


def parse_duration(value: object) -> object:
    """Turn `"500ms"`, `"10s"`, `"5m"` or `"1h"` into seconds; the rest is left to the type check."""
    if not isinstance(value, str):
        return value
    match = _QUANTITY.fullmatch(value)
    factor = _DURATION_UNITS.get(match[2] or "s") if match else None
    if match is None or factor is None:
        raise PydanticCustomError("duration", 'a number of seconds, or text such as "500ms", "10s" or "5m"')
    return float(match[1]) * factor


def format_size(size: int) -> str:
    """Write bytes in the largest binary unit that divides them."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size and size % unit == 0:
            return f"{size // unit}{name}"
    return f"{size}B"


def format_duration(seconds: float) -> str:
    """Write seconds in the unit that reads best."""
    return f"{seconds * 1000:g}ms" if 0 < seconds < 1 else f"{seconds:g}s"


Size = Annotated[int, BeforeValidator(parse_size, json_schema_input_type=int | str), Unit("bytes")]
Duration = Annotated[float, BeforeValidator(parse_duration, json_schema_input_type=float | str), Unit("seconds")]
