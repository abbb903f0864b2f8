"""KV event batches: golden bytes of every encoding, real vectors, and bytes that are none of it."""

from __future__ import annotations

import json
import random
from array import array
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.kv_events import (
    MAX_EVENT_TOKENS,
    MAX_EVENTS,
    MAX_GROUPS,
    MAX_PAYLOAD_BYTES,
    MAX_TOKENS,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Encoding,
    EngineHash,
    EventBatch,
    KvEvent,
    KvEventError,
    decode_batch,
    encode_batch,
    slices,
)
from policies.types import TokenIds

DATA = Path(__file__).parent / "data" / "kv_events"
GOLDEN = {name: bytes.fromhex(text) for name, text in json.loads((DATA / "golden.json").read_text()).items()}
TOKENS = list(range(100, 108))
BIG = EngineHash(0xF000_0000_0000_0001)
DIGEST = EngineHash(0x191A1B1C1D1E1F20)


def ids(values: list[int]) -> TokenIds:
    return TokenIds(array("I", values).tobytes())


def stored(hashes: tuple[int, ...] = (BIG, 2), parent: int | None = None, **fields: Any) -> BlockStored:
    return BlockStored(
        **{
            "block_hashes": tuple(map(EngineHash, hashes)),
            "parent": None if parent is None else EngineHash(parent),
            "token_ids": ids(TOKENS),
            "block_size": 4,
            **fields,
        }
    )


def removed(*hashes: int, medium: str | None = None, group: int | None = None) -> BlockRemoved:
    return BlockRemoved(tuple(map(EngineHash, hashes)), medium, group)


CLEARED = AllBlocksCleared()
EXPECTED = {
    "vllm_0_10_array": EventBatch(1.5, (stored(), removed(BIG))),
    "vllm_array_medium_and_rank": EventBatch(
        1.5, (stored(parent=7, medium="GPU"), removed(2, medium="CPU"), CLEARED), dp_rank=3
    ),
    "vllm_array_full": EventBatch(
        1.5,
        (
            stored(adapter="alice", medium="GPU", salt="s1", group=0, group_kind="full_attention"),
            removed(2, medium="GPU", group=1),
        ),
    ),
    "vllm_array_signed": EventBatch(1.0, (stored(),)),
    "vllm_array_bytes": EventBatch(1.5, (stored((DIGEST, 2), DIGEST, medium="GPU"),)),
    "vllm_array_fields_to_come": EventBatch(1.5, (stored(medium="GPU"), removed(2), CLEARED)),
    "vllm_map_events": EventBatch(1.5, (stored(medium="GPU"), removed(2, medium="GPU"), CLEARED), dp_rank=0),
    "vllm_all_map": EventBatch(
        1.5,
        (stored((DIGEST, BIG), 7, adapter="lora:5", medium="CPU", group=2, group_kind="sliding_window"),),
        dp_rank=1,
    ),
    "sglang_pages": EventBatch(
        1.5,
        (
            stored((2**64 - 5,), token_ids=ids(TOKENS[:4])),
            stored((6,), 2**64 - 5, token_ids=ids(TOKENS[4:])),
        ),
        dp_rank=0,
    ),
    "sglang_cache_salt": EventBatch(1.5, (stored((2**64 - 5,), token_ids=ids(TOKENS[:4]), medium="GPU", salt="s1"),)),
    "vllm_map_in_map_signed": EventBatch(
        1.5,
        (
            stored((BIG,), token_ids=ids(TOKENS[:4])),
            stored((2,), BIG, token_ids=ids(TOKENS[4:])),
            removed(DIGEST),
        ),
    ),
    "vllm_map_salt": EventBatch(
        1.5,
        (stored((DIGEST, 2), adapter="alice", medium="GPU", salt="s1", group=0, group_kind="full_attention"),),
        dp_rank=0,
    ),
    "vllm_map_copies_and_locality": EventBatch(
        1.5,
        (
            stored((7,), token_ids=ids(TOKENS[:4]), medium="REMOTE"),
            removed(2, medium="GPU"),
            # A list that is not one number for each hash tells nothing.
            removed(1, 2, medium="GPU"),
        ),
    ),
    "sglang_maps": EventBatch(
        1.5,
        (
            stored((2**64 - 5,), token_ids=ids(TOKENS[:4]), medium="GPU", salt="s1"),
            stored((6,), 2**64 - 5, token_ids=ids(TOKENS[4:]), medium="CPU_PINNED"),
            removed(2**64 - 5, medium="GPU"),
            CLEARED,
        ),
        dp_rank=2,
    ),
    "sglang_bigrams": EventBatch(1.5, (CLEARED,), skipped=1),
    "trtllm": EventBatch(
        1.5,
        (stored(), stored((3,), 2, token_ids=ids(TOKENS[:4]), adapter="lora:5"), removed(BIG)),
        dp_rank=0,
    ),
    "trtllm_images": EventBatch(1.5, (stored((1, 2), n_plain=1),), dp_rank=0),
    "vllm_images": EventBatch(1.5, (stored(medium="GPU", n_plain=1),)),
    "one_bad_event": EventBatch(
        1.5, (stored((1,), token_ids=ids(TOKENS[:4])), stored((2,), 1, token_ids=ids(TOKENS[4:]))), skipped=8
    ),
    "one_bad_removal": EventBatch(1.5, (stored((1,), token_ids=ids(TOKENS[:4])),), skipped=1, lost_removal=True),
}


def test_every_golden_form_has_its_expectation() -> None:
    assert GOLDEN.keys() == EXPECTED.keys()


@pytest.mark.parametrize("form", GOLDEN)
def test_golden_bytes(form: str) -> None:
    assert decode_batch(GOLDEN[form]) == EXPECTED[form]


@pytest.mark.parametrize("form", GOLDEN)
def test_every_prefix_of_a_batch_is_refused(form: str) -> None:
    for end in range(len(GOLDEN[form])):
        with pytest.raises(KvEventError):
            decode_batch(GOLDEN[form][:end])


@pytest.mark.parametrize("name", ["kv_event_base", "kv_event_lora"])
@pytest.mark.parametrize("signed", [False, True])
def test_real_vectors(name: str, *, signed: bool) -> None:
    vector = json.loads((DATA / f"{name}.json").read_text())
    hashes = [value - 2**64 if signed and value >= 2**63 else value for value in vector["block_hashes"]]
    event = [
        vector["event_type"],
        hashes,
        vector["parent_block_hash"],
        vector["token_ids"],
        vector["block_size"],
        None,
        vector["medium"],
        vector["lora_name"],
    ]
    (decoded,) = decode_batch(msgspec.msgpack.encode([0.0, [event]])).events
    assert isinstance(decoded, BlockStored)
    assert list(decoded.block_hashes) == vector["block_hashes"]
    assert array("I", decoded.token_ids).tolist() == vector["token_ids"]
    assert decoded.lora_name == vector["lora_name"]
    assert (decoded.parent, decoded.block_size, decoded.n_plain) == (None, vector["block_size"], None)


def one(extra_keys: object, *, parent: int | None = None, lora_id: object = None, name: object = None) -> EventBatch:
    event = ["BlockStored", [1, 2], parent, TOKENS, 4, lora_id, "GPU", name, extra_keys]
    return decode_batch(msgspec.msgpack.encode([0.0, [event]]))


@pytest.mark.parametrize(
    ("extra_keys", "parent", "lora_id", "name", "salt", "n_plain"),
    [
        ([["s"], None], None, None, None, "s", None),
        ([["a", "s"], ["a"]], None, 1, "a", "s", None),
        ([["a"], ["a"]], None, 1, "a", None, None),
        ([["a", "s"], ["a"]], None, 1, None, "s", None),
        ([["a"], ["a"]], None, 1, None, None, None),
        # A text where no salt can be.
        ([["s"], None], 9, None, None, None, 0),
        ([None, ["s"]], None, None, None, None, 1),
        # Images, with and without a salt behind them.
        ([[["mm", 0]], None], None, None, None, None, 0),
        ([[["mm", 0], "s"], None], None, None, None, None, 0),
        ([["s"], [["mm", 0]]], None, None, None, "s", 1),
        # Two texts, or a digest of prompt embeddings.
        ([["x", "y"], None], None, None, None, None, 0),
        ([["s", b"digest"], None], None, None, None, None, 0),
        (None, None, None, None, None, None),
        ({"cache_salt": None}, None, None, None, None, None),
        ({"cache_salt": "s"}, None, None, None, "s", None),
        # The salt of a later block is in its parent's hash already.
        ({"cache_salt": "s"}, 9, None, None, None, None),
    ],
)
def test_extra_keys(  # noqa: PLR0917  # one column of the table each
    extra_keys: object,
    parent: int | None,
    lora_id: int | None,
    name: str | None,
    salt: str | None,
    n_plain: int | None,
) -> None:
    (event,) = one(extra_keys, parent=parent, lora_id=lora_id, name=name).events
    assert isinstance(event, BlockStored)
    assert (event.salt, event.n_plain) == (salt, n_plain)


@pytest.mark.parametrize("extra_keys", [[None], "s", 5, [5, None], {"cache_salt": 5}, {"cache_salt": "s" * 2000}])
def test_extra_keys_that_are_none(extra_keys: object) -> None:
    assert one(extra_keys).skipped == 1


@pytest.mark.parametrize(
    ("infos", "n_plain"),
    [
        (None, None),
        ([], None),
        ([None, None], None),
        ([{"mm_objects": []}, None], 0),
        ([None, {"mm_objects": []}], 1),
        ("what", 0),
    ],
)
def test_images_of_tensorrt_llm(infos: object, n_plain: int | None) -> None:
    event = {"type": "BlockStored", "block_hashes": [1, 2], "token_ids": TOKENS, "block_size": 4}
    (decoded,) = decode_batch(msgspec.msgpack.encode([0.0, [{**event, "block_mm_infos": infos}]])).events
    assert isinstance(decoded, BlockStored)
    assert decoded.n_plain == n_plain


@pytest.mark.parametrize("name", [5, ["a"], "a" * 2000])
def test_adapter_names_that_are_none(name: object) -> None:
    assert one(None, name=name).skipped == 1


def test_sglang_salt_in_its_older_slot() -> None:
    (event,) = one(None, name={"cache_salt": "s"}).events
    assert isinstance(event, BlockStored)
    assert (event.salt, event.adapter) == ("s", "")


def test_caps() -> None:
    with pytest.raises(KvEventError):
        decode_batch(bytes(MAX_PAYLOAD_BYTES + 1))
    with pytest.raises(KvEventError):
        decode_batch(b"")
    with pytest.raises(KvEventError):
        decode_batch(msgspec.msgpack.encode([0.0, [None] * (MAX_EVENTS + 1)]))
    # Half the tokens allowed, three times: the third is too much.
    half = MAX_TOKENS // 2
    event = ["BlockStored", [1], None, [0] * (1 << 16), 1 << 16]
    assert half % (1 << 16) == 0
    n_fitting = MAX_TOKENS >> 16
    batch = decode_batch(msgspec.msgpack.encode([0.0, [event] * (n_fitting + 1)]))
    assert (len(batch.events), batch.skipped) == (n_fitting, 1)
    event = ["BlockStored", [1], None, TOKENS, 8, None, None, None, None, MAX_GROUPS]
    assert decode_batch(msgspec.msgpack.encode([0.0, [event]])).skipped == 1


@pytest.mark.parametrize(
    "payload",
    [
        b"\x93\xcb" + bytes(8) + b"\xdd\xff\xff\xff\xff",
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\x91" * 100_000,
        b"\x81\xa6events" * 50_000,
        b"\xc1",
        b"\x80",
        b"\x90",
        b"\x92\xa2ts\x90",
        b"\x92\xcb" + bytes(8) + b"\x80",
    ],
)
def test_hostile_payloads_are_refused(payload: bytes) -> None:
    with pytest.raises(KvEventError):
        decode_batch(payload)


def test_deep_nesting_and_broken_text_cost_one_event() -> None:
    good = msgspec.msgpack.encode(["AllBlocksCleared"])
    deep = b"\x99\xabBlockStored\x91\x01\xc0\x91\x01\x01\xc0\xc0\xc0" + b"\x91" * 500 + b"\xc0"
    broken = b"\x92\xa2\xff\xff\x01"
    batch = decode_batch(b"\x92\xcb" + bytes(8) + b"\x93" + deep + broken + good)
    # What is nested so deep is no salt: the block cannot be placed.
    deep_event = stored((1,), token_ids=ids([1]), block_size=1, n_plain=0)
    assert (batch.events, batch.skipped) == ((deep_event, CLEARED), 1)


def test_mutated_frames_never_crash() -> None:
    """100,000 frames, each a good one with a few bytes changed, cut out or put in."""
    sample = random.Random(20_261)
    frames = list(GOLDEN.values())
    n_refused = 0
    for _ in range(100_000):
        frame = bytearray(sample.choice(frames))
        for _ in range(sample.randrange(1, 5)):
            at = sample.randrange(len(frame))
            kind = sample.random()
            if kind < 0.7:
                frame[at] = sample.randrange(256)
            elif kind < 0.85:
                del frame[at : at + sample.randrange(1, 4)]
            else:
                frame[at:at] = sample.randbytes(sample.randrange(1, 4))
            if not frame:
                break
        try:
            batch = decode_batch(bytes(frame))
        except KvEventError:
            n_refused += 1
        else:
            check(batch)
    assert 10_000 < n_refused < 90_000


def check(batch: EventBatch) -> None:
    """What the index relies on."""
    for event in batch.events:
        if isinstance(event, BlockStored):
            assert len(event.token_ids) == 4 * event.block_size * len(event.block_hashes)
            assert event.n_plain is None or 0 <= event.n_plain < len(event.block_hashes)
        if isinstance(event, BlockStored | BlockRemoved):
            assert all(0 <= value < 2**64 for value in event.block_hashes)


@given(st.binary(max_size=64))
def test_any_bytes(payload: bytes) -> None:
    with suppress(KvEventError):
        check(decode_batch(payload))


hashes = st.integers(0, 2**64 - 1).map(EngineHash)
media = st.none() | st.sampled_from(["GPU", "CPU", "DISK"])
groups = st.none() | st.integers(0, MAX_GROUPS - 1)
names = st.text("ab\u20ac", max_size=8)


@st.composite
def stores(draw: st.DrawFn) -> BlockStored:
    block_size, n_blocks = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    tokens = draw(st.lists(st.integers(0, 2**32 - 1), min_size=n_blocks * block_size, max_size=n_blocks * block_size))
    parent = draw(st.none() | hashes)
    return BlockStored(
        block_hashes=tuple(draw(st.lists(hashes, min_size=n_blocks, max_size=n_blocks))),
        parent=parent,
        token_ids=ids(tokens),
        block_size=block_size,
        adapter=draw(names),
        medium=draw(media),
        salt=None if parent is not None else draw(st.none() | names),
        group=draw(groups),
        group_kind=draw(st.none() | st.sampled_from(["full_attention", "mamba"])),
    )


events = st.one_of(
    stores(),
    st.builds(BlockRemoved, st.lists(hashes, max_size=4).map(tuple), media, groups),
    st.just(CLEARED),
)


@given(st.floats(0, 2e9), st.lists(events, max_size=4), st.none() | st.integers(0, 8), st.sampled_from(Encoding))
def test_what_is_encoded_is_decoded(ts: float, some: list[KvEvent], rank: int | None, encoding: Encoding) -> None:
    batch = EventBatch(ts, tuple(some), rank)
    assert decode_batch(encode_batch(batch, encoding)) == batch


# --- smaller pieces ---


@given(st.integers(1, 12), st.integers(1, 5), st.none() | st.integers(0, 12), st.none() | st.integers(1, 12))
def test_slices_put_together_are_the_event(n_blocks: int, n_each: int, n_plain: int | None, most: int | None) -> None:
    hashes = tuple(map(EngineHash, range(100, 100 + n_blocks)))
    tokens = array("I", range(2 * n_blocks))
    plain = None if n_plain is None or n_plain >= n_blocks else n_plain
    event = BlockStored(
        hashes, EngineHash(99), TokenIds(tokens.tobytes()), 2, "a", "GPU", group=3, group_kind="mamba", n_plain=plain
    )
    parts = list(slices(event, n_each, most=most))
    n_told = n_blocks if most is None else min(most, n_blocks)
    at = 0
    for part in parts:
        assert isinstance(part, BlockStored)
        end = at + len(part.block_hashes)
        assert 0 < len(part.block_hashes) <= n_each
        assert (part.block_hashes, part.parent) == (hashes[at:end], EngineHash(99 + at))
        assert part.token_ids == TokenIds(tokens[2 * at : 2 * end].tobytes())
        assert (part.adapter, part.medium, part.group, part.group_kind) == ("a", "GPU", 3, "mamba")
        told = len(part.block_hashes) if part.n_plain is None else part.n_plain
        assert told == min(end, n_blocks if plain is None else max(plain, at)) - at
        at = end
    assert at == n_told


def test_only_the_first_slice_starts_the_prompt() -> None:
    event = BlockStored((EngineHash(1), EngineHash(2)), None, TokenIds(bytes(8)), 1, salt="s")
    first, second = slices(event, 1)
    assert isinstance(first, BlockStored)
    assert isinstance(second, BlockStored)
    assert (first.parent, first.salt) == (None, "s")
    assert (second.parent, second.salt) == (EngineHash(1), None)


def test_other_events_in_slices() -> None:
    removal = BlockRemoved(tuple(map(EngineHash, range(5))), "CPU", 1)
    assert list(slices(removal, 2, most=1)) == [
        BlockRemoved((EngineHash(0), EngineHash(1)), "CPU", 1),
        BlockRemoved((EngineHash(2), EngineHash(3)), "CPU", 1),
        BlockRemoved((EngineHash(4),), "CPU", 1),
    ]
    assert list(slices(AllBlocksCleared(), 1)) == [AllBlocksCleared()]


def test_an_event_with_too_many_tokens_is_skipped() -> None:
    def skipped(n_blocks: int) -> int:
        hashes = tuple(map(EngineHash, range(n_blocks)))
        event = BlockStored(hashes, None, TokenIds(bytes(4 * 64 * n_blocks)), 64)
        return decode_batch(encode_batch(EventBatch(0.0, (event,)))).skipped

    assert skipped(MAX_EVENT_TOKENS // 64) == 0
    assert skipped(MAX_EVENT_TOKENS // 64 + 1) == 1
