"""The documents are true: settings, commands, examples and links."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from gateway.cli import COMMANDS, application
from gateway.config import Config, parse_config
from gateway.config.problems import section_in, setting_paths
from gateway.config.reference import reference

ROOT = Path(__file__).parent.parent
DOCUMENTS = [path for folder in (".", "docs", "deploy") for path in sorted((ROOT / folder).glob("*.md"))]


def code_blocks(text: str, *languages: str) -> Iterator[str]:
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        if language in languages:
            yield block


def shell_lines() -> list[str]:
    """Commands in the documents' shell blocks, continuation lines joined, comments and prompts taken off."""
    lines: list[str] = []
    for path in DOCUMENTS:
        for block in code_blocks(path.read_text(), "bash", "sh", "console"):
            for line in block.replace("\\\n", " ").splitlines():
                words = shlex.split(line.removeprefix("$ "), comments=True)
                if words:
                    lines.append(shlex.join(words))
    return lines


def program_calls() -> list[str]:
    inline = [
        call
        for path in DOCUMENTS
        for call in re.findall(r"`(prefixgate [^`\n]+)`", path.read_text())
        if "…" not in call
    ]
    calls = [line for line in shell_lines() if line.startswith("prefixgate ")]
    return list(dict.fromkeys(re.split(r" '?(?:>|\||&)", call)[0] for call in [*calls, *inline]))


def test_the_reference_is_what_the_program_prints() -> None:
    written = (ROOT / "docs" / "configuration.md").read_text()
    assert written == reference(), "run: prefixgate check --docs > docs/configuration.md"


def test_every_setting_is_documented_with_default_and_meaning() -> None:
    page = reference()
    for path in setting_paths(Config):
        section, _, name = path.removesuffix("[]").rpartition(".")
        model = Config
        for part in filter(None, re.split(r"[.\[\]]+", section)):
            model = section_in(model.model_fields[part].annotation)  # type: ignore[assignment]  # always a section
        if section_in(model.model_fields[name].annotation):
            assert f"\n## `{path}`\n" in page
        if section:
            table = page.split(f"\n## `{section}`\n")[1].split("\n## ")[0]
            row = re.search(rf"^\| `{name}` \| (.+) \| (.+) \| (.+) \|$", table, re.MULTILINE)
            assert row, path
            assert len(row[3]) > 10, path


def test_there_are_commands_to_test() -> None:
    assert len(program_calls()) >= 6


@pytest.mark.parametrize("call", program_calls())
def test_a_command_in_the_documents_parses(call: str) -> None:
    words = shlex.split(call)[1:]
    program = typer.main.get_command(application())
    if words[0].startswith("-"):
        pytest.fail(f"{call} names no command")
    assert words[0] in COMMANDS
    command = program.commands[words[0]]  # type: ignore[attr-defined]  # a group, as it has commands
    if len(words) > 1 and "--help" not in words:  # a name alone is a mention, not a call
        command.make_context(words[0], words[1:])


@pytest.mark.parametrize("command", COMMANDS)
def test_the_readme_or_the_docs_show_each_command(command: str) -> None:
    assert any(call.split()[1] == command for call in program_calls())


def test_make_targets_in_the_documents_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z]+):.*##", makefile, re.MULTILINE))
    assert targets >= {"run", "test", "check", "bench", "help"}
    named = {
        target for path in DOCUMENTS for target in re.findall(r"(?:^|`)make ([a-z]+)", path.read_text(), re.MULTILINE)
    }
    assert named <= targets


def yaml_examples() -> list[str]:
    return [block for path in DOCUMENTS for block in code_blocks(path.read_text(), "yaml")]


@pytest.mark.parametrize("example", yaml_examples())
def test_a_yaml_example_is_a_valid_configuration(example: str) -> None:
    told = {
        "WORKER_KEY": "k",
        "ANSWERS_REDIS": "redis://10.0.0.2",
        "ANSWERS_KEY": "a secret that is long enough for it",
    }
    assert parse_config(example, environment=told).workers


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_to_files_that_exist(path: Path) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", path.read_text())
    assert [link for link in links if not (path.parent / link).exists()] == []


GATEWAY_FILES = [path for path in sorted((ROOT / "deploy").glob("*.yaml")) if path.name != "compose.yaml"]


@pytest.mark.parametrize("path", GATEWAY_FILES, ids=lambda path: path.name)
def test_every_configuration_in_deploy_is_valid(path: Path) -> None:
    parse_config(path.read_text(encoding="utf-8"), source=path.name, environment={"PREFIXGATE_ADMIN_TOKEN": "t"})
