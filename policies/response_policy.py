"""Which requests are answered from the cache, and which answers are kept for it. Pure.

Of its own accord the cache answers only what would be answered the same way again: embeddings, and text at
temperature 0. A client may ask for more; what nobody can ask for is an answer that depends on what a server keeps, or
one that is not whole.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

EMBEDDING: Final = "embedding"
RESPONSES: Final = "responses"
ROUTES: Final = frozenset({"chat", "completion", "messages", RESPONSES, EMBEDDING})
"""Kinds of routes whose answers are kept at all."""


class Refusal(StrEnum):
    """Why a request is not answered from the cache, or an answer is not kept."""

    ROUTE = "route"
    """Nothing of this route is kept."""
    SAMPLED = "sampled"
    """Each answer is drawn anew, and the client did not ask for a stored one."""
    CHOICES = "choices"
    """Several answers are drawn: they are meant to differ."""
    STATEFUL = "stateful"
    """It refers to a conversation that goes on elsewhere, runs in the background, or is to be kept by a worker."""
    OUTSIDE = "outside"
    """A tool that the server runs, a file or an image that is fetched, a prompt that is kept with the server: what they
    give may change.
    """

    ERROR = "error"
    UNENDED = "unended"
    """The stream broke off, or does not say how it ended."""
    TRUNCATED = "truncated"
    FILTERED = "filtered"
    AMBIGUOUS = "ambiguous"
    """Parsers may read the request differently (see `cache.response_key`)."""
    SIZE = "size"


# --- requests -----------------------------------------------------------------------------------------------


def refuse_request(route: str, fields: Mapping[str, object], *, asked: bool = False) -> Refusal | None:
    """Why this request has nothing to do with the cache; None where it may be looked up and its answer kept.

    `route`: one of ROUTES, or any other name. `fields`: its parsed body. `asked`: its client asks for stored answers,
    by `CacheDirectives.asks` or by a header of the gateway's own.
    """
    if route not in ROUTES:
        return Refusal.ROUTE
    if route == EMBEDDING:
        return None
    greedy = _is_zero(fields.get("temperature"))
    if not greedy and any(_above_one(fields.get(name)) for name in ("n", "best_of")):
        return Refusal.CHOICES
    if _is_stateful(route, fields, asked=asked):
        return Refusal.STATEFUL
    if not greedy and not asked:
        return Refusal.SAMPLED
    if any(_refers_back(part) for name in ("messages", "input") for part in _parts(fields.get(name))):
        return Refusal.STATEFUL
    if not asked and (_runs_tools(fields) or _fetches(fields) or (route == RESPONSES and fields.get("prompt"))):
        return Refusal.OUTSIDE
    return None


def _is_zero(temperature: object) -> bool:
    """Given, and 0: in all dialects it is not 0 where it is not given. A seed alone makes nothing certain: engines
    promise the same answer for it only in the same batch.
    """
    return type(temperature) in {int, float} and temperature == 0


def _above_one(count: object) -> bool:
    # Anything but 1: what a worker makes of it is not known here.
    return count is not None and not (type(count) is int and count == 1)


def _is_stateful(route: str, fields: Mapping[str, object], *, asked: bool) -> bool:
    if any(fields.get(name) for name in ("previous_response_id", "conversation", "background", "container")):
        return True
    store = fields.get("store")
    # Responses are stored with the worker unless the request says no, to be referred to later.
    return bool(store) or (route == RESPONSES and store is None and not asked)


def _refers_back(part: Mapping[str, object]) -> bool:
    """Does a part of a prompt stand for what a server has said and kept?"""
    audio = part.get("audio")
    return part.get("type") == "item_reference" or (type(audio) is dict and audio.get("id") is not None)


_OWN_TOOLS: Final = (None, "function", "custom")
"""Types of tools that the client runs."""


def _runs_tools(fields: Mapping[str, object]) -> bool:
    if fields.get("web_search_options") is not None or fields.get("mcp_servers"):
        return True
    tools = fields.get("tools")
    return type(tools) is list and any(type(tool) is dict and tool.get("type") not in _OWN_TOOLS for tool in tools)


_LINKS: Final = ("image_url", "video_url", "audio_url", "file_url")
_MOST_DEPTH: Final = 4
"""Messages, their content, and what tools have sent back in it."""


def _fetches(fields: Mapping[str, object]) -> bool:
    """Does the prompt name something that is to be fetched, rather than hold it?"""
    return any(_is_fetched(part) for name in ("messages", "input", "system") for part in _parts(fields.get(name)))


def _parts(content: object, depth: int = 0) -> Iterator[Mapping[str, object]]:
    """Messages and parts of messages."""
    if type(content) is not list or depth == _MOST_DEPTH:
        return
    for part in content:
        if type(part) is dict:
            yield part
            yield from _parts(part.get("content"), depth + 1)


def _is_fetched(part: Mapping[str, object]) -> bool:
    for name in _LINKS:
        link = part.get(name)
        url = link.get("url") if type(link) is dict else link
        if type(url) is str and not url.startswith("data:"):
            return True
    source, file = part.get("source"), part.get("file")
    return (
        (type(source) is dict and source.get("type") in ("url", "file"))
        or (type(file) is dict and file.get("file_id") is not None)
        or part.get("file_id") is not None
    )


# --- answers ------------------------------------------------------------------------------------------------

_WHOLE: Final = frozenset({"stop", "tool_calls", "function_call", "end_turn", "stop_sequence", "tool_use", "completed"})
_FILTERED: Final = frozenset({"content_filter", "refusal"})
_TRUNCATED: Final = frozenset({"length", "max_tokens", "max_output_tokens", "model_context_window_exceeded"})


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFacts:
    """What is known of an answer once it is over."""

    status: int
    ended: bool
    """All of it came: a stream with the end that its dialect gives it, a body as long as was announced."""
    finish_reasons: Collection[str | None]
    """Of each choice, as it was told: `finish_reason`, `stop_reason`, or a response's `status` and the reason why it is
    incomplete. None for a choice that did not tell.
    """
    n_bytes: int
    failed: bool = False
    """An error stands in it, whatever the status says."""


def refuse_answer(route: str, facts: AnswerFacts, *, most_bytes: int) -> Refusal | None:
    """Why this answer is not kept; None where it may be. A reason to end that is not known here counts as truncated."""
    reasons = set(facts.finish_reasons)
    if facts.status != 200 or facts.failed:
        return Refusal.ERROR
    if not facts.ended or not facts.n_bytes or None in reasons or (route != EMBEDDING and not reasons):
        return Refusal.UNENDED
    if reasons & _FILTERED:
        return Refusal.FILTERED
    if reasons & _TRUNCATED or not reasons <= _WHOLE:
        return Refusal.TRUNCATED
    if facts.n_bytes > most_bytes:
        return Refusal.SIZE
    return None
