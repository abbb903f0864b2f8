"""Keys of chunks: everything that decides what the KV is decides the key."""

from __future__ import annotations

import re
from array import array
from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.kv_keys import Codec, Dtype, Geometry, chunk_key, chunk_keys
from cache.store import ChunkKey
from policies.types import TokenIds

GEOMETRY = Geometry(n_layers=2, kv_heads=1, head_dim=8, block_size=4, dtype=Dtype.BF16)
FINGERPRINT = sha256(b"weights").digest()
PARENT = ChunkKey(sha256(b"parent").digest())


def tokens(*ids: int) -> TokenIds:
    return TokenIds(array("I", ids).tobytes())


def key_of(**changes: Any) -> ChunkKey:
    fields: dict[str, Any] = {
        "parent": PARENT,
        "fingerprint": FINGERPRINT,
        "geometry": GEOMETRY,
        "salt": b"tenant",
        "token_ids": tokens(1, 2, 3, 4),
        "first_token": 4,
    }
    return chunk_key(**(fields | changes))


def test_golden_bytes() -> None:
    # As the fields are written down, and not as the code writes them.
    def field(tag: bytes, value: bytes) -> bytes:
        return tag + len(value).to_bytes(8, "little") + value

    numbers = [field(b"I", number.to_bytes(8, "little")) for number in (2, 1, 8, 4)]
    written = b"".join([
        field(b"D", b"prefixgate kv chunk v1"), field(b"F", FINGERPRINT), *numbers, field(b"S", b"bf16"),
        field(b"S", b"raw"), field(b"B", b"tenant"), field(b"S", b""), b"L" + bytes(8), field(b"P", PARENT),
        field(b"I", bytes([4]) + bytes(7)), field(b"T", b"\1\0\0\0\2\0\0\0\3\0\0\0\4\0\0\0"),
    ])  # fmt: skip
    assert key_of() == sha256(written).digest()
    assert key_of().hex() == "0005d3d58f8535a372d1c344e054e9ac415947b0157dab1a57d4437ecb76dba2"


CHANGES: list[dict[str, Any]] = [
    {},
    {"parent": None},
    {"parent": ChunkKey(FINGERPRINT)},
    {"fingerprint": sha256(b"others").digest()},
    {"geometry": replace(GEOMETRY, n_layers=16)},
    {"geometry": replace(GEOMETRY, kv_heads=16)},
    {"geometry": replace(GEOMETRY, head_dim=16)},
    {"geometry": replace(GEOMETRY, block_size=16)},
    {"geometry": replace(GEOMETRY, dtype=Dtype.FP16)},
    {"geometry": replace(GEOMETRY, codec=Codec.INT8)},
    {"salt": b""},
    {"salt": b"tenant2"},
    {"token_ids": tokens(1, 2, 3, 5)},
    {"token_ids": tokens(1, 2, 3, 4, 0)},
    {"first_token": 0},
    {"adapter": "lora"},
    {"adapter": "tenant", "salt": b""},
    {"image_digests": (FINGERPRINT,)},
    {"image_digests": (FINGERPRINT, FINGERPRINT)},
    {"image_digests": (FINGERPRINT + FINGERPRINT,)},
]


def test_every_field_decides() -> None:
    assert len({key_of(**change) for change in CHANGES}) == len(CHANGES)


TEXTS = st.text("ab", max_size=3)


@given(
    st.lists(
        st.tuples(st.binary(max_size=3), TEXTS, st.lists(st.binary(max_size=2), max_size=2), st.integers(0, 3)),
        unique_by=repr,
        max_size=20,
    )
)
def test_no_two_sets_of_values_share_a_key(sets: list[tuple[bytes, str, list[bytes], int]]) -> None:
    keys = {key_of(salt=s, adapter=a, image_digests=tuple(d), first_token=f) for s, a, d, f in sets}
    assert len(keys) == len(sets)


def test_a_name_with_a_lone_surrogate_has_a_key_of_its_own() -> None:
    assert len({key_of(adapter="\ud800"), key_of(adapter="\ud801"), key_of(adapter="?")}) == 3


@given(st.integers(0, 40), st.sampled_from([4, 8, 12]))
def test_the_keys_of_a_prompt_are_those_of_its_chunks(n_tokens: int, step: int) -> None:
    ids = tokens(*range(n_tokens))
    keys = list(chunk_keys(FINGERPRINT, GEOMETRY, b"tenant", ids, chunk_tokens=step, adapter="lora"))
    assert len(keys) == n_tokens // step
    parent = None
    for number, key in enumerate(keys):
        part = tokens(*range(number * step, (number + 1) * step))
        assert key == key_of(parent=parent, token_ids=part, first_token=number * step, adapter="lora")
        parent = key


def test_a_change_of_one_token_changes_all_keys_after_it() -> None:
    one, other = (
        list(chunk_keys(FINGERPRINT, GEOMETRY, b"", tokens(*ids), chunk_tokens=4))
        for ids in (range(16), [*range(5), 99, *range(6, 16)])
    )
    assert [a == b for a, b in zip(one, other, strict=True)] == [True, False, False, False]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fingerprint": b"short"}, "a fingerprint is 32 bytes, not 5"),
        ({"parent": b"x"}, "a parent is 32 bytes, not 1"),
        ({"token_ids": b""}, "tokens are at least one id of 4 bytes, not 0 bytes"),
        ({"token_ids": b"12345"}, "tokens are at least one id of 4 bytes, not 5 bytes"),
    ],
)
def test_what_is_no_chunk_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        key_of(**changes)


@pytest.mark.parametrize("step", [0, -4, 5])
def test_chunks_are_whole_blocks(step: int) -> None:
    with pytest.raises(ValueError, match="whole blocks of 4 tokens"):
        next(chunk_keys(FINGERPRINT, GEOMETRY, b"", tokens(*range(16)), chunk_tokens=step))


@pytest.mark.parametrize("number", [0, -1, 1 << 32])
def test_geometry_is_of_positive_numbers(number: int) -> None:
    with pytest.raises(ValueError, match="head_dim must be from 1"):
        replace(GEOMETRY, head_dim=number)


def test_bytes_of_a_block() -> None:
    qwen = Geometry(n_layers=28, kv_heads=8, head_dim=128, block_size=16, dtype=Dtype.BF16)
    assert qwen.pool_bytes == qwen.block_bytes == 16 * 112 * 1024
    assert replace(qwen, codec=Codec.INT8).block_bytes == 28 * 2 * 16 * 8 * (128 + 4)
    assert replace(qwen, dtype=Dtype.FP32).block_bytes == 2 * qwen.block_bytes
