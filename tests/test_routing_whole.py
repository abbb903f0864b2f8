"""Routing as a whole, over real sockets: where requests go, what keeps them together, and what is told of it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import aiohttp
import pytest
import zmq
from prometheus_client import generate_latest

from backends.simulated.engine import EngineConfig
from backends.simulated.fleet import FleetConfig, SimulatedFleet, TierConfig
from backends.simulated.timing import LinearPrefill
from cache.kv_events import BlockStored, EngineHash, EventBatch, encode_batch
from gateway.app import running
from gateway.program import Program
from gateway.program_control import gauges_of
from gateway.telemetry.exposition import make_registry
from policies.restore_route import TierPrice
from policies.routing import POLICIES
from policies.types import Tier, TokenIds, WorkerId
from tests.gateway_fixtures import (
    MODEL,
    Script,
    ScriptedWorker,
    config_for,
    eventually,
    feed_of,
    gateway,
    model_text,
    read_request,
)
from tests.ports import fleet_ports
from tests.simulated_fixtures import DIALECTS
from tests.tenant_fixtures import KEYS, tenants

FAST = EngineConfig(speed=200.0)


@dataclass
class Running:
    """A gateway, the workers behind it, and a client."""

    url: str
    program: Program
    fleet: SimulatedFleet
    http: aiohttp.ClientSession

    async def post(
        self, path: str, body: dict[str, Any], headers: dict[str, str] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """The worker that answered, and its answer."""
        async with self.http.post(self.url + path, json=body, headers=headers) as answer:
            assert answer.status == 200, await answer.text()
            return answer.headers["x-worker"], await answer.json()

    async def complete(self, prompt: str, headers: dict[str, str] | None = None, **more: Any) -> str:
        """The worker that continued a prompt."""
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 2, **more}
        worker, _ = await self.post("/v1/completions", body, headers)
        return worker


@contextlib.asynccontextmanager
async def in_front(fleet: SimulatedFleet, extra: str, weights: Sequence[float] = ()) -> AsyncIterator[Running]:
    """A gateway in front of a fleet that is there."""
    lines = [
        feed_of(worker) + (f", weight: {weights[at]}" if weights else "") for at, worker in enumerate(fleet.workers)
    ]
    more = (
        f"models: [{{name: {MODEL}, tokenizer: embedded}}]\n"
        "response_headers: {worker: x-worker}\nlimits: {drain_timeout: 0.2}\n"
    )
    config = config_for(fleet.urls, more + extra, workers_extra=lines)
    async with (
        running(config) as (program, port),
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as http,
    ):
        yield Running(f"http://127.0.0.1:{port}", program, fleet, http)


@contextlib.asynccontextmanager
async def routed(n: int, extra: str = "", *, weights: Sequence[float] = (), record: int = 0) -> AsyncIterator[Running]:
    """A gateway and `n` workers."""
    settings = FleetConfig(model=MODEL, engine=FAST, record=record, **fleet_ports(n))
    async with (
        SimulatedFleet(n, settings, text=model_text()) as fleet,
        in_front(fleet, extra, weights) as all_of_it,
    ):
        yield all_of_it


# -- policies


@pytest.mark.parametrize("policy", sorted(POLICIES))
async def test_every_policy_answers(policy: str) -> None:
    async with routed(3, f"routing: {{policy: {policy}}}") as it:
        answers = await asyncio.gather(*(it.complete(f"{n} words to begin with") for n in range(12)))
        assert len(set(answers)) > 1
        for dialect in DIALECTS:
            for stream in (False, True):
                body = {**dialect.body, "stream": stream}
                async with it.http.post(it.url + dialect.path, json=body) as answer:
                    assert answer.status == 200
                    text = await answer.read()
                    assert (dialect.terminal in text) is stream
        it.program.state.check_integrity()
        assert all(worker.active == 0 for worker in it.program.state.workers)


@pytest.mark.parametrize("policy", ["round_robin", "random"])
async def test_shares_follow_weights(policy: str) -> None:
    async with routed(3, f"routing: {{policy: {policy}, cost: {{seed: 7}}}}", weights=[1, 2, 5]) as it:
        counts = Counter([await it.complete(f"{n}") for n in range(160)])
    expected = {"w0": 20, "w1": 40, "w2": 100}
    slack = 0 if policy == "round_robin" else 15  # over two standard deviations; the seed makes it the same each time
    assert all(abs(counts[worker] - share) <= slack for worker, share in expected.items()), counts


# -- sessions

BY_HEADER = "routing: {policy: round_robin, sessions: {header: x-session-id}}"


async def test_a_session_stays_while_its_worker_is_well() -> None:
    async with routed(3, BY_HEADER) as it:

        async def ask(session: str, **more: Any) -> str:
            return await it.complete("Hello", {"X-Session-Id": session}, **more)

        home = await ask("a")
        other = await ask("b")
        assert other != home
        assert {await ask("a") for _ in range(6)} == {home}
        assert {await ask("b") for _ in range(6)} == {other}
        assert len({await it.complete("Hello") for _ in range(6)}) == 3, "a request without a session goes in turn"
        await it.fleet.workers[int(home[1:])].kill()
        moved = await ask("a")
        assert moved != home
        await it.fleet.workers[int(home[1:])].restart()
        assert {await ask("a") for _ in range(6)} == {moved}, "it stays where it went"
        assert {await ask("b") for _ in range(3)} == {other}


async def test_a_session_leaves_a_worker_that_drains() -> None:
    async with routed(3, BY_HEADER) as it:
        home = await it.complete("Hello", {"x-session-id": "a"})
        it.program.fleet.drain(it.program.state.workers[int(home[1:])].id)
        moved = {await it.complete("Hello", {"x-session-id": "a"}) for _ in range(6)}
        assert len(moved) == 1
        assert home not in moved


async def test_a_session_has_a_home_for_each_model() -> None:
    """Where two models have workers of their own, a session that uses both by turns keeps its place at each."""
    async with contextlib.AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(ScriptedWorker(answering()).running()) for _ in range(4)]
        models = [", models: [chat]"] * 2 + [", models: [code]"] * 2
        config = config_for(
            [worker.url for worker in workers],
            BY_HEADER + "\nresponse_headers: {worker: x-worker}\n",
            workers_extra=models,
        )
        url = await stack.enter_async_context(gateway(config))
        http = await stack.enter_async_context(aiohttp.ClientSession(headers={"x-session-id": "a"}))
        seen: dict[str, set[str]] = {"chat": set(), "code": set()}
        for _ in range(6):
            for model, homes in seen.items():
                async with http.post(url + "/v1/completions", json={"model": model, "prompt": "x"}) as answer:
                    homes.add(answer.headers["x-worker"])
        assert [len(homes) for homes in seen.values()] == [1, 1]


def answering(*pieces: bytes, framing: str = "length") -> Script:
    """A script that answers each POST with these pieces, each in a write of its own, and knows of no models."""
    length = sum(map(len, pieces))
    head_of = {
        "length": b"content-length: %d\r\n" % length,
        "chunked": b"transfer-encoding: chunked\r\n",
        "stream": b"content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n",
    }

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head, _ = await read_request(reader)
            if head.startswith(b"GET"):
                writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
                continue
            writer.write(b"HTTP/1.1 200 OK\r\n%b\r\n" % head_of[framing])
            for piece in pieces:
                writer.write(piece if framing == "length" else b"%x\r\n%b\r\n" % (len(piece), piece))
                await writer.drain()
                await asyncio.sleep(0.003)
            if framing != "length":
                writer.write(b"0\r\n\r\n")

    return serve


# -- answers that go on from earlier ones


def respond(prompt: str, previous: str | None = None, **more: Any) -> dict[str, Any]:
    body: dict[str, Any] = {"model": MODEL, "input": prompt, "max_output_tokens": 3, **more}
    return body if previous is None else body | {"previous_response_id": previous}


async def streamed(it: Running, body: dict[str, Any]) -> tuple[str, str]:
    """The worker that streamed a response, and the response's id."""
    async with it.http.post(it.url + "/v1/responses", json=body | {"stream": True}) as answer:
        assert answer.status == 200
        text = await answer.text()
    assert "event: response.incomplete" in text
    return answer.headers["x-worker"], text.split('"id":"', 1)[1].split('"', 1)[0]


async def stored(it: Running, method: str, response: str) -> tuple[int, str]:
    """The status of an answer about a response, and the worker that gave it."""
    async with it.http.request(method, f"{it.url}/v1/responses/{response}") as answer:
        return answer.status, answer.headers["x-worker"]


@pytest.mark.parametrize("policy", ["cost", "random", "consistent_hash"])
async def test_an_answer_is_followed_to_its_worker(policy: str) -> None:
    """Only the worker that made a response knows it: each of these would be a 404 from any other."""
    async with routed(4, f"routing: {{policy: {policy}}}") as it:
        chains: list[tuple[str, str]] = []
        for n in range(8):
            if n % 2:
                chains.append(await streamed(it, respond(f"{n} is a number.")))
            else:
                worker, answer = await it.post("/v1/responses", respond(f"{n} is a number."))
                chains.append((worker, answer["id"]))
        assert len({worker for worker, _ in chains}) > 1
        for home, first in chains:
            worker, second = await it.post("/v1/responses", respond("And the next?", first))
            assert worker == home
            worker, third = await streamed(it, respond("And the one behind it?", second["id"]))
            assert worker == home
            kept = (first, second["id"], third)
            assert [await stored(it, "GET", each) for each in kept] == [(200, home)] * 3
            assert await stored(it, "DELETE", third) == (200, home)
            assert await stored(it, "GET", third) == (404, home)


async def test_what_runs_in_the_background_is_cancelled_where_it_runs() -> None:
    async with routed(4, "routing: {policy: round_robin}") as it:
        for simulated in it.fleet.workers:
            simulated.hang()
        started = [await it.post("/v1/responses", respond(f"{n} is a number.", background=True)) for n in range(4)]
        assert {worker for worker, _ in started} == {"w0", "w1", "w2", "w3"}
        for home, response in started:
            worker, cancelled = await it.post(f"/v1/responses/{response['id']}/cancel", {})
            assert (worker, cancelled["status"]) == (home, "cancelled")


ANSWER = b'{"id": "resp_0123456789", "object": "response", "output": []}'
EVENTS = (
    b": a comment that keeps the connection\n\n"
    b'event: response.created\ndata: {"type":"response.created","response":{"id":"resp_0123456789"}}\n\n'
    b'event: response.completed\ndata: {"type":"response.completed"}\n\n'
)


@pytest.mark.parametrize("cuts", [(1,), (9, 17), (8, 25), tuple(range(1, 30))])
@pytest.mark.parametrize("framing", ["length", "chunked", "stream"])
async def test_an_id_that_comes_in_pieces_is_found(cuts: Sequence[int], framing: str) -> None:
    """However its answer is cut into writes, the next request goes to the worker that gave it."""
    body = EVENTS if framing == "stream" else ANSWER
    offset = EVENTS.index(b"event: response.created") if framing == "stream" else 0
    ends = [0, *(offset + cut for cut in cuts), len(body)]
    pieces = [body[start:end] for start, end in pairwise(ends)]
    async with contextlib.AsyncExitStack() as stack:
        workers = [
            await stack.enter_async_context(ScriptedWorker(answering(*pieces, framing=framing)).running())
            for _ in range(3)
        ]
        config = config_for(
            [worker.url for worker in workers],
            "routing: {policy: round_robin}\nresponse_headers: {worker: x-worker}\n",
            workers_extra=[", models: [m]"] * 3,
        )
        url = await stack.enter_async_context(gateway(config))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        ask: dict[str, Any] = {"model": "m", "input": "x", "stream": framing == "stream"}
        homes = []
        for _ in range(3):
            async with http.post(url + "/v1/responses", json=ask) as answer:
                assert await answer.read() == body
                homes.append(answer.headers["x-worker"])
            ask["previous_response_id"] = "resp_0123456789"
        assert len(set(homes)) == 1, homes


# -- keys

HASHED = "routing: {policy: consistent_hash, sessions: {header: x-session-id}, consistent_hash: {bound: 1000}}"
HINTS: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "session": ({"x-session-id": "{}"}, {}),
    "prompt_cache_key": ({}, {"prompt_cache_key": "{}"}),
    "user": ({}, {"user": "{}"}),
}


@pytest.mark.parametrize("hint", [*HINTS, "beginning"])
async def test_a_key_finds_its_worker_again_after_a_restart(hint: str) -> None:
    headers, fields = HINTS.get(hint, ({}, {}))

    async def asked(it: Running) -> list[str]:
        homes = []
        for key in range(16):
            beginning = f"{key} " * 600 if hint == "beginning" else ""
            by_turn = {
                await it.complete(
                    f"{beginning}turn {turn}",
                    {name: value.format(key) for name, value in headers.items()},
                    **{name: value.format(key) for name, value in fields.items()},
                )
                for turn in range(3)
            }
            assert len(by_turn) == 1, "whatever the prompt is"
            homes.append(by_turn.pop())
        return homes

    async with SimulatedFleet(4, FleetConfig(model=MODEL, engine=FAST), text=model_text()) as fleet:
        async with in_front(fleet, HASHED) as it:
            before = await asked(it)
        async with in_front(fleet, HASHED) as it:
            assert await asked(it) == before
    assert len(set(before)) > 2, "keys spread"


# -- aliases

ALIASES = f"routing: {{policy: round_robin, aliases: {{fast: {MODEL}, 'gpt-4o': {MODEL}, lost: nobody}}}}"
ALIASED: list[tuple[str, str]] = [
    ("/v1/chat/completions", '{ "messages":[{"role":"user","content":"Is \\"model\\": \\"fast\\" a model? \\u00e9"}],'
     '"max_tokens" : 2,\t"model" : "NAME" ,"metadata":{"model":"fast"}}'),
    ("/v1/completions", '{"model":"NAME","prompt":"é fast","max_tokens":2 }'),
    ("/v1/responses", '{"metadata":{"model":"fast"}, "input":"fast", "max_output_tokens":2,"model":  "NAME"}'),
    ("/v1/messages", '{"system":"fast","model":"NAME","max_tokens":2,"messages":[{"role":"user","content":"Hi"}]}'),
    ("/v1/embeddings", '{"model":"NAME","input":["fast","two"]}'),
    ("/tokenize", '{"prompt":"fast","model":"NAME"}'),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body"), ALIASED, ids=[path for path, _ in ALIASED])
async def test_an_alias_changes_the_model_and_no_other_byte(path: str, body: str) -> None:
    async with routed(2, ALIASES, record=100) as it:
        for name in ("fast", "gpt-4o", MODEL):
            for worker in it.fleet.workers:
                worker.received.clear()
            async with it.http.post(
                it.url + path, data=body.replace("NAME", name).encode(), headers={"content-type": "application/json"}
            ) as answer:
                assert answer.status == 200, await answer.text()
            got = [each.body for worker in it.fleet.workers for each in worker.received if each.path == path]
            assert got == [body.replace("NAME", MODEL).encode()]


async def test_an_alias_in_a_form_is_replaced_too() -> None:
    """What speech goes to text by: a file and fields, passed through."""
    form = (
        b'--cut\r\ncontent-disposition: form-data; name="file"; filename="model"\r\n\r\n\x00fast\xff\r\n'
        b'--cut\r\nContent-Disposition: form-data; name="model"\r\n\r\nNAME\r\n'
        b'--cut\r\ncontent-disposition: form-data; name="prompt"\r\n\r\nfast\r\n--cut--\r\n'
    )
    extra = ALIASES + "\nroutes: {passthrough: [/v1/audio/transcriptions]}"
    async with routed(2, extra, record=100) as it:
        headers = {"content-type": "multipart/form-data; boundary=cut"}
        path = "/v1/audio/transcriptions"
        async with it.http.post(it.url + path, data=form.replace(b"NAME", b"fast"), headers=headers) as answer:
            await answer.read()  # whatever these workers make of speech
        got = [each.body for worker in it.fleet.workers for each in worker.received if each.path == path]
        assert got == [form.replace(b"NAME", MODEL.encode())]


async def test_aliases_are_listed_as_models() -> None:
    async with routed(2, ALIASES) as it:
        async with it.http.get(it.url + "/v1/models") as answer:
            cards = {card["id"]: card for card in (await answer.json())["data"]}
        assert list(cards) == [MODEL, "fast", "gpt-4o"], "and not the one that nobody could serve"
        assert cards["fast"] == {**cards[MODEL], "id": "fast", "root": MODEL}
        async with it.http.get(it.url + "/v1/models/gpt-4o") as answer:
            assert await answer.json() == cards["gpt-4o"]
        async with it.http.get(it.url + "/v1/models", headers={"anthropic-version": "2023-06-01"}) as answer:
            assert [card["id"] for card in (await answer.json())["data"]] == list(cards)
        async with it.http.get(it.url + "/v1/models/lost") as answer:
            assert answer.status == 404
        async with it.http.post(it.url + "/v1/completions", json={"model": "lost", "prompt": "x"}) as answer:
            assert answer.status == 404


# -- slow start


@pytest.mark.parametrize("policy", ["round_robin", "random", "least_loaded"])
@pytest.mark.parametrize("how", ["resumed", "added", "loaded"])
async def test_a_worker_that_comes_gets_less_at_first(policy: str, how: str) -> None:
    """Those that were there before have their full share; a window of an hour does not pass while the test runs."""
    extra = f"routing: {{policy: {policy}, slow_start: 3600s, cost: {{seed: 7}}}}"
    async with routed(3, extra) as it:
        for worker in it.program.state.workers:
            worker.ramp_from -= 7200.0  # they have been there for long
        fresh = it.program.state.workers[2]
        if how == "resumed":
            it.program.fleet.drain(fresh.id)
            it.program.fleet.resume(fresh.id)
        else:
            spec = it.program.fleet.members[fresh.id].spec
            await it.program.fleet.remove(fresh.id, 0.0)
            if how == "added":  # its models are configured: it may be used at once
                it.program.fleet.add(dataclasses.replace(spec, models=(MODEL,)))
            else:  # it tells its models when it has loaded them, long after it was added
                it.program.fleet.add(spec).ramp_from -= 7200.0
            await eventually(lambda: len(it.program.state.serving(MODEL)) == 3)
        counts: Counter[str] = Counter()
        if policy == "least_loaded":  # idle, it counts as if nine were there: both others come first
            answers = await asyncio.gather(*(it.complete(f"{n} ", max_tokens=2000) for n in range(16)))
            counts.update(answers)
            assert counts["w2"] == 0
        else:
            counts.update([await it.complete(f"{n}") for n in range(63)])
            assert 1 <= counts["w2"] <= 9, "a tenth of the others' weight"
            assert min(counts["w0"], counts["w1"]) >= 20


# -- explanations

ADMIN = "admin: {port: 0, token: a-token-of-32-characters-or-more}\n"


async def explained(it: Running, request_id: str) -> dict[str, Any]:
    """What the control plane tells of a request."""
    url = f"http://127.0.0.1:{it.program.admin_port}/admin/requests/{request_id}"
    headers = {"Authorization": "Bearer a-token-of-32-characters-or-more"}
    async with it.http.get(url, headers=headers) as answer:
        assert answer.status == 200, await answer.text()
        found: dict[str, Any] = await answer.json()
        return found


async def test_a_request_is_explained() -> None:
    async with routed(3, ADMIN + "routing: {sessions: {header: x-session-id}}") as it:
        prompt = "Once upon a time " * 100
        home = await it.complete(prompt, {"x-request-id": "first"})
        await eventually(lambda: len(it.program.index) > 20)
        assert await it.complete(prompt + "there was", {"x-request-id": "second", "x-session-id": "a"}) == home
        assert await it.complete(prompt + "there is", {"x-request-id": "third", "x-session-id": "a"}) == home
        second, third = await explained(it, "second"), await explained(it, "third")
        [attempt] = second["attempts"]
        candidates = {candidate["worker"]: candidate for candidate in attempt["candidates"]}
        assert set(candidates) == {"w0", "w1", "w2"}
        chosen = candidates.pop(home)
        assert chosen["chosen"]
        assert chosen["cached_tokens"] == second["reported_cached_tokens"] == attempt["predicted_cached_tokens"] > 300
        for other in candidates.values():
            assert not other["chosen"]
            assert other["cached_tokens"] == 0
            assert other["cost"] > chosen["cost"]
        assert attempt["why"].startswith("lowest cost of 3")
        assert attempt["result"] == "ok"
        assert not second["session_affinity"]
        assert third["session_affinity"]
        assert third["attempts"][0]["why"] == "its session is there"


async def test_a_session_that_moves_is_explained_try_by_try() -> None:
    async with routed(3, ADMIN + BY_HEADER) as it:
        home = await it.complete("Hello", {"x-session-id": "a"})
        await it.fleet.workers[int(home[1:])].kill()
        moved = await it.complete("Hello", {"x-session-id": "a", "x-request-id": "moved"})
        told = await explained(it, "moved")
        tries = told["attempts"]
        assert [each["worker"] for each in tries] == [home, moved]
        assert tries[0]["why"] == "its session is there"
        assert "session" not in tries[1]["why"]
        assert [len(each["candidates"]) for each in tries] == [3, 2]
        assert not told["session_affinity"]


async def test_blocks_that_are_not_on_a_device_are_told_by_tier() -> None:
    """Worker w1 publishes that it holds the beginning of a prompt on its host, not on its device."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    publisher = context.socket(zmq.PUB)
    publisher.set(zmq.LINGER, 0)
    publisher.bind("tcp://127.0.0.1:*")
    endpoint = str(publisher.get_string(zmq.LAST_ENDPOINT))
    prompt = "Once upon a time " * 100
    try:
        async with SimulatedFleet(2, FleetConfig(model=MODEL, engine=FAST), text=model_text()) as fleet:
            config = config_for(
                fleet.urls,
                f"models: [{{name: {MODEL}, tokenizer: embedded}}]\nlimits: {{drain_timeout: 0.2}}\n"
                "response_headers: {worker: x-worker}\n" + ADMIN,
                workers_extra=["", f", kv_events: {{endpoint: '{endpoint}'}}"],
            )
            async with running(config) as (program, port), aiohttp.ClientSession() as http:
                it = Running(f"http://127.0.0.1:{port}", program, fleet, http)
                async with http.post(it.url + "/tokenize", json={"model": MODEL, "prompt": prompt}) as answer:
                    tokens = (await answer.json())["tokens"]
                size = FAST.block_size
                hashes = tuple(EngineHash(1000 + n) for n in range(8))
                ids = TokenIds(b"".join(token.to_bytes(4, "little") for token in tokens[: 8 * size]))
                batch = EventBatch(0.0, (BlockStored(hashes, None, ids, size, medium="CPU"),))
                for sequence in range(500):  # until the subscriber is there to hear one
                    publisher.send_multipart((b"", sequence.to_bytes(8, "big"), encode_batch(batch)))
                    await asyncio.sleep(0.01)
                    if program.index.is_tiered:
                        break
                await it.complete(prompt, {"x-request-id": "tiered"})
                [attempt] = (await explained(it, "tiered"))["attempts"]
        tiers = {candidate["worker"]: candidate["blocks_by_tier"] for candidate in attempt["candidates"]}
        assert tiers == {"w0": None, "w1": {"host": 8}}
        assert attempt["predicted_cached_tokens"] == 0, "only what is on a device is there at once"
    finally:
        publisher.close()
        context.term()


async def test_a_promise_is_looked_at_and_explained() -> None:
    promises = tenants("acme, slo: {ttft: 30s, tpot: 10s}", "beta, slo: {ttft: 1ms}", "crew")
    async with routed(3, ADMIN + "routing: {policy: slo}\n" + promises) as it:
        for name in ("acme", "beta", "crew"):
            await it.complete(f"{name} " * 300, {"x-request-id": name, "authorization": f"Bearer {KEYS[name]}"})
        told = [await explained(it, name) for name in ("acme", "beta", "crew")]
        whys = [each["attempts"][0]["why"] for each in told]
        assert whys[0].startswith("it should keep its promise there: cost ")
        assert whys[1].startswith(
            "its promise will hardly be kept without computing more elsewhere, so the cheapest: cost "
        )
        assert whys[2].startswith("lowest cost of 3: ")
        assert all(each["predicted_ttft_s"] > 0.001 for each in told)
        assert it.program.state.predicts


# -- slower tiers

METRICS_OFTEN = "health: {probe: {metrics_interval: 0.1}}\n"
SHARED = TierConfig(4096, 0.2, 1e-4)
"""Twice as fast as computing for a thousand tokens, and dear enough for a holder that is free to be preferred."""


@contextlib.asynccontextmanager
async def sharing(n: int, extra: str = "", *, speed: float = 20.0) -> AsyncIterator[Running]:
    """A gateway and `n` workers with one store behind all of them, once their prices are known."""
    engine = EngineConfig(speed=speed, timing=LinearPrefill(2_000.0))
    settings = FleetConfig(model=MODEL, engine=engine, store=SHARED, **fleet_ports(n))
    async with (
        SimulatedFleet(n, settings, text=model_text()) as fleet,
        in_front(fleet, ADMIN + METRICS_OFTEN + extra) as it,
    ):
        await eventually(lambda: all(len(worker.tiers) == 1 for worker in it.program.state.workers))
        yield it


async def test_a_chat_whose_worker_drains_is_restored_elsewhere_from_the_store_they_share() -> None:
    async with sharing(3) as it:
        prices = {worker.tiers for worker in it.program.state.workers}
        assert prices == {(TierPrice(Tier.REDIS, 0.2 / 20, 1e-4 / 20, it.fleet.store.store),)}  # type: ignore[union-attr]  # it has one
        messages = [{"role": "user", "content": "Tell me of the sea, at length. " * 150}]
        chat = {"model": MODEL, "messages": messages, "max_tokens": 4}
        home, first = await it.post("/v1/chat/completions", chat)
        assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        await eventually(lambda: it.program.index.is_tiered)
        held = it.program.index.block_count(WorkerId(home))
        messages += [first["choices"][0]["message"], {"role": "user", "content": "And of the shore?"}]

        again, second = await it.post("/v1/chat/completions", chat, {"x-request-id": "holder"})
        assert again == home
        assert (await explained(it, "holder"))["attempts"][0]["choice"] == "holder"

        it.program.fleet.drain(WorkerId(home))
        moved, third = await it.post("/v1/chat/completions", chat, {"x-request-id": "moved"})
        assert moved != home
        told = await explained(it, "moved")
        [attempt] = told["attempts"]
        prompt_tokens, cached = (
            third["usage"]["prompt_tokens"],
            third["usage"]["prompt_tokens_details"]["cached_tokens"],
        )
        assert prompt_tokens > 1_000
        assert cached > prompt_tokens - 64, "restored there, though it was never there"
        assert attempt["choice"] == "restore"
        assert attempt["predicted_cached_tokens"] == told["predicted_cached_tokens"] == 0
        predicted = attempt["predicted_restored_tokens"]
        assert predicted == told["predicted_restored_tokens"]
        assert cached - 16 <= predicted <= cached, "the event of the last block may be under way"
        assert "(restore)" in attempt["why"]
        for candidate in attempt["candidates"]:
            assert (candidate["cached_tokens"], candidate["restorable_tokens"]) == (0, predicted)
            assert set(candidate["blocks_by_tier"]) == {"redis"}
        assert third["choices"][0]["message"] == second["choices"][0]["message"], "text does not depend on caches"
        assert it.program.index.block_count(WorkerId(home)) >= held

        page = generate_latest(make_registry(gauges_of(it.program), it.program.metrics)).decode()
        labels = f'{{choice="%s",model="{MODEL}",route="chat"}}'
        assert f"prefixgate_routing_choices_total{labels % 'restore'} 1.0" in page
        assert f"prefixgate_routing_choices_total{labels % 'holder'} 1.0" in page
        assert f'prefixgate_predicted_restored_tokens_total{{model="{MODEL}",route="chat"}} {float(predicted)}' in page
        assert it.program.drift.of(WorkerId(moved)).average == 0.0, "what was restored as predicted is no drift"


async def test_a_busy_holder_is_left_for_a_restore() -> None:
    async with sharing(2, "routing: {sessions: {header: x-session-id}}\n", speed=4.0) as it:
        prompt = "Once upon a time there was a lighthouse. " * 200
        home = await it.complete(prompt, {"x-session-id": "a"})
        await eventually(lambda: it.program.index.is_tiered)
        assert await it.complete(prompt + " It was tall.") == home
        # More than a second each, one after the other, and their session keeps them at home.
        busy = [
            asyncio.create_task(it.complete(f"{n} " + "other words come here " * 2_500, {"x-session-id": "a"}))
            for n in range(4)
        ]
        await eventually(lambda: it.program.state.worker(WorkerId(home)).active == 4)
        other = await it.complete(prompt + " It was white.", {"x-request-id": "asked"})
        assert other != home
        [attempt] = (await explained(it, "asked"))["attempts"]
        candidates = {candidate["worker"]: candidate for candidate in attempt["candidates"]}
        assert attempt["choice"] == "restore"
        assert candidates[home]["cached_tokens"] == candidates[other]["restorable_tokens"] > 1_000
        assert candidates[home]["queued_tokens"] > 10_000
        assert set(await asyncio.gather(*busy)) == {home}


async def test_prices_that_are_told_no_longer_are_forgotten() -> None:
    async with sharing(2) as it:
        await it.complete("Once upon a time " * 100)
        await eventually(lambda: it.program.index.is_tiered)
        await it.fleet.workers[1].kill()
        await eventually(lambda: not it.program.state.workers[1].tiers)
        assert len(it.program.state.workers[0].tiers) == 1
        await it.fleet.workers[1].restart()
        await eventually(lambda: len(it.program.state.workers[1].tiers) == 1)
