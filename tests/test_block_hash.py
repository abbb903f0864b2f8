"""The block chain: exact values, what separates two chains, an encoding of the root without ambiguity."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from cache.block_hash import ChainKey, encode_key, extend_chain, root_hash
from cache.token_backends import bytes_to_ids, ids_to_bytes
from policies.types import BlockHash, TokenIds

KEYS = st.builds(
    ChainKey,
    model=st.text(max_size=6),
    block_size=st.integers(1, 2**64 - 1),
    adapter=st.text(max_size=6),
    image_digests=st.lists(st.binary(max_size=6), max_size=3).map(tuple),
    salt=st.text(max_size=6),
)


@given(KEYS, KEYS)
def test_encoding_of_the_root_is_injective(one: ChainKey, other: ChainKey) -> None:
    assert (encode_key(one) == encode_key(other)) == (one == other)


@given(KEYS)
def test_encoding_of_the_root_can_be_read_back(key: ChainKey) -> None:
    """A decoder that takes the fields one by one finds the same key: no two keys have one encoding."""
    data = encode_key(key)
    position = 0

    def take(tag: bytes) -> int:
        nonlocal position
        assert data[position : position + 1] == tag
        position += 9
        return int.from_bytes(data[position - 8 : position], "little")

    def field(tag: bytes) -> bytes:
        nonlocal position
        size = take(tag)
        position += size
        return data[position - size : position]

    field(b"D")
    model = field(b"S").decode("utf-8", "surrogatepass")
    block_size = int.from_bytes(field(b"I"), "little")
    adapter = field(b"S").decode("utf-8", "surrogatepass")
    images = tuple(field(b"B") for _ in range(take(b"L")))
    salt = field(b"S").decode("utf-8", "surrogatepass")
    assert position == len(data)
    assert ChainKey(model, block_size, adapter, images, salt) == key


def test_golden_values() -> None:
    """A change of these makes every gateway of a fleet forget what the others know."""
    root = root_hash(ChainKey("m"))
    assert root == GOLDEN_ROOT
    assert root_hash(ChainKey("m", 32, "lora", (b"\x01\x02",), "salt")) == GOLDEN_FULL_ROOT
    assert extend_chain(root, ids_to_bytes(range(40)), 16) == GOLDEN_CHAIN


GOLDEN_ROOT = 0x4BF8759FD7C5BB25
GOLDEN_FULL_ROOT = 0xB45EA2EEF36C67D2
GOLDEN_CHAIN = [0x4B67C4364C330221, 0xD64835C9CB43D23E]


def test_each_field_separates_chains() -> None:
    keys = [
        ChainKey("m"),
        ChainKey("n"),
        ChainKey("m", 32),
        ChainKey("m", adapter="a"),
        ChainKey("m", salt="a"),
        ChainKey("m", image_digests=(b"a",)),
        ChainKey("m", image_digests=(b"a", b"")),
        ChainKey("ma"),
        ChainKey("", adapter="m"),
        ChainKey("", salt="m"),
    ]
    assert len({root_hash(key) for key in keys}) == len(keys)


@pytest.mark.parametrize("block_size", [0, -1, 2**64])
def test_a_block_size_that_makes_no_sense_is_refused(block_size: int) -> None:
    with pytest.raises(ValueError, match="block_size must be"):
        root_hash(ChainKey("m", block_size))


@given(st.lists(st.integers(0, 2**32 - 1), max_size=70), st.integers(1, 20), st.integers(0, 2**64 - 1))
def test_chain_is_the_plain_definition(ids: list[int], block_size: int, parent: int) -> None:
    expected = []
    seed = parent
    for start in range(0, len(ids) - block_size + 1, block_size):
        block = b"".join(i.to_bytes(4, "little") for i in ids[start : start + block_size])
        seed = xxh3_64_intdigest(block, seed)
        expected.append(seed)
    assert extend_chain(BlockHash(parent), ids_to_bytes(ids), block_size) == expected


@given(st.binary(max_size=400).map(lambda b: TokenIds(b[: len(b) // 4 * 4])), st.integers(0, 6))
def test_a_chain_may_be_extended_in_steps(ids: TokenIds, blocks: int) -> None:
    root = root_hash(ChainKey("m"))
    head = extend_chain(root, TokenIds(ids[: blocks * 64]), 16)
    rest = extend_chain(head[-1] if head else root, TokenIds(ids[blocks * 64 :]), 16)
    assert head + rest == extend_chain(root, ids, 16)


@given(st.lists(st.integers(0, 2**32 - 1)))
def test_ids_survive_packing(ids: list[int]) -> None:
    assert bytes_to_ids(ids_to_bytes(ids)) == ids


def test_ids_beyond_32_bits_are_refused() -> None:
    with pytest.raises(OverflowError):
        ids_to_bytes([2**32])
    with pytest.raises(OverflowError):
        ids_to_bytes([-1])
