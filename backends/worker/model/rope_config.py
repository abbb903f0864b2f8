"""Rotary position embeddings as a configuration describes them, in its newer spelling and in its older one."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from backends.worker.model.config_fields import Fields, UnsupportedModelError


class RopeType(StrEnum):
    """How angles are stretched for contexts longer than those of the training."""

    DEFAULT = "default"
    LINEAR = "linear"
    DYNAMIC = "dynamic"
    LLAMA3 = "llama3"
    YARN = "yarn"


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """What the angles depend on. Fields beyond `theta` have meaning for some types only."""

    type: RopeType = RopeType.DEFAULT
    theta: float = 10_000.0
    factor: float = 1.0
    original_positions: int = 0
    """Positions the model was trained on before it was stretched."""
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    attention_factor: float | None = None
    """YaRN: what sines and cosines are multiplied with; None: from `factor` and the two below."""
    mscale: float | None = None
    mscale_all_dim: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True

    def max_length(self, positions: int) -> int:
        """The longest sequence the angles are made for, where the configuration says `positions`."""
        if self.type in {RopeType.LINEAR, RopeType.DYNAMIC}:
            return int(positions * self.factor)
        if self.type is RopeType.YARN:
            return max(positions, int(self.original_positions * self.factor))
        return positions

    @classmethod
    def parse(cls, fields: Fields, positions: int) -> RopeConfig:
        """From `rope_parameters`, or `rope_scaling` and `rope_theta`. Raises `UnsupportedModelError`."""
        old, new = fields.raw("rope_scaling"), fields.raw("rope_parameters")
        name, given = ("rope_scaling", old) if old else ("rope_parameters", new or {})
        if not isinstance(given, dict):
            raise UnsupportedModelError(name, given, "an object")
        rope = Fields(given, prefix=f"{name}.")
        theta = fields.number("rope_theta", 10_000.0)
        _no_partial_rotation(fields)
        _no_partial_rotation(rope)
        original = rope.optional_size("original_max_position_embeddings")
        original = fields.optional_size("original_max_position_embeddings") or original or positions
        parsed = cls(
            type=_type(rope),
            theta=rope.number("rope_theta", theta),
            original_positions=original,
            attention_factor=rope.optional_number("attention_factor"),
            mscale=rope.optional_number("mscale"),
            mscale_all_dim=rope.optional_number("mscale_all_dim"),
            beta_fast=rope.number("beta_fast", 32.0),
            beta_slow=rope.number("beta_slow", 1.0),
            truncate=rope.flag("truncate", default=True),
            **_scaling(rope, positions, original),
        )
        for key in sorted(set(given) - rope.read):
            raise rope.unsupported(key, given[key], "no such field")
        return parsed


def _type(rope: Fields) -> RopeType:
    older = rope.raw("type", "default")
    value = rope.raw("rope_type", older)
    try:
        return RopeType(value)
    except ValueError as error:
        raise rope.unsupported("rope_type", value, ", ".join(RopeType)) from error


def _scaling(rope: Fields, positions: int, original: int) -> dict[str, Any]:
    """The factors, which are required where the type uses them."""
    rope_type = _type(rope)
    factor = rope.optional_number("factor")
    low, high = rope.optional_number("low_freq_factor"), rope.optional_number("high_freq_factor")
    if rope_type is RopeType.DEFAULT:
        return {}
    if factor is None and rope_type is RopeType.YARN:
        factor = positions / original
    if factor is None:
        raise rope.unsupported("factor", None, "a number above 0")
    if rope_type is not RopeType.LLAMA3:
        return {"factor": factor}
    if low is None or high is None or high <= low:
        raise rope.unsupported("high_freq_factor", high, "a number above low_freq_factor, which is given too")
    return {"factor": factor, "low_freq_factor": low, "high_freq_factor": high}


def _no_partial_rotation(fields: Fields) -> None:
    value = fields.raw("partial_rotary_factor")
    if value not in (None, 1):
        raise fields.unsupported("partial_rotary_factor", value, "1: every head is rotated as a whole")
