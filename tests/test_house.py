"""Rules of the house that no other tool checks: floors, reasons, words, versions."""

from __future__ import annotations

import ast
import io
import os
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
FLOORS = ("gateway", "backends", "cache", "policies")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def product_files() -> list[Path]:
    return [path for floor in FLOORS for path in sorted((ROOT / floor).rglob("*.py"))]


def python_files() -> list[Path]:
    return [*product_files(), *sorted((ROOT / "tests").rglob("*.py"))]


def written_files() -> list[Path]:
    """What people write and read: code and documents, not data."""
    names = ("*.md", "*.toml", "Makefile", ".ci/*", "docs/**/*.md", "docs/**/*.yaml")
    return [*python_files(), *(path for name in names for path in sorted(ROOT.glob(name)))]


# --- the four floors ---------------------------------------------------------------------------------------

LINT_IMPORTS = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", LINT_IMPORTS],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


def test_imports_only_point_down() -> None:
    result = lint_imports(ROOT)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_rule_sees_every_import_that_points_up(tmp_path: Path) -> None:
    upward = [(low, high) for at, high in enumerate(FLOORS) for low in FLOORS[at + 1 :]]
    for floor in FLOORS:
        (tmp_path / floor).mkdir()
        (tmp_path / floor / "__init__.py").touch()
        (tmp_path / floor / "core.py").touch()
    for low, high in upward:
        # Inside a function, where it is easiest to overlook.
        (tmp_path / low / f"to_{high}.py").write_text(f"def late():\n    import {high}.core\n")
    (tmp_path / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    result = lint_imports(tmp_path)
    assert result.returncode == 1, result.stdout + result.stderr
    for low, high in upward:
        assert f"{low}.to_{high} -> {high}.core" in result.stdout


# --- what the code may not do ------------------------------------------------------------------------------

UNSAFE_MODULES = {"cloudpickle", "dill", "marshal", "pickle", "shelve"}
UNSAFE_CALLS = {"eval", "exec", "hash"}


def unsafe_uses(source: str) -> Iterator[str]:
    """Names by which data could become code, or keys depend on the process (`hash`)."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] in UNSAFE_MODULES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in UNSAFE_MODULES:
            yield str(node.module)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in UNSAFE_CALLS:
            yield node.func.id


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import pickle", ["pickle"]),
        ("from dill import loads", ["dill"]),
        ("hash(eval('x'))", ["hash", "eval"]),
    ],
)
def test_unsafe_uses_are_seen(source: str, found: list[str]) -> None:
    assert list(unsafe_uses(source)) == found


def test_nothing_turns_data_into_code() -> None:
    assert {
        str(path): list(unsafe_uses(path.read_text())) for path in product_files() if [*unsafe_uses(path.read_text())]
    } == {}


POSSESSIVE_GROUP = re.compile(rb"\)(?:[*+?]|\{[0-9,]+\})\+")


def possessive_groups(source: str) -> Iterator[bytes]:
    """Texts with a group that is repeated possessively: before Python 3.11.5, and so on Debian 12, it keeps what its
    last round has read even if that round failed (gh-106052). A greedy one does as well, or an atomic group around it.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
            text = node.value.encode("utf-8", "surrogatepass") if isinstance(node.value, str) else node.value
            if POSSESSIVE_GROUP.search(text):
                yield text


@pytest.mark.parametrize(
    ("pattern", "seen"),
    [("(?:ab?c)++", True), ("(a)*+", True), ("(a)?+", True), ("(a){1,3}+", True), ("(?:[^a]++|b)+ [+*]++", False)],
)
def test_possessive_groups_are_seen(pattern: str, seen: bool) -> None:
    for prefix in "r", "rb":
        assert [*possessive_groups(f"x = {prefix}'{pattern}'")] == ([pattern.encode()] if seen else [])


def test_no_group_is_repeated_possessively() -> None:
    found = {path.relative_to(ROOT).as_posix(): [*possessive_groups(path.read_text())] for path in product_files()}
    # Its file says why this one does no harm.
    assert {path: texts for path, texts in found.items() if texts} == {
        "gateway/model_rewrite.py": [rb'"(?:[^"\\]++|\\.)*+"']
    }


MODEL_USERS = {"cache/minilm_torch.py", "cache/minilm_weights.py"}
"""The local model of the semantic cache; torch is imported where it is installed, and numpy computes without it."""


def test_torch_stays_in_the_torch_worker() -> None:
    users = [
        path.relative_to(ROOT)
        for path in product_files()
        if re.search(r"^\s*(import|from) (torch|safetensors)\b", path.read_text(), re.MULTILINE)
    ]
    assert {path.as_posix() for path in users if path.parts[:2] != ("backends", "worker")} == MODEL_USERS


# --- exceptions carry their reason -------------------------------------------------------------------------

EXCEPTION = re.compile(r"#\s*(ruff: noqa|noqa|type: ignore|mypy:|pragma:)", re.IGNORECASE)
WITH_REASON = re.compile(r"# ((ruff: )?noqa: [A-Z]+\d+(, [A-Z]+\d+)*( - |  # )|type: ignore\[[a-z, -]+\]  # )\S.{4,}")


def unreasoned_exceptions(source: str) -> list[str]:
    comments = (
        token.string
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    )
    return [text for text in comments if EXCEPTION.search(text) and not WITH_REASON.search(text)]


@pytest.mark.parametrize(
    ("comment", "reasoned"),
    [
        ("# noqa", False),
        ("# noqa: S104", False),
        ("# type: ignore", False),
        ("# type: ignore[arg-type]", False),
        ("# ruff: noqa: E501", False),
        ("# ruff: noqa: E501 - a table of URLs", True),
        ("# noqa: S104 - compared with, not bound to", True),
        ("# noqa: S104  # compared with, not bound to", True),
        ("# type: ignore[arg-type]  # refused on purpose here", True),
        ("# an ordinary remark", True),
    ],
)
def test_a_reason_is_recognised(comment: str, reasoned: bool) -> None:
    assert (unreasoned_exceptions(f"x = 1  {comment}\n") == []) is reasoned


def test_every_lint_exception_carries_its_reason() -> None:
    found = {str(path.relative_to(ROOT)): unreasoned_exceptions(path.read_text()) for path in python_files()}
    assert {path: comments for path, comments in found.items() if comments} == {}
    text = (ROOT / "pyproject.toml").read_text()
    ignored = re.findall(r'^    "[A-Z]+\d*",(.*)$', text, re.MULTILINE)
    assert len(ignored) > 10
    assert [line for line in ignored if not re.match(r" # \S", line)] == []


# --- words -------------------------------------------------------------------------------------------------

UNWANTED = {
    "an unfinished note": re.compile(r"\b(TODO|FIXME|XXX|HACK)\b"),
    "a path of one machine": re.compile(r"(?<![\w.:/])/(home|root|work|Users)/\w"),
    "a merge that is not done": re.compile(r"^(<{7}|>{7}) ", re.MULTILINE),
    "a licence header; LICENSE says it once": re.compile(r"SPDX-License|^# Copyright", re.MULTILINE),
}


@pytest.mark.parametrize("what", UNWANTED)
def test_no_file_contains(what: str) -> None:
    pattern = UNWANTED[what]
    files = [path for path in written_files() if path != Path(__file__)]
    found = {str(path.relative_to(ROOT)): pattern.findall(path.read_text()) for path in files}
    assert {path: matches for path, matches in found.items() if matches} == {}


def test_every_module_says_what_it_is() -> None:
    assert [str(path) for path in python_files() if not ast.get_docstring(ast.parse(path.read_text()))] == []


# --- versions ----------------------------------------------------------------------------------------------


def test_constraints_pin_every_dependency_inside_its_range() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    exact = {canonicalize_name(pin.name): next(iter(pin.specifier)) for pin in pins}
    assert {specifier.operator for specifier in exact.values()} == {"=="}
    project = PYPROJECT["project"]
    wanted = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    for requirement in map(Requirement, wanted):
        if requirement.name == project["name"]:
            continue  # an extra that takes in another one
        version = exact[canonicalize_name(requirement.name)].version
        assert requirement.specifier.contains(version), f"{requirement} does not allow {version}"


def test_torch_is_only_in_an_extra() -> None:
    names = {Requirement(text).name for text in PYPROJECT["project"]["dependencies"]}
    assert not names & {"torch", "safetensors", "numpy", "transformers", "usearch"}


def test_continuous_integration_runs_what_a_developer_runs() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert "make test" in script.read_text()


# --- the tests themselves ----------------------------------------------------------------------------------


def test_a_failed_test_that_hangs_while_it_clears_away_is_ended(tmp_path: Path) -> None:
    test = tmp_path / "test_hangs.py"
    test.write_text(
        "import time\n"
        "import pytest\n"
        "@pytest.fixture\n"
        "def endless():\n"
        "    yield\n"
        "    time.sleep(600)\n"
        "def test_fails(endless):\n"
        "    assert False\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "--timeout", "1", str(test)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=50, check=False)
    assert run.returncode == 1
    assert "time.sleep(600)" in run.stdout + run.stderr
