"""Finds one header in the fields of a head, without reading the others."""

from __future__ import annotations

import re
from collections.abc import Callable


def header_finder(name: str) -> Callable[[bytes], bytes | None]:
    """Finds the value of the first header of that name, in whatever case, without white space around it."""
    search = re.compile(rb"\r\n(?i:%b):([^\r]*)" % re.escape(name.encode())).search

    def find(fields: bytes) -> bytes | None:
        found = search(fields)
        return None if found is None else found[1].strip()

    return find
