"""Which requests may be answered by meaning, what they ask, and what must be equal to the letter besides. Pure.

Two requests can share an answer by meaning only where all but the last user's text is the same: model, system prompt,
history, tools, sampling, format. So a request is taken apart into its question, a text, and the rest: the same request
with a marker in the place of that text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from policies.guards.reading import MAX_CHARACTERS, MAX_WORDS

CHAT: Final = "chat"
MESSAGES: Final = "messages"
RESPONSES: Final = "responses"
ROUTES: Final = frozenset({CHAT, MESSAGES, RESPONSES})
MOST_BYTES: Final = 960
"""Of a question in UTF-8."""
MARKER: Final[Mapping[str, object]] = {"prefixgate": "question"}
"""In the place of the question: no text, so that nobody can write it there."""

_SYSTEM: Final = frozenset({"system", "developer"})
_TEXTS: Final = {CHAT: ("text",), MESSAGES: ("text",), RESPONSES: ("input_text", "output_text")}
_TOOLS: Final = ("tools", "functions", "web_search_options", "mcp_servers", "plugins")
_SCORES: Final = ("logprobs", "top_logprobs", "prompt_logprobs", "return_token_ids", "echo")


class SemanticRefusal(StrEnum):
    """Why a request is not answered by meaning."""

    ROUTE = "route"
    SAMPLED = "sampled"
    """Each answer is drawn anew."""
    TOOLS = "tools"
    CHOICES = "choices"
    SCORES = "scores"
    """It wants to know more than the text: probabilities, tokens."""
    AUDIO = "audio"
    CONTENT = "content"
    """Something else than text: images, files, what tools have sent."""
    TURNS = "turns"
    """A conversation goes on."""
    LONG = "long"
    SHAPE = "shape"
    """No question is found in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """What is allowed beyond single questions in text at temperature 0."""

    multi_turn: bool = False
    """The history counts to the letter."""
    tools: bool = False
    temperature: bool = False


class Question(NamedTuple):
    """A request taken apart."""

    text: str
    rest: Mapping[str, object]
    """The request with `MARKER` in the place of the text."""


def question_of(
    route: str, fields: Mapping[str, object], *, asked: bool = False, allowed: Allowed | None = None
) -> Question | SemanticRefusal:
    """Take a request apart, or tell why that may not be. `fields`: its parsed body, which is left as it is. `asked`:
    its client asks for stored answers, and so takes a temperature that is not given for none.
    """
    allowed = allowed or Allowed()
    if route not in ROUTES:
        return SemanticRefusal.ROUTE
    refusal = _refused(fields, asked, allowed)
    if refusal is not None:
        return refusal
    found = _input(fields) if route == RESPONSES else _last_turn(route, "messages", fields, allowed)
    if isinstance(found, SemanticRefusal):
        return found
    return _too_long(found.text) or found


def _refused(fields: Mapping[str, object], asked: bool, allowed: Allowed) -> SemanticRefusal | None:
    temperature = fields.get("temperature")
    greedy = (type(temperature) in {int, float} and temperature == 0) or (temperature is None and asked)
    if not greedy and not allowed.temperature:
        return SemanticRefusal.SAMPLED
    if not allowed.tools and any(fields.get(name) not in (None, []) for name in _TOOLS):
        return SemanticRefusal.TOOLS
    if any(fields.get(name) not in (None, 1) for name in ("n", "best_of")):
        return SemanticRefusal.CHOICES
    if any(fields.get(name) not in (None, False) for name in _SCORES) or fields.get("include"):
        return SemanticRefusal.SCORES
    if fields.get("audio") is not None or fields.get("modalities") not in (None, ["text"]):
        return SemanticRefusal.AUDIO
    return None


def _input(fields: Mapping[str, object]) -> Question | SemanticRefusal:
    """Of a request to `/v1/responses`, whose input may be one text."""
    given = fields.get("input")
    if type(given) is str:
        return Question(given, {**fields, "input": MARKER})
    return _last_turn(RESPONSES, "input", fields, Allowed())


def _last_turn(route: str, name: str, fields: Mapping[str, object], allowed: Allowed) -> Question | SemanticRefusal:
    turns = fields.get(name)
    if type(turns) is not list or not turns or not all(type(turn) is dict for turn in turns):
        return SemanticRefusal.SHAPE
    last = turns[-1]
    if last.get("role") != "user" or last.get("type") not in {None, "message"}:
        return SemanticRefusal.TURNS
    if not allowed.multi_turn and any(turn.get("role") not in _SYSTEM for turn in turns[:-1]):
        return SemanticRefusal.TURNS
    texts = _TEXTS[route]
    if any(not _is_text(content, texts) for content in _contents(fields, turns)):
        return SemanticRefusal.CONTENT
    content = last.get("content")
    text, marked = (content, MARKER) if type(content) is str else _only_part(content)
    if text is None:
        return SemanticRefusal.SHAPE
    return Question(text, {**fields, name: [*turns[:-1], {**last, "content": marked}]})


def _contents(fields: Mapping[str, object], turns: Sequence[Mapping[str, object]]) -> Iterator[object]:
    for name in ("system", "instructions"):
        if fields.get(name) is not None:
            yield fields[name]
    for turn in turns:
        yield turn.get("content")


def _is_text(content: object, texts: Sequence[str]) -> bool:
    """Nothing but text; a turn of the assistant may have no content where it called tools, which count as they are."""
    if content is None or type(content) is str:
        return True
    return type(content) is list and all(
        type(part) is dict and part.get("type") in texts and type(part.get("text")) is str for part in content
    )


def _only_part(content: object) -> tuple[str | None, object]:
    """The text of content that is a single part, and the content with the marker in it."""
    if type(content) is not list or len(content) != 1:
        return None, None
    part = content[0]
    return part["text"], [{**part, "text": MARKER}]


def _too_long(text: str) -> SemanticRefusal | None:
    if not text.strip():
        return SemanticRefusal.SHAPE
    if len(text) > min(MOST_BYTES, MAX_CHARACTERS) or len(text.split()) > MAX_WORDS:
        return SemanticRefusal.LONG
    try:
        return SemanticRefusal.LONG if len(text.encode()) > MOST_BYTES else None
    except UnicodeEncodeError:  # lone surrogates
        return SemanticRefusal.SHAPE
