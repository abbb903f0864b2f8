"""KV events between the wire and the program: vLLM's, SGLang's and TensorRT-LLM's msgpack batches, in every
encoding.

A batch is an array `[ts, [event...], dp_rank]` or a map `{ts, events, data_parallel_rank}`. An event is a
tagged array whose last fields may be missing, or a map with a `type`; the two may be mixed. Source: vLLM
`distributed/kv_events.py` (arrays, and maps since PR #42892), SGLang `disaggregation/kv_events.py`, and for
TensorRT-LLM, which has no ZMQ publisher of its own, the one that Dynamo ships for it.

Two fields of later maps decide what a block is worth. A block of `locality` REMOTE is in some other machine's
memory: its medium is given as `REMOTE`, which no tier is called. And a removal of which the engine says that
copies remain removes nothing.

A publisher is not trusted with our memory: payload, events and tokens of a batch are capped before they are
built, and the only exception that leaves this module is `KvEventError`.
"""

from __future__ import annotations

import sys
from array import array
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final, NewType

import msgspec

from policies.types import TokenIds

if TYPE_CHECKING:
    from collections.abc import Iterator

EngineHash = NewType("EngineHash", int)
"""The engine's own block hash, opaque to us: its low 64 bits, unsigned, whatever form it was sent in."""

MAX_PAYLOAD_BYTES: Final = 16 << 20
"""A whole batch on the wire. One engine step stores at most some ten thousand tokens, five bytes each."""
MAX_EVENTS: Final = 65_536
"""Events in a batch (SGLang sends one for each page)."""
MAX_TOKENS: Final = 1 << 20
"""Token ids in a batch, all its events together."""
MAX_EVENT_TOKENS: Final = 1 << 18
"""Token ids in one event, and hashes. An event is decoded in one go: at this size in some 15 ms."""
MAX_BLOCK_SIZE: Final = 1 << 16
MAX_GROUPS: Final = 1024
MAX_NAME_CHARS: Final = 1024
"""Length of an adapter's name or a salt."""

_MASK64: Final = (1 << 64) - 1
_MAP_LEADS: Final = frozenset((*range(0x80, 0x90), 0xDE, 0xDF))
"""First bytes of a msgpack map; an array starts with another."""
_FORGETTING: Final = (b"BlockRemoved", b"AllBlocksCleared")


class KvEventError(Exception):
    """A payload that is no batch of KV events."""


class BlockStored(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Consecutive full blocks that became resident, the first of them following `parent`."""

    block_hashes: tuple[EngineHash, ...]
    parent: EngineHash | None
    """Hash of the block before; None at the start of a prompt."""
    token_ids: TokenIds
    """`block_size` ids for each of the hashes."""
    block_size: int
    adapter: str = ""
    """LoRA adapter's name; `lora:<id>` where the engine tells only its number; empty for the base model."""
    medium: str | None = None
    salt: str | None = None
    """Cache salt of the prompt, where the event tells it without doubt; only on a prompt's first block."""
    group: int | None = None
    """KV cache group of a hybrid model."""
    group_kind: str | None = None
    """`full_attention`, `sliding_window`, `mamba`...; None where the engine does not tell."""
    n_plain: int | None = None
    """Leading blocks that depend on nothing but the fields above; from there on something not understood (an
    image, a prompt embedding) is part of the engine's hash. None: all of them."""

    @property
    def lora_name(self) -> str | None:
        """The adapter as vLLM names it: None for the base model."""
        return self.adapter or None


class BlockRemoved(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Blocks that left one medium."""

    block_hashes: tuple[EngineHash, ...]
    medium: str | None = None
    group: int | None = None


class AllBlocksCleared(msgspec.Struct, frozen=True, gc=False, tag=True):
    """The engine emptied its cache."""


KvEvent = BlockStored | BlockRemoved | AllBlocksCleared


class EventBatch(msgspec.Struct, frozen=True):
    """The events of one engine step, in order."""

    ts: float
    """The engine's clock, seconds since the epoch."""
    events: tuple[KvEvent, ...]
    dp_rank: int | None = None
    skipped: int = 0
    """Events left out because they could not be understood."""
    lost_removal: bool = False
    """One of the skipped events may have removed blocks: what is known of the engine may claim too much."""


class Encoding(StrEnum):
    """How `encode_batch` lays out a batch."""

    ARRAY = "array"
    """Everything arrays: vLLM before PR #42892, SGLang."""
    MAP = "map"
    """An outer array whose events are maps: vLLM after it."""
    ALL_MAP = "all_map"
    """The batch a map as well."""


# The wire's own shapes. Fields that every encoder sends as one type are typed, so msgspec refuses the others
# while decoding; the optional ones differ between releases and are judged one by one below.
_Hash = int | bytes
_Hashes = Annotated[list[_Hash], msgspec.Meta(max_length=MAX_EVENT_TOKENS)]
_Tokens = Annotated[list[int], msgspec.Meta(max_length=MAX_EVENT_TOKENS)]


class _StoredArray(msgspec.Struct, array_like=True, tag="BlockStored", gc=False):
    block_hashes: _Hashes
    parent_block_hash: _Hash | None
    token_ids: _Tokens
    block_size: int
    lora_id: Any = None
    medium: str | None = None
    lora_name: Any = None
    extra_keys: Any = None
    group_idx: Any = None
    kv_cache_spec_kind: str | None = None


class _RemovedArray(msgspec.Struct, array_like=True, tag="BlockRemoved", gc=False):
    block_hashes: _Hashes
    medium: str | None = None
    group_idx: int | None = None


class _ClearedArray(msgspec.Struct, array_like=True, tag="AllBlocksCleared", gc=False):
    pass


class _StoredMap(msgspec.Struct, tag_field="type", tag="BlockStored", gc=False):
    block_hashes: _Hashes
    token_ids: _Tokens
    block_size: int
    parent_block_hash: _Hash | None = None
    lora_id: Any = None
    medium: str | None = None
    lora_name: Any = None
    extra_keys: Any = None
    group_idx: Any = None
    kv_cache_spec_kind: str | None = None
    cache_salt: str | None = None
    block_mm_infos: Any = None
    locality: Any = None


class _RemovedMap(msgspec.Struct, tag_field="type", tag="BlockRemoved", gc=False):
    block_hashes: _Hashes
    medium: str | None = None
    group_idx: int | None = None
    remaining_copy_counts: Any = None
    locality: Any = None


class _ClearedMap(msgspec.Struct, tag_field="type", tag="AllBlocksCleared", gc=False):
    pass


_Events = Annotated[list[msgspec.Raw], msgspec.Meta(max_length=MAX_EVENTS)]


class _BatchArray(msgspec.Struct, array_like=True):
    ts: float
    events: _Events
    data_parallel_rank: int | None = None


class _BatchMap(msgspec.Struct):
    events: _Events
    ts: float = 0.0
    data_parallel_rank: int | None = None


_batch_array = msgspec.msgpack.Decoder(_BatchArray)
_batch_map = msgspec.msgpack.Decoder(_BatchMap)
_event_array = msgspec.msgpack.Decoder(_StoredArray | _RemovedArray | _ClearedArray)
_event_map = msgspec.msgpack.Decoder(_StoredMap | _RemovedMap | _ClearedMap)
_encoder = msgspec.msgpack.Encoder()

# A text that is not UTF-8 raises UnicodeDecodeError, a deep nesting RecursionError: neither is a
# MsgspecError.
_DECODE_ERRORS: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class _BadEventError(Exception):
    """One event of a batch cannot be understood."""


class Skipped(msgspec.Struct, frozen=True, gc=False):
    """An event that could not be understood."""

    may_remove: bool
    """It may have removed blocks: what is known of the engine may now claim too much."""


class BatchReader:
    """One batch, of which each event is decoded when it is asked for: a large batch need not hold up its reader
    for long.
    """

    __slots__ = ("_events", "dp_rank", "ts")

    def __init__(self, payload: bytes) -> None:
        """Raises KvEventError when the payload is no batch, or larger than the caps of this module."""
        if not payload or len(payload) > MAX_PAYLOAD_BYTES:
            message = f"a KV event batch of {len(payload)} bytes; from 1 to {MAX_PAYLOAD_BYTES} are read"
            raise KvEventError(message)
        decoder: msgspec.msgpack.Decoder[_BatchArray] | msgspec.msgpack.Decoder[_BatchMap]
        decoder = _batch_map if payload[0] in _MAP_LEADS else _batch_array
        try:
            wire = decoder.decode(payload)
        except _DECODE_ERRORS as error:
            message = f"not a batch of KV events: {error}"
            raise KvEventError(message) from error
        self.ts = wire.ts
        self.dp_rank = wire.data_parallel_rank
        self._events = wire.events

    def read(self) -> Iterator[tuple[KvEvent | Skipped, int]]:
        """Each event and its bytes on the wire, in order."""
        budget = MAX_TOKENS
        for raw in self._events:
            wire = memoryview(raw)
            event: KvEvent | Skipped
            try:
                event = _decode_event(wire, budget)
            except (_BadEventError, *_DECODE_ERRORS):
                event = Skipped(_may_forget(raw))
            if isinstance(event, BlockStored):
                budget -= len(event.token_ids) // 4
            yield event, len(wire)


def decode_batch(payload: bytes) -> EventBatch:
    """Decode one batch in one go. An event that is broken or of an unknown type is skipped and counted.

    Raises KvEventError when the payload is no batch, or larger than the caps of this module.
    """
    reader = BatchReader(payload)
    found = [event for event, _ in reader.read()]
    skipped = [event for event in found if isinstance(event, Skipped)]
    return EventBatch(
        reader.ts,
        tuple([event for event in found if not isinstance(event, Skipped)]),
        reader.dp_rank,
        len(skipped),
        any(event.may_remove for event in skipped),
    )


def slices(event: KvEvent, n_blocks: int, *, most: int | None = None) -> Iterator[KvEvent]:
    """The event as smaller ones of up to `n_blocks` blocks that say the same when applied in order: each
    follows the last block of the one before. Of blocks stored, only the leading `most`.
    """
    if isinstance(event, BlockStored):
        n_told = len(event.block_hashes) if most is None else min(most, len(event.block_hashes))
        yield from (_part(event, at, min(at + n_blocks, n_told)) for at in range(0, n_told, n_blocks))
    elif isinstance(event, BlockRemoved):
        for at in range(0, len(event.block_hashes), n_blocks):
            yield BlockRemoved(event.block_hashes[at : at + n_blocks], event.medium, event.group)
    else:
        yield event


def _part(event: BlockStored, start: int, end: int) -> BlockStored:
    """Blocks `start:end` of an event."""
    if start == 0 and end == len(event.block_hashes):
        return event
    block_bytes = 4 * event.block_size
    n_plain = None if event.n_plain is None else max(0, event.n_plain - start)
    return msgspec.structs.replace(
        event,
        block_hashes=event.block_hashes[start:end],
        parent=event.block_hashes[start - 1] if start else event.parent,
        token_ids=TokenIds(event.token_ids[block_bytes * start : block_bytes * end]),
        salt=None if start else event.salt,
        n_plain=None if n_plain is None or n_plain >= end - start else n_plain,
    )


def _may_forget(raw: msgspec.Raw) -> bool:
    head = bytes(memoryview(raw)[:4096])
    return any(tag in head for tag in _FORGETTING)


def _decode_event(raw: memoryview, budget: int) -> KvEvent:
    """One event of which at most `budget` tokens are accepted."""
    wire: Any = (_event_map if raw[0] in _MAP_LEADS else _event_array).decode(raw)
    if isinstance(wire, _StoredArray | _StoredMap):
        return _stored(wire, budget)
    if isinstance(wire, _RemovedMap):
        gone = _without_copies(wire.block_hashes, wire.remaining_copy_counts)
        return BlockRemoved(_engine_hashes(gone), _place(wire), _group(wire.group_idx))
    if isinstance(wire, _RemovedArray):
        return BlockRemoved(_engine_hashes(wire.block_hashes), wire.medium, _group(wire.group_idx))
    return AllBlocksCleared()


def _place(wire: _StoredMap | _RemovedMap) -> str | None:
    return "REMOTE" if wire.locality == "REMOTE" else wire.medium


def _without_copies(hashes: list[_Hash], copies: object) -> list[_Hash]:
    """Those of which the engine does not say that it holds another copy."""
    if not isinstance(copies, list) or len(copies) != len(hashes):
        return hashes
    return [value for value, n_left in zip(hashes, copies, strict=True) if type(n_left) is not int or n_left < 1]


def _stored(wire: _StoredArray | _StoredMap, budget: int) -> BlockStored:
    n_blocks, n_tokens = len(wire.block_hashes), len(wire.token_ids)
    if not 0 < wire.block_size <= MAX_BLOCK_SIZE or n_tokens > budget:
        raise _BadEventError
    if n_tokens != n_blocks * wire.block_size:
        raise _BadEventError
    lora_name, extra_keys, group, salt = wire.lora_name, wire.extra_keys, wire.group_idx, None
    medium = wire.medium
    n_imageless = n_blocks
    if isinstance(wire, _StoredMap):
        salt, medium = wire.cache_salt, _place(wire)
        n_imageless = _without_images(wire.block_mm_infos, n_blocks)
    # SGLang's arrays carry {"cache_salt": ...} in a slot whose place moved between releases.
    if isinstance(lora_name, dict):
        salt, lora_name = _salt_map(lora_name), None
    if isinstance(extra_keys, dict):
        salt, extra_keys = _salt_map(extra_keys), None
    if isinstance(group, dict):
        salt, group = _salt_map(group), None
    adapter = _adapter(wire.lora_id, lora_name)
    n_plain = n_blocks
    if extra_keys is not None:
        first_salt, n_plain = _read_extra_keys(extra_keys, n_blocks, adapter, first=wire.parent_block_hash is None)
        salt = first_salt if salt is None else salt
    n_plain = min(n_plain, n_imageless)
    if salt is not None and len(salt) > MAX_NAME_CHARS:
        raise _BadEventError
    return BlockStored(
        block_hashes=_engine_hashes(wire.block_hashes),
        parent=None if wire.parent_block_hash is None else _engine_hash(wire.parent_block_hash),
        token_ids=_token_ids(wire.token_ids),
        block_size=wire.block_size,
        adapter=adapter,
        medium=medium,
        salt=salt if wire.parent_block_hash is None else None,
        group=_group(group),
        group_kind=wire.kv_cache_spec_kind,
        n_plain=None if n_plain == n_blocks else n_plain,
    )


def _engine_hash(value: _Hash) -> EngineHash:
    """Low 64 bits, so a digest, its unsigned and its signed integer form are one hash (vLLM cuts digests so
    too).
    """
    if isinstance(value, bytes):
        if not value:
            raise _BadEventError
        return EngineHash(int.from_bytes(value[-8:], "big"))
    return EngineHash(value & _MASK64)


def _engine_hashes(values: list[_Hash]) -> tuple[EngineHash, ...]:
    return tuple(map(_engine_hash, values))


def _token_ids(ids: list[int]) -> TokenIds:
    try:
        packed = array("I", ids)
    except OverflowError as error:
        raise _BadEventError from error
    if sys.byteorder == "big":
        packed.byteswap()
    return TokenIds(packed.tobytes())


def _group(value: object) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or not 0 <= value < MAX_GROUPS:
        raise _BadEventError
    return value


def _adapter(lora_id: object, lora_name: object) -> str:
    if isinstance(lora_name, str) and len(lora_name) <= MAX_NAME_CHARS:
        return lora_name
    if lora_name is not None:
        raise _BadEventError
    if lora_id is None:
        return ""
    if not isinstance(lora_id, int | str) or len(str(lora_id)) > MAX_NAME_CHARS:
        raise _BadEventError
    return f"lora:{lora_id}"


def _salt_map(keys: dict[object, object]) -> str | None:
    salt = keys.get("cache_salt")
    if salt is not None and not isinstance(salt, str):
        raise _BadEventError
    return salt


def _read_extra_keys(keys: object, n_blocks: int, adapter: str, *, first: bool) -> tuple[str | None, int]:
    """The salt, if told, and how many leading blocks depend on nothing but tokens, adapter and that salt.

    vLLM lists for each block, in this order: the adapter's name, (image id, offset) pairs, the salt (first
    block of a prompt only), the digest of prompt embeddings. So one text in a first block is the salt, once
    the adapter's name has been taken off.
    """
    if not isinstance(keys, list) or len(keys) != n_blocks:
        raise _BadEventError
    salt: str | None = None
    for at, entry in enumerate(keys):
        if entry is None:
            continue
        if not isinstance(entry, list):
            raise _BadEventError
        rest = _without_adapter(entry, adapter)
        if not rest:
            continue
        if at == 0 and first and len(rest) == 1 and isinstance(rest[0], str):
            salt = rest[0]
        else:
            return salt, at
    return salt, n_blocks


def _without_images(infos: object, n_blocks: int) -> int:
    """How many leading blocks hold no part of an image: TensorRT-LLM's list has an entry for each block."""
    if not infos:
        return n_blocks
    if not isinstance(infos, list):
        return 0
    return next((at for at, info in enumerate(infos) if info), n_blocks)


def _without_adapter(entry: list[object], adapter: str) -> list[object]:
    # Where only the adapter's number is told, the name still leads the list.
    if adapter and entry and (entry[0] == adapter or (adapter.startswith("lora:") and isinstance(entry[0], str))):
        return entry[1:]
    return entry


def encode_batch(batch: EventBatch, encoding: Encoding = Encoding.ARRAY) -> bytes:
    """The batch as an engine would publish it; `skipped` has no place on the wire. Inverse of
    `decode_batch`.
    """
    if encoding is Encoding.ARRAY:
        events: list[object] = [[name, *fields.values()] for name, fields in map(_wire_fields, batch.events)]
    else:
        events = [{"type": name, **fields} for name, fields in map(_wire_fields, batch.events)]
    if encoding is Encoding.ALL_MAP:
        return _encoder.encode({"ts": batch.ts, "events": events, "data_parallel_rank": batch.dp_rank})
    return _encoder.encode([batch.ts, events, batch.dp_rank])


def _wire_fields(event: KvEvent) -> tuple[str, dict[str, object]]:
    """Tag and fields in the order of vLLM's structs."""
    if isinstance(event, AllBlocksCleared):
        return "AllBlocksCleared", {}
    if isinstance(event, BlockRemoved):
        return "BlockRemoved", {
            "block_hashes": event.block_hashes,
            "medium": event.medium,
            "group_idx": event.group,
        }
    ids = array("I", event.token_ids)
    if sys.byteorder == "big":
        ids.byteswap()
    return "BlockStored", {
        "block_hashes": event.block_hashes,
        "parent_block_hash": event.parent,
        "token_ids": ids.tolist(),
        "block_size": event.block_size,
        "lora_id": None,
        "medium": event.medium,
        "lora_name": event.adapter or None,
        "extra_keys": _wire_extra_keys(event),
        "group_idx": event.group,
        "kv_cache_spec_kind": event.group_kind,
        "kv_cache_spec_sliding_window": None,
    }


def _wire_extra_keys(event: BlockStored) -> list[list[str] | None] | None:
    if event.salt is None:
        return None
    name = [event.adapter] if event.adapter else []
    first = [*name, event.salt]
    return [first, *([name or None] * (len(event.block_hashes) - 1))]
