"""Routing end to end: a gateway over real sockets before simulated workers, every policy and what goes before it."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgpack
import orjson
import pytest
import zmq.asyncio
from prometheus_client import generate_latest

from backends.fleet_worker import Worker
from backends.simulated.engine import EngineConfig
from backends.simulated.fleet import FleetConfig, SimulatedFleet
from gateway.app import running
from gateway.program import Program
from gateway.program_control import gauges_of
from gateway.request_record import RequestRecord
from gateway.telemetry.exposition import make_registry
from policies.routing import POLICIES
from policies.types import Tier, TierRun, WorkerId
from tests.data_plane_fixtures import RawWorker, says
from tests.gateway_fixtures import MODEL, config_for, eventually, feed_of, model_text
from tests.ports import fleet_ports

STORY = "Once upon a time there was a gateway that knew where every prefix lived. "
ENGINE = EngineConfig(blocks=2048, block_size=16, max_model_len=8192, speed=200.0)
CHAT = "/v1/chat/completions"


@dataclass
class Rig:
    """A gateway, its parts, its workers and a client."""

    program: Program
    fleet: SimulatedFleet
    http: aiohttp.ClientSession

    async def ask(self, path: str, body: dict[str, Any], **headers: str) -> tuple[str, dict[str, Any]]:
        """The worker that answered, and what."""
        async with self.http.post(path, json={"model": MODEL, **body}, headers=headers) as response:
            told = await response.read()
            assert response.status == 200, told
            return response.headers["x-worker"], {} if body.get("stream") else orjson.loads(told)

    async def chat(self, text: str, *, headers: dict[str, str] | None = None, **fields: Any) -> tuple[str, int]:
        """The worker, and the tokens it had cached."""
        body = {"messages": [{"role": "user", "content": text}], "max_tokens": 2, **fields}
        worker, answer = await self.ask(CHAT, body, **(headers or {}))
        return worker, int((answer["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0)

    def last(self) -> RequestRecord:
        """The newest record."""
        return self.program.recent.newest(1)[0]

    def worker(self, name: str) -> Worker:
        return self.program.state.worker(WorkerId(name))


@asynccontextmanager
async def rig(
    n: int = 3,
    extra: str = "",
    *,
    events: bool = True,
    tokenizer: bool = True,
    workers_extra: tuple[str, ...] = (),
    **fleet: Any,
) -> AsyncIterator[Rig]:
    given = {"model": MODEL, "engine": ENGINE, "record": 50, "kv_events": events, **fleet_ports(n), **fleet}
    config = FleetConfig(**given)
    async with SimulatedFleet(n, config, text=model_text()) as simulated:
        lines = [
            (feed_of(w) if events else "") + (workers_extra[i] if workers_extra else "")
            for i, w in enumerate(simulated.workers)
        ]
        models = f"models: [{{name: {MODEL}, tokenizer: embedded}}]\n" if tokenizer else ""
        # However busy the machine is, a prompt is routed by all of its tokens.
        rest = "response_headers: {worker: x-worker}\nlimits: {drain_timeout: 0.2}\ntokens: {wait: 10s}\n"
        async with (
            running(config_for(simulated.urls, models + rest + extra, workers_extra=lines)) as (program, port),
            aiohttp.ClientSession(base_url=f"http://127.0.0.1:{port}") as http,
        ):
            yield Rig(program, simulated, http)


def policy(name: str, more: str = "") -> str:
    return f"routing: {{policy: {name}{more}}}\n"


# --- policies


@pytest.mark.parametrize("name", sorted(POLICIES))
async def test_every_policy_serves_and_says_why(name: str) -> None:
    async with rig(3, policy(name)) as r:
        workers = [(await r.chat(f"{i} {STORY * 10}"))[0] for i in range(12)]
        record = r.last()
        attempt = record.attempts[0]
        assert attempt.worker == workers[-1]
        assert {view.id for view in attempt.candidates} == {"w0", "w1", "w2"}
        assert attempt.candidates[attempt.decision.chosen].id == workers[-1]
        assert attempt.decision.reason
        assert len(set(workers)) > 1
        if name == "round_robin":
            assert Counter(workers) == {"w0": 4, "w1": 4, "w2": 4}


@pytest.mark.parametrize("name", ["cost", "prefix_affinity"])
async def test_prefix_policies_follow_the_blocks(name: str) -> None:
    async with rig(3, policy(name)) as r:
        homes = [(await r.chat(f"{i} {STORY * 20}"))[0] for i in range(4)]
        for _ in range(3):
            for i, home in enumerate(homes):
                worker, cached = await r.chat(f"{i} {STORY * 20}")
                assert worker == home
                assert cached > 200
        if name == "prefix_affinity":
            assert r.last().attempts[0].decision.reason == "match"


@pytest.mark.parametrize(
    ("fields", "headers"),
    [
        (lambda i: {"prompt_cache_key": f"key {i}"}, lambda _: {}),
        (lambda i: {"user": f"user {i}"}, lambda _: {}),
        (lambda _: {}, lambda i: {"x-session-id": f"session {i}"}),
    ],
    ids=["prompt_cache_key", "user", "session"],
)
async def test_consistent_hash_keeps_keys_together_over_a_restart(fields: Any, headers: Any) -> None:
    extra = policy("consistent_hash", ", sessions: {header: x-session-id}")
    homes: list[list[str]] = []
    for life in range(2):
        async with rig(4, extra, events=False) as r:
            placed = [(await r.chat(f"{life}", headers=headers(i), **fields(i)))[0] for i in range(16)]
            again = [(await r.chat("other", headers=headers(i), **fields(i)))[0] for i in range(16)]
            assert placed == again
            homes.append(placed)
    assert homes[0] == homes[1]
    assert len(set(homes[0])) > 1


async def test_consistent_hash_by_the_beginning_of_the_prompt() -> None:
    async with rig(4, policy("consistent_hash"), events=False) as r:

        async def home(text: str) -> str:
            return (await r.ask("/v1/completions", {"prompt": text, "max_tokens": 2}))[0]

        homes = [await home(f"{i} {STORY * 30}") for i in range(8)]
        assert [await home(f"{i} {STORY * 30} and more") for i in range(8)] == homes
        assert len(set(homes)) > 1


async def test_shares_follow_weights() -> None:
    weights = (", weight: 3", ", weight: 1", ", weight: 2")
    async with rig(3, policy("round_robin"), workers_extra=weights) as r:
        assert Counter([(await r.chat("hi"))[0] for _ in range(24)]) == {"w0": 12, "w1": 4, "w2": 8}


async def test_a_worker_that_comes_later_starts_slowly() -> None:
    async with rig(2, "routing: {policy: round_robin, slow_start: 1h}\n") as r:
        for name in ("w0", "w1"):
            r.worker(name).ramp_from = -1e9  # they have long been there
        assert Counter([(await r.chat("hi"))[0] for _ in range(10)]) == {"w0": 5, "w1": 5}
        r.worker("w1").ramp_from = r.program.loop.time()
        shares = Counter([(await r.chat("hi"))[0] for _ in range(20)])
        assert 0 <= shares["w1"] <= 4
        view = next(view for view in r.last().attempts[0].candidates if view.id == "w1")
        assert 0 < view.weight <= 0.2


# --- sessions and answers


async def test_a_session_stays_with_its_worker_while_it_is_well() -> None:
    async with rig(3, policy("random", ", sessions: {header: X-Session-Id, max_entries: 5}"), events=False) as r:
        homes = {i: (await r.chat("hi", headers={"x-session-id": str(i)}))[0] for i in range(5)}
        for i in [*range(5)] * 3:
            assert (await r.chat("again", headers={"X-SESSION-ID": str(i)}))[0] == homes[i]
        assert r.last().session
        assert r.last().attempts[0].decision.reason == "session"
        await r.chat("hi", headers={"x-session-id": "x" * 5000})
        assert len(r.program.affinity) == 5
        assert all(len(key) <= 128 for key in r.program.affinity._entries)
        home = homes[4]
        await r.fleet.workers[int(home[1:])].kill()
        other = (await r.chat("again", headers={"x-session-id": "4"}))[0]
        assert other != home
        assert (await r.chat("again", headers={"x-session-id": "4"}))[0] == other


async def test_a_session_named_like_an_answer_does_not_move_it() -> None:
    async with rig(4, policy("round_robin", ", sessions: {header: x-session-id}"), events=False) as r:
        home, answer = await r.ask("/v1/responses", {"input": "Hello", "max_output_tokens": 2})
        await r.chat("hi", headers={"x-session-id": answer["id"]})
        body = {"input": "And?", "previous_response_id": answer["id"], "max_output_tokens": 2}
        assert (await r.ask("/v1/responses", body))[0] == home


async def _first_answer(r: Rig, number: int, *, stream: bool) -> tuple[str, str]:
    body = {"model": MODEL, "input": f"{number} Hello", "max_output_tokens": 2, "stream": stream}
    async with r.http.post("/v1/responses", json=body) as response:
        assert response.status == 200
        told = await response.read()
        worker = response.headers["x-worker"]
    if stream:
        told = told.split(b"data: ", 1)[1].split(b"\n", 1)[0]
        return worker, str(orjson.loads(told)["response"]["id"])
    return worker, str(orjson.loads(told)["id"])


@pytest.mark.parametrize("stream", [False, True])
async def test_what_follows_an_answer_goes_where_it_is(stream: bool) -> None:
    async with rig(8, policy("random"), events=False) as r:
        firsts = await asyncio.gather(*(_first_answer(r, i, stream=stream) for i in range(40)))
        assert len({worker for worker, _ in firsts}) > 3

        async def follow(worker: str, answer_id: str) -> None:
            body = {"input": "And?", "previous_response_id": answer_id, "max_output_tokens": 2, "stream": stream}
            assert (await r.ask("/v1/responses", body))[0] == worker
            path = f"/v1/responses/{answer_id}"
            async with r.http.get(path) as response:
                assert (response.status, response.headers["x-worker"]) == (200, worker)
            async with r.http.post(path + "/cancel") as response:
                assert (response.status, response.headers["x-worker"]) == (400, worker)  # it was not a background one
            async with r.http.delete(path) as response:
                assert (response.status, response.headers["x-worker"]) == (200, worker)
            async with r.http.get(path) as response:
                assert (response.status, response.headers["x-worker"]) == (404, worker)

        await asyncio.gather(*(follow(*first) for first in firsts))


@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_an_id_that_comes_late_or_in_two_reads_is_learnt(framing: str) -> None:
    body = b'{"object":"response","metadata":{"k":"v"},"previous_response_id":"resp_0","id" : "resp_late-1"}'
    cut = body.index(b"late")
    pieces = (body[:10], body[10:cut], body[cut:])
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
    if framing == "length":
        said = (head + b"content-length: %d\r\n\r\n" % len(body) + pieces[0], *pieces[1:])
    else:
        framed = [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces]
        said = (head + b"transfer-encoding: chunked\r\n\r\n" + framed[0], framed[1], framed[2] + b"0\r\n\r\n")
    async with RawWorker(says(*said, pause=0.02)).running() as one, RawWorker(says(*said, pause=0.02)).running() as two:
        extra = policy("round_robin") + "response_headers: {worker: x-worker}\n"
        config = config_for([one.url, two.url], extra, workers_extra=[", models: [m]"] * 2)
        async with (
            running(config) as (_, port),
            aiohttp.ClientSession(base_url=f"http://127.0.0.1:{port}") as http,
        ):
            async with http.post("/v1/responses", json={"model": "m", "input": "x"}) as response:
                assert await response.read() == body
                home = response.headers["x-worker"]
            for _ in range(3):
                async with http.get("/v1/responses/resp_late-1") as response:
                    await response.read()
                    assert response.headers["x-worker"] == home


# --- aliases


@pytest.mark.parametrize(
    ("path", "rest"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}),
        ("/v1/completions", {"prompt": "hi", "max_tokens": 2}),
        ("/v1/responses", {"input": "hi", "max_output_tokens": 2}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}),
        ("/tokenize", {"prompt": "hi"}),
        ("/v1/embeddings", {"input": "hi"}),
    ],
)
@pytest.mark.parametrize(("alias", "served"), [("gpt-4o", MODEL), ("tuned", "adapter-1")])
async def test_a_worker_gets_its_own_name_and_every_other_byte(
    path: str, rest: dict[str, Any], alias: str, served: str
) -> None:
    extra = f"routing: {{aliases: {{gpt-4o: {MODEL}, tuned: adapter-1}}}}\n"
    async with rig(1, extra, adapters=("adapter-1",)) as r:
        raw = orjson.dumps(rest)[1:-1]
        body = b'{ "x": {"model": "gpt-4o"},  "model" :"%b",%b }' % (alias.encode(), raw)
        async with r.http.post(path, data=body, headers={"content-type": "application/json"}) as response:
            assert response.status == 200, await response.read()
        sent = [request for request in r.fleet.workers[0].received if request.method == "POST"][-1]
        assert sent.body == b'{ "x": {"model": "gpt-4o"},  "model" :"%b",%b }' % (served.encode(), raw)


async def test_aliases_are_listed_with_their_root() -> None:
    async with rig(1, f"routing: {{aliases: {{gpt-4o: {MODEL}, nobodys: gone}}}}\n") as r:
        async with r.http.get("/v1/models") as response:
            cards = {card["id"]: card for card in (await response.json())["data"]}
        assert set(cards) == {MODEL, "gpt-4o"}
        assert cards["gpt-4o"]["root"] == MODEL
        async with r.http.get("/v1/models/gpt-4o") as response:
            assert (await response.json()) == cards["gpt-4o"]


# --- what counts as the same prefix


def image(name: str) -> list[dict[str, Any]]:
    url = f"data:image/png;base64,{name}"
    return [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": STORY * 20}]


@pytest.mark.parametrize("tokenizer", [True, False])
@pytest.mark.parametrize("events", [True, False])
async def test_images_adapters_and_salts_are_chains_of_their_own(tokenizer: bool, events: bool) -> None:
    async with rig(1, events=events, tokenizer=tokenizer, adapters=("adapter-1",)) as r:

        async def predicted(content: Any, **fields: Any) -> int:
            body = {"messages": [{"role": "user", "content": content}], "max_tokens": 2, **fields}
            await r.ask(CHAT, body)
            return r.last().cached_tokens

        async def found(content: Any, **fields: Any) -> bool:
            """Asked again it is known: at the latest once the worker's feed is live."""
            for _ in range(20):
                if await predicted(content, **fields) > 200:
                    return True
                await asyncio.sleep(0.05)
            return False

        plain = STORY * 20
        assert await predicted(plain) == 0
        assert await found(plain)
        assert await predicted(plain, model="adapter-1") == 0
        assert await found(plain, model="adapter-1")
        assert await predicted(plain, cache_salt="tenant") == 0
        assert await found(plain, cache_salt="tenant")
        assert await predicted(plain, cache_salt="another") == 0
        assert await predicted(image("QUJD")) < 48
        assert await found(image("QUJD"))
        assert await predicted(image("REVG")) < 48


async def _talk(r: Rig) -> float:
    """Hits ÷ prompt tokens of conversations over four workers, as the engines report them."""
    cached = total = 0

    async def one(number: int) -> None:
        nonlocal cached, total
        turns: list[dict[str, str]] = []
        for turn in range(6):
            turns.append({"role": "user", "content": f"{number}.{turn} {STORY * 8}"})
            _, answer = await r.ask(CHAT, {"messages": turns, "max_tokens": 8})
            turns.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
            cached += (answer["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0
            total += answer["usage"]["prompt_tokens"]

    await asyncio.gather(*(one(number) for number in range(12)))
    return cached / total


@pytest.mark.parametrize("events", [False, True])
async def test_conversations_follow_their_worker_without_a_tokenizer(events: bool) -> None:
    shares = {}
    for tokenizer in (True, False):
        async with rig(4, events=events, tokenizer=tokenizer) as r:
            shares[tokenizer] = await _talk(r)
    assert shares[True] > 0.6
    assert shares[False] / shares[True] > 0.9


async def test_a_small_workers_index_forgets_what_the_engine_has_evicted() -> None:
    small = EngineConfig(blocks=160, block_size=16, max_model_len=2048, speed=200.0)
    async with rig(1, "health: {probe: {metrics_interval: 0.1}}\n", events=False, engine=small) as r:
        await eventually(lambda: r.worker("w0").capacity == 160)
        for turn in range(2):
            for i in range(12):
                await r.chat(f"{turn}{i} {STORY * 20}")
        predicted = reported = 0
        for i in (0, 1, 2, 10, 11):
            _, cached = await r.chat(f"1{i} {STORY * 20}")
            predicted += r.last().cached_tokens
            reported += cached
        assert abs(predicted - reported) <= 0.25 * max(predicted, reported, 1) + 32


# --- what is told of it


async def test_a_drift_is_told_once_and_its_end_too(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gateway.cache_drift")
    async with rig(1, faults=True) as r:
        text = STORY * 150
        await r.chat(text)
        r.fleet.workers[0].arm("misreport", 60)
        for _ in range(60):
            await r.chat(text)
        assert r.program.drift.drift(WorkerId("w0")) > 0.15
        assert r"prefixgate_" in await _metrics(r)
        for _ in range(120):
            await r.chat(text)
        said = [record.getMessage() for record in caplog.records if record.name == "gateway.cache_drift"]
        assert len(said) == 2, said
        assert "finds less in its cache" in said[0]
        assert "again what was predicted" in said[1]


async def _metrics(r: Rig) -> str:
    return generate_latest(make_registry(gauges_of(r.program), r.program.metrics)).decode()


async def test_a_worker_that_somebody_else_loads_gets_less() -> None:
    extra = policy("least_loaded") + "health: {probe: {metrics_interval: 0.1}}\n"
    slow = EngineConfig(blocks=4096, block_size=16, max_model_len=8192, speed=1.0)
    async with rig(2, extra, engine=slow) as r:
        body = {"model": MODEL, "prompt": "hi", "max_tokens": 4000, "ignore_eos": True}
        direct = [
            asyncio.create_task(r.http.post(r.fleet.workers[0].url + "/v1/completions", json=body)) for _ in range(4)
        ]
        await eventually(lambda: r.worker("w0").foreign >= 3)
        assert Counter([(await r.chat("hi"))[0] for _ in range(6)]) == {"w1": 6}
        for task in direct:
            task.cancel()
        await asyncio.gather(*direct, return_exceptions=True)


async def test_overlaps_are_told_by_tier() -> None:
    context = zmq.asyncio.Context()
    publisher = context.socket(zmq.PUB)
    port = publisher.bind_to_random_port("tcp://127.0.0.1")
    feed = f", kv_events: {{endpoint: 'tcp://127.0.0.1:{port}'}}"
    ids = list(range(1, 161))
    hashes = list(range(1000, 1010))
    sequence = 0

    async def publish(events: list[list[Any]]) -> None:
        nonlocal sequence
        payload = msgpack.packb([0.0, events, None])
        await publisher.send_multipart([b"", sequence.to_bytes(8, "big"), payload])
        sequence += 1

    try:
        async with rig(2, events=False, workers_extra=(feed, "")) as r:

            async def told() -> None:
                """Until the subscription is there, what is published is lost: say it until it is heard."""
                async with asyncio.timeout(5):
                    while not len(r.program.index):
                        await publish([["BlockStored", hashes, None, ids, 16, None, "CPU", None]])
                        await asyncio.sleep(0.05)

            await told()
            await r.ask("/v1/completions", {"prompt": [*ids, 7, 8, 9], "max_tokens": 2})
            attempt = r.last().attempts[0]
            assert attempt.runs == {WorkerId("w0"): [TierRun(Tier.HOST, 10)]}
            assert attempt.cached == {}, "what counts is on devices"
            assert len(attempt.decision.costs) == 2
    finally:
        publisher.close(0)
        context.term()
