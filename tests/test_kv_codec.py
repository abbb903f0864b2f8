"""Frames: their bytes, and that none is accepted but the one that was asked for, as it was written."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh3_128_digest

from cache.kv_codec import (
    HEADER_BYTES,
    FrameError,
    FrameFault,
    FrameKeys,
    FrameSpec,
    check,
    encode_header,
)
from cache.kv_keys import Codec, Dtype, Geometry
from cache.memory_store import MemoryStore
from cache.store import Buffer, ChunkKey, FrameInfo
from tests.frame_fixtures import mutated
from tests.store_contract import cut

GEOMETRY = Geometry(n_layers=2, kv_heads=1, head_dim=4, block_size=2, dtype=Dtype.BF16)
SPEC = FrameSpec(
    key=ChunkKey(sha256(b"key").digest()),
    parent=ChunkKey(sha256(b"parent").digest()),
    fingerprint=sha256(b"weights").digest(),
    geometry=GEOMETRY,
    first_token=6,
    n_tokens=4,
    salt=b"tenant a",
)
PAYLOAD = random.Random(1).randbytes(SPEC.payload_bytes)
KEYS = FrameKeys(sha256(b"master").digest())
NONCE = bytes(range(12))
SCOPE = bytes.fromhex("6696b592e23e7abfbb119fc604f2dd73")
"""HMAC-SHA256 of "prefixgate kv scope v1" and the key, under the salt: its first half."""


@dataclass(frozen=True)
class Mode:
    """Both ways to seal a frame behind one face."""

    name: str
    write: Callable[[FrameSpec, Sequence[Buffer]], bytes]
    read: Callable[[bytes, FrameSpec], bytes]
    """Raises FrameError."""

    def fault(self, frame: bytes, expected: FrameSpec = SPEC) -> FrameFault | None:
        try:
            self.read(frame, expected)
        except FrameError as error:
            return error.reason
        return None


def write_checked(spec: FrameSpec, payload: Sequence[Buffer]) -> bytes:
    return encode_header(spec, payload) + b"".join(payload)


def read_checked(frame: bytes, expected: FrameSpec) -> bytes:
    check(frame[:HEADER_BYTES], [memoryview(frame)[HEADER_BYTES:]], expected)
    return frame[HEADER_BYTES:]


def write_encrypted(spec: FrameSpec, payload: Sequence[Buffer]) -> bytes:
    target = bytearray(spec.payload_bytes)
    return KEYS.encrypt_into([memoryview(target)], spec, payload, nonce=NONCE) + bytes(target)


def read_encrypted(frame: bytes, expected: FrameSpec) -> bytes:
    target = bytearray(expected.payload_bytes)
    KEYS.decrypt_into([memoryview(target)], frame[:HEADER_BYTES], [frame[HEADER_BYTES:]], expected)
    return bytes(target)


CHECKED = Mode("checksum", write_checked, read_checked)
ENCRYPTED = Mode("aead", write_encrypted, read_encrypted)
MODES = [CHECKED, ENCRYPTED]
both = pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)


# --- bytes -------------------------------------------------------------------------------------------------


def written_down(seal: int, nonce: bytes, scope: bytes) -> bytes:
    """The header before its seal, from the table in the module's text."""

    def number(value: int, size: int) -> bytes:
        return value.to_bytes(size, "little")

    return b"".join([
        b"pgKV", number(1, 2), number(256, 2), bytes([seal, 0, 1, 0]),
        number(2, 4), number(1, 4), number(4, 4), number(2, 4), bytes(4),
        number(6, 8), number(4, 8), number(2 * 64, 8),
        sha256(b"weights").digest(), sha256(b"key").digest(), sha256(b"parent").digest(), scope, nonce, bytes(60),
    ])  # fmt: skip


def test_golden_bytes_of_a_checked_frame() -> None:
    frame = CHECKED.write(SPEC, [PAYLOAD])
    head = written_down(0, bytes(12), SCOPE)
    assert frame[:240] == head
    assert frame[240:256] == xxh3_128_digest(head + PAYLOAD)
    assert frame[256:] == PAYLOAD
    assert frame[240:256].hex() == "4217a4c26c05a57d9a4f4f5c06349cf7"


def test_golden_bytes_of_an_encrypted_frame() -> None:
    # Another implementation of AES-GCM calls, and HMAC by its definition (RFC 2104).
    frame = ENCRYPTED.write(SPEC, [PAYLOAD])
    head = written_down(1, NONCE, SCOPE)
    master = sha256(b"master").digest().ljust(64, b"\0")
    inner, outer = (bytes(byte ^ pad for byte in master) for pad in (0x36, 0x5C))
    message = b"prefixgate kv aead v1" + (8).to_bytes(8, "little") + b"tenant a" + sha256(b"key").digest()
    key = sha256(outer + sha256(inner + message).digest()).digest()
    sealed = AESGCM(key).encrypt(NONCE, PAYLOAD, head)
    assert frame == head + sealed[-16:] + sealed[:-16]
    assert frame[240:256].hex() == "b1471634ca18899a0c47199e2691f888"


# --- round trips -------------------------------------------------------------------------------------------

SIZES = st.lists(st.integers(0, 40), max_size=12)


SPECS = st.builds(
    lambda n_blocks, parent, salt: replace(SPEC, n_tokens=2 * n_blocks, parent=parent, salt=salt),
    st.integers(1, 3),
    st.sampled_from([None, SPEC.parent]),
    st.binary(max_size=9),
)


@both
@given(SPECS, SIZES, SIZES)
def test_round_trip(mode: Mode, spec: FrameSpec, written: list[int], wanted: list[int]) -> None:
    payload = random.Random(spec.n_tokens).randbytes(spec.payload_bytes)
    frame = mode.write(spec, cut(payload, written))
    assert len(frame) == spec.frame_bytes
    assert mode.read(frame, spec) == payload
    if mode is CHECKED:
        check(frame[:HEADER_BYTES], cut(payload, wanted), spec)
    else:
        target = bytearray(spec.payload_bytes)
        KEYS.decrypt_into(cut(target, wanted), frame[:HEADER_BYTES], cut(frame[HEADER_BYTES:], written), spec)
        assert target == payload


def test_one_byte_at_a_time() -> None:
    single = [1] * (SPEC.payload_bytes - 1)
    header = encode_header(SPEC, cut(PAYLOAD, single))
    assert header == CHECKED.write(SPEC, [PAYLOAD])[:HEADER_BYTES]
    check(memoryview(header), cut(PAYLOAD, single), SPEC)
    target, back = bytearray(SPEC.payload_bytes), bytearray(SPEC.payload_bytes)
    header = KEYS.encrypt_into(cut(target, single), SPEC, cut(PAYLOAD, single), nonce=NONCE)
    assert header + target == ENCRYPTED.write(SPEC, [PAYLOAD])
    KEYS.decrypt_into(cut(back, single), header, cut(target, single), SPEC)
    assert back == PAYLOAD


def test_encrypted_and_decrypted_in_place() -> None:
    content = bytearray(PAYLOAD)
    pieces = cut(content, [13, 0, 50])
    header = KEYS.encrypt_into(pieces, SPEC, pieces)
    assert content != PAYLOAD
    KEYS.decrypt_into(pieces, header, pieces, SPEC)
    assert content == PAYLOAD


def test_blocks_go_from_a_pool_through_a_store_into_another_pool() -> None:
    store = MemoryStore(1 << 20)
    pool, other = bytearray(random.Random(2).randbytes(64 * 10)), bytearray(64 * 10)
    source = [memoryview(pool)[64 * block :][:64] for block in (7, 2)]
    target = [memoryview(other)[64 * block :][:64] for block in (1, 9)]
    header = bytearray(HEADER_BYTES)
    try:
        assert store.write(SPEC.key, [encode_header(SPEC, source), *source], FrameInfo()) is True
        assert store.read_into(SPEC.key, [memoryview(header), *target]) is True
    finally:
        store.close()
    check(header, target, SPEC)
    assert b"".join(target) == b"".join(source)


def test_a_nonce_is_never_given_twice() -> None:
    target = bytearray(SPEC.payload_bytes)
    headers = [KEYS.encrypt_into([memoryview(target)], SPEC, [PAYLOAD]) for _ in range(200)]
    assert len({header[168:180] for header in headers}) == 200


# --- refusals ----------------------------------------------------------------------------------------------

OTHER = ChunkKey(sha256(b"other").digest())
EXPECTED: list[tuple[dict[str, Any], FrameFault]] = [
    ({"fingerprint": OTHER}, FrameFault.FINGERPRINT),
    ({"geometry": replace(GEOMETRY, n_layers=1, head_dim=8)}, FrameFault.GEOMETRY),
    ({"geometry": replace(GEOMETRY, kv_heads=2, head_dim=2)}, FrameFault.GEOMETRY),
    ({"geometry": replace(GEOMETRY, block_size=1, head_dim=8)}, FrameFault.GEOMETRY),
    ({"geometry": replace(GEOMETRY, dtype=Dtype.FP16)}, FrameFault.DTYPE),
    ({"geometry": replace(GEOMETRY, codec=Codec.INT8)}, FrameFault.CODEC),
    ({"first_token": 4}, FrameFault.RANGE),
    ({"first_token": 0, "parent": None}, FrameFault.RANGE),
    ({"n_tokens": 2}, FrameFault.RANGE),
    ({"salt": b"tenant b"}, FrameFault.SALT),
    ({"salt": b""}, FrameFault.SALT),
    ({"salt": b"tenant b", "key": OTHER}, FrameFault.SALT),
    ({"key": OTHER}, FrameFault.KEY),
    ({"parent": OTHER}, FrameFault.PARENT),
    ({"parent": None}, FrameFault.PARENT),
]


@both
@pytest.mark.parametrize(("changes", "fault"), EXPECTED, ids=lambda value: str(value)[:30])
def test_another_frame_than_expected_is_refused_by_name(mode: Mode, changes: dict[str, Any], fault: FrameFault) -> None:
    assert mode.fault(mode.write(SPEC, [PAYLOAD]), replace(SPEC, **changes)) is fault


@both
@pytest.mark.parametrize("at", range(HEADER_BYTES))
def test_a_changed_byte_of_the_header_is_refused_by_name(mode: Mode, at: int) -> None:
    names = {
        (0, 4): "header", (4, 8): "version", (8, 9): "seal", (9, 10): "codec", (10, 11): "dtype", (11, 12): "header",
        (12, 28): "geometry", (28, 32): "header", (32, 48): "range", (48, 56): "length", (56, 88): "fingerprint",
        (88, 120): "salt", (120, 152): "parent", (152, 168): "salt", (168, 180): "header", (180, 196): "checksum",
        (196, 240): "header",
        (240, 256): "checksum",
    }  # fmt: skip
    wanted = next(name for (start, end), name in names.items() if start <= at < end)
    if mode is ENCRYPTED and (168 <= at < 196 or at >= 240):
        wanted = "tag"
    frame = bytearray(mode.write(SPEC, [PAYLOAD]))
    frame[at] ^= 0xFF
    assert mode.fault(bytes(frame)) == wanted


@both
def test_every_flipped_bit_is_refused(mode: Mode) -> None:
    frame = bytearray(mode.write(SPEC, [PAYLOAD]))
    assert mode.fault(bytes(frame)) is None
    for bit in range(8 * len(frame)):
        frame[bit // 8] ^= 1 << bit % 8
        assert mode.fault(bytes(frame)) is not None, bit
        frame[bit // 8] ^= 1 << bit % 8


@both
def test_every_cut_frame_is_refused(mode: Mode) -> None:
    frame = mode.write(SPEC, [PAYLOAD])
    for end in range(len(frame)):
        assert mode.fault(frame[:end]) is (FrameFault.HEADER if end < HEADER_BYTES else FrameFault.LENGTH)
    assert mode.fault(frame + b"\0") is FrameFault.LENGTH


@both
def test_50_000_mutated_frames_are_refused(mode: Mode) -> None:
    choose = random.Random(7)
    frame = mode.write(SPEC, [PAYLOAD])
    others = [
        mode.write(replace(SPEC, key=OTHER), [PAYLOAD]),
        mode.write(replace(SPEC, salt=b"b"), [PAYLOAD]),
        MODES[mode is CHECKED].write(SPEC, [PAYLOAD]),
    ]
    refused = 0
    while refused < 50_000:
        changed = mutated(frame, choose.choice(others), choose)
        if changed != frame:
            assert mode.fault(changed) is not None
            refused += 1


@given(st.binary(max_size=600))
@settings(max_examples=200)
def test_arbitrary_bytes_are_refused(frame: bytes) -> None:
    assert all(mode.fault(frame) is not None for mode in MODES)


def test_a_frame_is_not_downgraded() -> None:
    assert ENCRYPTED.fault(CHECKED.write(SPEC, [PAYLOAD])) is FrameFault.SEAL
    assert CHECKED.fault(ENCRYPTED.write(SPEC, [PAYLOAD])) is FrameFault.SEAL


# --- encryption --------------------------------------------------------------------------------------------


def test_another_tenant_cannot_open_it_even_with_a_forged_header() -> None:
    # It knows the master key and the chunk's key, and writes into the header what its reader expects.
    theirs = replace(SPEC, salt=b"tenant b")
    mine, forged = ENCRYPTED.write(SPEC, [PAYLOAD]), ENCRYPTED.write(theirs, [PAYLOAD])
    assert ENCRYPTED.fault(forged[:240] + mine[240:], theirs) is FrameFault.TAG
    assert ENCRYPTED.fault(mine, theirs) is FrameFault.SALT


def test_another_master_key_opens_nothing() -> None:
    frame, target = ENCRYPTED.write(SPEC, [PAYLOAD]), bytearray(SPEC.payload_bytes)
    with pytest.raises(FrameError, match="tag"):
        FrameKeys(sha256(b"another").digest()).decrypt_into([memoryview(target)], frame[:256], [frame[256:]], SPEC)


def test_two_chunks_and_two_tenants_have_keys_of_their_own() -> None:
    specs = [SPEC, replace(SPEC, key=OTHER), replace(SPEC, salt=b"b"), replace(SPEC, salt=b"")]
    assert len({ENCRYPTED.write(spec, [bytes(128)])[256:] for spec in specs}) == 4


def test_salt_and_key_of_a_cipher_cannot_be_shifted_into_each_other() -> None:
    longer = replace(SPEC, salt=SPEC.salt + SPEC.key[:1], key=ChunkKey(SPEC.key[1:] + b"x"))
    shorter = replace(SPEC, key=ChunkKey(SPEC.key[:31] + b"x"))
    assert len({ENCRYPTED.write(spec, [bytes(128)])[256:] for spec in (SPEC, longer, shorter)}) == 3


def test_nothing_is_left_of_a_frame_whose_tag_is_wrong() -> None:
    frame = bytearray(ENCRYPTED.write(SPEC, [PAYLOAD]))
    frame[-1] ^= 1
    target = bytearray(b"\xaa" * SPEC.payload_bytes)
    with pytest.raises(FrameError, match="tag"):
        KEYS.decrypt_into(cut(target, [5, 60]), frame[:256], [frame[256:]], SPEC)
    assert target == bytes(SPEC.payload_bytes)


def test_neither_salt_nor_key_is_told() -> None:
    assert "tenant a" not in repr(SPEC)
    with pytest.raises(FrameError) as caught:
        KEYS.decrypt_into([memoryview(bytearray(128))], bytes(256), [bytes(128)], SPEC)
    assert str(caught.value) == "header"
    for frame in (CHECKED.write(SPEC, [PAYLOAD]), ENCRYPTED.write(SPEC, [PAYLOAD])):
        assert b"tenant a" not in frame


def test_frames_need_no_cryptography_until_they_are_encrypted() -> None:
    code = (
        "import sys; sys.modules['cryptography'] = None; sys.modules['torch'] = None; sys.modules['numpy'] = None\n"
        "import cache.kv_codec as codec, cache.kv_int8, cache.memory_store\n"
        "try: codec.FrameKeys(bytes(32))\n"
        "except codec.SealUnavailableError as error: print(error)\n"
    )
    root = Path(__file__).parent.parent
    run = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=50, check=True)
    assert run.stdout == "encrypted KV needs the library: pip install 'prefixgate[kv]'\n"


# --- mistakes of the caller --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"key": b"short"}, {"parent": b"short"}, {"parent": bytes(32)}, {"fingerprint": b""}, {"first_token": 1},
        {"first_token": -2}, {"n_tokens": 0}, {"n_tokens": 3}, {"n_tokens": 1 << 40}, {"first_token": 1 << 63},
    ],
)  # fmt: skip
def test_what_is_no_chunk_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"bytes|whole blocks|too large"):
        replace(SPEC, **changes)


def test_buffers_of_another_size_are_a_mistake() -> None:
    short, right = memoryview(bytearray(127)), memoryview(bytearray(128))
    for wrong in (
        lambda: encode_header(SPEC, [short]),
        lambda: KEYS.encrypt_into([right], SPEC, [short]),
        lambda: KEYS.encrypt_into([short], SPEC, [right]),
        lambda: KEYS.decrypt_into([short], bytes(256), [right], SPEC),
    ):
        with pytest.raises(ValueError, match="the payload is 128 bytes; given: 127"):
            wrong()
    with pytest.raises(ValueError, match="the key must be 32 bytes, not 16"):
        FrameKeys(bytes(16))
