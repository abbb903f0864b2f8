"""BERT's forward pass with torch, in the order of the one in numpy and with the same matrices; needs `torch`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from cache.minilm_numpy import Run, runs
from cache.minilm_weights import BertWeights, Floats, Norm


class _Layer:
    """A layer's matrices as tensors; they share the memory of the arrays."""

    def __init__(self, weights: BertWeights, at: int) -> None:
        layer = weights.layers[at]
        self.qkv, self.qkv_bias = _tensor(layer.qkv), _tensor(layer.qkv_bias)
        self.out, self.out_bias = _tensor(layer.out), _tensor(layer.out_bias)
        self.up, self.up_bias = _tensor(layer.up), _tensor(layer.up_bias)
        self.down, self.down_bias = _tensor(layer.down), _tensor(layer.down_bias)
        self.attention_norm, self.norm = _Norm(layer.attention_norm, weights), _Norm(layer.norm, weights)


class _Norm:
    def __init__(self, norm: Norm, weights: BertWeights) -> None:
        self._gain, self._bias = _tensor(norm.gain), _tensor(norm.bias)
        self._eps = weights.shape.norm_eps

    def __call__(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, (x.shape[1],), self._gain, self._bias, self._eps)


class TorchBert:
    """Safe for several threads: nothing is kept between calls."""

    def __init__(self, weights: BertWeights) -> None:
        self._words, self._positions = _tensor(weights.words), _tensor(weights.positions)
        self._norm = _Norm(weights.norm, weights)
        self._layers = [_Layer(weights, at) for at in range(weights.shape.num_layers)]
        self._heads = weights.shape.num_heads

    def pooled(self, sequences: Sequence[Sequence[int]]) -> Floats:
        """See `NumpyBert.pooled`."""
        if torch.get_num_threads() != 1:
            # The gateway's other work needs the other cores, and threads that spin for each of fifty small products
            # cost more than they gain.
            torch.set_num_threads(1)
        with torch.inference_mode():
            lengths = [len(each) for each in sequences]
            ids = np.fromiter(itertools.chain.from_iterable(sequences), np.int64, sum(lengths))
            positions = np.concatenate([np.arange(length) for length in lengths])
            x = self._norm(self._words[torch.from_numpy(ids)] + self._positions[torch.from_numpy(positions)])
            grouped = list(runs(lengths))
            for layer in self._layers:
                x = self._layer(layer, x, grouped)
            means = [x[run.start : run.stop].view(run.texts, run.length, -1).mean(1) for run in grouped]
            pooled: Floats = torch.cat(means).numpy()
        return pooled

    def _layer(self, layer: _Layer, x: Tensor, grouped: Sequence[Run]) -> Tensor:
        qkv = torch.addmm(layer.qkv_bias, x, layer.qkv)
        context = torch.cat([self._attend(qkv[run.start : run.stop], run) for run in grouped])
        x = layer.attention_norm(torch.addmm(layer.out_bias, context, layer.out).add_(x))
        inner = functional.gelu(torch.addmm(layer.up_bias, x, layer.up))
        return layer.norm(torch.addmm(layer.down_bias, inner, layer.down).add_(x))

    def _attend(self, qkv: Tensor, run: Run) -> Tensor:
        parts = qkv.view(run.texts, run.length, 3, self._heads, -1)
        queries, keys, values = (part.transpose(1, 2) for part in parts.unbind(2))
        mixed = functional.scaled_dot_product_attention(queries, keys, values, scale=1.0)  # queries have it inside
        return mixed.transpose(1, 2).reshape(run.texts * run.length, -1)


def _tensor(array: Floats) -> Tensor:
    return torch.from_numpy(array)
