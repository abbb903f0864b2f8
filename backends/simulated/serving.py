"""What the routes of one worker share: its engine, its faults, and how an answer reaches the client."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence

from aiohttp import web

from backends.engine_api.api_errors import ApiError
from backends.engine_api.prometheus_text import Histogram
from backends.simulated.answer_plan import Planner
from backends.simulated.answers import Answers, Rendering
from backends.simulated.driver import EngineDriver
from backends.simulated.fault_injection import FaultInjector
from backends.simulated.faults import Fault
from backends.simulated.model_text import ModelText
from backends.simulated.streams import Generation, stream


class Serving:
    """One worker as its routes see it. `faults` is None where no fault was allowed."""

    def __init__(
        self, name: str, text: ModelText, driver: EngineDriver, *, faults: bool, adapters: Sequence[str] = ()
    ) -> None:
        self.name = name
        self.text = text
        self.driver = driver
        self.config = driver.engine.config
        self.planner = Planner(text, self.config)
        self.adapters = tuple(adapters)
        self.faults = FaultInjector(name, driver) if faults else None
        self.ttft = Histogram()
        self.finished = 0
        self._numbers = itertools.count()

    def new_id(self, prefix: str) -> str:
        """An id that no other request of this worker has."""
        return f"{prefix}-{self.name}-{next(self._numbers)}"

    def new_response_id(self) -> str:
        """The same for a response, led by `resp_` as every server has it."""
        return f"resp_{self.name}-{next(self._numbers)}"

    def now(self) -> int:
        """The wall clock, for `created`."""
        return int(time.time())

    def check_model(self, model: str | None) -> None:
        """Raise ApiError 404 for a model that is neither served nor an adapter."""
        if model not in (None, self.text.model, *self.adapters):
            message = f"The model `{model}` does not exist."
            raise ApiError(404, message, kind="NotFoundError", param="model")

    def generation(self, answers: Answers) -> Generation:
        """The engine's work for an answer that is wanted whole."""
        return Generation(self.driver, answers, self.ttft)

    def fault(self, request: web.Request, answers: Answers | None = None) -> Fault | None:
        """The fault to play for this request. Raises ApiError for one that nobody knows."""
        return None if self.faults is None else self.faults.choose(request, answers)

    async def answer(self, request: web.Request, rendering: Rendering, *, streamed: bool) -> web.StreamResponse:
        """Generate and send an answer, or fail as was asked for."""
        if not streamed:
            return await self.unary(request, rendering.answers, rendering.body)
        fault = self.fault(request, rendering.answers)
        if self.faults is not None and fault is not None:
            generation = self.generation(rendering.answers)
            return await self.faults.play_stream(fault, request, generation, rendering)
        headers = {"Content-Type": "text/event-stream; charset=utf-8"}
        response = web.StreamResponse(headers=headers)
        await stream(request, response, self.driver, rendering, self.ttft)
        self.finished += 1
        return response

    async def unary(
        self, request: web.Request, answers: Answers | None, body_of: Callable[[], bytes]
    ) -> web.StreamResponse:
        """Generate, where there is something to generate, and send one body."""
        fault = self.fault(request, answers)
        generation = None if answers is None else self.generation(answers)
        if self.faults is not None and fault is not None:
            return await self.faults.play_unary(fault, request, generation, body_of)
        if generation is not None:
            with generation:
                await generation.finished
        self.finished += 1
        return web.Response(body=body_of(), content_type="application/json")
