"""Recorded conversations as traces: what was said is sent again, word for word, one request for each recorded answer.

Three shapes are read, one conversation a row:

- ``{"messages": [...], "tools": [...]}``: OpenAI's own messages, tools optional;
- ``{"traj": [...]}``: the same, as τ-bench records its dialogues (github.com/sierra-research/tau-bench);
- ``{"prompt": {"text", "role", "replies": [...]}}``: a message tree of OpenAssistant. Every recorded answer is asked
  for once: a branch is a session of its own, which begins with the first message it does not share.

Nobody recorded tokens. They are taken as four bytes of the messages' JSON each, in blocks of sixteen, each block named
by a hash of all that stands before its end: equal ids mean equal beginnings, within a conversation and between them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import orjson
import xxhash

from gateway.replay.arrival import Arrival, Chat, Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

TOKEN_BYTES: Final = 4
BLOCK_TOKENS: Final = 16
_BLOCK_BYTES: Final = TOKEN_BYTES * BLOCK_TOKENS
_ROLES: Final = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
_TREE_ROLES: Final = {"prompter": "user", "assistant": "assistant"}

_Message = dict[str, object]


@dataclass(frozen=True, slots=True)
class _Thread:
    messages: list[_Message]
    own: int  # messages before this one belong to another thread too, which asks for their answers
    tools: Sequence[object] = ()


def is_conversation(record: Record) -> bool:
    """Whether a trace that begins with this row is one of conversations."""
    fields = record.fields
    return "messages" in fields or "traj" in fields or isinstance(fields.get("prompt"), dict)


def arrivals(
    records: Iterable[Record], *, session_gap: float, think_time: float = 0.0, limit: int | None = None
) -> Iterator[Arrival]:
    """The turns of all conversations, in nominal order: conversation k begins at ``k * session_gap``, and a turn
    follows the answer before it, after ``think_time`` seconds where a person speaks (a tool's result follows at once).

    ``at`` of a turn is the earliest it can be. With ``limit``, reading stops once no later conversation can add to the
    first ``limit`` arrivals. Raises `TraceError`.
    """
    found: list[Arrival] = []
    session = early = 0  # `early` of those found, in order of time, are certain
    for record in records:
        for thread in _threads(record):
            start = session * session_gap
            if limit is not None:
                early = sum(arrival.at <= start for arrival in found) if len(found) >= limit else 0
                if early >= limit:
                    break
            turns = list(_turns(thread, str(session), start, think_time))
            found.extend(turns)
            session += bool(turns)
        if limit is not None and early >= limit:
            break
    return iter(sorted(found, key=lambda arrival: arrival.at))


def _turns(thread: _Thread, name: str, start: float, think_time: float) -> Iterator[Arrival]:
    texts = [orjson.dumps(message, option=orjson.OPT_SORT_KEYS) + b"\n" for message in thread.messages]
    head = orjson.dumps(thread.tools) + b"\n" if thread.tools else b""
    data = b"".join([head, *texts])
    ids = _chain(data)
    at, first = start, True
    end = len(head)
    for number, (message, text) in enumerate(zip(thread.messages, texts, strict=True)):
        before = thread.messages[number - 1]["role"] if number else "assistant"
        if message["role"] == "assistant" and before != "assistant" and number >= thread.own:
            pause = think_time if before == "user" else 0.0
            at += 0.0 if first else pause
            yield Arrival(
                at=at,
                input_tokens=-(-end // TOKEN_BYTES),
                output_tokens=_answer_tokens(message),
                block_ids=_blocks(ids, data, end),
                block_tokens=BLOCK_TOKENS,
                session=name,
                pause=None if first else pause,
                chat=Chat(thread.messages, number, thread.tools),
            )
            first = False
        end += len(text)


def _chain(data: bytes) -> list[int]:
    """A name for each full block of ``data``, and for all before it."""
    ids, name = [], 0
    for at in range(0, len(data) - _BLOCK_BYTES + 1, _BLOCK_BYTES):
        name = xxhash.xxh3_64_intdigest(data[at : at + _BLOCK_BYTES], seed=name)
        ids.append(name)
    return ids


def _blocks(ids: list[int], data: bytes, end: int) -> tuple[int, ...]:
    full, rest = divmod(end, _BLOCK_BYTES)
    if not rest:
        return tuple(ids[:full])
    tail = xxhash.xxh3_64_intdigest(data[end - rest : end], seed=ids[full - 1] if full else 0)
    return (*ids[:full], tail)


def _answer_tokens(message: _Message) -> int:
    """What the recorded answer would take to generate, estimated; at least 1."""
    content, calls = message.get("content"), message.get("tool_calls")
    size = len(content.encode()) if isinstance(content, str) else len(orjson.dumps(content)) if content else 0
    return max(1, -(-(size + (len(orjson.dumps(calls)) if calls else 0)) // TOKEN_BYTES))


def _threads(record: Record) -> Iterator[_Thread]:
    if isinstance(record.fields.get("prompt"), dict):
        yield from _tree(record)
        return
    field = next((name for name in ("messages", "traj") if name in record.fields), None)
    if field is None:
        raise record.error("messages", "missing; a conversation has messages, traj or a tree in prompt")
    messages = [_message(record, f"{field}[{n}]", item) for n, item in enumerate(record.items(field))]
    tools = record.items("tools") if record.fields.get("tools") is not None else []
    yield _Thread(messages, 0, tools)


def _message(record: Record, place: str, item: object) -> _Message:
    if not isinstance(item, dict):
        raise record.error(place, "expected a message, an object with role and content")
    if item.get("role") not in _ROLES:
        raise record.error(f"{place}.role", f"expected one of {', '.join(sorted(_ROLES))}")
    if not isinstance(item.get("content"), str | list | None):
        raise record.error(f"{place}.content", "expected text, a list of parts or null")
    calls = item.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        raise record.error(f"{place}.tool_calls", "expected a list")
    return item


def _tree(record: Record) -> Iterator[_Thread]:
    """Threads of a message tree: the first replies all the way down, then every branch from where it leaves."""
    waiting: list[tuple[list[_Message], object]] = [([], record.fields["prompt"])]
    while waiting:
        shared, node = waiting.pop()
        messages = list(shared)
        branches: list[tuple[list[_Message], object]] = []
        while node is not None:
            message, replies = _node(record, node, depth=len(messages))
            messages.append(message)
            branches.extend((list(messages), reply) for reply in replies[1:])
            node = replies[0] if replies else None
        yield _Thread(messages, len(shared))
        waiting.extend(reversed(branches))


def _node(record: Record, node: object, *, depth: int) -> tuple[_Message, list[object]]:
    place = "prompt" + ".replies[]" * depth
    if not isinstance(node, dict):
        raise record.error(place, "expected a message, an object with text, role and replies")
    role = _TREE_ROLES.get(str(node.get("role")))
    if role is None:
        raise record.error(f"{place}.role", f"expected one of {', '.join(_TREE_ROLES)}")
    text, replies = node.get("text"), node.get("replies", [])
    if not isinstance(text, str):
        raise record.error(f"{place}.text", "expected text")
    if not isinstance(replies, list):
        raise record.error(f"{place}.replies", "expected a list")
    return {"role": role, "content": text}, replies
