"""Token ids from a worker's `/tokenize`: what is sent, what is believed, and whom it leaves alone for how long."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from backends.remote_tokenizer import RemoteTokenizer, TokenizeTarget, chat_request, text_request
from backends.simulated.fleet import FleetConfig, SimulatedFleet
from cache.remote_tokens import RemoteTokenizeError
from policies.types import TokenIds, WorkerId
from tests.gateway_fixtures import MODEL, eventually, model_text


def ids(*tokens: int) -> TokenIds:
    return TokenIds(array("I", tokens).tobytes())


class Workers:
    """Workers of which a test decides every answer to `/tokenize`."""

    def __init__(self) -> None:
        self.answers: dict[str, Callable[[], web.StreamResponse]] = {}
        self.bodies: list[object] = []
        self.asked: list[str] = []
        self.keys: list[str | None] = []
        self.release = asyncio.Event()
        self.release.set()
        self.targets: list[TokenizeTarget] = []
        self.now = 0.0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        assert request.path == "/tokenize"
        name = request.headers["host"].partition(":")[0]
        self.asked.append(name)
        self.keys.append(request.headers.get("authorization"))
        self.bodies.append(await request.json())
        await self.release.wait()
        return self.answers[name]()

    @asynccontextmanager
    async def running(self, *names: str) -> AsyncIterator[Workers]:
        """Loopback addresses as workers."""
        app = web.Application(client_max_size=1 << 24)
        app.router.add_post("/{path:.*}", self.handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        for name in names:
            site = web.TCPSite(runner, name, 0)
            await site.start()
        for host, port in runner.addresses:
            self.targets.append(TokenizeTarget(WorkerId(host), f"http://{host}:{port}"))
            self.answers[host] = lambda: web.json_response({"count": 2, "max_model_len": 9, "tokens": [1, 70000]})
        try:
            yield self
        finally:
            self.release.set()
            await runner.cleanup()


@asynccontextmanager
async def tokenizer(workers: Workers, **settings: float) -> AsyncIterator[RemoteTokenizer]:
    it = RemoteTokenizer(lambda model: workers.targets if model == "m" else [], **settings)  # type: ignore[arg-type]  # by name
    try:
        yield it
    finally:
        await it.close()


BODY = text_request("m", "hello", add_special_tokens=True)
A, B = "127.0.0.1", "127.0.0.2"


async def test_workers_are_asked_in_turn() -> None:
    async with Workers().running(A, B) as workers, tokenizer(workers) as it:
        workers.targets[1] = workers.targets[1]._replace(api_key="s3cret")
        for _ in range(4):
            assert await it.tokenize("m", BODY) == ids(1, 70000)
        assert sorted(workers.asked) == [A, A, B, B]
        assert sorted(map(str, workers.keys)) == ["Bearer s3cret", "Bearer s3cret", "None", "None"]
        assert workers.bodies == [{"model": "m", "prompt": "hello", "add_special_tokens": True}] * 4
        with pytest.raises(RemoteTokenizeError, match="no worker"):
            await it.tokenize("other", BODY)


async def test_the_simulated_engine_understands_both_requests() -> None:
    text = model_text()
    async with SimulatedFleet(1, FleetConfig(model=MODEL), text=text) as fleet:
        it = RemoteTokenizer(lambda _: [TokenizeTarget(WorkerId("w"), fleet.urls[0])])
        try:
            fields = {"messages": [{"role": "user", "content": "hi there"}], "temperature": 1, "max_tokens": 5}
            told = await it.tokenize(MODEL, chat_request(MODEL, fields))
            assert told == text.tokenizer.encode(text.tokenizer.render_chat(fields), add_special_tokens=False)
            for special in (True, False):
                told = await it.tokenize(MODEL, text_request(MODEL, "hi there", add_special_tokens=special))
                assert told == text.tokenizer.encode("hi there", add_special_tokens=special)
        finally:
            await it.close()


def test_a_chat_request_has_what_a_template_reads_and_nothing_else() -> None:
    fields = {
        "model": "alias", "messages": [{"role": "user", "content": "x"}], "tools": [{}], "stream": True,
        "chat_template_kwargs": {"enable_thinking": False}, "documents": None, "cache_salt": "secret",
    }  # fmt: skip
    assert chat_request("m", fields) == {
        "model": "m", "add_generation_prompt": True, "messages": fields["messages"], "tools": [{}],
        "chat_template_kwargs": {"enable_thinking": False},
    }  # fmt: skip
    assert chat_request("m", {"messages": [], "continue_final_message": True})["add_generation_prompt"] is False


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda: web.Response(status=500), "status 500"),
        (lambda: web.Response(status=302, headers={"location": "/elsewhere"}), "status 302"),
        (lambda: web.Response(body=b"<html>"), "its answer holds no token ids"),
        (lambda: web.json_response({"tokens": [-1]}), "its answer holds no token ids"),
        (lambda: web.json_response({"tokens": [1] * 100_000}), "its answer holds no token ids"),
        (lambda: web.Response(body=b"1" * 3_000_000), "its answer is longer than any can be"),
        (lambda: web.Response(status=404), "status 404"),
    ],
    ids=["500", "redirect", "html", "negative", "many", "long", "404"],
)
async def test_a_worker_in_trouble_is_left_alone(
    answer: Callable[[], web.StreamResponse], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "backends.remote_tokenizer")
    async with Workers().running(A) as workers, tokenizer(workers) as it:
        now = asyncio.get_running_loop().time()
        well = workers.answers[A]
        workers.answers[A] = answer
        with pytest.raises(RemoteTokenizeError, match=reason):
            await it.tokenize("m", BODY)
        assert not it.available("m", now)
        with pytest.raises(RemoteTokenizeError, match="no worker"):
            await it.tokenize("m", BODY)
        assert len(workers.asked) == 1
        assert it.available("m", now + 30) is (reason != "status 404"), "one without the path is asked less often"
        assert it.available("m", now + 400)
        it._resting[WorkerId(A)] = 0.0
        workers.answers[A] = well
        assert await it.tokenize("m", BODY) == ids(1, 70000)
    assert caplog.messages == [
        f"worker {A} does not tokenize: {reason}",
        f"worker {A} tokenizes again",
    ]
    assert "hello" not in caplog.text


async def test_trouble_that_goes_on_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "backends.remote_tokenizer")
    async with Workers().running(A) as workers, tokenizer(workers) as it:
        workers.answers[A] = lambda: web.Response(status=500)
        for _ in range(5):
            with pytest.raises(RemoteTokenizeError):
                await it.tokenize("m", BODY)
            it._resting[WorkerId(A)] = 0.0
    assert len(caplog.messages) == 1


@pytest.mark.parametrize(("status", "reason"), [(400, "refuses"), (422, "refuses"), (404, "does not know")])
async def test_a_prompt_that_is_refused_is_no_fault_of_the_worker(
    status: int, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "backends.remote_tokenizer")
    async with Workers().running(A) as workers, tokenizer(workers) as it:
        error = {"error": {"message": "The model `m` does not exist.", "type": "NotFoundError", "code": 404}}
        workers.answers[A] = lambda: web.json_response(error, status=status)
        with pytest.raises(RemoteTokenizeError, match=reason):
            await it.tokenize("m", BODY)
        with pytest.raises(RemoteTokenizeError, match="not valid JSON"):
            await it.tokenize("m", text_request("m", "\ud800", add_special_tokens=True))
        assert it.available("m", asyncio.get_running_loop().time())
    assert caplog.messages == []


async def test_another_worker_is_asked_while_one_rests() -> None:
    async with Workers().running(A, B) as workers, tokenizer(workers) as it:
        workers.answers[A] = lambda: web.Response(status=503)
        results = [await asyncio.gather(it.tokenize("m", BODY), return_exceptions=True) for _ in range(6)]
        assert sum(isinstance(result, RemoteTokenizeError) for (result,) in results) == 1
        assert workers.asked.count(A) == 1


async def test_no_question_outlives_its_deadline(caplog: pytest.LogCaptureFixture) -> None:
    async with Workers().running(A) as workers, tokenizer(workers, timeout=0.1) as it:
        workers.release.clear()
        with pytest.raises(RemoteTokenizeError, match="no answer in time"):
            await it.tokenize("m", BODY)


async def test_few_questions_at_once_and_few_that_wait() -> None:
    async with Workers().running(A) as workers, tokenizer(workers, max_at_once=2, max_waiting=3) as it:
        workers.release.clear()
        asking = [asyncio.create_task(it.tokenize("m", BODY)) for _ in range(5)]
        await eventually(lambda: len(workers.asked) == 2 and it.busy)
        with pytest.raises(RemoteTokenizeError, match="too many"):
            await it.tokenize("m", BODY)
        assert len(workers.asked) == 2
        workers.release.set()
        assert await asyncio.gather(*asking) == [ids(1, 70000)] * 5
        assert not it.busy


async def test_waiting_in_vain_is_no_fault_of_the_worker(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "backends.remote_tokenizer")
    async with Workers().running(A) as workers, tokenizer(workers, max_at_once=1, timeout=0.2) as it:
        async with it._places:
            with pytest.raises(RemoteTokenizeError, match="too many prompts were before it"):
                await it.tokenize("m", BODY)
        assert await it.tokenize("m", BODY) == ids(1, 70000)
    assert caplog.messages == []


async def test_one_that_is_cancelled_leaves_its_place() -> None:
    async with Workers().running(A) as workers, tokenizer(workers, max_at_once=1, max_waiting=0) as it:
        workers.release.clear()
        asking = asyncio.create_task(it.tokenize("m", BODY))
        await eventually(lambda: it.busy)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        assert not it.busy
        workers.release.set()
        assert await it.tokenize("m", BODY) == ids(1, 70000)


async def test_a_closed_one_asks_nobody() -> None:
    async with Workers().running(A) as workers:
        async with tokenizer(workers) as it:
            pass
        with pytest.raises(RemoteTokenizeError):
            await it.tokenize("m", BODY)
        assert workers.asked == []
