"""A whole recorded stream as its events (WHATWG HTML, §9.2.6), and events as bytes. Pure."""

from __future__ import annotations

import re
from typing import Final

from gateway.answers.base import MOST_BYTES, AnswerError, dump, load_object

MOST_EVENTS: Final = 1 << 19
DONE: Final = b"[DONE]"
DONE_EVENT: Final = b"data: [DONE]\n\n"

_PADDING: Final = b',"obfuscation":"'
_PADDING_END: Final = re.compile(rb'[^"\\]*"\}\Z')
"""Behind `_PADDING`, at the very end of an object: a member of the outermost one, therefore."""


Event = tuple[bytes, bytes]
"""Its name, empty where it has none, and its data."""

_ORDINARY: Final = re.compile(rb"(?:event: ([^\n]+)\n)?data: ([^\n]*)\n\n").findall


def events_of(stream: bytes) -> list[Event]:
    """The events of a stream that have data. Comments, ids and retry times are left out.

    Raises:
        AnswerError: It breaks off within an event, or is too long.
    """
    if len(stream) > MOST_BYTES:
        raise AnswerError(f"more than {MOST_BYTES:,} bytes")
    if stream.count(b"\n\n") > MOST_EVENTS:
        raise AnswerError(f"more than {MOST_EVENTS:,} events")
    found: list[Event] = _ORDINARY(stream)
    # As engines write them, the events make up the whole stream; anything else is read line by line.
    known = sum([len(name) + len(data) + (16 if name else 8) for name, data in found])
    return found if known == len(stream) and b"\r" not in stream else _read_lines(stream)


def _read_lines(stream: bytes) -> list[Event]:
    text = stream.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    blocks = text.split(b"\n\n", MOST_EVENTS)
    if len(blocks) > MOST_EVENTS:
        raise AnswerError(f"more than {MOST_EVENTS:,} events")
    if any(line and not line.startswith(b":") for line in blocks.pop().split(b"\n")):
        raise AnswerError("the stream breaks off within an event")
    return [event for block in blocks if (event := _event(block)) is not None]


def _event(block: bytes) -> Event | None:
    name, lines = b"", []
    for line in block.split(b"\n"):
        field, _, value = line.partition(b":")
        if field == b"data":
            lines.append(value.removeprefix(b" "))
        elif field == b"event":
            name = value.removeprefix(b" ")
    return (name, b"\n".join(lines)) if lines else None


def event_bytes(name: bytes, data: bytes) -> bytes:
    """As it goes to a client. `data`: JSON in one line."""
    return b"event: %b\ndata: %b\n\n" % (name, data)


def plain_data(data: bytes) -> bytes:
    """The data of an event without the padding by which OpenAI hides how long each piece is."""
    if b'"obfuscation"' not in data:
        return data
    start = data.rfind(_PADDING)
    if start >= 0 and _PADDING_END.match(data, start + len(_PADDING)) and data.count(b'"obfuscation"') == 1:
        return data[:start] + b"}"
    return without(data, "obfuscation")


def without(data: bytes, *names: str) -> bytes:
    """A JSON object without some of its members; as it is where it has none of them."""
    fields = load_object(data)
    if not any(name in fields for name in names):
        return data
    for name in names:
        fields.pop(name, None)
    return dump(fields)
