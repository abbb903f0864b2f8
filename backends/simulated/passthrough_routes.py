"""Routes whose bodies a gateway passes through untouched: each answers with what it received."""

from __future__ import annotations

from hashlib import sha256

import orjson
from aiohttp import web

from backends.simulated.serving import Serving

PATHS = (
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
    "/v1/audio/speech",
    "/v1/images/generations",
    "/v1/images/edits",
    "/v1/files",
)


class PassthroughRoutes:
    """Audio, images and files of one worker."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Serve them."""
        for path in PATHS:
            router.add_post(path, self._received)

    async def _received(self, request: web.Request) -> web.StreamResponse:
        """`{"sha256", "length", "content_type"}` of the body as it came."""
        body = await request.read()
        received = {
            "sha256": sha256(body).hexdigest(),
            "length": len(body),
            "content_type": request.headers.get("Content-Type"),
        }
        return await self._serving.unary(request, None, lambda: orjson.dumps(received))
