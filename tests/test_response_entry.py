"""Entries in stores: what is written is read, and whatever is altered is a miss."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from xxhash import xxh3_64_intdigest, xxh3_128_digest

from cache.response_entry import (
    HEAD_BYTES,
    EntryKeys,
    Head,
    ResponseEntry,
    Stamp,
    decode_entry,
    decode_head,
    encode_entry,
)
from cache.response_key import ResponseKey, model_tag, response_key

KEY = response_key(b"scope", "llama", "openai", "/v1/chat/completions", {"messages": []})
OTHER = response_key(b"scope", "llama", "openai", "/v1/chat/completions", {"messages": [1]})
ENTRY = ResponseEntry(
    content_type="text/event-stream; charset=utf-8",
    body=b'data: {"choices": [{"delta": {"content": "secret words"}}]}\n\ndata: [DONE]\n\n',
    model="llama",
    stored_at=1_700_000_000.25,
    prompt_tokens=1_000,
    completion_tokens=None,
    stamp=Stamp(b"generation 16 b.", 7),
    openings=("You are kind.", "Grüß mich \U0001f642"),
)
KEYS = EntryKeys(b"k" * 32)
SEALS = pytest.mark.parametrize("keys", [None, KEYS], ids=["checksum", "encrypted"])

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
COUNT = st.none() | st.integers(0, 1 << 40)
ENTRIES = st.builds(
    ResponseEntry,
    content_type=TEXT,
    body=st.binary(max_size=200),
    model=TEXT,
    stored_at=st.floats(0, 1e12),
    prompt_tokens=COUNT,
    completion_tokens=COUNT,
    stamp=st.builds(Stamp, st.binary(min_size=16, max_size=16), st.integers(0, (1 << 64) - 1)),
)


@SEALS
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(entry=ENTRIES)
def test_what_is_written_is_read(keys: EntryKeys | None, entry: ResponseEntry) -> None:
    frame = encode_entry(KEY, entry, keys)
    assert decode_entry(KEY, frame, keys) == entry
    head = Head(KEY, model_tag(entry.model), entry.stored_at, entry.stamp, len(frame))
    assert decode_head(frame[:HEAD_BYTES]) == decode_head(frame) == head


@SEALS
def test_any_altered_bit_is_a_miss(keys: EntryKeys | None) -> None:
    frame = encode_entry(KEY, ENTRY, keys)
    for at in range(len(frame)):
        for bit in range(8):
            altered = bytearray(frame)
            altered[at] ^= 1 << bit
            assert decode_entry(KEY, bytes(altered), keys) is None
            assert at >= HEAD_BYTES or decode_head(bytes(altered)) is None


@SEALS
def test_any_other_length_is_a_miss(keys: EntryKeys | None) -> None:
    frame = encode_entry(KEY, ENTRY, keys)
    for length in range(len(frame)):
        assert decode_entry(KEY, frame[:length], keys) is None
    assert decode_entry(KEY, frame + b"\0", keys) is None
    assert decode_entry(KEY, frame[1:], keys) is None
    assert decode_head(frame[: HEAD_BYTES - 1]) is None


@SEALS
def test_mutated_frames_do_no_harm(keys: EntryKeys | None) -> None:
    chance = random.Random(11)
    frame = encode_entry(KEY, ENTRY, keys)
    for _ in range(3_000):
        altered = bytearray(frame)
        for _ in range(chance.randrange(1, 6)):
            at = chance.randrange(len(altered))
            action = chance.random()
            if action < 0.4:
                altered[at] = chance.randrange(256)
            elif action < 0.7:
                del altered[at : at + chance.randrange(1, 40)]
            else:
                altered[at:at] = chance.randbytes(chance.randrange(1, 40))
            if not altered:
                break
        if altered != frame:
            assert decode_entry(KEY, bytes(altered), keys) is None
        decode_head(bytes(altered))
    for length in (0, 1, HEAD_BYTES, 500):
        assert decode_entry(KEY, chance.randbytes(length), keys) is None


@given(st.binary(max_size=300))
def test_anything_in_the_place_of_the_facts_is_a_miss(facts: bytes) -> None:
    """With checksums that are right: what a store holds that others can write to."""
    frame = bytearray(encode_entry(KEY, ENTRY)[:HEAD_BYTES])
    frame[8:20] = len(facts).to_bytes(4, "little") + (0).to_bytes(8, "little")
    frame[112:120] = xxh3_64_intdigest(bytes(frame[:112])).to_bytes(8, "little")
    body = bytes(frame) + facts
    assert decode_entry(KEY, body + xxh3_128_digest(body)) is None


@SEALS
def test_an_entry_of_another_key_is_a_miss(keys: EntryKeys | None) -> None:
    frame = encode_entry(OTHER, ENTRY, keys)
    assert decode_entry(KEY, frame, keys) is None
    # The last bytes of a key are not in the store's: they count all the same.
    assert decode_entry(ResponseKey(OTHER[:-1] + b"?"), frame, keys) is None
    assert decode_entry(OTHER, frame, keys) == ENTRY


def test_nobody_reads_what_others_have_encrypted() -> None:
    frame = encode_entry(KEY, ENTRY, KEYS)
    assert decode_entry(KEY, frame, EntryKeys(b"l" * 32)) is None
    assert decode_entry(KEY, frame) is None
    assert decode_entry(KEY, encode_entry(KEY, ENTRY), KEYS) is None, "nor takes what is not encrypted"
    assert b"secret" not in frame
    assert b"llama" not in frame
    assert b"secret" in encode_entry(KEY, ENTRY)
    assert encode_entry(KEY, ENTRY, KEYS) != frame, "another nonce"


def test_an_entry_moved_to_another_key_is_not_decrypted() -> None:
    frame = bytearray(encode_entry(OTHER, ENTRY, KEYS))
    frame[20:60] = KEY
    assert decode_entry(KEY, bytes(frame), KEYS) is None


def test_numbers_that_are_no_times() -> None:
    for stored_at in (float("nan"), float("inf")):
        assert decode_entry(KEY, encode_entry(KEY, replace(ENTRY, stored_at=stored_at))) is None


def test_a_key_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        EntryKeys(b"short")


def test_bytes_of_this_version() -> None:
    frame = encode_entry(KEY, replace(ENTRY, body=b"x", content_type="t", openings=()))
    assert frame[:8] == b"pgRC\x03\0\0\0"
    assert frame[:HEAD_BYTES].hex(" ", 8) == (
        "7067524303000000 0e00000001000000 00000000aad33df7 4cb63ee574f8e481 c62db5e20211b851 "
        "5f060405021fef12 89d44f464a5d4f09 a8d02479cd0509ad 5665431400001040 fc54d94167656e65 "
        "726174696f6e2031 3620622e07000000 0000000000000000 0000000000000000 60b61518d6ae5994"
    )
