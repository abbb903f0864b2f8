"""What the recorded answers of all dialects have in common: what is wrong with one, what is known of one, its JSON
under bounds, and its text in pieces. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from gateway.dialects.base import NO_USAGE, Usage

MOST_BYTES: Final = 32 << 20
"""A longer recording is refused unread."""
MOST_PIECES: Final = 64
"""Into how many pieces a text is cut at most."""
SHORTEST_PIECE: Final = 24
"""Characters of a piece at least, but for the last one: about four words."""

Json = dict[str, Any]


class AnswerError(ValueError):
    """What was recorded is not one whole answer of its dialect: it must not be served again.

    Messages hold nothing of the answer itself.
    """


class FailedAnswerError(AnswerError):
    """What was recorded tells an error of the worker's."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a cache needs to know of an answer before it keeps it."""

    whole: bool
    """Is it one whole answer of its dialect, as far as one can tell? Nothing else is known where it is not."""
    why: str = ""
    """What is wrong with one that is not whole."""
    failed: bool = False
    """Does it tell an error of the worker's?"""
    answer_id: str | None = None
    model: str | None = None
    finish_reasons: tuple[str, ...] = ()
    """One a choice, in the dialect's own words: `stop`, `completed`, `end_turn`, …"""
    truncated: bool = False
    """Did a limit on its length, or a pause, end any of its choices?"""
    filtered: bool = False
    """Did a content filter cut any of its choices?"""
    refused: bool = False
    """Does the model decline, in the dialect's own field for that?"""
    tool_calls: bool = False
    """Does it call a tool, of the client's or of the server's?"""
    text: str = ""
    """What a reader sees of the first choice: neither its thoughts nor its calls."""
    usage: Usage = NO_USAGE
    """None in each count that the answer does not tell."""


def load_object(data: bytes) -> Json:
    """A JSON object.

    Raises:
        AnswerError: It is something else, or nested deeper than 1,024 levels, or too long.
    """
    if len(data) > MOST_BYTES:
        raise AnswerError(f"more than {MOST_BYTES:,} bytes")
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        raise AnswerError("not valid JSON") from None  # its own error holds the whole text
    if type(value) is not dict:
        raise AnswerError("JSON, but no object")
    return value


def dump(value: object) -> bytes:
    """JSON without white space.

    Raises:
        AnswerError: Nested deeper than 254 levels.
    """
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:
        raise AnswerError("nested too deeply") from None


def unary_object(body: bytes) -> Json:
    """A body that is not an error's.

    Raises:
        AnswerError: It is one, or no JSON object.
    """
    answer = load_object(body)
    if answer.get("error") is not None:
        raise FailedAnswerError("the worker told an error")
    return answer


def text_pieces(text: str) -> list[str]:
    """`text` cut before spaces where there are any, in `MOST_PIECES` at most; none of an empty one."""
    length = len(text)
    size = max(SHORTEST_PIECE, length // MOST_PIECES + 1)
    pieces = []
    find = text.find
    start = 0
    while length - start > size:
        least = start + size
        cut = find(" ", least, least + size)
        if cut < 0:
            cut = least
        pieces.append(text[start:cut])
        start = cut
    if start < length:
        pieces.append(text[start:])
    return pieces


def json_pieces(text: str) -> list[bytes]:
    """The pieces of `text` as JSON strings, quotes included."""
    return [orjson.dumps(piece) for piece in text_pieces(text)]


def token_pieces(text: str, tokens: Sequence[str]) -> list[tuple[str, int]]:
    """`text` in pieces, each with how many of its tokens come with it: whole tokens where they make up the text, else
    in proportion (some tokens are parts of characters, or special).
    """
    if "".join(tokens) == text:
        size = max(4, len(tokens) // MOST_PIECES + 1)
        starts = range(0, len(tokens), size)
        return [("".join(tokens[start : start + size]), min(size, len(tokens) - start)) for start in starts]
    pieces = text_pieces(text) or [""]
    bounds = [len(tokens) * number // len(pieces) for number in range(len(pieces) + 1)]
    return [(piece, end - start) for piece, start, end in zip(pieces, bounds, bounds[1:], strict=False)]


def string(value: object) -> str | None:
    """`value` if it is a string."""
    return value if type(value) is str else None


def count(fields: object, name: str) -> int | None:
    """A count in an object, None where there is none."""
    value = fields.get(name) if isinstance(fields, Mapping) else None
    return value if type(value) is int else None


def objects(value: object, what: str) -> list[Json]:
    """A list of objects.

    Raises:
        AnswerError: It is none; says `what` was to be one.
    """
    if type(value) is not list:
        raise AnswerError(f"{what}: no list of objects")
    for each in value:
        if type(each) is not dict:
            raise AnswerError(f"{what}: no list of objects")
    return value
