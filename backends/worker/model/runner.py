"""Runs steps of the engine: chunks of sequences in, logits of the rows that sample out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from backends.worker.model.attention import AttentionPlan, Span
from backends.worker.model.decoder import Decoder
from backends.worker.model.kv_pool import KvPool


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens of one sequence that one step computes."""

    token_ids: Sequence[int]
    """At least one."""
    start: int
    """Position of the first of them: so many tokens of the sequence have their KV in the pool."""
    block_table: Sequence[int]
    """Blocks of the sequence, from its first token on, for all tokens up to the last of these."""
    samples: bool
    """The logits after the last of these are wanted."""


class ModelRunner:
    """One model and its KV pool."""

    def __init__(self, decoder: Decoder, pool: KvPool) -> None:
        self.decoder = decoder
        self.pool = pool
        self._windows = set(decoder.config.windows)

    @torch.inference_mode()
    def execute(self, chunks: Sequence[Chunk]) -> Tensor:
        """Computes one step: writes the chunks' KV to the pool.

        Returns logits [sampling chunks, vocab], float32, in the order of `chunks`. Chunks may share blocks, and read
        what others of the same step write, where the hashes of the blocks say that the tokens are the same.
        """
        order = sorted(range(len(chunks)), key=lambda index: (len(chunks[index].token_ids) > 1, chunks[index].start))
        ordered = [chunks[index] for index in order]
        spans = [Span(chunk.start, len(chunk.token_ids), chunk.block_table) for chunk in ordered]
        device = self.decoder.device
        plan = AttentionPlan(spans, self._windows, self.pool)
        token_ids = torch.tensor([token for chunk in ordered for token in chunk.token_ids], device=device)
        hidden = self.decoder.forward(token_ids, plan, self.pool)
        return self.decoder.logits(hidden[self._sampled(chunks, order, device)])

    @staticmethod
    def _sampled(chunks: Sequence[Chunk], order: Sequence[int], device: torch.device) -> Tensor:
        """Rows of the sampling chunks' last tokens, in the order of `chunks`."""
        ends: dict[int, int] = {}
        end = 0
        for index in order:
            end += len(chunks[index].token_ids)
            ends[index] = end - 1
        return torch.tensor(
            [ends[index] for index, chunk in enumerate(chunks) if chunk.samples], dtype=torch.int64, device=device
        )
