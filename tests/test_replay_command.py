"""The command as a person runs it: a process of its own against a real server."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import orjson
import pytest
import typer
from typer.testing import CliRunner

from gateway.cli import application
from gateway.cli.replay import parse_duration
from tests.fake_openai import FakeOpenAI

ROOT = Path(__file__).parent.parent


def run(server: FakeOpenAI, *arguments: str, interrupt_after: int | None = None) -> tuple[int, str, str]:
    """Exit code, stdout and stderr; interrupted once the server has had so many requests."""

    async def main() -> tuple[int, str, str]:
        async with server.running() as url:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "gateway.cli.replay", *arguments, "--url", url),
                cwd=ROOT,
                env=os.environ | {"COLUMNS": "100"},
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            if interrupt_after is not None:
                while len(server.bodies) < interrupt_after:  # noqa: ASYNC110 - a list sets no event
                    await asyncio.sleep(0.01)
                process.send_signal(signal.SIGINT)
            out, err = await process.communicate()
        assert process.returncode is not None
        return process.returncode, out.decode(), err.decode()

    return asyncio.run(main())


def test_demo_from_end_to_end(tmp_path: Path) -> None:
    server = FakeOpenAI(workers=2)
    code, out, err = run(
        server,
        "demo",
        "--speed",
        "40",
        "--max-output",
        "4",
        "--slo-ttft",
        "30s",
        "--json",
        str(tmp_path / "out.json"),
    )
    assert (code, err) == (0, "")
    for words in ("60 of 60 requests answered", "TTFT", "cache hits", "worker-1", "goodput"):
        assert words in out, words
    document = orjson.loads((tmp_path / "out.json").read_bytes())
    assert len(document["requests"]) == 60
    assert document["summary"]["succeeded"] == 60
    assert document["summary"]["hits"]["limit"] == pytest.approx(0.641, abs=1e-3)
    assert 0 < document["summary"]["hits"]["share"] < document["summary"]["hits"]["limit"]
    assert document["summary"]["goodput"][0]["share"] == 1.0
    assert document["settings"]["model"] == "fake"
    assert document["settings"]["timeout"] == 600.0
    assert {body["max_tokens"] for body in server.bodies} == {4}


def test_json_on_stdout_is_nothing_but_json() -> None:
    code, out, err = run(FakeOpenAI(), "demo", "--limit", "3", "--speed", "40", "--max-output", "2", "--json", "-")
    assert code == 0
    assert len(orjson.loads(out)["requests"]) == 3
    assert "3 of 3 requests answered" in err


def test_failures_make_the_exit_code_unless_allowed() -> None:
    arguments = ("demo", "--limit", "4", "--speed", "40", "--max-output", "3")
    code, out, _ = run(FakeOpenAI(fault=lambda n: "500" if n == 1 else None), *arguments)
    assert code == 1
    assert "http_500" in out
    assert run(FakeOpenAI(fault=lambda n: "500" if n == 1 else None), *arguments, "--allow-errors")[0] == 0


def test_interrupt_reports_what_was_measured() -> None:
    server = FakeOpenAI(fault=lambda n: "stall" if n >= 2 else None)
    code, out, err = run(server, "demo", "--speed", "2", "--max-output", "3", interrupt_after=3)
    assert (code, err) == (130, "")
    assert "2 of 60 requests answered" in out
    assert "cancelled" in out
    assert "were never sent" in out


def test_a_bad_trace_is_told_without_a_traceback(tmp_path: Path) -> None:
    trace = tmp_path / "bad.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": "many", "output_length": 1, "hash_ids": [1]}\n')
    code, out, err = run(FakeOpenAI(), str(trace))
    assert (code, out) == (2, "")
    assert "line 1: input_length: expected an integer, got 'many'" in " ".join(err.split())


@pytest.mark.parametrize("url", ["ftp:/x", "localhost:8000", "http://", "http://a:x", "http://[/x]", "http://a/?b"])
def test_a_url_of_another_form_is_told(url: str) -> None:
    result = CliRunner().invoke(application(), ["replay", "demo", "--url", url])
    assert result.exit_code == 2
    assert result.stderr == f"replay: --url: expected a base URL such as http://127.0.0.1:8000; given '{url}'\n"


@pytest.mark.parametrize(
    ("text", "seconds"), [("2s", 2.0), ("100ms", 0.1), ("1.5 min", 90.0), ("3", 3.0), ("250us", 0.00025)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "0", "-1s", "2 hours", "fast", "1e3"])
def test_no_durations(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="not a length of time"):
        parse_duration(text)
