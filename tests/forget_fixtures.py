"""A gateway with tenants, stored answers and a control plane, that is told to forget."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import openai

from gateway.app import running
from gateway.program import Program
from policies.types import Tier
from tests.caching_fixtures import ON, Counted, Setting
from tests.data_plane_fixtures import Inside, RawWorker, Turn, plane
from tests.tenant_fixtures import KEYS, tenants

TOKEN = "a-token-of-32-characters-or-more"
WHO = ("acme", "beta")


class Engine(Counted):
    """One that can be told to forget KV, in its own words; it cannot by default."""

    def __init__(self) -> None:
        super().__init__()
        self.forgets = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"
        self.told: list[dict[str, Any]] = []
        self.salts: list[str] = []
        self.heads: list[bytes] = []

    async def __call__(self, turn: Turn) -> None:
        if turn.head.startswith(b"POST /v1/kv/forget "):
            self.told.append(json.loads(turn.body))
            self.heads.append(turn.head)
            turn.write(self.forgets)
            return
        self.salts.append(json.loads(turn.body).get("cache_salt", ""))
        await super().__call__(turn)


class Forgetful(Setting):
    """A gateway whose control plane can be asked."""

    def __init__(self, program: Program, url: str, engine: Engine, client: openai.AsyncOpenAI, http: Any) -> None:
        super().__init__(Inside(url, program.server), engine, client)
        self.program = program
        self.engine = engine
        self.admin = f"http://127.0.0.1:{program.admin_port}"
        self._http: aiohttp.ClientSession = http

    async def forget(self, tenant: str = "acme", **fields: Any) -> dict[str, Any]:
        """What the control plane says, once all that was kept so far is written."""
        if self.pipeline.responses is not None:
            await asyncio.to_thread(self.caching.cache.flush)
        async with self._http.delete(f"{self.admin}/admin/tenants/{tenant}/cache", json=fields) as response:
            said: dict[str, Any] = await response.json()
            assert response.status == 200, said
            return said

    async def says(self, name: str = "acme", *, text: str = "Hello there.", **more: Any) -> tuple[str, str | None]:
        """An answer to a tenant, and what the cache had for it."""
        return await self.ask(key=KEYS[name], messages=[{"role": "user", "content": text}], **more)

    def entries(self) -> dict[Tier, int]:
        """How many answers lie where."""
        cache = self.caching.cache
        cache.flush(5)
        return {tier: stats.entries for tier, stats in cache.stores().items()}


@asynccontextmanager
async def forgetful(
    folder: Path,
    cache: str = "",
    extra: str = "",
    *,
    members: tuple[str, ...] = WHO,
    worker: str = "",
    engine: Engine | None = None,
    log: str = "",
) -> AsyncIterator[Forgetful]:
    """`folder`: where it keeps what must outlive it."""
    engine = engine or Engine()
    who = tenants(*members, more=f", state_dir: '{folder / 'state'}'") if members else ""
    control = f"admin: {{port: 0, token: {TOKEN}}}\nlog: {{audit_file: '{folder / 'audit.jsonl'}'{log}}}\n"
    sections = ON % (f", {cache}" if cache else "") + who + control + extra
    async with RawWorker(engine).running() as raw:
        config = plane([raw.url], extra=sections, worker=worker)
        async with (
            running(config) as (program, port),
            openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0) as client,
            aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as http,
        ):
            yield Forgetful(program, f"http://127.0.0.1:{port}", engine, client, http)


def audited(folder: Path) -> list[dict[str, Any]]:
    """Lines of the audit file."""
    file = folder / "audit.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
