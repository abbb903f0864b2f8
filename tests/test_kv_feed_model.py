"""A subscriber and a wire that loses, repeats and holds back batches, to an engine that ends and begins again.

Whatever happened, once a batch has come through that tells where the engine stands, the index claims nothing that the
engine does not hold; and where everything was heard, or the engine could replay all of it, it knows it all.
"""

from __future__ import annotations

import asyncio
from array import array
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

import uvloop
import zmq.asyncio
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from backends.kv_subscriber import KvSubscriber
from cache.block_hash import ChainKey, extend_chain, root_hash
from cache.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Encoding,
    EngineHash,
    EventBatch,
    KvEvent,
    encode_batch,
)
from cache.prefix_index import PrefixIndex
from policies.types import BlockHash, TokenIds, WorkerId
from tests.test_kv_subscriber import END, Engine, restarted

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")
WORKER = WorkerId("w")
DEPTH = 4
PATHS = [tuple(int(bit) for bit in f"{number:b}"[1:]) for number in range(2, 2 ** (DEPTH + 1))]
"""Blocks of one token, 0 or 1, as the prompts that end with them."""
Path = tuple[int, ...]


def tokens(path: Path) -> TokenIds:
    return TokenIds(array("I", path).tobytes())


HASHES: dict[Path, list[BlockHash]] = {
    path: extend_chain(root_hash(ChainKey("m", 1)), tokens(path), 1) for path in PATHS
}


class FeedAgainstEngine(RuleBasedStateMachine):
    """One engine, one subscriber, real sockets between them. The loop turns only while a rule lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self.context = zmq.asyncio.Context()
        self.index = PrefixIndex(max_blocks=10_000)
        self.index.add_worker(WORKER, model="m", block_size=1)
        self.held: set[Path] = set()
        """What the engine holds."""
        self.late: list[tuple[int, bytes]] = []
        """Batches that are still on their way."""
        self.all_heard = True
        """Of this engine's life."""
        self.all_remembered = True
        self.n_markers = 0
        self.encoding = Encoding.ARRAY

    def run(self, work: Coroutine[object, object, T]) -> T:
        return self.runner.run(work)

    @initialize(replay=st.booleans(), encoding=st.sampled_from(Encoding))
    def begin(self, encoding: Encoding, *, replay: bool) -> None:
        self.replay, self.encoding = replay, encoding

        async def start() -> None:
            self.engine = Engine(self.context, replay=replay)
            self.subscriber = KvSubscriber(
                WORKER,
                self.index,
                endpoint=self.engine.endpoint,
                replay_endpoint=self.engine.replay_endpoint,
                replay_quiet_s=0.1,
                context=self.context,
            )
            self.task = asyncio.get_running_loop().create_task(self.subscriber.run())
            await self.engine.subscribed()

        self.run(start())

    # --- what the engine does, and what becomes of it on the way ---

    async def publish(self, events: list[KvEvent], fate: str) -> None:
        engine = self.engine
        sequence = engine.next
        payload = encode_batch(EventBatch(float(engine.epoch), tuple(events)), self.encoding)
        engine.history.append((sequence, payload))
        engine.next += 1
        if fate in {"heard", "twice"}:
            await engine.send(sequence, payload)
        if fate == "twice":
            await engine.send(sequence, payload)
        if fate == "late":
            self.late.append((sequence, payload))
        if fate in {"lost", "late"}:
            self.all_heard = False

    def name(self, path: Path) -> EngineHash:
        return EngineHash(1000 * (self.engine.epoch + 1) + PATHS.index(path))

    fates = st.sampled_from(["heard"] * 5 + ["lost", "twice", "late"])

    @rule(path=st.sampled_from(PATHS), fate=fates)
    def store(self, path: Path, fate: str) -> None:
        """An engine stores what it lacks of a prompt, each block after its parent."""
        events: list[KvEvent] = []
        for end in range(1, len(path) + 1):
            block = path[:end]
            if block not in self.held:
                parent = self.name(block[:-1]) if end > 1 else None
                events.append(BlockStored((self.name(block),), parent, tokens(block[-1:]), 1))
                self.held.add(block)
        self.run(self.publish(events, fate))

    @rule(path=st.sampled_from(PATHS), fate=fates)
    def evict(self, path: Path, fate: str) -> None:
        """A block goes, and with it all that follows it, as far as there is any."""
        gone = [block for block in sorted(self.held, reverse=True) if block[: len(path)] == path]
        self.held.difference_update(gone)
        self.run(self.publish([BlockRemoved(tuple(map(self.name, gone)))], fate))

    @rule(fate=fates)
    def clear(self, fate: str) -> None:
        self.held.clear()
        self.run(self.publish([AllBlocksCleared()], fate))

    # --- what happens to the engine and the wire ---

    @precondition(lambda self: self.late)
    @rule(at=st.integers(0, 10))
    def arrive(self, at: int) -> None:
        """One of the late ones comes, in whatever order."""
        self.run(self.engine.send(*self.late.pop(at % len(self.late))))

    @precondition(lambda self: self.engine.history)
    @rule(at=st.integers(0, 30))
    def repeat(self, at: int) -> None:
        history = self.engine.history
        self.run(self.engine.send(*history[at % len(history)]))

    @precondition(lambda self: self.replay and self.engine.history)
    @rule(n_batches=st.integers(1, 4))
    def forget(self, n_batches: int) -> None:
        """The engine remembers only so many batches."""
        del self.engine.history[:n_batches]
        self.all_remembered = False

    @rule()
    def turn(self) -> None:
        """The subscriber gets time for what has come so far."""
        self.run(asyncio.sleep(0.005))

    @precondition(lambda self: self.replay)
    @rule()
    def restart(self) -> None:
        """The process ends with batches of it perhaps unread, and another begins on its ports."""

        async def again() -> None:
            self.engine = await restarted(self.engine, epoch=self.engine.epoch + 1)
            await self.engine.subscribed()

        self.begin_life()
        self.run(again())

    @rule(fate=st.sampled_from(["heard", "twice"]))
    def restart_unseen(self, fate: str) -> None:
        """Another engine behind the same connection, through a forwarder perhaps, whose first batch is heard."""
        self.begin_life()
        self.engine.next, self.engine.epoch = 0, self.engine.epoch + 1
        self.engine.history.clear()
        self.run(self.publish([AllBlocksCleared()], fate))

    def begin_life(self) -> None:
        self.held.clear()
        self.late.clear()
        self.all_heard = self.all_remembered = True

    # --- what must hold then ---

    @rule(path=st.sampled_from(PATHS))
    def settle(self, path: Path) -> None:
        """All that is late arrives, and then a batch that is heard."""

        async def until_read() -> None:
            for sequence, payload in self.late:
                await self.engine.send(sequence, payload)
            self.late.clear()
            await self.publish([AllBlocksCleared()] if not self.held else [], "heard")
            # A message that is none is counted when all before it have been dealt with.
            self.n_markers += 1
            expected = self.subscriber.stats.malformed + 1
            await self.engine.send_raw(b"", END, b"")
            async with asyncio.timeout(3.0):
                while self.subscriber.stats.malformed != expected:
                    await asyncio.sleep(0.002)

        self.run(until_read())
        assert self.subscriber.last_sequence == self.engine.next - 1
        self.index.check_integrity()
        for prompt, hashes in HASHES.items():
            held = next((at for at in range(len(prompt)) if prompt[: at + 1] not in self.held), len(prompt))
            claimed = self.index.match(hashes).get(WORKER, 0)
            assert claimed <= held, f"{claimed} blocks of {prompt} are claimed, {held} are held"
            if self.all_heard or (self.replay and self.all_remembered):
                assert claimed == held, f"{claimed} blocks of {prompt} are known, {held} are held"

    def teardown(self) -> None:
        async def end() -> None:
            self.task.cancel()
            with suppress(asyncio.CancelledError):
                await self.task
            await self.engine.close()

        if hasattr(self, "task"):
            self.run(end())
        self.runner.close()
        self.context.term()


TestFeedAgainstEngine = FeedAgainstEngine.TestCase
TestFeedAgainstEngine.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
