"""Muon for the layers' matrices, AdamW for the rest.

Muon (Keller Jordan et al., 2024): the momentum of a matrix is replaced by the nearest orthogonal matrix, found by a
few Newton-Schulz steps. For a model of this size it needs about half the tokens that AdamW needs.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients of the quintic iteration, as published with Muon."""


def orthogonalize(matrix: Tensor, steps: int = 5) -> Tensor:
    """About U Vᵀ of the singular value decomposition of a (rows, columns) matrix; singular values in 0.7..1.2."""
    a, b, c = NEWTON_SCHULZ
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = (x / (x.norm() + 1e-7)).bfloat16()
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    found: Tensor = (x.T if tall else x).float()
    return found


class Muon:
    """Nesterov momentum, orthogonalized; decoupled weight decay."""

    def __init__(self, weights: list[nn.Parameter], *, momentum: float = 0.95, weight_decay: float = 0.05) -> None:
        self.weights = weights
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.velocities = [torch.zeros_like(weight) for weight in weights]

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Move every weight by its gradient; `rate` is the spectral size of the step for a square matrix."""
        for weight, velocity in zip(self.weights, self.velocities, strict=True):
            if weight.grad is None:
                continue
            velocity.lerp_(weight.grad, 1 - self.momentum)
            update = orthogonalize(weight.grad.lerp(velocity, self.momentum))
            rows, columns = weight.shape
            weight.mul_(1 - rate * self.weight_decay)
            weight.add_(update, alpha=-rate * max(1.0, rows / columns) ** 0.5)


class Optimizer:
    """Both optimizers behind one `step`; `scale` in 0..1 is the schedule's."""

    def __init__(self, model: nn.Module, *, matrix_rate: float = 0.02, other_rate: float = 0.003) -> None:
        matrices = [w for name, w in model.named_parameters() if w.ndim == 2 and "embed" not in name]
        others = [w for name, w in model.named_parameters() if w.ndim != 2 or "embed" in name]
        self.matrix_rate = matrix_rate
        self.other_rate = other_rate
        self.muon = Muon(matrices)
        self.adam = torch.optim.AdamW(others, lr=other_rate, betas=(0.9, 0.98), eps=1e-9, weight_decay=0.0)

    def step(self, scale: float) -> None:
        """One update of every weight, then no gradients."""
        self.muon.step(self.matrix_rate * scale)
        for group in self.adam.param_groups:
            group["lr"] = self.other_rate * scale
        self.adam.step()
        for weight in self.muon.weights:
            weight.grad = None
        self.adam.zero_grad()

    def state_dict(self) -> dict[str, object]:
        """What a checkpoint needs to go on."""
        return {"velocities": self.muon.velocities, "adam": self.adam.state_dict()}

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Take up a checkpoint's state."""
        velocities, adam = state["velocities"], state["adam"]
        assert isinstance(velocities, list)
        assert isinstance(adam, dict)
        self.muon.velocities = velocities
        self.adam.load_state_dict(adam)
