"""What is forgotten is out of reach at once, gone from where it lay, and stays so, whatever was under way."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from hashlib import sha256
from pathlib import Path
from typing import Any

import openai
import pytest

from cache.response_cache import Forgotten, ResponseCache
from cache.tenant_salt import tenant_account, tenant_salt
from gateway.kv_epochs import NAME
from policies.types import Tier
from tests.caching_fixtures import ASKED, setting
from tests.forget_fixtures import Engine, Forgetful, audited, forgetful
from tests.gateway_fixtures import eventually
from tests.redis_fixtures import needs_redis, redis_server
from tests.tenant_fixtures import KEYS, SALT_KEY

KEY = SALT_KEY.encode()
SECRET = "My name is Ada and I live in Lovelace Street"


def disk(folder: Path) -> str:
    return f"disk: {{path: '{folder / 'answers'}'}}, lookup_timeout: 5s"


async def test_a_tenant_is_forgotten_and_nobody_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with forgetful(tmp_path, disk(tmp_path)) as it:
        for name in ("acme", "beta"):
            for text in ("One", "Two", SECRET):
                assert (await it.says(name, text=text))[1] == "miss"
        assert it.entries() == {Tier.HOST: 6, Tier.DISK: 6}
        counted = await it.forget(dry_run=True)
        assert counted["answers"]["responses"]["entries"] == {"host": 3, "disk": 3}
        assert (counted["kv"]["epoch"], counted["dry_run"], audited(tmp_path)) == (0, True, [])
        assert it.entries() == {Tier.HOST: 6, Tier.DISK: 6}
        assert (await it.says(text="One"))[1] == "hit"

        caplog.set_level(logging.INFO, "gateway.audit")
        said = await it.forget()
        assert said["answers"] == {
            "responses": {"entries": {"host": 3, "disk": 3}, "waiting": 0, "noted": True, "complete": True}
        }
        assert said["kv"] == {
            "epoch": 1,
            "noted": True,
            "complete": True,
            "workers": {"w0": {"result": "unreadable", "frames": {}, "left": []}},
        }
        assert (said["complete"], said["audited"], said["tenant"], said["by"]) == (True, True, "acme", "127.0.0.1")
        assert it.entries() == {Tier.HOST: 3, Tier.DISK: 3}
        assert (await it.says(text="One")) == ("Answer 7.", "miss")
        assert (await it.says("beta", text="One")) == ("Answer 4.", "hit")
        it.check_left()
    assert audited(tmp_path) == [{name: value for name, value in said.items() if name != "audited"}]
    assert (tmp_path / "audit.jsonl").stat().st_mode & 0o777 == 0o600
    (line,) = [record for record in caplog.records if record.name == "gateway.audit"]
    assert (line.levelname, line.fields["id"]) == ("WARNING", said["id"])  # type: ignore[attr-defined]  # of `extra`
    assert "tenant=acme" in line.getMessage()
    async with forgetful(tmp_path, disk(tmp_path)) as it:
        assert (await it.says(text="Two")) == ("Answer 1.", "miss")
        assert (await it.says("beta", text="Two")) == ("Answer 5.", "hit")


async def test_without_tenants_there_is_one_by_default(tmp_path: Path) -> None:
    async with forgetful(tmp_path, members=()) as it:
        assert [(await it.ask())[1], (await it.ask())[1]] == ["miss", "hit"]
        said = await it.forget("default")
        assert (said["answers"]["responses"]["entries"], said["kv"], said["complete"]) == ({"host": 1}, None, True)
        assert (await it.ask())[1] == "miss"
        assert not (tmp_path / "state").exists()


async def test_by_model_by_age_and_by_prefix(tmp_path: Path) -> None:
    async with forgetful(tmp_path, disk(tmp_path), "routing: {aliases: {chat: m}}\n") as it:
        await it.says(text=SECRET)
        await it.says(text="Hello")
        system: dict[str, Any] = {
            "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": SECRET}]
        }
        await it.ask(key=KEYS["acme"], **system)
        for rule in ({"model": "another"}, {"older_than": "1h"}, {"prefix": "Ada"}, {"prefix": "Hello there"}):
            said = await it.forget(**rule)
            assert (said["answers"]["responses"]["entries"], said["kv"]) == ({"host": 0, "disk": 0}, None)
        assert (await it.forget(prefix="My name", dry_run=True))["answers"]["responses"]["entries"]["disk"] == 2
        assert (await it.forget(prefix=SECRET, model="m", older_than="1h"))["answers"]["responses"]["entries"] == {
            "host": 0,
            "disk": 0,
        }
        said = await it.forget(prefix="My name is Ada")
        assert said["answers"]["responses"]["entries"] == {"host": 2, "disk": 2}
        assert (await it.says(text="Hello"))[1] == "hit"
        assert (await it.says(text=SECRET))[1] == "miss"
        assert (await it.ask(key=KEYS["acme"], **system))[1] == "miss"
        await asyncio.sleep(0.01)
        assert (await it.forget(older_than="1ms"))["answers"]["responses"]["entries"]["host"] == 3
        assert (await it.says(text="Hello"))[1] == "miss"
        assert (await it.forget(model="chat"))["answers"]["responses"]["entries"] == {"host": 1, "disk": 1}
        assert it.engine.told == [], "KV has no model, age or prefix"
    kept = b"".join(file.read_bytes() for file in (tmp_path / "answers").rglob("*") if file.is_file())
    assert b"Lovelace" not in kept + (tmp_path / "audit.jsonl").read_bytes()
    rules = [line["rule"] for line in audited(tmp_path)]
    asked = ["Ada", "Hello there", SECRET, "My name is Ada"]
    assert [rule["prefix"] for rule in rules if rule["prefix"]] == [
        {"characters": len(text), "sha256": sha256(text.encode()).hexdigest()} for text in asked
    ]


@pytest.mark.parametrize("fields", [{}, {"prefix": "Hello"}, {"model": "m"}])
async def test_what_is_under_way_is_answered_and_not_kept(tmp_path: Path, fields: dict[str, Any]) -> None:
    async with forgetful(tmp_path, disk(tmp_path)) as it:
        it.engine.hold = True
        leader = asyncio.create_task(it.says())
        await eventually(lambda: it.engine.calls == 1)
        waiter = asyncio.create_task(it.says())
        await eventually(lambda: it.caching.flights.table.waiting == 1)
        assert (await it.forget(**fields))["complete"] is True
        it.engine.hold = False
        it.engine.may.release()
        assert await leader == ("Answer 1.", "miss")
        assert await waiter == ("Answer 1.", "hit")
        assert it.entries() == {Tier.HOST: 0, Tier.DISK: 0}
        assert await it.says() == ("Answer 2.", "miss")
        assert await it.says() == ("Answer 2.", "hit")
        it.check_left()


@pytest.mark.parametrize("fields", [{}, {"prefix": "Hello"}, {"prefix": "Good bye"}])
async def test_who_comes_after_gets_no_answer_that_was_asked_for_before(tmp_path: Path, fields: dict[str, Any]) -> None:
    is_meant = fields != {"prefix": "Good bye"}
    async with forgetful(tmp_path) as it:
        it.engine.hold = True
        before = asyncio.create_task(it.says())
        await eventually(lambda: it.engine.calls == 1)
        await it.forget(**fields)
        after = asyncio.create_task(it.says())
        await eventually(
            lambda: (it.engine.calls, it.caching.flights.table.waiting) == ((2, 0) if is_meant else (1, 1))
        )
        it.engine.hold = False
        it.engine.may.release()
        it.engine.may.release()
        assert (await before)[1] == "miss"
        assert (await after)[1] == ("miss" if is_meant else "hit")
        assert await it.says() == (f"Answer {it.engine.calls}.", "hit")
        it.check_left()


async def test_nor_one_that_was_asked_for_while_the_log_was_not_known(tmp_path: Path) -> None:
    async with forgetful(tmp_path) as it:
        it.engine.hold = True
        before = asyncio.create_task(it.says())
        await eventually(lambda: it.engine.calls == 1)
        (leader,) = it.caching.flights._leaders.values()
        leader.stamp = None
        await it.forget(prefix="Hello")
        after = asyncio.create_task(it.says())
        await eventually(lambda: (it.engine.calls, it.caching.flights.table.waiting) == (2, 0))
        it.engine.may.release()
        it.engine.may.release()
        assert [(await one)[1] for one in (before, after)] == ["miss", "miss"]
        assert await it.says() == ("Answer 2.", "hit")
        it.check_left()


async def test_a_stream_under_way_is_not_kept(tmp_path: Path) -> None:
    async with forgetful(tmp_path) as it:
        it.engine.halves = True
        asked: dict[str, Any] = {**ASKED, "stream": True}
        client = it.client.with_options(api_key=KEYS["acme"])
        stream = await client.chat.completions.create(**asked)
        chunks = aiter(stream)
        await anext(chunks)
        await it.forget()
        it.engine.may.release()
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])
        assert text == "Answer 1."
        await eventually(lambda: not it.pipeline.live)
        assert it.entries() == {Tier.HOST: 0}


async def test_a_forgotten_answer_is_no_better_than_an_error(tmp_path: Path) -> None:
    """It was found before, for the case that all workers fail."""
    cache = "ttl: 1ms, stale_if_error: 60s, stale_while_revalidate: 0s"
    for forgets in (False, True):
        async with forgetful(tmp_path, cache, "upstream: {max_attempts: 1}\n") as it:
            await it.says()
            await asyncio.sleep(0.01)
            it.engine.status, it.engine.hold = 500, True
            asked = asyncio.create_task(it.says())
            await eventually(lambda: it.engine.calls == 2)
            if forgets:
                await it.forget(prefix="Hello")
            it.engine.may.release()
            if forgets:
                with pytest.raises(openai.InternalServerError):
                    await asked
            else:
                assert await asked == ("Answer 1.", "stale")


async def test_several_at_once(tmp_path: Path) -> None:
    async with forgetful(tmp_path, disk(tmp_path)) as it:
        await it.says()
        await it.says("beta")
        said = await asyncio.gather(*(it.forget(name) for name in ("acme", "beta") * 5))
        assert {one["complete"] for one in said} == {True}
        assert 5 <= max(one["kv"]["epoch"] for one in said if one["tenant"] == "acme") == _epoch(it)
        assert sum(one["answers"]["responses"]["entries"]["disk"] for one in said) == 2
        assert it.entries() == {Tier.HOST: 0, Tier.DISK: 0}
        assert len(audited(tmp_path)) == 10


class Broken:
    """Another keeper of answers, which fails."""

    def forget(self, scope: bytes | None = None, **_: Any) -> Forgotten:
        raise RuntimeError(f"of {len(scope or b'')} bytes")


async def test_who_fails_does_not_hold_up_the_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with forgetful(tmp_path) as it:
        await it.says()
        cache: ResponseCache = it.caching.cache
        it.program.forgetting._keepers = lambda: {"broken": Broken(), "responses": cache}
        said = await it.forget()
        assert said["answers"]["broken"] == {"entries": {}, "waiting": 0, "noted": False, "complete": False}
        assert said["answers"]["responses"]["entries"] == {"host": 1}
        assert (said["complete"], said["audited"]) == (False, True)
        assert "broken: what was to be forgotten may still be there" in caplog.text


async def test_a_record_that_cannot_be_kept_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "audit.jsonl").touch(mode=0o600)
    (tmp_path / "audit.jsonl").chmod(0o666)
    async with forgetful(tmp_path) as it:
        said = await it.forget()
        assert (said["complete"], said["audited"]) == (True, False)
        assert "others may write it" in caplog.text
        assert (tmp_path / "audit.jsonl").read_bytes() == b""
        (tmp_path / "audit.jsonl").unlink()
        (tmp_path / "audit.jsonl").symlink_to(tmp_path / "elsewhere")
        assert (await it.forget())["audited"] is False
        assert not (tmp_path / "elsewhere").exists()


# --- shared by gateways ---------------------------------------------------------------------------------------------


@needs_redis
async def test_gateways_that_share_redis_forget_together(tmp_path: Path) -> None:
    with redis_server() as server:
        cache = f"redis: {{url: '{server.unix_url}', timeout: 2s}}, lookup_timeout: 5s"
        async with forgetful(tmp_path / "a", cache) as one, forgetful(tmp_path / "b", cache) as other:
            both: tuple[Forgetful, ...] = (one, other)
            await eventually(lambda: None not in {it.caching.cache.begin() for it in both})
            assert await one.says() == ("Answer 1.", "miss")
            assert await one.says(text=SECRET) == ("Answer 2.", "miss")
            assert await one.says("beta") == ("Answer 3.", "miss")
            assert one.entries() == {Tier.HOST: 3, Tier.REDIS: 3 + 1}  # and what is forgotten
            assert await other.says() == ("Answer 1.", "hit")
            assert await other.says(text=SECRET) == ("Answer 2.", "hit")
            other.engine.hold = True
            late = asyncio.create_task(other.says(text="My name is late"))
            await eventually(lambda: other.engine.calls == 1)

            said = await one.forget(prefix="My name")
            assert said["answers"]["responses"]["entries"] == {"host": 1, "redis": 1}
            assert said["complete"] is True
            known = other.caching.cache._epochs
            await eventually(lambda: known._table is not None and known._table.position == 1)
            other.engine.hold = False
            other.engine.may.release()
            assert (await late)[1] == "miss"
            assert (await other.says(text="My name is late"))[1] == "miss", "it was under way there"
            assert (await other.says(text=SECRET))[1] == "miss", "though it has it in memory"
            assert (await other.says())[1] == "hit"

            await one.forget()
            names = [name for name in server.do("KEYS", "*") if b"forgotten" not in name]
            assert len(names) == 1, "beta's"
            await eventually(lambda: known._table is not None and known._table.position == 2)
            assert (await other.says())[1] == "miss"
            assert (await other.says("beta"))[1] == "hit"
            assert b"Lovelace" not in b"".join(server.do("GET", name) for name in server.do("KEYS", "*"))


@needs_redis
async def test_where_redis_is_away_it_is_told(tmp_path: Path) -> None:
    with redis_server() as server:
        cache = f"redis: {{url: '{server.unix_url}', timeout: 50ms}}, lookup_timeout: 100ms"
        async with forgetful(tmp_path, cache) as it:
            await eventually(lambda: it.caching.cache.begin() is not None)
            await it.says()
            server.kill()
            said = await it.forget()
            assert said["answers"]["responses"]["noted"] is False
            assert said["answers"]["responses"]["complete"] is False
            assert said["complete"] is False
            assert (await it.says())[0] == "Answer 2."


# --- KV -------------------------------------------------------------------------------------------------------------


async def test_the_salt_of_a_forgotten_tenant_turns_and_stays_so(tmp_path: Path) -> None:
    engine = Engine()
    for life in range(3):
        async with forgetful(tmp_path, engine=engine) as it:
            engine.salts.clear()
            await it.says("acme")
            await it.says("beta")
            assert engine.salts == [tenant_salt(KEY, "acme", epoch=life), tenant_salt(KEY, "beta")]
            said = await it.forget()
            assert said["kv"]["epoch"] == life + 1
            salts, owners = [tenant_salt(KEY, "acme", epoch=life)], [tenant_account(KEY, "acme")]
            assert engine.told[-1] == {"salts": salts, "owners": owners, "dry_run": False}
            await it.says("acme")
            assert engine.salts[-1] == tenant_salt(KEY, "acme", epoch=life + 1)
            await it.says("acme", extra_body={"cache_salt": "own"})
            assert engine.salts[-1] == tenant_salt(KEY, "acme", "own", life + 1)
    assert (tmp_path / "state" / NAME).stat().st_mode & 0o777 == 0o600


async def test_workers_are_asked_and_what_they_say_is_told(tmp_path: Path) -> None:
    async with forgetful(tmp_path, worker=", api_key: the-workers-own") as it:
        body = json.dumps({"found": {"host": 2, "disk": 5}, "left": ["redis"], "complete": True}).encode()
        head = b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        it.engine.forgets = head % (200, len(body)) + body
        assert (await it.forget(dry_run=True))["kv"]["workers"]["w0"]["frames"] == {"host": 2, "disk": 5}
        assert it.engine.told[-1]["dry_run"] is True
        assert b"authorization: bearer the-workers-own" in it.engine.heads[-1].lower()
        assert (await it.forget())["kv"]["workers"] == {
            "w0": {"result": "purged", "frames": {"host": 2, "disk": 5}, "left": ["redis"]}
        }
        unfinished = body.replace(b"true", b"false")
        for answer in (head % (503, 0), head % (200, 2) + b"{}", head % (200, len(unfinished)) + unfinished):
            it.engine.forgets = answer
            said = await it.forget()
            assert said["kv"]["workers"]["w0"]["result"] == "failed"
            assert (said["kv"]["complete"], said["complete"], said["kv"]["noted"]) == (False, False, True)


async def test_a_worker_without_salts_cannot_forget(tmp_path: Path) -> None:
    async with forgetful(tmp_path, worker=", cache_salt: false") as it:
        said = await it.forget()
        assert said["kv"]["workers"] == {"w0": {"result": "not kept apart"}}
        assert (said["complete"], it.engine.told) == (False, [])


async def test_where_the_count_cannot_be_kept_it_holds_until_the_end(tmp_path: Path) -> None:
    async with forgetful(tmp_path) as it:
        (tmp_path / "state").touch()  # where a folder should be
        said = await it.forget()
        assert (said["kv"]["epoch"], said["kv"]["noted"], said["complete"]) == (1, False, False)
        await it.says()
        assert it.engine.salts == [tenant_salt(KEY, "acme", epoch=1)]
        (tmp_path / "state").unlink()
        it.program.take_up_keys()
        await it.says(text="another")
        assert it.engine.salts[-1] == tenant_salt(KEY, "acme", epoch=1)


async def test_gateways_that_share_a_folder_or_are_told_turn_together(tmp_path: Path) -> None:
    soon = "reload: {watch: 50ms}\n"
    async with forgetful(tmp_path, extra=soon) as one, forgetful(tmp_path, extra=soon) as other:
        await one.forget()
        await eventually(lambda: _epoch(other) == 1)
        os.utime(tmp_path / "state" / NAME)  # nothing new
        assert (await other.forget())["kv"]["epoch"] == 2
        await eventually(lambda: _epoch(one) == 2)
    elsewhere = tmp_path / "elsewhere"
    async with forgetful(elsewhere, members=("acme, kv_epoch: 2", "beta")) as told:
        assert _epoch(told) == 2
        assert (await told.forget(kv_epoch=7))["kv"]["epoch"] == 7


def _epoch(gateway: Forgetful) -> int:
    tenancy = gateway.pipeline.tenancy
    assert tenancy is not None
    return tenancy.tenants["acme"].kv_epoch


async def test_of_two_that_count_at_once_neither_repeats_the_other(tmp_path: Path) -> None:
    """Without having seen each other: an epoch that another gateway had is no new one."""
    never = "reload: {watch: 0}\n"
    async with forgetful(tmp_path, extra=never) as one, forgetful(tmp_path, extra=never) as other:
        assert (await one.forget())["kv"]["epoch"] == 1
        assert (await one.forget())["kv"]["epoch"] == 2
        assert (await other.forget())["kv"]["epoch"] == 3
        await other.says()
        assert other.engine.salts == [tenant_salt(KEY, "acme", epoch=3)]


async def test_a_gateway_without_a_control_plane_needs_none_of_it() -> None:
    async with setting() as it:
        assert [(await it.ask())[1], (await it.ask())[1]] == ["miss", "hit"]
