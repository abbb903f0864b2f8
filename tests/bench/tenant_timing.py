"""Can a tenant tell what another has asked? `python -m tests.bench tenant_timing [--prompts N] [--json FILE]`.

A victim sends secret prompts. Then three kinds of requests are timed, in random order: another tenant sends the same
prompts (what an attacker would do), that tenant sends prompts that nobody sent, and the victim sends its own again, the
positive control: if that does not stand out, the measurement could not have seen a leak. Two-sample Kolmogorov-Smirnov
tests compare the first and the last with prompts that nobody sent. Simulated workers, whose prefill takes as long as
their model of time says, behind a gateway in the same process.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import aiohttp
import uvloop
from rich.console import Console
from rich.table import Table

from backends.simulated.engine import EngineConfig
from backends.simulated.fleet import FleetConfig, SimulatedFleet
from backends.simulated.model_text import EMBEDDED_TOKENIZER
from gateway.app import running
from gateway.config import parse_config
from tests.gateway_fixtures import MODEL, model_text
from tests.tenant_fixtures import KEYS, tenants

WORDS = (EMBEDDED_TOKENIZER / "words.txt").read_text().split()
LENGTH = 1000
"""Words of a prompt."""


@dataclass
class Timing:
    """Seconds to the first token."""

    of_others: list[float]
    of_nobody: list[float]
    of_ones_own: list[float]


def ks(one: Sequence[float], other: Sequence[float]) -> tuple[float, float]:
    """The two-sample Kolmogorov-Smirnov statistic and its asymptotic p-value (Numerical Recipes, 14.3)."""
    a, b = sorted(one), sorted(other)
    distance = max(abs(bisect_right(a, x) / len(a) - bisect_right(b, x) / len(b)) for x in (*a, *b))
    n = len(a) * len(b) / (len(a) + len(b))
    scaled = (math.sqrt(n) + 0.12 + 0.11 / math.sqrt(n)) * distance
    if scaled < 0.2:  # the sum does not converge, and its limit is 1
        return distance, 1.0
    p = 2 * sum((-1) ** (k - 1) * math.exp(-2 * (k * scaled) ** 2) for k in range(1, 101))
    return distance, min(max(p, 0.0), 1.0)


async def measure(n: int, *, speed: float = 1.0, seed: int = 1) -> Timing:
    """`n` requests of each kind, one after the other."""
    sample = random.Random(seed)
    secrets, fresh = ([" ".join(sample.choices(WORDS, k=LENGTH)) for _ in range(n)] for _ in range(2))
    engine = EngineConfig(speed=speed, blocks=20 * n * LENGTH // 16)
    async with SimulatedFleet(2, FleetConfig(model=MODEL, engine=engine), text=model_text()) as fleet:
        workers = ", ".join(
            f"{{name: w{at}, url: '{worker.url}', kv_events: {{endpoint: '{worker.kv_endpoint}'}}}}"
            for at, worker in enumerate(fleet.workers)
        )
        config = parse_config(
            f"listen: {{port: 0}}\nadmin: {{port: null}}\nmodels: [{{name: {MODEL}, tokenizer: embedded}}]\n"
            f"workers: [{workers}]\n{tenants('acme', 'beta')}"
        )
        async with running(config) as (_, port), aiohttp.ClientSession() as http:
            url = f"http://127.0.0.1:{port}/v1/completions"

            async def first_token(tenant: str, prompt: str) -> float:
                body = {"prompt": prompt, "max_tokens": 1, "stream": True}
                started = time.perf_counter()
                async with http.post(url, json=body, headers={"Authorization": f"Bearer {KEYS[tenant]}"}) as response:
                    await response.content.readany()
                    taken = time.perf_counter() - started
                    await response.read()
                return taken

            for prompt in secrets:
                await first_token("acme", prompt)
            timing = Timing([], [], [])
            for secret, new in zip(secrets, fresh, strict=True):
                # The victim's own comes last: it must not be what warms anything for the attacker.
                kinds = [(timing.of_others, "beta", secret), (timing.of_nobody, "beta", new)]
                sample.shuffle(kinds)
                for times, tenant, prompt in (*kinds, (timing.of_ones_own, "acme", secret)):
                    times.append(await first_token(tenant, prompt))
            return timing


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=100, metavar="N", help="requests of each kind")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every time too")
    options = parser.parse_args(arguments)
    timing = uvloop.run(measure(options.prompts))
    table = Table("prompts that", "median TTFT", "KS distance", "p", title=f"{options.prompts} of each")
    table.add_row("nobody sent", f"{median(timing.of_nobody) * 1e3:.2f} ms", "", "")
    for name, times in (
        ("another tenant sent", timing.of_others),
        ("one sent oneself (control)", timing.of_ones_own),
    ):
        distance, p = ks(times, timing.of_nobody)
        table.add_row(name, f"{median(times) * 1e3:.2f} ms", f"{distance:.3f}", f"{p:.2g}")
    Console().print(table)
    if options.json:
        options.json.write_text(json.dumps(vars(timing)))


if __name__ == "__main__":
    main()
