"""Rotary position embeddings: angles of a step's positions, and their use on queries and keys.

Every angle depends on its own position alone, so that what is written into the KV pool is the same however a sequence
was cut into chunks. For the dynamic type that means: position p uses the base for a sequence of p + 1 tokens, as in
`transformers` when a text grows token by token with its cache. (Its forward pass over a whole text that is longer
than `max_position_embeddings` turns all positions by the base of the last one, which no cache could keep.)

Angles are computed in float32, as `transformers` computes them, then rounded to the model's type.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from backends.worker.model.rope_config import RopeConfig, RopeType


class Rope:
    """The angles of one model."""

    def __init__(self, config: RopeConfig, head_dim: int, positions: int, device: torch.device) -> None:
        """`positions` is the configuration's `max_position_embeddings`."""
        self._config = config
        self._head_dim = head_dim
        self._positions = positions
        self._frequencies = inverse_frequencies(config, head_dim).to(device)
        self._scale = attention_factor(config)

    def __call__(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosines and sines of `positions` [T], each [T, 1, head_dim], the second half equal to the first."""
        frequencies = self._frequencies
        if self._config.type is RopeType.DYNAMIC:
            frequencies = self._dynamic_frequencies(positions)
        angles = positions.to(torch.float32)[:, None] * frequencies
        angles = torch.cat((angles, angles), dim=-1)[:, None, :]
        return (angles.cos() * self._scale).to(dtype), (angles.sin() * self._scale).to(dtype)

    def _dynamic_frequencies(self, positions: Tensor) -> Tensor:
        """[T, head_dim / 2]. "NTK-aware" scaling by the sequence's length so far."""
        factor, size = self._config.factor, self._head_dim
        length = (positions + 1).clamp(min=self._positions).to(torch.float32)
        stretch = (factor * length / self._positions) - (factor - 1)
        base = self._config.theta * stretch ** (size / (size - 2))
        return 1.0 / (base[:, None] ** _exponents(size, positions.device))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """`x` [T, heads, head_dim] turned by its positions' angles: pairs are (i, i + head_dim / 2), as in Llama."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def inverse_frequencies(config: RopeConfig, head_dim: int) -> Tensor:
    """[head_dim / 2], radians per position, float32."""
    powers = config.theta ** _exponents(head_dim)
    plain = 1.0 / powers
    if config.type is RopeType.LINEAR:
        return plain / config.factor
    if config.type is RopeType.LLAMA3:
        return _llama3(config, plain)
    if config.type is RopeType.YARN:
        return _yarn(config, powers, head_dim)
    return plain


def attention_factor(config: RopeConfig) -> float:
    """What sines and cosines are multiplied with (YaRN, section 3.4 of arXiv:2309.00071; 1 for other types)."""
    if config.type is not RopeType.YARN:
        return 1.0
    if config.attention_factor is not None:
        return config.attention_factor
    if config.mscale and config.mscale_all_dim:
        return _mscale(config.factor, config.mscale) / _mscale(config.factor, config.mscale_all_dim)
    return _mscale(config.factor, 1.0)


def _exponents(head_dim: int, device: torch.device | None = None) -> Tensor:
    return torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim


def _mscale(factor: float, weight: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def _llama3(config: RopeConfig, plain: Tensor) -> Tensor:
    """Long waves are stretched by `factor`, short ones not at all, those between by a weighted mean."""
    wavelengths = 2 * math.pi / plain
    weight = (config.original_positions / wavelengths - config.low_freq_factor) / (
        config.high_freq_factor - config.low_freq_factor
    )
    mean = (1 - weight) * plain / config.factor + weight * plain
    long = wavelengths > config.original_positions / config.low_freq_factor
    short = wavelengths < config.original_positions / config.high_freq_factor
    return torch.where(long, plain / config.factor, torch.where(short, plain, mean))


def _yarn(config: RopeConfig, powers: Tensor, head_dim: int) -> Tensor:
    """A ramp over the dimensions from unstretched frequencies to stretched ones (arXiv:2309.00071, section 3.2)."""
    low = _dimension_of(config.beta_fast, config, head_dim)
    high = _dimension_of(config.beta_slow, config, head_dim)
    if config.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001  # a step instead of a ramp
    ramp = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    plain = 1 - ramp
    return 1.0 / (config.factor * powers) * (1 - plain) + 1.0 / powers * plain


def _dimension_of(turns: float, config: RopeConfig, head_dim: int) -> float:
    """The dimension whose frequency makes so many turns over the original positions."""
    return (head_dim * math.log(config.original_positions / (turns * 2 * math.pi))) / (2 * math.log(config.theta))
