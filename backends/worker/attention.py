"""Attention over the paged KV pool, the same code on CPU and CUDA.

A step holds tokens of several sequences: those that decode (one token each) come first and are attended in one batched
call; each sequence with several tokens is attended by itself. Keys and values of the whole step are written to the
pool before anything is read, so that sequences of one step may share blocks that one of them fills.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from backends.worker.kv_pool import KvPool


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens of one sequence within a step."""

    start: int
    """Position of the first one."""
    count: int
    block_table: Sequence[int]
    """Blocks of the sequence, from its first token on."""


@dataclass(frozen=True, slots=True)
class _Gather:
    """Where the context of some queries lies, and which of it each query sees; for one window size."""

    table: Tensor
    """Block ids [sequences, blocks], padded with any block."""
    mask: Tensor
    """[sequences, 1, queries, blocks × block_size], true where a query sees a key."""


class AttentionPlan:
    """What the layers of one step need to know of its sequences: built once a step, read by every layer."""

    def __init__(self, spans: Sequence[Span], windows: set[int | None], block_size: int, device: torch.device) -> None:
        """`spans` in the order of the step's rows: first those of one token, then the others."""
        self.decodes = sum(span.count == 1 for span in spans)
        if any(span.count == 1 for span in spans[self.decodes :]):
            raise ValueError("spans of one token come first")
        self.counts = [span.count for span in spans[self.decodes :]]
        positions = [position for span in spans for position in range(span.start, span.start + span.count)]
        blocks = [
            span.block_table[position // block_size]
            for span in spans
            for position in range(span.start, span.start + span.count)
        ]
        self.positions = torch.tensor(positions, device=device)
        self.blocks = torch.tensor(blocks, device=device)
        self.offsets = self.positions % block_size
        groups = [spans[: self.decodes]] if self.decodes else []
        groups += [[span] for span in spans[self.decodes :]]
        self.gathers = {window: [_gather(group, window, block_size, device) for group in groups] for window in windows}


def _gather(spans: Sequence[Span], window: int | None, block_size: int, device: torch.device) -> _Gather:
    """Spans of the same count. With a window, blocks that no query sees are left out."""
    firsts = [max(0, span.start + 1 - window) // block_size if window else 0 for span in spans]
    tables = [
        span.block_table[first : (span.start + span.count - 1) // block_size + 1]
        for span, first in zip(spans, firsts, strict=True)
    ]
    longest = max(map(len, tables))
    table = torch.tensor([[*blocks, *[0] * (longest - len(blocks))] for blocks in tables], device=device)
    first = torch.tensor(firsts, device=device)[:, None, None] * block_size
    keys = first + torch.arange(longest * block_size, device=device)
    starts = torch.tensor([span.start for span in spans], device=device)[:, None, None]
    queries = starts + torch.arange(spans[0].count, device=device)[:, None]
    mask = keys <= queries
    if window is not None:
        mask &= keys > queries - window
    return _Gather(table, mask[:, None])


def attend(q: Tensor, k: Tensor, v: Tensor, layer: Tensor, plan: AttentionPlan, window: int | None) -> Tensor:
    """Writes `k` and `v` [tokens, kv_heads, head_dim] to `layer` of the pool, then attends `q` [tokens, heads, head_dim].

    Returns [tokens, heads × head_dim].
    """
    layer[plan.blocks, :, plan.offsets] = torch.stack((k, v), dim=1)
    gathers = plan.gathers[window]
    outs = []
    if plan.decodes:
        outs.append(_decode(q[: plan.decodes], layer, gathers[0]))
    rest = q[plan.decodes :].split(plan.counts) if plan.counts else ()
    outs += [
        _prefill(rows, layer, gather)
        for rows, gather in zip(rest, gathers[1 if plan.decodes else 0 :], strict=True)
    ]
    return outs[0] if len(outs) == 1 else torch.cat(outs)


def _context(layer: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values [sequences, kv_heads, blocks × block_size, head_dim] of `table` [sequences, blocks]."""
    sequences, blocks = table.shape
    _, _, block_size, heads, size = layer.shape
    context = layer[table.view(-1)].view(sequences, blocks, 2, block_size, heads, size)
    keys, values = (context[:, :, part].reshape(sequences, -1, heads, size).transpose(1, 2) for part in (0, 1))
    return keys, values


def _decode(q: Tensor, layer: Tensor, gather: _Gather) -> Tensor:
    """One query of each sequence. The queries of one KV head are rows of one product: keys are not repeated."""
    keys, values = _context(layer, gather.table)
    sequences, heads, size = q.shape
    groups = q.view(sequences, keys.shape[1], -1, size)
    mask = gather.mask.expand(-1, -1, groups.shape[2], -1)
    return scaled_dot_product_attention(groups, keys, values, attn_mask=mask).reshape(sequences, heads * size)


def _prefill(q: Tensor, layer: Tensor, gather: _Gather) -> Tensor:
    """Several queries of one sequence."""
    keys, values = _context(layer, gather.table)
    count, heads, size = q.shape
    out = scaled_dot_product_attention(
        q.transpose(0, 1)[None], keys, values, attn_mask=gather.mask, enable_gqa=heads != keys.shape[1]
    )
    return out[0].transpose(0, 1).reshape(count, heads * size)


__all__ = ["AttentionPlan", "KvPool", "Span", "attend"]
