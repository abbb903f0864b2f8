"""Deltas grown into the value whose parts they are. Pure.

Strings are joined, lists are joined or, where their entries say which one they go on with (`index`), merged entry by
entry; objects are merged member by member, and of numbers the last one holds. What names or classifies something
(`id`, `type`, …) is told once or told again, but never in parts; two values of it cannot belong together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gateway.answers.base import AnswerError, Json

MOST_LEVELS: Final = 32
_TOLD_WHOLE: Final = frozenset({"id", "type", "role", "name", "format"})


class _Text(list[str]):
    """The parts of a string: joining them at once is linear."""


class _Entries(dict[int, Json]):
    """The entries of a list by their `index`."""


def grow(grown: Json, delta: Mapping[str, Any], level: int = 0) -> None:
    """Add `delta` to what has grown so far, which `full_grown` then makes a plain value.

    Raises:
        AnswerError: The delta does not go on with what there is, or is nested too deeply.
    """
    if level > MOST_LEVELS:
        raise AnswerError(f"deltas nested deeper than {MOST_LEVELS} levels")
    for key, value in delta.items():
        old = grown.get(key)
        if value is None:
            grown.setdefault(key, None)
        elif type(value) is str:
            if key in _TOLD_WHOLE:
                grown[key] = _told_again(old, value)
            elif old is None:
                grown[key] = _Text((value,))
            else:
                _same_kind(old, _Text)
                old.append(value)
        elif type(value) is dict:
            if old is None:
                old = grown[key] = {}
            _same_kind(old, dict)
            grow(old, value, level + 1)
        elif type(value) is list:
            grown[key] = _longer(old, value, level)
        else:
            if old is not None:
                _same_kind(old, type(value))
            grown[key] = value


def full_grown(value: object) -> Any:
    """What has grown as a plain value."""
    if type(value) is _Text:
        return "".join(value)
    if type(value) is _Entries:
        return [full_grown(entry) for _, entry in sorted(value.items())]
    if type(value) is dict:
        return {key: full_grown(each) for key, each in value.items()}
    return value


def join_lists(grown: Json, more: Mapping[str, Any]) -> None:
    """Add the lists of one object to those of another, item by item; of anything else the last one holds."""
    for key, value in more.items():
        old = grown.get(key)
        if type(old) is list and type(value) is list:
            old += value
        elif value is not None:
            grown[key] = value
        else:
            grown.setdefault(key, None)


def hold_latest(fields: Json, newer: Mapping[str, Any]) -> None:
    """Of each member the last value that is none of null."""
    for key, value in newer.items():
        if value is not None or key not in fields:
            fields[key] = value


def _told_again(old: object, value: str) -> str:
    if not old:
        return value
    if value and value != old:
        raise AnswerError("two parts of an answer that go by different names")
    return str(old)


def _longer(old: Any, value: list[Any], level: int) -> list[Any] | _Entries:
    if value and all(type(entry) is dict and type(entry.get("index")) is int for entry in value):
        if not old:
            old = _Entries()
        _same_kind(old, _Entries)
        for entry in value:
            grow(old.setdefault(entry["index"], {}), entry, level + 1)
        return old  # type: ignore[no-any-return]  # one of those that were made here
    if old is None:
        return value
    if type(old) is _Entries and not value:
        return old
    _same_kind(old, list)
    old += value
    return old  # type: ignore[no-any-return]  # as above


def _same_kind(old: object, kind: type) -> None:
    if type(old) is not kind:
        raise AnswerError("a delta of another type than what it goes on with")
