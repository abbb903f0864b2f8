"""Chat completions: their chunks as one body, a body as chunks. Pure.

Source: OpenAI's API reference, "Chat completion chunk"; vLLM's additions (`reasoning`, `reasoning_content`,
`stop_reason`, `token_ids`, …) travel as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gateway.answers.base import (
    AnswerError,
    Facts,
    Json,
    dump,
    json_pieces,
    objects,
    string,
    token_pieces,
)
from gateway.answers.chunks import ChunkWriter, checked, merged, read_unary, usage_of
from gateway.answers.merging import full_grown, grow

_BODY: Final = "chat.completion"
_CHUNK: Final = "chat.completion.chunk"
_OWN_CHUNKS: Final = frozenset({"role", "content", "refusal", "tool_calls", "function_call"})
_NOT_IN_THE_END: Final = frozenset({"index", "message", "logprobs"})
_CALL_TEXTS: Final = (("function", "arguments"), ("custom", "input"))
"""Where the long text of a tool call stands."""


def assembled(stream: bytes) -> Json:
    """The body of the same answer.

    Raises:
        AnswerError: The stream is not one whole answer.
    """
    answer = merged(stream, _BODY, _merge)
    for choice in answer["choices"]:
        choice["message"] = _message(full_grown(choice.pop("delta")))
    return _checked(checked(answer))


def read(body: bytes) -> Json:
    """A body as an object.

    Raises:
        AnswerError: It is not one whole answer.
    """
    return _checked(read_unary(body))


def events(answer: Json, usage: bool) -> list[bytes]:
    """The chunks of what `read` or `assembled` returned."""
    writer = ChunkWriter(answer, _CHUNK, usage=usage)
    for choice in answer["choices"]:
        _write_choice(writer, choice)
    return writer.ended()


def facts(answer: Json) -> Facts:
    """What is known of what `read` or `assembled` returned."""
    choices = answer["choices"]
    reasons = tuple(choice["finish_reason"] for choice in choices)
    messages = [choice["message"] for choice in choices]
    return Facts(
        whole=True,
        answer_id=string(answer.get("id")),
        model=string(answer.get("model")),
        finish_reasons=reasons,
        truncated="length" in reasons,
        filtered="content_filter" in reasons,
        refused=any(message.get("refusal") for message in messages),
        tool_calls=any(message.get("tool_calls") or message.get("function_call") for message in messages),
        text=string(messages[0].get("content")) or "",
        usage=usage_of(answer),
    )


def _merge(grown: Json, choice: Json) -> None:
    message = grown.setdefault("delta", {})
    delta = choice.pop("delta", None)
    if delta is None:
        return  # filters of Azure tell of a choice without going on with it
    if type(delta) is not dict:
        raise AnswerError("a delta that is no object")
    grow(message, delta)


def _message(grown: Json) -> Json:
    content = grown.pop("content", None)
    message = {"role": grown.pop("role", None) or "assistant", "content": content, **grown}
    calls = message.get("tool_calls")
    if calls:
        message["tool_calls"] = [_call(call) for call in objects(calls, "the tool calls")]
    if content == "" and (calls or message.get("function_call") or message.get("refusal")):
        message["content"] = None  # a stream opens with an empty text before it is known that none will come
    return message


def _call(call: Json) -> Json:
    return {"id": call.get("id"), "type": call.get("type") or "function"} | {
        key: value for key, value in call.items() if key != "index" and value is not None
    }


def _checked(answer: Json) -> Json:
    for choice in answer["choices"]:
        message = choice.get("message")
        if type(message) is not dict:
            raise AnswerError("a choice without a message")
        for call in objects(message.get("tool_calls") or [], "the tool calls"):
            if not string(call.get("id")):
                raise AnswerError("a tool call without an id")
            if call.get("type", "function") == "function":
                _check_function(call.get("function"))
        if message.get("function_call") is not None:
            _check_function(message["function_call"])
    return answer


def _check_function(function: object) -> None:
    if type(function) is not dict or not string(function.get("name")):
        raise AnswerError("a call without a function's name")


def _write_choice(writer: ChunkWriter, choice: Json) -> None:
    index, message, logprobs = choice["index"], choice["message"], choice.get("logprobs")
    content, refusal = message.get("content"), message.get("refusal")
    opening: Json = {"role": message.get("role") or "assistant", "content": "" if type(content) is str else content}
    if "refusal" in message:
        opening["refusal"] = "" if type(refusal) is str else None
    _write(writer, index, opening)
    for name, value in message.items():
        if name in _OWN_CHUNKS or value is None or value == []:
            continue
        if type(value) is str:
            _write_text(writer, index, b'"%b":' % dump(name)[1:-1], value)
        else:
            _write(writer, index, {name: value})
    _write_content(writer, index, "content", content, logprobs)
    _write_content(writer, index, "refusal", refusal, logprobs)
    for number, call in enumerate(message.get("tool_calls") or []):
        _write_call(writer, index, number, call)
    if message.get("function_call") is not None:
        _write_function_call(writer, index, message["function_call"])
    ending = {key: value for key, value in choice.items() if key not in _NOT_IN_THE_END}
    writer.add(index, {"delta": {}, "logprobs": _without_lists(logprobs), **ending})


def _write(writer: ChunkWriter, index: int, delta: Mapping[str, Any]) -> None:
    writer.add(index, {"delta": delta, "logprobs": None, "finish_reason": None})


def _write_text(writer: ChunkWriter, index: int, before: bytes, text: str, behind: bytes = b"") -> None:
    """Deltas of one string: `before` and `behind` is what stands around each piece of it."""
    start, end = writer.around(index)
    start += b'"delta":{' + before
    end = behind + b'},"logprobs":null,"finish_reason":null' + end
    writer.events += [start + piece + end for piece in json_pieces(text)]


def _write_content(writer: ChunkWriter, index: int, name: str, text: object, logprobs: object) -> None:
    """The content or the refusal, with the log probabilities of its tokens."""
    entries = logprobs.get(name) if type(logprobs) is dict else None
    shown = text if type(text) is str else ""
    if not entries:
        if shown:
            _write_text(writer, index, b'"%b":' % name.encode(), shown)
        return
    start = 0
    tokens = [string(entry.get("token")) or "" for entry in objects(entries, "log probabilities")]
    for piece, length in token_pieces(shown, tokens):
        told = {"content": None, "refusal": None} | {name: entries[start : start + length]}
        start += length
        writer.add(index, {"delta": {name: piece} if piece else {}, "logprobs": told, "finish_reason": None})


def _without_lists(logprobs: object) -> object:
    """What the last chunk says of log probabilities: their lists have been told."""
    if type(logprobs) is not dict:
        return None
    return {
        name: [] if name in ("content", "refusal") and type(value) is list else value
        for name, value in logprobs.items()
    }


def _write_call(writer: ChunkWriter, index: int, number: int, call: Json) -> None:
    call = {**call, "index": number}  # bodies of some servers have an index that is null
    for kind, name in _CALL_TEXTS:
        inner = call.get(kind)
        if type(inner) is dict and type(text := inner.get(name)) is str:
            _write(writer, index, {"tool_calls": [{**call, kind: {**inner, name: ""}}]})
            before = b'"tool_calls":[{"index":%d,"%b":{"%b":' % (number, kind.encode(), name.encode())
            _write_text(writer, index, before, text, b"}}]")
            return
    _write(writer, index, {"tool_calls": [call]})


def _write_function_call(writer: ChunkWriter, index: int, call: Json) -> None:
    text = call.get("arguments")
    if type(text) is not str:
        _write(writer, index, {"function_call": call})
        return
    _write(writer, index, {"function_call": {**call, "arguments": ""}})
    _write_text(writer, index, b'"function_call":{"arguments":', text, b"}")
