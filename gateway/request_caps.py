"""Does a request ask for more than it may? Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from gateway.api_error import ApiError
from gateway.routes import Kind
from policies.tenant import Caps

_OUTPUT: Final[Mapping[Kind, Sequence[str]]] = {
    Kind.CHAT: ("max_tokens", "max_completion_tokens"),
    Kind.COMPLETION: ("max_tokens",),
    Kind.RESPONSES: ("max_output_tokens",),
    Kind.MESSAGES: ("max_tokens",),
}
_ANSWERS: Final = ("n", "best_of")
_UNBOUNDED: Final[Mapping[Kind, str]] = {Kind.CHAT: "max_tokens", Kind.RESPONSES: "max_output_tokens"}
"""Kinds whose answers engines make as long as the context allows where nothing is said; all do where null is."""


def check_caps(kind: Kind, fields: Mapping[str, object], caps: Caps) -> str | None:
    """The name of the field that must be set to `caps.max_tokens` because the request bounds its answer in none; None
    where there is nothing to set.

    Raises:
        ApiError: 400 for a field that asks for more than `caps`, or where it cannot be told how much that is.
    """
    bounded = False
    unbounded = _UNBOUNDED.get(kind)
    if caps.max_tokens is not None:
        for name in _OUTPUT.get(kind, ()):
            if name in fields:
                bounded = _check(fields, name, caps.max_tokens) or bounded
                unbounded = unbounded or name
    if caps.n is not None:
        for name in _ANSWERS:
            if name in fields:
                _check(fields, name, caps.n)
    return None if bounded or caps.max_tokens is None else unbounded


def _check(fields: Mapping[str, object], name: str, most: int) -> bool:
    """Is the field given?"""
    value = fields.get(name)
    if value is None:
        return False
    if type(value) is not int:  # some engines read "9999" and 9999.0 as numbers
        raise ApiError(400, f"`{name}` must be a whole number.", param=name, code="invalid_type")
    if value < 0:  # to some engines: without a bound
        raise ApiError(400, f"`{name}` must not be below 0.", param=name, code="invalid_value")
    if value > most:
        raise ApiError(
            400, f"`{name}` is {value}; this key may ask for {most} at most.", param=name, code="limit_exceeded"
        )
    return True
