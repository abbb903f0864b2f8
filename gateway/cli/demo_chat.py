"""A chat with the small model, as a client sees it: each answer, its cached tokens, its TTFT.

`prefixgate demo` runs it in a process of its own, so that it measures from outside.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, Final

import aiohttp
import orjson
import typer
import uvloop
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.replay.client import ReplayError, find_model, open_session
from gateway.replay.sse import SseDecoder

_DEADLINE: Final = 120.0
"""Seconds for one turn."""
_MOST_TOKENS: Final = 120
_SESSION: Final = {"x-session-id": "demo"}
"""Where the session was, its KV is: a worker's disk is its own."""

SYSTEM: Final = "You are a friendly helper. You answer in short and simple sentences."
TURNS: Final = (
    "Hello! My name is Nora.",
    "What is the capital of France?",
    "Tell me a short story about a fox.",
    "What is the opposite of hot?",
    "What is a prefix cache?",
    "What does a gateway do?",
    "What colour is the sky?",
    "Who are you?",
    "What is my name?",
    "Thank you.",
)
LATER: Final = ("Where were we? What is my name?", "What is a prefix cache?", "Goodbye!")
"""Said when the chat goes on."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer; times are seconds."""

    text: str
    worker: str
    prompt_tokens: int
    cached_tokens: int
    ttft: float
    total: float


async def take_turn(session: aiohttp.ClientSession, url: str, model: str, messages: list[dict[str, str]]) -> Turn:
    """Ask for the next answer of a chat, streamed. Raises ReplayError, aiohttp.ClientError or TimeoutError."""
    body = {
        "model": model,
        "messages": messages,
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
    end = time.perf_counter()
    return Turn(
        text,
        response.headers.get("x-worker-id", ""),
        usage.get("prompt_tokens", 0),
        (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0),
        (first or end) - start,
        end - start,
    )


async def chat(url: str, console: Console, messages: list[dict[str, str]]) -> None:
    """Say everything in TURNS, or in LATER after `messages`, which grow, and print what comes of it."""
    said = LATER if messages else TURNS
    messages[:0] = [] if messages else [{"role": "system", "content": SYSTEM}]
    table = Table(box=None, pad_edge=False)
    for heading in ("Turn", "Worker", "Prompt", "Cached", "TTFT", "Answer in"):
        table.add_column(heading, justify="left" if heading == "Worker" else "right")
    async with open_session(None) as session:
        model = await find_model(session, url)
        for number, question in enumerate(said, len(messages) // 2 + 1):
            messages.append({"role": "user", "content": question})
            console.print(Text.assemble(("you    ", "bold"), question), soft_wrap=True)
            turn = await take_turn(session, url, model, messages)
            console.print(Text.assemble((f"{model:6} ", "bold green"), turn.text.strip()), soft_wrap=True)
            messages.append({"role": "assistant", "content": turn.text})
            table.add_row(
                str(number),
                turn.worker,
                str(turn.prompt_tokens),
                str(turn.cached_tokens),
                f"{turn.ttft * 1000:.0f} ms",
                f"{turn.total * 1000:.0f} ms",
            )
    console.print()
    console.print(table)


def main(url: Annotated[str, typer.Option()], transcript: Annotated[Path, typer.Option()]) -> None:
    """Chat with the model behind `url`, and go on where `transcript` ends."""
    console = Console()
    try:
        messages = orjson.loads(transcript.read_bytes()) if transcript.exists() else []
        uvloop.run(chat(url, console, messages))
        transcript.write_bytes(orjson.dumps(messages))
    except (ReplayError, aiohttp.ClientError, TimeoutError) as error:
        Console(stderr=True).print(f"demo: {str(error) or 'no answer in time'}", style="bold red", markup=False)
        raise typer.Exit(1) from None


if __name__ == "__main__":
    typer.run(main)
