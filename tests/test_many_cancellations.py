"""A thousand clients leave, in each phase of a request: nothing that worked for them is left."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import pytest

from gateway.app import running
from gateway.program import Program
from tests.data_plane_fixtures import WITHIN, Client, Inside, RawWorker, Turn, blackhole, client_of, hold, post
from tests.gateway_fixtures import config_for, eventually

N = 1000
AT_ONCE = 50
PROMPT = "A sentence that many conversations begin with, long enough for some blocks of sixteen tokens. " * 6
MODELS = "models: [{name: m, tokenizer: embedded}]\n"
EVENT = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
BEGUN = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n" % (
    len(EVENT),
    EVENT,
)
LARGE = EVENT.replace(b'"a"', b'"%b"' % (b"a" * 60_000))
FLOOD = b"%x\r\n%b\r\n" % (len(LARGE), LARGE)


def request(number: int, prompt: str = PROMPT) -> bytes:
    """A stream whose prompt nobody else has."""
    messages = [{"role": "user", "content": f"{number} {prompt}"}]
    return post(json.dumps({"model": "m", "messages": messages, "stream": True}).encode())


@dataclass
class Scene:
    """A gateway and what its clients leave behind."""

    program: Program
    gateway: Inside
    worker: RawWorker | None = None

    async def leave(
        self, n: int, reached: Callable[[], bool], *, prompt: str = PROMPT, rcvbuf: int | None = None
    ) -> None:
        """`n` clients ask, and leave as soon as all of them have come as far as `reached` tells."""
        async with contextlib.AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(client_of(self.gateway, rcvbuf=rcvbuf)) for _ in range(n)]
            for client in clients:
                if rcvbuf is not None:
                    client.writer.transport.pause_reading()  # type: ignore[attr-defined]  # asyncio's own type lacks it
                client.write(request(random.getrandbits(60), prompt))
            await eventually(reached, timeout=20)
            assert len(self.program.pipeline.live) == n
            leave_in_turns(clients)
            await eventually(lambda: not self.program.pipeline.live, timeout=WITHIN)
            await eventually(self.closed, timeout=WITHIN)

    async def leave_waiting(self, n: int) -> int:
        """`n` clients ask, and leave when all of them have been read; returns how many waited for their tokens."""
        live = self.program.pipeline.live
        async with contextlib.AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(client_of(self.gateway)) for _ in range(n)]
            for client in clients:
                client.write(request(random.getrandbits(60)))
            await eventually(lambda: len(live) >= n, timeout=20)
            waiting = sum(exchange.attempts == 0 for exchange in live)
            leave_in_turns(clients)
            await eventually(lambda: len(live) <= 1, timeout=WITHIN)
        return waiting

    def closed(self) -> bool:
        """No connection to a worker is open for them, or being opened."""
        pools = [member.pool for member in self.program.fleet.members.values()]
        return all(not pool.open_connections and not pool.connecting for pool in pools) and (
            self.worker is None or self.worker.open == 0
        )


def leave_in_turns(clients: list[Client]) -> None:
    """Every other one with a reset."""
    for place, client in enumerate(clients):
        if place % 2:
            client.reset()
        else:
            client.writer.close()


@contextlib.asynccontextmanager
async def scene(url: str, extra: str, worker: RawWorker | None = None, *, block_size: int = 16) -> AsyncIterator[Scene]:
    """The end of it asserts that as much is there as before."""
    config = config_for(
        [url],
        MODELS + "limits: {drain_timeout: 0, buffer_bytes: 16KiB}\n" + extra,
        workers_extra=[f", models: [m], block_size: {block_size}"],
    )
    async with running(config) as (program, port):
        gateway = Inside(f"http://127.0.0.1:{port}", program.server)
        before = tasks_of_requests()
        yield Scene(program, gateway, worker)
        await eventually(lambda: not program.server.connections)
        assert program.server.held_bytes == 0
        assert program.pipeline.rules.retries.in_flight == 0
        for one in program.state.workers:
            assert (one.active, one.pending, one.prefill.total, one.progress._in_flight) == (0, 0, 0, 0)
            assert one.failures == 0, "clients that leave say nothing about a worker"
        program.state.check_integrity()
        program.index.check_integrity()
        await eventually(lambda: tasks_of_requests() <= before, timeout=WITHIN)


def tasks_of_requests() -> set[asyncio.Task[object]]:
    """Whatever runs for requests and connections of the gateway's."""
    made_by = ("UpstreamPool", "Reader", "RemoteTokenizer")
    return {task for task in asyncio.all_tasks() if getattr(task.get_coro(), "__qualname__", "").startswith(made_by)}


async def begins(turn: Turn) -> None:
    turn.write(BEGUN)
    await turn.until_closed()


async def floods(turn: Turn) -> None:
    turn.write(BEGUN)
    with contextlib.suppress(ConnectionError):
        while not turn.writer.is_closing():
            turn.write(FLOOD)
            await turn.writer.drain()


@pytest.mark.parametrize(
    ("answer", "reached"),
    [(hold, lambda scene: scene.worker.open), (begins, lambda scene: streaming(scene.program))],
    ids=["first byte", "mid-stream"],
)
async def test_with_the_worker(answer: Callable[[Turn], Awaitable[None]], reached: Callable[[Scene], int]) -> None:
    worker = RawWorker(answer)
    async with worker.running(), scene(worker.url, "", worker) as on:
        for _ in range(N // AT_ONCE):
            await on.leave(AT_ONCE, lambda: reached(on) == AT_ONCE)
        if answer is hold:
            assert len(on.program.index) == 0, "what was predicted of them is taken back"


async def test_paused_mid_stream() -> None:
    worker = RawWorker(floods)
    async with worker.running(), scene(worker.url, "", worker) as on:
        connections = on.program.server.connections
        for _ in range(N // AT_ONCE):
            await on.leave(
                AT_ONCE, lambda: sum(connection.paused for connection in connections) == AT_ONCE, rcvbuf=4_096
            )


async def test_connecting() -> None:
    with blackhole() as silent:
        extra = (
            "upstream: {connect_timeout: 60s, model_refresh: 1h}\nhealth: {probe: {interval: 1h, metrics_interval: 1h}}"
        )
        async with scene(silent.url, extra) as on:
            silent.open()
            (pool,) = [member.pool for member in on.program.fleet.members.values()]
            for _ in range(N // AT_ONCE):
                await on.leave(AT_ONCE, lambda: pool.connecting == AT_ONCE)
            assert len(on.program.index) == 0


async def test_waiting_for_tokens() -> None:
    """The one thread that tokenizes has a very long prompt in hand; all others wait behind it. Blocks are so long that
    the piece which is read at once fills none, so that the rest matters.
    """
    worker = RawWorker(hold)
    extra = "tokens: {inline_chars: 0, piece_chars: 64, wait: 60s, threads: 1}"
    longest = " ".join(f"word{number}" for number in range(40_000))
    left = 0
    async with worker.running(), scene(worker.url, extra, worker, block_size=1024) as on:
        live = on.program.pipeline.live
        for _ in range(100):
            async with client_of(on.gateway) as long_one:
                long_one.write(request(left, longest))
                await eventually(lambda: live)
                left += await on.leave_waiting(60)  # no more wait at a time
            await eventually(lambda: not live, timeout=WITHIN)
            if left >= N:
                break
        assert left >= N
        await eventually(on.closed, timeout=WITHIN)


def streaming(program: Program) -> int:
    return sum(exchange.streaming for exchange in program.pipeline.live)
