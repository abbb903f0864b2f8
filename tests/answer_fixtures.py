"""Answers of all four dialects, rich, plain and drawn at random, and a server that plays recordings."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from gateway.answers import examine
from gateway.routes import Kind
from tests.data_plane_fixtures import Answer, Turn

TEXT = 'Grüße, "quoted" and\nbroken: 🙂 one two three four five six seven eight nine ten eleven twelve.'
ARGUMENTS = json.dumps({"city": "Zürich", "days": [1, 2, {"deep": {"er": [None, True, 1.5]}}], "quote": 'a "b"\\'})


def chat_logprobs(tokens: list[str]) -> list[dict[str, Any]]:
    return [
        {"token": token, "logprob": -0.5 - place, "bytes": list(token.encode()), "top_logprobs": []}
        for place, token in enumerate(tokens)
    ]


CHAT: dict[str, Any] = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1767225600,
    "model": "m-2026",
    "choices": [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": TEXT,
                "refusal": None,
                "reasoning_content": "First think. " * 10,
                "annotations": [{"type": "url_citation", "url_citation": {"url": "http://a/", "start_index": 1}}],
            },
            "logprobs": {
                "content": chat_logprobs([TEXT[i : i + 3] for i in range(0, len(TEXT), 3)]),
                "refusal": None,
            },
            "finish_reason": "stop",
            "stop_reason": None,
            "token_ids": [1, 2, 3],
        },
        {
            "index": 1,
            "message": {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": ARGUMENTS}},
                    {"id": "call_2", "type": "function", "function": {"name": "now", "arguments": ""}},
                ],
            },
            "logprobs": None,
            "finish_reason": "tool_calls",
            "stop_reason": 128009,
        },
        {
            "index": 2,
            "message": {"role": "assistant", "content": None, "refusal": "No, I will not do that, whatever you say."},
            "logprobs": None,
            "finish_reason": "stop",
        },
        {
            "index": 3,
            "message": {
                "role": "assistant",
                "content": None,
                "function_call": {"name": "weather", "arguments": ARGUMENTS},
            },
            "logprobs": None,
            "finish_reason": "function_call",
        },
    ],
    "usage": {
        "prompt_tokens": 9,
        "completion_tokens": 40,
        "total_tokens": 49,
        "prompt_tokens_details": {"cached_tokens": 4},
    },
    "service_tier": "default",
    "system_fingerprint": "fp_1",
    "prompt_token_ids": [7, 8, 9],
}

COMPLETION: dict[str, Any] = {
    "id": "cmpl-1",
    "object": "text_completion",
    "created": 1767225600,
    "model": "m-2026",
    "choices": [
        {"index": 0, "text": TEXT, "logprobs": None, "finish_reason": "length", "stop_reason": None},
        {
            "index": 1,
            "text": "one two three four five six",
            "logprobs": {
                "text_offset": [0, 3, 7, 13, 18, 23],
                "token_logprobs": [None, -0.1, -0.2, -0.3, -0.4, -0.5],
                "tokens": ["one", " two", " three", " four", " five", " six"],
                "top_logprobs": [None, *({"index": -1.0, " two": -0.1} for _ in range(5))],
            },
            "finish_reason": "stop",
            "stop_reason": "!",
            "token_ids": [1, 2, 3, 4, 5, 6],
        },
        {"index": 2, "text": "", "logprobs": None, "finish_reason": "stop", "stop_reason": None},
    ],
    "usage": {"prompt_tokens": 9, "completion_tokens": 40, "total_tokens": 49},
    "system_fingerprint": "fp_1",
}

MESSAGE: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "m-2026",
    "content": [
        {"type": "thinking", "thinking": "First think. " * 10, "signature": "c2lnbmVk"},
        {"type": "redacted_thinking", "data": "ZGF0YQ=="},
        {"type": "text", "text": TEXT},
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "weather"}},
        {
            "type": "web_search_tool_result",
            "tool_use_id": "srvtoolu_1",
            "content": [
                {
                    "type": "web_search_result",
                    "url": "http://a/",
                    "title": "A",
                    "encrypted_content": "eA==",
                    "page_age": None,
                }
            ],
        },
        {
            "type": "text",
            "text": "It rains.",
            "citations": [
                {
                    "type": "web_search_result_location",
                    "url": "http://a/",
                    "title": "A",
                    "encrypted_index": "eA==",
                    "cited_text": "rain",
                }
            ],
        },
        {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": json.loads(ARGUMENTS)},
        {"type": "tool_use", "id": "toolu_2", "name": "now", "input": {}},
    ],
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": {
        "input_tokens": 5,
        "cache_read_input_tokens": 4,
        "cache_creation_input_tokens": 2,
        "output_tokens": 30,
        "server_tool_use": {"web_search_requests": 1, "web_fetch_requests": 0},
        "service_tier": "standard",
    },
}

RESPONSE: dict[str, Any] = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1767225600,
    "completed_at": 1767225605,
    "status": "completed",
    "error": None,
    "incomplete_details": None,
    "instructions": "Be kind.",
    "model": "m-2026",
    "output": [
        {
            "id": "rs_1",
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": "Thinks of the weather in several places."}],
            "content": [{"type": "reasoning_text", "text": "First think. " * 10}],
            "encrypted_content": "eA==",
            "status": "completed",
        },
        {
            "id": "ws_1",
            "type": "web_search_call",
            "status": "completed",
            "action": {"type": "search", "query": "weather"},
        },
        {
            "id": "msg_1",
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "content": [
                {
                    "type": "output_text",
                    "text": TEXT,
                    "annotations": [
                        {"type": "url_citation", "url": "http://a/", "title": "A", "start_index": 0, "end_index": 3}
                    ],
                    "logprobs": [],
                },
                {"type": "refusal", "refusal": "No, I will not do that, whatever you say."},
            ],
        },
        {
            "id": "fc_1",
            "type": "function_call",
            "status": "completed",
            "call_id": "call_1",
            "name": "weather",
            "arguments": ARGUMENTS,
        },
        {
            "id": "ctc_1",
            "type": "custom_tool_call",
            "call_id": "call_2",
            "name": "shell",
            "input": "ls -l | grep a very long line of input",
            "status": "completed",
        },
        {
            "id": "mcp_1",
            "type": "mcp_call",
            "name": "look",
            "server_label": "s",
            "arguments": ARGUMENTS,
            "output": "seen",
            "error": None,
            "status": "completed",
        },
        {
            "id": "ci_1",
            "type": "code_interpreter_call",
            "code": "print(1)",
            "container_id": "c",
            "outputs": [{"type": "logs", "logs": "1"}],
            "status": "completed",
        },
    ],
    "parallel_tool_calls": True,
    "previous_response_id": "resp_0",
    "temperature": 1.0,
    "tool_choice": "auto",
    "tools": [],
    "usage": {
        "input_tokens": 9,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": 30,
        "output_tokens_details": {"reasoning_tokens": 7},
        "total_tokens": 39,
    },
    "metadata": {},
}

BODIES: dict[Kind, dict[str, Any]] = {
    Kind.CHAT: CHAT,
    Kind.COMPLETION: COMPLETION,
    Kind.MESSAGES: MESSAGE,
    Kind.RESPONSES: RESPONSE,
}


def as_json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def assembled(kind: Kind, stream: bytes) -> bytes:
    """The body that is kept of a stream."""
    told, body = examine(kind, stream, streamed=True)
    assert told.whole, told.why
    return body


def plays(recorded: list[bytes], content_type: str) -> Answer:
    """Sends each of these in a chunk of its own."""
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\ntransfer-encoding: chunked\r\n\r\n"

    async def answer(turn: Turn) -> None:
        turn.write(head.encode())
        for piece in recorded:
            turn.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await turn.writer.drain()
        turn.write(b"0\r\n\r\n")

    return answer


# --- at random


def json_safe(value: object) -> bool:
    """Is it text that UTF-8 can hold?"""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=80),
    st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=12), max_size=60).map(" ".join),
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
).filter(json_safe)
OBJECTS = st.dictionaries(TEXTS, VALUES, max_size=4).filter(json_safe)
COUNTS = st.integers(0, 10**9)
NAMES = st.text("abcdefgh_", min_size=1, max_size=10)


@st.composite
def chats(draw: st.DrawFn) -> dict[str, Any]:
    choices = []
    for index in range(draw(st.integers(1, 4))):
        message: dict[str, Any] = {"role": "assistant", "content": draw(st.none() | TEXTS)}
        for name in draw(st.sets(st.sampled_from(["refusal", "reasoning_content", "reasoning"]))):
            message[name] = draw(TEXTS.filter(bool))
        calls = [
            {
                "id": f"call_{draw(NAMES)}{number}",
                "type": "function",
                "function": {"name": draw(NAMES), "arguments": draw(OBJECTS.map(json.dumps) | TEXTS)},
            }
            for number in range(draw(st.integers(0, 3)))
        ]
        if calls:
            message["tool_calls"] = calls
        if message["content"] == "" and (calls or "refusal" in message):
            message["content"] = None
        tokens = draw(st.none() | st.lists(TEXTS, min_size=1, max_size=9))
        choices.append(
            {
                "index": index,
                "message": message,
                "logprobs": None if tokens is None else {"content": chat_logprobs(tokens), "refusal": None},
                "finish_reason": draw(st.sampled_from(["stop", "length", "tool_calls", "content_filter"])),
                "stop_reason": draw(st.none() | st.integers(0, 99) | TEXTS),
            }
        )
    return {**CHAT, "choices": choices, "usage": {"prompt_tokens": draw(COUNTS), "completion_tokens": draw(COUNTS)}}


@st.composite
def completions(draw: st.DrawFn) -> dict[str, Any]:
    choices = []
    for index in range(draw(st.integers(1, 4))):
        tokens = draw(st.none() | st.lists(TEXTS, min_size=1, max_size=9))
        text = draw(TEXTS) if tokens is None or draw(st.booleans()) else "".join(tokens)
        logprobs = None
        if tokens is not None:
            logprobs = {"tokens": tokens, "token_logprobs": [None] * len(tokens), "top_logprobs": None}
        reason = draw(st.sampled_from(["stop", "length"]))
        choices.append({"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason})
    return {**COMPLETION, "choices": choices, "usage": {"prompt_tokens": draw(COUNTS)}}


@st.composite
def messages(draw: st.DrawFn) -> dict[str, Any]:
    block = st.one_of(
        TEXTS.map(lambda text: {"type": "text", "text": text}),
        st.builds(lambda text, sign: {"type": "thinking", "thinking": text, "signature": sign}, TEXTS, NAMES),
        st.builds(lambda name, given: {"type": "tool_use", "id": name, "name": name, "input": given}, NAMES, OBJECTS),
        st.builds(lambda value: {"type": "some_tool_result", "content": value}, VALUES),
    )
    return {
        **MESSAGE,
        "content": draw(st.lists(block, max_size=4)),
        "stop_reason": draw(st.sampled_from(["end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"])),
        "stop_sequence": draw(st.none() | TEXTS),
        "usage": {"input_tokens": draw(COUNTS), "output_tokens": draw(COUNTS)},
    }


@st.composite
def whole_responses(draw: st.DrawFn) -> dict[str, Any]:
    text = TEXTS.map(lambda text: {"type": "output_text", "text": text, "annotations": []})
    refusal = TEXTS.map(lambda text: {"type": "refusal", "refusal": text})
    item = st.one_of(
        st.lists(text | refusal, max_size=3).map(lambda parts: {"type": "message", "content": parts}),
        OBJECTS.map(lambda given: {"type": "function_call", "name": "f", "arguments": json.dumps(given)}),
        TEXTS.map(lambda text: {"type": "reasoning", "summary": [{"type": "summary_text", "text": text}]}),
        VALUES.map(lambda value: {"type": "some_call", "value": value}),
    )
    items = draw(st.lists(item, max_size=4))
    output = [{"id": f"item_{place}", "call_id": f"call_{place}", **each} for place, each in enumerate(items)]
    cut = draw(st.booleans())
    return {
        **RESPONSE,
        "output": output,
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
    }


ANY_ANSWER: st.SearchStrategy[tuple[Kind, dict[str, Any]]] = st.one_of(
    st.tuples(st.just(Kind.CHAT), chats()),
    st.tuples(st.just(Kind.COMPLETION), completions()),
    st.tuples(st.just(Kind.MESSAGES), messages()),
    st.tuples(st.just(Kind.RESPONSES), whole_responses()),
)
