"""What a simulated worker can be told to be: keys, adapters, metric names; what it received; bodies untouched."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from typing import Any

import aiohttp
import anthropic
import openai
import pytest

from backends.simulated.engine import EngineConfig
from backends.simulated.fleet import FleetConfig, SimulatedWorker
from backends.simulated.passthrough_routes import PATHS
from backends.simulated.prometheus_text import Flavour, Throughput
from cache.kv_events import BlockStored, Encoding, EventBatch, decode_batch
from tests.gateway_fixtures import eventually
from tests.simulated_fixtures import DIALECTS, STORY, one_worker

IDS = list(range(40))


async def post(worker: SimulatedWorker, path: str, body: object, **headers: str) -> tuple[int, Any]:
    async with (
        aiohttp.ClientSession(base_url=worker.url) as http,
        http.post(path, json=body, headers=headers) as response,
    ):
        return response.status, await response.json()


async def page(worker: SimulatedWorker) -> str:
    async with aiohttp.ClientSession(base_url=worker.url) as http, http.get("/metrics") as response:
        return await response.text()


# --- keys --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", DIALECTS, ids=[each.name for each in DIALECTS])
async def test_a_key_is_wanted_as_a_bearer_token(dialect: Any) -> None:
    async with one_worker(api_key="s3cret") as worker:
        wrong = [{}, {"Authorization": "Bearer s3cre"}, {"Authorization": "s3cret"}, {"x-api-key": "s3cret"}]
        for headers in wrong:
            status, refused = await post(worker, dialect.path, dialect.body, **headers)
            assert status == 401
            if dialect.name == "messages":
                assert (refused["type"], refused["error"]["type"]) == ("error", "authentication_error")
            else:
                assert (refused["error"]["code"], refused["error"]["type"]) == (401, "AuthenticationError")
            assert "s3cret" not in str(refused)
        status, _ = await post(worker, dialect.path, dialect.body, Authorization="Bearer s3cret")
        assert status == 200


async def test_health_and_metrics_stay_open_and_models_do_not() -> None:
    async with one_worker(api_key="s3cret") as worker, aiohttp.ClientSession(base_url=worker.url) as http:
        statuses = {}
        for path in ("/health", "/metrics", "/version", "/v1/models"):
            async with http.get(path) as response:
                statuses[path] = response.status
        assert statuses == {"/health": 200, "/metrics": 200, "/version": 200, "/v1/models": 401}
        async with openai.AsyncOpenAI(base_url=f"{worker.url}/v1", api_key="s3cret") as client:
            assert [model.id for model in (await client.models.list()).data] == ["simulated"]
        async with anthropic.AsyncAnthropic(base_url=worker.url, auth_token="s3cret") as client:
            counted = await client.messages.count_tokens(
                model="simulated", messages=[{"role": "user", "content": "Hi."}]
            )
            assert counted.input_tokens > 0


def test_a_configuration_does_not_show_its_key() -> None:
    assert "s3cret" not in repr(FleetConfig(api_key="s3cret"))


# --- adapters ----------------------------------------------------------------------------------------------


@contextmanager
def published(worker: SimulatedWorker) -> Iterator[list[EventBatch]]:
    """The batches that a worker publishes from now on, as they are on the wire."""
    assert worker.publisher is not None
    kept = worker.publisher.kept
    before = len(kept)
    found: list[EventBatch] = []
    yield found
    found += [decode_batch(payload) for _, payload in list(kept)[before:]]


@pytest.mark.parametrize("encoding", list(Encoding))
async def test_adapters_have_chains_of_their_own_and_events_tell_them(encoding: Encoding) -> None:
    async with one_worker(adapters=("french", "legal"), kv_encoding=encoding) as worker:
        cached = []
        with published(worker) as batches:
            for model in ("simulated", "french", "legal", "french"):
                asked = {"model": model, "prompt": IDS, "max_tokens": 1}
                status, answer = await post(worker, "/v1/completions", asked)
                assert (status, answer["model"]) == (200, model)
                cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
        assert cached == [0, 0, 0, 32]
        events = [event for batch in batches for event in batch.events]
        stored = [event for event in events if isinstance(event, BlockStored)]
        assert [event.lora_name for event in stored] == [None, "french", "legal"]
        assert len({event.block_hashes for event in stored}) == 3
        assert len({event.token_ids for event in stored}) == 1


async def test_adapters_are_listed_with_their_parent_and_served_everywhere() -> None:
    async with one_worker(adapters=("french",)) as worker:
        async with aiohttp.ClientSession(base_url=worker.url) as http, http.get("/v1/models") as response:
            models = (await response.json())["data"]
        assert [(model["id"], model["parent"]) for model in models] == [("simulated", None), ("french", "simulated")]
        for dialect in DIALECTS:
            status, answer = await post(worker, dialect.path, {**dialect.body, "model": "french"})
            assert (status, answer["model"]) == (200, "french")
        status, answer = await post(worker, "/v1/embeddings", {"model": "french", "input": STORY})
        assert (status, answer["model"]) == (200, "french")
        assert (await post(worker, "/v1/completions", {"model": "german", "prompt": "a"}))[0] == 404


# --- metrics -----------------------------------------------------------------------------------------------


def values(text: str) -> dict[str, float]:
    return {name: float(value) for name, value in re.findall(r"^([\w:]+)\{[^}]*\} (\S+)$", text, re.MULTILINE)}


async def test_metrics_can_have_sglang_s_names() -> None:
    async with one_worker(flavour=Flavour.SGLANG) as worker:
        for _ in range(2):
            await post(worker, "/v1/completions", {"prompt": IDS, "max_tokens": 5})
        text = await page(worker)
        seen = values(text)
        assert "vllm:" not in text
        assert 'model_name="simulated"' in text
        assert seen["sglang:prompt_tokens_total"] == 80
        assert seen["sglang:generation_tokens_total"] == 10
        assert seen["sglang:cached_tokens_total"] == 32
        assert seen["sglang:num_requests_total"] == 2
        assert seen["sglang:cache_hit_rate"] == 0.4
        assert seen["sglang:max_total_num_tokens"] == 1024 * 16
        assert seen["sglang:gen_throughput"] > 0
        assert (seen["sglang:num_used_tokens"], seen["sglang:token_usage"]) == (0, 0)
        assert seen["sglang:time_to_first_token_seconds_count"] == 2
        worker.hang()
        asking = [
            asyncio.create_task(post(worker, "/v1/completions", {"prompt": IDS, "max_tokens": 5})) for _ in range(2)
        ]
        await eventually(lambda: worker.engine.stats().waiting == 2)
        seen = values(await page(worker))
        assert (seen["sglang:num_running_reqs"], seen["sglang:num_queue_reqs"]) == (0, 2)
        worker.resume()
        assert [status for status, _ in await asyncio.gather(*asking)] == [200, 200]


async def test_gauges_tell_what_runs_and_waits() -> None:
    engine = EngineConfig(blocks=100, block_size=16, max_num_seqs=1, max_batched_tokens=64)
    async with one_worker(engine=engine) as worker:
        asked = {"prompt": IDS, "max_tokens": 1400, "ignore_eos": True}
        asking = [asyncio.create_task(post(worker, "/v1/completions", asked)) for _ in range(3)]
        await eventually(lambda: worker.engine.stats().running == 1)
        worker.hang()
        seen = values(await page(worker))
        assert (seen["vllm:num_requests_running"], seen["vllm:num_requests_waiting"]) == (1, 2)
        assert 0.03 <= seen["vllm:kv_cache_usage_perc"] < 1
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        await eventually(lambda: worker.engine.idle)


def test_throughput_is_between_two_looks() -> None:
    throughput = Throughput(10.0)
    assert throughput.look(12.0, 100) == 50.0
    assert throughput.look(12.0, 100) == 0.0
    assert throughput.look(13.0, 130) == 30.0


# --- what was received -------------------------------------------------------------------------------------


async def test_requests_are_remembered_where_asked_and_bounded() -> None:
    async with one_worker(record=3) as worker:
        for number in range(4):
            headers = {"traceparent": f"00-{number}", "X-Forwarded-For": "10.0.0.1", "Authorization": "Bearer k"}
            await post(worker, "/v1/completions?a=b", {"prompt": IDS, "max_tokens": 1, "n": number + 1}, **headers)
        assert [each.headers["Traceparent"] for each in worker.received] == ["00-1", "00-2", "00-3"]
        last = worker.received[-1]
        assert (last.method, last.path) == ("POST", "/v1/completions?a=b")
        assert last.headers["x-forwarded-for"] == "10.0.0.1"
        assert last.headers["authorization"] == "Bearer k"
        assert "via" not in last.headers
        assert b'"n": 4' in last.body
        await worker.restart()
        assert len(worker.received) == 3
    async with one_worker() as forgetful:
        await post(forgetful, "/v1/completions", {"prompt": IDS, "max_tokens": 1})
        assert not forgetful.received


async def test_a_refused_request_is_remembered_too_and_repeated_headers_are_kept() -> None:
    async with one_worker(record=9, api_key="k") as worker:
        _, writer = await asyncio.open_connection("127.0.0.1", worker.port)
        writer.write(b"GET /v1/models HTTP/1.1\r\nHost: w\r\nVia: 1.1 a\r\nVia: 1.1 b\r\n\r\n")
        await eventually(lambda: worker.received)
        assert worker.received[0].headers.getall("via") == ["1.1 a", "1.1 b"]
        writer.close()
        await writer.wait_closed()


# --- bodies that pass untouched ----------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
async def test_bodies_are_answered_with_their_digest(path: str) -> None:
    body = bytes(range(256)) * 4000
    kind = "multipart/form-data; boundary=x"
    async with (
        one_worker() as worker,
        aiohttp.ClientSession(base_url=worker.url) as http,
        http.post(path, data=body, headers={"Content-Type": kind}) as response,
    ):
        assert response.status == 200
        assert await response.json() == {
            "sha256": sha256(body).hexdigest(),
            "length": len(body),
            "content_type": kind,
        }


async def test_a_real_client_s_multipart_arrives() -> None:
    sound = b"RIFF" + bytes(1000)
    async with (
        one_worker(record=1) as worker,
        openai.AsyncOpenAI(base_url=f"{worker.url}/v1", api_key="none", max_retries=0) as client,
    ):
        raw = await client.audio.transcriptions.with_raw_response.create(model="any", file=("a.wav", sound))
        answer = raw.http_response.json()
        received = worker.received[0].body
        assert sound in received
        assert (answer["sha256"], answer["length"]) == (sha256(received).hexdigest(), len(received))
        assert answer["content_type"].startswith("multipart/form-data; boundary=")
