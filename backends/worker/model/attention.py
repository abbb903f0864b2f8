"""Attention over the paged KV pool.

A step holds tokens of several sequences. Those that decode (one token each) come first and are attended together, in
groups of similar length; each sequence with several tokens is attended by itself, some queries at a time. Keys and
values of the whole step are written to the pool before anything is read, so that sequences of one step may share
blocks that one of them fills. The queries of one KV head are rows of one product: keys and values are not repeated.

**The same row, bit for bit.** What a query gets may depend on its own context alone, not on what else is computed with
it. So a context starts at a place that follows from the query's position, and ends in masked keys whose weights are
exactly zero. With that, and products whose rows do not depend on their number, chunks and batches change no bit; see
`numerics.rows_are_independent` for where products are such.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from backends.worker.model.kv_pool import KvPool

QUERIES: Final = 64
"""Queries of one sequence that are attended at a time."""
_GROUP_TOKENS: Final = 16_384
"""Keys of all sequences that decode in one call, at most: what is gathered for them takes memory."""
_SMALL: Final = 4096
"""Multiplications of a product that torch hands to another routine, which rounds differently (on the CPU, at most)."""
_ROWS: Final = 16
"""Rows of a head from which on heads are worth a product of their own."""
_WIDENED: Final = 1 << 20
"""Keys, times head_dim, that are worth to be widened for one product: more would leave the CPU's cache."""
_SHORT: Final = 256
"""Contexts up to so many tokens count as similarly long."""


class Kernel(Protocol):
    """Attention of gathered keys and values."""

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, hidden: Tensor) -> Tensor:
        """`q` [n, rows, head_dim] attends `k` and `v` [n, keys, head_dim], n = sequences × KV heads.

        `hidden` [sequences or 1, 1, queries, m], boolean, is true where one of the last m keys is not to be seen; rows
        are queries of one head after those of another. Returns [n, rows, head_dim].
        """
        ...


def products(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor) -> Tensor:
    """Two products and a softmax. Scores are float32: rounded to 8 bits, large ones would be off by percents.

    `k` may be of that type already.
    """
    sequences, large = len(hidden), k.numel() > _WIDENED
    if sequences == 1 and (large or q.shape[1] >= _ROWS):
        # One head after another: its scores stay in the CPU's cache, and a product needs no copy of a part of the keys.
        return torch.stack([_products(q[head], k[head], v[head], hidden) for head in range(len(q))])
    if large:
        parts = (x.chunk(sequences) for x in (q, k, v, hidden))
        return torch.cat([products(*each) for each in zip(*parts, strict=True)])
    return _products(q, k, v, hidden)


def _products(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor) -> Tensor:
    """Of one head [rows, head_dim] or of several [n, rows, head_dim]."""
    scores = _scores(q, k)
    _last_keys(scores, hidden).masked_fill_(hidden[:, :, None], -math.inf)
    return torch.matmul(torch.softmax(scores, dim=-1).to(v.dtype), v)


def _scores(q: Tensor, k: Tensor) -> Tensor:
    """Scaled scores [..., rows, keys], float32 or wider, as exact as that type is."""
    wide = torch.promote_types(q.dtype, torch.float32)
    product = torch.addmm if q.dim() == 2 else torch.baddbmm
    nothing = torch.zeros(1, dtype=wide, device=q.device)
    inputs = q.to(wide), k.to(wide).transpose(-1, -2)
    with _bfloat16_inputs() if q.dtype is torch.bfloat16 else nullcontext():
        return product(nothing, *inputs, beta=0, alpha=1.0 / math.sqrt(q.shape[-1]))


@contextmanager
def _bfloat16_inputs() -> Iterator[None]:
    """Lets oneDNN round the inputs of float32 products to bfloat16: what is such already stays as it is.

    So a product of bfloat16 with a result of float32, which torch has no function for on a CPU, takes bfloat16's time.
    """
    matmul = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]  # set by torch at run time
    before, matmul.fp32_precision = matmul.fp32_precision, "bf16"
    try:
        yield
    finally:
        matmul.fp32_precision = before


def sdpa(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor) -> Tensor:
    """The fused kernels of torch."""
    sequences = len(hidden)
    seen = torch.ones((sequences, 1, q.shape[1], k.shape[1]), dtype=torch.bool, device=q.device)
    _last_keys(seen.view(sequences, q.shape[1], -1), hidden).copy_(~hidden[:, :, None])
    q, k, v = (x.view(sequences, -1, *x.shape[1:]) for x in (q, k, v))
    return scaled_dot_product_attention(q, k, v, attn_mask=seen).flatten(0, 1)


def _last_keys(scores: Tensor, hidden: Tensor) -> Tensor:
    """A view of `scores` [n, rows, keys] as [sequences, KV heads, query heads, queries, m]."""
    sequences, _, queries, keys = hidden.shape
    n, rows, _ = scores.shape if scores.dim() == 3 else (1, *scores.shape)
    return scores.view(sequences, n // sequences, rows // queries, queries, -1)[..., -keys:]


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens of one sequence within a step."""

    start: int
    """Position of the first one."""
    count: int
    block_table: Sequence[int]
    """Blocks of the sequence, from its first token on."""

    @property
    def end(self) -> int:
        """Position after the last one."""
        return self.start + self.count


@dataclass(frozen=True, slots=True)
class _Tile:
    """Queries that are attended at once, of each sequence of a group the same number."""

    first: int
    last: int
    """Queries of each sequence, within the group's."""
    keys: slice
    """Of those gathered."""
    hidden: Tensor
    """As `Kernel` takes it, of a power of two of queries: there are few shapes then (see `_rounded`)."""


@dataclass(frozen=True, slots=True)
class _Context:
    """The keys of a group of sequences, and which query sees which; for one window size."""

    rows: Tensor
    """Rows of the pool (see `KvPool.heads`) [sequences × kv_heads × keys]."""
    tiles: list[_Tile]


class AttentionPlan:
    """What the layers of one step need to know of its sequences: built once a step, read by every layer."""

    def __init__(self, spans: Sequence[Span], windows: set[int | None], pool: KvPool) -> None:
        """`spans` in the order of the step's tokens: first those of one token, by length, then the others."""
        device, size = pool.data.device, pool.block_size
        places = [(span.block_table[at // size], at) for span in spans for at in range(span.start, span.end)]
        blocks, self.positions = torch.tensor(places, device=device).view(-1, 2).unbind(1)
        self.slots = blocks * (pool.n_layers * 2 * size) + self.positions % size
        """Rows of the pool (see `KvPool.tokens`) that the step's keys go to, in the first layer."""
        self.groups = list(_groups(spans))
        self.contexts = {window: [_context(group, window, pool) for group in self.groups] for window in windows}


def _groups(spans: Sequence[Span]) -> Iterator[Sequence[Span]]:
    """Sequences to attend together."""
    first = 0
    for index, span in enumerate(spans):
        if span.count > 1:
            yield from [spans[first:index]] if first < index else []
            yield [span]
            first = index + 1
        elif first < index:
            similar = span.end <= max(_SHORT, 2 * spans[first].end)
            if not similar or span.end * (index + 1 - first) > _GROUP_TOKENS:
                yield spans[first:index]
                first = index
    if first < len(spans):
        yield spans[first:]


def _context(spans: Sequence[Span], window: int | None, pool: KvPool) -> _Context:
    device, size = pool.data.device, pool.block_size
    firsts = [_first_block(span.start, window, size) for span in spans]
    origins = torch.tensor(firsts, device=device)[:, None, None, None] * size
    starts = torch.tensor([span.start for span in spans], device=device)[:, None, None, None]
    tiles = []
    for first, last in pairwise(_tile_edges(spans[0])):
        # Sequences of one group have one query each and begin where their gathered keys begin, or are one sequence.
        low = (_first_block(spans[0].start + first, window, size) - firsts[0]) * size
        ends = [-(-(span.start + last) // size) - block for span, block in zip(spans, firsts, strict=True)]
        high = low + _rounded(max(max(ends) - low // size, _least_keys(pool) // size)) * size
        # Without a window, all keys before the shortest sequence's first query are seen.
        unsure = low if window else min(span.start + first for span in spans)
        rows = 1 << (last - first - 1).bit_length()
        queries = starts + torch.arange(first, first + rows, device=device)[:, None]
        keys = origins + torch.arange(unsure, high, device=device)
        hidden = keys > queries
        if window is not None:
            hidden |= keys <= queries - window
        tiles.append(_Tile(first, last, slice(low, high), hidden))
    return _Context(_rows(spans, firsts, max(tile.keys.stop for tile in tiles), pool), tiles)


def _rounded(blocks: int) -> int:
    """At least so many, at most an eighth more.

    For each new shape of a product oneDNN compiles code, which takes it a ms and 0.6 MiB.
    """
    step = 1 << max(0, blocks.bit_length() - 4)
    return -(-blocks // step) * step


def _least_keys(pool: KvPool) -> int:
    """So many keys, in whole blocks, make even a single query's products large enough for the usual routine."""
    size = pool.block_size
    return -(-(_SMALL // pool.head_dim + 1) // size) * size


def _rows(spans: Sequence[Span], firsts: Sequence[int], keys: int, pool: KvPool) -> Tensor:
    """Where so many keys of each sequence lie; beyond its end it is a block of its own again, whose keys are hidden.

    Not any block: even hidden keys must be numbers, and what is being restored into others need not be any yet.
    """
    device, size = pool.data.device, pool.block_size
    tables = [span.block_table[first : -(-span.end // size)] for span, first in zip(spans, firsts, strict=True)]
    table = torch.tensor([[*blocks, *[blocks[0]] * (keys // size - len(blocks))] for blocks in tables], device=device)
    tokens = (table * (pool.n_layers * 2 * size))[:, :, None] + torch.arange(size, device=device)
    heads = torch.arange(pool.kv_heads, device=device)[:, None]
    return (tokens.view(len(spans), 1, -1) * pool.kv_heads + heads).reshape(-1)


def _tile_edges(span: Span) -> list[int]:
    """Where tiles of a span begin and end: at the span's ends, and at positions that are multiples of `QUERIES`."""
    inner = range(-(-(span.start + 1) // QUERIES) * QUERIES, span.end, QUERIES)
    return [0, *(position - span.start for position in inner), span.count]


def _first_block(position: int, window: int | None, block_size: int) -> int:
    """The block where a query's context begins: the same for all queries of a tile, wherever a chunk begins."""
    return 0 if window is None else max(0, position // QUERIES * QUERIES + 1 - window) // block_size


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    pool: KvPool,
    layer: int,
    plan: AttentionPlan,
    window: int | None,
    kernel: Kernel,
) -> Tensor:
    """Writes `k` and `v` [tokens, kv_heads, head_dim] to the pool, then attends `q` [tokens, heads, head_dim].

    Returns [tokens, heads × head_dim].
    """
    for part, new in enumerate((k, v)):
        pool.tokens(layer, part).index_copy_(0, plan.slots, new.reshape(len(new), -1))
    outs, row = [], 0
    for group, context in zip(plan.groups, plan.contexts[window], strict=True):
        count = len(group) * group[0].count
        n = len(group) * pool.kv_heads
        keys, values = (pool.heads(layer, part).index_select(0, context.rows) for part in (0, 1))
        keys, values = (gathered.view(n, -1, pool.head_dim) for gathered in (keys, values))
        outs.append(_attend_group(q[row : row + count], keys, values, context.tiles, kernel))
        row += count
    return outs[0] if len(outs) == 1 else torch.cat(outs)


def _attend_group(q: Tensor, keys: Tensor, values: Tensor, tiles: list[_Tile], kernel: Kernel) -> Tensor:
    """`q` [sequences × queries, heads, head_dim]; returns [sequences × queries, heads × head_dim]."""
    n, _, size = keys.shape
    count = tiles[-1].last
    sequences = len(q) // count
    # [sequences, queries, kv_heads, query heads, head_dim] to [sequences, kv_heads, query heads, queries, head_dim]
    queries = q.view(sequences, count, n // sequences, -1, size).permute(0, 2, 3, 1, 4)
    outs = []
    for tile in tiles:
        rows = queries[:, :, :, tile.first : tile.last]
        if more := tile.hidden.shape[2] - rows.shape[3]:
            rows = pad(rows, (0, 0, 0, more))
        out = kernel(rows.reshape(n, -1, size), keys[:, tile.keys], values[:, tile.keys], tile.hidden)
        outs.append(out.view(rows.shape)[:, :, :, : tile.last - tile.first].permute(0, 3, 1, 2, 4))
    out = outs[0] if len(outs) == 1 else torch.cat(outs, dim=1)
    return out.reshape(len(q), -1)
