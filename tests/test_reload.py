"""A changed configuration is taken up without losing a request or a connection, all of it or nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import ssl
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from backends.tls import TlsError
from cache.tokenizer import TokenizerError
from gateway.config import ConfigError
from gateway.program import Program
from gateway.telemetry.access_log import AccessLog
from policies.routing import Needs
from policies.types import BlockHash, WorkerId
from tests.gateway_fixtures import eventually
from tests.ports import free_port
from tests.reload_fixtures import CHAT, TOKEN, Running, entry, from_file, lines
from tests.tenant_fixtures import SALT_KEY, digest
from tests.test_telemetry import collecting
from tests.tls_fixtures import Authority

__all__ = ["lines"]

LOOKS = 0.3
"""Seconds in which the file is looked at several times."""


@pytest.fixture
async def gateway(tmp_path: Path, lines: list[str]) -> AsyncIterator[Running]:
    async with from_file(tmp_path, lines) as gateway:
        yield gateway


@contextlib.asynccontextmanager
async def under_load(gateway: Running) -> AsyncIterator[list[str]]:
    """Requests without a pause on one connection; none may fail, and it may not be closed."""
    workers: list[str] = []
    going = True

    async def ask() -> None:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as http:
            while going:
                url = f"{gateway.url}/v1/chat/completions"
                async with http.post(url, json=CHAT) as response:
                    assert response.status == 200, await response.text()
                    await response.read()
                    workers.append(response.headers.get("x-worker", ""))

    task = asyncio.create_task(ask())
    try:
        await eventually(lambda: workers)
        (connection,) = gateway.program.server.connections
        yield workers
        assert connection in gateway.program.server.connections
    finally:
        going = False
        await task


# --- what is taken up --------------------------------------------------------------------------------------


async def test_workers_come_go_weigh_and_move(gateway: Running) -> None:
    program, settings = gateway.program, gateway.settings
    async with under_load(gateway) as workers:
        first = program.fleet.members[WorkerId("w0")]
        settings.workers = [entry(gateway.fleet, 0, more=", weight: 3"), entry(gateway.fleet, 1)]
        await gateway.change(routing="{policy: round_robin}")
        assert program.fleet.members[WorkerId("w0")] is first
        assert first.worker.weight == 3.0
        settings.workers.append(entry(gateway.fleet, 2))
        await gateway.change()
        await eventually(lambda: "w2" in workers)
        settings.workers = [entry(gateway.fleet, 0), entry(gateway.fleet, 2, "w1")]
        await gateway.change()
        assert sorted(program.fleet.members) == ["w0", "w1"]
        moved = program.fleet.members[WorkerId("w1")].worker
        assert moved.url == gateway.fleet.workers[2].url
        await eventually(lambda: moved.served > 2)
        await eventually(lambda: not program.fleet.leaving)
        assert sorted(worker.id for worker in program.state.workers) == ["w0", "w1"]
        program.state.check_integrity()


def needs(program: Program) -> Needs:
    """What the policy in force asks for."""
    return program.pipeline.placement.needs


async def test_the_way_of_a_request_follows_the_file(gateway: Running) -> None:
    program = gateway.program
    async with under_load(gateway) as workers:
        await gateway.change(models="[{name: simulated, tokenizer: embedded}]")
        reader = program.readers.configured("simulated")
        assert reader is not None
        assert needs(program) is Needs.PREFIXES
        await gateway.change(routing="{policy: round_robin, aliases: {nick: simulated}}")
        assert needs(program) is Needs.NOTHING
        assert program.readers.configured("simulated") is reader
        await gateway.chat(model="nick")
        await eventually(lambda: set(workers[-20:]) == {"w0", "w1"})
        await gateway.change(routing="{policy: round_robin, sessions: {header: x-session}}")
        assert len({await gateway.chat(headers={"x-session": "s"}) for _ in range(6)}) == 1
        async with gateway.http.post(f"{gateway.url}/v1/chat/completions", json={**CHAT, "model": "nick"}) as response:
            assert response.status == 404
        async with gateway.http.get(f"{gateway.url}/version") as response:
            assert response.status == 404
        await gateway.change(routes="{passthrough: [/version]}")
        async with gateway.http.get(f"{gateway.url}/version") as response:
            assert response.status == 200
        await gateway.change(tokens="{max_chars: 10000}")
        assert program.readers.configured("simulated") is not reader
        await gateway.change(models="[]", response_headers="{worker: x-served-by}")
        assert program.readers.configured("simulated") is None
        await gateway.change(response_headers="{worker: x-worker}")


async def test_the_queue_goes_on_under_other_settings_of_the_same_policy(gateway: Running) -> None:
    await gateway.change(admission="{policy: fair}")
    gate = gateway.program.pipeline.gate
    assert gate is not None
    await gateway.change(admission="{policy: fair, max_waiting: 7, batch: {yield_from: 0.05, yield_all: 0.1}}")
    assert gateway.program.pipeline.gate is gate
    settings = gate.queue.settings
    assert (settings.max_waiting, settings.yield_from, settings.yield_all) == (7, 0.05, 0.1)
    await gateway.chat()
    await gateway.change(admission="{policy: priority}")
    assert gateway.program.pipeline.gate is not gate


async def test_limits_and_timeouts_follow_the_file(gateway: Running) -> None:
    program = gateway.program
    await gateway.change(
        limits="{body_bytes: 8KB, head_bytes: 4KB, drain_timeout: 1s}",
        tokens="{inline_chars: 1000}",
        upstream="{first_byte_timeout: 7s, idle_timeout: 8s, request_timeout: 9s, max_attempts: 2}",
        health="{probe: {interval: 100ms, unhealthy_after: 9}, breaker: {max_requests: 5}}",
    )
    long = {**CHAT, "user": "x" * 9000}
    async with gateway.http.post(f"{gateway.url}/v1/chat/completions", json=long) as response:
        assert response.status == 413
    assert program.server.first_byte_timeout == 7.0
    assert program.server.response_idle_timeout == 8.0
    assert program.server.request_timeout == 9.0
    assert program.pipeline.rules.max_attempts == 2
    assert program.fleet.settings.unhealthy_after == 9
    for member in program.fleet.members.values():
        assert member.worker.limits.max_requests == 5
        assert member.poll.settings.health_interval == 0.1
    await gateway.chat()


async def test_the_operators_token_and_what_is_logged_follow_the_file(gateway: Running) -> None:
    assert (await gateway.admin("GET", "/admin/config"))[0] == 200
    await gateway.change(admin="{port: 0, token: another-token-of-the-operator, requests_kept: 3}")
    assert (await gateway.admin("GET", "/admin/config"))[0] == 401
    status, config = await gateway.admin("GET", "/admin/config", token="another-token-of-the-operator")
    assert status == 200
    assert "another-token" not in json.dumps(config)
    for _ in range(5):
        await gateway.chat()
    assert len(gateway.program.recent) == 3
    await gateway.change(log="{level: error, access: true}")
    assert logging.getLogger().level == logging.ERROR
    await eventually(lambda: any(isinstance(each, AccessLog) for each in gateway.program.pipeline.observers))
    await gateway.change(log="{level: info, access: false}")
    assert logging.getLogger().level == logging.INFO
    assert not any(isinstance(each, AccessLog) for each in gateway.program.pipeline.observers)


async def test_spans_begin_go_elsewhere_and_end(gateway: Running) -> None:
    program = gateway.program
    await gateway.chat()
    assert program.pipeline.trace is None
    async with collecting() as first, collecting() as second:
        await gateway.change(telemetry=f"{{endpoint: '{first.url}'}}")
        await gateway.chat()
        await eventually(lambda: len(first.spans) == 1)
        exporter = program.spans
        await gateway.change(telemetry=f"{{endpoint: '{first.url}', sample: 0.5}}")
        assert program.spans is exporter
        await gateway.change(telemetry=f"{{endpoint: '{first.url}'}}")
        await gateway.chat()
        await gateway.change(telemetry=f"{{endpoint: '{second.url}'}}")
        await eventually(lambda: len(first.spans) == 2)  # what waited went where it was meant to go
        await gateway.chat()
        await eventually(lambda: len(second.spans) == 1)
        await gateway.change(telemetry="{}")
        assert program.pipeline.trace is None
        assert program.spans is None
        await gateway.chat()
    assert gateway.said("only a restart") == 0


async def test_whose_worker_an_answer_is_at_outlives_other_bounds(gateway: Running) -> None:
    program, now = gateway.program, asyncio.get_running_loop().time()
    (worker, *_) = program.state.workers
    program.pipeline.placement.answered("resp_1", worker, now)
    await gateway.change(routing="{sessions: {ttl: 2h, max_entries: 7}}")
    assert program.affinity.get(b"\rresp_1", now + 7000.0) == worker.id


async def test_what_needs_a_restart_is_said_and_the_rest_is_taken_up(gateway: Running) -> None:
    await gateway.change(listen="{port: 1}", tokens="{threads: 2}", log="{level: warning}")
    await eventually(lambda: gateway.said("only a restart takes up listen.port") == 1)
    assert gateway.said("tokens.threads") == 0
    assert gateway.program._executor._max_workers == 2
    assert logging.getLogger().level == logging.WARNING
    await gateway.chat()
    await gateway.change(index="{max_blocks: 40000}")
    await eventually(lambda: gateway.said("only a restart takes up listen.port") == 2)  # still
    await gateway.change(listen="{port: 0}")
    await gateway.change(index="{max_blocks: 50000}")
    assert gateway.said("only a restart takes up") == 2  # the port that is asked for is the one that is open


async def test_what_open_stores_are_not_of_is_said(gateway: Running) -> None:
    await gateway.change(response_cache="{mode: on, redis: {url: 'redis://127.0.0.1:1/0'}}")
    await gateway.change(response_cache="{mode: off}")
    assert gateway.said("only a restart") == 0
    await gateway.change(response_cache="{mode: on, ttl: 2h, memory: 2MiB}")
    told = "only a restart takes up response_cache.memory, response_cache.redis, response_cache.ttl"
    await eventually(lambda: gateway.said(told) == 1)
    assert gateway.program.answers.responses is not None
    assert gateway.program.answers.responses.cache.memory_stats().capacity >= 128 << 20
    await gateway.change(
        response_cache="{mode: on, redis: {url: 'redis://127.0.0.1:1/0'}}",
        tenants=f"{{salt_key: '{SALT_KEY}', members: [{{name: acme, keys: ['{digest('acme')}']}}]}}",
    )
    await eventually(lambda: gateway.said("only a restart takes up response_cache.tenant_share") == 1)


async def test_the_index_takes_up_its_bound(gateway: Running) -> None:
    index = gateway.program.index
    index.add_worker(WorkerId("filled"), model="m", block_size=16)
    index.predict(WorkerId("filled"), [BlockHash(number) for number in range(1, 9_001)], start=0, now=0.0, ttl=1e9)
    assert len(index) == 9_000
    await gateway.change(index="{max_blocks: 40000}")
    await eventually(lambda: index.max_blocks == 40_000)
    assert len(index) == 9_000
    await gateway.change(index="{max_blocks: 5000}")
    await eventually(lambda: index.max_blocks == 5_000)
    assert 0 < len(index) <= 5_000
    index.check_integrity()


async def test_a_worker_of_the_operators_survives(gateway: Running) -> None:
    status, _ = await gateway.admin(
        "POST", "/admin/workers", json={"name": "extra", "url": gateway.fleet.workers[2].url}
    )
    assert status == 201
    gateway.settings.workers.pop()
    await gateway.change()
    assert sorted(gateway.program.fleet.members) == ["extra", "w0"]


# --- while requests are under way --------------------------------------------------------------------------


async def test_a_request_keeps_the_worker_that_leaves(tmp_path: Path, lines: list[str]) -> None:
    async with from_file(tmp_path, lines, used=1, speed=2.0, discovery="{drain: 20s}") as gateway:
        body = {**CHAT, "stream": True, "max_tokens": 100, "ignore_eos": True}
        async with gateway.http.post(f"{gateway.url}/v1/chat/completions", json=body) as response:
            first = await response.content.readany()
            gateway.settings.workers = [entry(gateway.fleet, 1)]
            await gateway.change()
            assert list(gateway.program.fleet.members) == ["w1"]
            await eventually(lambda: gateway.program.state.models)
            assert await gateway.chat() == "w1"
            rest = await response.read()
        assert response.headers["x-worker"] == "w0"
        assert (first + rest).endswith(b"data: [DONE]\n\n")
        assert b'"error"' not in rest
        await eventually(lambda: not gateway.program.fleet.leaving)


async def test_reloads_at_once_come_one_after_the_other(gateway: Running) -> None:
    async with under_load(gateway):
        for weight in (2, 3, 4):
            gateway.settings.workers[0] = entry(gateway.fleet, 0, more=f", weight: {weight}")
            gateway.write()
            assert gateway.program.reloader is not None
            gateway.program.reloader.at_once()
            answers = await asyncio.gather(*[gateway.admin("POST", "/admin/reload") for _ in range(3)])
            assert {status for status, _ in answers} == {200}
            assert gateway.program.fleet.members[WorkerId("w0")].worker.weight == weight


# --- files that cannot be used -----------------------------------------------------------------------------


def _nonsense(folder: Path) -> Path:
    file = folder / "nonsense.pem"
    file.write_text("-----BEGIN CERTIFICATE-----\nnone\n-----END CERTIFICATE-----\n")
    return file


BAD = ["syntax", "unknown key", "missing tokenizer", "tokenizer without files", "worker's CA", "our certificate"]


@pytest.mark.parametrize("kind", BAD)
async def test_a_bad_file_changes_nothing_and_is_told_once(gateway: Running, tmp_path: Path, kind: str) -> None:
    program = gateway.program
    before, members = program.config, dict(program.fleet.members)
    readers, placement, rules = program.readers, program.pipeline.placement, program.pipeline.rules
    bad = _nonsense(tmp_path)
    (tmp_path / "empty").mkdir()
    sections = dict(gateway.settings.sections)
    good = list(gateway.settings.workers)
    gateway.settings.workers = [f"{good[0]}, weight: 9", entry(gateway.fleet, 2)]
    if kind == "syntax":
        gateway.write(routing="{policy: [")
    elif kind == "unknown key":
        gateway.write(routing="{polciy: cost}")
    elif kind == "missing tokenizer":
        gateway.write(models="[{name: simulated, tokenizer: ./nowhere}]")
    elif kind == "tokenizer without files":
        gateway.write(models="[{name: other, tokenizer: embedded}, {name: simulated, tokenizer: ./empty}]")
    elif kind == "worker's CA":
        gateway.settings.workers.append(f"name: far, url: 'https://127.0.0.1:1', tls: {{ca: '{bad}'}}")
        gateway.write()
    else:
        gateway.write(listen=f"{{port: 0, tls: {{certificate: '{bad}', key: '{bad}'}}}}")
    async with under_load(gateway):
        await eventually(lambda: gateway.said("the old one stays in force") == 1)
        await asyncio.sleep(LOOKS)
        assert gateway.said("the old one stays in force") == 1
        assert not any("\n" in line for line in gateway.lines)
        assert (program.config, program.fleet.members) == (before, members)
        assert (program.readers, program.pipeline.placement, program.pipeline.rules) == (readers, placement, rules)
        assert [member.worker.weight for member in members.values()] == [1.0, 1.0]
        assert program.readers.configured("other") is None
        assert program.reloader is not None
        with pytest.raises((ConfigError, TlsError, TokenizerError)):
            await program.reloader.reload()
        assert (await gateway.admin("POST", "/admin/reload"))[0] == 422
        gateway.settings.sections = sections
        gateway.settings.workers = [*good, entry(gateway.fleet, 2)]
        await gateway.change()
        assert sorted(program.fleet.members) == ["w0", "w1", "w2"]


async def test_what_a_bad_file_had_opened_is_given_back(gateway: Running, tmp_path: Path) -> None:
    (tmp_path / "no model").mkdir()
    cache = "{mode: on, disk: {path: ./answers}}"
    bad = "{mode: shadow, embedding: {kind: minilm, folder: './no model'}}"
    gateway.write(response_cache=cache, semantic_cache=bad)
    for _ in range(2):
        status, told = await gateway.admin("POST", "/admin/reload")
        assert status == 422
        assert "no model" in json.dumps(told)
    await gateway.change(response_cache=cache, semantic_cache="{mode: off}")
    assert gateway.program.pipeline.responses is not None


async def test_a_file_that_is_away_for_a_moment_is_nothing_to_tell(gateway: Running) -> None:
    before = gateway.program.config
    gateway.file.unlink()
    await asyncio.sleep(LOOKS)
    assert gateway.program.config is before
    assert gateway.said("stays in force") == 0
    await gateway.change(log="{level: error}")
    await gateway.chat()


async def test_a_touched_file_is_not_taken_up_and_a_switched_link_is(tmp_path: Path, lines: list[str]) -> None:
    async with from_file(tmp_path, lines) as gateway:
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
        (tmp_path / "one" / "gateway.yaml").write_text(gateway.settings.text())
        data = tmp_path / "data"
        data.symlink_to("one")
        gateway.file.unlink()
        gateway.file.symlink_to("data/gateway.yaml")
        await asyncio.sleep(LOOKS)
        assert gateway.said("configuration:") == 0
        (tmp_path / "two" / "gateway.yaml").write_text(gateway.settings.text(upstream="{max_attempts: 5}"))
        fresh = tmp_path / "fresh"
        fresh.symlink_to("two")
        fresh.replace(data)
        await eventually(lambda: gateway.program.pipeline.rules.max_attempts == 5)


# --- certificates ------------------------------------------------------------------------------------------


async def test_a_renewed_certificate_is_shown_to_new_clients(tmp_path: Path, lines: list[str]) -> None:
    authority = Authority(tmp_path / "authority")
    pair, fresh = authority.issue("first"), authority.issue("second")
    listen = f"{{port: 0, tls: {{certificate: '{pair.certificate}', key: '{pair.key}'}}}}"

    def shown(writer: asyncio.StreamWriter) -> str:
        certificate = writer.get_extra_info("ssl_object").getpeercert()
        return str(dict(pair for name in certificate["subject"] for pair in name)["commonName"])

    async def connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", port, ssl=authority.client_context())

    async def health(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")

    async with from_file(tmp_path, lines, listen=listen) as gateway:
        port = int(gateway.url.rpartition(":")[2])
        reader, writer = await connect(port)
        assert shown(writer) == "first"
        old = gateway.program.tls
        assert old is not None
        context = old.context
        fresh.copy_to(pair)
        await eventually(lambda: old.context is not context)
        again = await connect(port)
        assert shown(again[1]) == "second"
        await health(reader, writer)
        await health(*again)
        context = old.context
        pair.certificate.write_text("nothing of the kind")
        await eventually(lambda: gateway.said("cannot be used") == 1)
        await asyncio.sleep(LOOKS)
        assert gateway.said("cannot be used") == 1
        assert old.context is context
        for each in (writer, again[1]):
            each.close()
            with contextlib.suppress(ssl.SSLError, ConnectionError):
                await each.wait_closed()


# --- as a process ------------------------------------------------------------------------------------------


async def test_a_hangup_signal_takes_up_the_file_and_a_second_one_a_bad_file(tmp_path: Path) -> None:
    file, port, admin = tmp_path / "gateway.yaml", free_port(), free_port()
    text = (
        f"listen: {{port: {port}}}\nadmin: {{port: {admin}, token: {TOKEN}}}\nreload: {{watch: 0}}\n"
        "workers: [{name: w0, url: 'http://127.0.0.1:1'}]\nlimits: {drain_timeout: 1s}\n"
    )
    file.write_text(text)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway", "serve", "--config", str(file), stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    seen: list[str] = []

    async def until(words: str) -> None:
        assert process.stderr is not None
        async with asyncio.timeout(20):
            while words not in (line := (await process.stderr.readline()).decode()):
                assert line, seen
                seen.append(line)

    try:
        await until(f"control plane on http://127.0.0.1:{admin}")
        await until("listening on")
        file.write_text(text + "upstream: {max_attempts: 7}\n")
        process.send_signal(signal.SIGHUP)
        await until("is in force")
        headers = {"authorization": f"Bearer {TOKEN}"}
        async with (
            aiohttp.ClientSession() as http,
            http.get(f"http://127.0.0.1:{admin}/admin/config", headers=headers) as response,
        ):
            assert (await response.json())["upstream"]["max_attempts"] == 7
        file.write_text("nonsense: 1\n")
        process.send_signal(signal.SIGHUP)
        await until("the old one stays in force")
        os.kill(process.pid, signal.SIGTERM)
        await until("stopped")
        async with asyncio.timeout(20):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
