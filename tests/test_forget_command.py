"""How forgetting is asked for: the control plane's route, and `prefixgate forget`."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gateway.admin.control import ForgetOrder
from gateway.cli import application
from tests.admin_fixtures import control_plane
from tests.data_plane_fixtures import refusing_url
from tests.forget_fixtures import TOKEN, Forgetful, forgetful

WHERE = "/admin/tenants/acme/cache"


@pytest.mark.parametrize(
    ("query", "body", "order"),
    [
        ("", None, ForgetOrder(tenant="acme")),
        ("?dry_run=true", None, ForgetOrder(tenant="acme", dry_run=True)),
        ("?dry_run=0&kv_epoch=7", None, ForgetOrder(tenant="acme", kv_epoch=7)),
        ("?older_than=1h&model=m%2F1", None, ForgetOrder(tenant="acme", older_than=3600.0, model="m/1")),
        ("?prefix=My%20name+is%26", None, ForgetOrder(tenant="acme", prefix="My name is&")),
        ("?model=m", {"prefix": "é\n"}, ForgetOrder(tenant="acme", model="m", prefix="é\n")),
        ("", {"dry_run": True}, ForgetOrder(tenant="acme", dry_run=True)),
        ("", {"older_than": 1.5, "model": None, "kv_epoch": 3}, ForgetOrder(tenant="acme", older_than=1.5, kv_epoch=3)),
    ],
)  # fmt: skip
async def test_what_is_asked(query: str, body: object, order: ForgetOrder) -> None:
    async with control_plane() as plane:
        more: dict[str, Any] = {} if body is None else {"json": body}
        assert await plane.ask("DELETE", WHERE + query, **more) == (200, {"tenant": "acme"})
        assert plane.fleet.forgotten == [(order, "127.0.0.1")]


@pytest.mark.parametrize(
    ("query", "body", "param"),
    [
        ("?modle=m", None, "modle"),
        ("?model=", None, "model"),
        ("?model=a&model=b", None, "model"),
        ("?model=a", {"model": "a"}, "model"),
        ("?prefix=", None, "prefix"),
        ("?older_than=soon", None, "older_than"),
        ("?older_than=0", None, "older_than"),
        ("?older_than=-1s", None, "older_than"),
        ("?dry_run=maybe", None, "dry_run"),
        ("?kv_epoch=-1", None, "kv_epoch"),
        ("?kv_epoch=99999999999", None, "kv_epoch"),
        ("?kv_epoch=%D9%A3", None, "kv_epoch"),
        ("", {"older_than": True}, "older_than"),
        ("", {"older_than": [1]}, "older_than"),
        ("", {"older_than": 1e400}, "older_than"),
        ("", {"prefix": 1}, "prefix"),
        ("", {"model": "\ud800"}, "model"),
        ("", {"prefix": "My\udfff"}, "prefix"),
        ("", {"dry_run": "yes"}, "dry_run"),
        ("", {"kv_epoch": True}, "kv_epoch"),
        ("", {"kv_epoch": 1.0}, "kv_epoch"),
        ("", [], None),
    ],
)
async def test_what_is_refused(query: str, body: object, param: str | None) -> None:
    async with control_plane() as plane:
        more: dict[str, Any] = {} if body is None else {"json": body}
        status, said = await plane.ask("DELETE", WHERE + query, **more)
        error: Any = said["error"]
        assert (status, error["param"]) == (400, param)
        assert plane.fleet.forgotten == []


@pytest.mark.parametrize("body", [b"{", b'{"model": "a", "model": "b"}', b"\xff", b"[" * 100_000])
async def test_a_body_that_is_no_json(body: bytes) -> None:
    async with control_plane() as plane:
        status, said = await plane.ask("DELETE", WHERE, data=body)
        assert (status, said["error"]["code"]) == (400, "invalid_json")  # type: ignore[index]  # an error


async def test_who_may_ask_and_of_whom() -> None:
    async with control_plane() as plane:
        assert (await plane.ask("DELETE", WHERE, token="another"))[0] == 401
        status, said = await plane.ask("DELETE", "/admin/tenants/nobody/cache")
        assert (status, said["error"]["code"]) == (404, "unknown_tenant")  # type: ignore[index]  # an error
        assert (await plane.ask("GET", WHERE))[0] == 405
        assert plane.fleet.forgotten == []


# --- the command ----------------------------------------------------------------------------------------------------


async def call(*words: str, token: str = TOKEN) -> Result:
    environment = {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb", "PREFIXGATE_ADMIN_TOKEN": token}
    return await asyncio.to_thread(CliRunner().invoke, application("forget"), ["forget", *words], env=environment)


def entries(result: Result) -> list[dict[str, int]]:
    return [json.loads(line)["answers"]["responses"]["entries"] for line in result.stdout.splitlines()]


async def test_the_command_forgets(tmp_path: Path) -> None:
    async with forgetful(tmp_path) as it:
        for text in ("One", "Two"):
            await it.says(text=text)
        file = tmp_path / "gateway.yaml"
        file.write_text(
            f"workers: [{{url: 'http://127.0.0.1:1'}}]\nadmin: {{port: {it.program.admin_port}, token: {TOKEN}}}\n"
        )
        result = await call("acme", "--dry-run", "-c", str(file), token="")
        assert result.exit_code == 0, result.stderr
        assert "would forget acme" in result.stdout
        assert "responses: 2 in memory" in result.stdout
        assert (await it.says(text="One"))[1] == "hit"
        result = await call("acme", "--prefix", "On", "--admin", it.admin, "--json")
        assert (result.exit_code, entries(result)) == (0, [{"host": 1}])
        result = await call("acme", "--model", "other", "--older-than", "1h", "--admin", it.admin, "--json")
        assert (result.exit_code, entries(result)) == (0, [{"host": 0}])
        result = await call("acme", "--admin", it.admin)
        assert result.exit_code == 0, result.stderr
        assert [line.strip() for line in result.stdout.splitlines()[1:]] == [
            "responses: 1 in memory", "KV: epoch 1", "w0: unreadable",
        ]  # fmt: skip
        assert (await it.says(text="Two"))[1] == "miss"


async def test_gateways_are_told_one_after_the_other_how_far_they_have_counted(tmp_path: Path) -> None:
    async with forgetful(tmp_path / "a") as one, forgetful(tmp_path / "b") as other:
        both: tuple[Forgetful, ...] = (one, other)
        await one.forget()
        words = [word for it in both for word in ("--admin", it.admin)]
        result = await call("acme", *words)
        assert result.exit_code == 0, result.stderr
        for it in both:
            await it.says()
        assert one.engine.salts == other.engine.salts
        await other.forget()
        result = await call("acme", *words)
        assert (result.exit_code, "set kv_epoch: 4 of acme for all" in result.stderr) == (1, True)


async def test_what_goes_wrong_is_told_and_the_others_are_asked_all_the_same(tmp_path: Path) -> None:
    gone = refusing_url()
    async with forgetful(tmp_path, worker=", cache_salt: false") as it:
        result = await call("acme", "--admin", gone, "--admin", it.admin)
        assert (result.exit_code, f"{gone}: cannot be asked: Connection refused" in result.stderr) == (1, True)
        assert "forgot acme" in result.stdout
        assert "w0: not kept apart" in result.stdout
        for words, said in (
            (["nobody"], "There is no tenant 'nobody'"),
            (["acme", "--older-than", "soon"], "older_than: expected"),
            (["acme", "--prefix", ""], "prefix: expected"),
        ):
            result = await call(*words, "--admin", it.admin)
            assert (result.exit_code, said in result.stderr) == (1, True), result.stderr
        result = await call("acme", "--admin", it.admin, token="wrong")
        assert (result.exit_code, "admin.token" in result.stderr) == (1, True)
        url = f"http://127.0.0.1:{it.gateway.url.rpartition(':')[2]}"
        result = await call("acme", "--admin", url)
        assert result.exit_code == 1, "not its control plane"
        result = await call("acme", "--admin", "127.0.0.1:9400")
        assert (result.exit_code, "such as http://127.0.0.1:9400" in result.stderr) == (2, True)
        assert (await call("acme", "--admin", it.admin)).exit_code == 1, "its KV is not kept apart"
