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
from gateway.cli.trace_options import parse_duration
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


CHATS = str(ROOT / "tests" / "data" / "conversations" / "tau_bench_4_raw.json.xz")
AZURE = str(ROOT / "tests" / "data" / "arrivals" / "azure_conv_300.csv")


def test_everything_at_once_and_then_a_comparison(tmp_path: Path) -> None:
    a, b, html, result = (str(tmp_path / name) for name in ("a.json", "b.json", "r.html", "c.json"))
    common = (CHATS, "--limit", "12", "--max-output", "3", "--warm-up", "2", "--slo", "chat:ttft=30s,tpot=9s")
    code, out, err = run(
        FakeOpenAI(workers=2),
        *(*common, "--arrivals", AZURE, "--speed", "50", "--slo", "none:ttft=1us", "--json", a, "--html", html),
    )
    assert (code, err) == (0, "")
    for words in ("10 of 10 requests answered", "after 2 to warm up", "chat: TTFT ≤ 30.0 s, TPOT ≤ 9.00 s", "none: "):
        assert words in out, words
    summary = orjson.loads(Path(a).read_bytes())["summary"]
    assert [(good["slos"]["name"], good["share"]) for good in summary["goodput"]] == [("chat", 1.0), ("none", 0.0)]
    assert summary["warm_up"] == 2
    assert Path(html).read_text().startswith("<!doctype html>")
    assert run(FakeOpenAI(), *common, "--concurrency", "2", "--json", b)[0] == 0
    compared = CliRunner().invoke(application(), ["replay", "--compare", a, b, "--json", result])
    assert compared.exit_code == 0
    assert "Different numbers of users: none and 2." in compared.stdout
    assert orjson.loads(Path(result).read_bytes())["comparable"] is False
    both = CliRunner().invoke(application(), ["replay", "--compare", a, b, "--json", "-"])
    assert orjson.loads(both.stdout)["a"] == a


def test_a_plain_csv_of_arrivals_is_a_trace() -> None:
    code, out, _ = run(FakeOpenAI(), AZURE, "--limit", "6", "--speed", "200", "--max-output", "2")
    assert code == 0
    assert "6 of 6 requests answered" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "name a trace file, or 'demo'"),
        (["demo", "--compare", "a", "b"], "give neither a trace nor --html"),
        (["--compare", "/nowhere/a", "/nowhere/b"], "/nowhere/a: cannot be read: No such file"),
        (["demo", "--arrivals", "x", "--concurrency", "2"], "give one of them"),
        (["demo", "--arrivals", "/nowhere/x"], "/nowhere/x: cannot be opened"),
        ([CHATS, "--endpoint", "completions"], "can only be sent with --endpoint chat"),
        (["demo", "--html", "-", "--json", "-"], "only one of --json and --html"),
    ],
)
def test_what_cannot_be_done_is_told(arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(application(), ["replay", *arguments])
    assert result.exit_code == 2
    assert words in result.stderr


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--slo", "p50=2", "expected [NAME:]ttft=TIME"),
        ("--warm-up", "some", "neither a number of requests"),
        ("--concurrency", "0", "--concurrency"),
    ],
)
def test_a_bad_value_is_told(option: str, value: str, words: str) -> None:
    result = CliRunner().invoke(application(), ["replay", "demo", option, value], env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert words in result.stderr


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
