"""What an exact hit costs: `python -m tests.bench response_cache [--entries N]`.

Microseconds of CPU time, median of several rounds: the key of a request as it comes from the parser, the lookup in
memory that finds and checks its answer, and both together, for short and long requests and answers; the check of a body
before its answer is kept; a hit on disk; keys of bodies of some megabytes. Then bytes of memory for each entry.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from cache.response_cache import ResponseCache
from cache.response_entry import EntryKeys, decode_entry, encode_entry
from cache.response_key import ResponseKey, is_unambiguous, response_key
from cache.response_stores import ResponseStores, open_response_cache
from cache.small_store import ENTRY_BYTES
from policies.eviction import EVICTION_POLICIES
from policies.response_freshness import FreshnessRules
from policies.types import Tier
from tests.bench.clock import Effort, repeated, without_collector
from tests.response_fixtures import answer, in_memory

SCOPE = bytes(32)
RULES = FreshnessRules(ttl=3600)
EFFORT = Effort(rounds=9, round_us=5_000.0)


def chat(n_chars: int, number: int = 0) -> dict[str, Any]:
    """A request of about so many bytes: a system prompt, some turns, one tool."""
    chance = random.Random(number)
    words = "".join(chance.choices("etaoin shrdlu", k=n_chars))
    turns = 6
    return {
        "model": "llama",
        "temperature": 0,
        "max_tokens": 200,
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [
            {"role": "system" if at == 0 else "user" if at % 2 else "assistant", "content": words[at::turns]}
            for at in range(turns)
        ],
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "search",
                    "parameters": {"type": "object", "properties": {"query": {"type": "string"}}},
                },
            }
        ],
    }


def key_of(request: dict[str, Any], n_bytes: int = 0) -> ResponseKey:
    return response_key(SCOPE, "llama", "openai", "/v1/chat/completions", request, n_bytes=n_bytes)


def microseconds(work: Callable[[], object]) -> float:
    with without_collector():
        return repeated(work, EFFORT)


def hits(cache: ResponseCache, n_chars: int, n_body: int) -> None:
    request = chat(n_chars)
    body = orjson.dumps(request)
    key = key_of(request)
    entry = answer(cache.begin(), body=bytes(n_body), headers=(("x-request-id", "1"),))
    assert cache.keep(key, entry)
    frame = encode_entry(key, entry)

    def hit() -> None:
        assert cache.lookup(key_of(request, len(body)), RULES) is not None

    name = f"{len(body):,} B request, {n_body:,} B answer"
    steps: list[Callable[[], object]] = [
        lambda: key_of(request, len(body)),
        lambda: cache.lookup(key, RULES),
        hit,
        lambda: decode_entry(key, frame),
        lambda: cache.keep(key, entry),
        lambda: is_unambiguous(body),
    ]
    print(f"{name:<40}" + "".join(f"{microseconds(step):>10.1f}" for step in steps))


def disk() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for title, keys in (("disk", None), ("disk, encrypted", EntryKeys(bytes(32)))):
            cache = open_response_cache(ResponseStores(disk=Path(folder) / title, disk_bytes=64 << 20), keys)
            key = key_of(chat(4_000))
            assert cache.keep(key, answer(cache.begin(), body=bytes(2_000)))
            assert cache.flush()
            taken = microseconds(partial(cache.lookup_slower, key, RULES))
            print(f"{title + ', hit':<40}{taken:>10.1f}")
            cache.close()


def memory_per_entry(n: int, n_body: int) -> None:
    tracemalloc.start()
    cache = in_memory(1 << 30)
    stamp = cache.begin()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(n):
        key = response_key(SCOPE, "llama", "openai", "/v1/chat/completions", {"number": number})
        cache.keep(key, answer(stamp, body=bytes(n_body)))
    held = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    counted = cache.stores()[Tier.HOST].bytes / n
    print(f"{f'{n:,} answers of {n_body:,} B':<40}{held / n:>10.0f} bytes each; counted as {counted:.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=20_000)
    entries = parser.parse_args().entries
    cache = in_memory(256 << 20)
    print(f"{'µs':<40}" + "".join(f"{name:>10}" for name in ("key", "lookup", "hit", "decode", "keep", "check")))
    for n_chars, n_body in ((200, 500), (3_500, 2_000), (3_500, 60_000), (60_000, 2_000)):
        hits(cache, n_chars, n_body)
    disk()
    for megabytes in (1, 10):
        request = {"messages": [{"role": "user", "content": "x" * (megabytes << 20)}]}
        taken = microseconds(partial(key_of, request, megabytes << 20))
        print(f"{f'key of {megabytes} MiB':<40}{taken:>10.0f}")
    memory_per_entry(entries, 2_000)
    print(f"({ENTRY_BYTES} bytes are counted besides the frame, for any of {len(EVICTION_POLICIES)} policies)")


if __name__ == "__main__":
    main()
