"""A field of a multipart form, found without decoding or copying what else is in it (RFC 7578). Pure."""

from __future__ import annotations

from typing import Final

_BOUNDARY_BYTES: Final = 72
"""Longest first line: `--` and a boundary of 70 characters (RFC 2046 §5.1.1)."""
_HEADER_BYTES: Final = 2 << 10
_VALUE_BYTES: Final = 1 << 10
_WINDOW: Final = 256 << 10
"""So much of the body's beginning and of its end is searched: clients put a file before the fields, or behind them."""
_PARTS: Final = 64


def form_field(body: bytes, name: bytes) -> bytes | None:
    """The value of a form field that is no file; None where `field_span` finds none."""
    span = field_span(body, name)
    return None if span is None else body[span[0] : span[1]]


def field_span(body: bytes, name: bytes) -> tuple[int, int] | None:
    """Where that value stands; None where the body is no form, has no such field, or has it only in the middle of a
    long body, between files.
    """
    line_end = body.find(b"\r\n", 0, _BOUNDARY_BYTES + 2)
    if not body.startswith(b"--") or line_end < 3:
        return None
    delimiter = b"\r\n" + body[:line_end]
    if len(body) <= 2 * _WINDOW:
        return _search(body, name, delimiter, line_end + 2, len(body))
    found = _search(body, name, delimiter, line_end + 2, _WINDOW)
    if found is not None:
        return found
    start = body.find(delimiter, len(body) - _WINDOW)
    return None if start < 0 else _search(body, name, delimiter, start + len(delimiter) + 2, len(body))


def _search(body: bytes, name: bytes, delimiter: bytes, at: int, end: int) -> tuple[int, int] | None:
    """Look at the parts whose headers lie between `at`, where one begins, and `end`."""
    for _ in range(_PARTS):
        header_end = body.find(b"\r\n\r\n", at - 2, min(at + _HEADER_BYTES, end))
        if header_end < 0:
            return None
        start = header_end + 4
        if _names(body[at:header_end], name):
            stop = body.find(delimiter, start - 2, start + _VALUE_BYTES + len(delimiter))
            return None if stop < start else (start, stop)
        stop = body.find(delimiter, start - 2, end)
        if stop < 0:
            return None
        at = stop + len(delimiter) + 2
    return None


def _names(headers: bytes, name: bytes) -> bool:
    """Is it the part of the field `name`, and no file?"""
    for line in headers.split(b"\r\n"):
        field, _, value = line.partition(b":")
        if field.strip().lower() != b"content-disposition":
            continue
        options = {key.strip().lower(): text.strip().strip(b'"') for key, _, text in _options(value)}
        return options.get(b"name") == name and b"filename" not in options and b"filename*" not in options
    return False


def _options(value: bytes) -> list[tuple[bytes, bytes, bytes]]:
    return [option.partition(b"=") for option in value.split(b";")[1:]]
