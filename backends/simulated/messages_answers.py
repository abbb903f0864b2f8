"""Anthropic messages in the bytes vLLM sends: one body, or message_start to message_stop. Pure."""

from __future__ import annotations

from typing import Any

import orjson

from backends.engine_api.api_errors import anthropic_kind
from backends.engine_api.sse import named_event
from backends.simulated.answers import Answers, Choice

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens"}


class MessagesRendering:
    """One answer as a message with one content block, a text or a tool use."""

    def __init__(self, answers: Answers) -> None:
        self.answers = answers

    def body(self) -> bytes:
        """The unary response body."""
        (choice,) = self.answers.choices
        block = _block(choice, choice.text)
        return orjson.dumps(self.message() | {"content": [block]} | _ending(choice) | {"usage": self.usage()})

    def message(self) -> dict[str, Any]:
        """The message before there is anything in it."""
        return {
            "id": self.answers.id,
            "type": "message",
            "role": "assistant",
            "content": [],
            "model": self.answers.model,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self.usage(),
        }

    def usage(self) -> dict[str, int]:
        """Anthropic's usage: the cached tokens are not among `input_tokens`."""
        cached = self.answers.cached_tokens
        return {
            "input_tokens": max(0, self.answers.prompt_tokens - cached),
            "output_tokens": self.answers.output_tokens,
            "cache_read_input_tokens": cached,
        }

    def start(self) -> bytes:
        """Nothing: message_start tells usage, and comes with the first token."""
        return b""

    def format(self, choice: Choice) -> MessagesFormat:
        """The templates of the deltas."""
        return MessagesFormat(self, choice)

    def end(self) -> bytes:
        """The block's and the message's end."""
        (choice,) = self.answers.choices
        delta = {"type": "message_delta", "delta": _ending(choice), "usage": self.usage()}
        stop = named_event({"type": "content_block_stop", "index": 0})
        return stop + named_event(delta) + named_event({"type": "message_stop"})

    def failure(self, message: str, *, after: int) -> bytes:  # noqa: ARG002 - these events have no numbers
        """An error event, after which nothing comes."""
        return named_event({"type": "error", "error": {"type": anthropic_kind(500), "message": message}})


class MessagesFormat:
    """Renders the tokens of a message as deltas."""

    __slots__ = ("_choice", "_prefix", "_rendering", "_suffix")

    def __init__(self, rendering: MessagesRendering, choice: Choice) -> None:
        self._rendering = rendering
        self._choice = choice
        if choice.tool is None:
            delta = {"type": "text_delta", "text": "\0"}
        else:
            delta = {"type": "input_json_delta", "partial_json": "\0"}
        event = named_event({"type": "content_block_delta", "index": 0, "delta": delta})
        self._prefix, self._suffix = event.split(orjson.dumps("\0"))

    def opening(self) -> bytes:
        """The message's and the block's start."""
        message = {"type": "message_start", "message": self._rendering.message()}
        block = {"type": "content_block_start", "index": 0, "content_block": _block(self._choice, "")}
        return named_event(message) + named_event(block)

    def events(self, count: int) -> bytes:
        """Deltas of the next `count` tokens, none for a token that a stop sequence took away."""
        pieces = self._choice.take(count)
        return b"".join(self._prefix + orjson.dumps(piece) + self._suffix for piece in pieces if piece)


def _block(choice: Choice, text: str) -> dict[str, Any]:
    if choice.tool is None:
        return {"type": "text", "text": text}
    return {"type": "tool_use", "id": choice.call_id, "name": choice.tool, "input": orjson.loads(text) if text else {}}


def _ending(choice: Choice) -> dict[str, str | None]:
    if choice.tool is not None:
        return {"stop_reason": "tool_use", "stop_sequence": None}
    if choice.stop_reason is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": choice.stop_reason}
    return {"stop_reason": _STOP_REASONS[choice.finish_reason], "stop_sequence": None}
