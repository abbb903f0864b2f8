"""A stream of Anthropic's as one message. Pure.

Source: Anthropic's API reference, "Streaming messages", and the checks of its Python client. `ping` events are left
out. An event or a delta of a type that is not known here makes a stream unusable, since nobody could say what of the
message it holds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import orjson

from gateway.answers.base import AnswerError, FailedAnswerError, Json, load_object, string
from gateway.answers.merging import hold_latest
from gateway.answers.messages import checked
from gateway.answers.runs import joined
from gateway.answers.sse import DONE, events_of

_TEXT_DELTAS: Final[Mapping[str, str]] = {"text_delta": "text", "thinking_delta": "thinking"}
"""Type of a delta → the member of the block, and of the delta, that it goes on with."""

_BEFORE_TEXT: Final = re.compile(
    rb'\{"type": ?"content_block_delta", ?"index": ?[0-9]+, ?"delta": ?\{"type": ?"'
    rb'(?:text_delta", ?"text|thinking_delta", ?"thinking|input_json_delta", ?"partial_json)": ?'
)
_BEHIND_TEXT: Final = re.compile(rb" ?\} ?\}\Z")


def assembled(stream: bytes) -> Json:
    """The body of the same message. The inputs of its tools are the model's own bytes.

    Raises:
        AnswerError: The stream is not one whole message.
    """
    reader = _Reader()
    for event in _told(stream):
        reader.take(event)
    return checked(reader.message())


class _Reader:
    """Takes the events of one message in their order."""

    def __init__(self) -> None:
        self._message: Json | None = None
        self._blocks: list[_Block] = []
        self._ended = False

    def take(self, event: Json) -> None:
        """The next event.

        Raises:
            AnswerError: It has no place here.
        """
        kind = event["type"]
        if self._ended:
            raise AnswerError("events behind the end of the stream")
        if kind == "message_start":
            self._start(event)
        elif self._message is None:
            raise AnswerError("the stream does not begin with a message")
        elif kind == "content_block_start":
            if event.get("index") != len(self._blocks) or (self._blocks and not self._blocks[-1].stopped):
                raise AnswerError("blocks are not in order")
            self._blocks.append(_Block(_object(event, "content_block")))
        elif kind == "content_block_delta":
            self._open_block(event).add(_object(event, "delta"))
        elif kind == "content_block_stop":
            self._open_block(event).stop()
        elif kind == "message_delta":
            _end(self._message, event)
        elif kind == "message_stop":
            self._ended = True
        else:
            raise AnswerError("an event of an unknown type")

    def message(self) -> Json:
        """What was told.

        Raises:
            AnswerError: That was not all.
        """
        if self._message is None or not self._ended or any(not block.stopped for block in self._blocks):
            raise AnswerError("the stream does not end with the end of a message")
        self._message["content"] = [block.fields for block in self._blocks]
        return self._message

    def _start(self, event: Json) -> None:
        if self._message is not None:
            raise AnswerError("a second message in one stream")
        self._message = _object(event, "message")
        if self._message.get("content") != []:
            raise AnswerError("a message that begins with content")

    def _open_block(self, event: Json) -> _Block:
        if not self._blocks or event.get("index") != len(self._blocks) - 1 or self._blocks[-1].stopped:
            raise AnswerError("a delta or an end of a block that is not open")
        return self._blocks[-1]


class _Block:
    """A content block that is being told."""

    def __init__(self, fields: Json) -> None:
        self.fields = fields
        self.stopped = False
        self._parts: dict[str, list[str]] = {}

    def add(self, delta: Json) -> None:
        kind = delta.get("type")
        member = _TEXT_DELTAS.get(kind) if type(kind) is str else None
        if member is not None:
            self._join(member, delta.get(member), self.fields.get(member))
        elif kind == "input_json_delta":
            self._join("input", delta.get("partial_json"), "")
        elif kind == "signature_delta":
            if self.fields.get("signature"):
                raise AnswerError("a second signature of one block")
            self.fields["signature"] = delta.get("signature")
        elif kind == "citations_delta":
            self.fields["citations"] = [*(self.fields.get("citations") or []), _object(delta, "citation")]
        else:
            raise AnswerError("a delta of an unknown type")

    def stop(self) -> None:
        for member, parts in self._parts.items():
            whole = "".join(parts)
            if member != "input":
                self.fields[member] = whole
            elif whole:
                raw = whole.encode()
                load_object(raw)
                self.fields["input"] = orjson.Fragment(raw)
        self.stopped = True

    def _join(self, member: str, piece: object, before: object) -> None:
        if type(piece) is not str:
            raise AnswerError("a delta that is no text")
        self._parts.setdefault(member, [string(before) or ""]).append(piece)


def _told(stream: bytes) -> list[Json]:
    told = []
    for name, data in joined(events_of(stream), _BEFORE_TEXT, _BEHIND_TEXT):
        if data == DONE:
            continue  # some servers end every stream alike
        event = load_object(data)
        kind = event.get("type")
        if name and type(kind) is str and name != kind.encode():
            raise AnswerError("an event that goes by two names")
        if kind == "error" or name == b"error" or (kind is None and event.get("error") is not None):
            raise FailedAnswerError("the worker told an error")
        if type(kind) is not str:
            raise AnswerError("an event without a type")
        if kind != "ping":
            told.append(event)
    return told


def _object(fields: Json, name: str) -> Json:
    value = fields.get(name)
    if type(value) is not dict:
        raise AnswerError("an event without its object")
    return value


def _end(message: Json, event: Json) -> None:
    """What the end of a stream tells of a message: its usage counts from the beginning."""
    hold_latest(message, _object(event, "delta"))
    usage = event.get("usage")
    if type(usage) is dict:
        message["usage"] = dict(_object(message, "usage") if message.get("usage") else {})
        hold_latest(message["usage"], usage)
    hold_latest(message, {key: value for key, value in event.items() if key not in ("type", "delta", "usage")})
