"""The engine's process: builds the engine, then takes what the server sends, makes steps and tells what came of them.

It ends when it is asked to (SIGTERM), when the server is gone, or when a step fails: what the pool then holds
cannot be trusted, and the server says so to its clients.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import time
from collections.abc import Callable
from typing import Final

import msgspec

from backends.worker.channel import ChannelError, EngineEnd
from backends.worker.engine.engine import Engine
from backends.worker.engine.loading import load_engine
from backends.worker.messages import Cancel, Failed, ForgetKv, Submit, ToEngine
from backends.worker.options import EngineOptions

log = logging.getLogger(__name__)

_SIGN_OF_LIFE: Final = 0.5
"""Seconds: an idle engine says so often that it is there."""
_GLANCE: Final = 0.001
"""Seconds between two looks at what the I/O threads have restored, while there is nothing else to do."""


class EngineLoop:
    """One engine on one channel. `wanted` says whether to go on."""

    def __init__(
        self, engine: Engine, channel: EngineEnd, *, wanted: Callable[[], bool], clock: Callable[[], float]
    ) -> None:
        self._engine = engine
        self._channel = channel
        self._wanted = wanted
        self._clock = clock
        self._told_at = clock()

    def run(self) -> None:
        """Until it is wanted no longer. Raises what a step raises, and ChannelError."""
        engine = self._engine
        while self._wanted():
            for message in self._channel.receive(self._pause()):
                self._take(message)
            engine.settle(self._clock())
            for forgotten in engine.take_forgotten():
                self._channel.send(forgotten)
            if engine.can_step:
                self._step()
            elif self._engine.has_news or self._clock() - self._told_at >= _SIGN_OF_LIFE:
                self._tell_idle()

    def _pause(self) -> float:
        """Seconds to wait for a message."""
        if self._engine.can_step:
            return 0.0
        return _GLANCE if self._engine.has_work or self._engine.forgets else _SIGN_OF_LIFE

    def _take(self, message: ToEngine) -> None:
        if isinstance(message, Submit):
            if (refused := self._engine.submit(message, self._clock())) is not None:
                self._channel.send(refused)
        elif isinstance(message, Cancel):
            self._engine.cancel(message.id)
        elif isinstance(message, ForgetKv):
            self._engine.forget_kv(message)
        else:
            self._engine.clear()

    def _step(self) -> None:
        done, dropped = self._engine.step()
        self._channel.send(done)
        for refused in dropped:
            self._channel.send(refused)
        self._told_at = self._clock()

    def _tell_idle(self) -> None:
        self._channel.send(self._engine.told())
        self._told_at = self._clock()


def main() -> int:
    """`python -m backends.worker.engine.engine_process --channel ENDPOINT --config JSON`."""
    parser = argparse.ArgumentParser(description="The engine of a prefixgate worker; started by its server.")
    parser.add_argument("--channel", required=True)
    parser.add_argument("--config", required=True)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="engine: %(levelname)s %(message)s")
    options = msgspec.json.decode(arguments.config, type=EngineOptions)
    parent = os.getppid()
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    channel = EngineEnd(arguments.channel)
    try:
        return _serve(options, channel, wanted=lambda: not stopped and os.getppid() == parent)
    except ChannelError as error:
        log.error("the server is out of reach: %s", error)  # noqa: TRY400 - the traceback says nothing more
    except Exception as error:
        log.exception("the engine ends")
        channel.send(Failed(f"{type(error).__name__}: {error}"))
    finally:
        channel.close()
    return 1


def _serve(options: EngineOptions, channel: EngineEnd, *, wanted: Callable[[], bool]) -> int:
    """The exit code."""
    try:
        engine, ready = load_engine(options)
    except (ValueError, OSError) as error:  # what is wrong with the options or the model, in a sentence
        channel.send(Failed(str(error)))
        return 1
    channel.send(ready)
    try:
        EngineLoop(engine, channel, wanted=wanted, clock=time.monotonic).run()
    finally:
        engine.close(options.kv_flush)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
