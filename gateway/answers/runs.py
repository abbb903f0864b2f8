"""Runs of events that differ in one string only, made one event each: a stream tells a text token by token, and parsing
thousands of events for a few bytes in each would take thirty times as long as parsing the text. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import orjson

from gateway.answers.sse import Event

_LITERAL: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"')
_FEWEST: Final = 3


def joined(events: Sequence[Event], opening: re.Pattern[bytes], closing: re.Pattern[bytes]) -> list[Event]:
    """The same events, but where several in a row have the same name and, around one JSON string, the same data, one
    event with all their strings joined.

    `opening` matches what may stand before that string and `closing` what may stand behind it: nothing that means
    more when it is said again.
    """
    found: list[Event] = []
    run: list[bytes] = []
    name = prefix = suffix = b""
    least = 0
    for event in events:
        data = event[1]
        if run and data.startswith(prefix) and data.endswith(suffix) and len(data) > least and event[0] == name:
            run.append(data[len(prefix) : len(data) - len(suffix)])
            continue
        if run:
            found += _one(name, prefix, run, suffix)
            run = []
        start = opening.match(data)
        string = None if start is None else _LITERAL.match(data, start.end())
        if string is None or closing.match(data, string.end()) is None:
            found.append(event)
            continue
        name, prefix, suffix = event[0], data[: string.start()], data[string.end() :]
        least = len(prefix) + len(suffix) + 1
        run.append(string[0])
    return found + _one(name, prefix, run, suffix)


def _one(name: bytes, prefix: bytes, run: list[bytes], suffix: bytes) -> list[Event]:
    if len(run) >= _FEWEST:
        # What stands between the same ends need not be one string: then the events stay as they are.
        try:
            strings = orjson.loads(b"[" + b",".join(run) + b"]")
        except orjson.JSONDecodeError:
            strings = []
        if len(strings) == len(run) and all(type(each) is str for each in strings):
            return [(name, prefix + orjson.dumps("".join(strings)) + suffix)]
    return [(name, prefix + string + suffix) for string in run]
