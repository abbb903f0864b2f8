"""The server's view of its engine: starts it, sends it sequences, hands their tokens on, notices when it is ill.

An engine is well from its `Ready` until it ends, fails, or tells nothing for too long. Every sequence that is
open then is told so; an engine that only hung is well again once it speaks.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from backends.worker.channel import ChannelError, ChannelFullError, ServerEnd
from backends.worker.engine_child import EngineChild
from backends.worker.messages import (
    Cancel,
    Clear,
    EngineStats,
    Failed,
    ForgetKv,
    KvForgotten,
    Ready,
    Refused,
    StepDone,
    Submit,
    TokensOut,
    ToServer,
)
from backends.worker.options import ENGINE_COMMAND, EngineOptions

log = logging.getLogger(__name__)

_LAST_WORDS = 0.25
"""Seconds for messages that an engine sent before it ended."""


_MOST_FORGETTING = 64


class EngineError(Exception):
    """The engine did not start."""


class EngineUnavailableError(Exception):
    """It takes no sequence now: it is not well, or has too many."""


@dataclass(frozen=True, slots=True)
class EngineFault:
    """Told to every open sequence when the engine is not well."""

    reason: str


Receiver = Callable[[TokensOut | Refused | EngineFault], None]
"""Takes what becomes of one sequence: tokens, the last of them with a finish reason, or one of the others, which
end it too. It must not raise."""


class EngineClient:
    """One engine of one server, in one event loop. `on_step` sees every `StepDone` before its tokens go out."""

    def __init__(
        self,
        options: EngineOptions,
        *,
        command: Sequence[str] = ENGINE_COMMAND,
        hung_after: float = 60.0,
        most_open: int = 4096,
        on_step: Callable[[StepDone], None] = lambda _: None,
    ) -> None:
        self._options = options
        self._command = command
        self._hung_after = hung_after
        self._most_open = most_open
        self._on_step = on_step
        self._receivers: dict[str, Receiver] = {}
        self._forgetting: dict[str, asyncio.Future[KvForgotten]] = {}
        self._channel: ServerEnd | None = None
        self._child: EngineChild | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._ready: asyncio.Future[Ready] | None = None
        self._silent = 0.0
        self._ended: str | None = None
        self.failed = asyncio.Event()
        """Set when the engine has ended or failed, and will not come back."""
        self.stats = EngineStats()
        """As last told."""

    @property
    def problem(self) -> str | None:
        """Why it is not well; None while it is."""
        if self._ended is not None:
            return self._ended
        if self._ready is None or not self._ready.done():
            return "the engine is not ready yet"
        if self._silent >= self._hung_after:
            return f"the engine hangs: it has told nothing for {self._hung_after:g} s"
        return None

    @property
    def pid(self) -> int | None:
        """Of the engine's process."""
        return None if self._child is None else self._child.pid

    @property
    def open_sequences(self) -> int:
        """Sequences that were sent and have neither ended nor been cancelled."""
        return len(self._receivers)

    async def start(self, within: float) -> Ready:
        """Start the engine and wait for it. Raises EngineError when it is not ready in `within` seconds."""
        self._ready = asyncio.get_running_loop().create_future()
        try:
            self._channel = ServerEnd()
            self._child = await EngineChild.start(self._command, self._channel.endpoint, self._options)
            self._tasks = [asyncio.create_task(self._receive()), asyncio.create_task(self._await_end(self._child))]
            async with asyncio.timeout(within):
                ready = await self._ready
        except TimeoutError:
            await self.close(0.0)
            raise EngineError(f"the engine was not ready within {within:g} s") from None
        except OSError as error:
            await self.close(0.0)
            raise EngineError(f"the engine cannot be started: {error}") from error
        except BaseException:
            await self.close(0.0)
            raise
        self._tasks.append(asyncio.create_task(self._watch()))
        return ready

    def submit(self, sequence: Submit, receiver: Receiver) -> None:
        """Send a sequence whose id is new. Raises EngineUnavailableError."""
        problem = self.problem
        if problem is not None or self._channel is None:
            raise EngineUnavailableError(problem)
        if len(self._receivers) >= self._most_open:
            raise EngineUnavailableError(f"{self._most_open} sequences are open already")
        assert sequence.id not in self._receivers, "ids are unique"
        try:
            self._channel.send(sequence)
        except ChannelFullError as error:
            raise EngineUnavailableError(str(error)) from None
        self._receivers[sequence.id] = receiver

    def cancel(self, sequence_id: str) -> None:
        """Forget a sequence; one that has ended is no error. Its receiver hears no more."""
        if self._receivers.pop(sequence_id, None) is not None:
            self._tell_cancelled(sequence_id)

    def clear_cache(self) -> None:
        """Forget the prefix cache, before any sequence sent later. Raises EngineUnavailableError."""
        if self.problem is not None or self._channel is None:
            raise EngineUnavailableError(self.problem)
        self._channel.send(Clear())

    async def forget_kv(
        self, salts: Sequence[str], *, owners: Sequence[str] = (), dry_run: bool, within: float
    ) -> KvForgotten:
        """Have stores forget what they keep under these salts, or count it. Raises EngineUnavailableError, where it
        takes longer than `within` seconds too.
        """
        if self.problem is not None or self._channel is None:
            raise EngineUnavailableError(self.problem)
        if len(self._forgetting) >= _MOST_FORGETTING:
            raise EngineUnavailableError(f"{_MOST_FORGETTING} tenants are being forgotten already")
        asked = ForgetKv(
            id=uuid.uuid4().hex, salts=tuple(salts), owners=tuple(owners), dry_run=dry_run, within=0.9 * within
        )
        answer: asyncio.Future[KvForgotten] = asyncio.get_running_loop().create_future()
        self._forgetting[asked.id] = answer
        try:
            self._channel.send(asked)
            async with asyncio.timeout(within):
                return await answer
        except TimeoutError:
            raise EngineUnavailableError("the stores take too long") from None
        finally:
            del self._forgetting[asked.id]

    async def close(self, within: float) -> None:
        """Stop the engine, after `within` seconds with force, and close the channel. Calls no receiver."""
        self._ended = self._ended or "the worker is stopping"
        self._receivers.clear()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        try:
            if self._child is not None:
                await self._child.stop(within)
        finally:
            self._child = None
            if self._channel is not None:
                self._channel.close()
            self._channel = None

    async def _receive(self) -> None:
        assert self._channel is not None
        while True:
            try:
                message = await self._channel.receive()
            except ChannelError as error:
                self._fail(f"the engine cannot be understood: {error}")
                return
            if self._silent >= self._hung_after:
                log.warning("the engine speaks again")
            self._silent = 0.0
            try:
                self._take(message)
            except Exception as error:  # deaf to its engine, a server must not seem well
                log.exception("what the engine told cannot be taken")
                self._fail(f"what the engine told cannot be taken: {type(error).__name__}")
                return
            # ZMQ's futures of what is there already are done at once: awaiting them lets nobody else run.
            await asyncio.sleep(0)

    def _take(self, message: ToServer) -> None:
        if isinstance(message, StepDone):
            self.stats = message.stats
            self._show(message)
            for out in message.outputs:
                self._hand_on(out.id, out, last=out.finish_reason is not None)
        elif isinstance(message, Refused):
            self._hand_on(message.id, message, last=True)
        elif isinstance(message, KvForgotten):
            answer = self._forgetting.get(message.id)
            if answer is not None and not answer.done():
                answer.set_result(message)
        elif isinstance(message, Failed):
            self._fail(f"the engine failed: {message.reason}")
        elif self._ready is not None and not self._ready.done():
            self._ready.set_result(message)

    def _show(self, step: StepDone) -> None:
        try:
            self._on_step(step)
        except Exception:  # no answer waits for what others are told
            log.exception("what a step changed cannot be told")

    def _hand_on(self, sequence_id: str, what: TokensOut | Refused, *, last: bool) -> None:
        receiver = self._receivers.get(sequence_id)
        if receiver is None:
            return  # cancelled meanwhile
        if last:
            del self._receivers[sequence_id]
        receiver(what)

    async def _await_end(self, child: EngineChild) -> None:
        status = await child.wait()
        await asyncio.sleep(_LAST_WORDS)
        how = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
        self._fail(f"the engine {how}")

    async def _watch(self) -> None:
        # Silence is counted in turns of this loop: where the loop itself stood still, the engine is not to blame.
        interval = min(1.0, self._hung_after / 10)
        while True:
            await asyncio.sleep(interval)
            well = self.problem is None
            self._silent += interval
            if well and self.problem is not None:
                log.error("%s", self.problem)
                for sequence_id in self._tell_all(self.problem):
                    self._tell_cancelled(sequence_id)

    def _tell_cancelled(self, sequence_id: str) -> None:
        if self._ended is None and self._channel is not None:
            self._channel.send(Cancel(sequence_id))

    def _fail(self, reason: str) -> None:
        if self._ended is not None:
            return
        self._ended = reason
        log.error("%s", reason)
        self.failed.set()
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(EngineError(reason))
        self._tell_all(reason)

    def _tell_all(self, reason: str) -> list[str]:
        """Every open sequence hears of it and is forgotten; their ids."""
        for answer in self._forgetting.values():
            if not answer.done():
                answer.set_exception(EngineUnavailableError(reason))
        told, self._receivers = self._receivers, {}
        for receiver in told.values():
            with contextlib.suppress(Exception):
                receiver(EngineFault(reason))
        return list(told)
