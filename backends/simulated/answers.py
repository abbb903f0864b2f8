"""An answer as the engine makes it, in no dialect yet, and what a dialect has to render of it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from backends.simulated.sequence import SimRequest


@dataclass(slots=True)
class Choice:
    """One alternative of an answer, and how much of it is out. `tool` names the function of a call."""

    index: int
    request: SimRequest
    pieces: Sequence[str]
    finish_reason: str
    stop_reason: str | None = None
    tool: str | None = None
    echo: str = ""
    sent: int = 0
    cached_tokens: int = 0

    @property
    def text(self) -> str:
        """The whole answer, the prompt in front where it was asked for."""
        return self.echo + "".join(self.pieces)

    @property
    def done(self) -> bool:
        """Whether every token is out."""
        return self.sent == len(self.pieces)

    @property
    def call_id(self) -> str:
        """The id of its tool call."""
        return f"call_{self.request.id}"

    def take(self, count: int) -> Sequence[str]:
        """The next `count` pieces; counts them as sent."""
        start, self.sent = self.sent, self.sent + count
        return self.pieces[start : self.sent]


@dataclass(slots=True)
class Answers:
    """All that one HTTP request asked for: `n` choices for each of its prompts."""

    id: str
    created: int
    model: str
    prompt_tokens: int
    n: int = 1
    choices: list[Choice] = field(default_factory=list)
    reported_cached: int | None = None
    """Told instead of the true number of cached tokens, to see who believes it."""

    @property
    def output_tokens(self) -> int:
        """Tokens generated so far."""
        return sum(choice.sent for choice in self.choices)

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens found in the cache; a prompt asked for n answers counts once, with its first one's hits."""
        if self.reported_cached is not None:
            return self.reported_cached
        return sum(choice.cached_tokens for choice in self.choices[:: self.n])


class ChoiceFormat(Protocol):
    """Renders one choice of a stream."""

    def opening(self) -> bytes:
        """What comes before the first token, whose cached tokens are known by now."""
        ...

    def events(self, count: int) -> bytes:
        """The next `count` tokens; counts them as sent."""
        ...


class Rendering(Protocol):
    """Renders an answer in the bytes of one dialect: a body, or `start`, each choice's tokens and `end`."""

    @property
    def answers(self) -> Answers:
        """What is rendered."""
        ...

    def body(self) -> bytes:
        """The unary response body."""
        ...

    def start(self) -> bytes:
        """Events that come at once, before the engine has done anything."""
        ...

    def format(self, choice: Choice) -> ChoiceFormat:
        """How one choice's tokens are rendered."""
        ...

    def end(self) -> bytes:
        """Events after the last token; the very last one is the dialect's sign that nothing is missing."""
        ...

    def failure(self, message: str, *, after: int) -> bytes:
        """Events of an error in the middle of a stream, `after` so many others, up to where the stream ends."""
        ...


def stream_events(rendering: Rendering) -> list[bytes]:
    """Every SSE event of a whole stream, in order; the answers are generated already."""
    parts = [rendering.start()]
    for choice in rendering.answers.choices:
        choice.sent = 0
        rendered = rendering.format(choice)
        parts.append(rendered.opening())
        parts += [rendered.events(1) for _ in choice.pieces]
    parts.append(rendering.end())
    # No event's JSON holds a line end.
    return [event + b"\n\n" for event in b"".join(parts).split(b"\n\n") if event]
