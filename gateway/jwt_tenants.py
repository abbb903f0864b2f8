"""Tenants by signed tokens of an issuer (JWT, RFC 7519), checked with the keys that the issuer publishes (JWK sets).

Only the algorithms that the configuration names are accepted, all of them asymmetric; issuer, audience and expiry must
be there and right. What was found valid is remembered by the token's digest until it expires.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.api_error import ApiError

if TYPE_CHECKING:
    import jwt

    from gateway.config.tenants import JwtIssuer

_LONGEST: Final = 8192
"""Bytes of a token; a longer one is none."""
_REMEMBERED: Final = 10_000
_MOST_KEYS: Final = 100
_ASK_AGAIN_S: Final = 10.0
_END_OF_TIME: Final = 1 << 53
"""A token may claim to be good for longer than a float can count."""
_RETRY: Final = b"\r\nretry-after: 1"


class JwtVerifier:
    """Checks the tokens of one issuer. Its keys come in by `take_up`; until then no token can be checked."""

    def __init__(
        self,
        settings: JwtIssuer,
        *,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises ImportError where the library is not installed."""
        import jwt  # noqa: PLC0415 - an extra: it is needed only where an issuer is configured

        self.settings = settings
        self.wanted: Callable[[], object] = lambda: None
        """Called when a token names a key that is not known: the issuer may have a new one."""
        self._jwt = jwt
        self._wall = wall
        self._clock = clock
        self.data: bytes | None = None
        """The JWK set in use."""
        self._keys: dict[str | None, jwt.PyJWK] | None = None
        self._known: OrderedDict[bytes, tuple[str, float]] = OrderedDict()
        self._asked = float("-inf")

    def take_up(self, data: bytes) -> None:
        """Use the keys of a JWK set from now on. Raises ValueError where it has none that can be used."""
        try:
            found = orjson.loads(data)
            entries = found.get("keys") if type(found) is dict else None
            if type(entries) is not list or len(entries) > _MOST_KEYS:
                raise ValueError(f"a JWK set has a list of keys, {_MOST_KEYS} at most")
            keys = self._jwt.PyJWKSet(
                [entry for entry in entries if type(entry) is not dict or entry.get("use", "sig") == "sig"]
            ).keys
        except (self._jwt.PyJWTError, orjson.JSONDecodeError, TypeError) as error:  # a list for a name, for example
            raise ValueError(f"no JWK set: {error}") from None
        usable = [key for key in keys if key.algorithm_name in self.settings.algorithms]
        if not usable:
            raise ValueError("a JWK set without a key of an algorithm that may be used")
        self.data = data
        self._keys = {key.key_id: key for key in usable}
        self._known.clear()  # what a key signed that is gone is good no longer

    def tenant(self, token: bytes) -> str | None:
        """The tenant that a token names; None where it is not valid.

        Raises:
            ApiError: 503 while no keys are known.
        """
        if len(token) > _LONGEST or token.count(b".") != 2:
            return None
        digest = sha256(token).digest()
        remembered = self._known.get(digest)
        if remembered is not None and self._wall() < remembered[1]:
            return remembered[0]
        if self._keys is None:
            raise ApiError(503, "The issuer's keys are not known yet.", code="issuer_unavailable", fields=_RETRY)
        claims = self._claims(token, self._keys)
        name = claims.get(self.settings.claim)
        if type(name) is not str:
            return None
        self._known[digest] = name, min(int(claims["exp"]), _END_OF_TIME) + self.settings.leeway
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        return name

    def _claims(self, token: bytes, keys: dict[str | None, jwt.PyJWK]) -> dict[str, Any]:
        """What a valid token claims; nothing where it is not valid."""
        settings = self.settings
        try:
            kid = self._jwt.get_unverified_header(token).get("kid")
            key = keys.get(kid) if kid is not None or len(keys) > 1 else next(iter(keys.values()))
            if key is None:
                self._want()
                return {}
            return self._jwt.decode(
                token,
                key,
                algorithms=[key.algorithm_name],
                issuer=settings.issuer,
                audience=settings.audience,
                leeway=settings.leeway,
                options={"require": ["exp", "iss", "aud"]},
            )
        except (self._jwt.PyJWTError, ValueError, TypeError, RecursionError):
            return {}

    def _want(self) -> None:
        """Ask for newer keys, but not for every token that comes along."""
        now = self._clock()
        if now - self._asked >= _ASK_AGAIN_S:
            self._asked = now
            self.wanted()
