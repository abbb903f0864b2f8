"""`prefixgate forget`: have running gateways forget what they keep of a tenant."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import quote

import aiohttp
import orjson
import typer
from rich.console import Console
from rich.markup import escape

from backends.address import place
from backends.trouble import trouble_of
from gateway.cli.console import fail, fail_config
from gateway.config import Config, ConfigError, load_config
from gateway.config.control import Admin

_TIMEOUT: Final = 120.0
_WHERE: Final = {"host": "in memory", "disk": "on disk", "redis": "in Redis"}
_MOST_BYTES: Final = 1 << 20
_SHOWN: Final = ("id", "tenant", "dry_run", "rule", "answers", "kv", "complete", "audited")
_TOKEN: Final = "PREFIXGATE_ADMIN_TOKEN"  # noqa: S105 - the name of a variable


def forget(
    tenant: Annotated[str, typer.Argument(help="Whose; [bold]default[/] where the gateway has no tenants.")],
    model: Annotated[str | None, typer.Option(metavar="NAME", help="Answers of this model only.")] = None,
    older_than: Annotated[
        str | None, typer.Option(metavar="TIME", help="Answers stored longer ago than that only: 30m, 12h.")
    ] = None,
    prefix: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Answers to prompts that begin so only; 256 characters are compared."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count, and forget nothing.")] = False,
    admin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL",
            help="Control plane of a gateway, once for each. [dim]default: that of --config, else http://127.0.0.1:9400[/]",
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", metavar="FILE", help="Configuration with the gateway's `admin`.")
    ] = None,
    token: Annotated[
        str | None, typer.Option(metavar="TOKEN", envvar=_TOKEN, help="As in `admin.token`; better in the variable.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the gateways' answers, one a line.")] = False,
) -> None:
    r"""Have running gateways forget what they keep of a tenant.

    All its answers and, on all workers, its KV; or some of its answers. It is out of reach at once. Ends with 1 where
    something could not be done: what is left is not read, but may lie where it was.

    [dim]Examples:[/]

        prefixgate forget acme -c prefixgate.yaml --dry-run

        prefixgate forget acme --older-than 12h \
            --admin http://10.0.0.1:9400 --admin http://10.0.0.2:9400
    """
    settings = None if config is None else _loaded(config).admin
    urls = admin or [_url_of(settings)]
    for url in urls:
        if not url.startswith(("http://", "https://")):
            raise typer.BadParameter(f"--admin: expected a URL such as http://127.0.0.1:9400; given {url}")
    if token is None and settings is not None and settings.token is not None:
        token = settings.token.get_secret_value()
    given = {"model": model, "older_than": older_than, "prefix": prefix}
    fields: dict[str, object] = {name: value for name, value in given.items() if value is not None}
    if dry_run:
        fields["dry_run"] = True
    answers, troubles = asyncio.run(_ask_all(urls, tenant, fields, token))
    for url, answer in answers.items():
        if as_json:
            typer.echo(orjson.dumps({"admin": url, **answer}).decode())
        else:
            _print(url, answer)
    epochs = {answer["kv"]["epoch"] for answer in answers.values() if answer["kv"] is not None}
    if len(epochs) > 1 and not dry_run:
        troubles.append(f"the gateways have counted differently: set kv_epoch: {max(epochs)} of {tenant} for all")
    if troubles:
        fail("; ".join(troubles))
    if not all(answer["complete"] and answer["audited"] for answer in answers.values()):
        raise typer.Exit(1)


class _RefusedError(Exception):
    """What a gateway answered, or why it did not."""


async def _ask_all(
    urls: list[str], tenant: str, fields: Mapping[str, object], token: str | None
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Answers, and what went wrong. One gateway after the other: each is told how far those before it have counted."""
    answers: dict[str, dict[str, Any]] = {}
    troubles: list[str] = []
    epoch = 0
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT, connect=10.0)
    async with aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()) as session:
        for url in urls:
            try:
                answer = answers[url] = await _ask(session, url, tenant, {**fields, "kv_epoch": epoch}, token)
            except _RefusedError as error:
                troubles.append(f"{url}: {error}")
                continue
            if answer["kv"] is not None and not answer["dry_run"]:
                epoch = max(epoch, answer["kv"]["epoch"])
    return answers, troubles


async def _ask(
    session: aiohttp.ClientSession, url: str, tenant: str, fields: Mapping[str, object], token: str | None
) -> dict[str, Any]:
    headers = {"content-type": "application/json"} | ({} if token is None else {"authorization": f"Bearer {token}"})
    where = f"{url.rstrip('/')}/admin/tenants/{quote(tenant, safe='')}/cache"
    body = bytearray()
    try:
        async with session.delete(where, data=orjson.dumps(fields), headers=headers, allow_redirects=False) as response:
            async for piece in response.content.iter_any():
                body += piece
                if len(body) > _MOST_BYTES:
                    break
    except (aiohttp.ClientError, OSError, ValueError) as error:  # a TimeoutError is an OSError
        raise _RefusedError(f"cannot be asked: {trouble_of(error)}") from None
    try:
        answer: dict[str, Any] = orjson.loads(body)
        if response.status == HTTPStatus.OK:
            return {name: answer[name] for name in _SHOWN}
        message = str(answer["error"]["message"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        message = f"status {response.status}, and nothing that a gateway says: is this its control plane?"
    raise _RefusedError(message)


def _print(url: str, answer: Mapping[str, Any]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    verb = "would forget" if answer["dry_run"] else "forgot"
    mark = "[bold green]✓[/]" if answer["complete"] and answer["audited"] else "[bold yellow]![/]"
    console.print(f"{mark} {escape(url)} {verb} [bold]{escape(answer['tenant'])}[/], record {answer['id']}")
    for name, one in answer["answers"].items():
        console.print(f"  {name}: {_counts(one['entries'])}{_unfinished(one)}")
    kv = answer["kv"]
    if kv is not None:
        console.print(f"  KV: epoch {kv['epoch']}{_unfinished(kv)}")
        for worker, one in kv["workers"].items():
            frames = f", {_counts(one['frames'])}" if one.get("frames") else ""
            console.print(f"    {escape(worker)}: {one['result']}{frames}")
    if not answer["audited"]:
        console.print("  the record could not be written: see the gateway's log")


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{n} {_WHERE.get(tier, tier)}" for tier, n in counts.items()) or "none"


def _unfinished(one: Mapping[str, Any]) -> str:
    if not one["noted"]:
        return "; not noted down: it holds in this gateway until it stops"
    return "" if one["complete"] else "; not all could be removed: what is left is not read"


def _url_of(admin: Admin | None) -> str:
    settings = admin or Admin()
    if not settings.port:
        fail("the configuration names no port of the control plane: give --admin URL")
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)  # noqa: S104 - compared with, not bound to
    return f"http://{place(host, settings.port)}"


def _loaded(config: Path) -> Config:
    try:
        return load_config(config)
    except ConfigError as error:
        fail_config(error)
