"""The control plane's application and the socket it listens on."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from aiohttp.web_protocol import RequestHandler
from prometheus_client import CollectorRegistry

from backends.aiohttp_memory import forget_handlers
from gateway.admin.answers import admission, answer, errors
from gateway.admin.control import FleetControl
from gateway.admin.masked import masked
from gateway.admin.recent import RecentRequests
from gateway.admin.request_routes import RequestRoutes
from gateway.admin.semantic_routes import SemanticRoutes
from gateway.admin.tenant_routes import TenantRoutes
from gateway.admin.worker_routes import WorkerRoutes
from gateway.telemetry.exposition import render

if TYPE_CHECKING:
    from gateway.semantic_caching import SemanticCaching

_MAX_BODY_BYTES: Final = 1 << 20
_MAX_CONNECTIONS: Final = 512
_KEEPALIVE_SECONDS: Final = 15.0
_HEAD_SECONDS: Final = 10.0
_SHUTDOWN_SECONDS: Final = 2.0
_MAX_LINE_BYTES: Final = 8190

_QUIET: Final = logging.getLogger("gateway.admin.http")
"""aiohttp writes a traceback for every malformed request; what fails in a handler is logged by `answers.errors`."""
_QUIET.setLevel(logging.CRITICAL + 1)


class AdminServer:
    """Health, metrics and administration. `start` it once, and `close` it last: health is asked for to the end."""

    def __init__(
        self, control: FleetControl, registry: CollectorRegistry, recent: RecentRequests, *,
        head_seconds: float = _HEAD_SECONDS,
        max_connections: int = _MAX_CONNECTIONS,
        semantic: Callable[[], SemanticCaching | None] = lambda: None,
    ) -> None:  # fmt: skip
        """A connection that has not sent a whole request head within `head_seconds` is closed, and one beyond
        `max_connections` at once.
        """
        self._control = control
        self._registry = registry
        self._recent = recent
        self._semantic = semantic
        self._head_seconds = head_seconds
        self._max_connections = max_connections
        self._runner: web.AppRunner | None = None
        self._server: asyncio.Server | None = None
        self._silent: dict[RequestHandler, asyncio.TimerHandle] = {}

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port, which is another one where `port` is 0. Raises OSError where it is taken."""
        loop = asyncio.get_running_loop()
        runner = self._runner = web.AppRunner(
            self._application(loop),
            access_log=None,
            logger=_QUIET,
            handle_signals=False,
            keepalive_timeout=_KEEPALIVE_SECONDS,
            shutdown_timeout=_SHUTDOWN_SECONDS,
            max_line_size=_MAX_LINE_BYTES,
            max_field_size=_MAX_LINE_BYTES,
        )
        await runner.setup()
        try:
            self._server = await loop.create_server(self._connection, host, port)
        except OSError:
            await self.close()
            raise
        sockname: tuple[str, int] = self._server.sockets[0].getsockname()
        return sockname[1]

    async def close(self) -> None:
        """Stop listening; what is being answered has two seconds. Safe to call more than once."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for timer in self._silent.values():
            timer.cancel()
        self._silent.clear()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        forget_handlers()

    def _application(self, loop: asyncio.AbstractEventLoop) -> web.Application:
        application = web.Application(
            middlewares=[self._heard, errors, admission(self._token)], client_max_size=_MAX_BODY_BYTES
        )
        router = application.router
        router.add_get("/livez", self._live)
        router.add_get("/readyz", self._ready)
        router.add_get("/metrics", self._metrics)
        router.add_get("/admin/config", self._config)
        router.add_post("/admin/reload", self._reload)
        WorkerRoutes(self._control).add_to(router)
        TenantRoutes(self._control).add_to(router)
        RequestRoutes(self._recent, loop.time).add_to(router)
        SemanticRoutes(self._semantic).add_to(router)
        return application

    def _token(self) -> str | None:
        token = self._control.config().admin.token
        return token.get_secret_value() if token is not None else None

    # --- connections ---

    def _connection(self) -> RequestHandler:
        """The protocol of a new connection, with a deadline for its first request head: aiohttp has none."""
        assert self._runner is not None, "it listens"
        server = self._runner.server
        assert server is not None, "it listens"
        protocol: RequestHandler = server()
        loop = asyncio.get_running_loop()
        # Not 0: the connection has to be made before it can be closed.
        delay = self._head_seconds if len(server.connections) < self._max_connections else 0.01
        self._silent[protocol] = loop.call_later(delay, self._too_late, protocol)
        return protocol

    def _too_late(self, protocol: RequestHandler) -> None:
        self._silent.pop(protocol, None)
        protocol.force_close()

    @property
    def _heard(self) -> Middleware:
        """A request has come: from here on aiohttp's own deadlines hold."""

        @web.middleware
        async def heard(request: web.Request, handler: Handler) -> web.StreamResponse:
            with contextlib.suppress(KeyError):
                self._silent.pop(request.protocol).cancel()
            return await handler(request)

        return heard

    # --- handlers ---

    async def _live(self, request: web.Request) -> web.Response:  # noqa: ARG002 - a handler's signature
        return answer({"status": "live"})

    async def _ready(self, request: web.Request) -> web.Response:  # noqa: ARG002 - a handler's signature
        ready, reason = self._control.ready()
        if ready:
            return answer({"status": "ready"})
        return answer({"status": "not ready", "reason": reason}, 503)

    async def _metrics(self, request: web.Request) -> web.Response:
        text, content_type = await render(self._registry, request.headers.get("Accept", ""))
        return web.Response(body=text, headers={"Content-Type": content_type})

    async def _config(self, request: web.Request) -> web.Response:  # noqa: ARG002 - a handler's signature
        return answer(masked(self._control.config()))

    async def _reload(self, request: web.Request) -> web.Response:  # noqa: ARG002 - a handler's signature
        return answer({"result": await self._control.reload()})
