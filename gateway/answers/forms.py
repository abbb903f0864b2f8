"""The two forms of a recorded answer, as one body and as a stream, made from one another: one recording serves every
client of the same request, whichever form it asks for. Pure.

What goes in is what a worker sent, without transfer encoding; what comes out is what the same API would have sent in
the other form. `kind` is that of the route (`gateway.routes.GENERATES`), since an answer is never translated into
another dialect. Everything is decided on the whole recording: what is not one whole answer is an `AnswerError`, in
every form, and must not be kept.

The answer keeps the `id` and the time (`created`, `created_at`) that it was recorded with: it is that answer, not a
new one. A response that is replayed can so be referred to by `previous_response_id`, and is found at the worker that
made it. Usage is what that worker counted, for the same reason. A stream that was not asked for its usage does not
tell it: the body made of it has `"usage": null`, which OpenAI's clients take as not told, and no gateway's guess.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gateway.answers import chat, chunks, completions, messages, messages_stream, responses
from gateway.answers.base import AnswerError, Facts, FailedAnswerError, Json, dump
from gateway.routes import Kind

_CHUNKED: Final = (Kind.CHAT, Kind.COMPLETION)


def assemble(kind: Kind, stream: bytes) -> bytes:
    """A whole stream → the body that a client gets that asks for no stream.

    Raises:
        AnswerError: The stream is not one whole answer.
    """
    return dump(_assembled(kind, stream))


def disassemble(kind: Kind, body: bytes, *, usage: bool = False) -> list[bytes]:
    """A body → the events of a stream, each as bytes, `[DONE]` included where the dialect has it.

    A text comes in `base.MOST_PIECES` deltas at most, of a few words each, so that it can be sent at a pace. `usage`:
    does the client ask for a chunk with the usage (see `wants_usage`)? Only chunks depend on it. There is none where
    the body does not tell the usage.

    Raises:
        AnswerError: The body is not one whole answer.
    """
    return _events(kind, _read(kind, body), usage=usage)


def restream(kind: Kind, stream: bytes, *, usage: bool = False) -> list[bytes]:
    """A whole stream → the same events for another client, each as bytes: without padding (`obfuscation`), pings and
    comments, and with the usage or without, as this client asks, where the stream tells it.

    It looks at the ends and at what the events are called, and no closer: that was done by `facts`.

    Raises:
        AnswerError: The stream does not end as one of its dialect does, or fails.
    """
    if kind in _CHUNKED:
        return chunks.restream(stream, usage=usage)
    return responses.restream(stream) if kind is Kind.RESPONSES else messages_stream.restream(stream)


def examine(kind: Kind, recorded: bytes, *, streamed: bool) -> tuple[Facts, bytes]:
    """What a cache needs to know before it keeps what was recorded, a stream or a body, and the answer as a body, empty
    where it is not whole. Raises nothing.

    Of a body that comes out of here all other functions can make what they promise. It is worth keeping in place of
    the stream: a tenth of its size, and made a stream again in less time than the stream is read.
    """
    try:
        answer = _assembled(kind, recorded) if streamed else _read(kind, recorded)
        body = dump(answer) if streamed else recorded
        _events(kind, answer, usage=True)
        return _facts(kind, answer), body
    except AnswerError as error:
        return Facts(whole=False, why=str(error), failed=isinstance(error, FailedAnswerError)), b""


def facts(kind: Kind, recorded: bytes, *, streamed: bool) -> Facts:
    """What a cache needs to know before it keeps what was recorded: a stream, or a body. Raises nothing."""
    return examine(kind, recorded, streamed=streamed)[0]


def wants_usage(fields: Mapping[str, object]) -> bool:
    """Does a request for chunks ask for one with the usage?"""
    options = fields.get("stream_options")
    return isinstance(options, Mapping) and options.get("include_usage") is True


def _facts(kind: Kind, answer: Json) -> Facts:
    if kind is Kind.CHAT:
        return chat.facts(answer)
    if kind is Kind.COMPLETION:
        return completions.facts(answer)
    return responses.facts(answer) if kind is Kind.RESPONSES else messages.facts(answer)


def _events(kind: Kind, answer: Json, *, usage: bool) -> list[bytes]:
    if kind is Kind.CHAT:
        return chat.events(answer, usage=usage)
    if kind is Kind.COMPLETION:
        return completions.events(answer, usage=usage)
    return responses.events(answer) if kind is Kind.RESPONSES else messages.events(answer)


def _assembled(kind: Kind, stream: bytes) -> Json:
    if kind is Kind.CHAT:
        return chat.assembled(stream)
    if kind is Kind.COMPLETION:
        return completions.assembled(stream)
    if kind is Kind.RESPONSES:
        return responses.assembled(stream)
    if kind is Kind.MESSAGES:
        return messages_stream.assembled(stream)
    raise AnswerError("answers of this route have no two forms")


def _read(kind: Kind, body: bytes) -> Json:
    if kind is Kind.CHAT:
        return chat.read(body)
    if kind is Kind.COMPLETION:
        return completions.read(body)
    if kind is Kind.RESPONSES:
        return responses.read(body)
    if kind is Kind.MESSAGES:
        return messages.read(body)
    raise AnswerError("answers of this route have no two forms")
