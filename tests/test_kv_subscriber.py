"""The subscriber against a real publisher: PUB for events, ROUTER for replays, both as vLLM serves them."""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections import Counter
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import pytest
import uvloop
import zmq
import zmq.asyncio

from backends.kv_subscriber import FeedState, KvSubscriber, rank_endpoint
from cache.block_hash import ChainKey, extend_chain, root_hash
from cache.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EngineHash,
    EventBatch,
    KvEvent,
    encode_batch,
)
from cache.prefix_index import PrefixIndex
from policies.types import TokenIds, WorkerId
from tests.ports import free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine

WORKER = WorkerId("w0")
END = (-1).to_bytes(8, "big", signed=True)
DEADLINE_S = 20.0


def run(main: Coroutine[object, object, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not holds():  # noqa: ASYNC110  # the parts under test signal nobody
            await asyncio.sleep(0.002)


class Engine:
    """The publishing side of an engine, one block of the same chain a batch."""

    def __init__(self, context: zmq.asyncio.Context, *, replay: bool = True, epoch: int = 0) -> None:
        self._context = context
        self._pub = context.socket(zmq.XPUB)
        self._pub.linger = 0
        self._pub.setsockopt(zmq.XPUB_VERBOSE, 1)
        self.port = free_port()
        self._pub.bind(f"tcp://127.0.0.1:{self.port}")
        self._router = context.socket(zmq.ROUTER) if replay else None
        self.replay_port = 0
        if self._router is not None:
            self._router.linger = 0
            self.replay_port = free_port()
            self._router.bind(f"tcp://127.0.0.1:{self.replay_port}")
        self.requests: list[int] = []
        self.history: list[tuple[int, bytes]] = []
        self.next = 0
        self.epoch = epoch
        self.silent = False
        """Take replay requests and answer nothing."""
        self._task = asyncio.get_running_loop().create_task(self._serve())

    @property
    def endpoint(self) -> str:
        return f"tcp://127.0.0.1:{self.port}"

    @property
    def replay_endpoint(self) -> str | None:
        return f"tcp://127.0.0.1:{self.replay_port}" if self.replay_port else None

    async def _serve(self) -> None:
        while self._router is not None:
            client, _, start = await self._router.recv_multipart()
            first = int.from_bytes(start, "big")
            self.requests.append(first)
            if self.silent:
                continue
            for sequence, payload in self.history:
                if sequence >= first:
                    await self._router.send_multipart([client, b"", sequence.to_bytes(8, "big"), payload])
            await self._router.send_multipart([client, b"", END, b""])

    async def subscribed(self) -> bytes:
        """Wait for a subscription; its topic."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                message = await self._pub.recv()
                if message[:1] == b"\x01":
                    return bytes(message[1:])

    def record(self, *events: KvEvent) -> bytes:
        """A batch that is remembered but does not reach anyone: it is lost on the way."""
        payload = encode_batch(EventBatch(float(self.epoch), events))
        self.history.append((self.next, payload))
        self.next += 1
        return payload

    async def publish(self, *events: KvEvent, topic: bytes = b"") -> None:
        sequence = self.next
        await self.send(sequence, self.record(*events), topic=topic)

    async def send(self, sequence: int, payload: bytes, topic: bytes = b"") -> None:
        await self._pub.send_multipart([topic, sequence.to_bytes(8, "big"), payload])

    async def send_raw(self, *frames: bytes) -> None:
        await self._pub.send_multipart(list(frames))

    async def close(self) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        self._pub.close(linger=0)
        if self._router is not None:
            self._router.close(linger=0)


def ids(at: int) -> TokenIds:
    return TokenIds(array("I", range(16 * at, 16 * at + 16)).tobytes())


def stored(at: int, epoch: int = 0) -> BlockStored:
    """Block number `at` of the chain, as an engine with hashes of its own stores it."""
    parent = EngineHash(1000 * epoch + at) if at else None
    return BlockStored((EngineHash(1000 * epoch + at + 1),), parent, ids(at), 16)


def removed(at: int, epoch: int = 0) -> BlockRemoved:
    return BlockRemoved((EngineHash(1000 * epoch + at + 1),))


CHAIN = extend_chain(root_hash(ChainKey("m")), TokenIds(b"".join(ids(at) for at in range(64))), 16)


class Scene:
    """One engine, one subscriber, one index."""

    def __init__(self, engine: Engine, subscriber: KvSubscriber, index: PrefixIndex) -> None:
        self.engine = engine
        self.subscriber = subscriber
        self.index = index
        self.states: list[FeedState] = []

    @property
    def depth(self) -> int:
        return self.index.match(CHAIN).get(WORKER, 0)

    async def depth_becomes(self, depth: int) -> None:
        await until(lambda: self.depth == depth)
        self.index.check_integrity()

    async def applied(self, sequence: int) -> None:
        await until(lambda: self.subscriber.last_sequence == sequence)


def subscriber_of(engine: Engine, index: PrefixIndex, context: zmq.asyncio.Context, topic: str) -> KvSubscriber:
    return KvSubscriber(
        WORKER,
        index,
        endpoint=engine.endpoint,
        replay_endpoint=engine.replay_endpoint,
        topic=topic,
        replay_quiet_s=0.5,
        context=context,
    )


@asynccontextmanager
async def scene(
    *,
    replay: bool = True,
    topic: str = "",
    before: Callable[[Engine], Awaitable[None]] | None = None,
    index: PrefixIndex | None = None,
) -> AsyncIterator[Scene]:
    context = zmq.asyncio.Context()
    index = PrefixIndex(max_blocks=10_000) if index is None else index
    index.add_worker(WORKER, model="m")
    engine = Engine(context, replay=replay)
    if before is not None:
        await before(engine)
    subscriber = subscriber_of(engine, index, context, topic)
    stage = Scene(engine, subscriber, index)
    subscriber._on_state = stage.states.append
    task = asyncio.get_running_loop().create_task(subscriber.run())
    try:
        await engine.subscribed()
        if replay:
            # What a test publishes must not come by the first replay.
            stats = subscriber.stats
            await until(lambda: stats.replays == 1 and subscriber.state is not FeedState.REPLAYING)
        yield stage
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await stage.engine.close()
        assert not [socket for socket in context._sockets if not socket.closed]
        context.term()
        assert asyncio.all_tasks() == {asyncio.current_task()}


def test_batches_in_order_are_applied_in_order() -> None:
    async def main() -> None:
        async with scene(replay=False) as stage:
            await stage.engine.publish(stored(0), stored(1))
            await stage.engine.publish(stored(2))
            await stage.depth_becomes(3)
            await stage.engine.publish(removed(1))
            await stage.depth_becomes(1)
            await stage.engine.publish(AllBlocksCleared())
            await stage.depth_becomes(0)
            stats = stage.subscriber.stats
            assert (stats.batches, stats.events, stats.gaps, stats.forgotten) == (4, 5, 0, 0)
            assert stage.states == [FeedState.LIVE]

    run(main())


def test_late_joiner_learns_what_the_engine_remembers() -> None:
    async def before(engine: Engine) -> None:
        for at in range(5):
            engine.record(stored(at))

    async def main() -> None:
        async with scene(before=before) as stage:
            await stage.depth_becomes(5)
            assert stage.engine.requests == [0]
            await stage.engine.publish(stored(5))
            await stage.depth_becomes(6)
            assert stage.subscriber.stats.gaps == 0
            assert stage.states == [FeedState.REPLAYING, FeedState.LIVE]

    run(main())


def test_late_joiner_starts_where_a_trimmed_history_starts() -> None:
    async def before(engine: Engine) -> None:
        engine.record(stored(0))
        engine.record(stored(1))
        engine.record(stored(0))
        del engine.history[:2]

    async def main() -> None:
        async with scene(before=before) as stage:
            await stage.depth_becomes(1)
            assert stage.subscriber.last_sequence == 2

    run(main())


def test_gap_is_replayed() -> None:
    async def main() -> None:
        async with scene() as stage:
            await stage.engine.publish(stored(0))
            await stage.depth_becomes(1)
            stage.engine.record(stored(1))
            stage.engine.record(stored(2))
            await stage.engine.publish(stored(3))
            await stage.depth_becomes(4)
            assert stage.engine.requests[-1] == 1
            stats = stage.subscriber.stats
            assert (stats.gaps, stats.forgotten, stats.restarts) == (1, 0, 0)

    run(main())


def test_batches_published_while_a_replay_runs_are_applied_once() -> None:
    async def main() -> None:
        async with scene() as stage:
            await stage.engine.publish(stored(0))
            await stage.depth_becomes(1)
            stage.engine.record(stored(1))
            # The replay will hold all three that follow, and then they come again as published.
            for at in range(2, 5):
                await stage.engine.publish(stored(at))
            await stage.depth_becomes(5)
            await stage.engine.publish(removed(4))
            await stage.depth_becomes(4)
            assert stage.subscriber.stats.forgotten == 0
            assert stage.subscriber.stats.restarts == 0

    run(main())


def test_gap_without_replay_forgets_everything() -> None:
    async def main() -> None:
        async with scene(replay=False) as stage:
            await stage.engine.publish(stored(0), stored(1))
            await stage.depth_becomes(2)
            stage.engine.record(removed(0))
            await stage.engine.publish(stored(2))
            await stage.applied(2)
            assert stage.depth == 0
            assert len(stage.index) == 0
            await stage.engine.publish(stored(0))
            await stage.depth_becomes(1)
            assert stage.states == [FeedState.LIVE, FeedState.RELEARNING, FeedState.LIVE]

    run(main())


def test_gap_that_the_engine_no_longer_remembers() -> None:
    async def main() -> None:
        async with scene() as stage:
            await stage.engine.publish(stored(0), stored(1))
            await stage.depth_becomes(2)
            stage.engine.record(removed(0), removed(1))
            stage.engine.record(stored(0))
            del stage.engine.history[:2]
            await stage.engine.publish(stored(1))
            await stage.applied(3)
            assert stage.depth == 2
            assert stage.subscriber.stats.forgotten == 1
            assert len(stage.index) == 2

    run(main())


def test_replay_that_never_answers_forgets_everything() -> None:
    async def main() -> None:
        async with scene() as stage:
            await stage.engine.publish(stored(0))
            await stage.depth_becomes(1)
            stage.engine.silent = True
            stage.engine.record(removed(0))
            await stage.engine.publish(stored(7))
            await stage.applied(2)
            assert len(stage.index) == 0
            assert stage.subscriber.stats.forgotten == 1

    run(main())


def test_duplicates_are_dropped() -> None:
    async def main() -> None:
        async with scene(replay=False) as stage:
            await stage.engine.publish(stored(0))
            await stage.engine.publish(removed(0))
            await stage.engine.publish(stored(1))
            await stage.applied(2)
            for sequence, payload in stage.engine.history:
                await stage.engine.send(sequence, payload)
            await until(lambda: stage.subscriber.stats.duplicates == 3)
            assert stage.depth == 0
            assert stage.subscriber.stats.restarts == 0

    run(main())


@pytest.mark.parametrize("replay", [True, False])
@pytest.mark.parametrize("restart_at", [0, 2])
def test_restart_forgets_the_old_engine(restart_at: int, *, replay: bool) -> None:
    async def main() -> None:
        async with scene(replay=replay) as stage:
            for at in range(3):
                await stage.engine.publish(stored(at))
            await stage.depth_becomes(3)
            stage.engine.next, stage.engine.epoch = restart_at, 1
            stage.engine.history.clear()
            await stage.engine.publish(stored(0, epoch=1))
            await stage.depth_becomes(1)
            assert stage.subscriber.stats.restarts == 1
            await stage.engine.publish(stored(1, epoch=1))
            await stage.depth_becomes(2)
            assert stage.subscriber.stats.forgotten == 1

    run(main())


def test_lost_connection_without_replay_forgets() -> None:
    async def main() -> None:
        async with scene(replay=False) as stage:
            await stage.engine.publish(stored(0))
            await stage.depth_becomes(1)
            await stage.engine.close()
            await stage.depth_becomes(0)
            assert stage.subscriber.state is FeedState.RELEARNING

    run(main())


async def rebind(stage: Scene, *, epoch: int) -> Engine:
    stage.engine = await restarted(stage.engine, epoch=epoch)
    return stage.engine


async def restarted(old: Engine, *, epoch: int) -> Engine:
    """The engine's process ends; another begins on the same ports."""
    await old.close()
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                engine = Engine.__new__(Engine)
                _init_on_ports(engine, old, epoch)
            except zmq.ZMQError:
                await asyncio.sleep(0.01)
            else:
                return engine


def _init_on_ports(engine: Engine, old: Engine, epoch: int) -> None:
    context = old._context
    pub = context.socket(zmq.XPUB)
    router = context.socket(zmq.ROUTER)
    try:
        pub.linger = router.linger = 0
        pub.setsockopt(zmq.XPUB_VERBOSE, 1)
        router.bind(f"tcp://127.0.0.1:{old.replay_port}")
        engine.history = []
        engine.requests = []
        engine.next, engine.epoch, engine.silent = 0, epoch, False
        engine.port, engine.replay_port = old.port, old.replay_port
        engine._context, engine._pub, engine._router = context, pub, router
        pub.bind(f"tcp://127.0.0.1:{old.port}")
    except zmq.ZMQError:
        pub.close(linger=0)
        router.close(linger=0)
        raise
    engine._task = asyncio.get_running_loop().create_task(engine._serve())


def test_restart_that_the_numbers_do_not_show() -> None:
    async def main() -> None:
        async with scene() as stage:
            for at in range(3):
                await stage.engine.publish(stored(at))
            await stage.depth_becomes(3)
            engine = await rebind(stage, epoch=1)
            # Three batches nobody hears: the fourth continues the old engine's count.
            for _ in range(3):
                engine.record(stored(0, epoch=1))
            await engine.subscribed()
            await engine.publish(stored(1, epoch=1))
            await stage.depth_becomes(2)
            assert stage.subscriber.stats.forgotten >= 1

    run(main())


def test_reconnecting_to_the_same_engine_keeps_what_is_known() -> None:
    async def main() -> None:
        async with scene() as stage:
            for at in range(3):
                await stage.engine.publish(stored(at))
            await stage.depth_becomes(3)
            history = list(stage.engine.history)
            engine = await rebind(stage, epoch=0)
            engine.history, engine.next = history, 3
            engine.record(stored(3))
            await engine.subscribed()
            await stage.depth_becomes(4)
            assert stage.subscriber.stats.forgotten == 0

    run(main())


def test_malformed_messages_and_payloads() -> None:
    async def main() -> None:
        async with scene(replay=False) as stage:
            await stage.engine.publish(stored(0))
            await stage.depth_becomes(1)
            await stage.engine.send_raw(b"", b"short", b"x")
            await stage.engine.send_raw(b"alone")
            await stage.engine.send_raw(b"", END, b"")
            await until(lambda: stage.subscriber.stats.malformed == 3)
            assert stage.depth == 1
            # A batch that cannot be read may have removed blocks.
            await stage.engine.send(1, b"\xc1garbage")
            await stage.applied(1)
            assert len(stage.index) == 0
            await stage.engine.send(2, encode_batch(EventBatch(0.0, (stored(0),))))
            await stage.depth_becomes(1)
            assert stage.subscriber.stats.malformed == 4

    run(main())


def test_one_bad_event_costs_only_itself_unless_it_removes() -> None:
    async def main() -> None:
        async with scene(replay=False) as stage:
            good = encode_batch(EventBatch(0.0, (stored(0),)))
            await stage.engine.send(0, good[:9] + b"\xcb" * 0 + good[9:])
            await stage.depth_becomes(1)
            odd = b"\x92\xcb" + bytes(8) + b"\x91\x92\xacBlockStored2\xc0"
            await stage.engine.send(1, odd)
            await until(lambda: stage.subscriber.stats.skipped_events == 1)
            assert stage.depth == 1
            lost = b"\x92\xcb" + bytes(8) + b"\x91\x92\xacBlockRemoved\xc0"
            await stage.engine.send(2, lost)
            await stage.applied(2)
            assert len(stage.index) == 0

    run(main())


def test_only_the_topic_is_heard() -> None:
    async def main() -> None:
        async with scene(replay=False, topic="kv@a") as stage:
            await stage.engine.send(0, encode_batch(EventBatch(0.0, (stored(0),))), topic=b"kv@b")
            await stage.engine.send(7, encode_batch(EventBatch(0.0, (stored(0), stored(1)))), topic=b"kv@a@m")
            await stage.depth_becomes(2)
            assert stage.subscriber.last_sequence == 7

    run(main())


def test_reset_forgets_at_once_and_learns_again() -> None:
    async def main() -> None:
        async with scene() as stage:
            await stage.engine.publish(stored(0), stored(1))
            await stage.depth_becomes(2)
            stage.engine.history.clear()
            stage.engine.record(stored(0))
            stage.subscriber.reset()
            assert len(stage.index) == 0
            await stage.depth_becomes(1)
            assert stage.engine.requests == [0, 0]

    run(main())


def test_reset_amid_a_long_batch_leaves_nothing_of_it() -> None:
    async def main() -> None:
        async with scene(replay=False) as stage:
            many = [EngineHash(10_000 + at) for at in range(1500)]
            big = BlockStored(tuple(many), None, TokenIds(array("I", range(16 * 1500)).tobytes()), 16)
            apply, seen = stage.index.apply, []

            def counting(worker: WorkerId, event: KvEvent, *, rank: int = 0) -> None:
                apply(worker, event, rank=rank)
                seen.append(event)
                if len(seen) == 1:
                    asyncio.get_running_loop().call_soon(stage.subscriber.reset)

            stage.index.apply = counting  # type: ignore[method-assign]  # the failure under test
            await stage.engine.publish(big, stored(0))
            await until(lambda: bool(seen))
            stage.index.apply = apply  # type: ignore[method-assign]  # the failure under test
            await until(lambda: len(stage.index) == 0)
            await stage.engine.publish(stored(1))
            await stage.applied(1)
            assert len(stage.index) == 0
            assert len(seen) == 1

    run(main())


class WatchedIndex(PrefixIndex):
    """An index that notes how many blocks and how many events were applied in each turn of the loop."""

    def __init__(self, *, max_blocks: int) -> None:
        super().__init__(max_blocks=max_blocks)
        self.turn = 0
        self.blocks: Counter[int] = Counter()
        self.events: Counter[int] = Counter()

    def watch(self) -> None:
        self.turn += 1
        asyncio.get_running_loop().call_soon(self.watch)

    def apply(self, worker: WorkerId, event: KvEvent, *, rank: int = 0) -> None:
        assert not isinstance(event, AllBlocksCleared)
        self.blocks[self.turn] += len(event.block_hashes)
        self.events[self.turn] += 1
        super().apply(worker, event, rank=rank)


def many(n_blocks: int) -> BlockStored:
    """The first blocks of the chain as one event."""
    return BlockStored(
        tuple([EngineHash(at + 1) for at in range(n_blocks)]),
        None,
        TokenIds(b"".join(ids(at) for at in range(n_blocks))),
        16,
    )


def test_a_big_event_is_applied_over_several_turns() -> None:
    async def main() -> None:
        index = WatchedIndex(max_blocks=10_000)
        async with scene(index=index) as stage:
            index.watch()
            await stage.engine.publish(many(5000))
            await stage.applied(0)
            assert (len(index), index.match(CHAIN)) == (5000, {WORKER: 64})
            await stage.engine.publish(BlockRemoved(tuple(map(EngineHash, range(65, 5001)))))
            await stage.applied(1)
            assert (len(index), index.match(CHAIN)) == (64, {WORKER: 64})
            assert index.blocks.total() == 5000 + 4936
            assert max(index.blocks.values()) < 2 * 1024
            assert stage.subscriber.stats.events == 2

    run(main())


@pytest.mark.parametrize("replayed", [False, True])
def test_many_small_batches_let_the_loop_turn(*, replayed: bool) -> None:
    async def main() -> None:
        index = WatchedIndex(max_blocks=10_000)
        async with scene(index=index) as stage:
            index.watch()
            for at in range(600):
                if replayed and 0 < at < 599:
                    stage.engine.record(stored(at))
                else:
                    await stage.engine.publish(stored(at))
            await stage.applied(599)
            assert (len(index), stage.subscriber.stats.gaps) == (600, int(replayed))
            # Receiving a message counts as 64 blocks, its event and block as 2: 16 messages are a turn's work.
            assert max(index.events.values()) <= 17

    run(main())


def test_an_event_larger_than_the_index_keeps_its_leading_blocks() -> None:
    async def main() -> None:
        async with scene(index=PrefixIndex(max_blocks=1500)) as stage:
            await stage.engine.publish(many(5000))
            await stage.applied(0)
            assert (len(stage.index), stage.depth) == (1500, 64)

    run(main())


def test_what_a_reset_leaves_behind_is_swept_by_the_idle_subscriber() -> None:
    async def main() -> None:
        async with scene(replay=False) as stage:
            await stage.engine.publish(many(5000))
            await stage.applied(0)
            stage.subscriber.reset()
            assert (len(stage.index), stage.depth, stage.index.stale_count) == (0, 0, 5000)
            await until(lambda: stage.index.stale_count == 0)
            stage.index.check_integrity()

    run(main())


def test_a_removal_that_cannot_be_read_forgets_what_came_before_it_and_no_more() -> None:
    async def main() -> None:
        async with scene(replay=False) as stage:
            unreadable = BlockRemoved((EngineHash(1),), group="x")  # type: ignore[arg-type]  # what is under test
            await stage.engine.publish(stored(0), stored(1), unreadable, stored(0))
            await stage.applied(0)
            stats = stage.subscriber.stats
            assert (stage.depth, len(stage.index)) == (1, 1)
            assert (stats.events, stats.skipped_events) == (3, 1)

    run(main())


def test_each_state_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with scene(replay=False) as stage:
            for at in range(5):
                await stage.engine.publish(stored(at))
            await stage.depth_becomes(5)

    with caplog.at_level(logging.INFO, logger="backends.kv_subscriber"):
        run(main())
    assert [record.getMessage() for record in caplog.records] == ["KV events of w0, rank 0: live, batch 0 applied"]


def test_ranks_that_share_a_feed_hold_blocks_of_their_own() -> None:
    async def main() -> None:
        async with scene(replay=False) as stage:

            async def told(rank: int | None, *events: KvEvent) -> None:
                engine = stage.engine
                await engine.send(engine.next, encode_batch(EventBatch(0.0, events, rank)))
                engine.next += 1

            await told(3, stored(0), stored(1))
            await told(5, stored(0))
            await told(3, removed(0))
            await stage.applied(2)
            assert (stage.depth, len(stage.index)) == (2, 2)
            await told(5, AllBlocksCleared())
            await stage.depth_becomes(0)
            assert len(stage.index) == 1
            # What is no rank is the subscriber's own.
            await told(-1, stored(0))
            await told(1 << 20, stored(1))
            await stage.depth_becomes(2)
            assert len(stage.index) == 3
            # Lost: all ranks of the feed are forgotten.
            stage.engine.next += 1
            await told(4, stored(0))
            await stage.depth_becomes(1)
            assert len(stage.index) == 1

    run(main())


def test_what_is_left_of_a_lost_connection_is_not_taken_for_the_new_engines() -> None:
    async def main() -> None:
        async with scene() as stage:
            await stage.engine.publish(stored(0))
            await stage.depth_becomes(1)
            # The engine publishes once more and ends before the subscriber has its turn: both are noticed together.
            last = stage.engine
            replays = stage.subscriber.stats.replays
            await last.send(1, encode_batch(EventBatch(0.0, (stored(0), stored(1)))))
            engine = await rebind(stage, epoch=1)
            engine.record(stored(0, epoch=1))
            await until(lambda: stage.subscriber.stats.replays >= replays + 2)
            await until(lambda: stage.subscriber.last_sequence == 0)
            assert (stage.depth, len(stage.index)) == (1, 1)
            await stage.engine.publish(stored(1, epoch=1))
            await stage.depth_becomes(2)
            # Read in time or dropped: never after the new engine was met, whose next number it has.
            assert stage.subscriber.stats.restarts <= 1

    run(main())


def test_rank_endpoint() -> None:
    assert rank_endpoint("tcp://10.0.0.1:5557", 3) == "tcp://10.0.0.1:5560"
    assert rank_endpoint("tcp://10.0.0.1:5557", 0) == "tcp://10.0.0.1:5557"
    assert rank_endpoint("ipc:///run/kv", 2) == "ipc:///run/kv"
