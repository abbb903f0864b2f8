"""Follows an SSE answer event by event while it is passed on, so that it can always be ended cleanly. Pure.

Only whole events go on to the client: wherever the worker breaks off, what the client has is complete events, behind
which an error event of ours can stand. On the way it is seen whether the stream ended as its dialect ends one, told
an error, or turned into something that is no event of that dialect.

Events as engines write them (`data: {…}` between empty lines, perhaps with an `event:` line before) are recognised
by one regular expression over all that a read brought; only what that does not match is looked at line by line.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum, auto
from functools import cache
from typing import Final

import orjson

from gateway.dialects.base import NO_USAGE, Dialect, Usage

MOST_HELD: Final = 1 << 20
"""Bytes of an unfinished event that are held back. A longer event is passed on as it comes, unwatched."""

_BOUNDARY: Final = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_LINES: Final = re.compile(rb"\r\n|\n|\r").split
USAGE_MARK: Final = b'_tokens":'
"""In every part of a body that counts tokens."""


class _Event(Enum):
    ORDINARY = auto()
    END = auto()
    ERROR = auto()
    MALFORMED = auto()


class StreamWatch:
    """Watches one stream. Feed it the body as it comes and pass on what `take` returns."""

    __slots__ = ("_dialect", "_first_usage", "_held", "_last_usage", "_ordinary", "ended", "failed", "malformed", "off",
                 "passes")  # fmt: skip

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._ordinary = _ordinary(dialect.end_marks, dialect.error_marks)
        self._held = b""
        self.passes: Callable[[bytes], object] = self._ordinary.fullmatch
        """Not None for bytes that may be passed on as they are; `take` knows what to do with all others."""
        self._first_usage = b""
        self._last_usage = b""
        self.ended = False
        """The dialect's last event has been passed on."""
        self.failed = False
        """The worker has told an error, as an event."""
        self.malformed = False
        """What came last is no event of the dialect; it was not passed on, and nothing after it may be."""
        self.off = False
        """An event was too long to be held: from then on nothing is known."""

    def take(self, data: bytes) -> bytes:
        """What of the body may be passed on now, `data` being the next part of it."""
        if self._held:
            if len(self._held) + len(data) <= MOST_HELD and _BOUNDARY.search(self._held[-3:] + data) is None:
                self._held += data  # and what is held is not searched again for each piece of a long event
                return b""
            data = self._held + data
            self._held = b""
            self.passes = self._ordinary.fullmatch
        if self._ordinary.fullmatch(data) is None and not self.off:
            data = self._look(data)
        if USAGE_MARK in data:
            self.note_usage(data)
        return data

    def note_usage(self, data: bytes) -> None:
        """Remember a part of the body in which tokens are counted."""
        if not self._first_usage:
            self._first_usage = data
        self._last_usage = data

    @property
    def complete(self) -> bool:
        """May the stream end here, well or with the worker's own error? True as well where that cannot be known."""
        return self.ended or self.failed or self.off

    def usage(self) -> Usage:
        """The tokens that the worker reported."""
        if not self._last_usage:
            return NO_USAGE
        usage = self._dialect.usage(self._last_usage) or NO_USAGE
        if self._first_usage is self._last_usage:
            return usage
        return (self._dialect.usage(self._first_usage) or NO_USAGE).updated(usage)

    def _look(self, data: bytes) -> bytes:
        """Look at each event by itself; the part of `data` that is whole and well. What comes behind the end is not
        looked at: it can no longer do harm.
        """
        if self.ended:
            return data
        known = self._ordinary.match(data)
        start = 0 if known is None else known.end()
        for boundary in _BOUNDARY.finditer(data, start):
            kind = self._kind(data[start : boundary.start()])
            if kind is _Event.MALFORMED:
                self.malformed = True
                return data[:start]
            self.failed = self.failed or kind is _Event.ERROR
            if kind is _Event.END:
                self.ended = True
                return data
            start = boundary.end()
        rest = data[start:]
        if len(rest) > MOST_HELD:
            self.off = True
            return data
        if rest:
            self._held = rest
            self.passes = _nothing_passes
        return data[:start]

    def _kind(self, event: bytes) -> _Event:
        payload = b""
        kind = _Event.ORDINARY
        for line in _LINES(event):
            if line.startswith(self._dialect.error_marks):
                return _Event.ERROR
            if line.startswith(self._dialect.end_marks):
                kind = _Event.END
            elif line.startswith(b"data:"):
                payload += line[5:] + b"\n"
        payload = payload.strip()
        return kind if not payload or payload == b"[DONE]" or _is_json(payload) else _Event.MALFORMED


def _nothing_passes(_: bytes) -> None:
    """Behind the beginning of an event."""


def _is_json(payload: bytes) -> bool:
    try:
        orjson.loads(payload)
    except orjson.JSONDecodeError:
        return False
    return True


@cache
def _ordinary(end_marks: tuple[bytes, ...], error_marks: tuple[bytes, ...]) -> re.Pattern[bytes]:
    special = b"|".join(map(re.escape, end_marks + error_marks))
    # Greedy, not possessive: before Python 3.11.5 `(…)++` keeps what its last, failed round has read (gh-106052).
    # An event can be read in one way only, so going back over them takes no longer than reading them.
    return re.compile(rb"(?:(?!%b)(?:event: [^\r\n]*\n)?data: \{[^\r\n]*\}\n\n)+" % special)
