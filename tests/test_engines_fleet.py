"""Engines of every kind behind the gateway: with and without a known tokenizer, events, adapters, salts and images."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec
import pytest

from backends.simulated import told_events
from backends.simulated.block_pool import PoolEvent
from backends.simulated.engine import EngineConfig
from backends.simulated.fleet import FleetConfig, SimulatedFleet, SimulatedWorker
from backends.simulated.model_text import EMBEDDED_TOKENIZER
from cache.kv_events import BlockStored, KvEvent
from cache.prefix_index import PrefixIndex
from gateway.pipeline import RequestPipeline
from gateway.request_record import RequestRecord
from tests.data_plane_fixtures import Inside, inside
from tests.gateway_fixtures import MODEL, config_for, eventually, feed_of, model_text

WORDS = (EMBEDDED_TOKENIZER / "words.txt").read_text().split()
FAST = EngineConfig(speed=200.0)
BLOCK = FAST.block_size
POLLED = "health: {probe: {metrics_interval: 0.05}}\n"


def words(n: int, seed: int) -> str:
    """Another text for each seed, about two tokens a word."""
    return " ".join(random.Random(seed).choices(WORDS, k=n))


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def chat(turns: Sequence[Any]) -> tuple[str, dict[str, Any]]:
    return "/v1/chat/completions", {"messages": list(turns), "max_tokens": 4}


def messages(turns: Sequence[Any]) -> tuple[str, dict[str, Any]]:
    return "/v1/messages", {"messages": list(turns), "max_tokens": 4}


def responses(turns: Sequence[Any]) -> tuple[str, dict[str, Any]]:
    return "/v1/responses", {"input": list(turns), "max_output_tokens": 4}


def completion(turns: Sequence[Any]) -> tuple[str, dict[str, Any]]:
    return "/v1/completions", {"prompt": "\n".join(turn["content"] for turn in turns), "max_tokens": 4}


DIALECTS = (chat, completion, messages, responses)


@dataclass
class Told:
    """What came of one request: who answered, and what it says of the prompt."""

    worker: str
    prompt: int
    cached: int


@dataclass
class Seen:
    """Keeps what an observer is told."""

    records: list[RequestRecord]

    def finished(self, record: RequestRecord) -> None:
        self.records.append(record)


@dataclass
class Running:
    """A gateway and the workers behind it."""

    gateway: Inside
    fleet: SimulatedFleet
    http: aiohttp.ClientSession

    @property
    def index(self) -> PrefixIndex:
        return self.pipeline._index

    async def post(
        self, shape: tuple[str, Mapping[str, Any]], *, past: SimulatedWorker | None = None, **more: Any
    ) -> Told:
        """Through the gateway, or `past` it straight to a worker. `more` are further fields."""
        path, body = shape
        fault = more.pop("fault", None)
        headers = {} if fault is None else {"x-simulate-fault": fault}
        url = self.gateway.url if past is None else past.url
        async with self.http.post(url + path, json={"model": MODEL, **body, **more}, headers=headers) as response:
            answer = await response.json()
            assert response.status == 200, answer
        usage = answer["usage"]
        if "cache_read_input_tokens" in usage:
            cached = int(usage["cache_read_input_tokens"] or 0)
            return Told(response.headers.get("x-worker", ""), int(usage["input_tokens"]) + cached, cached)
        details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
        prompt = usage.get("prompt_tokens") or usage.get("input_tokens")
        return Told(response.headers.get("x-worker", ""), int(prompt), int(details.get("cached_tokens") or 0))

    @property
    def pipeline(self) -> RequestPipeline:
        pipeline = self.gateway.server.pipeline
        assert isinstance(pipeline, RequestPipeline)
        return pipeline

    def watch(self) -> list[RequestRecord]:
        """The records of all requests from now on, as they are over."""
        seen = Seen([])
        self.pipeline.observers += (seen,)
        return seen.records

    async def told(self) -> None:
        """Wait until the gateway knows every block that workers hold, as their events tell."""
        workers = list(zip(self.gateway.fleet.workers, self.fleet.workers, strict=True))
        before = [-1]

        def settled() -> bool:
            counts = [self.index.block_count(worker.id) for worker, _ in workers]
            told = [simulated.publisher is not None and bool(simulated.publisher.kept) for _, simulated in workers]
            same, before[:] = counts == before, counts
            return same and all(told)

        await asyncio.sleep(0.1)
        await eventually(settled)

    async def hear(self) -> None:
        """Let every worker say something until the gateway hears it: it may begin to listen late."""
        async with asyncio.timeout(10):
            for worker, simulated in zip(self.gateway.fleet.workers, self.fleet.workers, strict=True):
                for number in itertools.count():
                    if worker.publishes_events:
                        break
                    await self.post(completion([user(words(20, 9_000_000 + number))]), past=simulated)
                    await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def running(
    n: int = 2,
    *,
    tokenizer: bool = False,
    events: bool = True,
    engine: EngineConfig = FAST,
    faults: bool = False,
    adapters: tuple[str, ...] = (),
    extra: str = "",
) -> AsyncIterator[Running]:
    """`tokenizer`: is it configured? `events`: do workers publish them, and does the gateway listen?"""
    settings = FleetConfig(model=MODEL, engine=engine, kv_events=events, faults=faults, adapters=adapters)
    async with SimulatedFleet(n, settings, text=model_text()) as fleet:
        feeds = [feed_of(worker) for worker in fleet.workers]
        models = f"models: [{{name: {MODEL}, tokenizer: embedded}}]\n" if tokenizer else ""
        config = config_for(
            fleet.urls,
            models + "response_headers: {worker: x-worker}\nlimits: {drain_timeout: 0.2}\n" + extra,
            workers_extra=feeds if events else (),
        )
        async with inside(config) as gateway, aiohttp.ClientSession() as http:
            it = Running(gateway, fleet, http)
            if events:
                await it.hear()
            yield it


# --- text mode -----------------------------------------------------------------------------------------------


async def converse(it: Running, shape: Any, *, talks: int = 6, turns: int = 4) -> tuple[list[set[str]], float]:
    """Conversations in turn; the workers each was at, and the share of all prompt tokens found cached."""
    histories = [[user(words(80, 100 + talk))] for talk in range(talks)]
    homes: list[set[str]] = [set() for _ in range(talks)]
    cached = prompt = 0
    for turn in range(turns):
        for talk, history in enumerate(histories):
            told = await it.post(shape(history))
            homes[talk].add(told.worker)
            cached += told.cached
            prompt += told.prompt
            seed = 1000 * turn + talk
            history += [{"role": "assistant", "content": words(10, seed)}, user(words(60, 50_000 + seed))]
    return homes, cached / prompt


@pytest.mark.parametrize("shape", DIALECTS)
async def test_text_alone_keeps_conversations_where_they_are(shape: Any) -> None:
    async with running(3, tokenizer=True) as it:
        _, known = await converse(it, shape)
    async with running(3, events=False) as it:
        homes, share = await converse(it, shape)
    assert all(len(home) == 1 for home in homes)
    assert len(set.union(*homes)) == 3
    assert known > 0.4
    assert share > 0.9 * known


# --- tokens from the workers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", DIALECTS)
async def test_ids_from_a_worker_meet_what_only_events_tell(shape: Any) -> None:
    """Prompts that a worker got past the gateway are found there, though nobody configured a tokenizer."""
    async with running(3, extra="tokens: {wait: 5s}\n") as it:
        records = it.watch()
        for number, (worker, simulated) in enumerate(zip(it.gateway.fleet.workers, it.fleet.workers, strict=True)):
            shaped = shape([user(words(600, number))])
            before = it.index.block_count(worker.id)
            await it.post(shaped, past=simulated)
            await eventually(lambda: it.index.block_count(worker.id) >= before + 600 // BLOCK)  # noqa: B023 - called now
            told = await it.post(shaped)
            assert told.worker == worker.id
            assert told.cached > 0.9 * told.prompt
            await eventually(lambda: len(records) == number + 1)  # noqa: B023 - called now
            assert abs(records[-1].cached_tokens - told.cached) <= BLOCK


# --- chains of their own -------------------------------------------------------------------------------------


def picture(data: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


MODES = pytest.mark.parametrize(
    "mode",
    [{"tokenizer": True}, {"tokenizer": False}, {"events": False}],
    ids=["tokenizer", "from workers", "text"],
)


async def predictions(it: Running, shape: tuple[str, Mapping[str, Any]], *others: Mapping[str, Any]) -> list[int]:
    """Tokens thought to be cached of the same prompt with other fields, one after another, and what workers found."""
    records = it.watch()
    for number, fields in enumerate(others):
        await it.post(shape, **fields)
        await eventually(lambda: len(records) > number)  # noqa: B023 - called now
        if it.fleet.config.kv_events:
            await it.told()
    return [record.cached_tokens for record in records]


@MODES
async def test_adapters_have_chains_of_their_own(mode: Any) -> None:
    async with running(1, adapters=("lora-a", "lora-b"), extra="tokens: {wait: 5s}\n", **mode) as it:
        models = [{"model": name} for name in (MODEL, "lora-a", "lora-b", "lora-a", MODEL)]
        base, a, b, a_again, base_again = await predictions(it, chat([user(words(600, 1))]), *models)
        assert (base, a, b) == (0, 0, 0)
        assert a_again > 500
        assert base_again > 500


@MODES
async def test_an_image_is_part_of_the_prompt(mode: Any) -> None:
    async with running(1, extra="tokens: {wait: 5s}\n", **mode) as it:
        shapes = [chat([user([picture(data), {"type": "text", "text": words(600, 1)}])]) for data in "ABAB"]
        records = it.watch()
        told = [await it.post(shape) for shape in shapes]
        await eventually(lambda: len(records) == 4)
        first, other, first_again, other_again = [record.cached_tokens for record in records]
        assert max(first, other) <= 2 * BLOCK
        assert min(first_again, other_again) > 500
        assert told[1].cached <= 2 * BLOCK
        assert told[2].cached > 500


@pytest.mark.parametrize("told", [True, False], ids=["told", "untold"])
@MODES
async def test_a_salt_keeps_prompts_apart(mode: Any, told: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not told:
        tell = told_events.told

        def untold(event: PoolEvent, *, block_size: int, secret: int = 0) -> KvEvent | None:
            """As engines publish that do not tell salts."""
            it = tell(event, block_size=block_size, secret=secret)
            return msgspec.structs.replace(it, salt=None) if isinstance(it, BlockStored) else it

        monkeypatch.setattr("backends.simulated.told_events.told", untold)
    salts: list[dict[str, Any]] = [{}, {"cache_salt": "s"}, {"cache_salt": "t"}, {"cache_salt": "s"}, {}]
    async with running(1, extra="tokens: {wait: 5s}\n", **mode) as it:
        plain, s, t, s_again, plain_again = await predictions(it, chat([user(words(600, 1))]), *salts)
        assert (plain, s, t) == (0, 0, 0)
        assert s_again > 500
        assert plain_again > 500
        other = chat([user(words(600, 2))])
        salted, unsalted = await predictions(it, other, {"cache_salt": "s"}, {})
        assert (salted, unsalted) == (0, 0)


# --- without events ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokenizer", [True, False], ids=["tokenizer", "text"])
async def test_what_an_engine_evicts_is_forgotten_without_events(tokenizer: bool) -> None:
    """A cache of 4,096 tokens and prompts of twice as many: what is predicted is what is there."""
    engine = EngineConfig(speed=200.0, blocks=256)
    async with running(1, tokenizer=tokenizer, events=False, engine=engine, extra=POLLED) as it:
        (worker,) = it.gateway.fleet.workers
        await eventually(lambda: worker.capacity == 256)
        for seed in range(16):
            await it.post(completion([user(words(400, seed))]))
        assert it.index.block_count(worker.id) <= 256
        records = it.watch()
        told = [await it.post(completion([user(words(400, seed))])) for seed in (15, 14, 13, 12, 0, 1, 2, 3)]
        await eventually(lambda: len(records) == len(told))
        predicted = sum(record.cached_tokens / record.prompt_tokens for record in records)
        reported = sum(each.cached / each.prompt for each in told)
        assert reported > 2, "the last ones are still there"
        assert reported < 7, "the first ones are not"
        assert abs(predicted - reported) < 1.5


# --- what workers tell ---------------------------------------------------------------------------------------


async def test_a_worker_that_reports_otherwise_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "gateway.cache_drift")

    def said() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name == "gateway.cache_drift"]

    async with running(1, tokenizer=True, faults=True) as it:
        shape = completion([user(words(3000, 1))])
        for _ in range(3):
            await it.post(shape)
        for _ in range(40):
            await it.post(shape, fault="misreport")
            if said():
                break
        assert len(said()) == 1
        assert "finds less in its cache than was predicted" in said()[0]
        for _ in range(100):
            await it.post(shape)
            if len(said()) > 1:
                break
        assert said()[1:] == ["worker w0: what it finds in its cache is again what was predicted"]


async def test_load_that_others_bring_is_seen() -> None:
    async with running(2, events=False, engine=EngineConfig(speed=1.0), extra=POLLED) as it:
        busy = it.gateway.fleet.workers[0]
        path, body = completion([user("x")])
        async with contextlib.AsyncExitStack() as streams:
            for number in range(8):
                fields = {**body, "model": MODEL, "prompt": f"{number}", "max_tokens": 5000, "stream": True}
                await streams.enter_async_context(it.http.post(it.fleet.urls[0] + path, json=fields))
            await eventually(lambda: busy.foreign == 8)
            answers = [await it.post(completion([user(words(20, seed))])) for seed in range(6)]
            assert {told.worker for told in answers} == {"w1"}
        await eventually(lambda: busy.foreign == 0)
        answers = [await it.post(completion([user(words(20, 100 + seed))])) for seed in range(6)]
        assert "w0" in {told.worker for told in answers}
