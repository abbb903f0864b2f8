"""Recipe of the trace in the package: `python -m gateway.replay.demo_trace` writes demo_trace.jsonl again.

Twelve chats of five turns each over 20 seconds, in Mooncake's format. All share a system prompt of one block;
each turn sends the whole conversation so far, so that a worker that had the last turn has most of the next
one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from gateway.replay.mooncake import BLOCK_TOKENS
from gateway.replay.prompts import splitmix64

_CHATS: Final = 12
_TURNS: Final = 5
_SYSTEM_BLOCKS: Final = 1
_FIRST_MS: Final = 700  # between the first turns of two chats
_TURN_MS: Final = (2_000, 3_500)  # between two turns of one chat
_NEW_TOKENS: Final = (250, 900)  # question, documents pasted, and the answer before
_OUTPUT_TOKENS: Final = (40, 120)


def lines() -> list[str]:
    """The trace, one JSON object a line, sorted by time."""
    draws = _Draws()
    rows = [row for chat in range(_CHATS) for row in _chat(chat, draws)]
    return [json.dumps(row) for row in sorted(rows, key=lambda row: row["timestamp"])]


def _chat(chat: int, draws: _Draws) -> list[dict[str, int | list[int]]]:
    rows: list[dict[str, int | list[int]]] = []
    at = chat * _FIRST_MS
    tokens = _SYSTEM_BLOCKS * BLOCK_TOKENS
    full = list(range(_SYSTEM_BLOCKS))
    for turn in range(_TURNS):
        tokens += draws.between(*_NEW_TOKENS)
        full += [_id(chat, turn, number) for number in range(len(full), tokens // BLOCK_TOKENS)]
        partial = [_id(chat, turn, 99)] if tokens % BLOCK_TOKENS else []
        rows.append(
            {
                "timestamp": at,
                "input_length": tokens,
                "output_length": draws.between(*_OUTPUT_TOKENS),
                "hash_ids": full + partial,
            }
        )
        at += draws.between(*_TURN_MS)
    return rows


def _id(chat: int, turn: int, number: int) -> int:
    return (chat + 1) * 10_000 + turn * 100 + number


class _Draws:
    """Random numbers that are the same in every Python."""

    def __init__(self) -> None:
        self._drawn = 0

    def between(self, low: int, high: int) -> int:
        self._drawn += 1
        return low + splitmix64(self._drawn) % (high - low + 1)


if __name__ == "__main__":
    Path(__file__).with_name("demo_trace.jsonl").write_text("\n".join(lines()) + "\n", encoding="ascii")
