"""What is wrong with a configuration, in words that name the field, what was expected and what was given."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, get_args

from pydantic import BaseModel

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

Location = tuple[str | int, ...]
"""Keys and list positions from the top of the file to a value."""

_LONGEST_SHOWN: Final = 60
_SECRET_KEYS: Final = frozenset({"api_key", "token", "headers", "keys", "salt_key", "encryption_key", "redis"})


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing to mend. `line` counts from 1, or is None where the problem has no line."""

    path: str
    text: str
    line: int | None = None

    def __str__(self) -> str:
        where = f"line {self.line}: " if self.line else ""
        return f"{where}{self.path}: {self.text}" if self.path else f"{where}{self.text}"


class ConfigError(Exception):
    """A configuration that cannot be used; `problems` holds all that was found, in the file's order."""

    def __init__(self, source: str, problems: Iterable[Problem]) -> None:
        self.source = source
        self.problems = sorted(problems, key=lambda problem: problem.line or 0)
        super().__init__(source, self.problems)

    def __str__(self) -> str:
        count = len(self.problems)
        lines = "".join(f"\n  {problem}" for problem in self.problems)
        return f"{self.source}: {count} {'problem' if count == 1 else 'problems'}{lines}"

    @property
    def in_a_line(self) -> str:
        """The same for a log, whose entries are lines."""
        return f"{self.source}: {'; '.join(map(str, self.problems))}"


@dataclass(frozen=True, slots=True)
class Origins:
    """Where values came from: the line of each, and the variables in those that hold one."""

    lines: Mapping[Location, int] = field(default_factory=dict)
    variables: Mapping[Location, str] = field(default_factory=dict)

    def line(self, location: Location) -> int | None:
        """Line of a value, or of the closest section around it."""
        for end in range(len(location), -1, -1):
            if location[:end] in self.lines:
                return self.lines[location[:end]]
        return None


def field_path(location: Location) -> str:
    """`("workers", 1, "url")` as people write it: `workers[1].url`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return text.removeprefix(".")


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that looks most like `word`, or None when none is close."""
    matches = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return matches[0] if matches else None


def problems_of(errors: Iterable[ErrorDetails], model: type[BaseModel], origins: Origins) -> list[Problem]:
    """Translate pydantic's errors about `model`."""
    problems: list[Problem] = []
    for error in errors:
        if _follows_from_another(error):
            continue
        if error["type"] == "inconsistent":
            found: list[Problem] = error["ctx"]["problems"]
            problems += [replace(problem, line=_line_of_path(problem.path, origins)) for problem in found]
            continue
        location = error["loc"]
        text = _text(error, location, model, origins)
        problems.append(Problem(field_path(location), text, origins.line(location)))
    return problems


def _follows_from_another(error: ErrorDetails) -> bool:
    """A default that could not be made from a bad field; a list too short once its bad items are out."""
    if error["type"] == "too_short":
        return len(error["input"]) >= int(error["ctx"]["min_length"])
    return error["type"] == "default_factory_not_called"


def _line_of_path(path: str, origins: Origins) -> int | None:
    parts = re.findall(r"[^.\[\]]+", path)
    return origins.line(tuple(int(part) if part.isdecimal() else part for part in parts))


def _text(error: ErrorDetails, location: Location, model: type[BaseModel], origins: Origins) -> str:
    if error["type"] == "missing":
        return "required, but not given"
    if error["type"] == "extra_forbidden":
        return _unknown_key(location, model)
    expected = _expected(error)
    if error["type"] == "literal_error":
        choice = nearest(str(error["input"]), re.findall(r"'([^']*)'", str(error["ctx"]["expected"])))
        expected += f" (did you mean {choice}?)" if choice else ""
    return f"expected {expected}; given {_given(error['input'], location, origins)}"


_EXPECTED: Final = {
    "bool_type": "true or false",
    "dict_type": "a section of settings",
    "float_type": "a number",
    "finite_number": "a finite number",
    "int_from_float": "a whole number",
    "int_type": "a whole number",
    "is_instance_of": "a path",
    "model_type": "a section of settings",
    "path_type": "a path",
    "string_type": "text",
    "tuple_type": "a list",
}
_BOUNDS: Final = {
    "greater_than": ("gt", "more than {}"),
    "greater_than_equal": ("ge", "at least {}"),
    "less_than": ("lt", "less than {}"),
    "less_than_equal": ("le", "at most {}"),
    "too_short": ("min_length", "a list of at least {}"),
    "string_too_short": ("min_length", "text of at least {} characters"),
    "string_too_long": ("max_length", "text of at most {} characters"),
}


def _expected(error: ErrorDetails) -> str:
    kind = error["type"]
    if kind in _EXPECTED:
        return _EXPECTED[kind]
    if kind in _BOUNDS:
        key, text = _BOUNDS[kind]
        bound = error["ctx"][key]
        return text.format(int(bound) if bound == int(bound) else bound)
    if kind == "literal_error":
        return "one of " + str(error["ctx"]["expected"]).replace("'", "").replace(" or ", ", ")
    return error["msg"]


def _given(value: object, location: Location, origins: Origins) -> str:
    """The value as it may be shown: never one from the environment, never a key or a password."""
    if location in origins.variables:
        return f"the value of {origins.variables[location]}"
    if any(part in _SECRET_KEYS for part in location):
        return "a value that is not shown"
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "a section of settings"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    text = re.sub(r"//[^/\s]*@", "//***@", str(value))
    text = text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "…"
    text = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
    return f'"{text}"' if isinstance(value, str) else text


def _unknown_key(location: Location, model: type[BaseModel]) -> str:
    key = str(location[-1])
    section = _section_at(location[:-1], model)
    known = list(section.model_fields) if section else []
    near = nearest(key, known)
    if near:
        return f"unknown setting; did you mean {near}?"
    elsewhere = [path for path in setting_paths(model) if path.rpartition(".")[2] == key]
    if elsewhere:
        return f"unknown setting here; did you mean {' or '.join(elsewhere)}?"
    return f"unknown setting; known here: {', '.join(known)}"


def _section_at(location: Location, model: type[BaseModel]) -> type[BaseModel] | None:
    section: type[BaseModel] | None = model
    for part in location:
        if isinstance(part, int):
            continue
        field_info = section.model_fields.get(part) if section else None
        section = section_in(field_info.annotation) if field_info else None
    return section


def section_in(annotation: object) -> type[BaseModel] | None:
    """The model inside an annotation such as `Model`, `Model | None` or `tuple[Model, ...]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := section_in(part))), None)


def is_list(annotation: object) -> bool:
    """Whether an annotation, optional or not, is a list of values."""
    return getattr(annotation, "__origin__", None) is tuple or any(is_list(part) for part in get_args(annotation))


def setting_paths(model: type[BaseModel], prefix: str = "") -> list[str]:
    """Every setting below `model`, sections included: `listen`, `listen.host`, … `workers[].url`."""
    paths: list[str] = []
    for name, info in model.model_fields.items():
        path = f"{prefix}{name}{'[]' if is_list(info.annotation) else ''}"
        paths.append(path)
        section = section_in(info.annotation)
        if section:
            paths += setting_paths(section, f"{path}.")
    return paths
