"""Under which key an answer is kept: SHA-256 over everything that may change it. Pure.

The digest is taken of typed, length-prefixed fields: whose it is, the model, the API's dialect and route, what else the
caller says counts, and last the request itself as canonical JSON. That text stands for one value alone:

- object keys are sorted, of two equal ones the parser has kept the last, and there is no white space;
- a float always shows a point or an exponent and an integer never does, so 1, 1.0, true and "1" differ, as do 0.0
  and -0.0; floats are written so that they are read back bit by bit; infinities and NaN are refused;
- strings are escaped in one way, and a text that no UTF-8 can hold in another one that the first never yields.

What two parsers might read differently is not seen in a parsed request: see `is_unambiguous`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from math import isfinite
from typing import TYPE_CHECKING, Final, NewType

import orjson

from cache.store import ChunkKey

if TYPE_CHECKING:
    from hashlib import _Hash

ResponseKey = NewType("ResponseKey", bytes)
"""40 bytes: the scope's tag, then the SHA-256 of all that counts, the scope included."""

ScopeTag = NewType("ScopeTag", bytes)
"""8 bytes that stand for a tenant's scope in names of entries; they show nothing of it."""

ModelTag = NewType("ModelTag", bytes)
"""8 bytes that stand for a model's name."""

TAG_BYTES: Final = 8
KEY_BYTES: Final = 40
_STORE_KEY_BYTES: Final = 32

DELIVERY: Final = frozenset({"stream", "stream_options"})
"""How the answer is sent, which is the same answer."""

BYSTANDERS: Final = frozenset(
    {
        "user",  # who the end user is: for finding abuse, never in the prompt
        "safety_identifier",  # its successor
        "prompt_cache_key",  # where a prompt's prefix may be cached: speed alone
        "prompt_cache_retention",  # how long
        "priority",  # when a worker begins with it
    }
)
"""Fields that cannot change an answer, where its dialect does not echo them."""

_DROPPED: Final[Mapping[str, frozenset[str]]] = {
    # An answer of this dialect repeats `user`, `metadata` and the like: they are part of it.
    "responses": DELIVERY,
    # Here `metadata` is the end user's id and nothing else.
    "anthropic": DELIVERY | BYSTANDERS | {"metadata"},
}
_DROPPED_ELSEWHERE: Final = DELIVERY | BYSTANDERS

_DOMAIN: Final = b"prefixgate response key v1"
_TAG_DOMAIN: Final = b"prefixgate response scope v1"
_MODEL_DOMAIN: Final = b"prefixgate response model v1"
_PIECE: Final = 1 << 16
"""Characters of a long text that are encoded at once."""
_LONG_BODY: Final = 1 << 18
"""Bytes of a body from which on it is hashed piece by piece, lest it be copied as a whole."""
_NUMBERS: Final = frozenset({int, float, bool, type(None)})


def response_key(
    scope: bytes,
    model: str,
    dialect: str,
    route: str,
    request: Mapping[str, object],
    *,
    variants: Sequence[tuple[str, str]] = (),
    n_bytes: int = 0,
) -> ResponseKey:
    """The key of a request's answer. `scope`: the tenant's salt; two scopes share nothing. `request`: the body as
    orjson has parsed it, which is left as it is; `cache_salt` in it counts, so a client can make its scope narrower.
    `variants`: names and values of whatever else may change the answer, such as the header `anthropic-beta`; in an
    order of the caller's. `n_bytes`: of the body as it came, which only tells how to go about it: about 10 µs for
    4 KB, and 15 ms for 10 MB.

    Raises ValueError for what has no canonical form: numbers that are not finite, nesting beyond reason, values that
    are not JSON's.
    """
    tag, head = _begun(scope, model, dialect, route)
    digest = head.copy()
    digest.update(b"v%d:" % len(variants))
    for name, value in variants:
        _add(digest, b"n", _encoded(name))
        _add(digest, b"s", _encoded(value))
    dropped = _DROPPED.get(dialect, _DROPPED_ELSEWHERE)
    # It comes last: where it ends the text ends, so that it needs no length.
    digest.update(b"j")
    _add_json(digest, {name: value for name, value in request.items() if name not in dropped}, n_bytes)
    return ResponseKey(tag + digest.digest())


def scope_tag(scope: bytes) -> ScopeTag:
    """What keys of this scope begin with."""
    return ScopeTag(sha256(_TAG_DOMAIN + scope).digest()[:TAG_BYTES])


@lru_cache(maxsize=1024)
def model_tag(model: str) -> ModelTag:
    """What stands for a model's name."""
    return ModelTag(sha256(_MODEL_DOMAIN + _encoded(model)).digest()[:TAG_BYTES])


def tag_of(key: ResponseKey) -> ScopeTag:
    """The scope's tag in a key."""
    return ScopeTag(key[:TAG_BYTES])


def store_key(key: ResponseKey) -> ChunkKey:
    """Under what stores keep the entry: the tag and 192 bits of the digest. The entry has the whole key in it."""
    return ChunkKey(key[:_STORE_KEY_BYTES])


def is_unambiguous(body: bytes) -> bool:
    """Do all JSON parsers read the same out of this body? Not with two equal keys in an object, of which some take the
    first, and not with integers beyond 64 bits, which some make floats. A worker might have answered something else
    than the key stands for: such an answer is not kept. About ten times as dear as the key, and only needed before an
    answer is stored. Never raises.
    """
    try:
        json.loads(body, object_pairs_hook=_distinct, parse_int=_small, parse_constant=_refused)
    except (ValueError, RecursionError):
        return False
    return True


@lru_cache(maxsize=1024)
def _begun(scope: bytes, model: str, dialect: str, route: str) -> tuple[ScopeTag, _Hash]:
    """A scope's tag, and the digest as far as many keys have it in common."""
    head = sha256(_DOMAIN)
    _add(head, b"b", scope)
    for text in (model, dialect, route):
        _add(head, b"s", _encoded(text))
    return scope_tag(scope), head


def _add(digest: _Hash, kind: bytes, value: bytes) -> None:
    digest.update(kind + len(value).to_bytes(8, "little") + value)


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


# --- canonical JSON -----------------------------------------------------------------------------------------


def _add_json(digest: _Hash, value: dict[str, object], n_bytes: int) -> None:
    if n_bytes < _LONG_BODY:
        text = _dumped(value)
        # orjson writes null for numbers that are not finite: then it would be read back as something else.
        if text is not None and (b"null" not in text or orjson.loads(text) == value):
            digest.update(text)
            return
    try:
        for piece in _pieces(value):
            digest.update(piece)
    except RecursionError:
        raise ValueError("the request is nested too deep") from None


def _dumped(value: object) -> bytes | None:
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS | _STRICT)
    except orjson.JSONEncodeError:
        return None


_STRICT: Final = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS


def _pieces(value: object) -> Iterator[bytes]:
    """The same text as orjson's, a piece at a time, and of values that it does not know."""
    kind = type(value)
    if kind is str:
        yield from _text(value)  # type: ignore[arg-type]  # it is one
    elif kind is dict:
        yield from _object(value)  # type: ignore[arg-type]  # it is one
    elif kind is list:
        yield from _array(value)  # type: ignore[arg-type]  # it is one
    elif kind is float:
        if not isfinite(value):  # type: ignore[arg-type]  # it is a float
            raise ValueError("a number in the request is not finite")
        yield orjson.dumps(value)
    elif kind in _NUMBERS:
        yield json.dumps(value).encode()
    else:
        raise ValueError("the request holds something that is no JSON")


def _object(fields: dict[str, object]) -> Iterator[bytes]:
    if not all(type(name) is str for name in fields):
        raise ValueError("a name in the request is no text")
    before = b"{"
    for name in sorted(fields):
        yield before
        yield from _text(name)
        yield b":"
        yield from _pieces(fields[name])
        before = b","
    yield b"}" if fields else b"{}"


def _array(items: list[object]) -> Iterator[bytes]:
    if {*map(type, items)} <= {int, bool} and (text := _dumped(items)) is not None:
        yield text  # token ids: many, and nothing in them
        return
    before = b"["
    for item in items:
        yield before
        yield from _pieces(item)
        before = b","
    yield b"]" if items else b"[]"


def _text(text: str) -> Iterator[bytes]:
    yield b'"'
    for at in range(0, len(text), _PIECE):
        piece = text[at : at + _PIECE]
        dumped = _dumped(piece)
        yield (json.dumps(piece).encode() if dumped is None else dumped)[1:-1]
    yield b'"'


# --- what parsers differ in ---------------------------------------------------------------------------------


def _distinct(pairs: list[tuple[str, object]]) -> None:
    if len({name for name, _ in pairs}) != len(pairs):
        raise ValueError("two equal names in an object")


def _small(digits: str) -> int:
    if len(digits) > 20 or not -(1 << 63) <= (number := int(digits)) < 1 << 63:
        raise ValueError("an integer of more than 64 bits")
    return number


def _refused(name: str) -> None:
    raise ValueError(f"{name} is no JSON")
