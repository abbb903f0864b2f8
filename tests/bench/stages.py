"""What each stage of a request costs: `python tests/bench/stages.py [--tokenizer deepseek] [--json FILE]`.

Microseconds of CPU on one core for prompts of 200, 2,000 and 8,000 tokens, new and seen before, on the
functions that the gateway runs, in this process and without a network. Medians of repeated batches.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

import uvloop
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[2]))

from backends.http1 import parse_request_head, request_heads, response_heads
from backends.simulated.model_text import EMBEDDED_TOKENIZER
from cache.block_hash import ChainKey, extend_chain, root_hash
from cache.prompt_blocks import PromptBlockCache, PromptScan
from cache.tokenizer import Tokenizer
from gateway.api_keys import digest_of
from gateway.calls import read_call
from gateway.routes import RouteTable
from gateway.tenancy import Tenancy, TenantRules
from policies.routing import Prompt
from policies.tenant import Caps, Rates, TenantPolicy
from policies.types import BlockHash, TokenIds, WorkerId
from tests.bench.clock import Effort, once_each, repeated, without_collector
from tests.bench.processes import on_core
from tests.bench.rig import BLOCK_SIZE, Rig
from tests.bench.workload import MODEL, chars_per_token, chat_body, deepseek, strange, text_of

SIZES = (200, 2_000, 8_000)
WORKERS = 8
ANSWER_BODY = (
    b'{"id":"chatcmpl-1","object":"chat.completion","created":1767225600,"model":"bench","choices":[{"index":0,'
    b'"message":{"role":"assistant","content":"' + b"All is well. " * 20 + b'"},"finish_reason":"stop"}],"usage":'
    b'{"prompt_tokens":200,"completion_tokens":60,"total_tokens":260}}'
)
ANSWER_HEAD = (
    b"HTTP/1.1 200 OK\r\ndate: Thu, 01 Jan 2026 00:00:00 GMT\r\nserver: uvicorn\r\n"
    b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(ANSWER_BODY)
)
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ndate: Thu, 01 Jan 2026 00:00:00 GMT\r\nserver: uvicorn\r\n"
    b"content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
_EVENT = b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","choices":[{"delta":{"content":" ok"}}]}\n\n'
CHUNK = b"%x\r\n%b\r\n" % (len(_EVENT), _EVENT)
LAST_CHUNK = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
_QUESTION = "And what would it cost to bring two more bags on the second flight?"


@dataclass
class Row:
    """One stage."""

    group: str
    name: str
    microseconds: dict[int, float] = field(default_factory=dict)
    """By tokens of the prompt."""


def request_of(body: bytes) -> bytes:
    """As the official Python client sends it."""
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:8000\r\nAccept-Encoding: gzip, deflate\r\n"
        b"Connection: keep-alive\r\nAccept: application/json\r\nContent-Type: application/json\r\n"
        b"User-Agent: OpenAI/Python 2.8.0\r\nX-Stainless-Lang: python\r\n"
        b"X-Stainless-Package-Version: 2.8.0\r\nX-Stainless-OS: Linux\r\nX-Stainless-Arch: x64\r\n"
        b"X-Stainless-Runtime: CPython\r\nX-Stainless-Runtime-Version: 3.11.2\r\n"
        b"Authorization: Bearer sk-bench\r\nX-Stainless-Async: false\r\n"
        b"x-stainless-retry-count: 0\r\nx-stainless-read-timeout: 600\r\nContent-Length: %d\r\n\r\n%b"
        % (len(body), body)
    )


CHAT = RouteTable().find(b"/v1/chat/completions", b"POST")


class Stages:
    """Measures every stage for one length of prompt after the other."""

    def __init__(self, tokenizer: Tokenizer, effort: Effort, *, warm_up_chars: int = 1_000_000) -> None:
        self.tokenizer = tokenizer
        self.effort = effort
        self.rows: dict[tuple[str, str], Row] = {}
        self._sample = random.Random(1)
        self._warm_up_chars = warm_up_chars
        self._size = 0
        self._chars = 0

    async def measure(self, sizes: Sequence[int]) -> list[Row]:
        """All rows, in the order of a request's life."""
        with without_collector():
            # fastokens is slow on its first megabyte.
            self.tokenizer.encode(text_of(self._warm_up_chars, self._sample), add_special_tokens=False)
            for size in sizes:
                self._size, self._chars = size, int(size * chars_per_token(self.tokenizer))
                self._reading()
                self._tokens()
                self._routing()
                self._forwarding()
                await self._all_of_it()
        return list(self.rows.values())

    def _row(self, group: str, name: str, microseconds: float) -> None:
        self.rows.setdefault((group, name), Row(group, name)).microseconds[self._size] = microseconds

    def _text(self) -> str:
        """A prompt that nobody has seen."""
        return text_of(self._chars, self._sample)

    def _texts(self) -> list[str]:
        return [self._text() for _ in range(self.effort.fresh)]

    def _rendered(self, text: str, question: str = "") -> str:
        return self.tokenizer.render_chat(read_call(CHAT, chat_body(text, question=question)).fields)

    # -- stages by themselves

    def _reading(self) -> None:
        body, effort = chat_body(self._text()), self.effort
        head = request_of(body)[: -len(body)]
        reader = request_heads()
        self._row("read", "head, as this client sent it before", repeated(lambda: reader.read(head, None), effort))
        self._row("read", "head, of a new client", repeated(lambda: parse_request_head(head, None), effort))
        self._row("read", "JSON", repeated(lambda: read_call(CHAT, body), effort))
        fields = read_call(CHAT, body).fields
        self._row("read", "chat template", repeated(lambda: self.tokenizer.render_chat(fields), effort))

    def _tokens(self) -> None:
        tokenizer, effort, key = self.tokenizer, self.effort, ChainKey(MODEL, BLOCK_SIZE)
        cache = PromptBlockCache(tokenizer, max_bytes=256 << 20)

        def start(prompt: str) -> PromptScan:
            return cache.start(key, prompt, add_special_tokens=False)

        def learn(scan: PromptScan) -> PromptScan:
            return cache.finish(scan, cache.encode(scan))

        text = self._text()
        prompt = self._rendered(text)
        learn(start(prompt))
        self._row("tokens", "look up: whole prompt seen", repeated(lambda: start(prompt), effort))
        longer = [self._rendered(text, f"{number}: {_QUESTION}") for number in range(effort.fresh)]
        self._row("tokens", "look up: prefix seen, new message", once_each(start, longer))
        scans = [start(prompt) for prompt in longer]
        self._row("tokens", "  tokenize, hash and store its tail", once_each(learn, scans))
        fresh = [self._rendered(text) for text in self._texts()]
        self._row("tokens", "look up: new prompt", once_each(start, fresh))
        scans = [start(prompt) for prompt in fresh]
        self._row("tokens", "  tokenize, hash and store all of it", once_each(learn, scans))
        texts = self._texts()
        self._row("tokens", "tokenizer alone, known words", once_each(self._encode, texts))
        odd = [strange(text, number) for number, text in enumerate(texts)]
        self._row("tokens", "tokenizer alone, words never seen", once_each(self._encode, odd))
        ids, root = self._encode(text), root_hash(key)
        self._row("tokens", "chain of block hashes", repeated(lambda: extend_chain(root, ids, BLOCK_SIZE), effort))

    def _encode(self, text: str) -> TokenIds:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def _routing(self) -> None:
        effort = self.effort
        rig = Rig("cost", self.tokenizer, n_workers=WORKERS)
        index, fleet = rig.index, rig.fleet
        cache, key = PromptBlockCache(self.tokenizer, max_bytes=256 << 20), ChainKey(MODEL, BLOCK_SIZE)
        clock, first, second = itertools.count(1), WorkerId("w1"), WorkerId("w2")

        def chain(text: str) -> Sequence[BlockHash]:
            scan = cache.start(key, text, add_special_tokens=False)
            return cache.finish(scan, cache.encode(scan)).known.hashes

        def predict(hashes: Sequence[BlockHash], worker: WorkerId = first) -> None:
            now = next(clock) / 1e4
            index.predict(worker, hashes, start=0, now=now, ttl=300.0)

        held = chain(self._text())
        predict(held)
        predict(held, second)
        self._row("route", f"match: held by 2 of {WORKERS} workers", repeated(lambda: index.match(held), effort))
        new = [chain(text) for text in self._texts()]
        self._row("route", "match: held by nobody", once_each(index.match, new))
        cached = {first: self._size // 2, second: self._size // 2}
        prompt, workers = Prompt(self._size, cached), fleet.serving(MODEL)
        reservations = []

        def choose() -> None:
            decision = rig.policy.choose(prompt, [worker.view(2.0) for worker in workers], 0.5)
            lacking = prompt.tokens - decision.cached_tokens
            reservations.append(fleet.reserve(workers[decision.chosen], lacking, 2.0, streams=True))

        def release() -> None:
            fleet.release(reservations.pop(), 3.0)

        for _ in range(16):
            choose()
        choosing = once_each(lambda _: choose(), range(20 * effort.fresh), between=release)
        self._row("route", f"views of {WORKERS} workers, choose, reserve", choosing)
        releasing = once_each(lambda _: release(), range(20 * effort.fresh), between=choose)
        self._row("route", "release", releasing)
        self._row("route", "predict: predicted before", repeated(lambda: predict(held), effort))
        self._row("route", "predict: new", once_each(predict, new))
        rig.close()

    def _forwarding(self) -> None:
        effort = self.effort
        request = request_of(chat_body(self._text()))
        reader = response_heads()
        rig = Rig("round_robin", None, n_workers=1)
        rig.request(request)
        exchange, connection = rig.client.exchange, rig.asked()
        assert exchange is not None, "it has just begun"
        worker = rig.fleet.workers[0]
        pool = exchange.pool
        assert pool is not None, "it has been sent"
        pool.put(connection)
        build = once_each(
            lambda _: rig.pipeline._send(exchange, worker, rig.targets[worker.id]),
            range(20 * effort.fresh),
            between=lambda: pool.put(connection),
        )
        self._row("forward", "build the request and hand it over", build)
        rig.answer(ANSWER_HEAD + ANSWER_BODY)
        self._row("forward", "response head", repeated(lambda: reader.read(ANSWER_HEAD, None), effort))
        rig.request(request)
        rig.answer(STREAM_HEAD)
        self._row("forward", "splice one chunk of a stream", repeated(lambda: rig.answer(CHUNK), effort))
        rig.answer(LAST_CHUNK)
        rig.close()

    # -- everything at once

    async def _all_of_it(self) -> None:
        group = "all of it"
        request = request_of(chat_body(self._text()))
        plain = Rig("round_robin", None, n_workers=WORKERS)
        self._row(group, "round robin, no prefix work", repeated(lambda: _round_trip(plain, request), self.effort))
        plain.close()
        tenants = Rig("round_robin", None, n_workers=WORKERS)
        tenants.pipeline.tenancy = _one_tenant()
        self._row(
            group,
            "the same for a tenant with caps and rates",
            repeated(lambda: _round_trip(tenants, request), self.effort),
        )
        tenants.close()
        rig = Rig("cost", self.tokenizer, n_workers=WORKERS)
        text = self._text()
        seen = request_of(chat_body(text))
        await _whole(rig, seen)
        self._row(group, "prompt seen", repeated(lambda: _round_trip(rig, seen), self.effort))
        requests = [request_of(chat_body(text, question=f"{i}: {_QUESTION}")) for i in range(self.effort.fresh)]
        parts = [await _whole(rig, request) for request in requests]
        self._row(group, "prefix seen, new message", median([sum(part) for part in parts]))
        parts = [await _whole(rig, request_of(chat_body(text))) for text in self._texts()]
        self._row(group, "new prompt: on the loop, before it is sent", median([part[0] for part in parts]))
        self._row(group, "new prompt: in the thread", median([part[1] for part in parts]))
        self._row(group, "new prompt: on the loop, afterwards", median([part[2] for part in parts]))
        rig.close()


def _one_tenant() -> Tenancy:
    """Whose key `request_of` shows."""
    plenty = Rates(requests_per_minute=1e9, tokens_per_minute=1e12, concurrent=1000)
    rules = TenantRules(TenantPolicy("bench", caps=Caps(max_tokens=4096, n=4)), rates=plenty)
    return Tenancy([rules], {digest_of(b"sk-bench"): "bench"}, salt_key=bytes(32), now=0.0)


def _round_trip(rig: Rig, request: bytes) -> None:
    rig.request(request)
    rig.answer(ANSWER_HEAD + ANSWER_BODY)


async def _whole(rig: Rig, request: bytes) -> tuple[float, float, float]:
    """Microseconds on the loop until the request is out, in the thread, and on the loop afterwards."""
    times = [time.process_time_ns()]
    rig.request(request)
    times.append(time.process_time_ns())
    rig.executor.run()
    times.append(time.process_time_ns())
    if rig.executor.ran:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    rig.answer(ANSWER_HEAD + ANSWER_BODY)
    times.append(time.process_time_ns())
    before, thread, after = [(end - start) / 1e3 for start, end in itertools.pairwise(times)]
    return before, thread, after


def show(rows: Sequence[Row], tokenizer: Tokenizer, source: str) -> None:
    """Print the table."""
    sizes = list(rows[0].microseconds)
    table = Table(
        title=f"CPU µs by tokens of the prompt; tokenizer {source} ({tokenizer.backend})",
        title_justify="left",
    )
    table.add_column("")
    table.add_column("stage")
    for size in sizes:
        table.add_column(f"{size:,}", justify="right")
    group = ""
    for row in rows:
        if row.group != group and group:
            table.add_section()
        cells = [f"{row.microseconds[size]:,.1f}" for size in sizes]
        table.add_row("" if row.group == group else row.group, row.name, *cells)
        group = row.group
    console = Console()
    console.width = max(console.width, 110)
    console.print(table)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--tokenizer",
        default="embedded",
        help="embedded (default), deepseek, or a directory with a chat template",
    )
    parser.add_argument("--quick", action="store_true", help="a few seconds, rough figures")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures too")
    options = parser.parse_args(arguments)
    effort = Effort(rounds=5, round_us=500.0, fresh=8) if options.quick else Effort()
    # On one core, as the gateway is measured: with more, fastokens shares its work among threads.
    with tempfile.TemporaryDirectory() as folder, on_core(max(os.sched_getaffinity(0))):
        if options.tokenizer == "deepseek":
            tokenizer = deepseek(Path(folder))
        else:
            tokenizer = Tokenizer.load(
                EMBEDDED_TOKENIZER if options.tokenizer == "embedded" else Path(options.tokenizer)
            )
        rows = uvloop.run(Stages(tokenizer, effort).measure(SIZES))
    show(rows, tokenizer, options.tokenizer)
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))


if __name__ == "__main__":
    main()
