"""What is measured of one request, and the pure part of reading its stream."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import sub
from typing import Final

import orjson

from policies.latency_model import Prediction

MAX_GAPS: Final = 16_384
"""Token gaps kept of one request; of any further ones only count, sum and maximum."""

DONE: Final = b"[DONE]"


@dataclass(slots=True)
class Gaps:
    """Times between consecutive tokens of one request, seconds."""

    count: int = 0
    total: float = 0.0
    longest: float = 0.0
    kept: array[float] = field(default_factory=lambda: array("f"))

    def add(self, seconds: float) -> None:
        """One more gap."""
        self.count += 1
        self.total += seconds
        self.longest = max(self.longest, seconds)
        if self.count <= MAX_GAPS:
            self.kept.append(seconds)

    def add_between(self, times: Sequence[float]) -> None:
        """All gaps between ascending `times`, of which there are at least two."""
        gaps = list(map(sub, times[1:], times))
        self.kept.extend(gaps[: max(MAX_GAPS - self.count, 0)])
        self.count += len(gaps)
        self.total += sum(gaps)
        self.longest = max(self.longest, max(gaps))  # noqa: PLW3301 - of a list, not of two numbers

    @property
    def mean(self) -> float | None:
        """Of all gaps, kept or not; None of none."""
        return self.total / self.count if self.count else None


@dataclass(slots=True)
class RequestRecord:
    """One request's row. Times are seconds since the replay began; ``None`` is "did not happen" or "was not
    told".
    """

    index: int
    session: str | None
    scheduled: float
    input_tokens: int
    output_tokens: int  # asked for
    limit_tokens: int  # what one unbounded cache for all would have served
    sent: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    finished: float | None = None
    token_events: int = 0
    gaps: Gaps = field(default_factory=Gaps)
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    status: int | None = None
    error: str | None = None  # a class such as "http_503"; None when the request succeeded
    error_detail: str | None = None
    worker: str | None = None
    estimated: bool = False  # the trace's token counts are no more than estimates
    warm_up: bool = False  # sent, and not counted
    dispatched: float | None = None  # to its worker, by a gateway in virtual time
    predicted: Prediction | None = None  # what that gateway then expected
    expected_s: float | None = None  # until its first token, as expected when it came and had to wait

    @property
    def ok(self) -> bool:
        """Answered in full."""
        return self.finished is not None and self.error is None

    @property
    def ttft(self) -> float | None:
        """Sent to first token."""
        return None if self.first_token is None or self.sent is None else self.first_token - self.sent

    @property
    def latency(self) -> float | None:
        """Sent to last token."""
        return None if self.last_token is None or self.sent is None else self.last_token - self.sent

    @property
    def tokens_made(self) -> int:
        """Output tokens as the server counted them, else the events that carried text."""
        return self.token_events if self.completion_tokens is None else self.completion_tokens

    @property
    def tpot(self) -> float | None:
        """First to last token ÷ the tokens after the first; None of one token."""
        if self.first_token is None or self.last_token is None or self.tokens_made < 2:
            return None
        return (self.last_token - self.first_token) / (self.tokens_made - 1)

    @property
    def lateness(self) -> float | None:
        """How much later than scheduled this client sent the request: its own fault, not the server's."""
        return None if self.sent is None else self.sent - self.scheduled

    def token(self, now: float) -> None:
        """A piece of text arrived at ``now``."""
        self.token_events += 1
        if self.first_token is None:
            self.first_token = now
        elif self.last_token is not None:
            self.gaps.add(now - self.last_token)
        self.last_token = now

    def tokens(self, times: Sequence[float]) -> None:
        """Pieces of text arrived at these ascending times."""
        if not times:
            return
        self.token_events += len(times)
        if self.first_token is None:
            self.first_token = times[0]
        if self.last_token is not None:
            self.gaps.add_between((self.last_token, *times))
        elif len(times) > 1:
            self.gaps.add_between(times)
        self.last_token = times[-1]


class StreamError(ValueError):
    """The stream says or shows that the request failed; ``kind`` is the error class."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


def read_event(record: RequestRecord, data: bytes, now: float) -> bool:
    """Book one event of an OpenAI stream that arrived at ``now``; true when it was the last.

    A token is an event with text (content, reasoning, tool call or completion text). Raises `StreamError` on
    an error object and on anything that is not an OpenAI chunk.
    """
    if data == DONE:
        return True
    try:
        event = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise StreamError("malformed_event", f"{error}: {data[:80]!r}") from error
    if not isinstance(event, dict):
        raise StreamError("malformed_event", f"not an object: {data[:80]!r}")
    if event.get("error") is not None:
        raise StreamError("error_event", error_message(event))
    finished = False
    choices = event.get("choices") or ()
    if not isinstance(choices, list | tuple):
        raise StreamError("malformed_event", "choices that are not a list")
    for choice in choices:
        if _has_text(choice):
            record.token(now)
        finished = finished or choice.get("finish_reason") is not None
    if finished and record.first_token is None:
        record.token(now)  # an answer without any text (a special token, say) still ended at some time
    usage = event.get("usage")
    if isinstance(usage, dict):
        read_usage(record, usage)
    return False


def read_usage(record: RequestRecord, usage: dict[str, object]) -> None:
    """Keep the token counts of an OpenAI ``usage`` object."""
    record.prompt_tokens = _count(usage.get("prompt_tokens"))
    record.completion_tokens = _count(usage.get("completion_tokens"))
    details = usage.get("prompt_tokens_details")
    if isinstance(details, dict):
        record.cached_tokens = _count(details.get("cached_tokens"))


def error_message(body: object) -> str:
    """The message of an OpenAI error body, or the body itself, cut to 200 characters."""
    if isinstance(body, dict):
        error = body.get("error", body.get("message", body))
        body = error.get("message", error) if isinstance(error, dict) else error
    return " ".join(str(body).split())[:200]


def _has_text(choice: object) -> bool:
    if not isinstance(choice, dict):
        raise StreamError("malformed_event", "a choice that is not an object")
    if choice.get("text"):
        return True
    delta = choice.get("delta")
    return isinstance(delta, dict) and any(
        delta.get(name) for name in ("content", "reasoning_content", "reasoning", "tool_calls", "refusal")
    )


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
