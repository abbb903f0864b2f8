"""The same request body with another model in it, and nothing else changed. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import orjson

from gateway.multipart import field_span

# Possessive, so that a long string leaves no trail to go back on. Safe before Python 3.11.5 too, where a round that
# fails keeps what it has read (gh-106052): here that can only be a backslash at the end of the body.
_STRING: Final = rb'"(?:[^"\\]++|\\.)*+"'
_FIRST: Final = re.compile(rb'"model"\s*+:\s*+(' + _STRING + rb"|null)", re.DOTALL).search
_TOKENS: Final = re.compile(rb"(" + _STRING + rb")(\s*+:\s*+)?|[{}\[\]]", re.DOTALL).finditer
_VALUE: Final = re.compile(_STRING + rb"|null", re.DOTALL).match


def with_model(body: bytes, fields: Mapping[str, object], model: str) -> bytes:
    """`body` with `model` as the value of its top-level `model`, or with that field added where it has none.

    `body` is a JSON object in UTF-8 and `fields` what was read from it, whose `model` is a string, null or absent.
    Every other byte stays. Where the field comes twice, the last one counts for those who read it, and is replaced.
    """
    value = orjson.dumps(model)
    if "model" not in fields:
        at = body.index(b"{") + 1
        return b'%b"model":%b%b%b' % (body[:at], value, b"," if fields else b"", body[at:])
    if fields["model"] == model:
        return body
    found = _FIRST(body)
    if found is not None:
        replaced = _spliced(body, found.span(1), value)
        # Nearly always it is the right one; else it was an inner object's, or one that a later one overrides.
        if orjson.loads(replaced).get("model") == model:
            return replaced
    return _spliced(body, _last_value(body), value)


def renamed(body: bytes, model: str) -> bytes:
    """The same for a body that names another model, whatever else is in it: a JSON object, or a form; what is neither
    stays as it is.
    """
    if body.startswith(b"--"):
        span = field_span(body, b"model")
        return body if span is None else _spliced(body, span, model.encode())
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError:
        return body
    return with_model(body, fields, model) if type(fields) is dict else body


def _last_value(body: bytes) -> tuple[int, int]:
    """Where the value of the last `model` of the outermost object stands."""
    span = (0, 0)
    depth = 0
    for token in _TOKENS(body):
        if token[1] is None:
            depth += 1 if token[0] in b"{[" else -1
        elif depth == 1 and token[2] is not None and _is_model(token[1]):
            value = _VALUE(body, token.end())
            if value is not None:
                span = value.span()
    return span


def _is_model(key: bytes) -> bool:
    return key == b'"model"' or (b"\\" in key and orjson.loads(key) == "model")


def _spliced(body: bytes, span: tuple[int, int], value: bytes) -> bytes:
    start, end = span
    return b"%b%b%b" % (body[:start], value, body[end:])
