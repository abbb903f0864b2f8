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
        (command,) = (line for line in out.splitlines() if line.startswith("curl "))
        program, silent, url, header, field, data, body = shlex.split(command)
        assert (program, silent, header, data) == ("curl", "-s", "-H", "-d")
        name, value = field.split(": ")
        usages = []
        async with aiohttp.ClientSession(headers={name: value}) as session:
            for _ in range(2):
                async with session.post(url, data=body) as response:
                    assert response.status == 200
                    usages.append(json.loads(await response.read())["usage"])
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


async def test_a_chat_finds_more_in_the_cache_each_turn_and_goes_on_after_a_restart() -> None:
    code, out, err = await ended(await started("--engine", "worker", "--port", "0", "--no-stay"))
    assert (code, err) == (0, "")
    rows = re.findall(r"^ *(\d+)  (worker-\d) +(\d+) +(\d+) +\d+ ms +\d+ ms$", out, re.MULTILINE)
    assert [int(turn) for turn, *_ in rows] == list(range(1, 14))
    assert len({worker for _, worker, *_ in rows}) == 1, "a chat stays where its KV is"
    prompts, cached = ([int(row[column]) for row in rows] for column in (2, 3))
    assert cached[0] == 0
    for turn, (before, prompt, found) in enumerate(zip(prompts, prompts[1:], cached[1:], strict=False), 2):
        lost = 64 if turn == 11 else 0  # the worker was restarted: whole chunks come from its disk
        assert (before - lost) // 16 * 16 <= found < prompt, "all full blocks of the turn before, its answer's too"
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
