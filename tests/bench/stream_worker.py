"""A worker that streams: `python tests/bench/stream_worker.py PORT`. Chunked SSE, one event to a chunk.

How many events and how far apart in milliseconds comes in the head, `x-events` and `x-interval`, so that
nobody has to read the body. Without an interval all events go out in one write.
"""

from __future__ import annotations

import asyncio
import sys
from typing import cast

import uvloop

_HEAD = (
    b"HTTP/1.1 200 OK\r\ndate: Thu, 01 Jan 2026 00:00:00 GMT\r\nserver: uvicorn\r\n"
    b"content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
_EVENT = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1767225600,"model":"bench",'
    b'"choices":[{"index":0,"delta":{"content":" well"},"logprobs":null,"finish_reason":null}]}\n\n'
)
_CHUNK = b"%x\r\n%b\r\n" % (len(_EVENT), _EVENT)
_END = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
_MODELS = b'{"object":"list","data":[{"id":"bench","object":"model","created":0,"owned_by":"bench"}],"chunks":%d}'


class Connection(asyncio.Protocol):
    """One request after the other."""

    chunks_sent = 0
    """Over all connections; `/v1/models` tells it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._buffer = b""
        self._transport = cast("asyncio.Transport", None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n") + 4
        if end < 4:
            return
        lines = self._buffer[:end].lower().split(b"\r\n")
        fields = dict(line.split(b": ", 1) for line in lines[1:] if b": " in line)
        if len(self._buffer) < end + int(fields.get(b"content-length", 0)):
            return
        self._buffer = b""
        events, interval = int(fields.get(b"x-events", 0)), int(fields.get(b"x-interval", 0))
        if not events:
            body = _MODELS % Connection.chunks_sent
            self._transport.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
            )
        elif not interval:
            Connection.chunks_sent += events
            self._transport.write(_HEAD + _CHUNK * events + _END)
        else:
            Connection.chunks_sent += 1
            self._transport.write(_HEAD + _CHUNK)
            self._loop.call_later(interval / 1e3, self._next, events - 1, interval / 1e3)

    def _next(self, left: int, interval: float) -> None:
        if self._transport.is_closing():
            return
        if left == 0:
            self._transport.write(_END)
            return
        Connection.chunks_sent += 1
        self._transport.write(_CHUNK)
        self._loop.call_later(interval, self._next, left - 1, interval)


async def main(port: int) -> None:
    """Serve until killed."""
    loop = asyncio.get_running_loop()
    await loop.create_server(lambda: Connection(loop), "127.0.0.1", port, backlog=2048)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
