"""The control plane: health, who may administer, workers, configuration, and what it does with bad clients."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from collections.abc import Iterator
from types import UnionType
from typing import Any, get_args

import aiohttp
import pytest
from pydantic import BaseModel, SecretStr

from backends.worker_status import Standing
from gateway.admin.masked import masked
from gateway.admin.worker_routes import worker_settings
from gateway.api_error import ApiError
from gateway.config import Config, ConfigError, Problem, parse_config
from gateway.config.fields import ApiKey
from policies.types import WorkerId
from tests.admin_fixtures import CONFIG, TOKEN, SmallFleet, control_plane
from tests.gateway_fixtures import eventually
from tests.telemetry_fixtures import status


def message(data: dict[str, object]) -> str:
    error = data["error"]
    assert isinstance(error, dict)
    assert set(error) == {"message", "type", "param", "code"}
    return str(error["message"])


def code(data: dict[str, object]) -> object:
    message(data)
    return data["error"]["code"]  # type: ignore[index]  # seen to be a dict above


# --- health ------------------------------------------------------------------------------------------------


async def test_ready_while_a_worker_is_usable_and_not_while_draining_but_live_all_the_time() -> None:
    async with control_plane() as plane:
        assert await plane.ask("GET", "/readyz", token=None) == (200, {"status": "ready"})
        plane.fleet.workers[WorkerId("w1")] = status("w1", Standing.EJECTED)
        assert await plane.ask("GET", "/readyz", token=None) == (
            503,
            {"status": "not ready", "reason": "no worker is usable"},
        )
        plane.fleet.workers[WorkerId("w1")] = status("w1")
        plane.fleet.draining = True
        assert await plane.ask("GET", "/readyz", token=None) == (503, {"status": "not ready", "reason": "draining"})
        assert await plane.ask("GET", "/livez", token=None) == (200, {"status": "live"})


async def test_metrics_are_open_and_in_the_form_that_was_asked_for() -> None:
    async with control_plane() as plane:
        async with plane.client.get(plane.url + "/metrics") as response:
            assert response.status == 200
            assert response.headers["Content-Type"].startswith("text/plain; version=")
            assert "prefixgate_worker_standing{" in await response.text()
        asked = {"Accept": "application/openmetrics-text; version=1.0.0"}
        async with plane.client.get(plane.url + "/metrics", headers=asked) as response:
            assert response.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
            assert (await response.text()).endswith("# EOF\n")


# --- who may administer ------------------------------------------------------------------------------------

PATHS = [
    ("GET", "/admin/workers"),
    ("POST", "/admin/workers"),
    ("POST", "/admin/workers/w1/drain"),
    ("POST", "/admin/workers/w1/resume"),
    ("DELETE", "/admin/workers/w1"),
    ("GET", "/admin/requests"),
    ("GET", "/admin/requests/r-1"),
    ("GET", "/admin/config"),
    ("POST", "/admin/reload"),
    ("GET", "/admin/none"),
    ("GET", "/admin"),
    ("GET", "/%61dmin/config"),
    ("GET", "//admin/config"),
]


@pytest.mark.parametrize(("method", "path"), PATHS)
async def test_nothing_under_admin_is_told_or_done_without_the_token(method: str, path: str) -> None:
    async with control_plane() as plane:
        for token in (None, "", TOKEN[:-1], TOKEN + "x", TOKEN[:20], TOKEN.upper(), "é"):
            answered, data = await plane.ask(method, path, token=token)
            assert answered == (404 if path.startswith("//") else 401)
            assert "config" not in data
        assert plane.fleet.workers == SmallFleet().workers


async def test_a_refusal_says_how_to_come_in() -> None:
    async with control_plane() as plane:
        async with plane.client.get(
            plane.url + "/admin/config", headers={"Authorization": f"Basic {TOKEN}"}
        ) as response:
            assert response.status == 401
            assert response.headers["WWW-Authenticate"] == "Bearer"
        assert (await plane.ask("GET", "/admin/config"))[0] == 200


async def test_without_a_configured_token_administration_is_closed_and_says_what_opens_it() -> None:
    closed = SmallFleet(settings=parse_config("workers: [{url: 'http://w1:8000'}]\n"))
    async with control_plane(closed) as plane:
        for token in (None, TOKEN, "", "None"):
            answered, data = await plane.ask("GET", "/admin/workers", token=token)
            assert answered == 403
            assert "admin.token" in message(data)
        plane.fleet.settings = parse_config(CONFIG)  # a reload
        assert (await plane.ask("GET", "/admin/workers"))[0] == 200


# --- workers -----------------------------------------------------------------------------------------------


async def test_workers_are_listed_with_all_that_is_known_of_them() -> None:
    async with control_plane() as plane:
        answered, data = await plane.ask("GET", "/admin/workers")
        assert answered == 200
        assert data == {
            "data": [
                {
                    "id": "w1", "url": "http://w1:8000", "source": "config", "standing": "ready", "models": ["m"],
                    "weight": 1.0, "active": 2, "served": 10, "queued_tokens": 70.5, "prefill_tokens_per_s": 8000.0,
                    "block_size": 16, "kv_blocks": 1000, "blocks_known": 321, "kv_feed": "live", "running": 2,
                    "waiting": 0, "kv_used": 0.25, "connections": 4, "out_for": None,
                }
            ]
        }  # fmt: skip


async def test_a_worker_is_added_as_in_the_configuration_and_only_once() -> None:
    async with control_plane() as plane:
        entry = {
            "url": "http://10.0.0.7:8000",
            "models": ["m"],
            "api_key": "canary-key",
            "weight": 2,
            "kv_events": {"endpoint": "tcp://10.0.0.7:5557"},
        }
        answered, data = await plane.ask("POST", "/admin/workers", json=entry)
        assert (answered, data["id"], data["standing"], data["source"]) == (201, "10.0.0.7:8000", "waiting", "admin")
        (settings,) = plane.fleet.added
        assert settings.weight == 2.0
        assert settings.kv_events is not None
        assert settings.api_key is not None
        assert settings.api_key.get_secret_value() == "canary-key"
        assert "canary" not in json.dumps(data)
        answered, data = await plane.ask("POST", "/admin/workers", json=entry)
        assert (answered, code(data)) == (409, "worker_conflict")
        assert len(plane.fleet.added) == 1


@pytest.mark.parametrize(
    ("entry", "field"),
    [
        ({}, "url"),
        ({"url": "ftp://x"}, "url"),
        ({"url": "http://x:1", "weight": 0}, "weight"),
        ({"url": "http://x:1", "wieght": 1}, "wieght"),
        ({"url": "http://x:1", "block_size": "16"}, "block_size"),
        ({"url": "http://x:1", "name": "with space"}, "name"),
        ({"url": "http://x:1", "api_key": "canary\nkey"}, "api_key"),
        ({"url": "http://x:1", "api_key": {"canary": "key"}}, "api_key"),
        ({"url": "http://x:1", "models": []}, "models"),
        ({"url": "http://x:1", "kv_events": {"endpoint": "tcp://*:5557"}}, "kv_events.endpoint"),
        ({"url": "http://x:1", "tls": {"verify": False}}, "tls"),
        ({"url": "https://x:1", "tls": {"certificate": "pyproject.toml"}}, "tls"),
        ({"url": "https://x:1", "tls": {"ca": "no/such/file.pem"}}, "tls.ca"),
        (
            {"url": "http://x:1", "kv_events": {"endpoint": "tcp://x:1", "replay_endpoint": "tcp://x:1"}},
            "kv_events.replay_endpoint",
        ),
    ],
)
async def test_what_is_wrong_with_a_worker_is_told_by_its_field(entry: dict[str, object], field: str) -> None:
    async with control_plane() as plane:
        answered, data = await plane.ask("POST", "/admin/workers", json=entry)
        assert (answered, code(data)) == (422, "invalid_worker")
        assert message(data).startswith(f"{field}: ")
        assert data["error"]["param"] == field  # type: ignore[index]  # seen to be a dict above
        assert "canary" not in json.dumps(data)
        assert plane.fleet.added == []


@pytest.mark.parametrize(
    "body", [b"", b"x", b"[]", b"null", b'{"url": "http://x:1", "url": "http://y:1"}', b"[" * 100_000, b"\xff"]
)
def test_a_body_that_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(ApiError, match="must be a JSON object") as refused:
        worker_settings(body)
    assert refused.value.status == 400


async def test_drain_resume_and_remove() -> None:
    async with control_plane() as plane:
        answered, data = await plane.ask("POST", "/admin/workers/w1/drain")
        assert (answered, data["standing"]) == (200, "draining")
        answered, data = await plane.ask("POST", "/admin/workers/w1/resume")
        assert (answered, data["standing"]) == (200, "ready")
        assert await plane.ask("DELETE", "/admin/workers/w1?grace=1.5s") == (200, {"id": "w1", "removed": True})
        assert plane.fleet.graces == [1.5]
        for method, path in (("POST", "w1/drain"), ("POST", "w1/resume"), ("DELETE", "w1")):
            answered, data = await plane.ask(method, f"/admin/workers/{path}")
            assert (answered, code(data)) == (404, "unknown_worker")


async def test_without_a_grace_of_its_own_a_removal_takes_the_configured_one() -> None:
    async with control_plane() as plane:
        await plane.ask("DELETE", "/admin/workers/w1")
        assert plane.fleet.graces == [plane.fleet.settings.discovery.drain]


@pytest.mark.parametrize("grace", ["", "soon", "-1s", "1d", "inf", "1e9", "25h", "%00"])
async def test_a_grace_that_is_no_duration_removes_nothing(grace: str) -> None:
    async with control_plane() as plane:
        answered, data = await plane.ask("DELETE", f"/admin/workers/w1?grace={grace}")
        assert (answered, code(data)) == (400, "invalid_grace")
        assert WorkerId("w1") in plane.fleet.workers


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("10.0.0.1:8000", "10.0.0.1:8000"),
        ("10.0.0.1:8000", "10.0.0.1%3A8000"),
        ("[::1]:8000", "%5B::1%5D:8000"),
        ("a%b", "a%25b"),
        ("a%2Fb", "a%252Fb"),
        ("a/b", "a%2Fb"),
        ("a?b#c", "a%3Fb%23c"),
        ("{id}", "%7Bid%7D"),
        ("a+b", "a+b"),
        ("drain", "drain"),
    ],
)
async def test_a_worker_of_any_name_can_be_addressed(name: str, written: str) -> None:
    fleet = SmallFleet(workers={WorkerId(name): status(name), WorkerId("w1"): status("w1")})
    async with control_plane(fleet) as plane:
        answered, data = await plane.ask("POST", f"/admin/workers/{written}/drain")
        assert (answered, data["id"], data["standing"]) == (200, name, "draining")
        assert await plane.ask("DELETE", f"/admin/workers/{written}?grace=0s") == (200, {"id": name, "removed": True})
        assert list(fleet.workers) == ["w1"]


# --- configuration -----------------------------------------------------------------------------------------


def secrets_in(model: type[BaseModel], path: str = "") -> Iterator[str]:
    """Every setting that holds a secret, by its place."""
    for name, info in model.model_fields.items():
        yield from _secrets_in(info.annotation, f"{path}.{name}".removeprefix("."), repr(info))


def _secrets_in(annotation: Any, path: str, told: str) -> Iterator[str]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield from secrets_in(annotation, path)
    elif annotation is SecretStr or (not get_args(annotation) and "SecretStr" in told and isinstance(annotation, type)):
        yield path
    elif get_args(annotation) or isinstance(annotation, UnionType):
        for part in get_args(annotation):
            yield from _secrets_in(part, path, "")


SECRET_CONFIG = """
workers:
  - {url: 'https://w1:8000', name: w1, api_key: canary-worker}
discovery:
  dns: [{name: pods.example, port: 8000, api_key: canary-dns}]
admin: {token: canary-admin}
response_cache:
  redis: {url: 'redis://answers:canary-answers@10.0.0.9'}
  encryption_key: canary-of-all-the-answers-that-are-encrypted
semantic_cache: {embedding: {api_key: canary-embedding}}
telemetry: {endpoint: 'http://user:canary-password@collector:4318', headers: {authorization: canary-header}}
tenants:
  salt_key: canary-of-the-salts-of-all-tenants
  members: [{name: acme, keys: ['sha256:ca0a7ca0a7ca0a7ca0a7ca0a7ca0a7ca0a7ca0a7ca0a7ca0a7ca0a7ca0a70000']}]
  shared_limits: {redis: 'redis://limits:canary-redis@10.0.0.9'}
"""


def test_the_canaries_stand_for_every_secret_there_is() -> None:
    assert ApiKey is not None
    assert set(secrets_in(Config)) == {
        "workers.api_key",
        "discovery.dns.api_key",
        "admin.token",
        "telemetry.headers",
        "tenants.members.keys",
        "tenants.salt_key",
        "tenants.shared_limits.redis",
        "response_cache.redis.url",
        "response_cache.encryption_key",
        "semantic_cache.embedding.api_key",
    }


def test_the_effective_configuration_is_shown_without_a_secret() -> None:
    config = parse_config(SECRET_CONFIG)
    text = json.dumps(masked(config))
    assert "canary" not in text
    assert "ca0a7" not in text
    shown = masked(config)
    assert shown["limits"] == config.model_dump(mode="json")["limits"]
    assert shown["telemetry"]["endpoint"] == "http://***@collector:4318"  # type: ignore[index]  # a section
    assert shown["admin"]["token"] == "**********"  # type: ignore[index]  # a section


async def test_the_configuration_in_force_is_asked_for_each_time() -> None:
    async with control_plane() as plane:
        _, data = await plane.ask("GET", "/admin/config")
        assert data["listen"]["port"] == 8000  # type: ignore[index]  # a section
        plane.fleet.settings = parse_config(CONFIG + "listen: {port: 8080}\n")
        _, data = await plane.ask("GET", "/admin/config")
        assert data["listen"]["port"] == 8080  # type: ignore[index]  # a section
        assert TOKEN not in json.dumps(data)


async def test_a_reload_says_what_came_of_it() -> None:
    async with control_plane() as plane:
        bad = ConfigError("prefixgate.yaml", [Problem("listen.port", 'expected a whole number; given "x"', 3)])
        plane.fleet.reloaded = ["nothing has changed", bad]
        assert await plane.ask("POST", "/admin/reload") == (200, {"result": "nothing has changed"})
        answered, data = await plane.ask("POST", "/admin/reload")
        assert (answered, code(data)) == (422, "bad_configuration")
        assert "line 3: listen.port: expected a whole number" in message(data)


# --- errors and bad clients --------------------------------------------------------------------------------


async def test_every_error_has_one_shape() -> None:
    async with control_plane() as plane:
        for method, path, wanted in (
            ("GET", "/none", 404),
            ("GET", "/admin/none", 404),
            ("PUT", "/admin/workers", 405),
            ("POST", "/livez", 405),
            ("DELETE", "/admin/config", 405),
        ):
            answered, data = await plane.ask(method, path)
            assert answered == wanted, path
            assert ("/livez, /readyz, /metrics" if wanted == 404 else "This path takes ") in message(data)
        plane.fleet.reloaded = [RuntimeError("canary")]
        answered, data = await plane.ask("POST", "/admin/reload")
        assert (answered, code(data)) == (500, "internal_error")
        assert "canary" not in json.dumps(data)


async def test_a_body_is_bounded() -> None:
    async with control_plane() as plane:
        answered, data = await plane.ask("POST", "/admin/workers", data=io.BytesIO(b"x" * ((1 << 20) + 1)))
        assert (answered, code(data)) == (413, "request_entity_too_large")


@pytest.mark.parametrize("sent", [b"", b"GET /livez HTTP/1.1\r\nHost: x\r\n"])
async def test_a_connection_that_sends_no_whole_head_is_closed(sent: bytes) -> None:
    async with control_plane(head_seconds=0.1) as plane:
        host, port = plane.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(sent)
        async with asyncio.timeout(5):
            assert await reader.read() == b""
        writer.close()
        # One that did is not: it may ask again.
        assert (await plane.ask("GET", "/livez"))[0] == 200
        await asyncio.sleep(0.2)
        assert (await plane.ask("GET", "/livez"))[0] == 200


@pytest.mark.parametrize(
    "sent", [b"\x00\x01\x02\r\n\r\n", b"GET /livez HTTP/1.1\r\n: x\r\n\r\n", b"GET " + b"x" * 20_000]
)
async def test_what_is_no_http_is_refused_without_a_traceback(sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async with control_plane() as plane:
        host, port = plane.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(sent)
        async with asyncio.timeout(5):
            assert (await reader.read()).startswith(b"HTTP/1.0 400 ")
        writer.close()
    assert caplog.records == []


async def test_connections_are_bounded() -> None:
    async with control_plane(max_connections=3) as plane:
        host, port = plane.url.removeprefix("http://").split(":")
        held = [await asyncio.open_connection(host, int(port)) for _ in range(3)]
        reader, writer = await asyncio.open_connection(host, int(port))
        async with asyncio.timeout(5):
            assert await reader.read() == b""
        for _, one in (*held, (reader, writer)):
            one.close()

        async def again() -> None:
            while True:
                with contextlib.suppress(aiohttp.ClientError):
                    assert (await plane.ask("GET", "/livez"))[0] == 200
                    return

        await asyncio.wait_for(again(), 5)


async def test_close_frees_the_port_and_may_come_twice() -> None:
    async with control_plane() as plane:
        host, port = plane.url.removeprefix("http://").split(":")
        await plane.server.close()
        await plane.server.close()
        with pytest.raises(OSError, match="onnect"):
            await asyncio.open_connection(host, int(port))


async def test_a_port_that_is_taken_is_told() -> None:
    async with control_plane() as plane:
        other = type(plane.server)(plane.fleet, plane.server._registry, plane.recent)
        with pytest.raises(OSError, match="ddress already in use"):
            await other.start("127.0.0.1", int(plane.url.rpartition(":")[2]))


async def test_a_removal_goes_on_though_its_client_has_left() -> None:
    async with control_plane() as plane:
        host, port = plane.url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"DELETE /admin/workers/w1 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode())
        await eventually(lambda: plane.fleet.graces)
        writer.close()
        await eventually(lambda: not plane.fleet.workers)
