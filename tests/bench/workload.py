"""Prompts for the benchmarks: real dialogue (tau-bench), put together anew as often as wanted."""

from __future__ import annotations

import functools
import json
import lzma
import random
import re
import string
from pathlib import Path
from typing import Any

from cache.tokenizer import Tokenizer

DATA = Path(__file__).parents[1] / "data"
MODEL = "bench"
_MESSAGE_CHARS = 600


@functools.cache
def fragments() -> tuple[str, ...]:
    """Pieces of dialogue of 40 to 90 characters that begin with a space and need no escape in JSON."""
    dialogues = json.loads(lzma.decompress((DATA / "conversations" / "tau_bench_airline.json.xz").read_bytes()))
    text = " ".join(str(message.get("content")) for body in dialogues for message in body["messages"])
    text = re.sub(r"[^\x20-\x7e]|[\"\\<>]", " ", text)
    found = re.findall(r" \S.{39,80}?(?= )", re.sub(r" +", " ", text))
    return tuple(dict.fromkeys(found))


@functools.cache
def chars_per_token(tokenizer: Tokenizer) -> float:
    """Over all the fragments."""
    text = "".join(fragments())
    return len(text) * 4 / len(tokenizer.encode(text, add_special_tokens=False))


def text_of(n_chars: int, sample: random.Random) -> str:
    """Text of exactly `n_chars` characters, in words that were seen before and an order that was not."""
    pieces: list[str] = []
    left = n_chars
    while left > 0:
        pieces.append(sample.choice(fragments()))
        left -= len(pieces[-1])
    return "".join(pieces)[:n_chars]


def strange(text: str, number: int) -> str:
    """The same length in words that nobody has seen: letters moved by a few places."""
    shift = 1 + number % 25
    lower = string.ascii_lowercase
    return text.translate(str.maketrans(lower, lower[shift:] + lower[:shift]))


def messages_of(text: str) -> list[dict[str, str]]:
    """A chat that says `text` in turns of about 600 characters, the first one the system's."""
    turns = [text[at : at + _MESSAGE_CHARS] for at in range(0, len(text), _MESSAGE_CHARS)]
    roles = ["system", *(("user", "assistant")[i % 2] for i in range(len(turns) - 1))]
    if len(roles) == 1:
        roles = ["user"]
    return [{"role": role, "content": turn} for role, turn in zip(roles, turns, strict=True)]


def chat_body(text: str, *, streams: bool = False, question: str = "") -> bytes:
    """A chat request, as the official client would send it; `question` is one more turn at its end."""
    messages = messages_of(text)
    if question:
        messages += [{"role": "assistant", "content": "Let me see."}, {"role": "user", "content": question}]
    body: dict[str, Any] = {"messages": messages, "model": MODEL, "max_tokens": 50, "temperature": 0.7}
    if streams:
        body["stream"] = True
    return json.dumps(body, separators=(",", ":")).encode()


def deepseek(directory: Path) -> Tokenizer:
    """DeepSeek-V3's tokenizer, 128k tokens, with its chat template; unpacked into `directory`."""
    packed = (DATA / "tokenizers" / "deepseek_tokenizer.json.xz").read_bytes()
    (directory / "tokenizer.json").write_bytes(lzma.decompress(packed))
    (directory / "chat_template.jinja").write_text((DATA / "templates" / "deepseek_v3.jinja").read_text())
    return Tokenizer.load(directory)
