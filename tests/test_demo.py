"""`prefixgate demo` as a newcomer meets it: a process of its own, its replay, and the request it says to paste."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import signal
import socket
import sys
from pathlib import Path

import aiohttp

ROOT = Path(__file__).parent.parent
SIMULATED = ("--engine", "simulated")
PATIENCE = 90.0
"""Seconds after which a test gives up; nothing here is measured."""


async def started(*flags: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "demo", *flags),
        cwd=ROOT,
        env=os.environ | {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def ended(process: asyncio.subprocess.Process) -> tuple[int | None, str, str]:
    """Exit code, the rest of standard output, standard error. Raises TimeoutError; the process is gone then."""
    try:
        async with asyncio.timeout(PATIENCE):
            out, err = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.communicate()
        raise
    return process.returncode, out.decode(), err.decode()


async def read_until(process: asyncio.subprocess.Process, words: str) -> str:
    assert process.stdout is not None
    text = ""
    async with asyncio.timeout(PATIENCE):
        while words not in text:
            line = await process.stdout.readline()
            assert line, f"ended before it said {words!r}: {text}"
            text += line.decode()
    return text


async def test_the_replay_shows_that_hits_rise() -> None:
    code, out, err = await ended(await started(*SIMULATED, "--port", "0", "--no-stay", "--speed", "8"))
    assert (code, err) == (0, "")
    assert "60 of 60 requests answered" in out
    assert re.search(r"hits in time .* rising: ", out)
    assert {"sim-0", "sim-1"} <= set(re.findall(r"^sim-\d", out, re.MULTILINE))
    assert "curl" not in out  # it would lead nowhere


async def test_the_request_to_paste_works_and_finds_its_prefix_the_second_time() -> None:
    process = await started(*SIMULATED, "--port", "0", "--no-replay", "-n", "3")
    try:
        out = await read_until(process, "Stop with Ctrl+C.")
        command, explaining = (line for line in out.splitlines() if line.startswith("curl "))
        program, silent, url, header, field, data, body = shlex.split(command)
        assert (program, silent, header, data) == ("curl", "-s", "-H", "-d")
        name, value = field.split(": ")
        usages = []
        async with aiohttp.ClientSession(headers={name: value}) as session:
            for _ in range(2):
                async with session.post(url, data=body) as response:
                    assert response.status == 200
                    usages.append(json.loads(await response.read())["usage"])
        *_, header, field, requests = shlex.split(explaining)
        async with aiohttp.ClientSession(headers=dict([field.split(": ")])) as session:
            async with session.get(requests) as response:
                last = json.loads(await response.read())["data"][0]["id"]
            async with session.get(f"{requests.partition('?')[0]}/{last}") as response:
                (attempt,) = json.loads(await response.read())["attempts"]
        assert (header, len(attempt["candidates"])) == ("-H", 3)
        first, second = (usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
        assert first == 0
        assert 0 < usages[1]["prompt_tokens"] - second <= 16, "cached is all but the last block"
        assert [usage["completion_tokens"] for usage in usages] == [24, 24]
        process.send_signal(signal.SIGINT)
    except BaseException:
        process.kill()
        raise
    finally:
        code, rest, err = await ended(process)
    assert (code, rest, err) == (0, "", "")


async def test_a_signal_ends_the_replay_too() -> None:
    process = await started(*SIMULATED, "--port", "0", "--speed", "0.5")
    try:
        await read_until(process, "A short replay first")
        process.send_signal(signal.SIGTERM)
    except BaseException:
        process.kill()
        raise
    finally:
        code, _, err = await ended(process)
    assert (code, err) == (0, "")


async def test_a_port_that_is_taken_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        result = await ended(await started(*SIMULATED, "--port", str(port)))
    assert result == (
        1,
        "",
        f"prefixgate: cannot listen on 127.0.0.1 port {port}: Address already in use; choose another with --port\n",
    )


async def test_a_chat_held_again_after_a_restart_finds_its_first_turn_too_and_says_the_same() -> None:
    code, out, err = await ended(await started("--engine", "worker", "--port", "0", "--no-stay"))
    assert (code, err) == (0, "")
    assert re.findall(r"Answered by (.*); (.*)\.", out) in [
        [(worker, "all 10 texts are the same before and after")] for worker in ("worker-0", "worker-1")
    ], "a chat stays where its KV is"
    rows = re.findall(r"^ *(\d+) +(\d+) +(\d+) +(\d+) +\d+ ms +\d+ ms *$", out, re.MULTILINE)
    turns, prompts, before, after = ([int(row[column]) for row in rows] for column in range(4))
    assert turns == list(range(1, 11))
    assert before[0] == 0
    for turn, (said, prompt, first, second) in enumerate(
        zip(prompts, prompts[1:], before[1:], after[1:], strict=False)
    ):
        assert said // 16 * 16 <= first < prompt, f"turn {turn + 2}: all full blocks of the turn before"
        assert said // 16 * 16 <= second < prompt, f"turn {turn + 2}, after the restart"
    assert 0 < after[0] < prompts[0], "after the restart: from disk"
    shares = re.search(r"^Prompt tokens found in a cache +(\d+)% +(\d+)% *$", out, re.MULTILINE)
    assert shares is not None
    assert [int(share) for share in shares.groups()] == [
        round(100 * sum(found) / sum(prompts)) for found in (before, after)
    ]
    assert "Your name is Nora" in out


async def test_the_worker_is_left_out_where_there_is_no_torch() -> None:
    code = (
        "import importlib.util, sys; find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *more: None if name == 'torch' else find(name, *more)\n"
        "from gateway.cli import main; main()"
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code, "demo", "--engine", "worker"),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    status, _, err = await ended(process)
    assert status == 1
    assert "needs torch" in err
