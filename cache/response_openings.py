"""How the prompt of an answer begins, and the rules that forget by it. Pure.

Keys are digests, so an entry carries the first characters of its prompt's texts. A rule carries no text: a digest of so
many characters, under a salt of its own. Who can read the log can test a guess against it, and see nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import Final, NamedTuple, TypeAlias

OPENING_CHARS: Final = 256
"""Of a text that are kept, and of a prefix that are compared."""
MOST_OPENINGS: Final = 4
"""Texts of one prompt that are kept."""
SALT_BYTES: Final = 16
DIGEST_BYTES: Final = 16

Openings: TypeAlias = tuple[str, ...] | None
"""How the texts of a prompt begin. None: not known (token ids, too many texts); then every prefix may be its own."""


def openings_of(texts: Iterable[str]) -> Openings:
    """What is kept of these texts, empty ones left out; None where they are more than can be kept."""
    kept: list[str] = []
    for text in texts:
        if text and (begun := _plain(text)) not in kept:
            if len(kept) == MOST_OPENINGS:
                return None
            kept.append(begun)
    return tuple(kept)


class PrefixDigest(NamedTuple):
    """Of texts that begin alike."""

    n_chars: int
    """How many characters it is of, from 1 to OPENING_CHARS."""
    salt: bytes
    digest: bytes

    def matches(self, openings: Openings) -> bool:
        """Does any text begin so? Where they are not known, that cannot be ruled out."""
        if openings is None:
            return True
        n, salt, digest = self
        for text in openings:  # noqa: SIM110 - a generator takes longer, and this is done in the event loop
            if len(text) >= n and _digest(text[:n], salt) == digest:
                return True
        return False


def prefix_digest(prefix: str, salt: bytes) -> PrefixDigest:
    """Of a prefix, or of its first OPENING_CHARS characters. Raises ValueError for an empty one."""
    if not prefix:
        raise ValueError("a prefix has at least one character")
    begun = _plain(prefix)
    return PrefixDigest(len(begun), salt, _digest(begun, salt))


def _plain(text: str) -> str:
    """Without lone surrogates, which no UTF-8 can hold; of the same length."""
    return text[:OPENING_CHARS].encode("utf-8", "replace").decode()


def _digest(text: str, salt: bytes) -> bytes:
    return sha256(salt + text.encode()).digest()[:DIGEST_BYTES]
