"""Send an answer's tokens as they are made, straight from the engine's timer to the client's socket."""

from __future__ import annotations

import asyncio
import time
from typing import Self

from aiohttp import HttpVersion11, web

from backends.engine_api.api_errors import ApiError
from backends.engine_api.prometheus_text import Histogram
from backends.simulated.answers import Answers, Choice, ChoiceFormat, Rendering
from backends.simulated.driver import EngineDriver
from backends.simulated.engine import QueueFullError
from backends.simulated.sequence import TokenOut


class Generation:
    """One HTTP request's sequences in the engine; `finished` is done when the last token is out.

    Use as a context manager: whatever happens to the client, the sequences leave the engine with it.
    """

    def __init__(self, driver: EngineDriver, answers: Answers, ttft: Histogram) -> None:
        self._driver = driver
        self.answers = answers
        self._ttft = ttft
        self._started = time.monotonic()
        self._open = len(answers.choices)
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def __enter__(self) -> Self:
        """Submit every choice. Raises ApiError 503 when the engine's queue is full."""
        try:
            for choice in self.answers.choices:
                self._driver.submit(choice.request, self._receiver(choice))
        except QueueFullError:
            self.__exit__()
            raise ApiError(503, "The waiting queue is full.", kind="ServiceUnavailableError") from None
        return self

    def __exit__(self, *_: object) -> None:
        """Cancel what still runs."""
        for choice in self.answers.choices:
            self._driver.cancel(choice.request.id)

    def _receiver(self, choice: Choice) -> _Receiver:
        return _Receiver(self, choice)

    def take(self, choice: Choice, out: TokenOut) -> None:
        """Account for tokens that were rendered or need no rendering."""
        if out.first:
            choice.cached_tokens = out.cached_tokens
            self._ttft.observe(time.monotonic() - self._started)
        if out.finished:
            self._open -= 1
            if self._open == 0 and not self.finished.done():
                self.finished.set_result(None)


class _Receiver:
    __slots__ = ("_choice", "_generation")

    def __init__(self, generation: Generation, choice: Choice) -> None:
        self._generation = generation
        self._choice = choice

    def __call__(self, out: TokenOut) -> None:
        self._choice.sent += out.n_tokens
        self._generation.take(self._choice, out)


class StreamedGeneration(Generation):
    """Writes to the transport itself: one write for all tokens of a wake-up, no await per token."""

    def __init__(
        self,
        driver: EngineDriver,
        rendering: Rendering,
        ttft: Histogram,
        *,
        transport: asyncio.Transport,
        chunked: bool,
    ) -> None:
        super().__init__(driver, rendering.answers, ttft)
        self._rendering = rendering
        self._transport = transport
        self._chunked = chunked
        self._held: bytearray | None = bytearray()

    def open(self) -> None:
        """The head is out: send what has gathered, and from now on at once."""
        held, self._held = self._held, None
        if held and not self._transport.is_closing():
            self._transport.write(bytes(held))

    def write(self, data: bytes) -> None:
        """Send body bytes, framed if need be. A slow client leaves at most its whole answer here."""
        if not data:
            return
        if self._chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        if self._held is not None:
            self._held += data
        elif not self._transport.is_closing():
            self._transport.write(data)

    def _receiver(self, choice: Choice) -> _Receiver:
        return _StreamReceiver(self, choice, self._rendering.format(choice))


class _StreamReceiver(_Receiver):
    __slots__ = ("_format", "_stream")

    def __init__(self, generation: StreamedGeneration, choice: Choice, chunk_format: ChoiceFormat) -> None:
        super().__init__(generation, choice)
        self._stream = generation
        self._format = chunk_format

    def __call__(self, out: TokenOut) -> None:
        self._stream.take(self._choice, out)  # before the opening, which may tell the cached tokens
        opening = self._format.opening() if out.first else b""
        self._stream.write(opening + self._format.events(out.n_tokens))


async def stream(
    request: web.Request,
    response: web.StreamResponse,
    driver: EngineDriver,
    rendering: Rendering,
    ttft: Histogram,
) -> None:
    """Send the head at once, then each token when it is due, then the dialect's end."""
    transport = request.transport
    if transport is None:
        return
    chunked = request.version >= HttpVersion11
    generation = StreamedGeneration(driver, rendering, ttft, transport=transport, chunked=chunked)
    with generation:  # before the head: a full queue is still a 503
        generation.write(rendering.start())
        await response.prepare(request)
        generation.open()
        await generation.finished
    generation.write(rendering.end())
    await response.write_eof()
