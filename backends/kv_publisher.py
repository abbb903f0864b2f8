"""Publish an engine's KV events over ZMQ as vLLM does: PUB with sequence numbers, ROUTER for replay.

For engines of our own: the simulated one and the torch worker.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from itertools import islice

import zmq
import zmq.asyncio

from cache.kv_events import Encoding, EventBatch, encode_batch

REPLAY_BATCHES = 10_000
_HIGH_WATER_MARK = 100_000
_END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)
_MOST_CLIENT_FRAMES = 3


class KvEventPublisher:
    """Binds on construction: raises zmq.ZMQError when a port is taken. `endpoint`s name real ports."""

    def __init__(
        self,
        *,
        endpoint: str = "tcp://127.0.0.1:*",
        replay_endpoint: str = "tcp://127.0.0.1:*",
        topic: str = "",
        encoding: Encoding = Encoding.ARRAY,
    ) -> None:
        self._topic = topic.encode()
        self._encoding = encoding
        self.kept: deque[tuple[bytes, bytes]] = deque(maxlen=REPLAY_BATCHES)
        """Sequence number and payload of the last batches, as they are on the wire."""
        self._sequence = 0
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._async_context = zmq.asyncio.Context(self._context)
        self._publish = self._context.socket(zmq.PUB)
        self._replay = self._async_context.socket(zmq.ROUTER)
        for socket in (self._publish, self._replay):
            socket.set(zmq.LINGER, 0)
        self._publish.set(zmq.SNDHWM, _HIGH_WATER_MARK)
        try:
            self.endpoint = _bind(self._publish, endpoint)
            self.replay_endpoint = _bind(self._replay, replay_endpoint)
        except zmq.ZMQError:
            self._close_sockets()
            raise
        self._task = asyncio.get_running_loop().create_task(self._serve_replay())

    def publish(self, batch: EventBatch) -> None:
        """Send it under the next sequence number. Never blocks: slow readers miss some."""
        payload = encode_batch(batch, self._encoding)
        sequence = self._sequence.to_bytes(8, "big")
        self._sequence += 1
        self.kept.append((sequence, payload))
        self._publish.send_multipart((self._topic, sequence, payload))

    async def close(self) -> None:
        """Close both sockets."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._close_sockets()

    def _close_sockets(self) -> None:
        self._publish.close()
        self._replay.close()
        self._context.term()

    async def _serve_replay(self) -> None:
        """VLLM's replay: a request is one frame, the first sequence number wanted, behind an empty one."""
        while True:
            frames = await self._replay.recv_multipart()
            if len(frames) != _MOST_CLIENT_FRAMES or len(frames[2]) != len(_END_OF_REPLAY):
                continue
            client = frames[0]
            kept = list(self.kept)
            first = int.from_bytes(kept[0][0], "big") if kept else 0
            skip = max(0, int.from_bytes(frames[2], "big") - first)
            for sequence, payload in islice(kept, min(skip, len(kept)), None):
                await self._replay.send_multipart((client, b"", sequence, payload))
            await self._replay.send_multipart((client, b"", _END_OF_REPLAY, b""))


def _bind(socket: zmq.Socket[bytes] | zmq.asyncio.Socket, endpoint: str) -> str:
    socket.bind(endpoint)
    return str(socket.get_string(zmq.LAST_ENDPOINT))
