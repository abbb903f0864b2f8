"""Clients that know what they ought to be told: three dialects, streamed and in one piece, some of them impatient."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp

MODEL: Final = "simulated"
PATIENCE: Final = 60.0
_IMPATIENT: Final = 0.03
"""Share of the streams that a client leaves midway."""


@dataclass(frozen=True)
class Speech:
    """One dialect: what to send and how to read what comes back."""

    path: str
    body: Callable[[str], dict[str, Any]]
    whole: Callable[[dict[str, Any]], str]
    """Text of an answer in one piece."""
    piece: Callable[[dict[str, Any]], str]
    """Text of one event."""
    ends: Callable[[dict[str, Any]], bool]
    """Does the event say that the answer is complete?"""
    fails: Callable[[dict[str, Any]], bool]
    """Does the event say that it is not?"""


def _chat_piece(event: dict[str, Any]) -> str:
    return "".join(choice["delta"].get("content") or "" for choice in event.get("choices", ()))


SPEECHES: Final = (
    Speech(
        "/v1/chat/completions",
        lambda prompt: {"model": MODEL, "messages": [{"role": "user", "content": prompt}], "max_tokens": 48},
        lambda answer: str(answer["choices"][0]["message"]["content"]),
        _chat_piece,
        lambda event: event.get("done") is True,
        lambda event: "error" in event,
    ),
    Speech(
        "/v1/responses",
        lambda prompt: {"model": MODEL, "input": prompt, "max_output_tokens": 48, "store": False},
        lambda answer: "".join(part["text"] for item in answer["output"] for part in item["content"]),
        lambda event: event["delta"] if event["type"] == "response.output_text.delta" else "",
        lambda event: event["type"] in ("response.completed", "response.incomplete"),
        lambda event: event["type"] in ("response.failed", "error"),
    ),
    Speech(
        "/v1/messages",
        lambda prompt: {"model": MODEL, "messages": [{"role": "user", "content": prompt}], "max_tokens": 48},
        lambda answer: "".join(part["text"] for part in answer["content"]),
        lambda event: event["delta"].get("text", "") if event["type"] == "content_block_delta" else "",
        lambda event: event["type"] == "message_stop",
        lambda event: event["type"] == "error",
    ),
)


def events_of(body: bytes) -> list[dict[str, Any]]:
    """The events of a stream. Raises ValueError where one is not whole."""
    *events, rest = body.split(b"\n\n")
    if rest:
        raise ValueError("the stream ends within an event")
    datas = [line[6:] for event in events for line in event.split(b"\n") if line.startswith(b"data: ")]
    return [{"done": True} if data == b"[DONE]" else json.loads(data) for data in datas]


@dataclass
class Told:
    """What came of all requests."""

    outcomes: Counter[str] = field(default_factory=Counter)
    """`whole`, `broken` (an error event behind some text, or a body cut short), `left` (the client went)."""
    wrong: list[str] = field(default_factory=list)
    """What ought never to happen, each with its reason."""

    @property
    def total(self) -> int:
        """Requests that are over."""
        return sum(self.outcomes.values()) + len(self.wrong)


class Clients:
    """Ask one thing after the other until told to stop."""

    def __init__(self, url: str, prompts: Iterable[str], *, seed: int) -> None:
        self.told = Told()
        self.asking = True
        self._url = url
        self._prompts = list(prompts)
        self._dice = random.Random(seed)
        self._expected: dict[tuple[str, str], str] = {}

    async def learn(self, worker: str) -> None:
        """Ask a worker for every answer: all workers answer alike."""

        async def ask(speech: Speech, prompt: str) -> None:
            async with http.post(worker + speech.path, json=speech.body(prompt)) as response:
                self._expected[speech.path, prompt] = speech.whole(await response.json())

        async with aiohttp.ClientSession() as http, asyncio.TaskGroup() as tasks:
            for speech in SPEECHES:
                for prompt in self._prompts:
                    tasks.create_task(ask(speech, prompt))

    async def run(self, n: int) -> None:
        """`n` clients at once, until `asking` is no longer set and each has had its answer."""
        timeout = aiohttp.ClientTimeout(total=PATIENCE)
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as http,
            asyncio.TaskGroup() as tasks,
        ):
            for _ in range(n):
                tasks.create_task(self._client(http))

    async def _client(self, http: aiohttp.ClientSession) -> None:
        while self.asking:
            speech, prompt = self._dice.choice(SPEECHES), self._dice.choice(self._prompts)
            streams = self._dice.random() < 0.7
            leaves = streams and self._dice.random() < _IMPATIENT
            try:
                await self._ask(http, speech, prompt, streams=streams, leaves=leaves)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is counted
                self.told.wrong.append(f"{speech.path} stream={streams}: {error!r}")

    async def _ask(
        self, http: aiohttp.ClientSession, speech: Speech, prompt: str, *, streams: bool, leaves: bool
    ) -> None:
        expected = self._expected[speech.path, prompt]
        body = speech.body(prompt) | {"stream": streams}
        data = bytearray()
        cut: Exception | None = None
        async with http.post(self._url + speech.path, json=body) as response:
            if response.status != 200:
                raise AssertionError(f"status {response.status}: {await response.text()}")
            try:
                async for piece in response.content.iter_any():
                    data += piece
                    if leaves:
                        response.close()
                        self.told.outcomes["left"] += 1
                        return
            except aiohttp.ClientPayloadError as error:
                cut = error
        if cut is not None and (streams or not data):
            raise AssertionError(f"no clean end after {len(data)} bytes: {cut!r}")
        if cut is not None:
            self.told.outcomes["broken"] += 1
            return
        complete = (
            self.streamed(speech, bytes(data), expected) if streams else self._in_one(speech, bytes(data), expected)
        )
        self.told.outcomes["whole" if complete else "broken"] += 1

    @staticmethod
    def _in_one(speech: Speech, data: bytes, expected: str) -> bool:
        if speech.whole(json.loads(data)) != expected:
            raise AssertionError("an answer in one piece is not the one that was to come")
        return True

    @staticmethod
    def streamed(speech: Speech, data: bytes, expected: str) -> bool:
        """Is a stream the whole answer, or well ended before it? Raises AssertionError where it is neither."""
        events = events_of(data)
        text = "".join(speech.piece(event) for event in events if "done" not in event)
        ends = [speech.ends(event) for event in events]
        fails = [speech.fails(event) for event in events]
        if any(ends):
            if any(fails) or not ends[-1] or text != expected:
                raise AssertionError(f"looks complete and is not: {len(text)} of {len(expected)} characters")
            return True
        if sum(fails) != 1 or not fails[-1] or not expected.startswith(text):
            raise AssertionError(f"neither an end nor one error event: {data[-200:]!r}")
        if len(events) == 1:
            raise AssertionError("failed before the first byte of an answer")
        return False
