"""Completions: their chunks as one body, a body as chunks. Pure.

Source: OpenAI's API reference, "Completions"; chunks and bodies have the same shape.
"""

from __future__ import annotations

from typing import Any, Final

from gateway.answers.base import AnswerError, Facts, Json, json_pieces, string, token_pieces
from gateway.answers.chunks import ChunkWriter, checked, merged, read_unary, usage_of

_KIND: Final = "text_completion"
_NOT_IN_THE_END: Final = frozenset({"index", "text", "logprobs"})


def assembled(stream: bytes) -> Json:
    """The body of the same answer.

    Raises:
        AnswerError: The stream is not one whole answer.
    """
    answer = merged(stream, _KIND, _merge)
    for choice in answer["choices"]:
        choice["text"] = "".join(choice["text"])
    return _checked(checked(answer))


def read(body: bytes) -> Json:
    """A body as an object.

    Raises:
        AnswerError: It is not one whole answer.
    """
    return _checked(read_unary(body))


def events(answer: Json, usage: bool) -> list[bytes]:
    """The chunks of what `read` or `assembled` returned."""
    writer = ChunkWriter(answer, _KIND, usage=usage)
    for choice in answer["choices"]:
        index, text, logprobs = choice["index"], choice["text"], choice.get("logprobs")
        if type(logprobs) is dict and type(logprobs.get("tokens")) is list and logprobs["tokens"]:
            _write_tokens(writer, index, text, logprobs)
            logprobs = {name: [] if type(value) is list else value for name, value in logprobs.items()}
        else:
            if writer.untold:
                writer.add(index, {"text": "", "logprobs": None, "finish_reason": None})
            start, end = writer.around(index)
            start, end = start + b'"text":', b',"logprobs":null,"finish_reason":null' + end
            writer.events += [start + piece + end for piece in json_pieces(text)]
        ending = {key: value for key, value in choice.items() if key not in _NOT_IN_THE_END}
        writer.add(index, {"text": "", "logprobs": logprobs, **ending})
    return writer.ended()


def facts(answer: Json) -> Facts:
    """What is known of what `read` or `assembled` returned."""
    reasons = tuple(choice["finish_reason"] for choice in answer["choices"])
    return Facts(
        whole=True,
        answer_id=string(answer.get("id")),
        model=string(answer.get("model")),
        finish_reasons=reasons,
        truncated="length" in reasons,
        filtered="content_filter" in reasons,
        text=answer["choices"][0]["text"],
        usage=usage_of(answer),
    )


def _merge(grown: Json, choice: Json) -> None:
    text = choice.pop("text", None)
    if text is not None and type(text) is not str:
        raise AnswerError("a text that is no string")
    grown.setdefault("text", []).append(text or "")


def _checked(answer: Json) -> Json:
    if any(type(choice.get("text")) is not str for choice in answer["choices"]):
        raise AnswerError("a choice without a text")
    return answer


def _write_tokens(writer: ChunkWriter, index: int, text: str, logprobs: dict[str, Any]) -> None:
    """The text in whole tokens, each chunk with the log probabilities of its own."""
    tokens = [string(token) or "" for token in logprobs["tokens"]]
    start = 0
    for piece, length in token_pieces(text, tokens):
        end = start + length
        told = {name: value[start:end] if type(value) is list else value for name, value in logprobs.items()}
        start = end
        writer.add(index, {"text": piece, "logprobs": told, "finish_reason": None})
