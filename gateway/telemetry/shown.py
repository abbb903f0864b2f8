"""Bytes from clients as text that may be shown."""

from __future__ import annotations

from typing import Final

LONGEST: Final = 200


def shown(value: bytes) -> str:
    """At most 200 bytes of it, what is not ASCII as escapes."""
    return value[:LONGEST].decode("ascii", "backslashreplace")
