"""Requests that wait in the gateway: whose turn it is, who is refused and how clients are told, and that all is left
as it was.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import openai
import pytest

from gateway.admission import AdmissionGate
from gateway.client_connection import ClientConnection
from gateway.pipeline import RequestPipeline
from gateway.request_record import RequestRecord
from policies.admission_types import ServiceClass
from policies.latency_pressure import SloPressure
from tests.data_plane_fixtures import Inside, RawWorker, Turn, client_of, inside, plane, post
from tests.gateway_fixtures import eventually
from tests.tenant_fixtures import KEYS, bearer, tenants
from tests.test_tenants import ANSWER, CHAT, HEAD

ONE = "admission: {policy: fair, max_running: 1%s}\n"
THREE = tenants(
    "acme, priority: interactive, slo: {ttft: 10s}", "beta, priority: standard", "crew, priority: batch, weight: 2"
)


class Slow:
    """Answers one request for each time it is told to, and knows whose they were, in order."""

    def __init__(self) -> None:
        self.may = asyncio.Semaphore(0)
        self.texts: list[str] = []

    async def __call__(self, turn: Turn) -> None:
        self.texts.append(json.loads(turn.body)["messages"][0]["content"])
        await self.may.acquire()
        turn.write(HEAD % len(ANSWER) + ANSWER)


class Setting:
    """A gateway in front of one slow worker, and what its requests left behind."""

    def __init__(self, gateway: Inside, slow: Slow) -> None:
        self.gateway = gateway
        self.slow = slow
        self.records: list[RequestRecord] = []
        assert isinstance(gateway.server.pipeline, RequestPipeline)
        self.pipeline = gateway.server.pipeline
        self.pipeline.observers = (*self.pipeline.observers, self)

    @property
    def gate(self) -> AdmissionGate:
        assert self.pipeline.gate is not None
        return self.pipeline.gate

    def finished(self, record: RequestRecord) -> None:
        self.records.append(record)

    def client(self, name: str) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.gateway.url}/v1", api_key=KEYS[name], max_retries=0)

    async def ask(self, name: str, text: str, **headers: str) -> str:
        messages = [{"role": "user", "content": text}]
        async with self.client(name) as client:
            named = {key.replace("_", "-"): value for key, value in headers.items()}
            answer = await client.chat.completions.create(model="m", messages=messages, extra_headers=named)  # type: ignore[arg-type]  # dicts serve as well
            return answer.choices[0].message.content or ""

    async def waiting(self, name: str, text: str, n: int, **headers: str) -> asyncio.Task[str]:
        """Ask, and wait until it is the n-th that waits."""
        task = asyncio.create_task(self.ask(name, text, **headers))
        await eventually(lambda: len(self.gate.queue) == n)
        return task

    async def busy(self) -> asyncio.Task[str]:
        """The worker has one request, and may have no other."""
        task = asyncio.create_task(self.ask("beta", "first"))
        await eventually(lambda: self.slow.texts == ["first"])
        return task

    def check_left(self) -> None:
        """Nothing of anybody is left."""
        queue = self.gate.queue
        queue.check_integrity()
        assert (len(queue), queue.running, queue.bytes) == (0, 0, 0)
        assert self.gate._waiting == {}


@asynccontextmanager
async def setting(admission: str = ONE % "", who: str = THREE) -> AsyncIterator[Setting]:
    slow = Slow()
    async with RawWorker(slow).running() as worker, inside(plane([worker.url], extra=admission + who)) as gateway:
        yield Setting(gateway, slow)


async def test_classes_go_before_each_other_and_a_worker_gets_what_it_can_start() -> None:
    async with setting() as it:
        tasks = [await it.busy()]
        for n, (name, text) in enumerate([("crew", "b"), ("beta", "s"), ("acme", "i"), ("acme", "j")], 1):
            tasks.append(await it.waiting(name, text, n))
        assert it.slow.texts == ["first"]
        for n in range(2, 6):
            it.slow.may.release()
            await eventually(lambda n=n: len(it.slow.texts) == n)  # type: ignore[misc]  # of this turn
            assert it.gateway.active == 1
        it.slow.may.release()
        assert await asyncio.gather(*tasks) == ["Hi."] * 5
        assert it.slow.texts == ["first", "i", "j", "s", "b"]
        await eventually(lambda: len(it.records) == 5)
        assert {record.service_class for record in it.records} == {"interactive", "standard", "batch"}
        assert [record.queued_s > 0 for record in it.records] == [False, True, True, True, True]
        it.check_left()


async def test_tenants_of_a_class_take_turns_by_weight() -> None:
    who = tenants("acme", "beta", "crew, weight: 2")
    async with setting(who=who) as it:
        tasks = [await it.busy()]
        for n in range(6):
            for at, name in enumerate(("acme", "crew")):
                tasks.append(await it.waiting(name, f"{name} {n} " + "x" * 3000, 2 * n + at + 1))
        for n in range(2, 14):
            it.slow.may.release()
            await eventually(lambda n=n: len(it.slow.texts) == n)  # type: ignore[misc]  # of this turn
        it.slow.may.release()
        await asyncio.gather(*tasks)
        first = [text.split()[0] for text in it.slow.texts[1:10]]
        assert first.count("crew") == 6
        it.check_left()


async def test_whoever_finds_the_queue_full_is_told_when_to_come_back() -> None:
    async with setting(ONE % ", max_waiting: 1, tenant_max_waiting: 5") as it:
        tasks = [await it.busy(), await it.waiting("beta", "second", 1)]
        with pytest.raises(openai.InternalServerError) as refused:
            await it.ask("acme", "third")
        assert refused.value.status_code == 503
        assert refused.value.code == "overloaded"
        assert int(refused.value.response.headers["retry-after"]) >= 1
        for _ in tasks:
            it.slow.may.release()
        await asyncio.gather(*tasks)
        it.check_left()


async def test_a_tenant_with_too_many_waiting_is_told_so_and_others_are_not() -> None:
    async with setting(ONE % ", tenant_max_waiting: 1") as it:
        tasks = [await it.busy(), await it.waiting("beta", "second", 1)]
        with pytest.raises(openai.RateLimitError) as refused:
            await it.ask("beta", "third")
        assert refused.value.code == "too_many_waiting"
        assert "of this key" in refused.value.message
        tasks.append(await it.waiting("acme", "fourth", 2))
        for _ in tasks:
            it.slow.may.release()
        await asyncio.gather(*tasks)
        assert sum(it.gate.refusals.values()) == 1
        it.check_left()


async def test_a_deadline_that_cannot_be_met_is_refused_while_there_is_time_to_go_elsewhere() -> None:
    async with setting(ONE % ", deadline_header: x-ttft-deadline-ms") as it:
        first = await it.busy()
        with pytest.raises(openai.InternalServerError) as refused:
            await it.ask("acme", "soon", x_ttft_deadline_ms="200")
        assert refused.value.code == "objective_out_of_reach"
        assert it.slow.texts == ["first"]
        for nonsense in ("-1", "soon", "1e300", "nan", ""):
            with pytest.raises(openai.BadRequestError, match="x-ttft-deadline-ms"):
                await it.ask("acme", "soon", x_ttft_deadline_ms=nonsense)
        it.slow.may.release()
        await first
        it.check_left()


async def test_within_a_tenant_the_earliest_deadline_goes_first() -> None:
    async with setting(ONE % ", deadline_header: x-ttft-deadline-ms") as it:
        tasks = [await it.busy()]
        for n, (text, deadline) in enumerate([("late", "9000"), ("soon", "5000"), ("soonest", "4000")], 1):
            tasks.append(await it.waiting("acme", text, n, x_ttft_deadline_ms=deadline))
        for _ in tasks:
            it.slow.may.release()
        await asyncio.gather(*tasks)
        assert it.slow.texts == ["first", "soonest", "soon", "late"]
        it.check_left()


async def test_nobody_waits_for_longer_than_its_class_may() -> None:
    async with setting(ONE % ", batch: {max_wait: 200ms}") as it:
        first = await it.busy()
        with pytest.raises(openai.InternalServerError) as refused:
            await it.ask("crew", "never")
        assert refused.value.code == "overloaded"
        assert "retry-after" in refused.value.response.headers
        it.slow.may.release()
        await first
        it.check_left()


async def test_what_may_be_demoted_while_it_waits_may_wait_as_long_as_the_lower_class() -> None:
    rules = ", standard: {max_wait: 1s}, batch: {max_wait: 100s}, deadline_header: x-ttft-deadline-ms"
    async with setting(ONE % rules) as it:
        tasks = [await it.busy(), await it.waiting("beta", "second", 1, x_ttft_deadline_ms="300")]
        await eventually(lambda: it.gate.queue.waiting_by_class()[ServiceClass.BATCH] == 1)
        (exchange,) = it.gate._waiting.values()
        assert isinstance(exchange.client, ClientConnection)
        assert exchange.client._deadline > asyncio.get_running_loop().time() + 90.0
        for _ in tasks:
            it.slow.may.release()
        assert await asyncio.gather(*tasks) == ["Hi."] * 2
        it.check_left()


async def test_pressure_is_of_one_model_and_passes() -> None:
    async with setting() as it:
        tasks = [await it.busy(), await it.waiting("crew", "batch", 1)]
        gate, now = it.gate, asyncio.get_running_loop().time()
        gate._pressures = {model: SloPressure() for model in ("m", "other")}
        for at, model in ((now - 9.9, "m"), (now, "other")):
            gate.queue.pressure(model, gate._pressures[model].first_token(2.0, 1.0, at), at)
        assert gate.pressure == 2.0
        await eventually(lambda: gate._pressures.keys() == {"other"})
        for _ in tasks:
            it.slow.may.release()
        await asyncio.gather(*tasks)
        assert it.slow.texts == ["first", "batch"]
        it.check_left()


async def test_who_leaves_while_waiting_leaves_nothing() -> None:
    async with setting() as it:
        first = await it.busy()
        leaving = await it.waiting("acme", "gone", 1)
        leaving.cancel()
        await eventually(lambda: not it.gate.queue)
        it.slow.may.release()
        await first
        assert it.slow.texts == ["first"]
        it.check_left()


async def test_a_request_is_sent_at_once_where_there_is_room() -> None:
    async with setting("admission: {policy: fcfs}\n") as it:
        it.slow.may.release()
        assert await it.ask("acme", "now") == "Hi."
        (record,) = it.records
        assert record.queued_s == 0.0
        assert record.predicted_ttft is not None
        it.check_left()


async def test_only_what_streams_tells_how_long_a_first_token_took() -> None:
    """An answer in one piece comes when all of it is made."""
    who = tenants("acme, priority: interactive, slo: {ttft: 10s}")
    async with setting(who=who) as it:
        it.slow.may.release()
        assert await it.ask("acme", "long") == "Hi."
        assert it.gate.pressure == 0.0
        async with client_of(it.gateway) as client:
            body = json.dumps({**CHAT, "stream": True}).encode()
            client.write(post(body, bearer("acme")))
            await eventually(lambda: len(it.slow.texts) == 2)
            await asyncio.sleep(0.01)  # the loop's clock has steps of a millisecond
            it.slow.may.release()
            assert (await client.response()).status == 200
        assert it.gate.pressure > 0.0


async def test_batch_yields_for_as_long_as_pressure_counts() -> None:
    who = tenants("acme, priority: interactive, slo: {ttft: 60s}", "crew, priority: batch")
    async with setting(who=who) as it, client_of(it.gateway) as client:
        client.write(post(json.dumps({**CHAT, "stream": True}).encode(), bearer("acme")))
        await eventually(lambda: len(it.slow.texts) == 1)
        (exchange,) = it.pipeline.live
        exchange.record.arrived -= 60.0
        waiting = await it.waiting("crew", "batch", 1)
        it.slow.may.release()
        assert (await client.response()).status == 200
        now = asyncio.get_running_loop().time()
        assert it.gate.queue.next(now + 120.0, lambda _: 1) is None, "minutes were promised"
        assert it.gate.queue.next(now + 200.0, lambda _: 1) is not None
        waiting.cancel()


async def test_slow_tokens_of_interactive_requests_are_pressure_too() -> None:
    chunk = b'data: {"choices": [{"index": 0, "delta": {"content": "Hi"}}]}\n\n'
    end = b'data: {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 2}}\n\ndata: [DONE]\n\n'

    async def slowly(turn: Turn) -> None:
        turn.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n")
        turn.write(b"content-length: %d\r\n\r\n" % len(chunk + end) + chunk)
        await asyncio.sleep(0.02)
        turn.write(end)

    who = tenants("acme, priority: interactive, slo: {tpot: 10ms}")
    async with RawWorker(slowly).running() as worker, inside(plane([worker.url], extra=ONE % "" + who)) as gateway:
        it = Setting(gateway, Slow())
        async with client_of(gateway) as client:
            client.write(post(json.dumps({**CHAT, "stream": True}).encode(), bearer("acme")))
            assert (await client.response()).status == 200
        await eventually(lambda: it.gate.pressure > 1.0)
        it.check_left()


async def test_whose_turn_it_is_goes_to_a_worker_that_has_room_though_another_has_its_prompt() -> None:
    slow = [Slow(), Slow()]
    async with (
        RawWorker(slow[0]).running() as one,
        RawWorker(slow[1]).running() as two,
        inside(plane([one.url, two.url], extra=ONE % "" + THREE)) as gateway,
    ):
        it = Setting(gateway, slow[0])
        text = "the same long prompt " * 100
        tasks = [asyncio.create_task(it.ask("beta", text))]
        await eventually(lambda: len(slow[0].texts) + len(slow[1].texts) == 1)
        tasks.append(asyncio.create_task(it.ask("beta", text)))
        await eventually(lambda: (len(slow[0].texts), len(slow[1].texts)) == (1, 1))
        for each in slow:
            each.may.release()
        assert await asyncio.gather(*tasks) == ["Hi."] * 2
        it.check_left()


async def test_what_is_to_be_tried_again_does_not_wait_again() -> None:
    """A worker that fails is replaced by another that has no room."""
    slow = Slow()

    async def broken(turn: Turn) -> None:
        await turn.close()

    async with RawWorker(broken).running() as bad, RawWorker(slow).running() as good:
        config = plane([bad.url, good.url], extra=ONE % "" + THREE)
        async with inside(config) as gateway:
            it = Setting(gateway, slow)
            for _ in range(4):
                it.slow.may.release()
            assert await asyncio.gather(*(it.ask("beta", str(n)) for n in range(4))) == ["Hi."] * 4
            it.check_left()


async def test_another_policy_sends_what_waits() -> None:
    async with setting() as it:
        tasks = [await it.busy(), await it.waiting("acme", "second", 1)]
        gate = it.gate
        gate.release_all()
        it.pipeline.gate = None
        await eventually(lambda: it.slow.texts == ["first", "second"])
        for _ in tasks:
            it.slow.may.release()
        assert await asyncio.gather(*tasks) == ["Hi."] * 2
        assert (len(gate.queue), gate.queue.running) == (0, 0)


@pytest.mark.parametrize("seed", [1, 2])
async def test_every_slot_comes_back_whoever_leaves_when(seed: int) -> None:
    chance = random.Random(seed)
    async with setting(ONE % ", worker_queue: 50ms, batch: {max_wait: 2s}") as it:

        async def one(number: int) -> None:
            name = chance.choice([*KEYS])
            body = json.dumps({**CHAT, "messages": [{"role": "user", "content": str(number)}]}).encode()
            async with client_of(it.gateway) as client:
                client.write(post(body, bearer(name)))
                await asyncio.sleep(chance.random() * 0.3)
                it.slow.may.release()
                if chance.random() < 0.5:
                    client.reset()
                else:
                    assert (await client.response()).status in {200, 503}

        await asyncio.gather(*(one(number) for number in range(120)))
        await eventually(lambda: len(it.records) == 120)
        await eventually(lambda: it.gateway.active == 0)
        it.check_left()
