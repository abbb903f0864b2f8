"""Server-sent events from bytes in any split (WHATWG HTML, §9.2.6): only the data of each event is kept."""

from __future__ import annotations

import re
from typing import Final

_LINE_END: Final = re.compile(rb"\r\n|\n|\r")
MAX_EVENT_BYTES: Final = 8 << 20


class SseError(ValueError):
    """A stream that is not usable as server-sent events."""


class SseDecoder:
    """Feed bytes as they arrive; each call returns the data of the events that they completed."""

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max = max_event_bytes
        self._buffer = bytearray()
        self._data: list[bytes] = []
        self._size = 0  # bytes in self._data
        self._first = True

    def feed(self, chunk: bytes) -> list[bytes]:
        """Raises `SseError` when one event grows past the limit."""
        self._buffer += chunk
        events: list[bytes] = []
        start = 0
        for match in _LINE_END.finditer(self._buffer):
            if match.group() == b"\r" and match.end() == len(self._buffer):
                break  # the other half of a CR LF may be in the next chunk
            self._line(bytes(self._buffer[start : match.start()]), events)
            start = match.end()
        del self._buffer[:start]
        if len(self._buffer) + self._size > self._max:
            raise SseError(f"an event of more than {self._max:,} bytes")
        return events

    def _line(self, line: bytes, events: list[bytes]) -> None:
        if self._first:
            self._first = False
            line = line.removeprefix(b"\xef\xbb\xbf")
        if not line:
            if self._data:
                events.append(b"\n".join(self._data))
                self._data.clear()
                self._size = 0
            return
        field, _, value = line.partition(b":")
        if field == b"data":
            value = value.removeprefix(b" ")
            self._data.append(value)
            self._size += len(value)
