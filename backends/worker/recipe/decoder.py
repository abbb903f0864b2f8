"""The decoder that is trained: Qwen3's shape in plain torch, its parameters named as in the published format.

The state dict is the shipped file: no conversion. Weights are float32 while they train; `torch.autocast` does the
matrix products in bfloat16.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of a decoder. `heads` share `kv_heads`; all norms use `rms_norm_eps`."""

    vocab_size: int = 4096
    hidden_size: int = 256
    layers: int = 6
    heads: int = 8
    kv_heads: int = 4
    head_dim: int = 32
    intermediate_size: int = 640
    max_positions: int = 8192
    rope_theta: float = 500_000.0
    rms_norm_eps: float = 1e-6

    def to_hf_config(self, *, eos_token_id: int, pad_token_id: int) -> dict[str, object]:
        """`config.json` of a Qwen3ForCausalLM with these sizes."""
        return {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "max_position_embeddings": self.max_positions,
            "rope_theta": self.rope_theta,
            "rms_norm_eps": self.rms_norm_eps,
            "attention_bias": False,
            "attention_dropout": 0.0,
            "initializer_range": 0.02,
            "tie_word_embeddings": True,
            "use_cache": True,
            "use_sliding_window": False,
            "sliding_window": None,
            "bos_token_id": None,
            "eos_token_id": eos_token_id,
            "pad_token_id": pad_token_id,
            "torch_dtype": "bfloat16",
        }


class RMSNorm(nn.Module):
    """Root mean square norm over the last dimension, in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., size)."""
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps) * self.weight).to(x.dtype)


def rotary_table(shape: Shape, length: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of positions 0..length-1, each (length, head_dim), halves repeated as Hugging Face does."""
    exponents = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
    angles = torch.arange(length, dtype=torch.float32)[:, None] * shape.rope_theta**-exponents
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each head's vector by its position's angles. x: (batch, heads, length, head_dim)."""
    first, second = x.float().chunk(2, dim=-1)
    return (x * cos + torch.cat((-second, first), dim=-1) * sin).to(x.dtype)


class Attention(nn.Module):
    """Grouped-query attention with normed queries and keys."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.q_proj = nn.Linear(shape.hidden_size, shape.heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(shape.hidden_size, shape.kv_heads * shape.head_dim, bias=False)
        self.v_proj = nn.Linear(shape.hidden_size, shape.kv_heads * shape.head_dim, bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.head_dim, shape.hidden_size, bias=False)
        self.q_norm = RMSNorm(shape.head_dim, shape.rms_norm_eps)
        self.k_norm = RMSNorm(shape.head_dim, shape.rms_norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x: (batch, length, hidden); cos and sin: (length, head_dim)."""
        batch, length, _ = x.shape
        heads = (batch, length, -1, self.shape.head_dim)
        queries = rotate(self.q_norm(self.q_proj(x).view(heads)).transpose(1, 2), cos, sin)
        keys = rotate(self.k_norm(self.k_proj(x).view(heads)).transpose(1, 2), cos, sin)
        values = self.v_proj(x).view(heads).transpose(1, 2)
        shared = self.shape.heads // self.shape.kv_heads
        keys, values = keys.repeat_interleave(shared, dim=1), values.repeat_interleave(shared, dim=1)
        mixed = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        out: Tensor = self.o_proj(mixed.transpose(1, 2).reshape(batch, length, -1))
        return out


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x: (batch, length, hidden)."""
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    """One decoder layer: norms before attention and before the MLP."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.self_attn = Attention(shape)
        self.mlp = MLP(shape)
        self.input_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x: (batch, length, hidden); cos and sin: (length, head_dim)."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Trunk(nn.Module):
    """Embeddings, layers, last norm: what the published format keeps under `model.`."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)


class Decoder(nn.Module):
    """The whole model; its output weights are its embeddings."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.model = Trunk(shape)
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                residual = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(weight, std=0.02 / (2 * shape.layers) ** 0.5 if residual else 0.02)

    def forward(self, tokens: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Logits (batch, length, vocab); `cos` and `sin` are the rows of `rotary_table` for the tokens' positions."""
        x = self.model.embed_tokens(tokens)
        for layer in self.model.layers:
            x = layer(x, cos, sin)
        return functional.linear(self.model.norm(x), self.model.embed_tokens.weight)
