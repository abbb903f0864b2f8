"""What the commands print when something is wrong, and with which exit code they end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from gateway.config import ConfigError


def plain_table(*columns: str) -> Table:
    """One without lines. What is too long for the terminal goes on below, so that no address is ever cut."""
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def config_file(argument: Path | None, option: Path | None) -> Path | None:
    """The configuration, which may be given either way."""
    if argument is not None and option is not None:
        raise typer.BadParameter(f"give one configuration: {argument} or --config {option}")
    return argument if option is None else option


def fail(message: str) -> NoReturn:
    """Print `message` to standard error and end with exit code 1."""
    Console(stderr=True).print(Text.assemble(("prefixgate: ", "bold red"), message), soft_wrap=True)
    raise typer.Exit(1)


def fail_to_listen(error: Exception) -> NoReturn:
    """Of a worker, whose ports are several; whoever raised it says which."""
    text = error.strerror or str(error) if isinstance(error, OSError) else str(error)
    fail(f"cannot listen: {text}; choose others with --port and --kv-port")


def fail_config(error: ConfigError, *, exit_code: int = 1) -> NoReturn:
    """Print every problem of a configuration to standard error and end with `exit_code`."""
    console = Console(stderr=True)
    count = len(error.problems)
    heading = f"{count} {'problem' if count == 1 else 'problems'}"
    console.print(Text.assemble((error.source, "bold"), ": ", (heading, "bold red")), soft_wrap=True)
    for problem in error.problems:
        where = f"line {problem.line}: " if problem.line else ""
        path = f"{problem.path}: " if problem.path else ""
        console.print(Text.assemble("  ", (where, "dim"), (path, "bold cyan"), problem.text), soft_wrap=True)
    raise typer.Exit(exit_code)
