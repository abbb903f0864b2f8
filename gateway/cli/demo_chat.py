"""A chat with the small model as a client sees it, held once and then once more: what kept KV is worth.

`prefixgate demo` runs each in a process of its own, so that it measures from outside, and restarts the workers between.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, Final

import aiohttp
import msgspec
import orjson
import typer
import uvloop
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.cli.demo_words import SYSTEM, TURNS
from gateway.replay.client import ReplayError, find_model, open_session
from gateway.replay.sse import SseDecoder

_DEADLINE: Final = 120.0
"""Seconds for one turn."""
_MOST_TOKENS: Final = 200
_SESSION: Final = {"x-session-id": "demo"}
"""Where the session was, its KV is: a worker's disk is its own."""


class Turn(msgspec.Struct, frozen=True):
    """One answer; times are seconds."""

    question: str
    answer: str
    worker: str
    prompt_tokens: int
    cached_tokens: int
    ttft: float


async def take_turn(
    session: aiohttp.ClientSession, url: str, model: str, history: Sequence[Turn], question: str
) -> Turn:
    """Ask for the next answer after `history`, streamed. Raises ReplayError, aiohttp.ClientError or TimeoutError."""
    messages = [{"role": "system", "content": SYSTEM}]
    for turn in history:
        messages.append({"role": "user", "content": turn.question})
        messages.append({"role": "assistant", "content": turn.answer})
    messages.append({"role": "user", "content": question})
    start = time.perf_counter()
    first, text = 0.0, ""
    usage: dict[str, Any] = {}
    async with asyncio.timeout(_DEADLINE), _asked(session, url, model, messages) as response:
        decoder = SseDecoder()
        async for piece in response.content.iter_any():
            for data in decoder.feed(piece):
                if data == b"[DONE]":
                    continue
                event = orjson.loads(data)
                usage = event.get("usage") or usage
                for choice in event.get("choices", ()):
                    if content := choice["delta"].get("content"):
                        first = first or time.perf_counter()
                        text += content
    return Turn(
        question,
        text,
        response.headers.get("x-worker-id", ""),
        usage.get("prompt_tokens", 0),
        (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0),
        (first or time.perf_counter()) - start,
    )


@contextlib.asynccontextmanager
async def _asked(
    session: aiohttp.ClientSession, url: str, model: str, messages: Sequence[dict[str, str]]
) -> AsyncIterator[aiohttp.ClientResponse]:
    body = {
        "model": model,
        "messages": messages,
        "max_tokens": _MOST_TOKENS,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    async with session.post(f"{url}/v1/chat/completions", json=body, headers=_SESSION) as response:
        if response.status != HTTPStatus.OK:
            raise ReplayError(f"the gateway answered {response.status}: {(await response.text())[:200]}")
        yield response


@contextlib.asynccontextmanager
async def _meeting(url: str) -> AsyncIterator[tuple[aiohttp.ClientSession, str]]:
    """A session and the model. Something else is asked first: what programs do but once is in no turn's time."""
    async with open_session(None) as session:
        model = await find_model(session, url)
        async with (
            asyncio.timeout(_DEADLINE),
            _asked(session, url, model, [{"role": "user", "content": "Hi!"}]) as response,
        ):
            await response.read()
        yield session, model


async def chat(url: str, console: Console) -> list[Turn]:
    """Say everything in TURNS and print it."""
    turns: list[Turn] = []
    async with _meeting(url) as (session, model):
        for question in TURNS:
            console.print(_line("you", "bold", question))
            turn = await take_turn(session, url, model, turns, question)
            console.print(_line(model, "bold green", turn.answer.strip()))
            turns.append(turn)
    return turns


def _line(who: str, style: str, said: str) -> Table:
    line = Table.grid(padding=(0, 1, 0, 0))
    line.add_column(min_width=6, no_wrap=True)
    line.add_column()
    line.add_row(Text(who, style), Text(said))
    return line


async def again(url: str, before: Sequence[Turn]) -> list[Turn]:
    """Each prompt as it was, whatever is answered this time."""
    async with _meeting(url) as (session, model):
        return [
            await take_turn(session, url, model, before[:number], turn.question) for number, turn in enumerate(before)
        ]


def report(before: Sequence[Turn], after: Sequence[Turn], console: Console) -> None:
    """Both beside each other, turn by turn and as a whole."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("\nTurn", "Prompt\ntokens", "Cached\nbefore", "\nafter", "TTFT\nbefore", "\nafter"):
        table.add_column(heading, justify="right", min_width=4 if "Turn" in heading else 7)
    for number, (first, second) in enumerate(zip(before, after, strict=True), 1):
        cached = str(first.cached_tokens), str(second.cached_tokens)
        table.add_row(str(number), str(first.prompt_tokens), *cached, _ms(first.ttft), _ms(second.ttft))
    whole = Table(box=None, pad_edge=False, show_header=False)
    for width in (31, 7, 7):
        whole.add_column(min_width=width, justify="left" if width > 7 else "right")
    whole.add_row("Prompt tokens found in a cache", _share(before), _share(after))
    whole.add_row("TTFT, mean", _ms(_mean_ttft(before)), _ms(_mean_ttft(after)))
    whole.add_row("TTFT, first turn", _ms(before[0].ttft), _ms(after[0].ttft))
    console.print(table)
    console.print()
    console.print(whole)
    console.print()
    console.print(_compared(before, after), highlight=False)


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"


def _share(turns: Sequence[Turn]) -> str:
    return f"{sum(turn.cached_tokens for turn in turns) / max(1, sum(turn.prompt_tokens for turn in turns)):.0%}"


def _mean_ttft(turns: Sequence[Turn]) -> float:
    return statistics.fmean(turn.ttft for turn in turns)


def _compared(before: Sequence[Turn], after: Sequence[Turn]) -> str:
    workers = ", ".join(sorted({turn.worker for turn in (*before, *after)}))
    pairs = zip(before, after, strict=True)
    others = [str(number) for number, (first, second) in enumerate(pairs, 1) if first.answer != second.answer]
    if others:
        return f"Answered by {workers}; [bold red]the texts differ[/] in turn {', '.join(others)}."
    return f"Answered by {workers}; all {len(before)} texts are the same before and after."


def main(url: Annotated[str, typer.Option()], transcript: Annotated[Path, typer.Option()]) -> None:
    """Chat with the model behind `url` and write it to `transcript`; where that is there, say it again and compare."""
    console = Console()
    try:
        if transcript.exists():
            before = msgspec.json.decode(transcript.read_bytes(), type=list[Turn])
            with console.status("The same turns again ..."):
                after = uvloop.run(again(url, before))
            report(before, after, console)
        else:
            transcript.write_bytes(msgspec.json.encode(uvloop.run(chat(url, console))))
    except (ReplayError, aiohttp.ClientError, TimeoutError) as error:
        Console(stderr=True).print(f"demo: {str(error) or 'no answer in time'}", style="bold red", markup=False)
        raise typer.Exit(1) from None


if __name__ == "__main__":
    typer.run(main)
