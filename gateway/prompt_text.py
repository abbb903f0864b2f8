"""What a request asks to be read: its prompt as text or as token ids, and how much of it there is. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from sys import byteorder
from typing import Final, NamedTuple, cast

import orjson
from xxhash import xxh3_128_digest

from gateway.calls import Call
from policies.types import TokenIds

_ATTACHMENT: Final = {"type": "text", "text": "<attachment>"}
_BEGINNING: Final = 1024
_READ: Final = ("messages", "prompt", "input", "instructions", "system")
_TEXT_PARTS: Final = ("text", "input_text", "output_text", "refusal", "thinking", None)


class Amount(NamedTuple):
    """How much there is to read: messages (or prompts of a batch), and characters of text (or token ids)."""

    pieces: int
    chars: int


class PromptSource(NamedTuple):
    """One prompt, as text or as ids. `attachments` are digests of what in a chat is not text, in order."""

    text: str = ""
    ids: TokenIds | None = None
    add_special_tokens: bool = False
    """True where the engine adds special tokens to the text."""
    attachments: tuple[bytes, ...] = ()
    share: float = 1.0
    """Share of the whole batch that this prompt is, by length."""


def beginning(call: Call) -> bytes:
    """How a prompt begins: its first message, or the first 1,024 characters of a text."""
    for name in ("messages", "prompt", "input"):
        value = call.fields.get(name)
        first = value[0] if type(value) is list and value else value
        if first:
            return orjson.dumps(first[:_BEGINNING] if type(first) is str else first)
    return b""


def amount(fields: Mapping[str, object]) -> Amount:
    """How much a request's prompt is, from lengths alone."""
    pieces = chars = 0
    for value in map(fields.get, _READ):
        if type(value) is str:
            pieces += 1
            chars += len(value)
        elif type(value) is list:
            pieces += len(value)
            chars += sum(map(_chars, value))
    return Amount(pieces, chars)


def _chars(item: object) -> int:
    """Of a message, an item, or a prompt of a batch."""
    if type(item) is dict:
        content = item.get("content")
        item = item.get("output", item.get("arguments", item.get("text"))) if content is None else content
    if type(item) is str:
        return len(item)
    return sum(map(_part_chars, item)) if type(item) is list else 1


def _part_chars(part: object) -> int:
    """Of a part of a message's content; a token id counts as one."""
    if type(part) is dict:
        text = part.get("text")
        if text is None and (inner := part.get("content", part.get("thinking"))) is not None:
            return _inner_chars(inner)
    else:
        text = part
    return len(text) if type(text) is str else 1


def _inner_chars(content: object) -> int:
    """Of a part that has parts itself, as a tool's result does in Anthropic's dialect."""
    if type(content) is not list:
        return len(content) if type(content) is str else 1
    texts = [part.get("text") for part in content if type(part) is dict]
    return sum([len(text) if type(text) is str else 1 for text in texts])


def chat_without_attachments(
    fields: Mapping[str, object], *, inline: bool = False
) -> tuple[Mapping[str, object], tuple[bytes, ...]]:
    """A chat whose parts are all text, and a digest of each part that was not; `inline` writes it in its place, too.

    An engine puts tokens of its own where an attachment stands, so that its chain cannot be foretold from there on.
    With the digests in the chain's root, equal attachments still meet on one worker.
    """
    messages = fields.get("messages")
    if type(messages) is not list:
        return fields, ()
    digests: list[bytes] = []
    shaped = [_without_attachments(message, digests, inline=inline) for message in messages]
    return ({**fields, "messages": shaped}, tuple(digests)) if digests else (fields, ())


def _without_attachments(message: object, digests: list[bytes], *, inline: bool) -> object:
    content = message.get("content") if type(message) is dict else None
    if type(content) is not list or type(message) is not dict:
        return message
    parts: list[object] = []
    for part in content:
        if type(part) is dict and part.get("type") not in _TEXT_PARTS:
            digests.append(xxh3_128_digest(orjson.dumps(part)))
            parts.append({"type": "text", "text": f"<attachment {digests[-1].hex()}>"} if inline else _ATTACHMENT)
        else:
            parts.append(part)
    return {**message, "content": parts}


def completion_source(call: Call) -> PromptSource | None:
    """The prompt of a completion, or the first one of a batch; None where there is none to read."""
    prompt = call.fields.get("prompt")
    share = 1.0
    if type(prompt) is list and prompt and type(prompt[0]) in (str, list):
        share = _chars(prompt[0]) / max(_chars(prompt), 1)
        prompt = prompt[0]
    if type(prompt) is str and prompt:
        special = call.fields.get("add_special_tokens") is not False
        return PromptSource(text=prompt, add_special_tokens=special, share=share)
    if type(prompt) is list and prompt:
        ids = _packed(prompt)
        return None if ids is None else PromptSource(ids=ids, share=share)
    return None


def _packed(tokens: list[object]) -> TokenIds | None:
    try:
        packed = array("I", cast("list[int]", tokens))  # whatever is no token id is refused by it
    except (TypeError, OverflowError):
        return None
    if byteorder == "big":
        packed.byteswap()
    return TokenIds(packed.tobytes())
