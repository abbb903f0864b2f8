"""A chat with the small model, as a client sees it, once and once more: what its KV was worth the second time.

`prefixgate demo` runs it in processes of their own, so that it measures from outside: before the workers are restarted,
and after.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
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
_MOST_TOKENS: Final = 120
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
    body = {
        "model": model,
        "messages": _messages(history, question),
        "max_tokens": _MOST_TOKENS,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    start = time.perf_counter()
    first, text = 0.0, ""
    usage: dict[str, Any] = {}
    async with (
        asyncio.timeout(_DEADLINE),
        session.post(f"{url}/v1/chat/completions", json=body, headers=_SESSION) as response,
    ):
        if response.status != HTTPStatus.OK:
            raise ReplayError(f"the gateway answered {response.status}: {(await response.text())[:200]}")
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


def _messages(history: Sequence[Turn], question: str) -> list[dict[str, str]]:
    messages = [{"role": "system", "content": SYSTEM}]
    for turn in history:
        messages.append({"role": "user", "content": turn.question})
        messages.append({"role": "assistant", "content": turn.answer})
    return [*messages, {"role": "user", "content": question}]


async def chat(url: str, console: Console) -> list[Turn]:
    """Say everything in TURNS and print it."""
    turns: list[Turn] = []
    async with open_session(None) as session:
        model = await find_model(session, url)
        for question in TURNS:
            console.print(Text.assemble(("you    ", "bold"), question), soft_wrap=True)
            turn = await take_turn(session, url, model, turns, question)
            console.print(Text.assemble((f"{model:6} ", "bold green"), turn.answer.strip()), soft_wrap=True)
            turns.append(turn)
    return turns


async def again(url: str, before: Sequence[Turn]) -> list[Turn]:
    """Each prompt as it was, whatever is answered this time."""
    async with open_session(None) as session:
        model = await find_model(session, url)
        return [
            await take_turn(session, url, model, before[:number], turn.question) for number, turn in enumerate(before)
        ]


def report(before: Sequence[Turn], after: Sequence[Turn], console: Console) -> None:
    """Both times beside each other, turn by turn and as a whole."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("\nTurn", "Prompt\ntokens", "Cached\nbefore", "\nafter", "TTFT\nbefore", "\nafter"):
        table.add_column(heading, justify="right", min_width=7)
    for number, (first, second) in enumerate(zip(before, after, strict=True), 1):
        table.add_row(
            str(number),
            str(first.prompt_tokens),
            str(first.cached_tokens),
            str(second.cached_tokens),
            _ms(first.ttft),
            _ms(second.ttft),
        )
    console.print(table)
    whole = Table(box=None, pad_edge=False, show_header=False)
    whole.add_column(min_width=34)
    whole.add_column(justify="right", min_width=7)
    whole.add_column(justify="right", min_width=7)
    whole.add_row("Prompt tokens found in a cache", _share(before), _share(after))
    whole.add_row("TTFT, mean", _ms(_mean_ttft(before)), _ms(_mean_ttft(after)))
    whole.add_row("TTFT, first turn", _ms(before[0].ttft), _ms(after[0].ttft))
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
    pairs = zip(before, after, strict=True)
    others = [str(number) for number, (first, second) in enumerate(pairs, 1) if first.answer != second.answer]
    if others:
        return f"[bold red]The answers differ[/] in turn {', '.join(others)}."
    return f"All {len(before)} answers are the same texts both times."


def main(url: Annotated[str, typer.Option()], transcript: Annotated[Path, typer.Option()]) -> None:
    """Chat with the model behind `url` and write it to `transcript`; where it is there, say it again and compare."""
    console = Console()
    try:
        if transcript.exists():
            before = msgspec.json.decode(transcript.read_bytes(), type=list[Turn])
            with console.status("The same ten turns again ..."):
                after = uvloop.run(again(url, before))
            report(before, after, console)
        else:
            transcript.write_bytes(msgspec.json.encode(uvloop.run(chat(url, console))))
    except (ReplayError, aiohttp.ClientError, TimeoutError) as error:
        Console(stderr=True).print(f"demo: {str(error) or 'no answer in time'}", style="bold red", markup=False)
        raise typer.Exit(1) from None


if __name__ == "__main__":
    typer.run(main)
