"""The paths that clients may ask for. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from gateway.api_error import ApiError
from gateway.dialects.anthropic import ANTHROPIC
from gateway.dialects.base import Dialect
from gateway.dialects.openai import OPENAI
from gateway.dialects.responses import RESPONSES


class Kind(Enum):
    """What a route asks for."""

    CHAT = "chat"
    COMPLETION = "completion"
    RESPONSES = "responses"
    MESSAGES = "messages"
    EMBEDDING = "embedding"
    TOKENS = "tokens"
    """Tokens of a text, or the text of tokens: work for a worker's tokenizer, not for its model."""
    STORED = "stored"
    """A response that a worker keeps."""
    PASSTHROUGH = "passthrough"
    """Whatever else the configuration lets through."""
    MODELS = "models"
    MODEL = "model"
    HEALTH = "health"


# Tuples: a member of an Enum is dear to hash.
ANSWERED_HERE: Final = (Kind.MODELS, Kind.MODEL, Kind.HEALTH)
GENERATES: Final = (Kind.CHAT, Kind.COMPLETION, Kind.RESPONSES, Kind.MESSAGES)


@dataclass(frozen=True, slots=True)
class Route:
    """One path of the API."""

    kind: Kind
    methods: tuple[bytes, ...]
    dialect: Dialect = OPENAI
    has_body: bool = True
    """Must the body be a JSON object? Otherwise it goes on as it is, whatever it is."""
    idempotent: bool = True
    """May a request be sent again that a worker may have begun on? What a second one would change stays changed."""

    @property
    def answered_here(self) -> bool:
        """Does the gateway answer it without a worker?"""
        return self.kind in ANSWERED_HERE


_GET: Final = (b"GET",)
_POST: Final = (b"POST",)
_TOKENS: Final = Route(Kind.TOKENS, _POST)

_EXACT: Final[Mapping[bytes, Route]] = {
    b"/v1/chat/completions": Route(Kind.CHAT, _POST),
    b"/v1/completions": Route(Kind.COMPLETION, _POST),
    b"/v1/responses": Route(Kind.RESPONSES, _POST, RESPONSES),
    b"/v1/messages": Route(Kind.MESSAGES, _POST, ANTHROPIC),
    b"/v1/messages/count_tokens": Route(Kind.TOKENS, _POST, ANTHROPIC),
    b"/v1/embeddings": Route(Kind.EMBEDDING, _POST),
    b"/tokenize": _TOKENS,  # vLLM's; SGLang has them under /v1 too
    b"/detokenize": _TOKENS,
    b"/v1/tokenize": _TOKENS,
    b"/v1/detokenize": _TOKENS,
    b"/v1/models": Route(Kind.MODELS, _GET, has_body=False),
    b"/health": Route(Kind.HEALTH, _GET, has_body=False),
}

_MODEL: Final = Route(Kind.MODEL, _GET, has_body=False)
_MODEL_PREFIX: Final = b"/v1/models/"
_STORED: Final[Mapping[bytes, Route]] = {
    b"": Route(Kind.STORED, (b"GET", b"DELETE"), RESPONSES, has_body=False),
    b"/cancel": Route(Kind.STORED, _POST, RESPONSES, has_body=False),
    b"/input_items": Route(Kind.STORED, _GET, RESPONSES, has_body=False),
}
_STORED_PATH: Final = re.compile(rb"/v1/responses/([0-9A-Za-z_-]{1,256})(/cancel|/input_items|)").fullmatch

_PASSED: Final = Route(
    Kind.PASSTHROUGH,
    # Not HEAD, whose answers tell the length of a body that does not come.
    (b"GET", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS"),
    has_body=False,
    idempotent=False,
)
_PLAIN_PATH: Final = re.compile(rb"(?:/[0-9A-Za-z._~@:=+,!$&'()*-]+)+/?").fullmatch
_CONTROL_PLANE: Final = (b"/metrics", b"/livez", b"/readyz", b"/admin")
_DOTS: Final = re.compile(rb"/\.+(?:/|\Z)").search

_DIALECTS: Final = ((b"/v1/messages", ANTHROPIC), (b"/v1/responses", RESPONSES))


def response_id(path: bytes) -> str | None:
    """The id in a path such as `/v1/responses/resp_1/cancel`."""
    found = _STORED_PATH(path)
    return None if found is None else found[1].decode()


def dialect_of(path: bytes) -> Dialect:
    """The dialect in which a client is told that a path, or its method, is not served."""
    for prefix, dialect in _DIALECTS:
        if path.startswith(prefix):
            return dialect
    return OPENAI


class RouteTable:
    """Path and method → route."""

    def __init__(self, passthrough: Iterable[str] = ()) -> None:
        """`passthrough` are further paths; one that ends in `*` stands for all that begin so."""
        patterns = [pattern.encode() for pattern in passthrough]
        self._exact = {path: _PASSED for path in patterns if not path.endswith(b"*")} | dict(_EXACT)
        self._prefixes: Sequence[bytes] = [pattern[:-1] for pattern in patterns if pattern.endswith(b"*")]

    def find(self, path: bytes, method: bytes) -> Route:
        """The route of a path without its query.

        Raises:
            ApiError: 404 where there is none, 405 with `Allow` for another method, 400 for a path that a worker might
                take for another one than the pattern meant.
        """
        route = self._exact.get(path) or self._by_shape(path, method)
        if method not in route.methods:
            allowed = b", ".join(route.methods)
            raise ApiError(
                405,
                f"{_shown(path)} takes {_shown(allowed)} only.",
                code="method_not_allowed",
                fields=b"\r\nallow: " + allowed,
            )
        return route

    def _by_shape(self, path: bytes, method: bytes) -> Route:
        stored = _STORED_PATH(path)
        if stored is not None:
            return _STORED[stored[2]]
        if path.startswith(_MODEL_PREFIX) and len(path) > len(_MODEL_PREFIX):
            return _MODEL  # never sent anywhere, so that its name may hold anything
        if any(path.startswith(prefix) for prefix in self._prefixes):
            if _PLAIN_PATH(path) is None or _DOTS(path) is not None:
                message = "This path must be plain: letters, digits and -._~, no empty, dotted or encoded parts."
                raise ApiError(400, message, code="invalid_path")
            return _PASSED
        prefixes = tuple(self._prefixes)
        meant = next((path for path in _perhaps(path) if path in self._exact or path.startswith(prefixes)), None)
        hint = "" if meant is None else f" Did you mean {_shown(meant)}? A client's base URL ends in /v1."
        if path in _CONTROL_PLANE or path.startswith(b"/admin/"):
            hint = " The control plane has a port of its own: admin.port."
        raise ApiError(404, f"There is no route {_shown(method)} {_shown(path)}.{hint}", code="unknown_route")


def _perhaps(path: bytes) -> tuple[bytes, ...]:
    """What clients ask for whose base URL lacks the `/v1`, or has it twice, or a slash too many at its end."""
    plain = path.rstrip(b"/").replace(b"//", b"/")
    return b"/v1" + plain, plain.replace(b"/v1/v1/", b"/v1/", 1), plain.removeprefix(b"/v1")


def _shown(value: bytes) -> str:
    return value[:200].decode("ascii", "backslashreplace")
