"""Arrivals of Azure's inference service (github.com/Azure/AzurePublicDataset): CSV, one request a line.

``TIMESTAMP,ContextTokens,GeneratedTokens``; times are of the calendar, tokens are counts. No prompt is known to share
anything with another, so none does here.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Final

from gateway.replay.arrival import Arrival, TraceError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

HEADER: Final = b"TIMESTAMP,ContextTokens,GeneratedTokens"
_BLOCK_TOKENS: Final = 512
_ROW_SHIFT: Final = 24  # a block id is the row and, in so many bits, the block within it
_MAX_TOKENS: Final = _BLOCK_TOKENS << _ROW_SHIFT


def is_azure(line: bytes) -> bool:
    """Whether a file that begins with this line is one of these."""
    return line.strip(b"\xef\xbb\xbf \t\r\n") == HEADER


def arrivals(path: object, rows: Iterable[tuple[int, bytes]]) -> Iterator[Arrival]:
    """Each numbered line after the header, in the order and the time of the file. Raises `TraceError`."""
    start: datetime | None = None
    for number, line in rows:
        place = f"{path}, line {number}"
        cells = line.decode("utf-8", "replace").strip().split(",")
        if len(cells) != 3:
            raise TraceError(f"{place}: expected 3 values, {HEADER.decode()}, got {len(cells)}")
        moment = _moment(place, cells[0])
        start = start or moment
        if (moment.tzinfo is None) != (start.tzinfo is None):
            raise TraceError(f"{place}: TIMESTAMP: expected a time zone on every line or on none")
        tokens = _tokens(place, "ContextTokens", cells[1], least=1)
        first = number << _ROW_SHIFT
        yield Arrival(
            at=(moment - start).total_seconds(),
            input_tokens=tokens,
            output_tokens=max(1, _tokens(place, "GeneratedTokens", cells[2], least=0)),
            block_ids=tuple(range(first, first + -(-tokens // _BLOCK_TOKENS))),
            block_tokens=_BLOCK_TOKENS,
        )


def _moment(place: str, text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise TraceError(f"{place}: TIMESTAMP: expected 2023-11-16 18:15:46.68, got {text[:60]!r}") from None


def _tokens(place: str, field: str, text: str, *, least: int) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 12:
        raise TraceError(f"{place}: {field}: expected a whole number, got {text[:60]!r}")
    if not least <= int(text) < _MAX_TOKENS:
        raise TraceError(f"{place}: {field}: expected {least} to {_MAX_TOKENS - 1:,}, got {text}")
    return int(text)
