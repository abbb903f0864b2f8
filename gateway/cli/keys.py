"""`prefixgate keys`: make, list and revoke the API keys of tenants. Only digests are ever written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.console import Console
from rich.markup import escape

from gateway.api_keys import KeyDigest, digest_of, key_id, new_key, read_digest, written
from gateway.cli.console import fail, fail_config, plain_table
from gateway.config import Config, ConfigError, load_config
from gateway.keys_file import add_key, read_keys, remove_key

_CONFIG = typer.Option("--config", "-c", metavar="FILE", help="Configuration whose tenants and `keys_file` to use.")
_FILE = typer.Option("--file", "-f", metavar="FILE", help="File of keys, in place of the configuration's.")

keys = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="""Make, list and revoke the API keys of tenants.

[dim]A key is shown once, when it is made; files hold its digest alone:[/]

    prefixgate keys new acme -c prefixgate.yaml

    prefixgate keys list -c prefixgate.yaml

    prefixgate keys revoke 3f9a2c71b0de -c prefixgate.yaml

[dim]A gateway that runs takes up a changed file of keys within seconds.[/]""",
)


class _Known(NamedTuple):
    """A key that is in force."""

    tenant: str
    digest: KeyDigest
    created: str
    place: str


@keys.command()
def new(
    tenant: Annotated[str, typer.Argument(help="Whose key it is.")],
    config: Annotated[Path | None, _CONFIG] = None,
    file: Annotated[Path | None, _FILE] = None,
) -> None:
    """Make a key and print it: the only time that it is seen.

    Its digest goes into the file of keys; without one it is printed, for `keys` of the tenant in the configuration.

    [dim]Example:[/]

        prefixgate keys new acme --file keys.json
    """
    settings = None if config is None else _loaded(config)
    if settings is not None:
        names = [each.name for each in settings.tenants.members]
        if tenant not in names:
            fail(f"{config} has no tenant {tenant}; it has {', '.join(names) or 'none'}")
    elif not tenant or len(tenant) > 64 or not tenant.isascii() or not tenant.isprintable() or " " in tenant:
        fail("a tenant's name is up to 64 visible ASCII characters, without spaces")
    target = file or (None if settings is None else settings.tenants.keys_file)
    key = new_key()
    digest = digest_of(key.encode())
    told = Console(stderr=True, highlight=False, soft_wrap=True)
    if target is not None:
        try:
            add_key(target, tenant, digest)
        except ConfigError as error:
            fail_config(error)
        told.print(f"[bold green]✓[/] key [bold]{key_id(digest)}[/] of {escape(tenant)} is in {escape(str(target))}")
    else:
        told.print(f"[bold]digest[/] for tenants.members[].keys of {escape(tenant)}: {written(digest)}", markup=True)
    told.print("[bold]key[/], shown this once:")
    typer.echo(key)


@keys.command("list")
def list_(
    config: Annotated[Path | None, _CONFIG] = None,
    file: Annotated[Path | None, _FILE] = None,
) -> None:
    """Show which keys there are: whose, a short id, since when, and where.

    [dim]Example:[/]

        prefixgate keys list -c prefixgate.yaml
    """
    table = plain_table("tenant", "id", "created", "where")
    for known in _known(config, file):
        table.add_row(escape(known.tenant), key_id(known.digest), known.created, escape(known.place))
    Console(highlight=False, soft_wrap=True).print(table)


@keys.command()
def revoke(
    id: Annotated[str, typer.Argument(metavar="ID", help="The key's id as `list` shows it, or its digest.")],  # noqa: A002 - the name that the help shows
    config: Annotated[Path | None, _CONFIG] = None,
    file: Annotated[Path | None, _FILE] = None,
) -> None:
    """Take a key out of the file of keys: from then on it opens nothing.

    [dim]Example:[/]

        prefixgate keys revoke 3f9a2c71b0de --file keys.json
    """
    wanted = id.removeprefix("sha256:").lower()
    found = [known for known in _known(config, file) if known.digest.hex().startswith(wanted)]
    if len(wanted) < 8 or not found:
        fail(f"there is no key {id}" if len(wanted) >= 8 else "an id has at least 8 digits")
    if len({known.digest for known in found}) > 1:
        fail(f"several keys begin with {id}; give more digits")
    target = _keys_file(config, file)
    try:
        removed = target is not None and remove_key(target, written(found[0].digest))
    except ConfigError as error:
        fail_config(error)
    left = [known.place for known in found if known.place != str(target)]
    if left:
        fail(f"key {key_id(found[0].digest)} stands in {left[0]}: take it out there")
    if removed:
        done = f"[bold green]✓[/] key [bold]{key_id(found[0].digest)}[/] of {escape(found[0].tenant)} is revoked"
        Console(stderr=True, highlight=False, soft_wrap=True).print(done)


def _known(config: Path | None, file: Path | None) -> Sequence[_Known]:
    """All keys, those of the configuration first."""
    target = _keys_file(config, file)
    known: list[_Known] = []
    if config is not None:
        for tenant in _loaded(config).tenants.members:
            known += [_Known(tenant.name, read_digest(key.get_secret_value()), "–", str(config)) for key in tenant.keys]
    if target is None:
        return known
    try:
        entries = read_keys(target)
    except ConfigError as error:
        fail_config(error)
    return known + [
        _Known(entry.tenant, read_digest(entry.digest), entry.created.isoformat(timespec="seconds"), str(target))
        for entry in entries
    ]


def _keys_file(config: Path | None, file: Path | None) -> Path | None:
    if config is None and file is None:
        raise typer.BadParameter("give --config FILE or --file FILE")
    return file if file is not None or config is None else _loaded(config).tenants.keys_file


def _loaded(config: Path) -> Config:
    try:
        return load_config(config)
    except ConfigError as error:
        fail_config(error)
