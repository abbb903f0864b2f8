"""Anthropic's messages: a body as events. Pure.

Source: Anthropic's API reference, "Streaming messages". There are no `ping` events: they fill silences.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

import orjson

from gateway.answers.base import (
    AnswerError,
    Facts,
    FailedAnswerError,
    Json,
    count,
    dump,
    json_pieces,
    objects,
    string,
    unary_object,
)
from gateway.answers.sse import event_bytes
from gateway.dialects.base import Usage

_LONG_NUMBER: Final = re.compile(rb"[0-9]{20}")
"""No integer of fewer digits is rounded."""
_TOLD_AT_THE_END: Final = ("stop_reason", "stop_sequence", "stop_details", "container")
_LAST_USAGE: Final = (
    "input_tokens",
    "cache_creation_input_tokens",
    "cache_read_input_tokens",
    "output_tokens",
    "output_tokens_details",
    "server_tool_use",
)
_USAGE_OF_THE_END: Final = ("output_tokens_details", "server_tool_use")
_TRUNCATED: Final = ("max_tokens", "model_context_window_exceeded", "pause_turn")


def read(body: bytes) -> Json:
    """A body as an object. The inputs of its tools keep their numbers as they are, however long.

    Raises:
        AnswerError: It is not one whole message.
    """
    message = unary_object(body)
    blocks = message.get("content")
    if type(blocks) is list and b'"tool_use"' in body and _LONG_NUMBER.search(body) is not None:
        _keep_inputs(blocks, body)
    return checked(message)


def _keep_inputs(blocks: list[Any], body: bytes) -> None:
    """Give the inputs of tools the numbers that orjson has rounded."""
    try:
        exact = json.loads(body)["content"]
        for block, same in zip(blocks, exact, strict=True):
            if type(block) is dict and type(block.get("input")) is dict:
                text = json.dumps(same["input"], ensure_ascii=False, separators=(",", ":"))
                block["input"] = orjson.Fragment(text.encode())
    except RecursionError:
        raise AnswerError("nested too deeply") from None


def events(message: Json) -> list[bytes]:
    """The events of what `read` or `messages_stream.assembled` returned."""
    told = [_event({"type": "message_start", "message": _begun(message)})]
    for index, block in enumerate(message["content"]):
        told += _block_events(index, block)
    delta = {name: message[name] for name in _TOLD_AT_THE_END if name in message} | {
        "stop_reason": message["stop_reason"],
        "stop_sequence": message.get("stop_sequence"),
    }
    usage = {name: message["usage"][name] for name in _LAST_USAGE if name in message["usage"]}
    told.append(_event({"type": "message_delta", "delta": delta, "usage": usage}))
    told.append(_event({"type": "message_stop"}))
    return told


def facts(message: Json) -> Facts:
    """What is known of what `read` or `messages_stream.assembled` returned."""
    reason, blocks, usage = message["stop_reason"], message["content"], message["usage"]
    fresh, cached = count(usage, "input_tokens"), count(usage, "cache_read_input_tokens")
    if fresh is not None:
        fresh += (cached or 0) + (count(usage, "cache_creation_input_tokens") or 0)
    return Facts(
        whole=True,
        answer_id=string(message.get("id")),
        model=string(message.get("model")),
        finish_reasons=(reason,),
        truncated=reason in _TRUNCATED,
        filtered=reason == "refusal",
        refused=reason == "refusal",
        tool_calls=any(block["type"].endswith("tool_use") for block in blocks),
        text="".join(block["text"] for block in blocks if block["type"] == "text"),
        usage=Usage(fresh, count(usage, "output_tokens"), cached),
    )


def checked(message: Json) -> Json:
    """`message`, if it is whole.

    Raises:
        AnswerError: It is not.
    """
    if message.get("type") == "error":
        raise FailedAnswerError("the worker told an error")
    if message.get("type") != "message" or not string(message.get("id")):
        raise AnswerError("not a message")
    if not string(message.get("stop_reason")):
        raise AnswerError("the message has not ended")
    if type(message.get("usage")) is not dict:
        raise AnswerError("a message without its usage")
    for block in objects(message.get("content"), "the content"):
        if type(block.get("type")) is not str:
            raise AnswerError("a block without a type")
        text = block.get(block["type"]) if block["type"] in ("text", "thinking") else ""
        if type(text) is not str:
            raise AnswerError("a text that is no string")
    return message


def _event(fields: Json) -> bytes:
    return event_bytes(fields["type"].encode(), dump(fields))


def _begun(message: Json) -> Json:
    """The message before there is anything in it."""
    usage = {name: value for name, value in message["usage"].items() if name not in _USAGE_OF_THE_END}
    if type(usage.get("output_tokens")) is int:
        usage["output_tokens"] = min(1, usage["output_tokens"])
    begun = {**message, "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
    return begun | {name: None for name in _TOLD_AT_THE_END if name in message}


def _block_events(index: int, block: Json) -> list[bytes]:
    begun, deltas = dict(block), []
    kind = block["type"]
    if kind in ("text", "thinking"):
        begun[kind] = ""
        deltas += _deltas(index, f"{kind}_delta", kind, block[kind])
    if kind == "thinking" and block.get("signature"):
        begun["signature"] = ""
        deltas.append(_delta(index, {"type": "signature_delta", "signature": block["signature"]}))
    if kind == "text" and block.get("citations"):
        begun["citations"] = []
        cited = objects(block["citations"], "the citations")
        deltas += [_delta(index, {"type": "citations_delta", "citation": each}) for each in cited]
    if isinstance(block.get("input"), dict | orjson.Fragment):
        begun["input"] = {}
        text = dump(block["input"]).decode()
        deltas += _deltas(index, "input_json_delta", "partial_json", "" if text == "{}" else text)
    start = _event({"type": "content_block_start", "index": index, "content_block": begun})
    return [start, *deltas, _event({"type": "content_block_stop", "index": index})]


def _delta(index: int, delta: Json) -> bytes:
    return _event({"type": "content_block_delta", "index": index, "delta": delta})


def _deltas(index: int, kind: str, member: str, text: str) -> list[bytes]:
    """Deltas of one text."""
    start = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":"%b","%b":'
    start %= (index, kind.encode(), member.encode())
    return [start + piece + b"}}\n\n" for piece in json_pieces(text)]
