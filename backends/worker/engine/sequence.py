"""One sequence inside the engine: its tokens, and how far their KV has got. Pure.

One state machine, driven by the scheduler alone: WAITING (no blocks) → RUNNING (blocks held) → FINISHED (none
again). A preempted sequence goes from RUNNING back to WAITING and keeps its tokens; a cancelled one goes from
either to FINISHED.
"""

from __future__ import annotations

import sys
from array import array
from enum import Enum, auto
from math import inf

from backends.worker.messages import SamplingParams, Submit
from cache.block_hash import TOKEN_BYTES
from policies.types import BlockHash, TokenIds


class Status(Enum):
    """Where a sequence is."""

    WAITING = auto()
    RUNNING = auto()
    FINISHED = auto()


class Sequence:
    """The prompt and what has been sampled after it. Others than the scheduler and the block manager only read."""

    __slots__ = (
        "_tokens",
        "admitted",
        "arrival",
        "block_table",
        "cached_tokens",
        "came",
        "expires",
        "hashes",
        "id",
        "n_computed",
        "n_offered",
        "n_prompt",
        "params",
        "priority",
        "request",
        "status",
    )

    def __init__(self, request: Submit, arrival: int = 0, came: float = 0.0) -> None:
        """`arrival` orders sequences of one priority: the lowest goes first. `came`: when it did, in seconds."""
        self.request = request
        self.id: str = request.id
        self.params: SamplingParams = request.params
        self.priority: int = request.priority
        self.arrival = arrival
        self.came = came
        self.expires: float = inf if request.kv.ttl is None else came + request.kv.ttl
        """Sequences that come then or later do not use what this one has used or made."""
        self.status = Status.WAITING
        self._tokens = _unpack(request.token_ids)
        self.n_prompt: int = len(self._tokens)
        self.n_computed: int = 0
        """Leading tokens whose KV is in the pool, as of the last commit; while a step is under way, also those
        that were found when the step admitted the sequence."""
        self.block_table: list[int] = []
        """Blocks of the pool, in order; empty unless running."""
        self.hashes: list[BlockHash] = []
        """Of leading full blocks, as many as were asked for yet."""
        self.n_offered: int = 0
        """Leading blocks that came from the prefix cache or were offered to it since the admission."""
        self.admitted: bool = False
        """A step with it has been committed."""
        self.cached_tokens: int = 0
        """Prompt tokens whose KV was found at the first admission that was committed."""

    def __repr__(self) -> str:
        return f"<Sequence {self.id!r} {self.status.name} {self.n_computed}/{self.n_tokens}>"

    @property
    def n_tokens(self) -> int:
        """Of prompt and output. The last one's KV is computed in the step that samples the next."""
        return len(self._tokens)

    @property
    def n_output(self) -> int:
        """Sampled tokens."""
        return len(self._tokens) - self.n_prompt

    @property
    def bars_stops(self) -> bool:
        """The next token must be neither an end of sequence nor one of `stop_token_ids`: too few before it."""
        return self.n_output < self.params.min_tokens

    @property
    def output_ids(self) -> list[int]:
        """The sampled tokens, as a copy."""
        return self._tokens[self.n_prompt :].tolist()

    def ids(self, start: int, stop: int) -> array[int]:
        """Tokens `start:stop` of prompt and output as unsigned 32-bit integers in native order; a copy."""
        return self._tokens[start:stop]

    def token_bytes(self, start: int, stop: int) -> TokenIds:
        """Tokens `start:stop` of prompt and output as they are hashed and told."""
        part = self._tokens[start:stop]
        if sys.byteorder == "big":
            part.byteswap()
        return TokenIds(part.tobytes())

    def append(self, token: int) -> None:
        """One sampled token more. Raises OverflowError when it is no unsigned 32-bit integer."""
        self._tokens.append(token)


def _unpack(ids: TokenIds) -> array[int]:
    tokens = array("I")
    assert tokens.itemsize == TOKEN_BYTES, "an unsigned int has four bytes on every platform that torch runs on"
    tokens.frombytes(ids)
    if sys.byteorder == "big":
        tokens.byteswap()
    return tokens
