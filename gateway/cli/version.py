"""`prefixgate version`."""

from __future__ import annotations

import platform

import typer

from gateway import __version__


def version() -> None:
    """Print the version of prefixgate and of Python.

    [dim]Example:[/]

        prefixgate version
    """
    typer.echo(f"prefixgate {__version__} (Python {platform.python_version()})")
