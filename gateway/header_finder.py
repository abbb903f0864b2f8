"""Finds one header in the fields of a head, without reading the others."""

from __future__ import annotations

import re
from collections.abc import Callable


def header_finder(name: str) -> Callable[[bytes], bytes | None]:
    """Finds the value of the first header of that name, in whatever case, without white space around it."""
    search = _lines(name).search

    def find(fields: bytes) -> bytes | None:
        found = search(fields)
        return None if found is None else found[1].strip()

    return find


def list_finder(name: str) -> Callable[[bytes], bytes | None]:
    """Finds the values of all headers of that name as one list, joined by commas (RFC 9110, 5.3)."""
    findall = _lines(name).findall

    def find(fields: bytes) -> bytes | None:
        found: list[bytes] = findall(fields)
        return b", ".join([value.strip() for value in found]) if found else None

    return find


def _lines(name: str) -> re.Pattern[bytes]:
    return re.compile(rb"\r\n(?i:%b):([^\r]*)" % re.escape(name.encode()))
