"""The decoder that Llama, Qwen2, Qwen3 and Mistral share; they differ by their configuration alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from backends.worker.attention import AttentionPlan, Kernel, attend, products, sdpa
from backends.worker.kv_pool import KvPool
from backends.worker.model_config import ModelConfig
from backends.worker.rope import Rope, rotate
from backends.worker.weights import LayerWeights, Weights

_ACTIVATIONS: Final[Mapping[str, Callable[[Tensor], Tensor]]] = {
    "silu": functional.silu,
    "swish": functional.silu,
    "gelu": functional.gelu,
    "gelu_pytorch_tanh": partial(functional.gelu, approximate="tanh"),
    "relu": functional.relu,
}


class Decoder:
    """One model, ready to compute. All tokens of a step are rows; only attention knows which sequence they are of."""

    def __init__(self, config: ModelConfig, weights: Weights, kernel: Kernel | None = None) -> None:
        """`kernel` None: the faster one for the weights' device."""
        self.config = config
        self.weights = weights
        self.dtype = weights.embed.dtype
        self.device = weights.embed.device
        self._rope = Rope(config.rope, config.head_dim, config.max_position_embeddings, self.device)
        self._kernel = kernel or (products if self.device.type == "cpu" else sdpa)
        self._act = _ACTIVATIONS[config.hidden_act]

    def forward(self, token_ids: Tensor, plan: AttentionPlan, pool: KvPool) -> Tensor:
        """Hidden states [tokens, hidden] of `token_ids` [tokens], before the last norm."""
        x = functional.embedding(token_ids, self.weights.embed)
        angles = self._rope(plan.positions, self.dtype)
        for index, layer in enumerate(self.weights.layers):
            x = x + self._attention(layer, self._norm(x, layer.input_norm), angles, plan, pool, index)
            x = x + self._mlp(layer, self._norm(x, layer.post_norm))
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [rows, vocab], float32 or wider, of hidden states [rows, hidden]."""
        logits = functional.linear(self._norm(hidden, self.weights.norm), self.weights.lm_head)
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def _attention(
        self,
        layer: LayerWeights,
        x: Tensor,
        angles: tuple[Tensor, Tensor],
        plan: AttentionPlan,
        pool: KvPool,
        index: int,
    ) -> Tensor:
        config = self.config
        qkv = functional.linear(x, layer.qkv, layer.qkv_bias)
        qkv = qkv.view(-1, config.num_heads + 2 * config.num_kv_heads, config.head_dim)
        q, k, v = qkv.split([config.num_heads, config.num_kv_heads, config.num_kv_heads], dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = self._norm(q, layer.q_norm), self._norm(k, layer.k_norm)
        q, k = rotate(q, *angles), rotate(k, *angles)
        out = attend(q, k, v, pool, index, plan, config.windows[index], self._kernel)
        return functional.linear(out, layer.o, layer.o_bias)

    def _mlp(self, layer: LayerWeights, x: Tensor) -> Tensor:
        gate, up = functional.linear(x, layer.gate_up, layer.gate_up_bias).chunk(2, dim=-1)
        return functional.linear(self._act(gate).mul_(up), layer.down, layer.down_bias)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """RMS norm in float32; the result is rounded before it is weighted, as `transformers` does it."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        scale = (wide * wide).mean(-1, keepdim=True).add_(self.config.rms_norm_eps).rsqrt_()
        return (wide * scale).to(x.dtype) * weight
