"""A worker whose engine, client or start goes wrong: processes that die, hang, refuse and stall."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from backends.simulated.model_text import EMBEDDED_TOKENIZER
from backends.worker.engine_client import EngineError
from backends.worker.options import EngineOptions, WorkerOptions
from backends.worker.worker import Worker
from cache.tokenizer import TokenizerError
from tests.gateway_fixtures import eventually
from tests.worker_fixtures import MODEL, running_worker, worker_options

ROOT = Path(__file__).parent.parent
PROMPT = "Once upon a time there was a gateway that knew where every prefix lived. " * 4
DONE = "data: [DONE]\n\n"


@pytest.fixture(autouse=True)
def no_folder_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # A socket's path has at most 107 characters, and `tmp_path` alone may have as many.
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield
        assert list(Path(folder).iterdir()) == []


def completion(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": PROMPT, "max_tokens": 200, "ignore_eos": True, **fields}


async def ask(worker: Worker, body: dict[str, Any] | None = None, **headers: str) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession(base_url=worker.url) as http,
        http.post("/v1/completions", json=body or completion(), headers=headers) as response,
    ):
        return response.status, await response.text()


async def health(worker: Worker) -> tuple[int, str]:
    async with aiohttp.ClientSession(base_url=worker.url) as http, http.get("/health") as response:
        return response.status, await response.text()


def alive(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


# --- starts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        ("silent", "not ready within 0.7 s"),
        ("fail", "there are no weights"),
        ("exit", "ended with status 3"),
    ],
)
async def test_an_engine_that_does_not_start(behaviour: str, reason: str) -> None:
    within = 0.7 if behaviour == "silent" else 20.0
    worker = Worker(worker_options(behaviour, ready_within=within, stop_within=1.0))
    with pytest.raises(EngineError, match=reason):
        await worker.__aenter__()
    assert worker.engine.pid is None


async def test_a_command_that_is_none() -> None:
    worker = Worker(worker_options(engine_command=("/nowhere/at/all",)))
    with pytest.raises(EngineError, match="cannot be started"):
        await worker.__aenter__()


async def test_a_port_that_is_taken_is_told_before_the_engine_starts() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        worker = Worker(worker_options(port=taken.getsockname()[1]))
        with pytest.raises(OSError, match="in use"):
            await worker.__aenter__()
    assert worker.engine.pid is None


async def test_a_directory_without_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError):
        await Worker(worker_options(tokenizer=tmp_path)).__aenter__()


async def test_a_start_that_is_given_up_leaves_nothing_behind() -> None:
    worker = Worker(worker_options("silent", stop_within=1.0))
    starting = asyncio.create_task(worker.__aenter__())
    await eventually(lambda: worker.engine.pid is not None, timeout=20.0)
    pid = worker.engine.pid
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert pid is not None
    assert not alive(pid)


# --- an engine that fails ----------------------------------------------------------------------------------


@pytest.mark.parametrize("behaviour", ["die:5", "garbage:5"])
async def test_an_engine_that_fails_ends_every_request_cleanly(behaviour: str) -> None:
    async with running_worker(behaviour) as worker:
        streamed, unary = await asyncio.gather(ask(worker, completion(stream=True)), ask(worker))
        assert streamed[0] in (200, 500)
        if streamed[0] == 200:
            assert streamed[1].endswith(DONE)
            assert '"code":500' in streamed[1]
        assert unary[0] == 500
        assert "InternalServerError" in unary[1]
        reason = await asyncio.wait_for(worker.failed(), 5.0)
        assert ("signal 9" if behaviour == "die:5" else "cannot be understood") in reason
        assert (await health(worker))[0] == 503
        assert json.loads((await health(worker))[1])["error"]["message"] == reason
        status, body = await ask(worker)
        assert (status, "ServiceUnavailableError" in body) == (503, True)
        assert worker.engine.open_sequences == 0


async def test_a_stream_that_fails_in_the_middle_says_so() -> None:
    async with running_worker("die:8", "pace:50") as worker:
        status, body = await ask(worker, completion(stream=True))
        events = body.split("\n\n")
        assert (status, events[-2:]) == (200, ["data: [DONE]", ""])
        assert '"error":{"message":"the engine was ended by signal 9"' in events[-3]
        assert all('"text":' in event for event in events[:-3])
        assert len(events) > 5


async def test_an_engine_that_hangs_is_unhealthy_until_it_speaks_again() -> None:
    async with running_worker("hang:5", "wake:4", "pace:20", hung_after=1.0) as worker:
        streamed, unary = await asyncio.gather(ask(worker, completion(stream=True)), ask(worker))
        assert (streamed[0], unary[0]) == (200, 500)
        assert "hangs" in streamed[1]
        assert streamed[1].endswith(DONE)
        assert "hangs" in unary[1]
        status, body = await health(worker)
        assert (status, "told nothing for 1 s" in body) == (503, True)
        assert (await ask(worker))[0] == 503
        async with asyncio.timeout(10):
            while (await health(worker))[0] != 200:  # noqa: ASYNC110 - a route has no event
                await asyncio.sleep(0.05)
        assert (await ask(worker, completion(max_tokens=3)))[0] == 200
        assert worker.engine.open_sequences == 0


async def test_an_idle_engine_does_not_hang() -> None:
    async with running_worker(hung_after=0.5) as worker:
        # It speaks about every 0.2 s, though it has nothing to tell.
        await eventually(lambda: worker.engine.stats.steps >= 5)
        assert (await health(worker))[0] == 200


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("behaviour", "status", "param"), [("refuse", 400, '"max_tokens"'), ("full", 503, "null")])
async def test_what_the_engine_refuses_has_a_status_of_its_own(
    behaviour: str, status: int, param: str, stream: bool
) -> None:
    async with running_worker(behaviour) as worker:
        got, body = await ask(worker, completion(stream=stream, n=3))
        assert (got, f'"param":{param}' in body) == (status, True)
        assert worker.engine.open_sequences == 0


async def test_an_answer_that_cannot_be_rendered_is_one_request_s_alone() -> None:
    async with running_worker("untold") as worker:
        status, body = await ask(worker, completion(logprobs=1, max_tokens=3))
        assert (status, json.loads(body)["error"]["code"]) == (500, 500)
        status, body = await ask(worker, completion(logprobs=1, max_tokens=3, stream=True))
        assert (status, body.endswith(DONE), "cannot be rendered" in body) == (200, True, True)
        assert worker.engine.open_sequences == 0
        assert (await ask(worker, completion(max_tokens=3)))[0] == 200


async def test_sequences_beyond_the_bound_are_refused_together() -> None:
    async with running_worker("pace:20", max_open_sequences=4) as worker:
        first = asyncio.create_task(ask(worker, completion(n=3, max_tokens=50)))
        await eventually(lambda: worker.engine.open_sequences == 3)
        status, body = await ask(worker, completion(n=2))
        assert (status, "4 sequences are open already" in body) == (503, True)
        assert worker.engine.open_sequences == 3
        assert (await first)[0] == 200


# --- stops -------------------------------------------------------------------------------------------------


async def test_an_engine_that_does_not_end_is_killed() -> None:
    async with running_worker("stubborn", stop_within=0.3) as worker:
        pid = worker.engine.pid
        assert pid is not None
        assert alive(pid)
    assert not alive(pid)


async def test_requests_may_finish_while_the_worker_stops() -> None:
    async with running_worker("pace:20", drain_within=10.0) as worker:
        asked = asyncio.create_task(ask(worker, completion(max_tokens=20, stream=True)))
        await eventually(lambda: worker.engine.open_sequences == 1)
    status, body = await asked
    assert (status, body.endswith(DONE), '"error"' in body) == (200, True, False)


SERVE = """
import asyncio, sys
from tests.worker_fixtures import worker_options
from backends.worker.worker import Worker
async def main():
    async with Worker(worker_options()) as worker:
        print(worker.engine.pid, "torch" in sys.modules, flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""


async def test_the_server_knows_no_torch_and_its_engine_ends_with_it(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("t")  # a killed server cannot tidy up
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SERVE, cwd=ROOT, stdout=subprocess.PIPE, env={**os.environ, "TMPDIR": str(folder)}
    )
    try:
        assert server.stdout is not None
        async with asyncio.timeout(30):
            pid, torch = (await server.stdout.readline()).split()
        assert torch == b"False"
        assert alive(int(pid))
    finally:
        server.send_signal(signal.SIGKILL)
        await server.wait()
    await eventually(lambda: not alive(int(pid)), timeout=10.0)


# --- clients -----------------------------------------------------------------------------------------------


async def test_a_key_is_wanted_under_v1_alone() -> None:
    async with running_worker(api_key="secret") as worker:
        assert (await ask(worker))[0] == 401
        assert (await ask(worker, Authorization="Bearer other"))[0] == 401
        assert (await ask(worker, Authorization="Bearer secret"))[0] == 200
        assert (await health(worker))[0] == 200
    assert "secret" not in repr(worker.options)


async def test_requests_beyond_the_bound_are_refused_unread() -> None:
    async with running_worker("pace:20", max_open_requests=1) as worker:
        first = asyncio.create_task(ask(worker, completion(max_tokens=30)))
        await eventually(lambda: worker.engine.open_sequences == 1)
        status, body = await ask(worker)
        assert (status, "1 requests are under way already" in body) == (503, True)
        assert (await health(worker))[0] == 200
        assert (await first)[0] == 200
        assert (await ask(worker, completion(max_tokens=1)))[0] == 200


async def test_a_body_that_does_not_come_is_a_408() -> None:
    async with running_worker(body_within=0.3) as worker:
        reader, writer = await asyncio.open_connection("127.0.0.1", worker.port)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: w\r\ncontent-length: 100\r\n\r\n{")
        async with asyncio.timeout(10):
            assert (await reader.readline()).startswith(b"HTTP/1.1 408")
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def test_a_body_beyond_the_bound_is_a_413() -> None:
    async with running_worker(max_body_bytes=10_000) as worker:
        status, body = await ask(worker, completion(prompt="a" * 20_000))
        assert (status, '"code":413' in body) == (413, True)
        assert (await ask(worker))[0] == 200


@pytest.mark.parametrize(("logprobs", "stall_after"), [(0, 0.5), (20, 600.0)], ids=["by time", "by size"])
async def test_a_client_that_reads_nothing_is_cut_off(logprobs: int, stall_after: float) -> None:
    async with running_worker(stall_after=stall_after, engine={"max_model_len": 16_000}) as worker:
        # So much that no socket's buffer holds it.
        body = completion(n=64, max_tokens=8000, logprobs=logprobs, stream=True)
        reader, writer = await _stalled(worker, body)
        await eventually(lambda: worker.engine.open_sequences == 64)
        await eventually(lambda: worker.engine.open_sequences == 0, timeout=30.0)
        assert worker.engine.stats.generation_tokens < 64 * 8000
        assert (await ask(worker, completion(max_tokens=2)))[0] == 200
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        _ = reader


async def _stalled(worker: Worker, body: dict[str, Any]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection that has asked, and whose transport reads no more."""
    payload = json.dumps(body).encode()
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", worker.port))
    reader, writer = await asyncio.open_connection(sock=client)
    head = f"POST /v1/completions HTTP/1.1\r\nhost: w\r\ncontent-length: {len(payload)}\r\n\r\n"
    writer.transport.pause_reading()  # type: ignore[attr-defined]  # a socket's transport reads
    writer.write(head.encode() + payload)
    await writer.drain()
    return reader, writer


def test_options_say_their_model_s_name() -> None:
    assert worker_options().engine.name == MODEL
    assert WorkerOptions(engine=EngineOptions(model=str(EMBEDDED_TOKENIZER))).engine.name == "tokenizer"
    assert EngineOptions(model="family/model-1b").name == "family/model-1b"
