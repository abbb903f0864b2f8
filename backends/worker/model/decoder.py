"""The decoder that Llama, Qwen2, Qwen3 and Mistral share; they differ by their configuration alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from backends.worker.model.attention import AttentionPlan, Kernel, attend, products, sdpa
from backends.worker.model.kv_pool import KvPool
from backends.worker.model.model_config import ModelConfig
from backends.worker.model.rope import Rope, rotate
from backends.worker.model.weights import LayerWeights, Weights

_PIECE: Final = 256
"""Rows that go through a layer's products at a time on a CPU."""
_FEW: Final = 16
"""Products of so many rows wait for the weights rather than for arithmetic."""
_ACTIVATIONS: Final[Mapping[str, Callable[[Tensor], Tensor]]] = {
    "silu": functional.silu,
    "swish": functional.silu,
    "gelu": functional.gelu,
    "gelu_pytorch_tanh": partial(functional.gelu, approximate="tanh"),
    "relu": functional.relu,
}


class Decoder:
    """One model, ready to compute. All tokens of a step are rows; only attention knows which sequence they are of."""

    def __init__(
        self, config: ModelConfig, weights: Weights, kernel: Kernel | None = None, *, compiled: bool = False
    ) -> None:
        """`kernel` None: the faster one for the weights' device. `compiled`: what is computed row by row goes through
        `torch.compile`, at the first step, which takes some ten seconds; attention stays as it is.
        """
        self.config = config
        self.weights = weights
        self.dtype = weights.embed.dtype
        self.device = weights.embed.device
        self._rope = Rope(config.rope, config.head_dim, config.max_position_embeddings, self.device)
        self._kernel = kernel or (products if self.device.type == "cpu" else sdpa)
        self._heads = [config.num_heads, config.num_kv_heads, config.num_kv_heads]
        self._act = _ACTIVATIONS[config.hidden_act]
        self._before, self._after = self._qkv, self._after_attention
        if compiled:
            self._before, self._after = (torch.compile(part, dynamic=True) for part in (self._before, self._after))

    def forward(self, token_ids: Tensor, plan: AttentionPlan, pool: KvPool) -> Tensor:
        """Hidden states [tokens, hidden] of `token_ids` [tokens], before the last norm."""
        count = len(token_ids)
        more = self._rows(count) - count
        x = functional.embedding(functional.pad(token_ids, (0, more)), self.weights.embed)
        angles = self._rope(functional.pad(plan.positions, (0, more)), self.dtype)
        for index, layer in enumerate(self.weights.layers):
            qkv = self._in_pieces(partial(self._before, layer), x, *angles)
            q, k, v = torch.split(qkv[:count], self._heads, dim=1)
            out = attend(
                q,
                k,
                v,
                pool=pool,
                layer=index,
                plan=plan,
                window=self.config.windows[index],
                kernel=self._kernel,
            )
            out = functional.pad(out, (0, 0, 0, more)) if more else out
            x = self._in_pieces(partial(self._after, layer), x, out)
        return x[:count]

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [rows, vocab], float32 or wider, of hidden states [rows, hidden]."""
        count = len(hidden)
        hidden = functional.pad(hidden, (0, 0, 0, self._rows(count) - count))
        logits = functional.linear(self._norm(hidden, self.weights.norm), self.weights.lm_head)[:count]
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def _rows(self, count: int) -> int:
        """Rows to compute for so many: a power of two, or a multiple of 16.

        For each new number of rows oneDNN compiles its products anew, which takes it a ms and 0.6 MiB for each matrix.
        """
        if self.device.type != "cpu" or not count:
            return count
        return 1 << (count - 1).bit_length() if count <= _FEW else -(-count // _FEW) * _FEW

    def _in_pieces(self, compute: Callable[..., Tensor], *rows: Tensor) -> Tensor:
        """`compute` of all rows; on a CPU so many at a time that what lies between stays in the cache."""
        if self.device.type != "cpu" or len(rows[0]) <= _PIECE:
            return compute(*rows)
        return torch.cat([compute(*piece) for piece in zip(*(torch.split(x, _PIECE) for x in rows), strict=True)])

    def _qkv(self, layer: LayerWeights, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Queries, keys (both turned by their positions) and values, side by side [tokens, all heads, head_dim]."""
        qkv = functional.linear(self._norm(x, layer.input_norm), layer.qkv, layer.qkv_bias)
        qkv = qkv.view(-1, sum(self._heads), self.config.head_dim)
        q, k, _ = torch.split(qkv, self._heads, dim=1)
        q.copy_(rotate(q if layer.q_norm is None else self._norm(q, layer.q_norm), cos, sin))
        k.copy_(rotate(k if layer.k_norm is None else self._norm(k, layer.k_norm), cos, sin))
        return qkv

    def _after_attention(self, layer: LayerWeights, x: Tensor, attended: Tensor) -> Tensor:
        """The layer's hidden states [tokens, hidden], of those before it and of what attention gave."""
        x = x + functional.linear(attended, layer.o, layer.o_bias)
        gate, up = functional.linear(self._norm(x, layer.post_norm), layer.gate_up, layer.gate_up_bias).chunk(2, dim=-1)
        return x.add_(functional.linear(self._act(gate).mul_(up), layer.down, layer.down_bias))

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """RMS norm in float32; the result is rounded before it is weighted, as `transformers` does it."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        scale = (wide * wide).mean(-1, keepdim=True).add_(self.config.rms_norm_eps).rsqrt_()
        return (wide * scale).to(x.dtype) * weight
