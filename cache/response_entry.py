"""A stored answer, and the bytes that it is in stores.

Little-endian:

      0  magic "pgRC"        4  version u8         5  seal u8         6  zero u16
      8  facts' bytes u32   12  body's bytes u64  20  key [40]       60  model's tag [8]
     68  stored at f64, seconds since 1970        76  generation [16]
     92  position u64      100  nonce [12]       112  checksum of the head u64
    120  facts, then body   then the seal [16]

Facts are msgpack. A frame is sealed as KV is (`kv_codec`): by xxh3-128 over all before it, against accidents, or by
AES-256-GCM, which encrypts facts and body, with the head as associated data. The head has a checksum of its own, so
that it can be read alone to see what is to be forgotten. The reader knows the key, and refuses an entry of another one.
"""

from __future__ import annotations

import hmac
from math import isfinite
from os import urandom
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from xxhash import xxh3_64_intdigest, xxh3_128, xxh3_128_digest

from cache.kv_codec import SealUnavailableError
from cache.response_key import ModelTag, ResponseKey, model_tag
from cache.response_openings import Openings

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

HEAD_BYTES: Final = 120
"""At the beginning of a frame: enough to know whose it is, of which model and of when."""
MASTER_BYTES: Final = 32

_HEAD: Final = Struct("<4sBBHIQ40s8sd16sQ12s")
_SUM: Final = Struct("<Q")
_MAGIC: Final = b"pgRC"
_VERSION: Final = 3
_CHECKSUM: Final = 0
_AEAD: Final = 1
_SEAL_BYTES: Final = 16
_NONCE_BYTES: Final = 12
_NO_NONCE: Final = bytes(_NONCE_BYTES)


class Stamp(NamedTuple):
    """When a request began, as forgetting counts time (see `response_epochs`)."""

    generation: bytes
    """16 bytes."""
    position: int


class ResponseEntry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An answer as a worker gave it."""

    content_type: str
    body: bytes
    """In one piece, without its transfer coding."""
    model: str
    """As in the key."""
    stored_at: float
    """Seconds since 1970: when the answer was complete."""
    stamp: Stamp
    """Of the request's beginning."""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    """None where it was not told."""
    openings: Openings = None
    """How its prompt begins, for who forgets by that."""


class Head(NamedTuple):
    """What can be read of a frame without the rest of it."""

    key: ResponseKey
    model: ModelTag
    stored_at: float
    stamp: Stamp
    n_bytes: int
    """Of the whole frame."""


class _Facts(msgspec.Struct, frozen=True, array_like=True):
    content_type: str
    model: str
    prompt_tokens: int | None
    completion_tokens: int | None
    openings: tuple[str, ...] | None


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(_Facts)


class EntryKeys:
    """Keys for AES-256-GCM, one for each entry: HMAC-SHA256 of the entry's key under `master`. Each encrypts only the
    few answers that are ever kept under one key, so that nonces of 96 random bits do not meet; see `kv_codec`.

    Raises ValueError where `master` is not 32 bytes, SealUnavailableError where `cryptography` is not installed.
    """

    def __init__(self, master: bytes) -> None:
        if len(master) != MASTER_BYTES:
            raise ValueError(f"the key must be {MASTER_BYTES} bytes, not {len(master)}")
        self._master = master
        try:
            from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - optional
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - optional
        except ImportError as error:
            raise SealUnavailableError("encrypted answers need the library: pip install 'prefixgate[kv]'") from error
        self._aesgcm, self._invalid_tag = AESGCM, InvalidTag

    def encrypt(self, key: ResponseKey, nonce: bytes, head: bytes, plain: bytes) -> bytes:
        """What becomes of `plain`, and the tag."""
        return self._cipher(key).encrypt(nonce, plain, head)

    def decrypt(self, key: ResponseKey, nonce: bytes, head: bytes, sealed: memoryview) -> bytes | None:
        """What it was; None where anything has been altered, or the key is another one."""
        try:
            return self._cipher(key).decrypt(nonce, sealed, head)
        except self._invalid_tag:
            return None

    def _cipher(self, key: ResponseKey) -> AESGCM:
        return self._aesgcm(hmac.digest(self._master, b"prefixgate response aead v1" + key, "sha256"))


def encode_entry(key: ResponseKey, entry: ResponseEntry, keys: EntryKeys | None = None) -> bytes:
    """The frame of an entry, encrypted where there are keys."""
    facts = _ENCODER.encode(
        _Facts(
            entry.content_type,
            entry.model,
            entry.prompt_tokens,
            entry.completion_tokens,
            entry.openings,
        )
    )
    seal, nonce = (_CHECKSUM, _NO_NONCE) if keys is None else (_AEAD, urandom(_NONCE_BYTES))
    head = _HEAD.pack(
        _MAGIC, _VERSION, seal, 0, len(facts), len(entry.body), key, model_tag(entry.model), entry.stored_at,
        *entry.stamp, nonce,
    )  # fmt: skip
    head += _SUM.pack(xxh3_64_intdigest(head))
    if keys is not None:
        return head + keys.encrypt(key, nonce, head, facts + entry.body)
    sealed = xxh3_128(head)
    sealed.update(facts)
    sealed.update(entry.body)
    return b"".join((head, facts, entry.body, sealed.digest()))


def decode_entry(key: ResponseKey, frame: bytes, keys: EntryKeys | None = None) -> ResponseEntry | None:
    """The entry in a frame; None where it is not whole, of another key or version, or sealed in another way than asked
    for. Never raises.
    """
    head = _fields(frame)
    if head is None or head.key != key or head.seal != (_CHECKSUM if keys is None else _AEAD):
        return None
    view = memoryview(frame)
    if len(frame) != HEAD_BYTES + head.facts_bytes + head.body_bytes + _SEAL_BYTES:
        return None
    content: bytes | memoryview | None
    if keys is None:
        content = view[HEAD_BYTES:-_SEAL_BYTES]
        if xxh3_128_digest(view[:-_SEAL_BYTES]) != view[-_SEAL_BYTES:]:
            return None
    else:
        content = keys.decrypt(key, head.nonce, frame[:HEAD_BYTES], view[HEAD_BYTES:])
        if content is None:
            return None
    try:
        facts = _DECODER.decode(content[: head.facts_bytes])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return ResponseEntry(
        content_type=facts.content_type,
        body=bytes(content[head.facts_bytes :]),
        model=facts.model,
        stored_at=head.stored_at,
        stamp=Stamp(head.generation, head.position),
        prompt_tokens=facts.prompt_tokens,
        completion_tokens=facts.completion_tokens,
        openings=facts.openings,
    )


def decode_head(frame: bytes) -> Head | None:
    """What the first HEAD_BYTES of a frame tell; None where they are not whole, or of another version. Never raises."""
    head = _fields(frame)
    if head is None:
        return None
    n_bytes = HEAD_BYTES + head.facts_bytes + head.body_bytes + _SEAL_BYTES
    stamp = Stamp(head.generation, head.position)
    return Head(ResponseKey(head.key), ModelTag(head.model), head.stored_at, stamp, n_bytes)


class _Fields(NamedTuple):
    magic: bytes
    version: int
    seal: int
    zero: int
    facts_bytes: int
    body_bytes: int
    key: bytes
    model: bytes
    stored_at: float
    generation: bytes
    position: int
    nonce: bytes


def _fields(frame: bytes) -> _Fields | None:
    if len(frame) < HEAD_BYTES or xxh3_64_intdigest(frame[: _HEAD.size]) != _SUM.unpack_from(frame, _HEAD.size)[0]:
        return None
    fields = _Fields._make(_HEAD.unpack_from(frame))
    known = (fields.magic, fields.version, fields.zero) == (_MAGIC, _VERSION, 0)
    return fields if known and isfinite(fields.stored_at) else None
