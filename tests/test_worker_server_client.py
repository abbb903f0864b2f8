"""The server's view of its engine, without HTTP: who hears what, and who hears no more."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from backends.worker.engine_client import EngineClient, EngineFault, EngineUnavailableError
from backends.worker.messages import FinishReason, Refused, SamplingParams, StepDone, Submit, TokensOut
from cache.kv_events import AllBlocksCleared, BlockStored
from cache.token_backends import ids_to_bytes
from tests.gateway_fixtures import eventually
from tests.worker_fixtures import ENGINE, double

Told = TokensOut | Refused | EngineFault


def sequence(name: str = "a", *, tokens: int = 5, **fields: Any) -> Submit:
    prompt = ids_to_bytes(range(10, 50))
    return Submit(id=name, token_ids=prompt, params=SamplingParams(max_tokens=tokens), **fields)


@contextlib.asynccontextmanager
async def client_of(
    *behaviours: str, on_step: Callable[[StepDone], None] = lambda _: None, **fields: Any
) -> AsyncIterator[EngineClient]:
    client = EngineClient(ENGINE, command=double(*behaviours), on_step=on_step, **fields)
    await client.start(20.0)
    try:
        yield client
    finally:
        await client.close(5.0)


def tokens_of(told: list[Told]) -> list[int]:
    return [token for out in told if isinstance(out, TokensOut) for token in out.token_ids]


async def test_a_sequence_hears_its_own_tokens_and_its_end() -> None:
    async with client_of() as client:
        told: dict[str, list[Told]] = {"a": [], "b": []}
        client.submit(sequence("a"), told["a"].append)
        client.submit(sequence("b", tokens=3), told["b"].append)
        assert client.open_sequences == 2
        await eventually(lambda: client.open_sequences == 0)
        assert (tokens_of(told["a"]), tokens_of(told["b"])) == ([10, 11, 12, 13, 14], [10, 11, 12])
        last = told["a"][-1]
        assert isinstance(last, TokensOut)
        assert last.finish_reason is FinishReason.LENGTH
        client.cancel("a")  # it has ended: no error


async def test_what_is_cancelled_hears_no_more_and_leaves_the_engine() -> None:
    async with client_of("pace:5") as client:
        told: list[Told] = []
        client.submit(sequence(tokens=2000), told.append)
        await eventually(lambda: told)
        client.cancel("a")
        client.cancel("never there")
        heard = len(told)
        await eventually(lambda: client.stats.running == 0)
        assert len(told) == heard
        assert client.stats.generation_tokens < 2000


async def test_a_receiver_may_cancel_its_own_sequence() -> None:
    async with client_of("pace:5") as client:
        told: list[Told] = []

        def once(what: Told) -> None:
            told.append(what)
            client.cancel("a")

        client.submit(sequence(tokens=2000), once)
        await eventually(lambda: told and client.stats.running == 0)
        assert len(told) == 1


async def test_events_are_shown_before_the_tokens_of_their_step() -> None:
    order: list[object] = []
    async with client_of(on_step=lambda step: order.extend(type(event) for event in step.events)) as client:
        client.submit(sequence(), order.append)
        await eventually(lambda: client.open_sequences == 0)
        assert order[0] is BlockStored
        assert isinstance(order[1], TokensOut)
        client.clear_cache()
        await eventually(lambda: order[-1] is AllBlocksCleared)


async def test_one_who_cannot_be_shown_a_step_stops_nobody(caplog: pytest.LogCaptureFixture) -> None:
    def broken(step: StepDone) -> None:
        raise ValueError(step.stats.steps)

    async with client_of(on_step=broken) as client:
        told: list[Told] = []
        client.submit(sequence(), told.append)
        await eventually(lambda: client.open_sequences == 0)
        assert tokens_of(told) == [10, 11, 12, 13, 14]
        assert client.problem is None
    assert "cannot be told" in caplog.text


async def test_a_receiver_that_breaks_its_promise_is_an_engine_nobody_believes() -> None:
    async with client_of() as client:

        def broken(what: Told) -> None:
            raise KeyError(type(what))

        client.submit(sequence(), broken)
        await asyncio.wait_for(client.failed.wait(), 10.0)
        assert client.problem == "what the engine told cannot be taken: KeyError"


async def test_nothing_is_taken_before_the_start_nor_after_the_end() -> None:
    client = EngineClient(ENGINE, command=double())

    def refuses_as(problem: str) -> bool:
        with pytest.raises(EngineUnavailableError, match=problem):
            client.submit(sequence(), print)
        with pytest.raises(EngineUnavailableError, match=problem):
            client.clear_cache()
        return client.problem == problem

    assert refuses_as("the engine is not ready yet")
    await client.start(20.0)
    assert client.problem is None
    await client.close(5.0)
    assert refuses_as("the worker is stopping")
    await client.close(5.0)  # a second time does nothing
