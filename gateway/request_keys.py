"""Under which key a request's answer is kept: what of a request makes it the same as another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from cache.response_key import ResponseKey, is_unambiguous, response_key
from gateway.header_finder import list_finder
from gateway.routes import Kind

if TYPE_CHECKING:
    from gateway.cached_call import CachingSettings
    from gateway.calls import Call
    from gateway.exchange import Exchange

_ANTHROPIC: Final = tuple((name, list_finder(name)) for name in ("anthropic-beta", "anthropic-version"))
_OPENAI: Final = (("openai-beta", list_finder("openai-beta")),)
_VARIANTS: Final = {Kind.MESSAGES: _ANTHROPIC, Kind.RESPONSES: _OPENAI}
"""Headers that may change an answer."""


class Keyed(NamedTuple):
    """A request's key, None where it has none, and whether it stands for this request alone, None where nobody looked:
    that takes longer, and only matters where an answer is to be kept.
    """

    key: ResponseKey | None
    unambiguous: bool | None


def keyed(exchange: Exchange, call: Call, settings: CachingSettings, *, check: bool) -> Keyed:
    """The key of a request as it came; `check`: find out as well whether it stands for this one alone."""
    body = exchange.body
    try:
        key = key_of(exchange, call, call.fields, variants_of(exchange, call, settings))
    except ValueError:
        return Keyed(None, unambiguous=False)
    return Keyed(key, is_unambiguous(body) if check else None)


def variants_of(exchange: Exchange, call: Call, settings: CachingSettings) -> list[tuple[str, str]]:
    """What besides the body may change an answer."""
    head = exchange.head
    told = [(name, find(head.fields)) for name, find in _VARIANTS.get(call.kind, ())]
    told.append(("query", head.query or None))
    if settings.by_credentials:
        told.append(("credentials", head.credentials or None))
    return [(name, value.decode("latin-1")) for name, value in told if value is not None]


def key_of(
    exchange: Exchange, call: Call, fields: Mapping[str, object], variants: Sequence[tuple[str, str]]
) -> ResponseKey:
    """Of a request with these fields. Raises ValueError where there is no one way to write them."""
    return response_key(
        scope_of(exchange),
        call.model or "",
        exchange.dialect.name,
        call.kind.value,
        {**fields, "model": call.model},  # one answer for all names of a model
        variants=variants,
        n_bytes=len(exchange.body),
    )


def scope_of(exchange: Exchange) -> bytes:
    """Whose answers it may meet."""
    return b"" if exchange.tenant is None else exchange.tenant.answers_scope
