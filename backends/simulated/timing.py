"""How long one step of the engine takes: pure functions of what the step computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class StepTiming(Protocol):
    """A model of the engine's speed, in seconds of its own life (before any speed-up)."""

    @property
    def one_at_a_time(self) -> bool:
        """Whether sequences are served strictly one after the other, without batching."""
        ...

    def step_s(self, new_tokens: int, *, decoding: bool, kv_used: float) -> float:
        """Seconds of a step that prefills `new_tokens` with `kv_used` (0..1) of the pool in use."""
        ...


@dataclass(frozen=True, slots=True)
class PublishedTiming:
    """The timing model published with Dynamo's mocker: quadratic prefill, decode by KV occupancy.

    Coefficients are in milliseconds; `new_tokens` is the sum over the batch, cached tokens cost nothing.
    """

    one_at_a_time: bool = False
    prefill_square: float = 4.209989e-7
    prefill_linear: float = 1.518344e-2
    prefill_constant: float = 16.50142
    decode_square: float = -25.74
    decode_linear: float = 54.01
    decode_constant: float = 5.74
    decode_least: float = 1.0

    def prefill_ms(self, new_tokens: int) -> float:
        """Milliseconds to prefill `new_tokens` in one batch, 0 when everything was cached."""
        if new_tokens == 0:
            return 0.0
        return (self.prefill_square * new_tokens + self.prefill_linear) * new_tokens + self.prefill_constant

    def decode_ms(self, kv_used: float) -> float:
        """Milliseconds of one decode step at this fraction of the KV pool in use."""
        curve = (self.decode_square * kv_used + self.decode_linear) * kv_used + self.decode_constant
        return max(self.decode_least, curve)

    def step_s(self, new_tokens: int, *, decoding: bool, kv_used: float) -> float:
        """Prefill and decode of one step, added up."""
        decode = self.decode_ms(kv_used) if decoding else 0.0
        return (self.prefill_ms(new_tokens) + decode) / 1000


@dataclass(frozen=True, slots=True)
class LinearPrefill:
    """First in, first out prefill at a constant rate; decoding is free. What routing studies compare with."""

    tokens_per_s: float
    one_at_a_time: bool = True

    def step_s(self, new_tokens: int, *, decoding: bool, kv_used: float) -> float:  # noqa: ARG002 - one signature for all timings
        """Seconds for `new_tokens` at the constant rate."""
        return new_tokens / self.tokens_per_s
