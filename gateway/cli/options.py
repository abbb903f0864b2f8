"""How the options of commands are declared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import typer

_Text = TypeVar("_Text")
_Value = TypeVar("_Value")


def option(panel: str, text: str, *names: str, **more: Any) -> Any:
    """One that the help shows in that panel, for `Annotated`."""
    return typer.Option(*names, help=text, rich_help_panel=panel, **more)


def told(parse: Callable[[_Text], _Value]) -> Callable[[_Text], _Value]:
    """`parse` with its ValueError as one of the command line."""

    def parser(text: _Text) -> _Value:
        try:
            return parse(text)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    return parser
