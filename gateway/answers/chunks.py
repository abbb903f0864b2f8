"""Streams of chunks, as OpenAI's chat completions and completions send them. Pure.

Source: OpenAI's API reference, "Streaming" of both. All chunks of a stream have the same `id`; the last one before
`[DONE]` has no choices and tells the usage, if the client asked for that (`stream_options.include_usage`), and then
all others have `"usage": null`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from gateway.answers.base import AnswerError, FailedAnswerError, Json, count, dump, load_object, objects, unary_object
from gateway.answers.merging import hold_latest, join_lists
from gateway.answers.runs import joined
from gateway.answers.sse import DONE, DONE_EVENT, Event, events_of, plain_data
from gateway.dialects.base import Usage

_IN_EVERY_CHUNK: Final = ("id", "object", "created", "model", "service_tier", "system_fingerprint")
_NOT_OF_A_BODY: Final = ("choices", "object", "usage")
_BEFORE_TEXT: Final = re.compile(
    rb'\{(?:"[a-z_]+":(?:"[^"\\]*"|[0-9]+|null),)*"choices":\[\{(?:"index":[0-9]+,)?(?:"delta":\{"content"|"text"):'
)
_BEHIND_TEXT: Final = re.compile(rb'(?:,"[a-z_]+":(?:null|[0-9]+))*\}[^\[]*\Z')
"""What a chunk may say before and behind its text, if it is to be joined with others: no other text, no list."""
_BROKEN_OFF: Final = ("abort", "error", "cancelled", "insufficient_system_resource")
"""Reasons that engines give for the end of what they did not finish: vLLM, SGLang and DeepSeek."""

ChoiceMerge = Callable[[Json, Json], None]
"""(what has grown of a choice, what the next chunk brings of it): `index`, `finish_reason` and `logprobs` excepted."""


def read_chunks(stream: bytes) -> Iterator[Json]:
    """The chunks of a whole stream, one by one: all at once take ten times the memory of the stream.

    Raises:
        AnswerError: It has not ended as it should, or holds anything but chunks.
    """
    events = events_of(stream)
    _check_end(events)
    if b'"obfuscation"' in stream:
        events = [(name, plain_data(data)) for name, data in events]
    for name, data in joined(events[:-1], _BEFORE_TEXT, _BEHIND_TEXT):
        yield _chunk(name, data)


def _check_end(events: Sequence[Event]) -> None:
    if not events or events[-1][1] != DONE:
        if events:
            _chunk(*events[-1])  # raises what the worker may have told in the end
        raise AnswerError("the stream does not end with [DONE]")


def _chunk(name: bytes, data: bytes) -> Json:
    chunk = load_object(data)
    if chunk.get("error") is not None or name == b"error":
        raise FailedAnswerError("the worker told an error")
    objects(chunk.get("choices"), "the choices of a chunk")
    return chunk


def merged(stream: bytes, kind: str, merge: ChoiceMerge) -> Json:
    """The answer that a stream tells, of the object type `kind`; its choices as `merge` has left them.

    `usage` is null where the stream does not tell it: OpenAI's clients take it as optional.

    Raises:
        AnswerError: The stream is not one whole answer.
    """
    answer: Json = {"id": None, "object": kind, "created": None, "model": None, "choices": [], "usage": None}
    choices: dict[int, Json] = {}
    last: Json = {}
    for chunk in read_chunks(stream):
        for choice in chunk.pop("choices"):
            index = _index(choice)
            _merge_choice(choices.setdefault(index, {"index": index}), choice, merge)
        chunk.pop("object", None)
        chunk.pop("obfuscation", None)
        if chunk != last:  # as most are not
            _merge_head(answer, chunk)
            last = chunk
    answer["choices"] = [choices[index] for index in sorted(choices)]
    return answer


def _merge_head(answer: Json, chunk: Json) -> None:
    answer_id = chunk.get("id")
    if answer_id and answer["id"] and answer_id != answer["id"]:
        raise AnswerError("chunks of two answers in one stream")
    hold_latest(answer, {key: value for key, value in chunk.items() if value != "" or key not in answer})


def _index(choice: Json) -> int:
    index = choice.pop("index", None)
    if type(index) is not int or index < 0:
        raise AnswerError("a choice without a proper index")
    return index


def _merge_choice(grown: Json, choice: Json, merge: ChoiceMerge) -> None:
    logprobs = choice.pop("logprobs", None)
    if type(logprobs) is dict:
        if type(grown.get("logprobs")) is not dict:
            grown["logprobs"] = {}
        join_lists(grown["logprobs"], logprobs)
    elif logprobs is None:
        grown.setdefault("logprobs", None)
    else:
        raise AnswerError("log probabilities that are no object")
    merge(grown, choice)
    token_ids = choice.pop("token_ids", None)
    if type(token_ids) is list:
        grown.setdefault("token_ids", []).extend(token_ids)
    hold_latest(grown, choice)


def read_unary(body: bytes) -> Json:
    """A body of chat completions or completions.

    Raises:
        AnswerError: It is not one whole answer.
    """
    return checked(unary_object(body))


def checked(answer: Json) -> Json:
    """`answer`, its choices in order.

    Raises:
        AnswerError: A choice is missing, or has not ended.
    """
    choices = objects(answer.get("choices"), "the choices")
    if not choices:
        raise AnswerError("no choices")
    if any(type(choice.get("index")) is not int for choice in choices):
        raise AnswerError("a choice without a proper index")
    choices.sort(key=lambda choice: choice["index"])
    if [choice["index"] for choice in choices] != list(range(len(choices))):
        raise AnswerError("a choice is missing, or there twice")
    for choice in choices:
        reason = choice.get("finish_reason")
        if type(reason) is not str or not reason:
            raise AnswerError("a choice has not ended")
        if reason in _BROKEN_OFF:
            raise FailedAnswerError("a choice was broken off")
        if type(choice.get("logprobs")) not in (dict, type(None)):
            raise AnswerError("log probabilities that are no object")
    return answer


class ChunkWriter:
    """Writes the chunks of one stream. What all have in common is made JSON once."""

    def __init__(self, answer: Mapping[str, Any], kind: str, *, usage: bool) -> None:
        head = {name: answer[name] for name in _IN_EVERY_CHUNK if name in answer} | {"object": kind}
        self._start = b"data: " + dump(head)[:-1]
        self._end = b',"usage":null}\n\n' if usage else b"}\n\n"
        rest = {
            key: value
            for key, value in answer.items()
            if value is not None and key not in _IN_EVERY_CHUNK and key not in _NOT_OF_A_BODY
        }
        # What else the worker told of the answer as a whole comes with the first chunk.
        self._first_end = b"," + dump(rest)[1:-1] + self._end if rest else self._end
        self.untold = bool(rest)
        """Is there anything that one chunk alone is to tell, and has not yet?"""
        self._usage = answer.get("usage") if usage else None
        self.events: list[bytes] = []

    def around(self, index: int) -> tuple[bytes, bytes]:
        """What stands before and behind the own members of a choice in a chunk. The first time, and only then,
        behind it stands what one chunk alone is to tell.
        """
        end, self._first_end = self._first_end, self._end
        self.untold = False
        return self._start + b',"choices":[{"index":%d,' % index, b"}]" + end

    def add(self, index: int, fields: Mapping[str, Any]) -> None:
        """A chunk with one choice."""
        before, behind = self.around(index)
        self.events.append(before + dump(fields)[1:-1] + behind)

    def ended(self) -> list[bytes]:
        """All events, with the usage, where it was asked for and is known, and with the end."""
        if self._usage is not None:
            self.events.append(self._start + b',"choices":[],"usage":' + dump(self._usage) + b"}\n\n")
        self.events.append(DONE_EVENT)
        return self.events


def usage_of(answer: Json) -> Usage:
    """The tokens that a body tells."""
    usage = answer.get("usage")
    details = usage.get("prompt_tokens_details") if type(usage) is dict else None
    return Usage(count(usage, "prompt_tokens"), count(usage, "completion_tokens"), count(details, "cached_tokens"))
