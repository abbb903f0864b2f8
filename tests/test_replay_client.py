"""The client against a small real server: success and every kind of failure, each booked as what it is."""

from __future__ import annotations

import asyncio
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from gateway.replay.arrival import Arrival
from gateway.replay.client import ReplayClient, ReplayError, Target, base_url, find_model, open_session
from gateway.replay.plan import plan
from gateway.replay.schedule import MonotonicClock
from tests.fake_openai import FakeOpenAI

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gateway.replay.records import RequestRecord

ARRIVALS = [Arrival(0.0, 100, 5, (1, 2), 64), Arrival(0.0, 120, 4, (1, 3), 64)]


def send_all(server: FakeOpenAI, arrivals: list[Arrival] = ARRIVALS, **settings: Any) -> list[RequestRecord]:
    async def main() -> list[RequestRecord]:
        records = plan(arrivals, speed=1.0, max_output=None)
        async with server.running() as url, open_session(settings.get("api_key")) as session:
            target = Target(**({"url": url, "model": "fake"} | settings))
            client = ReplayClient(target, arrivals, records, session=session, clock=MonotonicClock())
            for index in range(len(records)):
                await client.send(index)
        return records

    return asyncio.run(main())


def test_success_is_booked_with_times_tokens_and_worker() -> None:
    server = FakeOpenAI(workers=1)
    first, second = send_all(server)
    assert first.ok
    assert second.ok
    assert (first.status, first.worker, first.error) == (200, "worker-0", None)
    assert (first.prompt_tokens, first.cached_tokens, first.completion_tokens) == (100, 0, 5)
    assert (second.prompt_tokens, second.cached_tokens, second.completion_tokens) == (120, 64, 4)
    assert (first.token_events, second.token_events) == (5, 4)
    for row in (first, second):
        assert row.sent is not None
        assert row.first_token is not None
        assert row.last_token is not None
        assert row.finished is not None
        assert row.scheduled <= row.sent < row.first_token <= row.last_token <= row.finished
        assert row.gaps.count == row.token_events - 1


def test_the_request_body() -> None:
    server = FakeOpenAI()
    send_all(server, api_key="secret")
    body = server.bodies[0]
    prompt = body.pop("messages")[0]["content"]
    assert len(prompt.split()) == 100
    assert body == {
        "model": "fake",
        "max_tokens": 5,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }
    assert server.paths[0] == "/v1/chat/completions"
    assert server.authorizations[0] == "Bearer secret"


def test_completions_and_strict_endpoints() -> None:
    server = FakeOpenAI()
    rows = send_all(server, endpoint="completions", ignore_eos=False)
    assert all(row.ok for row in rows)
    assert server.paths == ["/v1/completions"] * 2
    assert server.authorizations == [None, None]
    assert "ignore_eos" not in server.bodies[0]
    assert len(server.bodies[0]["prompt"].split()) == 100


def test_usage_without_cached_tokens_is_not_a_miss() -> None:
    assert send_all(FakeOpenAI(tell_cached=False))[1].cached_tokens is None


@pytest.mark.parametrize(
    ("fault", "error", "status", "tokens"),
    [
        ("500", "http_500", 500, 0),
        ("not_sse", "not_a_stream", 200, 0),
        ("truncate", "truncated", 200, 2),
        ("error_event", "error_event", 200, 2),
        ("garbage", "malformed_event", 200, 2),
    ],
)
def test_failures_are_booked_and_do_not_touch_the_next_request(
    fault: str, error: str, status: int, tokens: int
) -> None:
    first, second = send_all(FakeOpenAI(fault=lambda n: fault if n == 0 else None))
    assert (first.error, first.status, first.token_events) == (error, status, tokens)
    assert first.error_detail
    assert not first.ok
    assert first.finished is not None
    assert second.ok


def test_the_message_of_an_error_answer_is_kept() -> None:
    assert send_all(FakeOpenAI(fault=lambda _: "500"))[0].error_detail == "out of memory"


@pytest.mark.parametrize(("fault", "error"), [("stall", "timeout"), ("stall_mid", "timeout_mid_stream")])
def test_a_stall_ends_at_the_deadline(fault: str, error: str) -> None:
    assert send_all(FakeOpenAI(fault=lambda _: fault), ARRIVALS[:1], timeout=0.3)[0].error == error


def test_a_reset_in_the_stream() -> None:
    row = send_all(FakeOpenAI(fault=lambda _: "reset"), ARRIVALS[:1])[0]
    assert row.error in {"truncated", "reset_mid_stream"}  # which of them is the kernel's choice


@contextmanager
def nobody_there() -> Iterator[str]:
    """A URL that refuses connections: its port is bound, so that nobody else gets it, and not listening."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{unused.getsockname()[1]}"


def test_connection_refused() -> None:
    with nobody_there() as url:
        row = send_all(FakeOpenAI(), ARRIVALS[:1], url=url)[0]
    assert (row.error, row.status, row.worker) == ("connect_refused", None, None)


def test_cancellation_is_booked_and_raised() -> None:
    async def main() -> RequestRecord:
        records = plan(ARRIVALS[:1], speed=1.0, max_output=None)
        server = FakeOpenAI(fault=lambda _: "stall_mid")
        async with server.running() as url, open_session(None) as session:
            client = ReplayClient(Target(url, "fake"), ARRIVALS, records, session=session, clock=MonotonicClock())
            task = asyncio.ensure_future(client.send(0))
            while not records[0].token_events:  # noqa: ASYNC110 - a record sets no event
                await asyncio.sleep(0.001)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        return records[0]

    row = asyncio.run(main())
    assert row.error == "cancelled"
    assert row.finished is not None


def test_find_model() -> None:
    async def main() -> None:
        async with FakeOpenAI().running() as url, open_session(None) as session:
            assert await find_model(session, url + "/v1/") == "fake"
            with pytest.raises(ReplayError, match=r"answered 404; name the model with --model"):
                await find_model(session, url + "/elsewhere")
        with nobody_there() as url:
            async with open_session(None) as session:
                with pytest.raises(ReplayError, match="cannot be reached"):
                    await find_model(session, url)

    asyncio.run(main())


def test_base_url_with_and_without_v1() -> None:
    assert {base_url(f"http://h:1{end}") for end in ("", "/", "/v1", "/v1/")} == {"http://h:1"}
