"""Answers already known, as clients see them: hits in every form, what is kept and what is not, one call for many."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any

import openai
import pytest

from gateway.pipeline import RequestPipeline
from gateway.request_record import RequestRecord
from gateway.thread_line import BusyError, ThreadLine
from tests.answer_fixtures import MESSAGE
from tests.caching_fixtures import ASKED, Counted, Setting, chunks, setting, whole
from tests.data_plane_fixtures import RawWorker, Turn, ask, client_of, inside, plane, post
from tests.gateway_fixtures import eventually
from tests.tenant_fixtures import KEYS, bearer, tenants

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n%b"


async def test_what_was_asked_before_is_answered_without_a_worker() -> None:
    async with setting() as it:
        assert await it.ask() == ("Answer 1.", "miss")
        assert await it.ask() == ("Answer 1.", "hit")
        assert await it.ask(seed=7) == ("Answer 2.", "miss")
        assert it.worker.calls == 2
        it.check_left()


async def test_a_long_request_is_known_again_too() -> None:
    messages = [{"role": "user", "content": "Long. " * 60_000}]
    async with setting() as it:
        assert await it.ask(messages=messages) == ("Answer 1.", "miss")
        assert await it.ask(messages=messages) == ("Answer 1.", "hit")
        it.check_left()


@pytest.mark.parametrize("first", ["whole", "stream", "stream with usage"])
async def test_one_answer_serves_clients_that_stream_and_that_do_not(first: str) -> None:
    options: dict[str, Any] = {"stream_options": {"include_usage": True}}
    async with setting() as it:
        if first == "whole":
            await it.ask()
        else:
            await it.stream(**options if first == "stream with usage" else {})
        assert await it.ask() == ("Answer 1.", "hit")
        assert await it.stream() == ("Answer 1.", "hit")
        # A stream that was not asked for its usage has told none, and nobody guesses it.
        told = ("Answer 2.", "miss") if first == "stream" else ("Answer 1.", "hit")
        assert await it.stream(**options) == told


class Records:
    """What was noted of requests."""

    def __init__(self) -> None:
        self.refusals: list[str] = []

    def finished(self, record: RequestRecord) -> None:
        self.refusals.append(record.cache_refusal)


async def test_a_stream_from_the_cache_is_all_that_a_stream_is() -> None:
    async with setting() as it:
        await it.ask()
        options: dict[str, Any] = {"stream_options": {"include_usage": True}}
        told = [each async for each in await it.client.chat.completions.create(**ASKED, stream=True, **options)]
        assert told[0].choices[0].delta.role == "assistant"
        assert [each.choices[0].finish_reason for each in told if each.choices][-1] == "stop"
        assert told[-1].usage is not None
        assert told[-1].usage.total_tokens == 12
        assert {each.id for each in told} == {"c"}


async def test_at_a_pace_a_stream_comes_in_pieces() -> None:
    async with setting("pace: 1ms") as it:
        text = (await it.stream())[0]
        assert await it.stream() == (text, "hit")
        stream = await it.client.chat.completions.create(**ASKED, stream=True)
        await anext(aiter(stream))
        await stream.close()  # in the middle
        await eventually(lambda: not it.pipeline.live)


@pytest.mark.parametrize(("finish", "why"), [("length", "truncated"), ("content_filter", "filtered")])
async def test_half_answers_are_not_kept_and_who_looks_is_told_why(finish: str, why: str) -> None:
    async with setting() as it:
        records = Records()
        it.pipeline.observers += (records,)
        it.worker.finish = finish
        assert [(await it.ask())[1], (await it.ask())[1]] == ["miss", "miss"]
        assert (await it.ask(temperature=1))[1] == "bypass"
        it.worker.finish = "stop"
        assert (await it.ask())[1] == "miss"
        assert it.worker.calls == 4
        await eventually(lambda: len(records.refusals) == 4)
        assert records.refusals == [why, why, "sampled", ""]


async def test_errors_are_not_kept() -> None:
    async with setting() as it:
        it.worker.status = 400
        for _ in range(2):
            with pytest.raises(openai.BadRequestError):
                await it.ask()
        assert it.worker.calls == 2
        it.check_left()


async def test_what_may_come_out_differently_is_kept_only_for_who_asks() -> None:
    async with setting() as it:
        assert await it.ask(temperature=1) == ("Answer 1.", "bypass")
        assert await it.ask(temperature=1, headers={"x-prefixgate-cache": "on"}) == ("Answer 2.", "miss")
        assert await it.ask(temperature=1, headers={"Cache-Control": "max-age=60"}) == ("Answer 2.", "hit")
        assert await it.ask(temperature=1) == ("Answer 3.", "bypass")


async def test_clients_say_what_they_want_of_the_cache() -> None:
    async with setting() as it:
        with pytest.raises(openai.InternalServerError) as refused:
            await it.ask(headers={"Cache-Control": "only-if-cached"})
        assert (refused.value.status_code, refused.value.code) == (504, "not_cached")
        assert await it.ask(headers={"Cache-Control": "no-store"}) == ("Answer 1.", "bypass")
        assert await it.ask() == ("Answer 2.", "miss")
        assert await it.ask(headers={"Cache-Control": "no-cache"}) == ("Answer 3.", "miss")
        assert await it.ask(headers={"Cache-Control": "only-if-cached"}) == ("Answer 3.", "hit")
        assert await it.ask(headers={"x-prefixgate-cache": "off"}) == ("Answer 4.", "bypass")
        it.check_left()


async def test_what_a_client_says_in_several_lines_counts_as_one() -> None:
    body = json.dumps(ASKED).encode()
    async with setting() as it:
        for twice in ([b"Cache-Control: max-age=60", b"cache-control: no-store"], [b"Cache-Control: no-store"] * 2):
            assert (await ask(it.gateway, post(body, *twice))).fields["x-prefixgate-cache"] == "bypass"
        message = json.dumps({**ASKED, "max_tokens": 9}).encode()
        beta = [b"anthropic-beta: one", b"anthropic-beta: two"]
        told: list[str] = []
        for fields in (beta[:1], beta, beta, [b"anthropic-beta: one, two"]):
            it.worker.text = json.dumps(MESSAGE)
            answer = await ask(it.gateway, post(message, *fields, path=b"/v1/messages"))
            told.append(answer.fields["x-prefixgate-cache"])
        assert told == ["miss", "miss", "hit", "hit"]


async def test_what_stands_in_the_query_may_change_an_answer() -> None:
    body = json.dumps(ASKED).encode()
    async with setting() as it:
        paths = [b"/v1/chat/completions" + query for query in (b"", b"?api-version=1", b"?api-version=2")]
        for wanted in ("miss", "hit"):
            for path in paths:
                assert (await ask(it.gateway, post(body, path=path))).fields["x-prefixgate-cache"] == wanted
        assert it.worker.calls == 3


async def test_answers_to_a_clients_own_credentials_are_for_these_alone() -> None:
    """Where workers are shown them, they may refuse one client what they answer another."""
    for shown, told in (("true", ["miss", "miss", "hit"]), ("false", ["miss", "hit", "hit"])):
        async with setting(worker=f", forward_client_key: {shown}") as it:
            assert [(await it.ask(key=key))[1] for key in ("one", "other", "one")] == told
            it.check_left()


async def test_tenants_share_no_answers_and_have_their_own_rules() -> None:
    who = tenants("acme", "beta", "crew, cache: {responses: {mode: off}}")
    async with setting(extra=who) as it:
        assert await it.ask(key=KEYS["acme"]) == ("Answer 1.", "miss")
        assert await it.ask(key=KEYS["beta"]) == ("Answer 2.", "miss")
        assert await it.ask(key=KEYS["acme"]) == ("Answer 1.", "hit")
        assert await it.ask(key=KEYS["crew"]) == ("Answer 3.", None)
        assert await it.ask(key=KEYS["acme"], extra_body={"cache_salt": "mine"}) == ("Answer 4.", "miss")


async def test_an_answer_that_has_had_its_time_is_fetched_again() -> None:
    async with setting("ttl: 0") as it:
        assert await it.ask() == ("Answer 1.", "miss")
        assert await it.ask() == ("Answer 2.", "miss")


async def test_a_stale_answer_is_served_while_another_is_fetched() -> None:
    async with setting("ttl: 1ms, stale_while_revalidate: 60s") as it:
        await it.ask()
        await asyncio.sleep(0.01)
        assert await it.ask() == ("Answer 1.", "stale")
        await eventually(lambda: it.worker.calls == 2 and not it.pipeline.live)
        assert (await it.ask())[0] == "Answer 2."
        await eventually(lambda: not it.pipeline.live)
        it.check_left()


async def test_a_stale_answer_is_better_than_none() -> None:
    async with setting("ttl: 1ms, stale_if_error: 60s") as it:
        await it.ask()
        await asyncio.sleep(0.01)
        it.worker.status = 500
        assert await it.ask() == ("Answer 1.", "stale")
        assert await it.stream() == ("Answer 1.", "stale")
        it.worker.status = 200
        assert (await it.ask())[1] == "miss"
        it.check_left()


async def test_a_stale_answer_costs_no_more_than_a_fresh_one() -> None:
    extra = tenants("acme, rates: {tokens_per_minute: 1000}")
    async with setting("ttl: 1ms, stale_if_error: 60s", extra) as it:
        assert it.pipeline.tenancy is not None
        limiter = it.pipeline.tenancy.tenants["acme"].limiter
        for stream in (False, True):
            it.worker.status = 200
            await it.ask(key=KEYS["acme"], headers={"Cache-Control": "no-cache"})
            await asyncio.sleep(0.01)
            it.worker.status, taken = 500, limiter.taken_tokens
            raw = post(json.dumps({**ASKED, "stream": stream}).encode(), bearer("acme"))
            assert (await ask(it.gateway, raw)).fields["x-prefixgate-cache"] == "stale"
            assert limiter.taken_tokens == taken
        it.check_left()


async def test_how_stale_an_answer_may_be_counts_when_it_is_served() -> None:
    async with setting("ttl: 1ms, stale_if_error: 60s", "upstream: {max_attempts: 1}\n") as it:
        for waits, told in ((1.5, "1"), (61.0, None)):
            it.worker.hold, it.worker.status = False, 200
            it.caching._wall = time.time
            await it.ask(headers={"Cache-Control": "no-cache"})
            await asyncio.sleep(0.01)
            it.worker.hold, it.worker.status, it.worker.calls = True, 500, 0
            asked = asyncio.create_task(ask(it.gateway, post(json.dumps(ASKED).encode())))
            await eventually(lambda: it.worker.calls == 1)
            it.caching._wall = partial(_later, waits)
            it.worker.may.release()
            answer = await asked
            assert (answer.status, answer.fields.get("age")) == ((200, told) if told else (502, None))
        it.check_left()


def _later(seconds: float) -> float:
    return time.time() + seconds


class Failing(Executor):
    """Does nothing."""

    def submit(self, _: Callable[..., Any], /, *args: Any, **more: Any) -> Future[Any]:
        failed: Future[Any] = Future()
        failed.set_exception(RuntimeError(f"no thread for {len(args)} and {len(more)}"))
        return failed


async def test_a_long_request_whose_key_is_not_known_is_told_so() -> None:
    messages = [{"role": "user", "content": "Long. " * 60_000}]
    async with setting() as it:
        it.caching.threads = ThreadLine(Failing())
        assert await it.ask(messages=messages) == ("Answer 1.", "bypass")
        with pytest.raises(openai.InternalServerError, match="no stored answer"):
            await it.ask(messages=messages, headers={"Cache-Control": "only-if-cached"})
        assert it.worker.calls == 1
        it.check_left()


@contextmanager
def closing_of(hangs: threading.Event) -> Iterator[None]:
    """Whatever becomes of the test, the thread ends."""
    try:
        yield
    finally:
        hangs.set()


async def test_while_a_disk_hangs_nothing_piles_up_before_the_threads() -> None:
    hangs = threading.Event()
    async with setting() as it:
        with ThreadPoolExecutor(1) as thread, closing_of(hangs):
            it.caching.threads = ThreadLine(thread)
            for _ in range(400):
                with suppress(BusyError):
                    it.caching.threads.begin(hangs.wait).cancel()
            assert thread._work_queue.qsize() < 256
            messages = [{"role": "user", "content": "Long. " * 60_000}]
            assert (await it.ask(messages=messages))[1] == "bypass"
            hangs.set()
            await eventually(lambda: it.caching.threads.length == 0)
            assert (await it.ask(messages=messages))[1] == "miss"
        it.check_left()


# One call for many


async def test_a_hundred_that_ask_the_same_make_one_call() -> None:
    async with setting() as it:
        it.worker.hold = True
        tasks = [asyncio.create_task(it.ask() if n % 2 else it.stream()) for n in range(100)]
        await eventually(lambda: it.caching.flights.table.waiting == 99)
        it.worker.may.release()
        answers = await asyncio.gather(*tasks)
        assert {text for text, _ in answers} == {"Answer 1."}
        assert sorted(told or "" for _, told in answers) == ["hit"] * 99 + ["miss"]
        assert it.worker.calls == 1
        it.check_left()


async def test_who_asked_first_leaves_and_the_others_get_the_answer() -> None:
    async with setting() as it:
        it.worker.hold = True
        first = asyncio.create_task(it.ask())
        await eventually(lambda: it.worker.calls == 1)
        tasks = [asyncio.create_task(it.ask()) for _ in range(99)]
        await eventually(lambda: it.caching.flights.table.waiting == 99)
        first.cancel()
        await eventually(lambda: len(it.gateway.server.background) == 1)
        it.worker.may.release()
        assert await asyncio.gather(*tasks) == [("Answer 1.", "hit")] * 99
        assert it.worker.calls == 1
        it.check_left()


async def test_when_all_have_left_the_worker_is_let_go() -> None:
    async with setting() as it:
        it.worker.hold = True
        tasks = [asyncio.create_task(it.ask())]
        await eventually(lambda: it.worker.calls == 1)
        tasks.append(asyncio.create_task(it.ask()))
        await eventually(lambda: it.caching.flights.table.waiting == 1)
        for task in tasks:
            task.cancel()
            await asyncio.sleep(0.05)
        await eventually(lambda: it.worker.given_up == 1)
        await eventually(lambda: not it.pipeline.live)
        it.check_left()


async def test_a_stream_that_several_want_comes_to_all_of_them_as_it_comes() -> None:
    async with setting() as it:
        it.worker.halves = True
        streams = [await it.client.chat.completions.create(**ASKED, stream=True) for _ in range(3)]
        firsts = [await anext(aiter(stream)) for stream in streams]
        assert [first.choices[0].delta.role for first in firsts] == ["assistant"] * 3
        assert it.worker.calls == 1
        late = asyncio.create_task(it.ask())  # in one piece, which there is none of yet
        await eventually(lambda: it.caching.flights.table.waiting == 3)
        await streams[1].close()
        await eventually(lambda: it.caching.flights.table.waiting == 2)
        it.worker.may.release()
        for stream in (streams[0], streams[2]):
            text = "".join([each.choices[0].delta.content or "" async for each in stream])
            assert text == "Answer 1."
        assert await late == ("Answer 1.", "hit")
        await eventually(lambda: not it.pipeline.live)
        it.check_left()


async def test_who_shares_a_stream_is_told_its_age() -> None:
    async with setting() as it:
        it.worker.halves = True
        body = json.dumps({**ASKED, "stream": True}).encode()
        asked = [asyncio.create_task(ask(it.gateway, post(body)))]
        await eventually(lambda: it.worker.calls == 1)
        asked.append(asyncio.create_task(ask(it.gateway, post(body))))
        await eventually(lambda: it.caching.flights.table.waiting == 1)
        it.worker.may.release()
        told = [
            (answer.fields["x-prefixgate-cache"], answer.fields.get("age")) for answer in await asyncio.gather(*asked)
        ]
        assert told == [("miss", None), ("hit", "0")]


async def test_who_follows_a_stream_that_breaks_off_is_told_so() -> None:
    async with setting() as it:
        it.worker.halves = it.worker.breaks = True
        streams = [await it.client.chat.completions.create(**ASKED, stream=True) for _ in range(2)]
        it.worker.may.release()
        for stream in streams:
            with pytest.raises(openai.APIError, match="broke off"):
                async for _ in stream:
                    pass
        await eventually(lambda: not it.pipeline.live)
        it.worker.halves = it.worker.breaks = False
        assert await it.stream() == ("Answer 2.", "miss")
        it.check_left()


@asynccontextmanager
async def long_stream() -> AsyncIterator[tuple[Setting, asyncio.Event, int]]:
    """A gateway, what lets its worker go on behind the first event of a stream, and the bytes of all its events."""
    text = chunks(" ".join(["x" * 1_000] * 3_000))
    may, middle = asyncio.Event(), text.index(b"\n\n") + 2

    async def stream(turn: Turn) -> None:
        turn.write(HEAD % (len(text), text[:middle]))
        await may.wait()
        for at in range(middle, len(text), 50_000):
            turn.write(text[at : at + 50_000])
            await turn.writer.drain()

    extra = "response_cache: {mode: on, max_entry: 256KiB}\n"
    async with (
        RawWorker(stream).running() as worker,
        inside(plane([worker.url], limits="buffer_bytes: 16KiB", extra=extra)) as gateway,
        openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield Setting(gateway, Counted(), client), may, len(text)


async def test_a_call_without_its_client_waits_for_whom_it_goes_on() -> None:
    body = json.dumps({**ASKED, "stream": True}).encode()
    async with (
        long_stream() as (it, may, n_bytes),
        client_of(it.gateway) as first,
        client_of(it.gateway, rcvbuf=4_096) as idle,
    ):
        first.write(post(body))
        await eventually(lambda: any(each.exchange for each in it.gateway.server.connections))
        idle.write(post(body))
        await eventually(lambda: it.caching.flights.table.waiting == 1)
        idle.writer.transport.pause_reading()  # type: ignore[attr-defined]  # it reads too
        first.writer.transport.abort()
        await eventually(lambda: len(it.gateway.server.background) == 1)
        may.set()
        # So the worker, which waits too, is not held to hang.
        await eventually(lambda: [each.paused for each in it.gateway.server.background] == [True])
        (worker,) = it.gateway.fleet.workers
        later = asyncio.get_running_loop().time() + 3_600.0
        await eventually(lambda: not worker.progress.is_hung(later, 0.0))
        idle.writer.transport.resume_reading()  # type: ignore[attr-defined]  # it reads too
        assert len((await idle.response()).body) == n_bytes
        await eventually(lambda: not it.pipeline.live)
        it.check_left()


@pytest.mark.parametrize("dawdles", [0, 1])
async def test_who_does_not_read_a_stream_holds_up_nobody_who_shares_it(dawdles: int) -> None:
    body = json.dumps({**ASKED, "stream": True}).encode()
    async with (
        long_stream() as (it, may, n_bytes),
        client_of(it.gateway, rcvbuf=4_096) as idle,
        client_of(it.gateway) as reads,
    ):
        for client in [reads, idle] if dawdles else [idle, reads]:
            client.write(post(body))
            await eventually(lambda: any(each.exchange for each in it.gateway.server.connections))
        await eventually(lambda: it.caching.flights.table.waiting == 1)
        idle.writer.transport.pause_reading()  # type: ignore[attr-defined]  # it reads too
        may.set()
        assert len((await reads.response()).body) == n_bytes
        held = [each.transport.get_write_buffer_size() for each in it.gateway.server.connections]
        assert max(held) < 3 << 19, "for who does not read"
        idle.writer.transport.resume_reading()  # type: ignore[attr-defined]  # it reads too
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await idle.response()
        await eventually(lambda: not it.pipeline.live)
        it.check_left()


async def test_an_event_too_long_to_be_watched_that_breaks_off_is_whole_for_nobody() -> None:
    body, may = json.dumps({**ASKED, "stream": True}).encode(), asyncio.Event()

    async def breaks(turn: Turn) -> None:
        turn.write(HEAD % (4 << 20, b'data: {"choices": []}\n\n'))
        await may.wait()
        turn.write(b'data: {"choices": [{"delta": {"content": "' + b"x" * (3 << 19))
        await turn.close()

    async with (
        RawWorker(breaks).running() as worker,
        inside(plane([worker.url], extra="response_cache: {mode: on}\n")) as gateway,
        client_of(gateway) as first,
        client_of(gateway) as second,
    ):
        for client in (first, second):
            client.write(post(body))
            await eventually(lambda: worker.requests)
        pipeline = gateway.server.pipeline
        assert isinstance(pipeline, RequestPipeline)
        await eventually(lambda: pipeline.responses and pipeline.responses.flights.table.waiting == 1)
        may.set()
        told = await asyncio.gather(first.response(), second.response(), return_exceptions=True)
        assert all(isinstance(each, (ConnectionError, asyncio.IncompleteReadError)) for each in told)


async def test_who_asked_first_leaves_in_the_middle_of_its_stream() -> None:
    async with setting() as it:
        it.worker.halves = True
        streams = [await it.client.chat.completions.create(**ASKED, stream=True) for _ in range(2)]
        await anext(aiter(streams[0]))
        await streams[0].close()
        await eventually(lambda: len(it.gateway.server.background) == 1)
        it.worker.may.release()
        assert "".join([each.choices[0].delta.content or "" async for each in streams[1]]) == "Answer 1."
        assert (await it.ask())[1] == "hit"
        await eventually(lambda: not it.pipeline.live)
        it.check_left()


async def test_who_streams_gets_an_answer_that_came_in_one_piece_at_its_end() -> None:
    """As from a worker that does not stream what it was asked to."""
    async with setting() as it:
        it.worker.hold, it.worker.text = True, json.dumps(whole("Whole."))
        body = json.dumps({**ASKED, "stream": True}).encode()
        first = asyncio.create_task(ask(it.gateway, post(body)))
        await eventually(lambda: it.worker.calls == 1)
        others = [asyncio.create_task(it.stream()), asyncio.create_task(it.ask())]
        await eventually(lambda: it.caching.flights.table.waiting == 2)
        it.worker.may.release()
        assert (await first).fields["content-type"] == "application/json"
        assert await asyncio.wait_for(asyncio.gather(*others), 5.0) == [("Whole.", "hit")] * 2
        it.check_left()


async def test_what_parsers_may_read_differently_is_nobody_elses() -> None:
    plain = json.dumps(ASKED).encode()
    twice = plain.replace(b'"temperature"', b'"seed": 1, "temperature"').replace(b"{", b'{"seed": 2, ', 1)
    once = plain.replace(b'"temperature"', b'"seed": 1, "temperature"')
    async with setting() as it:
        it.worker.hold = True
        tasks = [asyncio.create_task(ask(it.gateway, post(twice)))]
        await eventually(lambda: it.worker.calls == 1)
        tasks += [asyncio.create_task(ask(it.gateway, post(once))) for _ in range(2)]
        await eventually(lambda: it.worker.calls == 2)
        for _ in tasks:
            it.worker.may.release()
        told = [(await task).fields["x-prefixgate-cache"] for task in tasks]
        assert told[0] == "miss"
        assert sorted(told[1:]) == ["hit", "miss"], "whichever of them came first"
        assert it.worker.calls == 2
        it.check_left()


async def test_an_error_is_nobody_elses() -> None:
    async with setting() as it:
        it.worker.hold, it.worker.status = True, 400
        tasks = [asyncio.create_task(it.ask()) for _ in range(3)]
        await eventually(lambda: it.caching.flights.table.waiting == 2)
        it.worker.hold = False
        it.worker.may.release()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(answer, openai.BadRequestError) for answer in answers)
        assert it.worker.calls == 3
        it.check_left()


async def test_nobody_waits_for_ever_for_somebody_else() -> None:
    async with setting("coalesce_wait: 50ms") as it:
        it.worker.hold = True
        tasks = [asyncio.create_task(it.ask()) for _ in range(2)]
        await eventually(lambda: it.worker.calls == 2)
        for _ in tasks:
            it.worker.may.release()
        assert len({text for text, _ in await asyncio.gather(*tasks)}) == 2
        it.check_left()


@pytest.mark.parametrize("seed", range(3))
async def test_however_clients_leave_nothing_is_left(seed: int) -> None:
    chance = random.Random(seed)
    async with setting() as it:
        it.worker.hold = True
        tasks: list[asyncio.Task[tuple[str, str | None]]] = []
        for _ in range(60):
            tasks.append(asyncio.create_task(it.ask(seed=chance.randrange(3))))
            if chance.random() < 0.5:
                await asyncio.sleep(chance.random() * 0.01)
            if chance.random() < 0.3:
                chance.choice(tasks).cancel()
            if chance.random() < 0.3:
                it.worker.may.release()
        it.worker.hold = False
        for _ in range(200):
            it.worker.may.release()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                assert (await task)[0].startswith("Answer")
        await eventually(lambda: not it.pipeline.live)
        it.check_left()
