"""Make the faults of `faults.py` happen on a real connection."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import NoReturn

import orjson
from aiohttp import web

from backends.engine_api.api_errors import ApiError
from backends.simulated.answers import Answers, Rendering, stream_events
from backends.simulated.driver import EngineDriver
from backends.simulated.faults import Fault, FaultError, FaultKind, parse_faults
from backends.simulated.streams import Generation

HEADER = "x-simulate-fault"
_MESSAGE = "a simulated fault"
_FOR_EVER = 1e9
_SLOW_S = 0.05
_MOST_ARMED = 1_000_000
_BEFORE_FIRST_BYTE = (FaultKind.RESET, FaultKind.CLOSE, FaultKind.STATUS, FaultKind.STALL)
_BROKEN_JSON = b'{"choices": [{"delta":'


class FaultInjector:
    """Chooses and plays the faults of one worker."""

    def __init__(self, worker: str, driver: EngineDriver) -> None:
        self._worker = worker
        self._driver = driver
        self._armed: tuple[Fault | None, int] = (None, 0)

    def arm(self, text: str, times: int = 1) -> int:
        """Let the next so many generations fail; an empty text disarms. `hang` happens at once.

        Returns for how many it is armed now. Raises FaultError, or ValueError for a number that makes no sense.
        """
        fault = parse_faults(text, self._worker)
        if not 0 <= times <= _MOST_ARMED:
            message = f"times must be from 0 to {_MOST_ARMED}, got {times}"
            raise ValueError(message)
        if fault is not None and fault.kind is FaultKind.HANG:
            self._driver.hang(fault.number)
            fault = None
        self._armed = (fault, times if fault is not None else 0)
        return self._armed[1]

    async def armed(self, request: web.Request) -> web.Response:
        """`POST /simulate/fault {"fault": "reset", "times": 3}`: for the next three generations."""
        try:
            body = orjson.loads(await request.read())
            count = self.arm(body["fault"], int(body.get("times", 1)))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ApiError(400, f'expected {{"fault": KIND, "times": N}}: {error}') from None
        return web.json_response({"armed": count})

    async def resumed(self, _request: web.Request) -> web.Response:
        """`POST /simulate/resume`: an engine that hangs goes on."""
        self._driver.resume()
        return web.json_response({"hung": False})

    def choose(self, request: web.Request, answers: Answers | None = None) -> Fault | None:
        """The fault to play for this request: its own header's, else the next armed one. Raises ApiError.

        Those which do not touch the answer's way to the client take effect here.
        """
        try:
            fault = parse_faults(request.headers.get(HEADER, ""), self._worker)
        except FaultError as error:
            raise ApiError(400, str(error)) from None
        if fault is None and self._armed[1] > 0:
            fault, times = self._armed
            self._armed = (fault, times - 1)
        if fault is None:
            return None
        if fault.kind is FaultKind.HANG:
            self._driver.hang(fault.number)
            return None
        if fault.kind is FaultKind.MISREPORT:
            if answers is not None:
                answers.reported_cached = int(fault.number or 0)
            return None
        return fault

    async def play_stream(
        self, fault: Fault, request: web.Request, generation: Generation, rendering: Rendering
    ) -> web.StreamResponse:
        """Stream with the fault. The answer is generated whole first, then played out up to the fault."""
        await _before_first_byte(fault, request)
        with generation:
            await generation.finished
        events = stream_events(rendering)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        whole = fault.kind in (FaultKind.SLOW, *_BEFORE_FIRST_BYTE)
        pause = (fault.number or _SLOW_S) if fault.kind is FaultKind.SLOW else 0.0
        for event in events if whole else events[: fault.place(len(events))]:
            await response.write(event)
            await asyncio.sleep(pause)
        await _mid(fault, request)
        if fault.kind is FaultKind.CLOSE_MID:
            _cut(request, reset=False)
        if fault.kind is FaultKind.MALFORMED_SSE:
            await response.write(b"data: " + _BROKEN_JSON + b"\n\n")
        if fault.kind is FaultKind.ERROR_EVENT:
            await response.write(rendering.failure(_MESSAGE, after=fault.place(len(events))))
        await response.write_eof()
        return response

    async def play_unary(
        self, fault: Fault, request: web.Request, generation: Generation | None, body_of: Callable[[], bytes]
    ) -> web.StreamResponse:
        """Answer with the fault; `body_of` is asked when the generation has finished."""
        await _before_first_byte(fault, request)
        if generation is not None:
            with generation:
                await generation.finished
        body = body_of()
        if fault.kind in (FaultKind.MALFORMED_SSE, FaultKind.ERROR_EVENT):
            body = _BROKEN_JSON
        half = len(body) // 2
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        if fault.kind is FaultKind.EARLY_EOF:
            response.enable_chunked_encoding()
        else:
            response.content_length = len(body)
        await response.prepare(request)
        await response.write(body[:half])
        await _mid(fault, request)
        if fault.kind in (FaultKind.CLOSE_MID, FaultKind.TRUNCATE):
            _cut(request, reset=False)
        if fault.kind is FaultKind.SLOW:
            await asyncio.sleep(fault.number or _SLOW_S)
        if fault.kind is not FaultKind.EARLY_EOF:
            await response.write(body[half:])
        await response.write_eof()
        return response


async def _before_first_byte(fault: Fault, request: web.Request) -> None:
    if fault.kind is FaultKind.STATUS:
        status = 500 if fault.number is None else int(fault.number)
        raise ApiError(status, _MESSAGE, kind="InternalServerError", retry_after=fault.retry_after)
    if fault.kind in (FaultKind.RESET, FaultKind.CLOSE):
        _cut(request, reset=fault.kind is FaultKind.RESET)
    if fault.kind is FaultKind.STALL:
        await asyncio.sleep(_FOR_EVER if fault.number is None else fault.number)


async def _mid(fault: Fault, request: web.Request) -> None:
    """Silence or a reset, after what is written already has had its turn to leave."""
    if fault.kind is FaultKind.STALL_MID:
        await asyncio.sleep(_FOR_EVER)
    if fault.kind is FaultKind.RESET_MID:
        _cut(request, reset=True)


def reset_connection(transport: asyncio.Transport) -> None:
    """End a connection with TCP RST."""
    raw: socket.socket | None = transport.get_extra_info("socket")
    if raw is not None:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


def _cut(request: web.Request, *, reset: bool) -> NoReturn:
    """End the connection now: with TCP RST, or in order but with nothing more sent."""
    transport = request.transport
    if transport is not None:
        if reset:
            reset_connection(transport)
        else:
            transport.abort()
    raise asyncio.CancelledError
