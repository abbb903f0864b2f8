"""BERT's forward pass in numpy: Devlin et al. 2018, post-norm encoder, GELU by the error function.

Texts lie one after the other without padding, [tokens, hidden], so that no product is wasted and no mask is needed:
attention alone looks at texts one by one, or at those of one length together.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from cache.minilm_weights import BertWeights, Floats, Layer, Norm

_CACHED_NUMBERS: Final = 1 << 15
"""GELU works through so many at a time: they stay in the processor's cache from one step to the next."""

_ERFC_SCALE: Final = 0.3275911 / 2**0.5
_ERFC_TERMS: Final = tuple(0.5 * c for c in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592))


class Run(NamedTuple):
    """Texts of one length that follow each other: rows from `start`, `texts` × `length` of them."""

    start: int
    texts: int
    length: int

    @property
    def stop(self) -> int:
        """After the last row."""
        return self.start + self.texts * self.length


def runs(lengths: Sequence[int]) -> Iterator[Run]:
    """Neighbours of equal length as one."""
    start = 0
    for length, group in itertools.groupby(lengths):
        run = Run(start, sum(1 for _ in group), length)
        yield run
        start = run.stop


class NumpyBert:
    """Safe for several threads: nothing is kept between calls."""

    def __init__(self, weights: BertWeights) -> None:
        self._weights = weights

    def pooled(self, sequences: Sequence[Sequence[int]]) -> Floats:
        """[n, hidden]: the mean of each sequence's last hidden states. Sequences are not empty, of ids in the
        vocabulary, no longer than there are positions; those of equal length should be neighbours.
        """
        # What overflows, of weights that are not sound, is told by whoever gets the result.
        with np.errstate(all="ignore"):
            return self._pooled(sequences)

    def _pooled(self, sequences: Sequence[Sequence[int]]) -> Floats:
        weights = self._weights
        lengths = [len(each) for each in sequences]
        x = weights.words[np.fromiter(itertools.chain.from_iterable(sequences), np.intp, sum(lengths))]
        for run in runs(lengths):
            rows = x[run.start : run.stop].reshape(run.texts, run.length, -1)
            rows += weights.positions[: run.length]
        _normalize(x, weights.norm, weights.shape.norm_eps)
        self._encode(x, lengths)
        starts = np.cumsum([0, *lengths[:-1]])
        pooled: Floats = np.add.reduceat(x, starts, axis=0)
        pooled /= np.asarray(lengths, np.float32)[:, None]
        return pooled

    def _encode(self, x: Floats, lengths: Sequence[int]) -> None:
        """All layers, in place."""
        shape = self._weights.shape
        qkv = np.empty((len(x), 3 * shape.hidden_size), np.float32)
        inner = np.empty((len(x), shape.inner_size), np.float32)
        y, context = np.empty_like(x), np.empty_like(x)
        grouped = list(runs(lengths))
        for layer in self._weights.layers:
            np.matmul(x, layer.qkv, out=qkv)
            qkv += layer.qkv_bias
            for run in grouped:
                _attend(qkv, context, run, shape.num_heads)
            np.matmul(context, layer.out, out=y)
            _add_and_normalize(x, y, layer.out_bias, layer.attention_norm, shape.norm_eps)
            _feed_forward(x, inner, y, layer)
            _add_and_normalize(x, y, layer.down_bias, layer.norm, shape.norm_eps)


def _feed_forward(x: Floats, inner: Floats, y: Floats, layer: Layer) -> None:
    np.matmul(x, layer.up, out=inner)
    inner += layer.up_bias
    gelu(inner)
    np.matmul(inner, layer.down, out=y)


def _attend(qkv: Floats, context: Floats, run: Run, heads: int) -> None:
    """softmax(Q·Kᵀ)·V of one run's texts, into their rows of `context`."""
    parts = qkv[run.start : run.stop].reshape(run.texts, run.length, 3, heads, -1)
    queries, keys, values = (parts[:, :, part].swapaxes(1, 2) for part in range(3))  # [texts, heads, tokens, head_dim]
    # [texts, heads, keys, queries]: so that rows are reduced, many numbers at a time, and not single numbers of a row.
    scores = np.matmul(keys, queries.swapaxes(2, 3))
    scores -= scores.max(axis=2, keepdims=True)
    np.exp(scores, out=scores)
    mixed = np.matmul(scores.swapaxes(2, 3), values)
    # Divided after the product: it has fewer numbers than the scores.
    mixed /= scores.sum(axis=2)[..., None]
    context[run.start : run.stop].reshape(run.texts, run.length, heads, -1)[:] = mixed.swapaxes(1, 2)


def _add_and_normalize(x: Floats, y: Floats, bias: Floats, norm: Norm, eps: float) -> None:
    y += bias
    x += y
    _normalize(x, norm, eps)


def _normalize(x: Floats, norm: Norm, eps: float) -> None:
    """LayerNorm of each row, in place."""
    x -= x.mean(axis=1, keepdims=True)
    variance = np.einsum("ij,ij->i", x, x)[:, None] / np.float32(x.shape[1])
    x *= 1.0 / np.sqrt(variance + np.float32(eps))
    x *= norm.gain
    x += norm.bias


def gelu(x: Floats) -> None:
    """x·Φ(x) in place, to 3·10⁻⁷ × max(1, |x|); `x` is C-contiguous.

    Φ by the error function as in Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26 (to 1.5·10⁻⁷),
    written as max(x, 0) − |x|·(1 − Φ(|x|)): so the two halves share everything but the first term.
    """
    flat = x.reshape(-1)
    size = min(len(flat), _CACHED_NUMBERS)
    scratch = np.empty((3, size), np.float32)
    for start in range(0, len(flat), size):
        piece = flat[start : start + size]
        _gelu_piece(piece, *scratch[:, : len(piece)])


def _gelu_piece(x: Floats, a: Floats, t: Floats, tail: Floats) -> None:
    np.abs(x, out=a)
    np.multiply(a, np.float32(_ERFC_SCALE), out=t)
    t += np.float32(1)
    np.reciprocal(t, out=t)
    np.multiply(t, np.float32(_ERFC_TERMS[0]), out=tail)
    for term in _ERFC_TERMS[1:]:
        tail += np.float32(term)
        tail *= t
    tail *= a
    np.multiply(a, a, out=t)
    t *= np.float32(-0.5)
    np.exp(t, out=t)
    tail *= t
    np.maximum(x, np.float32(0), out=x)
    x -= tail
