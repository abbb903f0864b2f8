"""Responses (`/v1/responses`) in the bytes OpenAI and vLLM send: one body, or the whole sequence of events. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import orjson

from backends.engine_api.sse import named_event
from backends.simulated.answers import Answers, Choice


class ResponsesRendering:
    """One answer as a response with one output item, a message or a function call.

    `asked` is what a response object repeats of its request. `on_finished` gets the finished response before
    the client can have it.
    """

    def __init__(
        self,
        answers: Answers,
        asked: Mapping[str, Any],
        *,
        on_finished: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        self.answers = answers
        self._asked = asked
        self._on_finished = on_finished
        self._sequence = 0

    @property
    def _choice(self) -> Choice:
        (choice,) = self.answers.choices
        return choice

    def body(self) -> bytes:
        """The unary response body."""
        return orjson.dumps(self.response())

    def response(self) -> dict[str, Any]:
        """The finished response."""
        cut = self._choice.finish_reason == "length"
        answers = self.answers
        usage = {
            "input_tokens": answers.prompt_tokens,
            "input_tokens_details": {"cached_tokens": answers.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": answers.output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": answers.prompt_tokens + answers.output_tokens,
        }
        response = self.unfinished("incomplete" if cut else "completed") | {
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": [self._item("incomplete" if cut else "completed")],
            "usage": usage,
        }
        if self._on_finished is not None:
            self._on_finished(response)
        return response

    def unfinished(self, status: str) -> dict[str, Any]:
        """The response without output, in a status such as `in_progress`."""
        return {
            "id": self.answers.id,
            "object": "response",
            "created_at": self.answers.created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "model": self.answers.model,
            "output": [],
            **self._asked,
            "usage": None,
        }

    def start(self) -> bytes:
        """The response is there, and in progress."""
        self._sequence = 0
        begun = {"response": self.unfinished("in_progress")}
        return self.event("response.created", begun) + self.event("response.in_progress", begun)

    def format(self, choice: Choice) -> ResponsesFormat:
        """The deltas of its one item."""
        return ResponsesFormat(self, choice)

    def opening(self) -> bytes:
        """The item's start and, of a message, its one part's."""
        added = self.event("response.output_item.added", {"output_index": 0, "item": self._item("in_progress")})
        if self._choice.tool is not None:
            return added
        return added + self.event("response.content_part.added", self._place() | {"part": _part("")})

    def end(self) -> bytes:
        """Everything that was begun is done, from the inside out."""
        choice = self._choice
        if choice.tool is None:
            done = self._place() | {"text": choice.text, "logprobs": []}
            inner = self.event("response.output_text.done", done)
            inner += self.event("response.content_part.done", self._place() | {"part": _part(choice.text)})
        else:
            done = {"item_id": self.item_id, "output_index": 0, "name": choice.tool, "arguments": choice.text}
            inner = self.event("response.function_call_arguments.done", done)
        response = self.response()
        item = self.event("response.output_item.done", {"output_index": 0, "item": response["output"][0]})
        return inner + item + self.event(f"response.{response['status']}", {"response": response})

    def failure(self, message: str, *, after: int) -> bytes:
        """An error event, then the response as failed."""
        self._sequence = after
        error = {"code": "server_error", "message": message}
        failed = self.unfinished("failed") | {"error": error}
        return self.event("error", error | {"param": None}) + self.event("response.failed", {"response": failed})

    @property
    def item_id(self) -> str:
        """The id of its one output item."""
        return f"{'msg' if self._choice.tool is None else 'fc'}_{self._choice.request.id}"

    def event(self, kind: str, fields: Mapping[str, Any]) -> bytes:
        """The next event of the stream, which gets the next number."""
        return named_event({"type": kind, "sequence_number": self.number(), **fields})

    def number(self) -> int:
        """The next event's number."""
        self._sequence += 1
        return self._sequence - 1

    def _place(self) -> dict[str, Any]:
        return {"item_id": self.item_id, "output_index": 0, "content_index": 0}

    def _item(self, status: str) -> dict[str, Any]:
        choice, begun = self._choice, status == "in_progress"
        if choice.tool is None:
            content = [] if begun else [_part(choice.text)]
            return {
                "id": self.item_id,
                "type": "message",
                "status": status,
                "role": "assistant",
                "content": content,
            }
        return {
            "id": self.item_id,
            "type": "function_call",
            "status": status,
            "call_id": choice.call_id,
            "name": choice.tool,
            "arguments": "" if begun else choice.text,
        }


class ResponsesFormat:
    """Renders the tokens of the output item as deltas."""

    __slots__ = ("_choice", "_middle", "_prefix", "_rendering", "_suffix")

    def __init__(self, rendering: ResponsesRendering, choice: Choice) -> None:
        self._rendering = rendering
        self._choice = choice
        fields: dict[str, Any] = {"item_id": rendering.item_id, "output_index": 0}
        if choice.tool is None:
            kind = "response.output_text.delta"
            fields |= {"content_index": 0, "delta": "\0", "logprobs": []}
        else:
            kind = "response.function_call_arguments.delta"
            fields |= {"delta": "\0"}
        event = named_event({"type": kind, "sequence_number": "\0", **fields})
        self._prefix, self._middle, self._suffix = event.split(orjson.dumps("\0"))

    def opening(self) -> bytes:
        """The item's start."""
        return self._rendering.opening()

    def events(self, count: int) -> bytes:
        """Deltas of the next `count` tokens."""
        number, prefix, middle, suffix = self._rendering.number, self._prefix, self._middle, self._suffix
        pieces = self._choice.take(count)
        return b"".join(
            b"%b%d%b%b%b" % (prefix, number(), middle, orjson.dumps(piece), suffix) for piece in pieces if piece
        )


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
