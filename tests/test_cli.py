"""The command line as a newcomer meets it: help, good input, and every kind of wrong input."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from backends.simulated.model_text import EMBEDDED_TOKENIZER
from gateway import __version__
from gateway.cli import COMMANDS, application
from gateway.config.reference import reference


def call(*words: str) -> Result:
    return CliRunner().invoke(application(), words, env={"COLUMNS": "120", "NO_COLOR": "1", "TERM": "dumb"})


def told(result: Result) -> str:
    """Standard error as one line, without the frame that wraps long messages."""
    return " ".join(re.sub(r"[│╭╰╮╯─]", " ", result.stderr).split())


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_explains_itself(command: str) -> None:
    result = call(command, "--help")
    assert result.exit_code == 0
    assert f"prefixgate {command}" in result.stdout.split("Options")[0].split("Usage:")[1].split("\n", 1)[1]


def test_help_lists_the_commands_in_order() -> None:
    lines = call("--help").stdout.split("Commands")[1].splitlines()
    assert [name for line in lines for name in COMMANDS if re.match(rf"│ {name}\b", line)] == list(COMMANDS)


def test_without_a_command_the_help_is_shown() -> None:
    result = call()
    assert result.exit_code == 2
    assert "Usage: " in result.output


@pytest.mark.parametrize("words", [["--version"], ["version"]])
def test_version(words: list[str]) -> None:
    result = call(*words)
    assert result.exit_code == 0
    assert result.stdout.startswith(f"prefixgate {__version__}")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["serv"], "No such command 'serv'. Did you mean 'serve'?"),
        (["serve"], "give --config FILE, or --worker URL at least once"),
        (["serve", "--prot", "1"], "No such option: --prot"),
        (["serve", "-w", "http://a:1", "--port", "x"], "Invalid value for '--port'"),
        (["serve", "-c", "x.yaml", "-w", "http://a:1"], "--config takes the place of the other flags"),
        (
            ["serve", "-w", "http://a:1", "--policy", "costs"],
            "routing.policy: expected one of cost, slo, least_loaded, round_robin, random, power_of_two, "
            "consistent_hash, prefix_affinity (did you mean cost?)",
        ),
        (["serve", "-w", "ftp://a:1"], "workers[0].url: expected a URL such as http://127.0.0.1:8001"),
        (["serve", "-w", "http://a:1", "--tokenizer", "embedded"], "--tokenizer: needs --model NAME"),
        (["check"], "give one of --config FILE, --schema and --docs"),
        (["check", "a.yaml", "-c", "b.yaml"], "give one configuration: a.yaml or --config b.yaml"),
        (["serve", "a.yaml", "--port", "1"], "--config takes the place of the other flags"),
        (["check", "--schema", "--docs"], "give one of --config FILE, --schema and --docs"),
    ],
)
def test_wrong_usage_is_told_with_exit_code_2(words: list[str], message: str) -> None:
    result = call(*words)
    assert message in told(result)
    assert result.exit_code == 2


@pytest.mark.parametrize("command", ["check", "serve"])
def test_a_bad_file_is_told_with_exit_code_1(command: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text("workers:\n- url: http://a:1\nlimts: {}\n[x]: [/bold]\n")
    result = call(command, "-c", str(file))
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        f"{file}: 2 problems",
        "  line 3: limts: unknown setting; did you mean limits?",
        "  line 4: a key must be a word",
    ]


def test_a_file_that_is_not_there_is_told() -> None:
    result = call("check", "-c", "nothing.yaml")
    assert (result.exit_code, result.stderr) == (
        1,
        "nothing.yaml: 1 problem\n  cannot be read: No such file or directory\n",
    )


def test_a_good_file_is_summed_up(tmp_path: Path) -> None:
    file = tmp_path / "good.yaml"
    file.write_text(
        "listen: {host: 0.0.0.0, port: 0}\n"
        "models: [{name: '[b]tiny', tokenizer: embedded}]\n"
        "workers:\n"
        "- {url: 'http://a:1', kv_events: {endpoint: 'tcp://a:5557'}}\n"
        "- {url: 'http://b:1', name: second, models: ['[b]tiny'], block_size: 32, api_key: hidden}\n"
    )
    result = call("check", "-c", str(file))
    assert (result.exit_code, result.stderr) == (0, "")
    assert call("check", str(file)).stdout == result.stdout
    assert [line.rstrip() for line in result.stdout.splitlines()] == [
        f"✓ {file} is valid",
        "  listens on 0.0.0.0 port chosen at start, routes by cost",
        "worker  url         models          block  KV events",
        "a:1     http://a:1  asked at start  16     tcp://a:5557",
        "second  http://b:1  [b]tiny         32     predicted",
        "model    tokenizer  loaded          chat template",
        "[b]tiny  embedded   with fastokens  of the tokenizer",
        "note: the gateway accepts connections from other machines and asks no one for a key",
    ]


def tokenizer_without_template(folder: Path) -> Path:
    folder.mkdir()
    (folder / "tokenizer.json").write_text((EMBEDDED_TOKENIZER / "tokenizer.json").read_text())
    return folder


def test_check_loads_the_tokenizers_unless_told_not_to(tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "tokenizer.json").write_text("{}")
    tokenizer_without_template(tmp_path / "good")
    (tmp_path / "t.jinja").write_text("{% if %}")
    file = tmp_path / "two.yaml"
    file.write_text(
        "models: [{name: a, tokenizer: bad}, {name: b, tokenizer: good, chat_template: t.jinja}]\n"
        "workers: [{url: 'http://a:1'}, {url: 'http://b:1'}]\n"
    )
    result = call("check", "-c", str(file))
    assert (result.exit_code, result.stdout) == (1, "")
    first, second, third = result.stderr.splitlines()
    assert first == f"{file}: 2 problems"
    assert second.startswith(f"  models[0].tokenizer: {tmp_path}/bad/tokenizer.json: not a tokenizer that")
    assert third.startswith(f"  models[1].chat_template: {tmp_path}/t.jinja: chat template 'default', line 1: ")
    result = call("check", "-c", str(file), "--no-tokenizers")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "not tried" in result.stdout


def test_check_misses_the_model_of_the_semantic_cache(tmp_path: Path) -> None:
    file = tmp_path / "meaning.yaml"
    file.write_text(
        "workers: [{url: 'http://a:1'}]\nresponse_cache: {mode: on}\n"
        "semantic_cache: {mode: shadow, embedding: {kind: minilm, folder: ./nowhere}}\n"
    )
    result = call("check", str(file))
    assert result.exit_code == 1
    assert result.stderr.splitlines()[1:] == [
        f"  semantic_cache.embedding.folder: there is no model in {tmp_path}/nowhere; `prefixgate fetch minilm` gets it"
    ]


def test_check_tells_that_a_tokenizer_has_no_chat_template(tmp_path: Path) -> None:
    tokenizer_without_template(tmp_path / "good")
    file = tmp_path / "two.yaml"
    file.write_text(
        "models: [{name: a, tokenizer: good}]\ntokens: {fast: false}\n"
        "workers: [{url: 'http://a:1'}, {url: 'http://b:1'}]\n"
    )
    result = call("check", "-c", str(file))
    assert result.exit_code == 0
    row = next(line for line in result.stdout.splitlines() if line.startswith("a "))
    assert row.split()[2:] == ["with", "tokenizers", "none"]
    assert "the tokenizer of a has no chat template" in result.stdout


def test_notes_say_what_may_not_be_meant(tmp_path: Path) -> None:
    file = tmp_path / "one.yaml"
    file.write_text("workers: [{url: 'http://a:1'}]\n")
    notes = [line for line in call("check", "-c", str(file)).stdout.splitlines() if line.startswith("note:")]
    assert notes == [
        "note: no model has a tokenizer: prompts are compared by their text",
        "note: with a single worker there is nothing to choose",
    ]


def test_the_schema_is_json() -> None:
    schema = json.loads(call("check", "--schema").stdout)
    assert {"workers", "listen", "routing"} <= schema["properties"].keys()
    assert schema["additionalProperties"] is False


def test_the_reference_is_printed() -> None:
    assert call("check", "--docs").stdout == reference()


def program(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gateway", *words], capture_output=True, text=True, timeout=50, check=False
    )


def test_the_program_itself(tmp_path: Path) -> None:
    """A real process: exit codes and streams, and nothing heavy loaded for a light command."""
    heavy = "{'aiohttp', 'openai', 'opentelemetry', 'tokenizers', 'transformers', 'uvloop', 'zmq'}"
    code = (
        "import sys; from gateway.cli import main\n"
        "try: main()\n"
        f"finally: print(sorted({heavy} & set(sys.modules)), file=sys.stderr)"
    )
    light = subprocess.run(
        [sys.executable, "-c", code, "version"], capture_output=True, text=True, timeout=50, check=False
    )
    assert light.returncode == 0
    assert light.stdout.startswith(f"prefixgate {__version__} (Python ")
    assert light.stderr == "[]\n"
    bad = program("check", "-c", str(tmp_path / "none.yaml"))
    assert (bad.returncode, bad.stdout) == (1, "")
    assert bad.stderr == f"{tmp_path}/none.yaml: 1 problem\n  cannot be read: No such file or directory\n"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--host", "nosuch.invalid", "--port", "1"], "prefixgate: cannot listen on nosuch.invalid"),
        (["--host", "192.0.2.1"], "prefixgate: cannot listen on 192.0.2.1 port 8000: "),
    ],
)
def test_an_address_that_is_not_there_is_told_with_exit_code_1(flags: list[str], message: str) -> None:
    result = program("serve", "-w", "http://127.0.0.1:1", "--admin-port", "0", *flags)
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1].startswith(message)


def test_a_port_that_is_taken_is_told_with_exit_code_1(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        result = program("serve", "-w", "http://127.0.0.1:1", "--port", port, "--admin-port", "0")
        admin = program("serve", "-w", "http://127.0.0.1:1", "--port", "0", "--admin-port", port)
        file = tmp_path / "taken.yaml"
        file.write_text(f"listen: {{port: {port}}}\nworkers: [{{url: 'http://127.0.0.1:1'}}]\n")
        from_file = program("serve", "-c", str(file))
    assert (result.returncode, from_file.returncode, admin.returncode) == (1, 1, 1)
    told = f"prefixgate: cannot listen on 127.0.0.1 port {port}: Address already in use; choose another with "
    assert result.stderr.splitlines()[-1] == told + "--port"
    assert admin.stderr.splitlines()[-1] == told + "--admin-port"
    assert from_file.stderr.splitlines()[-1] == told + "listen.port"


def test_a_bad_tokenizer_is_told_with_exit_code_1(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("[]")
    result = program("serve", "-w", "http://127.0.0.1:1", "--model", "a", "--tokenizer", str(tmp_path), "--port", "0")
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1].startswith(f"prefixgate: {tmp_path}/tokenizer.json: not a tokenizer that")
    assert "Traceback" not in result.stderr
