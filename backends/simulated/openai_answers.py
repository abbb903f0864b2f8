"""Render answers in the bytes vLLM sends: one body, or one SSE event a token. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from backends.simulated.sequence import SimRequest

DONE = b"data: [DONE]\n\n"


@dataclass(slots=True)
class Choice:
    """One alternative of an answer, and how much of it is out."""

    index: int
    request: SimRequest
    pieces: Sequence[str]
    finish_reason: str
    stop_reason: str | None = None
    tool: str | None = None
    echo: str = ""
    sent: int = 0
    cached_tokens: int = 0

    @property
    def text(self) -> str:
        """The whole answer, the prompt in front where it was asked for."""
        return self.echo + "".join(self.pieces)

    @property
    def done(self) -> bool:
        """Whether every token is out."""
        return self.sent == len(self.pieces)


@dataclass(slots=True)
class Answers:
    """All that one HTTP request asked for. `chat` tells the dialect, chat or completion."""

    id: str
    chat: bool
    created: int
    model: str
    prompt_tokens: int
    n: int = 1
    choices: list[Choice] = field(default_factory=list)

    def usage(self) -> dict[str, Any]:
        """OpenAI's usage object; a prompt asked for n answers counts once, with its first one's hits."""
        generated = sum(choice.sent for choice in self.choices)
        cached = sum(choice.cached_tokens for choice in self.choices[:: self.n])
        return {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + generated,
            "completion_tokens": generated,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    def body(self) -> bytes:
        """The unary response body."""
        choices = [_unary_choice(choice, chat=self.chat) for choice in self.choices]
        kind = "chat.completion" if self.chat else "text_completion"
        return orjson.dumps(
            {
                "id": self.id,
                "object": kind,
                "created": self.created,
                "model": self.model,
                "choices": choices,
                "usage": self.usage(),
            }
        )

    def usage_event(self) -> bytes:
        """The last chunk of a stream whose client asked for usage."""
        return _event({**self._head(), "choices": [], "usage": self.usage()})

    def format(self, choice: Choice) -> ChoiceFormat:
        """The templates of one choice's events."""
        return ChoiceFormat(self._head(), choice, chat=self.chat)

    def _head(self) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


class ChoiceFormat:
    """Renders a choice's tokens as SSE events. `opening` goes before the first."""

    __slots__ = ("_choice", "_last", "_next", "_prefix", "opening")

    def __init__(self, head: dict[str, Any], choice: Choice, *, chat: bool) -> None:
        def template(reason: str | None, stop_reason: str | None = None) -> list[bytes]:
            body = _delta(choice, "\0", chat=chat) | {"logprobs": None, "finish_reason": reason}
            body["stop_reason"] = stop_reason
            return _event({**head, "choices": [{"index": choice.index, **body}]}).split(orjson.dumps("\0"))

        self._choice = choice
        self._prefix, suffix = template(None)
        self._next = suffix + self._prefix
        self._last = template(choice.finish_reason, choice.stop_reason)[1]
        self.opening = b"".join(
            _event(
                {
                    **head,
                    "choices": [{"index": choice.index, **delta, "logprobs": None, "finish_reason": None}],
                }
            )
            for delta in _opening_deltas(choice, chat=chat)
        )

    def events(self, count: int) -> bytes:
        """Events of the next `count` tokens; counts them as sent."""
        choice = self._choice
        start, choice.sent = choice.sent, choice.sent + count
        pieces = map(orjson.dumps, choice.pieces[start : choice.sent])
        suffix = self._last if choice.done else self._next[: -len(self._prefix)]
        return self._prefix + self._next.join(pieces) + suffix


def error_event(message: str) -> bytes:
    """An error in the middle of a stream, as vLLM sends it."""
    return _event({"error": {"message": message, "type": "InternalServerError", "param": None, "code": 500}})


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"


def _delta(choice: Choice, piece: str, *, chat: bool) -> dict[str, Any]:
    if not chat:
        return {"text": piece}
    if choice.tool is None:
        return {"delta": {"content": piece}}
    return {"delta": {"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}}


def _opening_deltas(choice: Choice, *, chat: bool) -> list[dict[str, Any]]:
    if not chat:
        return [{"text": choice.echo}] if choice.echo else []
    role = {"delta": {"role": "assistant", "content": ""}}
    if choice.tool is None:
        return [role]
    function = {"name": choice.tool, "arguments": ""}
    call = {"index": 0, "id": _call_id(choice), "type": "function", "function": function}
    return [role, {"delta": {"tool_calls": [call]}}]


def _unary_choice(choice: Choice, *, chat: bool) -> dict[str, Any]:
    tail = {"logprobs": None, "finish_reason": choice.finish_reason, "stop_reason": choice.stop_reason}
    if not chat:
        return {"index": choice.index, "text": choice.text, **tail}
    message: dict[str, Any] = {"role": "assistant", "content": choice.text, "tool_calls": []}
    if choice.tool is not None:
        function = {"name": choice.tool, "arguments": choice.text}
        call = {"id": _call_id(choice), "type": "function", "function": function}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
    return {"index": choice.index, "message": message, **tail}


def _call_id(choice: Choice) -> str:
    return f"call_{choice.request.id}"
