"""A run of equal steps, and how many of them are over at a time. Pure."""

from __future__ import annotations

from backends.simulated.sequence import Sequence


class StepRun:
    """`steps` equal steps from `start`; step i (from 0) ends at `start + (i + 1) * step_s`."""

    __slots__ = ("decoding", "done", "prefilling", "start", "step_s", "steps")

    def __init__(
        self,
        start: float,
        step_s: float,
        steps: int,
        *,
        decoding: bool,
        prefilling: list[tuple[Sequence, int]],
    ) -> None:
        self.start = start
        self.step_s = step_s
        self.steps = steps
        self.done = 0
        self.decoding = decoding
        self.prefilling = prefilling

    def end(self, steps: int) -> float:
        """When so many of its steps are over."""
        return self.start + steps * self.step_s

    def ended_by(self, now: float) -> int:
        """How many steps ended at or before `now`."""
        if self.end(self.steps) <= now:
            return self.steps
        count = int((now - self.start) / self.step_s)
        while count > 0 and self.end(count) > now:
            count -= 1
        while self.end(count + 1) <= now:
            count += 1
        return count
