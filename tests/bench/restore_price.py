"""What the price of a restore loses against who knows everything: regret over mixed lengths and throttled tiers.

`python -m tests.bench.restore_price` plans 10,000 prompts of each model, whose chunks lie on host, disk and Redis in
this order. Every `--every` prompts or so a tier is throttled to between 100% and 0.3% of its bandwidth, or is itself
again; each transfer and step varies by `--noise`, and one transfer in a hundred takes ten times as long. The planner is
told nothing of it but what transfers and steps took. Exact and repeatable; about 20 s.

Regret: expected time of what was planned ÷ that of the better of restoring all and recomputing all, less 1; negative
where a part was better than either. *always restore* and *always recompute* stand beside it.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log
from typing import Final

from rich.console import Console
from rich.table import Table

from policies.restore_price import PrefillModel, RestorableChunk, RestorePlan, TierSpeed, attended, plan_restore
from policies.types import Tier

TIERS: Final = {Tier.HOST: (20e-6, 12e9), Tier.DISK: (200e-6, 2e9), Tier.REDIS: (500e-6, 1.5e9)}
"""Round trip in seconds, bytes/s, when nothing throttles."""
_LEAST_SHARE: Final = 0.003
"""Of a tier's bandwidth that is left when it is throttled most."""
_STEP_TOKENS: Final = 8192
_CHUNK_TOKENS: Final = 64


@dataclass(frozen=True)
class Machine:
    """A model on a device: bytes of KV a token, and the coefficients of its steps."""

    name: str
    token_bytes: int
    step_s: float
    token_s: float
    pair_s: float

    def prefill_s(self, n_tokens: int, context: int) -> float:
        steps = -(-n_tokens // _STEP_TOKENS)
        return steps * self.step_s + n_tokens * self.token_s + attended(n_tokens, context) * self.pair_s


MACHINES: Final = (
    Machine("Qwen3-0.6B, 2 CPU cores", 114_688, 20e-3, 1.2e-3, 1.2e-7),
    Machine("Qwen3-0.6B, H200", 114_688, 4e-3, 2.5e-6, 2.5e-10),
    Machine("Qwen2.5-7B, A100", 57_344, 8e-3, 88e-6, 1.4e-9),
    Machine("Llama-3.1-8B, H200", 131_072, 6e-3, 31e-6, 5e-10),
)


class World:
    """How fast everything is now, and how long it takes this time."""

    def __init__(self, machine: Machine, noise: float, seed: int, every: int = 200) -> None:
        self.machine = machine
        self._every = every
        self.speeds = dict(TIERS)
        self._noise = noise
        self._random = random.Random(seed)

    def prompt(self) -> tuple[int, list[RestorableChunk]]:
        """Prompt tokens, and the chunks of it that are somewhere: a part on each tier, or none."""
        n_tokens = int(exp(self._random.uniform(5.0, 10.4)))  # 150 to 33,000
        n_chunks = int(self._random.uniform(0.3, 1.0) * (n_tokens - 1) / _CHUNK_TOKENS)
        cuts = sorted(self._random.choice((0, n_chunks, self._random.randint(0, n_chunks))) for _ in range(2))
        tiers = [Tier.HOST] * cuts[0] + [Tier.DISK] * (cuts[1] - cuts[0]) + [Tier.REDIS] * (n_chunks - cuts[1])
        size = _CHUNK_TOKENS * self.machine.token_bytes
        return n_tokens, [RestorableChunk(_CHUNK_TOKENS, size, tier) for tier in tiers]

    def change(self) -> None:
        """Now and then another tier is throttled."""
        if self._random.random() < 1 / self._every:
            tier = self._random.choice(list(TIERS))
            rtt, bandwidth = TIERS[tier]
            share = 1.0 if self._random.random() < 0.25 else exp(self._random.uniform(log(_LEAST_SHARE), 0.0))
            self.speeds[tier] = rtt, bandwidth * share

    def transfer_s(self, tier: Tier, n_bytes: int) -> float:
        rtt, bandwidth = self.speeds[tier]
        return rtt + n_bytes / bandwidth

    def this_time(self, seconds: float, *, strays: bool = True) -> float:
        stray = 10.0 if strays and self._random.random() < 0.01 else 1.0
        return seconds * exp(self._random.gauss(0.0, self._noise)) * stray


def expected_s(world: World, chunks: Sequence[RestorableChunk], n_tokens: int) -> float:
    """For restoring these chunks and computing the rest."""
    restored = sum(chunk.tokens for chunk in chunks)
    wait = sum(world.transfer_s(tier, size) for tier, size in by_tier(chunks).items())
    return wait + world.machine.prefill_s(n_tokens - restored, restored)


def by_tier(chunks: Sequence[RestorableChunk]) -> dict[Tier, int]:
    sizes: dict[Tier, int] = {}
    for chunk in chunks:
        sizes[chunk.tier] = sizes.get(chunk.tier, 0) + chunk.bytes
    return sizes


@dataclass
class Regrets:
    """One for each prompt that had something to restore."""

    priced: list[float]
    restore: list[float]
    recompute: list[float]


def run(machine: Machine, n_prompts: int, noise: float, seed: int, every: int = 200) -> Regrets:
    """`n_prompts` half a second apart."""
    world = World(machine, noise, seed, every)
    # Believed at first: the tiers as they are sold, and half the speed of the device.
    speeds = {tier: TierSpeed(rtt, bandwidth) for tier, (rtt, bandwidth) in TIERS.items()}
    prefill = PrefillModel(0.5 / machine.token_s, step_tokens=_STEP_TOKENS)
    regrets = Regrets([], [], [])
    for number in range(n_prompts):
        now = 0.5 * number
        world.change()
        n_tokens, chunks = world.prompt()
        plan = plan_restore(chunks, n_tokens, speeds, prefill, now)
        if chunks:
            restore, recompute = expected_s(world, chunks, n_tokens), expected_s(world, [], n_tokens)
            better = min(restore, recompute)
            planned = expected_s(world, chunks[: plan.n_chunks], n_tokens)
            regrets.priced.append(planned / better - 1)
            regrets.restore.append(restore / better - 1)
            regrets.recompute.append(recompute / better - 1)
        learn(world, plan, chunks, n_tokens, speeds, prefill, now)
    return regrets


def learn(  # noqa: PLR0917 - what a worker knows after a request
    world: World,
    plan: RestorePlan,
    chunks: Sequence[RestorableChunk],
    n_tokens: int,
    speeds: dict[Tier, TierSpeed],
    prefill: PrefillModel,
    now: float,
) -> None:
    """What a worker would tell after having done as planned."""
    for tier, size in by_tier(chunks[: plan.n_chunks]).items():
        speeds[tier].observe(size, world.this_time(world.transfer_s(tier, size)), now)
    if plan.probe is not None:
        chunk = chunks[plan.probe]
        speeds[chunk.tier].observe(chunk.bytes, world.this_time(world.transfer_s(chunk.tier, chunk.bytes)), now)
    done = plan.n_tokens
    while done < n_tokens:
        step = min(_STEP_TOKENS, n_tokens - done)
        seconds = world.this_time(world.machine.prefill_s(step, done), strays=False)
        prefill.observe(step, attended(step, done), seconds)
        done += step


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that `share` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def main() -> None:
    """Run every machine and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=10_000)
    parser.add_argument("--noise", type=float, default=0.1, help="sigma of the logarithm of times")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--every", type=int, default=200, help="prompts between two changes of a tier, on average")
    options = parser.parse_args()
    table = Table(title="regret against the better of restoring all and recomputing all: mean; p50, p90, p99")
    for column in ("model", "priced", "always restore", "always recompute"):
        table.add_column(column, justify="left" if column == "model" else "right")
    for machine in MACHINES:
        regrets = run(machine, options.prompts, options.noise, options.seed, options.every)
        table.add_row(machine.name, *map(_row, (regrets.priced, regrets.restore, regrets.recompute)))
    Console(width=130).print(table)


def _row(values: Sequence[float]) -> str:
    marks = ", ".join(f"{percentile(values, share):+.1%}" for share in (0.5, 0.9, 0.99))
    return f"{sum(values) / len(values):+.1%}; {marks}"


if __name__ == "__main__":
    main()
