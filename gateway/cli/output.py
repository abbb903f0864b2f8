"""What commands have in common: errors of the command line, and files that are written."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

import typer
from rich.console import Console
from rich.text import Text


def write(command: str, file: str, content: bytes) -> None:
    """To that file, or to stdout for "-"; leaves the program where it cannot be written."""
    if file == "-":
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
        return
    try:
        Path(file).write_bytes(content)
    except OSError as error:
        stop(command, f"{file}: cannot be written: {error.strerror}")


def stop(command: str, message: str) -> NoReturn:
    """Leave the program with 2."""
    Console(stderr=True).print(Text.assemble((f"{command}: ", "bold red"), message), soft_wrap=True)
    raise typer.Exit(2)
