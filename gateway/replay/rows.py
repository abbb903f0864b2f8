"""The rows of a trace file, one at a time, whatever the file: lines, or the objects of one JSON array. Pure.

Only one row and one chunk are held at a time, and a row has a limit.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import orjson

from gateway.replay.arrival import Record, TraceError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MAX_ROW_BYTES: Final = 64 << 20
_STRUCTURE: Final = re.compile(rb'["\\{}\[\]\n]')
_SPACE: Final = b" \t\r\n"


def lines(path: object, chunks: Iterable[bytes], *, limit: int = MAX_ROW_BYTES) -> Iterator[tuple[int, bytes]]:
    """Every line that is not blank, with its number from 1. Raises `TraceError` on one of more than ``limit`` bytes."""
    number, rest = 1, b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            if line.strip():
                yield number, line
            number += 1
        if len(rest) > limit:
            raise TraceError(f"{path}, line {number}: more than {limit:,} bytes; expected one row a line")
    if rest.strip():
        yield number, rest


def json_lines(path: object, chunks: Iterable[bytes]) -> Iterator[Record]:
    """One JSON object a line. Raises `TraceError`."""
    for number, line in lines(path, chunks):
        yield _record(f"{path}, line {number}", line)


def json_array(path: object, chunks: Iterable[bytes], *, limit: int = MAX_ROW_BYTES) -> Iterator[Record]:
    """The objects of one JSON array, each at the line where it begins. Raises `TraceError`."""
    splitter = ArraySplitter(path, limit=limit)
    for chunk in chunks:
        for line, text in splitter.feed(chunk):
            yield _record(f"{path}, line {line}", text)
    splitter.close()


def _record(place: str, text: bytes) -> Record:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise TraceError(f"{place}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise TraceError(f"{place}: expected a JSON object, got {type(value).__name__}")
    return Record(place, value)


class ArraySplitter:
    """Cuts ``[{…}, {…}]``, fed in any pieces, into its objects. What is inside an object is not looked at further."""

    def __init__(self, path: object, *, limit: int = MAX_ROW_BYTES) -> None:
        self._path = path
        self._limit = limit
        self._pending = bytearray()  # the object that has begun, or what stands between two of them
        self._depth = 0  # 1 inside the array, more inside an object
        self._in_string = False
        self._escaped_at = -1  # where in `_pending` the byte after a backslash is
        self._line = self._began = 1
        self._rows = 0
        self._ended = False

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """The objects that ``data`` completed, with the lines where they begin. Raises `TraceError`."""
        found: list[tuple[int, bytes]] = []
        taken = 0
        for match in _STRUCTURE.finditer(data):
            at = match.start()
            if len(self._pending) + at - taken == self._escaped_at:
                self._escaped_at = -1
                self._line += data[at] == 0x0A
                continue
            byte = match.group()
            if byte == b"\n":
                self._line += 1
            elif byte == b'"':
                self._quote()
            elif self._in_string:
                if byte == b"\\":
                    self._escaped_at = len(self._pending) + at - taken + 1
            elif byte in b"{[":
                taken = self._open(byte, data, taken, at)
            elif byte in b"]}":
                taken = self._close(byte, data, taken, at, found)
        self._pending += data[taken:]
        if len(self._pending) > self._limit:
            raise self._error(f"an object of more than {self._limit:,} bytes", line=self._began)
        return found

    def close(self) -> None:
        """The file has ended. Raises `TraceError` where the array has not, or something follows it."""
        if not self._ended:
            raise self._error("the file ends inside its JSON array")
        if self._pending.strip(_SPACE):
            raise self._error("expected nothing after the JSON array")

    def _quote(self) -> None:
        if self._depth < 2:
            raise self._error("expected an array of objects, got a string")
        self._in_string = not self._in_string

    def _open(self, byte: bytes, data: bytes, taken: int, at: int) -> int:
        if self._depth >= 2:
            self._depth += 1
            return taken
        self._pending += data[taken:at]
        between = self._pending.strip(_SPACE)
        expected = b"," if self._rows else b""
        if byte != (b"{" if self._depth else b"[") or between != (expected if self._depth else b"") or self._ended:
            raise self._error("expected a JSON array of objects, separated by commas")
        self._depth += 1
        self._pending.clear()
        self._began = self._line
        return at if byte == b"{" else at + 1

    def _close(self, byte: bytes, data: bytes, taken: int, at: int, found: list[tuple[int, bytes]]) -> int:
        if self._depth > 2:
            self._depth -= 1  # whether brackets match inside an object is for the parser of the object to say
            return taken
        self._pending += data[taken : at + 1]
        if self._depth == 2 and byte == b"}":
            found.append((self._began, bytes(self._pending)))
            self._rows += 1
        elif self._depth == 1 and byte == b"]" and not self._pending[:-1].strip(_SPACE):
            self._ended = True
        else:
            raise self._error(f"unexpected {byte.decode()!r} in a JSON array of objects")
        self._depth -= 1
        self._pending.clear()
        self._escaped_at = -1
        return at + 1

    def _error(self, problem: str, line: int | None = None) -> TraceError:
        return TraceError(f"{self._path}, line {line or self._line}: {problem}")
