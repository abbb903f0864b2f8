"""Turns in order and the closed loop: over real sockets, and as properties in virtual time."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.simulated.engine import EngineConfig
from gateway.replay.arrival import Arrival
from gateway.replay.client import ReplayError, Target
from gateway.replay.records import RequestRecord
from gateway.replay.run import Outcome, replay
from gateway.replay.schedule import run_closed_loop
from gateway.replay.traces import read_trace
from gateway.replay.virtual_fleet import Added, Lost, replay_virtually
from policies.routing import POLICIES, make_policy
from tests.fake_openai import FakeOpenAI

TAU = Path(__file__).parent / "data" / "conversations" / "tau_bench_4_raw.json.xz"
ENGINE = EngineConfig(blocks=2_000, block_size=16, max_model_len=32_000)


def send(server: FakeOpenAI, arrivals: list[Arrival], endpoint: Any = "chat", **options: Any) -> Outcome:
    async def main() -> Outcome:
        async with server.running() as url:
            target = Target(url, "fake", endpoint)
            return await replay(target, arrivals, max_output=3, watch=lambda *_: nullcontext(), **options)

    return asyncio.run(main())


def in_flight(records: list[RequestRecord]) -> int:
    """The most at one moment; an answer that ends as another request begins makes room for it."""
    steps = [(record.sent or 0.0, 1) for record in records] + [(record.finished or 0.0, -1) for record in records]
    now = most = 0
    for _, change in sorted(steps):
        now += change
        most = max(most, now)
    return most


def by_session(records: list[RequestRecord]) -> list[list[RequestRecord]]:
    found: dict[object, list[RequestRecord]] = {}
    for record in records:
        found.setdefault(record.index if record.session is None else record.session, []).append(record)
    return list(found.values())


def in_order(records: list[RequestRecord], pause: float = 0.0) -> bool:
    return all(
        before.finished is not None and after.sent is not None and before.finished + pause <= after.sent + 1e-9
        for session in by_session(records)
        for before, after in pairwise(session)
    )


# --- over real sockets -------------------------------------------------------------------------------------


def test_conversations_are_sent_word_for_word_each_turn_after_the_answer_before() -> None:
    server = FakeOpenAI(workers=1, delay=0.002)
    arrivals = read_trace(TAU, session_gap=0.02, think_time=0.02)
    outcome = send(server, arrivals)
    assert all(record.ok for record in outcome.records)
    assert in_order(outcome.records)
    waited = [
        (after.sent or 0.0) - (before.finished or 0.0)
        for session in by_session(outcome.records)
        for before, after in pairwise(session)
        if arrivals[after.index].pause
    ]
    assert waited
    assert min(waited) >= 0.02
    assert all((record.lateness or 0.0) >= 0.0 for record in outcome.records)
    assert in_flight(outcome.records) <= 4
    wanted = [arrival.chat.messages[: arrival.chat.count] for arrival in arrivals if arrival.chat]
    sent = [body["messages"] for body in server.bodies]
    assert sorted(map(repr, sent)) == sorted(map(repr, wanted))
    assert any(message.get("tool_calls") for body in server.bodies for message in body["messages"])
    assert set(server.paths) == {"/v1/chat/completions"}


def test_a_turn_follows_an_answer_that_failed() -> None:
    outcome = send(FakeOpenAI(fault=lambda n: "500" if n == 0 else None), read_trace(TAU, 5))
    assert [record.ok for record in outcome.records].count(False) == 1
    assert in_order(outcome.records)


@pytest.mark.parametrize("users", [1, 3])
def test_so_many_users_and_no_more(users: int) -> None:
    arrivals = read_trace(TAU, 24)
    outcome = send(FakeOpenAI(delay=0.003), arrivals, concurrency=users)
    assert all(record.ok for record in outcome.records)
    assert in_order(outcome.records)
    assert in_flight(outcome.records) == users
    assert all((record.lateness or 0.0) >= 0.0 for record in outcome.records)


def test_speed_shortens_pauses() -> None:
    arrivals = [Arrival(0.0, 20, 2, (1, 2), 16, "s"), Arrival(100.0, 20, 2, (1, 2), 16, "s", pause=100.0)]
    outcome = send(FakeOpenAI(), arrivals, speed=10_000.0)
    assert (outcome.records[1].sent or 0.0) - (outcome.records[0].finished or 0.0) >= 0.01
    assert (outcome.records[1].finished or 99.0) < 20.0


def test_conversations_do_not_go_to_completions() -> None:
    with pytest.raises(ReplayError, match="can only be sent with --endpoint chat"):
        send(FakeOpenAI(), read_trace(TAU, 2), endpoint="completions")


# --- properties --------------------------------------------------------------------------------------------

ARRIVALS = st.lists(
    st.tuples(st.integers(0, 4), st.sampled_from([None, 0.0, 0.5]), st.integers(1, 200), st.integers(1, 9)),
    min_size=1,
    max_size=25,
).map(
    lambda rows: [
        Arrival(
            at=float(number // 3),
            input_tokens=tokens,
            output_tokens=output,
            block_ids=tuple(range(-(-tokens // 16))),
            block_tokens=16,
            session=f"s{session}" if session else None,
            pause=pause if session else None,
        )
        for number, (session, pause, tokens, output) in enumerate(rows)
    ]
)


@given(ARRIVALS, st.integers(1, 5))
@settings(deadline=None)
def test_virtual_users_keep_sessions_in_order_and_their_number(arrivals: list[Arrival], users: int) -> None:
    result = replay_virtually(arrivals, make_policy("cost"), workers=3, engine=ENGINE, concurrency=users)
    records = list(result.records)
    assert all(record.ok for record in records)
    assert in_flight(records) <= users
    assert in_order(records)
    assert [record.token_events for record in records] == [arrival.output_tokens for arrival in arrivals]


@given(ARRIVALS)
@settings(deadline=None)
def test_virtual_turns_wait_for_answers_and_the_rest_for_nobody(arrivals: list[Arrival]) -> None:
    records = list(replay_virtually(arrivals, make_policy("cost"), workers=2, engine=ENGINE).records)
    assert all(record.ok for record in records)
    for session in by_session(records):
        for before, after in pairwise(session):
            pause = arrivals[after.index].pause
            expected = arrivals[after.index].at if pause is None else (before.finished or 0.0) + pause
            assert after.sent == pytest.approx(expected)


@given(ARRIVALS, st.integers(0, 3), st.floats(0.0, 9.0), st.floats(0.0, 9.0))
@settings(deadline=None)
def test_a_lost_worker_costs_only_answers_that_had_begun(
    arrivals: list[Arrival], lost: int, gone: float, come: float
) -> None:
    result = replay_virtually(
        arrivals, make_policy("cost"), workers=4, engine=ENGINE, changes=[Lost(gone, lost), Added(come)]
    )
    for record in result.records:
        assert record.ok or (record.error == "reset_mid_stream" and record.worker == str(lost))
        assert record.ok or record.first_token is not None
        assert record.worker != str(lost) or (record.sent or 0.0) <= gone
        assert record.worker != "4" or (record.finished or 0.0) >= come
    assert len(result.load) == 5


@given(st.integers(0, 30), st.integers(1, 6), st.data())
def test_the_closed_loop_sends_each_once_in_order_within_its_bound(count: int, users: int, data: st.DataObject) -> None:
    naps = data.draw(st.lists(st.integers(0, 5), min_size=count, max_size=count))
    begun: list[int] = []
    active = most = 0

    async def one(index: int) -> None:
        nonlocal active, most
        begun.append(index)
        active += 1
        most = max(most, active)
        for _ in range(naps[index]):
            await asyncio.sleep(0)
        active -= 1

    async def main() -> None:
        await run_closed_loop(count, users, one, stop=asyncio.Event())

    asyncio.run(main())
    assert begun == list(range(count))
    assert most == min(users, count) or (most < users and count > 0 and min(naps) == 0) or count == 0


def test_stop_ends_the_closed_loop() -> None:
    async def main() -> list[int]:
        stop, begun = asyncio.Event(), []

        async def one(index: int) -> None:
            begun.append(index)
            if index == 2:
                stop.set()
            await asyncio.sleep(3600 if index == 2 else 0)

        await run_closed_loop(9, 1, one, stop=stop)
        return begun

    assert asyncio.run(main()) == [0, 1, 2]


# --- the virtual fleet -------------------------------------------------------------------------------------


def test_a_fleet_that_cannot_be_is_refused() -> None:
    arrivals = [Arrival(0.0, 20, 2, (1, 2), 16)]
    for options, words in (
        ({"workers": 0}, "at least one worker"),
        ({"workers": 1, "concurrency": 0}, "at least one worker and one user"),
        ({"workers": 1, "changes": [Lost(1.0, 0)]}, "it is the last, or not there"),
        ({"workers": 2, "changes": [Lost(1.0, 2), Added(2.0)]}, "worker 2 cannot be lost at 1 s"),
    ):
        with pytest.raises(ValueError, match=words):
            replay_virtually(arrivals, make_policy("cost"), engine=ENGINE, **options)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_replays_conversations(policy: str) -> None:
    arrivals = read_trace(TAU, session_gap=1.0, think_time=1.0)
    result = replay_virtually(arrivals, make_policy(policy), workers=2, engine=ENGINE, max_output=20)
    assert all(record.ok for record in result.records)
    assert 0.3 < result.hit_share < 1.0
