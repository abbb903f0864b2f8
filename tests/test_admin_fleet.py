"""The control plane of a whole gateway: workers that are managed under traffic, and what is told of requests."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.program import Program
from policies.types import WorkerId
from tests.gateway_fixtures import ScriptedWorker, config_for, eventually
from tests.reload_fixtures import CHAT, TOKEN, Running, entry, from_file, lines
from tests.test_telemetry import collecting, values

__all__ = ["lines"]

LONG = {**CHAT, "stream": True, "max_tokens": 200, "ignore_eos": True}
MODELS = "[{name: simulated, tokenizer: embedded}]"


@pytest.fixture
async def gateway(tmp_path: Path, lines: list[str]) -> AsyncIterator[Running]:
    async with from_file(tmp_path, lines, speed=2.0, models=MODELS) as gateway:
        yield gateway


async def standing(gateway: Running, worker: str) -> dict[str, Any]:
    """One worker as the list tells it."""
    status, data = await gateway.admin("GET", "/admin/workers")
    assert status == 200
    (found,) = [each for each in data["data"] if each["id"] == worker]
    return dict(found)


async def start_stream(gateway: Running, **changes: Any) -> aiohttp.ClientResponse:
    """A long stream of which the first bytes have come."""
    response = await gateway.http.post(f"{gateway.url}/v1/chat/completions", json={**LONG, **changes})
    assert response.status == 200
    await response.content.readany()
    return response


# --- workers -----------------------------------------------------------------------------------------------


async def test_the_list_tells_what_each_worker_has_to_do(gateway: Running) -> None:
    response = await start_stream(gateway)
    worker = response.headers["x-worker"]
    told = await standing(gateway, worker)
    assert (told["standing"], told["active"], told["models"]) == ("ready", 1, ["simulated"])
    assert told["connections"] == 1
    other = await standing(gateway, "w1" if worker == "w0" else "w0")
    assert (other["active"], other["connections"]) == (0, 0)
    await response.read()
    await eventually(lambda: gateway.program.fleet.members[WorkerId(worker)].worker.served == 1)
    told = await standing(gateway, worker)
    assert (told["active"], told["served"]) == (0, 1)
    assert told["queued_tokens"] == 0


async def test_a_worker_is_added_drained_resumed_and_removed(gateway: Running) -> None:
    new = {"name": "w2", "url": gateway.fleet.workers[2].url}
    assert (await gateway.admin("POST", "/admin/workers", json=new))[0] == 201
    assert (await gateway.admin("POST", "/admin/workers", json=new))[0] == 409
    assert (await gateway.admin("POST", "/admin/workers", json={**new, "name": "w3"}))[0] == 409
    await eventually(lambda: gateway.program.fleet.members[WorkerId("w2")].worker.models)
    for worker in ("w0", "w1"):
        assert (await gateway.admin("POST", f"/admin/workers/{worker}/drain"))[0] == 200
        assert (await standing(gateway, worker))["standing"] == "draining"
    assert {await gateway.chat() for _ in range(4)} == {"w2"}
    assert (await gateway.admin("POST", "/admin/workers/w0/resume"))[0] == 200
    assert (await gateway.admin("DELETE", "/admin/workers/w2"))[0] == 200
    assert {await gateway.chat() for _ in range(4)} == {"w0"}
    for method, path in (("DELETE", ""), ("POST", "/drain"), ("POST", "/resume")):
        assert (await gateway.admin(method, f"/admin/workers/w2{path}"))[0] == 404


async def test_what_a_removed_worker_is_at_may_end_within_the_grace(gateway: Running) -> None:
    response = await start_stream(gateway, max_tokens=60)
    worker = response.headers["x-worker"]
    removal = asyncio.create_task(gateway.admin("DELETE", f"/admin/workers/{worker}", params={"grace": "20s"}))
    await eventually(lambda: worker not in gateway.program.fleet.members)
    assert await gateway.chat() != worker
    assert not removal.done()
    assert (await response.read()).endswith(b"data: [DONE]\n\n")
    assert await removal == (200, {"id": worker, "removed": True})


async def test_after_the_grace_a_stream_ends_with_an_error_event(gateway: Running) -> None:
    response = await start_stream(gateway, max_tokens=2000)
    worker = response.headers["x-worker"]
    status, _ = await gateway.admin("DELETE", f"/admin/workers/{worker}", params={"grace": "100ms"})
    assert status == 200
    body = await response.read()
    assert b"[DONE]" not in body
    last = body.rstrip().split(b"\n\n")[-1]
    assert "error" in json.loads(last.removeprefix(b"data: "))
    assert not gateway.program.fleet.leaving
    assert gateway.program.state._impaired <= set(gateway.program.state.workers)


async def test_before_the_first_byte_a_request_goes_elsewhere_when_its_worker_is_cut(gateway: Running) -> None:
    for worker in gateway.fleet.workers[:2]:
        worker.hang()
    request = asyncio.create_task(gateway.chat())
    state = gateway.program.state
    await eventually(lambda: any(worker.active for worker in state.workers))
    (busy,) = [worker for worker in state.workers if worker.active]
    (other,) = [worker for worker in state.workers if worker is not busy]
    gateway.fleet.workers[int(other.id[1:])].resume()
    assert (await gateway.admin("DELETE", f"/admin/workers/{busy.id}", params={"grace": "0s"}))[0] == 200
    assert await request == other.id
    status, told = await gateway.admin("GET", "/admin/requests")
    assert status == 200
    assert told["data"][0]["retries"] == 1


async def test_a_worker_of_the_same_name_has_nothing_to_do_with_the_one_before(gateway: Running) -> None:
    response = await start_stream(gateway, max_tokens=2000)
    worker = WorkerId(response.headers["x-worker"])
    before = gateway.program.fleet.members[worker].worker
    removal = asyncio.create_task(gateway.admin("DELETE", f"/admin/workers/{worker}", params={"grace": "300ms"}))
    await eventually(lambda: worker not in gateway.program.fleet.members)
    new = {"name": worker, "url": gateway.fleet.workers[2].url}
    assert (await gateway.admin("POST", "/admin/workers", json=new))[0] == 201
    await removal
    await response.read()
    now = gateway.program.fleet.members[worker].worker
    assert now is not before
    assert (now.active, now.failures, now.resting_until, now.draining) == (0, 0, 0.0, False)
    assert before.active == 0


# --- requests ----------------------------------------------------------------------------------------------


async def test_a_request_is_explained(gateway: Running) -> None:
    story = {**CHAT, "messages": [{"role": "user", "content": "So it was told. " * 60}]}
    url = f"{gateway.url}/v1/chat/completions"
    async with gateway.http.post(url, json=story) as response:
        await response.read()
    async with gateway.http.post(url, json=story) as response:
        await response.read()
    request_id, worker = response.headers["x-request-id"], response.headers["x-worker"]
    status, listed = await gateway.admin("GET", "/admin/requests", params={"worker": worker, "outcome": "ok"})
    assert status == 200
    assert listed["data"][0]["id"] == request_id
    status, told = await gateway.admin("GET", f"/admin/requests/{request_id}")
    assert status == 200
    assert (told["worker"], told["status"], told["outcome"], told["retries"]) == (worker, 200, "ok", 0)
    (attempt,) = told["attempts"]
    assert {each["worker"] for each in attempt["candidates"]} == {"w0", "w1"}
    (chosen,) = [each for each in attempt["candidates"] if each["chosen"]]
    assert chosen["worker"] == worker
    assert chosen["cached_tokens"] == told["predicted_cached_tokens"] > 100
    assert all(each["cost"] is not None for each in attempt["candidates"])
    assert "cost" in attempt["why"]
    assert told["reported_cached_tokens"] > 100
    times = told["times_s"]
    assert 0 <= times["routed"] <= times["first_byte"] <= times["finished"]
    assert "told. So" not in json.dumps(told)


# --- configuration, readiness ------------------------------------------------------------------------------


async def test_the_configuration_is_shown_without_secrets(tmp_path: Path, lines: list[str]) -> None:
    async with from_file(tmp_path, lines, used=1, telemetry="{headers: {x-key: a-secret-of-ours}}") as gateway:
        gateway.settings.workers.append("name: w9, url: 'http://127.0.0.1:9', api_key: a-secret-key")
        await gateway.change()
        status, config = await gateway.admin("GET", "/admin/config")
        assert status == 200
        assert [worker["name"] for worker in config["workers"]] == ["w0", "w9"]
        text = json.dumps(config)
        assert "a-secret" not in text
        assert TOKEN not in text


async def test_ready_from_start_to_end(tmp_path: Path, lines: list[str]) -> None:
    async with from_file(tmp_path, lines, used=1, limits="{drain_timeout: 5s}") as gateway:
        assert await gateway.admin("GET", "/readyz") == (200, {"status": "ready"})
        await gateway.admin("POST", "/admin/workers/w0/drain")
        assert await gateway.admin("GET", "/readyz") == (
            503,
            {"status": "not ready", "reason": "no worker can be given requests"},
        )
        await gateway.admin("POST", "/admin/workers/w0/resume")
        assert (await gateway.admin("GET", "/readyz"))[0] == 200
        await gateway.admin("DELETE", "/admin/workers/w0", params={"grace": "0s"})
        assert await gateway.admin("GET", "/readyz") == (503, {"status": "not ready", "reason": "there is no worker"})
        new = {"name": "w2", "url": gateway.fleet.workers[2].url}
        assert (await gateway.admin("POST", "/admin/workers", json=new))[0] == 201
        await eventually(lambda: gateway.program.state.models)
        gateway.fleet.workers[2].hang()
        waiting = asyncio.create_task(gateway.chat())
        await eventually(lambda: gateway.program.pipeline.live)
        ending = asyncio.create_task(gateway.program.close())
        await eventually(lambda: gateway.program.stopping)
        assert await gateway.admin("GET", "/readyz") == (
            503,
            {"status": "not ready", "reason": "the gateway is stopping"},
        )
        assert (await gateway.admin("GET", "/livez"))[0] == 200
        assert (await gateway.admin("POST", "/admin/reload"))[0] == 200  # the file has not changed
        gateway.fleet.workers[2].resume()
        assert await waiting == "w2"
        await ending


async def test_while_it_starts_it_lives_and_is_not_ready() -> None:
    async with ScriptedWorker(silent).running() as worker:
        program = Program(config_for([worker.url], "admin: {port: 0}\nlimits: {drain_timeout: 0.1}\n"))
        starting = asyncio.create_task(program.start())
        await eventually(lambda: program.admin_port)
        await watch_start(program, starting)
        await program.close()


async def silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    """A worker that takes all and answers nothing."""
    await reader.read()


async def watch_start(program: Program, starting: asyncio.Task[int]) -> None:
    """Ask how it is until it has started."""
    async with aiohttp.ClientSession(f"http://127.0.0.1:{program.admin_port}") as http:
        async with http.get("/livez") as response:
            assert response.status == 200
        async with http.get("/readyz") as response:
            assert (response.status, (await response.json())["reason"]) == (503, "the gateway is starting")
        assert not starting.done()
        await starting
        async with http.get("/readyz") as response:
            assert (response.status, (await response.json())["reason"]) == (503, "no worker can be given requests")


# --- metrics and traces ------------------------------------------------------------------------------------


async def test_metrics_after_real_traffic(gateway: Running) -> None:
    program = gateway.program
    new = entry(gateway.fleet, 2)
    gateway.settings.workers.append(new)
    await gateway.change()
    for at in range(5):
        await gateway.chat(messages=[{"role": "user", "content": f"{at} is a number. " * 40}])
    async with gateway.http.post(f"{gateway.url}/v1/chat/completions", json={**CHAT, "model": "none"}) as response:
        assert response.status == 404
    async with gateway.http.get(f"http://127.0.0.1:{program.admin_port}/metrics") as response:
        page = await response.text()
    blocks = re.search(r"^prefixgate_index_blocks(?:\{\})? ([0-9.e+]+)$", page, re.MULTILINE)
    assert blocks is not None, page
    assert float(blocks[1]) == len(program.index) == sum(map(program.index.block_count, program.fleet.members))
    program.index.check_integrity()
    assert float(blocks[1]) > 0
    requests = re.findall(r'^prefixgate_requests_total\{(.*outcome="ok".*)\} ([0-9.]+)$', page, re.MULTILINE)
    assert sum(float(count) for _, count in requests) == 5
    if promtool := shutil.which("promtool"):
        checked = await asyncio.to_thread(
            subprocess.run, [promtool, "check", "metrics"], input=page.encode(), capture_output=True, check=False
        )
        assert b"error" not in checked.stderr.lower(), checked.stderr


async def test_a_trace_goes_on_to_the_worker_and_its_span_to_a_collector(
    tmp_path: Path,
    lines: list[str],
) -> None:
    trace, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
    async with (
        collecting() as collector,
        from_file(tmp_path, lines, used=1, telemetry=f"{{endpoint: '{collector.url}'}}") as gateway,
    ):
        await gateway.chat(headers={"traceparent": f"00-{trace}-{parent}-01"})
        await gateway.chat()
        first, second = [each for each in gateway.fleet.workers[0].received if each.method == "POST"]
        await eventually(lambda: len(collector.spans) == 2)
        ours, own = collector.spans
        assert first.headers["traceparent"] == f"00-{trace}-{ours.span_id.hex()}-01"
        assert (ours.trace_id.hex(), ours.parent_span_id.hex()) == (trace, parent)
        assert second.headers["traceparent"] == f"00-{own.trace_id.hex()}-{own.span_id.hex()}-01"
        assert own.parent_span_id == b""
        assert own.trace_id != ours.trace_id
        assert values(ours.attributes)["gen_ai.request.model"] == "simulated"
        assert ours.start_time_unix_nano < ours.end_time_unix_nano
