"""The channel between server and engine: every message, bounds on both sides, nothing lost."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path

import pytest
import zmq

from backends.worker.channel import ChannelError, ChannelFullError, EngineEnd, ServerEnd
from backends.worker.messages import (
    Cancel,
    Clear,
    EngineStats,
    Failed,
    FinishReason,
    Ready,
    Refused,
    SamplingParams,
    StepDone,
    Submit,
    ToEngine,
    TokenLogprobs,
    TokensOut,
    ToServer,
)
from cache.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, EngineHash
from policies.types import TokenIds

TOP = (1 << 64) - 1
STORED = BlockStored((EngineHash(TOP), EngineHash(1)), None, TokenIds(bytes(8)), 1, medium="GPU", salt="s")
TO_ENGINE: list[ToEngine] = [
    Submit(id="a", token_ids=TokenIds(b"\x01\0\0\0"), params=SamplingParams(max_tokens=1)),
    Submit(
        id="b",
        token_ids=TokenIds(bytes(400)),
        params=SamplingParams(max_tokens=7, seed=TOP, logit_bias={3: -1.5}, logprobs=0, stop_token_ids=(1, 2)),
        salt="pepper",
        priority=-3,
    ),
    Cancel("a"),
    Clear(),
]
TO_SERVER: list[ToServer] = [
    Ready(
        blocks=9, block_size=16, max_model_len=99, vocab_size=300, eos_token_ids=(1, 2), device="cpu", dtype="bfloat16"
    ),
    Failed("why"),
    Refused("a", "too long", "max_tokens"),
    StepDone(
        outputs=(
            TokensOut("a", (5,)),
            TokensOut("b", (1, 2), FinishReason.STOP, 2, 16, (TokenLogprobs(-0.5, (1, 9), (-0.5, -2.0)),) * 2),
        ),
        events=(STORED, BlockRemoved((EngineHash(3),)), AllBlocksCleared()),
        stats=EngineStats(running=1, steps=3),
    ),
]


def submit(number: int) -> Submit:
    return Submit(id=str(number), token_ids=TokenIds(bytes(4)), params=SamplingParams(max_tokens=1))


async def test_every_message_arrives_as_it_was_sent() -> None:
    server = ServerEnd()
    engine = EngineEnd(server.endpoint)
    for message in TO_ENGINE:
        server.send(message)
    received: list[ToEngine] = []
    async with asyncio.timeout(10):
        while len(received) < len(TO_ENGINE):
            received += await asyncio.to_thread(engine.receive, 1.0)
        assert received == TO_ENGINE
        assert engine.receive(0.01) == []
        for answer in TO_SERVER:
            engine.send(answer)
        assert [await server.receive() for _ in TO_SERVER] == TO_SERVER
    engine.close()
    server.close()


async def test_only_this_user_reaches_the_socket() -> None:
    server = ServerEnd()
    folder = Path(server.endpoint.removeprefix("ipc://")).parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    server.close()
    assert not folder.exists()


async def test_what_an_engine_has_not_taken_is_bounded_and_not_lost() -> None:
    server = ServerEnd()
    sent: list[ToEngine] = []
    for number in range(10_000):
        try:
            server.send(submit(number))
        except ChannelFullError:
            break
        sent.append(submit(number))
    assert 1000 <= len(sent) <= 3000
    # What takes load away is always taken.
    for message in (Cancel("0"), Clear()):
        server.send(message)
        sent.append(message)
    engine = EngineEnd(server.endpoint)
    received: list[ToEngine] = []
    async with asyncio.timeout(10):
        while len(received) < len(sent):
            received += await asyncio.to_thread(engine.receive, 0.5)
    assert received == sent
    server.send(submit(0))  # there is room again
    engine.close()
    server.close()


async def test_an_engine_waits_for_a_server_that_is_behind() -> None:
    server = ServerEnd()
    engine = EngineEnd(server.endpoint)
    steps = 0
    while steps < 10_000:
        try:
            engine.send(StepDone(stats=EngineStats(steps=steps)), timeout_s=0.2)
        except ChannelError:
            break
        steps += 1
    assert 1000 <= steps <= 5000
    async with asyncio.timeout(10):
        received = [await server.receive() for _ in range(steps)]
    assert received == [StepDone(stats=EngineStats(steps=number)) for number in range(steps)]
    engine.close()
    server.close()


@pytest.mark.parametrize("frame", [b"", b"\xc1", b"\x81\xa4type\xa5other", b"\x93\x01\x02\x03"])
async def test_what_is_no_message_is_an_error(frame: bytes) -> None:
    server = ServerEnd()
    engine = EngineEnd(server.endpoint)
    engine._socket.send(frame)
    with pytest.raises(ChannelError):
        await asyncio.wait_for(server.receive(), 10)
    server._socket.send(frame)
    with pytest.raises(ChannelError):
        await asyncio.to_thread(engine.receive, 5.0)
    engine.close()
    server.close()


async def test_a_path_that_is_too_long_for_a_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * 120)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    with pytest.raises(zmq.ZMQError):
        ServerEnd()
    assert list(long.iterdir()) == []
