"""What has been forgotten, and so may not be read any more wherever it still lies. Pure.

Forgetting is a log that is only ever appended to, one record for each time that something was forgotten; several
gateways share one. A request is stamped with the log's length when it begins, and its answer keeps that stamp. An
answer can be read while no record after its stamp is about it. So what was forgotten is out of reach as soon as the
record is known, and a write that was under way cannot bring it back, however late it comes.

A log has a generation: 16 random bytes. Where one is lost, damaged or too long another takes its place, and nothing of
an older generation is read: what was forgotten there is not known any more.

Bytes: items of 48, little-endian. The first is the header: magic (8), generation (16), zeros (16), checksum (8). The
others: scope's tag (8), model's tag (8), both zeros for all of them; before when (f64, seconds since 1970, inf: until
now); random bytes (16) by which equal records differ; checksum of generation and record.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from struct import Struct
from typing import Final, NamedTuple

from xxhash import xxh3_64_digest

from cache.response_entry import Stamp
from cache.response_key import TAG_BYTES, ModelTag, ScopeTag

ITEM_BYTES: Final = 48
MOST_ITEMS: Final = 4_096
"""Of a log: a longer one gives way to another. What it says of one scope it says of all then, once."""
GENERATION_BYTES: Final = 16

_MAGIC: Final = b"pgFORG1\n"
_HEADER: Final = Struct("<8s16s16s")
_RECORD: Final = Struct("<8s8sd16s")
_ALL: Final = bytes(TAG_BYTES)


class ForgetRule(NamedTuple):
    """What is forgotten."""

    scope: ScopeTag | None
    """None: of all scopes."""
    model: ModelTag | None
    """None: of all models."""
    before: float
    """What was stored before then, in seconds since 1970; inf: all that was asked for until now."""

    def covers(self, scope: ScopeTag, model: ModelTag, stored_at: float) -> bool:
        """Is it about such an answer, if it was there already?"""
        return self.scope in {None, scope} and self.model in {None, model} and stored_at < self.before


def encode_header(generation: bytes) -> bytes:
    """A log's first item."""
    body = _HEADER.pack(_MAGIC, generation, bytes(16))
    return body + xxh3_64_digest(body)


def encode_rule(generation: bytes, rule: ForgetRule, nonce: bytes) -> bytes:
    """Another item. `nonce`: 16 random bytes."""
    body = _RECORD.pack(rule.scope or _ALL, rule.model or _ALL, rule.before, nonce)
    return body + xxh3_64_digest(generation + body)


def decode_header(item: bytes) -> bytes | None:
    """The generation; None where this is no whole header."""
    if len(item) != ITEM_BYTES or item[:8] != _MAGIC or xxh3_64_digest(item[:-8]) != item[-8:]:
        return None
    return item[8 : 8 + GENERATION_BYTES]


def decode_rule(generation: bytes, item: bytes) -> ForgetRule | None:
    """The rule of an item behind the header; None where it is damaged. Another header tells nothing."""
    if decode_header(item) is not None:
        return _NOTHING
    if len(item) != ITEM_BYTES or xxh3_64_digest(generation + item[:-8]) != item[-8:]:
        return None
    scope, model, before, _ = _RECORD.unpack_from(item)
    if before != before:  # noqa: PLR0124 - not a number: it would forget nothing
        return None
    return ForgetRule(ScopeTag(scope) if scope != _ALL else None, ModelTag(model) if model != _ALL else None, before)


_NOTHING: Final = ForgetRule(None, None, -inf)
"""Two gateways have begun the same log: the first header counts, the second forgets nothing."""


class EpochTable:
    """A log as far as it is known. One thread applies, others may read at the same time."""

    def __init__(self, generation: bytes) -> None:
        self.generation = generation
        self.position = 0
        """Records that have been applied."""
        self._until: dict[tuple[ScopeTag | None, ModelTag | None], int] = {}
        """Whose stamps must be at this position at least."""
        self._before: dict[tuple[ScopeTag | None, ModelTag | None], float] = {}

    def stamp(self) -> Stamp:
        """Of what begins now."""
        return Stamp(self.generation, self.position)

    def apply(self, rules: Sequence[ForgetRule]) -> None:
        """The next records."""
        for rule in rules:
            subject = (rule.scope, rule.model)
            if rule.before == inf:
                self._until[subject] = self.position + 1
            elif rule.before > -inf:
                self._before[subject] = max(rule.before, self._before.get(subject, -inf))
            # Last: whoever reads meanwhile finds an answer forgotten too early rather than too late.
            self.position += 1

    def readable(self, scope: ScopeTag, model: ModelTag, stamp: Stamp, stored_at: float) -> bool:
        """Has such an answer not been forgotten?"""
        if stamp.generation != self.generation:
            return False
        if not self._until and not self._before:
            return True
        for subject in ((scope, None), (scope, model), (None, None), (None, model)):
            if self._until.get(subject, 0) > stamp.position or self._before.get(subject, -inf) > stored_at:
                return False
        return True
