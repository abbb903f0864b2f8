"""Make the faults of `faults.py` happen on a real connection."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import NoReturn

import orjson
from aiohttp import web

from backends.simulated.faults import Fault, FaultError, FaultKind, parse_faults
from backends.simulated.openai_answers import DONE, Answers, error_event
from backends.simulated.openai_requests import ApiError
from backends.simulated.streams import Generation

HEADER = "x-simulate-fault"
_FOR_EVER = 1e9
_SLOW_S = 0.05
_BEFORE_FIRST_BYTE = (FaultKind.RESET, FaultKind.CLOSE, FaultKind.STATUS, FaultKind.STALL)


class FaultInjector:
    """Chooses and plays the faults of one worker."""

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._armed: list[Fault] = []

    async def arm(self, request: web.Request) -> web.Response:
        """`POST /simulate/fault {"fault": "reset", "times": 3}`: for the next three generations."""
        try:
            body = orjson.loads(await request.read())
            fault = parse_faults(body["fault"], self._worker)
            times = int(body.get("times", 1))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ApiError(400, f'expected {{"fault": KIND, "times": N}}: {error}') from None
        self._armed = [fault] * times if fault is not None else []
        return web.json_response({"armed": len(self._armed)})

    def choose(self, request: web.Request) -> Fault | None:
        """The fault for this request, if any: its own header's, else the next armed one. Raises ApiError."""
        try:
            fault = parse_faults(request.headers.get(HEADER, ""), self._worker)
        except FaultError as error:
            raise ApiError(400, str(error)) from None
        if fault is None and self._armed:
            fault = self._armed.pop(0)
        return fault

    async def play(
        self, fault: Fault, request: web.Request, generation: Generation, *, streamed: bool, usage: bool
    ) -> web.StreamResponse:
        """Answer with the fault. The answer is generated whole first, then played out up to the fault."""
        if fault.kind is FaultKind.STATUS:
            status = 500 if fault.number is None else int(fault.number)
            raise ApiError(status, "a simulated fault", kind="InternalServerError")
        if fault.kind in (FaultKind.RESET, FaultKind.CLOSE):
            _cut(request, reset=fault.kind is FaultKind.RESET)
        if fault.kind is FaultKind.STALL:
            await asyncio.sleep(_FOR_EVER if fault.number is None else fault.number)
        with generation:
            await generation.finished
        answers = generation.answers
        if not streamed:
            return await self._play_unary(fault, request, answers.body())
        return await self._play_stream(fault, request, _events(answers, usage=usage))

    async def _play_stream(self, fault: Fault, request: web.Request, events: list[bytes]) -> web.StreamResponse:
        headers = {"Content-Type": "text/event-stream; charset=utf-8", "x-worker-id": self._worker}
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        whole = fault.kind in (FaultKind.SLOW, *_BEFORE_FIRST_BYTE)
        pause = (fault.number or _SLOW_S) if fault.kind is FaultKind.SLOW else 0.0
        for event in events if whole else events[: fault.place(len(events))]:
            await response.write(event)
            await asyncio.sleep(pause)
        if fault.kind is FaultKind.STALL_MID:
            await asyncio.sleep(_FOR_EVER)
        if fault.kind is FaultKind.RESET_MID:
            _cut(request, reset=True)
        if fault.kind is FaultKind.MALFORMED_SSE:
            await response.write(b'data: {"choices": [{"delta":\n\n')
        if fault.kind is FaultKind.ERROR_EVENT:
            await response.write(error_event("a simulated fault") + DONE)
        await response.write_eof()
        return response

    async def _play_unary(self, fault: Fault, request: web.Request, body: bytes) -> web.StreamResponse:
        if fault.kind in (FaultKind.MALFORMED_SSE, FaultKind.ERROR_EVENT):
            body = b'{"choices": [{'
        headers = {"Content-Type": "application/json", "x-worker-id": self._worker}
        response = web.StreamResponse(headers=headers)
        response.content_length = len(body)
        await response.prepare(request)
        half = len(body) // 2
        await response.write(body[:half])
        if fault.kind is FaultKind.STALL_MID:
            await asyncio.sleep(_FOR_EVER)
        if fault.kind in (FaultKind.RESET_MID, FaultKind.TRUNCATE):
            _cut(request, reset=fault.kind is FaultKind.RESET_MID)
        if fault.kind is FaultKind.SLOW:
            await asyncio.sleep(fault.number or _SLOW_S)
        await response.write(body[half:])
        await response.write_eof()
        return response


def _events(answers: Answers, *, usage: bool) -> list[bytes]:
    """Each SSE event of the whole stream."""
    events: list[bytes] = []
    for choice in answers.choices:
        choice.sent = 0
        chunk_format = answers.format(choice)
        events.append(chunk_format.opening)
        events += [chunk_format.events(1) for _ in choice.pieces]
    if usage:
        events.append(answers.usage_event())
    return [event for event in (*events, DONE) if event]


def _cut(request: web.Request, *, reset: bool) -> NoReturn:
    """End the connection now: with TCP RST, or in order but with nothing more sent."""
    transport = request.transport
    if transport is not None:
        raw: socket.socket | None = transport.get_extra_info("socket")
        if reset and raw is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()
    raise asyncio.CancelledError
