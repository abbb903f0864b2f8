"""The same request body with another value in one of its fields, and nothing else changed. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Final, NamedTuple

import orjson

from gateway.multipart import field_span

# Possessive, so that a long string leaves no trail to go back on. Safe before Python 3.11.5 too, where a round that
# fails keeps what it has read (gh-106052): here that can only be a backslash at the end of the body.
_STRING: Final = rb'"(?:[^"\\]++|\\.)*+"'
_TOKENS: Final = re.compile(rb"(" + _STRING + rb")(\s*+:\s*+)?|[{}\[\]]", re.DOTALL).finditer
_VALUE: Final = re.compile(_STRING + rb"|null", re.DOTALL).match


class Splice(NamedTuple):
    """A change of a body: `text` in place of its bytes from `start` to `end`."""

    start: int
    end: int
    text: bytes

    def into(self, body: bytes) -> bytes:
        """The body with that change."""
        return b"%b%b%b" % (body[: self.start], self.text, body[self.end :])


def splice_of(body: bytes, fields: Mapping[str, object], name: str, value: bytes) -> Splice:
    """How `value`, in JSON, becomes that of the top-level field `name`, which is added where there is none.

    `body` is a JSON object in UTF-8 and `fields` what was read from it, whose `name` is a string, null or absent. Where
    the field comes twice, the last one counts for those who read it, and is replaced.
    """
    if name not in fields:
        at = body.index(b"{") + 1
        return Splice(at, at, b'"%b":%b%b' % (name.encode(), value, b"," if fields else b""))
    found = _first(name)(body)
    if found is not None:
        splice = Splice(*found.span(1), value)
        # Nearly always it is the right one; else it was an inner object's, or one that a later one overrides.
        if orjson.loads(splice.into(body)).get(name) == orjson.loads(value):
            return splice
    return Splice(*_last_value(body, name), value)


def with_model(body: bytes, fields: Mapping[str, object], model: str) -> bytes:
    """`body` with `model` as the value of its top-level `model`; see `splice_of`."""
    if fields.get("model") == model:
        return body
    return splice_of(body, fields, "model", orjson.dumps(model)).into(body)


def renamed(body: bytes, model: str) -> bytes:
    """The same for a body that names another model, whatever else is in it: a JSON object, or a form; what is neither
    stays as it is.
    """
    if body.startswith(b"--"):
        span = field_span(body, b"model")
        return body if span is None else Splice(*span, model.encode()).into(body)
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError:
        return body
    return with_model(body, fields, model) if type(fields) is dict else body


def _last_value(body: bytes, name: str) -> tuple[int, int]:
    """Where the value of the last field `name` of the outermost object stands."""
    plain = b'"%b"' % name.encode()
    span = (0, 0)
    depth = 0
    for token in _TOKENS(body):
        if token[1] is None:
            depth += 1 if token[0] in b"{[" else -1
        elif depth == 1 and token[2] is not None and _is(token[1], plain, name):
            value = _VALUE(body, token.end())
            if value is not None:
                span = value.span()
    return span


def _is(key: bytes, plain: bytes, name: str) -> bool:
    return key == plain or (b"\\" in key and orjson.loads(key) == name)


@cache
def _first(name: str) -> Callable[[bytes], re.Match[bytes] | None]:
    """Finds what may be the field. For a few names only: each stays."""
    return re.compile(rb'"%b"\s*+:\s*+(' % name.encode() + _STRING + rb"|null)", re.DOTALL).search
