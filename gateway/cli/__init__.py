"""The command line. Each command is a module of this package; only the one that is called is imported."""

from __future__ import annotations

import importlib
import inspect
import sys
from typing import Annotated, Final

import typer

from gateway import __version__

COMMANDS: Final = (
    "demo",
    "serve",
    "check",
    "worker",
    "simulate",
    "replay",
    "plan",
    "version",
    "forget",
    "keys",
    "fetch",
)
"""Each is a function, or an application of several, of the same name in the module of the same name, in the order of
the help text.
"""

_HELP: Final = """Send each LLM request to the worker that already holds its prefix.

prefixgate is an OpenAI-compatible gateway in front of a fleet of engines such as vLLM.

[dim]Two workers behind one address:[/]

    prefixgate serve -w http://127.0.0.1:8001 -w http://127.0.0.1:8002

[dim]No GPU at hand? Engines without weights to try it on:[/]

    prefixgate simulate -n 2

[dim]A small engine of our own, with a model that is inside:[/]

    prefixgate worker
"""


def _flowing(text: str) -> str:
    """Each paragraph in one line, so that it breaks where the terminal ends; what is indented stays as it is."""
    paragraphs = text.split("\n\n")
    return "\n\n".join(each if each.startswith(" ") else " ".join(each.splitlines()) for each in paragraphs)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"prefixgate {__version__}")
        raise typer.Exit


def _options(
    _version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and leave.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Options before the command."""


def application(command: str | None = None) -> typer.Typer:
    """Build the command line; with `command`, only that one is imported and known."""
    app = typer.Typer(
        name="prefixgate",
        help=_HELP,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
        pretty_exceptions_enable=False,
    )
    app.callback(help=_HELP)(_options)
    for name in (command,) if command in COMMANDS else COMMANDS:
        module = importlib.import_module(f"gateway.cli.{name}")
        found = getattr(module, str(name))
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=name)
        else:
            app.command(name, help=_flowing(inspect.getdoc(found) or ""))(found)
    return app


def main() -> None:
    """Entry point of the `prefixgate` program."""
    application(sys.argv[1] if len(sys.argv) > 1 else None)(prog_name="prefixgate")
