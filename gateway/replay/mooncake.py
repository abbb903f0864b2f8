"""Mooncake's trace format (FAST'25 release, github.com/kvcache-ai/Mooncake): one request a line.

``{"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [id of each 512-token
block]}``; an id stands for the block and all before it, and the last block may be partial. Other block sizes
occur in derived traces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.replay.arrival import Arrival, Record, as_block_ids, with_tail

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

BLOCK_TOKENS: Final = 512


def is_mooncake(record: Record) -> bool:
    """Whether a trace that begins with this line is one of Mooncake's."""
    return "hash_ids" in record.fields and "input_length" in record.fields


def arrivals(records: Iterable[Record], *, block_tokens: int = BLOCK_TOKENS) -> Iterator[Arrival]:
    """Each line as an arrival, in the order of the file, in the time of the file."""
    for row, record in enumerate(records):
        tokens = record.integer("input_length", minimum=1)
        ids = as_block_ids(record, "hash_ids", record.items("hash_ids"))
        yield Arrival(
            at=record.number("timestamp") / 1000,
            input_tokens=tokens,
            output_tokens=max(1, record.integer("output_length")),
            # negative: no id of the file can be equal, so a tail that has no id is shared with nobody
            block_ids=with_tail(record, ids, tokens=tokens, block_tokens=block_tokens, tail_id=-1 - row),
            block_tokens=block_tokens,
        )
