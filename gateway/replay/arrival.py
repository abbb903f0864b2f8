"""What every trace is read into, and the one error that reading can raise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


_QUOTED_CHARS: Final = 60  # of a bad value, in its error


@dataclass(frozen=True, slots=True)
class Chat:
    """A recorded prompt: the first ``count`` messages of a conversation, whose list all its turns share."""

    messages: Sequence[object]
    count: int
    tools: Sequence[object] = ()


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of a trace.

    ``block_ids`` has one id for each block of ``block_tokens`` input tokens, the last block possibly partial:
    ``ceil(input_tokens / block_tokens)`` ids. Equal ids mean equal tokens anywhere in the trace (ids that are
    local to a session in the file are already made distinct here).
    """

    at: float  # seconds since the first arrival of the trace
    input_tokens: int
    output_tokens: int
    block_ids: tuple[int, ...]
    block_tokens: int
    session: str | None = None
    pause: float | None = None
    """Seconds after the answer to the request before it in its session; None: it comes at its own time, ``at``."""
    chat: Chat | None = None
    """What to send, where it was recorded; token counts and block ids are then estimates from its length."""


class TraceError(ValueError):
    """A trace that cannot be read; the message names file, line and field."""


class Record(NamedTuple):
    """One parsed JSON object of a trace file, with the place it came from, read field by field with
    checks.
    """

    place: str
    fields: Mapping[str, object]

    def error(self, field: str, problem: str) -> TraceError:
        """The error that says where and what; for the caller to raise."""
        return TraceError(f"{self.place}: {field}: {problem}")

    def integer(self, field: str, *, minimum: int = 0) -> int:
        """A whole number of at least ``minimum``."""
        value = self._get(field)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(field, f"expected an integer, got {_short(value)}")
        if value < minimum:
            raise self.error(field, f"expected at least {minimum}, got {value}")
        return value

    def number(self, field: str) -> float:
        """A finite number of at least 0."""
        value = self._get(field)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(field, f"expected a number, got {_short(value)}")
        if not 0 <= value < float("inf"):
            raise self.error(field, f"expected a finite number of at least 0, got {value}")
        return float(value)

    def text(self, field: str) -> str:
        """A string with something in it."""
        value = self._get(field)
        if not isinstance(value, str) or not value:
            raise self.error(field, f"expected a non-empty string, got {_short(value)}")
        return value

    def items(self, field: str) -> list[object]:
        """A list, its items not yet checked."""
        value = self._get(field)
        if not isinstance(value, list):
            raise self.error(field, f"expected a list, got {_short(value)}")
        return value

    def _get(self, field: str) -> object:
        if field not in self.fields:
            raise self.error(field, f"missing; the line has {', '.join(self.fields) or 'no fields'}")
        return self.fields[field]


def as_block_ids(record: Record, field: str, values: list[object]) -> list[int]:
    """``values`` as block ids: integers from 0."""
    for position, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise record.error(f"{field}[{position}]", f"expected an integer of at least 0, got {_short(value)}")
    return values  # type: ignore[return-value]  # every item was just checked


def with_tail(record: Record, ids: list[int], *, tokens: int, block_tokens: int, tail_id: int) -> tuple[int, ...]:
    """``ids`` plus, when they cover full blocks only and tokens are left over, ``tail_id`` for those."""
    blocks = -(-tokens // block_tokens)
    if len(ids) == blocks:
        return tuple(ids)
    if len(ids) == tokens // block_tokens:
        return (*ids, tail_id)
    raise record.error(
        "hash_ids",
        f"{len(ids)} blocks of {block_tokens} tokens do not fit an input of {tokens} tokens",
    )


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _QUOTED_CHARS else text[: _QUOTED_CHARS - 1] + "…"
