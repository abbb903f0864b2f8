"""What commands have in common: errors of the command line, and files that are written."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, TypeVar

import typer
from rich.console import Console
from rich.text import Text

_Value = TypeVar("_Value")


def told(parse: Callable[[str], _Value]) -> Callable[[str], _Value]:
    """`parse` with its ValueError as one of the command line."""

    def parser(text: str) -> _Value:
        try:
            return parse(text)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    return parser


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
