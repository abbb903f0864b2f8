"""YAML text to plain values, with the line of each and `${NAME}` filled in from the environment.

Stricter than YAML 1.1 where that surprises people: a key given twice is an error, and only `true` and `false`
are truth values (`no` and `on` stay text, dates too).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import yaml

from gateway.config.problems import Location, Origins, Problem, field_path

_VARIABLE: Final = re.compile(r"\$\$\{|\$\{([^}]*)\}")
_NAME: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)
_INTEGER: Final = re.compile(r"(?=.{1,40}$)[-+]?[0-9]+(_[0-9]+)*")
_NUMBER: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_WORDS: Final[dict[str, object]] = {
    "": None, "~": None, "null": None, "true": True, "false": False, ".inf": math.inf, ".nan": math.nan
}  # fmt: skip


@dataclass(slots=True)
class YamlSource:
    """Values of a YAML text and where they came from. With `problems` the values are not to be used."""

    value: object = None
    problems: list[Problem] = field(default_factory=list)
    lines: dict[Location, int] = field(default_factory=dict)
    variables: dict[Location, str] = field(default_factory=dict)

    @property
    def origins(self) -> Origins:
        """Where each value came from."""
        return Origins(self.lines, self.variables)


def read_yaml(text: str, environment: Mapping[str, str]) -> YamlSource:
    """Read one YAML document; what is wrong with it stands in the result's `problems`.

    A text that is no YAML leaves `value` None.
    """
    source = YamlSource()
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if root is not None:
            source.value = _Reader(source, environment).read(root, ())
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        source.problems.append(Problem("", f"not valid YAML: {error.problem or error.context}", line))
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        source.problems.append(Problem("", f"not valid YAML: the character {chr(error.character)!r}", line))
    except RecursionError:
        source.problems.append(Problem("", "nested too deeply"))
    return source


class _Reader:
    """Walks the composed nodes once."""

    def __init__(self, source: YamlSource, environment: Mapping[str, str]) -> None:
        self._source = source
        self._environment = environment
        self._open: set[int] = set()

    def read(self, node: yaml.Node, at: Location) -> object:
        self._source.lines.setdefault(at, node.start_mark.line + 1)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, at)
        if id(node) in self._open:
            self._problem(node, at, "an alias that contains itself")
            return None
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.SequenceNode):
                return [self.read(item, (*at, position)) for position, item in enumerate(node.value)]
            return self._mapping(node, at)
        finally:
            self._open.discard(id(node))

    def _mapping(self, node: yaml.Node, at: Location) -> dict[str, object]:
        values: dict[str, object] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self._problem(key_node, at, "a key must be a word")
                continue
            key = str(key_node.value)
            if key in values:
                first = self._source.lines[(*at, key)]
                self._problem(key_node, (*at, key), f"given twice, first on line {first}")
                continue
            self._source.lines[(*at, key)] = key_node.start_mark.line + 1
            values[key] = self.read(value_node, (*at, key))
        return values

    def _scalar(self, node: yaml.ScalarNode, at: Location) -> object:
        text = self._fill_in(node, at)
        return _plain_value(text) if node.style is None else text

    def _fill_in(self, node: yaml.ScalarNode, at: Location) -> str:
        def replaced(match: re.Match[str]) -> str:
            if match[1] is None:
                return "${"
            parts = _NAME.fullmatch(match[1])
            if parts is None:
                self._problem(node, at, f"{match[0]} is not ${{NAME}} or ${{NAME:-default}}")
                return ""
            name, default = parts.groups()
            self._source.variables[at] = f"${{{name}}}"
            value = self._environment.get(name) or default
            if value is None:
                self._problem(node, at, f"the environment variable {name} is not set, or empty")
                return ""
            return str(value)

        return _VARIABLE.sub(replaced, str(node.value))

    def _problem(self, node: yaml.Node, at: Location, text: str) -> None:
        self._source.problems.append(Problem(field_path(at), text, node.start_mark.line + 1))


def _plain_value(text: str) -> object:
    """The value of an unquoted scalar."""
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _NUMBER.fullmatch(text) else text
