"""Eviction policies on recorded traces: what a store of each size finds again under each of them.

`python -m tests.bench.eviction` replays the Mooncake conversation trace and coding-agent sessions through one store of
1, 3, 10, 30 and 60% of the working set. A request finds the longest prefix of chunks that is here; what it lacks is
stored afterwards. Exact and repeatable; about two minutes on one core.

*hits*: prompt tokens found ÷ prompt tokens. *slow*: requests that must compute more than `--tail` tokens. *saved*:
prefill time saved ÷ prefill time, where later tokens cost more. *best*: whoever is asked for last goes first, and
what would go at once is not stored; nobody can know that, and no policy finds more.
"""

from __future__ import annotations

import argparse
import json
from bisect import bisect_right
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf
from pathlib import Path
from typing import Final, NamedTuple

from rich.console import Console
from rich.table import Table

from gateway.replay.traces import read_trace
from policies.eviction import EVICTION_POLICIES, make_eviction

TRACES: Final = Path(__file__).parents[1] / "data/traces"
CAPACITIES: Final = (0.01, 0.03, 0.10, 0.30, 0.60)
BEST: Final = "best"
_TOKEN_BYTES: Final = 57_344
"""Qwen2.5-7B in bf16: 2 × 28 layers × 4 heads × 128 × 2 bytes."""
_TOKEN_S: Final = 28e-6
_CONTEXT_S: Final = 0.75e-9
"""Seconds a token and a token of context: half of an H200's peak for that model."""


class Chunk(NamedTuple):
    """A chunk of a chain; equal keys are equal prefixes."""

    key: bytes
    parent: bytes | None
    cost: float


@dataclass(frozen=True)
class Workload:
    """Requests as chains of whole chunks of `chunk_tokens`."""

    name: str
    chunk_tokens: int
    requests: Sequence[tuple[float, int, Sequence[Chunk]]]
    """When; prompt tokens; chunks."""

    @property
    def working_set(self) -> int:
        return len({chunk.key for _, _, chunks in self.requests for chunk in chunks})


@dataclass(frozen=True)
class Outcome:
    """Shares; see the module."""

    hits: float
    slow: float
    saved: float


def load(path: Path, name: str, group: int, limit: int | None = None) -> Workload:
    """The trace at `path` with `group` blocks a chunk."""
    numbers: dict[tuple[int, tuple[int, ...]], int] = {}
    chunks: dict[int, Chunk] = {}
    requests = []
    chunk_tokens = 0
    for row in read_trace(path, limit, session_gap=20.0, max_pause=600.0):
        chunk_tokens = group * row.block_tokens
        chain, number = [], 0
        for index in range(row.input_tokens // chunk_tokens):
            identity = (number, row.block_ids[index * group : (index + 1) * group])
            before, number = number, numbers.setdefault(identity, len(numbers) + 1)
            if number not in chunks:
                cost = prefill_s(index * chunk_tokens, (index + 1) * chunk_tokens)
                chunks[number] = Chunk(number.to_bytes(4), before.to_bytes(4) if before else None, cost)
            chain.append(chunks[number])
        requests.append((row.at, row.input_tokens, chain))
    return Workload(name, chunk_tokens, requests)


def prefill_s(start: int, stop: int) -> float:
    """Seconds to compute the tokens from `start` to `stop` of a prompt."""
    return (stop - start) * (_TOKEN_S + _CONTEXT_S * (start + stop) / 2)


def replay(workload: Workload, policy: str, share: float, tail: int) -> Outcome:
    """One store of `share` of the working set."""
    capacity = int(share * workload.working_set)
    found = best(workload, capacity) if policy == BEST else online(workload, policy, capacity, tail)
    tokens = hits = slow = 0
    seconds = saved = 0.0
    for (_, length, _), n_chunks in zip(workload.requests, found, strict=True):
        cached = n_chunks * workload.chunk_tokens
        tokens += length
        hits += cached
        slow += length - cached > tail
        seconds += prefill_s(0, length)
        saved += prefill_s(0, cached)
    return Outcome(hits / tokens, slow / len(found), saved / seconds)


def online(workload: Workload, policy: str, capacity: int, tail: int) -> list[int]:
    """Chunks found by each request, in a store of so many chunks."""
    size = workload.chunk_tokens * _TOKEN_BYTES
    eviction = make_eviction(policy, tail=prefill_s(0, tail), ttl=1800.0 if policy == "lru_ttl" else None)
    here: set[bytes] = set()
    found = []
    for now, _, chain in workload.requests:
        held = 0
        for chunk in chain:
            if chunk.key not in here:
                break
            eviction.touch(chunk.key, now)
            held += 1
        found.append(held)
        new = chain[held:]
        if held:
            eviction.pin(chain[held - 1].key)
        for key in eviction.expired(now):
            eviction.remove(key)
            here.discard(key)
        for key in eviction.victims((len(here) + len(new) - capacity) * size, now):
            eviction.remove(key)
            here.discard(key)
        for chunk in new[: capacity - len(here)]:
            eviction.admit(chunk.key, size, now, parent=chunk.parent, tenant="", cost=chunk.cost)
            here.add(chunk.key)
        if held:
            eviction.unpin(chain[held - 1].key)
    return found


def best(workload: Workload, capacity: int) -> list[int]:
    """The same under Belady's rule. A parent is asked for whenever its child is, so it keeps to chains by itself."""
    uses: dict[bytes, list[int]] = {}
    for number, (_, _, chain) in enumerate(workload.requests):
        for chunk in chain:
            uses.setdefault(chunk.key, []).append(number)
    here: dict[bytes, float] = {}
    heap: list[tuple[float, int, bytes]] = []  # minus the next use, minus the place in the chain
    found = []
    for number, (_, _, chain) in enumerate(workload.requests):
        held = 0
        while held < len(chain) and chain[held].key in here:
            held += 1
        found.append(held)
        for place, chunk in enumerate(chain):
            later = uses[chunk.key]
            index = bisect_right(later, number)
            upcoming = later[index] if index < len(later) else inf
            here[chunk.key] = upcoming
            heappush(heap, (-upcoming, -place, chunk.key))
        while len(here) > capacity:
            negative, _, key = heappop(heap)
            if here.get(key) == -negative:
                del here[key]
    return found


_taken: Workload


def _take(workload: Workload) -> None:
    global _taken  # noqa: PLW0603 - how a pool's process is given what all its jobs share
    _taken = workload


def _replay(job: tuple[str, float, int]) -> Outcome:
    return replay(_taken, *job)


def main() -> None:
    """Replay everything and print a table a trace."""
    options = _options()
    workloads = [
        load(options.conversation, "Mooncake conversation", 1, options.limit),
        load(options.sessions, "agent sessions", 16, options.limit),
    ]
    policies = [*options.policies.split(","), BEST]
    results: dict[str, dict[str, list[Outcome]]] = {}
    for workload in workloads:
        jobs = [(policy, share, options.tail) for policy in policies for share in CAPACITIES]
        # Handed over once, not with each job: a trace is large.
        with ProcessPoolExecutor(options.processes, initializer=_take, initargs=(workload,)) as pool:
            outcomes = iter(pool.map(_replay, jobs))
            results[workload.name] = {policy: [next(outcomes) for _ in CAPACITIES] for policy in policies}
        show(workload, results[workload.name], options.tail)
    if options.json:
        plain = {name: {p: [vars(o) for o in row] for p, row in rows.items()} for name, rows in results.items()}
        Path(options.json).write_text(json.dumps(plain, indent=1))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = sorted(EVICTION_POLICIES, key=lambda name: (name != "lru", name))
    parser.add_argument("--policies", default=",".join(names), help="default: %(default)s")
    parser.add_argument("--conversation", type=Path, default=TRACES / "mooncake_conversation_2000.jsonl.xz")
    parser.add_argument("--sessions", type=Path, default=TRACES / "agent_sessions_60.compact.jsonl.xz")
    parser.add_argument("--limit", type=int, help="only the first N requests of each")
    parser.add_argument("--tail", type=int, default=8192, help="tokens to compute above which a request is slow")
    parser.add_argument("--processes", type=int, default=1, help="replays at once; results do not differ")
    parser.add_argument("--json", metavar="FILE")
    return parser.parse_args()


def show(workload: Workload, results: dict[str, list[Outcome]], tail: int) -> None:
    """One row a policy, one column a capacity: hits, slow and saved."""
    n_requests, n_chunks = len(workload.requests), workload.working_set
    table = Table(
        title=f"{workload.name}: {n_requests:,} requests, {n_chunks:,} chunks of {workload.chunk_tokens} tokens"
        f" ({n_chunks * workload.chunk_tokens * _TOKEN_BYTES / 1e9:,.0f} GB);"
        f" hits / slow (above {tail:,} tokens) / saved, in %"
    )
    table.add_column("policy")
    for share in CAPACITIES:
        table.add_column(f"{share:.0%}", justify="right")
    for policy, row in results.items():
        table.add_row(policy, *(f"{100 * o.hits:.1f} / {100 * o.slow:.1f} / {100 * o.saved:.1f}" for o in row))
    Console(width=130).print(table)


if __name__ == "__main__":
    main()
