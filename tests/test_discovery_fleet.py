"""A gateway that finds its workers by DNS: none at first, then two, then others, with KV events and under traffic."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import dns.rcode

from backends.kv_subscriber import FeedState
from backends.simulated.engine import EngineConfig
from backends.simulated.fleet import FleetConfig, SimulatedFleet, SimulatedWorker
from gateway.app import running
from gateway.config import Config, parse_config
from tests.gateway_fixtures import eventually, model_text
from tests.ports import free_port
from tests.reload_fixtures import CHAT
from tests.test_discovery import NAME, NameServer


@contextlib.asynccontextmanager
async def workers(*hosts: str) -> AsyncIterator[tuple[list[SimulatedWorker], int, int]]:
    """One worker on each address of this machine, all on the same port, as in a cluster; and that of their events."""
    async with contextlib.AsyncExitStack() as stack:
        port, events = free_port(), free_port()
        found = []
        for host in hosts:
            config = FleetConfig(host=host, port=port, kv_port=events, engine=EngineConfig(speed=2.0))
            fleet = await stack.enter_async_context(SimulatedFleet(1, config, text=model_text()))
            found.append(fleet.workers[0])
        yield found, port, events


def config_of(server: NameServer, port: int, events: int) -> Config:
    return parse_config(
        "listen: {port: 0}\nadmin: {port: 0}\nlimits: {drain_timeout: 1s}\nresponse_headers: {worker: x-worker}\n"
        "models: [{name: simulated, tokenizer: embedded}]\n"
        f"discovery: {{drain: 20s, dns: [{{name: {NAME}, port: {port}, interval: 50ms, nameserver: 127.0.0.1, "
        f"nameserver_port: {server.port}, kv_events: {{port: {events}}}}}]}}\n"
    )


async def chat(http: aiohttp.ClientSession, url: str, **changes: Any) -> aiohttp.ClientResponse:
    return await http.post(f"{url}/v1/chat/completions", json={**CHAT, **changes})


async def test_workers_are_found_go_and_come_under_traffic() -> None:
    hosts = ["127.0.0.2", "127.0.0.3", "127.0.0.4"]
    async with NameServer().running() as server, workers(*hosts) as (found, port, events):
        server.ttl = 0
        config = config_of(server, port, events)
        async with running(config) as (program, gateway_port), aiohttp.ClientSession() as http:
            url = f"http://127.0.0.1:{gateway_port}"
            async with await chat(http, url) as response:
                assert response.status == 503
            async with http.get(f"http://127.0.0.1:{program.admin_port}/readyz") as response:
                assert response.status == 503
            server.records[NAME, "A"] = hosts[:2]
            await eventually(lambda: len(program.fleet.members) == 2 and program.state.models)
            await eventually(lambda: all(worker.models for worker in program.state.workers))
            async with http.get(f"http://127.0.0.1:{program.admin_port}/readyz") as response:
                assert response.status == 200
            assert all(each.feeds for each in program.fleet.members.values())
            stream = await chat(http, url, stream=True, max_tokens=150, ignore_eos=True)
            first = await stream.content.readany()
            home = next(worker for worker in program.state.workers if worker.id == stream.headers["x-worker"])
            other = hosts[1] if home.host == hosts[0] else hosts[0]
            server.records[NAME, "A"] = [other]
            await eventually(lambda: [each.host for each in program.state.workers] == [other])
            async with await chat(http, url) as response:
                assert response.status == 200
                assert other in response.headers["x-worker"]
            body = first + await stream.read()
            assert body.endswith(b"data: [DONE]\n\n")
            assert b'"error"' not in body
            await eventually(lambda: not program.fleet.leaving)
            server.records[NAME, "A"] = [other, hosts[2]]
            await eventually(lambda: len(program.state.workers) == 2)
            new = next(worker for worker in program.state.workers if worker.host == hosts[2])
            await eventually(lambda: new.models)
            answers = await asyncio.gather(*[chat(http, url, max_tokens=30, ignore_eos=True) for _ in range(8)])
            for answer in answers:
                assert answer.status == 200
                await answer.read()
            assert new.served + new.active > 0
            feeds = [feed for each in program.fleet.members.values() for feed in each.feeds]
            await eventually(lambda: any(feed.state is FeedState.LIVE for feed in feeds))
            server.silent = True  # while nobody answers, those that are known stay
            asked = len(server.questions)
            await eventually(lambda: len(server.questions) > asked)
            assert len(program.state.workers) == 2
            program.index.check_integrity()
            program.state.check_integrity()
        assert found[0].alive


async def test_other_settings_send_nobody_away_while_the_name_server_fails() -> None:
    async with NameServer().running() as server, running(config_of(server, free_port(), free_port())) as (program, _):
        server.records[NAME, "A"] = ["127.0.0.2", "127.0.0.3"]
        await eventually(lambda: len(program.fleet.members) == 2)
        before, workers = program.config, {*program.state.workers}
        (source,) = before.discovery.dns
        for change in ({"drain": 9.0}, {"dns": (source.model_copy(update={"weight": 2.0}),)}):
            server.rcode = dns.rcode.SERVFAIL
            asked = len(server.questions)
            await program.apply(before.model_copy(update={"discovery": before.discovery.model_copy(update=change)}))
            await eventually(lambda asked=asked: len(server.questions) > asked + 4)  # type: ignore[misc]  # of this turn
            assert {*program.state.workers} == workers
            server.rcode = dns.rcode.NOERROR
        await eventually(lambda: [worker.weight for worker in workers] == [2.0, 2.0])
