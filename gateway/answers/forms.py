"""The two forms of a recorded answer, as one body and as a stream. It is kept as a body, whichever it came in, and told
in the form that each client of the same request asks for. Pure.

What goes in is what a worker sent, without transfer encoding; what comes out is what the same API would have sent in
the other form. `kind` is that of the route (`gateway.routes.GENERATES`), since an answer is never translated into
another dialect. Everything is decided on the whole recording: what is not one whole answer must not be kept.

The answer keeps the `id` and the time (`created`, `created_at`) that it was recorded with: it is that answer, not a
new one. A response that is replayed can so be referred to by `previous_response_id`, and is found at the worker that
made it. Usage is what that worker counted, for the same reason. A stream that was not asked for its usage does not
tell it: the body made of it has `"usage": null`, which OpenAI's clients take as not told, and no gateway's guess.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from gateway.answers import chat, completions, messages, messages_stream, responses
from gateway.answers.base import AnswerError, Facts, FailedAnswerError, Json, dump
from gateway.routes import Kind


class _Form(NamedTuple):
    """How answers of one kind are read and told."""

    of_stream: Callable[[bytes], Json]
    of_body: Callable[[bytes], Json]
    events: Callable[[Json, bool], list[bytes]]
    """With the usage, or without it."""
    facts: Callable[[Json], Facts]


_FORMS: Final[Mapping[Kind, _Form]] = {
    Kind.CHAT: _Form(chat.assembled, chat.read, chat.events, chat.facts),
    Kind.COMPLETION: _Form(completions.assembled, completions.read, completions.events, completions.facts),
    # These two always tell it.
    Kind.RESPONSES: _Form(
        responses.assembled, responses.read, lambda answer, _: responses.events(answer), responses.facts
    ),
    Kind.MESSAGES: _Form(
        messages_stream.assembled, messages.read, lambda answer, _: messages.events(answer), messages.facts
    ),
}


def disassemble(kind: Kind, body: bytes, *, usage: bool = False) -> list[bytes]:
    """A body → the events of a stream, each as bytes, `[DONE]` included where the dialect has it.

    A text comes in `base.MOST_PIECES` deltas at most, of a few words each, so that it can be sent at a pace. `usage`:
    does the client ask for a chunk with the usage (see `wants_usage`)? Only chunks depend on it. There is none where
    the body does not tell the usage.

    Raises:
        AnswerError: The body is not one whole answer.
    """
    form = _form(kind)
    return form.events(form.of_body(body), usage)


def examine(kind: Kind, recorded: bytes, *, streamed: bool) -> tuple[Facts, bytes]:
    """What a cache needs to know before it keeps what was recorded, a stream or a body, and the answer as a body, empty
    where it is not whole. Raises nothing.

    Of a body that comes out of here `disassemble` can make a stream. It is worth keeping in place of the stream: a
    tenth of its size, and made a stream again in less time than the stream is read.
    """
    try:
        form = _form(kind)
        answer = form.of_stream(recorded) if streamed else form.of_body(recorded)
        body = dump(answer) if streamed else recorded
        form.events(answer, True)
        return form.facts(answer), body
    except AnswerError as error:
        return Facts(whole=False, why=str(error), failed=isinstance(error, FailedAnswerError)), b""


def facts(kind: Kind, recorded: bytes, *, streamed: bool) -> Facts:
    """What a cache needs to know before it keeps what was recorded: a stream, or a body. Raises nothing."""
    return examine(kind, recorded, streamed=streamed)[0]


def wants_usage(fields: Mapping[str, object]) -> bool:
    """Does a request for chunks ask for one with the usage?"""
    options = fields.get("stream_options")
    return isinstance(options, Mapping) and options.get("include_usage") is True


def _form(kind: Kind) -> _Form:
    form = _FORMS.get(kind)
    if form is None:
        raise AnswerError("answers of this route have no two forms")
    return form
