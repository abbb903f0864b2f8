"""Follows one engine's KV events over ZMQ and keeps the prefix index true to them.

The index may say less than the engine holds, never knowingly more. So every batch is placed by its sequence
number: the next one is applied, one seen before is dropped, after a gap the engine is asked to replay what is
missing, and when it cannot, or has restarted, everything known of it is forgotten and learnt again. A
sequence number that was used before is a duplicate only with the same payload; with another it is a restarted
engine's.

A lost connection is a possible restart that the numbers alone may not show (the new engine may have caught up
with the old one's count), so then the last batch known is asked for again and compared; without a replay
endpoint everything is forgotten. What had come over it and was not read yet is dropped: it would be taken for
the new engine's. Silence is fine: an idle engine publishes nothing. That an engine is gone
for good its health checks say, and the fleet calls `reset`.

Source of the protocol: vLLM `distributed/kv_events.py` (PUB `[topic, sequence, payload]`; ROUTER: an 8-byte
first sequence in, `[sequence, payload]...` out, ended by sequence -1). Data-parallel ranks publish each on a
port of its own with numbers of its own: one subscriber for each. Where several share one feed and its numbers,
each batch tells its rank, and what one of them drops the others still hold.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from enum import StrEnum
from itertools import count
from typing import TYPE_CHECKING, Final

import zmq
import zmq.asyncio
from xxhash import xxh3_64_intdigest

from cache.kv_events import (
    MAX_PAYLOAD_BYTES,
    AllBlocksCleared,
    BatchReader,
    KvEventError,
    Skipped,
    slices,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from cache.kv_events import KvEvent
    from cache.prefix_index import PrefixIndex
    from policies.types import WorkerId

_log = logging.getLogger(__name__)

_END_OF_REPLAY: Final = (-1).to_bytes(8, "big", signed=True)
_SEQUENCE_BYTES: Final = 8
_N_RECENT: Final = 4096
"""Batches whose payload is remembered, as a hash, to tell duplicates from a restart."""
_RECEIVE_HWM: Final = 4096
"""Batches ZMQ queues for us; what is beyond is dropped there and becomes a gap here."""
_MAX_REPLAY_BATCHES: Final = 65_536
"""An engine keeps 10,000; an endless replay is none."""
_BLOCKS_PER_TURN: Final = 1024
"""About a millisecond of the loop's time, then the others' turn. Only the decoding of one event, which is capped
in size, may take more."""
_WORK_PER_MESSAGE: Final = 64
"""What receiving and placing a message costs, in blocks."""
_BYTES_PER_BLOCK: Final = 64
"""So much is decoded, or hashed, in less time than a block is applied."""
_MAX_RANKS: Final = 1024
"""A batch may tell a data-parallel rank below this; another counts as the subscriber's own."""
_POLL_MS: Final = 500
"""How late an idle subscriber may notice a lost connection or a `reset`."""
_CONNECTION_EVENTS: Final = zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED

_monitor_numbers = count()


class FeedState(StrEnum):
    """How well an engine's events are known."""

    WAITING = "waiting"
    """Nothing has come yet."""
    REPLAYING = "replaying"
    """Missing batches have been asked for."""
    LIVE = "live"
    """Every batch since the first one known has been applied."""
    RELEARNING = "relearning"
    """All was forgotten, and nothing has come since."""


@dataclass(slots=True)
class FeedStats:
    """Counters of one subscriber; they only grow."""

    batches: int = 0
    events: int = 0
    skipped_events: int = 0
    """Events in good batches that could not be understood."""
    malformed: int = 0
    """Messages or payloads that could not be understood."""
    duplicates: int = 0
    gaps: int = 0
    restarts: int = 0
    replays: int = 0
    replayed_batches: int = 0
    forgotten: int = 0
    """Times that everything known was forgotten."""


def rank_endpoint(endpoint: str, rank: int) -> str:
    """The endpoint of a data-parallel rank: vLLM adds the rank to a TCP port."""
    head, colon, port = endpoint.rpartition(":")
    return f"{head}{colon}{int(port) + rank}" if rank and port.isdecimal() else endpoint


class KvSubscriber:
    """One engine's (one data-parallel rank's) feed. `run` it in a task; cancelling closes all its sockets."""

    def __init__(  # what a feed is: all but four have defaults
        self,
        worker: WorkerId,
        index: PrefixIndex,
        *,
        endpoint: str,
        replay_endpoint: str | None,
        topic: str = "",
        rank: int = 0,
        on_state: Callable[[FeedState], None] | None = None,
        replay_quiet_s: float = 2.0,
        replay_total_s: float = 30.0,
        context: zmq.asyncio.Context | None = None,
    ) -> None:
        """A replay has failed after `replay_quiet_s` without a batch, or when it takes `replay_total_s` in
        all.
        """
        self.worker = worker
        self.rank = rank
        self.state = FeedState.WAITING
        self.stats = FeedStats()
        self._index = index
        self._endpoint = endpoint
        self._replay_endpoint = replay_endpoint
        self._topic = topic.encode()
        self._on_state = on_state
        self._replay_quiet_ms = max(1, round(replay_quiet_s * 1000))
        self._replay_total_s = replay_total_s
        self._context = context or zmq.asyncio.Context.instance()
        self._expected: int | None = None
        """The next sequence number; None when nothing is known and any will do."""
        self._recent: dict[int, int] = {}
        """Sequence number -> hash of its payload, for the last `_N_RECENT` applied."""
        self._work = 0
        """Work done since the loop had its last turn, in blocks."""
        self._epoch = 0
        """Counts calls of `reset`: what was received before one must not be applied after it."""
        self._ranks = {rank}
        """Ranks that batches were of: what is to be forgotten."""
        self._lost = False
        """The connection was lost, and what had come over it may still be queued."""
        self._reconnected = False
        self._suspect = False
        """The connection was lost: the engine behind it may be another one."""
        self._behind = True
        """The engine's history has not been asked for since the start or the last `reset`."""

    @property
    def last_sequence(self) -> int | None:
        """Number of the last batch applied; None when nothing is known."""
        return None if self._expected is None else self._expected - 1

    def reset(self) -> None:
        """Forget everything at once (the engine is gone or another one) and learn again. Callable at any
        time.
        """
        self._epoch += 1
        self._forget("reset")
        self._behind = True

    async def run(self) -> None:
        """Receive and apply until cancelled; ZMQ reconnects by itself.

        With a replay endpoint it first asks for all that the engine still remembers, so a gateway that starts
        late or again knows what its workers hold. Raises zmq.ZMQError for an endpoint that is no address.
        """
        sub = self._context.socket(zmq.SUB)
        monitor: zmq.Socket[bytes] = zmq.Context.shadow(self._context.underlying).socket(zmq.PAIR)
        try:
            _set_options(sub)
            sub.rcvhwm = _RECEIVE_HWM
            address = f"inproc://prefixgate-kv-monitor-{next(_monitor_numbers)}"
            sub.monitor(address, _CONNECTION_EVENTS)
            monitor.connect(address)
            sub.subscribe(self._topic)
            sub.connect(self._endpoint)
            while True:
                await self._turn(sub, monitor)
        finally:
            sub.disable_monitor()
            monitor.close(linger=0)
            sub.close(linger=0)

    async def _turn(self, sub: zmq.asyncio.Socket, monitor: zmq.Socket[bytes]) -> None:
        """Wait for a message, or a little while, and deal with it."""
        self._read_monitor(monitor)
        if self._lost:
            await self._drain(sub)
        reconnected, self._reconnected = self._reconnected, False
        if self._behind:
            await self._catch_up()
        elif reconnected and self._suspect:
            await self._verify()
        while self._index.stale_count and not await sub.poll(0):
            self._index.sweep(_BLOCKS_PER_TURN)
            await self._pace(_BLOCKS_PER_TURN)
        if not await sub.poll(_POLL_MS):
            return
        frames = await sub.recv_multipart()
        # The connection's events were written before what came over it: a message of a new connection never
        # overtakes the loss of the old one.
        self._read_monitor(monitor)
        if self._lost:
            return
        message = _parse_message(frames)
        if message is None:
            self.stats.malformed += 1
        else:
            await self._take(*message)
        await self._pace(_WORK_PER_MESSAGE)

    async def _pace(self, work: int) -> None:
        """Count work, in blocks, and let the loop turn when it has been enough.

        ZMQ's futures of what is already there are done at once: awaiting them lets nobody else run.
        """
        self._work += work
        if self._work >= _BLOCKS_PER_TURN:
            self._work = 0
            await asyncio.sleep(0)

    def _read_monitor(self, monitor: zmq.Socket[bytes]) -> None:
        """Note a lost connection, and a new one."""
        while monitor.poll(0):
            event = int.from_bytes(monitor.recv_multipart()[0][:2], "little")
            if event == zmq.EVENT_DISCONNECTED:
                self._lost = True
                self._suspect = self._replay_endpoint is not None
                if not self._suspect and self._expected is not None:
                    self._forget("the connection was lost, and what was missed cannot be asked for")
            elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._reconnected = True

    async def _drain(self, sub: zmq.asyncio.Socket) -> None:
        """Drop what is queued; if some of it is of the new connection, it is missed like what came before it."""
        self._lost = False
        for _ in range(2 * _RECEIVE_HWM):
            if not await sub.poll(0):
                break
            await sub.recv_multipart()
            await self._pace(1)

    # --- one batch after the other ---

    async def _take(self, sequence: int, payload: bytes) -> None:
        """Place a published batch: apply it, drop it, or first recover what is missing before it."""
        epoch = self._epoch
        if self._suspect:
            await self._verify()
        if self._expected is not None and sequence > self._expected:
            self.stats.gaps += 1
            await self._replay(self._expected)
        elif self._is_another(sequence, payload):
            self.stats.restarts += 1
            self._forget("the engine restarted")
            await self._catch_up()
        if epoch != self._epoch:
            return
        if self._expected is not None and sequence > self._expected:
            self._forget("batches were lost and could not be replayed")
        elif self._is_another(sequence, payload):
            self._forget("the engine restarted")
        if self._expected is not None and sequence < self._expected:
            self.stats.duplicates += 1
            return
        await self._apply(sequence, payload)

    def _is_another(self, sequence: int, payload: bytes) -> bool:
        """Whether a number used before now comes with another payload (or one too old to tell)."""
        if self._expected is None or sequence >= self._expected:
            return False
        return self._recent.get(sequence) != xxh3_64_intdigest(payload)

    async def _apply(self, sequence: int, payload: bytes) -> None:
        """Apply the batch that is next."""
        epoch = self._epoch
        try:
            batch = BatchReader(payload)
        except KvEventError:
            # It may have removed blocks.
            self.stats.malformed += 1
            self._forget("a batch could not be understood")
        else:
            await self._pace(len(payload) // _BYTES_PER_BLOCK // 16)
            if not await self._apply_events(batch, epoch):
                return
        self._expected = sequence + 1
        self._recent[sequence] = xxh3_64_intdigest(payload)
        while len(self._recent) > _N_RECENT:
            del self._recent[next(iter(self._recent))]
        if self.state is not FeedState.REPLAYING:
            self._enter(FeedState.LIVE, f"batch {sequence} applied")

    async def _apply_events(self, batch: BatchReader, epoch: int) -> bool:
        """Apply events slice by slice, with pauses for others; False when a `reset` came in between."""
        self.stats.batches += 1
        told = batch.dp_rank
        rank = told if told is not None and 0 <= told < _MAX_RANKS else self.rank
        self._ranks.add(rank)
        for event, n_bytes in batch.read():
            await self._pace(1 + n_bytes // _BYTES_PER_BLOCK)
            if epoch != self._epoch:
                return False
            if isinstance(event, Skipped):
                self.stats.skipped_events += 1
                if event.may_remove:
                    self._forget("a removal could not be understood")
                continue
            self.stats.events += 1
            # More than the index can hold would push out its own leading blocks, the useful ones.
            for part in slices(event, _BLOCKS_PER_TURN, most=self._index.max_blocks):
                self._index.apply(self.worker, part, rank=rank)
                await self._pace(_work(part))
                if epoch != self._epoch:
                    return False
        return True

    def _forget(self, reason: str) -> None:
        for rank in self._ranks:
            self._index.clear(self.worker, rank=rank)
        self._ranks = {self.rank}
        self._recent.clear()
        if self._expected is None:
            return
        self._expected = None
        self.stats.forgotten += 1
        self._enter(FeedState.RELEARNING, reason)

    def _enter(self, state: FeedState, reason: str) -> None:
        if state is self.state:
            return
        level = logging.WARNING if state is FeedState.RELEARNING else logging.INFO
        _log.log(level, "KV events of %s, rank %d: %s, %s", self.worker, self.rank, state.value, reason)
        self.state = state
        if self._on_state is not None:
            self._on_state(state)

    # --- what was missed ---

    async def _catch_up(self) -> None:
        """Learn all that the engine remembers, from nothing."""
        self._behind = False
        self._suspect = False
        await self._replay(0)

    async def _verify(self) -> None:
        """After a lost connection: is it the same engine? Ask for the last batch known and what came after
        it.
        """
        self._suspect = False
        last = self.last_sequence
        if last is None:
            await self._catch_up()
            return
        epoch, restarts = self._epoch, self.stats.restarts
        known = await self._replay(last)
        if epoch != self._epoch:
            return
        if not known:
            self._forget("the connection was lost, and the engine does not remember the last batch")
        if not known or restarts != self.stats.restarts:
            await self._catch_up()

    async def _replay(self, start: int) -> bool:
        """Ask for the batches from `start` on and apply those that are new; whether `start` itself was among
        them.

        Stops at the replay's end, its deadline, or a `reset`. A hole in it makes all before it forgotten.
        """
        if self._replay_endpoint is None:
            return False
        before = self.state
        self._enter(FeedState.REPLAYING, f"asking for what came from batch {start} on")
        self.stats.replays += 1
        dealer = self._context.socket(zmq.DEALER)
        found = False
        try:
            _set_options(dealer)
            dealer.connect(self._replay_endpoint)
            # The empty frame is what a REQ socket would send before its request.
            async with asyncio.timeout(self._replay_total_s):
                await dealer.send_multipart([b"", start.to_bytes(_SEQUENCE_BYTES, "big")])
                found = await self._receive_replay(dealer, start)
        except TimeoutError:
            # Cut short inside a batch, perhaps: what is known is no longer a state the engine was in.
            self._forget("a replay took too long")
        finally:
            dealer.close(linger=0)
            if self.state is FeedState.REPLAYING:
                known = self._expected is not None
                self._enter(FeedState.LIVE if known else before, f"replay from batch {start} ended")
        return found

    async def _receive_replay(self, dealer: zmq.asyncio.Socket, start: int) -> bool:
        epoch, found = self._epoch, False
        for _ in range(_MAX_REPLAY_BATCHES):
            if not await dealer.poll(self._replay_quiet_ms):
                break
            frames = await dealer.recv_multipart()
            if epoch != self._epoch:
                break
            message = _parse_message(frames if len(frames) > 2 else [b"", *frames])
            if message is None:
                if frames[-2:-1] != [_END_OF_REPLAY]:
                    self.stats.malformed += 1
                break
            found = found or message[0] == start
            await self._take_replayed(*message)
            await self._pace(_WORK_PER_MESSAGE)
        return found

    async def _take_replayed(self, sequence: int, payload: bytes) -> None:
        if self._expected is not None:
            if sequence > self._expected:
                self._forget("the engine no longer remembers all that was missed")
            elif sequence < self._expected:
                if not self._is_another(sequence, payload):
                    return
                self.stats.restarts += 1
                self._forget("the engine restarted")
        self.stats.replayed_batches += 1
        await self._apply(sequence, payload)


def _work(event: KvEvent) -> int:
    """About how many blocks are touched."""
    return 1 if isinstance(event, AllBlocksCleared) else len(event.block_hashes)


def _set_options(socket: zmq.asyncio.Socket) -> None:
    socket.linger = 0
    socket.ipv6 = True
    socket.maxmsgsize = MAX_PAYLOAD_BYTES
    # A peer that vanished without a word is found out in half a minute instead of never.
    socket.heartbeat_ivl = 10_000
    socket.heartbeat_timeout = 30_000
    socket.reconnect_ivl = 100
    socket.reconnect_ivl_max = 5_000


def _parse_message(frames: list[bytes]) -> tuple[int, bytes] | None:
    """Sequence and payload of `[topic, sequence, payload]`; None when it is nothing of the kind, or a
    replay's end.
    """
    if len(frames) != 3 or len(frames[1]) != _SEQUENCE_BYTES or frames[1] == _END_OF_REPLAY:
        return None
    return int.from_bytes(frames[1], "big"), frames[2]
