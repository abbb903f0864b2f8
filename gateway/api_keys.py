"""API keys of tenants: made from 32 random bytes, known here by their digests only, and compared whole. Pure.

SHA-256 without salt or stretching is right for a key that nobody can guess; it would not be for a password.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from hashlib import sha256
from hmac import compare_digest
from typing import Final, Generic, NewType, TypeVar, cast

Owner = TypeVar("Owner")

KeyDigest = NewType("KeyDigest", bytes)
"""SHA-256 of a key, 32 bytes."""

_SCHEME: Final = "sha256:"
_KEY_BYTES: Final = 32
_ID_DIGITS: Final = 12
_NO_DIGEST: Final = KeyDigest(bytes(32))

_BEARER: Final = re.compile(rb"\r\nauthorization: (?i:bearer)[ \t]+([^\r]+)").findall
_API_KEY: Final = re.compile(rb"\r\nx-api-key: ([^\r]+)").findall


def new_key() -> str:
    """A key that nobody has."""
    return "pg-" + secrets.token_urlsafe(_KEY_BYTES)


def digest_of(key: bytes) -> KeyDigest:
    """What is kept of a key."""
    return KeyDigest(sha256(key).digest())


def written(digest: KeyDigest) -> str:
    """A digest as it stands in files."""
    return _SCHEME + digest.hex()


def read_digest(text: str) -> KeyDigest:
    """The digest that `written` wrote. Raises ValueError."""
    digest = bytes.fromhex(text.removeprefix(_SCHEME))
    if not text.startswith(_SCHEME) or len(digest) != len(_NO_DIGEST):
        raise ValueError("a key's digest is sha256: and 64 hexadecimal digits")
    return KeyDigest(digest)


def key_id(digest: KeyDigest) -> str:
    """A short name of a key, by which people tell keys apart."""
    return digest.hex()[:_ID_DIGITS]


def presented_key(credentials: bytes, *, anthropic: bool) -> bytes | None:
    """The key that a client shows in its header lines: `name: value` in lower-case names, each led by CRLF.

    It is a bearer token, for Anthropic's clients also `X-API-Key`, which then comes first. None where there is none, or
    several of a kind, of which nobody could say which one is meant.
    """
    found = _API_KEY(credentials) if anthropic else []
    found = found or _BEARER(credentials)
    return found[0].strip() or None if len(found) == 1 else None


class KeyRing(Generic[Owner]):
    """Whose key is it?"""

    __slots__ = ("_entries", "_unknown")

    def __init__(self, owners: Mapping[KeyDigest, Owner]) -> None:
        self._entries: Mapping[KeyDigest, tuple[KeyDigest, Owner | None]] = {
            digest: (digest, owner) for digest, owner in owners.items()
        }
        self._unknown: tuple[KeyDigest, Owner | None] = (_NO_DIGEST, None)

    def __len__(self) -> int:
        """Keys that are known."""
        return len(self._entries)

    def owner(self, key: bytes) -> Owner | None:
        """The owner of a key, None for one that nobody has. It takes the same steps for both: what is looked up is a
        digest, of which no key tells the beginning, and then it is compared as a whole.
        """
        digest = cast("KeyDigest", sha256(key).digest())
        known, owner = self._entries.get(digest, self._unknown)
        return owner if compare_digest(digest, known) else None
