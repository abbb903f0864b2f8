"""Runs the program: in the foreground until it is told to stop, or within another program's loop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import uvloop

from backends.address import place
from gateway.config import Config
from gateway.logs import set_up_logging
from gateway.program import Program
from gateway.reload import Reloader

log = logging.getLogger(__name__)


def run(config: Config, *, file: Path | None = None) -> None:
    """Serve until SIGINT or SIGTERM; a second one ends at once. With the `file` that the configuration came from,
    SIGHUP and changes of it make the gateway take it up again. Raises OSError where a port is taken, TokenizerError
    or TlsError where files cannot be used.
    """
    set_up_logging(config.log)
    uvloop.run(_serve_until_signalled(config, file))


async def _serve_until_signalled(config: Config, file: Path | None) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def on_signal() -> None:
        if stop.is_set():
            log.warning("stopping at once")
            os._exit(130)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    # From the first moment on: without a handler the signal ends the process.
    loop.add_signal_handler(signal.SIGHUP, log.info, "SIGHUP: there is no configuration file to take up yet")
    async with running(config, file=file) as (program, port):
        if program.reloader is not None:
            loop.add_signal_handler(signal.SIGHUP, program.reloader.at_once)
        settle_down()
        if program.admin_port is not None:
            log.info("control plane on http://%s", place(config.admin.host, program.admin_port))
        scheme = "http" if config.listen.tls is None else "https"
        log.info("listening on %s://%s", scheme, place(config.listen.host, port))
        await stop.wait()
        log.info("stopping; requests in flight have %g s to finish", program.config.limits.drain_timeout)
    log.info("stopped")


def settle_down() -> None:
    """What is alive now lives as long as the process: the collector need not look at it again, and what a request
    leaves behind is freed by reference counts. For a process that does nothing else than to run one gateway.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 100)


@contextlib.asynccontextmanager
async def running(config: Config, *, file: Path | None = None) -> AsyncIterator[tuple[Program, int]]:
    """A running gateway and its port. Leaving drains it."""
    program = Program(config)
    try:
        port = await program.start()
        if file is not None:
            program.reloader = Reloader(program, file)
            program.reloader.start()
        yield program, port
    finally:
        await program.close()


@contextlib.asynccontextmanager
async def serving(config: Config) -> AsyncIterator[int]:
    """A running gateway; yields its port. Leaving drains it."""
    async with running(config) as (_, port):
        yield port
