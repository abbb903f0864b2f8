"""Frames: the KV of a chunk of whole blocks, as it lies in stores.

A frame is a header of 256 bytes, little-endian, and the payload: the chunk's blocks one after the other, each one
contiguous run `[layer][K|V][token][head][dim]` as in the pool. Offsets in the header:

      0  magic  "pgKV"         4  version u16       6  header's bytes u16
      8  seal u8               9  codec u8         10  dtype u8            11  zero u8
     12  n_layers u32         16  kv_heads u32     20  head_dim u32        24  block_size u32
     28  zero u32             32  first token u64  40  tokens u64          48  payload's bytes u64
     56  fingerprint [32]     88  key [32]        120  parent's key [32], zeros: none
    152  scope [16]          168  nonce [12]      180  tenant [16]        196  zeros [44]
    240  checksum or tag [16]

The payload comes as a list of buffers, the pool's blocks for instance, and is never joined. A frame is sealed in one
of two ways. In a store that is trusted with the bytes: xxh3-128 over the header before it and the payload, against
accidents. In one that is not: AES-256-GCM, the header before the tag as associated data.

A reader knows every field but nonce, tenant and tag, and refuses a frame in which any other one differs, by name. The
salt itself is in no frame: `scope` is a MAC of the key under it. `tenant`, a digest, is for whoever looks for all
frames of one in a store that does not know them, and tells nobody else more than which belong together.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from os import urandom
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from xxhash import xxh3_128

from cache.byte_pieces import paired, total_bytes
from cache.kv_keys import DIGEST_BYTES, Codec, Dtype, Geometry
from cache.store import Buffer, ChunkKey

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.modes import GCM

HEADER_BYTES: Final = 256
TENANT: Final = slice(180, 196)
"""Where a frame tells whose it is: `store.tenant_digest` of its `FrameInfo.tenant`."""
NONCE_BYTES: Final = 12
MASTER_BYTES: Final = 32
"""Bytes of the key from which all others are derived."""

MAX_PAYLOAD_BYTES: Final = (1 << 36) - 32
"""What AES-GCM can encrypt at once (NIST SP 800-38D, 5.2.1.1)."""

_MAGIC: Final = b"pgKV"
_VERSION: Final = 1
_SEALED: Final = HEADER_BYTES - 16
"""Bytes of the header that its seal covers: all before it."""

_HEADER: Final = Struct("<4sHHBBBBIIIIIQQQ32s32s32s16s12s16s44s")
_CODECS: Final = {Codec.RAW: 0, Codec.INT8: 1}
_DTYPES: Final = {Dtype.BF16: 1, Dtype.FP16: 2, Dtype.FP32: 3, Dtype.FP8_E4M3: 4, Dtype.FP8_E5M2: 5}
_NO_NONCE: Final = bytes(NONCE_BYTES)
_NO_PARENT: Final = bytes(DIGEST_BYTES)


class Seal(StrEnum):
    """What guards a frame's bytes."""

    CHECKSUM = "checksum"
    AEAD = "aead"


_SEALS: Final = {Seal.CHECKSUM: 0, Seal.AEAD: 1}


class FrameFault(StrEnum):
    """Why a frame is refused."""

    HEADER = "header"
    """It is not 256 bytes, or no frame's."""
    VERSION = "version"
    SEAL = "seal"
    """It is guarded in another way than the reader asks for."""
    FINGERPRINT = "fingerprint"
    GEOMETRY = "geometry"
    DTYPE = "dtype"
    CODEC = "codec"
    RANGE = "range"
    """It holds other tokens of the prompt."""
    SALT = "salt"
    KEY = "key"
    PARENT = "parent"
    LENGTH = "length"
    """The payload is longer or shorter."""
    CHECKSUM = "checksum"
    TAG = "tag"
    NUMBERS = "numbers"
    """They are not finite, where the codec can only have finite ones: in a frame, or in what was to become one."""


class FrameError(Exception):
    """A frame that is not the one expected, or damaged: the reader has a miss. Or KV that no frame can hold."""

    def __init__(self, reason: FrameFault) -> None:
        super().__init__(reason.value)
        self.reason = reason


class SealUnavailableError(Exception):
    """Frames cannot be encrypted here: the library for it is not installed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameSpec:
    """Which frame: what its writer puts into the header, and its reader expects there.

    Raises ValueError where a digest is not 32 bytes, the tokens are not whole blocks, or the frame is too large.
    """

    key: ChunkKey
    parent: ChunkKey | None
    fingerprint: bytes
    """Of the model's weights: 32 bytes."""
    geometry: Geometry
    first_token: int
    """Place in the prompt of its first token."""
    n_tokens: int
    salt: bytes = field(default=b"", repr=False)
    """The tenant's."""
    tenant: bytes = bytes(16)
    """Whom the frame is written for, as `store.tenant_digest` calls it; for readers it is nothing."""

    def __post_init__(self) -> None:
        digests = (self.key, self.fingerprint, *(() if self.parent is None else (self.parent,)))
        if any(len(digest) != DIGEST_BYTES for digest in digests) or self.parent == _NO_PARENT:
            raise ValueError(f"keys and fingerprints are {DIGEST_BYTES} bytes, a parent's not all zero")
        if len(self.tenant) != TENANT.stop - TENANT.start:
            raise ValueError(f"a tenant's digest is 16 bytes, not {len(self.tenant)}")
        size = self.geometry.block_size
        if self.first_token < 0 or self.n_tokens <= 0 or self.first_token % size or self.n_tokens % size:
            raise ValueError(f"a chunk is whole blocks of {size} tokens: {self.first_token} + {self.n_tokens}")
        if self.payload_bytes > MAX_PAYLOAD_BYTES or self.first_token >= 1 << 63:
            raise ValueError("the chunk is too large for a frame")

    @property
    def n_blocks(self) -> int:
        """Blocks in it."""
        return self.n_tokens // self.geometry.block_size

    @property
    def payload_bytes(self) -> int:
        """Bytes after the header."""
        return self.n_blocks * self.geometry.block_bytes

    @property
    def frame_bytes(self) -> int:
        """Bytes of the whole frame."""
        return HEADER_BYTES + self.payload_bytes


# --- trusted stores ----------------------------------------------------------------------------------------


def encode_header(spec: FrameSpec, payload: Sequence[Buffer]) -> bytes:
    """The header to be written before `payload`, with its checksum. Raises ValueError for a payload of another size."""
    _same_size(spec, payload)
    head = _head(spec, Seal.CHECKSUM, _NO_NONCE)
    return head + _checksum(head, payload)


def check(header: Buffer, payload: Sequence[Buffer], expected: FrameSpec) -> None:
    """Let the frame pass that `expected` describes and whose bytes are as they were written; raises FrameError.

    Both must not change while it runs. A refused payload may be any bytes, and be no numbers: it must not stay in a
    pool whose unused slots have to be finite.
    """
    _expect(header, expected, Seal.CHECKSUM)
    if total_bytes(payload) != expected.payload_bytes:
        raise FrameError(FrameFault.LENGTH)
    if _checksum(header[:_SEALED], payload) != bytes(header[_SEALED:]):
        raise FrameError(FrameFault.CHECKSUM)


def _checksum(head: Buffer, payload: Sequence[Buffer]) -> bytes:
    state = xxh3_128(head)
    for piece in payload:
        state.update(piece)
    return state.digest()


# --- stores that are not trusted ---------------------------------------------------------------------------


class FrameKeys:
    """Keys for AES-256-GCM: one for each frame, HMAC-SHA256 of the tenant's salt and the chunk's key under `master`.

    Who has another salt derives another key, so that a tenant's frame cannot be opened for another one, whatever it
    asks the store for.

    Nonces are 96 random bits. With one key for all, 2**32 frames would be the bound below which two share a nonce with
    a probability under 2**-32 (NIST SP 800-38D, 8.3). Here the bound is for each frame's own key, which encrypts only
    the copies of one chunk that several workers, or one worker after an eviction, write: nobody comes near it. That
    random nonces need no state is why they are not counters: a counter would start again with every process. They are
    not derived from the plaintext either, since that costs a pass over it.

    Raises ValueError where `master` is not 32 bytes, SealUnavailableError where `cryptography` is not installed.
    """

    def __init__(self, master: bytes) -> None:
        if len(master) != MASTER_BYTES:
            raise ValueError(f"the key must be {MASTER_BYTES} bytes, not {len(master)}")
        self._master = master
        self._library = _load()

    def bound(self, fingerprint: bytes) -> bytes:
        """The fingerprint of a model whose frames are encrypted under these keys, 32 bytes: who has others, or none,
        does not come across them.
        """
        return hmac.digest(self._master, b"prefixgate kv fingerprint v1" + fingerprint, "sha256")

    def cipher(self, spec: FrameSpec, nonce: bytes) -> Cipher[GCM]:
        """AES-256-GCM under the key of one frame."""
        salt = len(spec.salt).to_bytes(8, "little") + spec.salt
        key = hmac.digest(self._master, b"prefixgate kv aead v1" + salt + spec.key, "sha256")
        return self._library.new(key, nonce)

    def encrypt_into(
        self, target: Sequence[memoryview], spec: FrameSpec, payload: Sequence[Buffer], *, nonce: bytes | None = None
    ) -> bytes:
        """Fill `target` with the encrypted payload, and give the header to be written before it.

        `target` may be cut otherwise; where it is `payload` itself, that is encrypted in place. A nonce is only
        given by tests: never the same twice. Raises ValueError where sizes differ.
        """
        _same_size(spec, payload)
        _same_size(spec, target)
        nonce = urandom(NONCE_BYTES) if nonce is None else nonce
        head = _head(spec, Seal.AEAD, nonce)
        encryptor = self.cipher(spec, nonce).encryptor()
        encryptor.authenticate_additional_data(head)
        for to, origin in paired(target, payload):
            encryptor.update_into(origin, to)
        encryptor.finalize()
        return head + encryptor.tag

    def decrypt_into(
        self, target: Sequence[memoryview], header: Buffer, payload: Sequence[Buffer], expected: FrameSpec
    ) -> None:
        """Fill `target` with what `payload` was before it was encrypted; raises FrameError.

        `target` may be cut otherwise; where it is `payload` itself, that is decrypted in place. It is only to be
        used after this has returned: a frame whose tag is wrong leaves zeros, any other refused one leaves it as it
        was. Raises ValueError where `target` is not of the payload's size.
        """
        _same_size(expected, target)
        nonce = _expect(header, expected, Seal.AEAD).nonce
        if total_bytes(payload) != expected.payload_bytes:
            raise FrameError(FrameFault.LENGTH)
        decryptor = self.cipher(expected, nonce).decryptor()
        decryptor.authenticate_additional_data(header[:_SEALED])
        for to, origin in paired(target, payload):
            decryptor.update_into(origin, to)
        try:
            decryptor.finalize_with_tag(bytes(header[_SEALED:]))
        except self._library.invalid_tag:
            for piece in target:
                piece[:] = bytes(len(piece))
            raise FrameError(FrameFault.TAG) from None


class _Library(NamedTuple):
    new: Callable[[bytes, bytes], Cipher[GCM]]
    invalid_tag: type[Exception]


def _load() -> _Library:
    """`cryptography`, which only those need who encrypt."""
    try:
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - optional
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes  # noqa: PLC0415 - optional
    except ImportError as error:
        raise SealUnavailableError("encrypted KV needs the library: pip install 'prefixgate[kv]'") from error
    return _Library(lambda key, nonce: Cipher(algorithms.AES(key), modes.GCM(nonce)), InvalidTag)


# --- the header --------------------------------------------------------------------------------------------


class _Fields(NamedTuple):
    magic: bytes
    version: int
    header_bytes: int
    seal: int
    codec: int
    dtype: int
    zero_1: int
    n_layers: int
    kv_heads: int
    head_dim: int
    block_size: int
    zero_2: int
    first_token: int
    n_tokens: int
    payload_bytes: int
    fingerprint: bytes
    key: bytes
    parent: bytes
    scope: bytes
    nonce: bytes
    tenant: bytes
    zeros: bytes


def _head(spec: FrameSpec, seal: Seal, nonce: bytes) -> bytes:
    """The header without what seals it."""
    return _HEADER.pack(*_fields(spec, seal, nonce))


def _fields(spec: FrameSpec, seal: Seal, nonce: bytes) -> _Fields:
    return _Fields(
        _MAGIC,
        _VERSION,
        HEADER_BYTES,
        _SEALS[seal],
        _CODECS[spec.geometry.codec],
        _DTYPES[spec.geometry.dtype],
        0,
        *spec.geometry.numbers,
        0,
        spec.first_token,
        spec.n_tokens,
        spec.payload_bytes,
        spec.fingerprint,
        spec.key,
        _NO_PARENT if spec.parent is None else spec.parent,
        _scope(spec.salt, spec.key),
        nonce,
        spec.tenant,
        bytes(44),
    )


def _scope(salt: bytes, key: bytes) -> bytes:
    return hmac.digest(salt, b"prefixgate kv scope v1" + key, "sha256")[:16]


def _expect(header: Buffer, expected: FrameSpec, seal: Seal) -> _Fields:
    """The header's fields, all but nonce, tenant and tag as `expected`; raises FrameError for the first that is not."""
    if len(header) != HEADER_BYTES:
        raise FrameError(FrameFault.HEADER)
    found = _Fields._make(_HEADER.unpack_from(header))
    wanted = _fields(expected, seal, found.nonce if seal is Seal.AEAD else _NO_NONCE)._replace(tenant=found.tenant)
    # The key that is in the header: where only that differs, it is the key and not the salt that is wrong.
    salted = hmac.compare_digest(found.scope, _scope(expected.salt, found.key))
    for fault, same in (
        (FrameFault.HEADER, found.magic == wanted.magic),
        (FrameFault.VERSION, found[1:3] == wanted[1:3]),
        (FrameFault.SEAL, found.seal == wanted.seal),
        (FrameFault.FINGERPRINT, found.fingerprint == wanted.fingerprint),
        (FrameFault.GEOMETRY, found[7:11] == wanted[7:11]),
        (FrameFault.DTYPE, found.dtype == wanted.dtype),
        (FrameFault.CODEC, found.codec == wanted.codec),
        (FrameFault.RANGE, found[12:14] == wanted[12:14]),
        (FrameFault.SALT, salted),
        (FrameFault.KEY, found.key == wanted.key),
        (FrameFault.PARENT, found.parent == wanted.parent),
        (FrameFault.LENGTH, found.payload_bytes == wanted.payload_bytes),
        (FrameFault.HEADER, found == wanted),
    ):
        if not same:
            raise FrameError(fault)
    return found


def _same_size(spec: FrameSpec, pieces: Sequence[Buffer]) -> None:
    if (length := total_bytes(pieces)) != spec.payload_bytes:
        raise ValueError(f"the payload is {spec.payload_bytes} bytes; given: {length}")
