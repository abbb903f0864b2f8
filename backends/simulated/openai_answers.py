"""Chat completions and completions in the bytes vLLM sends: one body, or one SSE event a token. Pure."""

from __future__ import annotations

from typing import Any

import orjson

from backends.engine_api.sse import DONE, data_event, error_events
from backends.simulated.answers import Answers, Choice


class CompletionRendering:
    """`chat` tells the dialect, `usage` whether a stream ends with a usage chunk."""

    def __init__(self, answers: Answers, *, chat: bool, usage: bool = False) -> None:
        self.answers = answers
        self._chat = chat
        self._usage = usage

    def body(self) -> bytes:
        """The unary response body."""
        choices = [_unary_choice(choice, chat=self._chat) for choice in self.answers.choices]
        kind = "chat.completion" if self._chat else "text_completion"
        return orjson.dumps(self._head(kind) | {"choices": choices, "usage": usage_of(self.answers)})

    def start(self) -> bytes:
        """Nothing: the first chunk comes with the first token."""
        return b""

    def format(self, choice: Choice) -> CompletionFormat:
        """The templates of one choice's chunks."""
        return CompletionFormat(self._chunk_head(), choice, chat=self._chat)

    def end(self) -> bytes:
        """Usage if wanted, and `[DONE]`."""
        if not self._usage:
            return DONE
        return data_event({**self._chunk_head(), "choices": [], "usage": usage_of(self.answers)}) + DONE

    def failure(self, message: str, *, after: int) -> bytes:  # noqa: ARG002 - these events have no numbers
        """An error chunk and `[DONE]`, as vLLM sends them."""
        return error_events(message)

    def _chunk_head(self) -> dict[str, Any]:
        return self._head("chat.completion.chunk" if self._chat else "text_completion")

    def _head(self, kind: str) -> dict[str, Any]:
        answers = self.answers
        return {"id": answers.id, "object": kind, "created": answers.created, "model": answers.model}


class CompletionFormat:
    """Renders a choice's tokens as chunks."""

    __slots__ = ("_choice", "_last", "_next", "_opening", "_prefix")

    def __init__(self, head: dict[str, Any], choice: Choice, *, chat: bool) -> None:
        def template(reason: str | None, stop_reason: str | None = None) -> list[bytes]:
            body = _delta(choice, "\0", chat=chat) | {"logprobs": None, "finish_reason": reason}
            body["stop_reason"] = stop_reason
            return data_event({**head, "choices": [{"index": choice.index, **body}]}).split(orjson.dumps("\0"))

        self._choice = choice
        self._prefix, suffix = template(None)
        self._next = suffix + self._prefix
        self._last = template(choice.finish_reason, choice.stop_reason)[1]
        plain = {"logprobs": None, "finish_reason": None}
        self._opening = b"".join(
            data_event({**head, "choices": [{"index": choice.index, **delta, **plain}]})
            for delta in _opening_deltas(choice, chat=chat)
        )

    def opening(self) -> bytes:
        """The role, the start of a call, or the echoed prompt."""
        return self._opening

    def events(self, count: int) -> bytes:
        """Chunks of the next `count` tokens; counts them as sent."""
        pieces = map(orjson.dumps, self._choice.take(count))
        suffix = self._last if self._choice.done else self._next[: -len(self._prefix)]
        return self._prefix + self._next.join(pieces) + suffix


def usage_of(answers: Answers) -> dict[str, Any]:
    """OpenAI's usage object."""
    return {
        "prompt_tokens": answers.prompt_tokens,
        "total_tokens": answers.prompt_tokens + answers.output_tokens,
        "completion_tokens": answers.output_tokens,
        "prompt_tokens_details": {"cached_tokens": answers.cached_tokens},
    }


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
    call = {"index": 0, "id": choice.call_id, "type": "function", "function": function}
    return [role, {"delta": {"tool_calls": [call]}}]


def _unary_choice(choice: Choice, *, chat: bool) -> dict[str, Any]:
    tail = {"logprobs": None, "finish_reason": choice.finish_reason, "stop_reason": choice.stop_reason}
    if not chat:
        return {"index": choice.index, "text": choice.text, **tail}
    message: dict[str, Any] = {"role": "assistant", "content": choice.text, "tool_calls": []}
    if choice.tool is not None:
        function = {"name": choice.tool, "arguments": choice.text}
        call = {"id": choice.call_id, "type": "function", "function": function}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
    return {"index": choice.index, "message": message, **tail}
