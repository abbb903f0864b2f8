"""Keys of answers: different requests never share one, and the same request has one however it is written."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cache.response_key import (
    BYSTANDERS,
    DELIVERY,
    KEY_BYTES,
    ResponseKey,
    is_unambiguous,
    model_tag,
    response_key,
    scope_tag,
    store_key,
    tag_of,
)

SCOPE = b"scope of a tenant"
ROUTE = "/v1/chat/completions"
LONG = 1 << 20
"""Bytes of a body that is hashed piece by piece."""

CHAT: dict[str, Any] = {
    "model": "llama",
    "messages": [
        {"role": "system", "content": "You are terse."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is in this picture?"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
            ],
        },
        {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}]},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
    "temperature": 0,
    "top_p": 1.0,
    "seed": None,
    "logit_bias": {"50256": -100},
    "max_tokens": 100,
    "cache_salt": "mine",
    "response_format": {"type": "json_object"},
    "unknown": [],
}


def key_of(request: dict[str, Any], dialect: str = "openai", n_bytes: int = 0) -> ResponseKey:
    return response_key(SCOPE, "llama", dialect, ROUTE, request, n_bytes=n_bytes)


def oracle(value: object) -> str:
    """Another text that stands for one value alone."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


NUMBERS = st.integers(-(1 << 63), (1 << 64) - 1) | st.floats(allow_nan=False, allow_infinity=False)
NAME = st.text('abé\U0001f600\uffff"', max_size=3)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAME, inner, max_size=4),
    max_leaves=12,
)
REQUEST = st.dictionaries(st.text("abcé\U0001f600\uffff", max_size=3), JSON, max_size=5)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(REQUEST, REQUEST)
def test_two_requests_share_a_key_if_and_only_if_they_are_the_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert (key_of(one) == key_of(other)) is (oracle(one) == oracle(other))
    assert key_of(one) == key_of(one, n_bytes=LONG), "piece by piece or at once"


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(REQUEST, st.randoms(use_true_random=False))
def test_order_of_keys_and_white_space_do_not_count(request: dict[str, Any], chance: random.Random) -> None:
    def shuffled(value: Any) -> Any:
        if isinstance(value, dict):
            items = [(name, shuffled(inner)) for name, inner in value.items()]
            chance.shuffle(items)
            return dict(items)
        return [shuffled(inner) for inner in value] if isinstance(value, list) else value

    written = json.dumps(shuffled(request), indent=chance.choice([None, 1, 3]), ensure_ascii=chance.random() < 0.5)
    assert key_of(orjson.loads(written)) == key_of(request)


def test_a_hundred_thousand_requests_and_none_shares_a_key() -> None:
    chance = random.Random(7)
    words = ["", "a", "b", "ab", "1", "true", "null", "0", "1.0", "role", '"', "\\", "{}", "é", "\u2028"]
    leaves: list[Callable[[], object]] = [
        lambda: chance.choice([None, True, False, 0, 1, -1, 0.0, -0.0, 1.0, 1e16, 10**16, 2**53, 2.0**53, 1e-7]),
        lambda: chance.choice(words),
        lambda: chance.choice([[], {}, [[]], [{}], [""], [None], {"": None}, {"": ""}]),
        lambda: chance.randrange(-5, 200),
        lambda: chance.choice(words) + chance.choice(words),
    ]

    def leaf() -> object:
        return chance.choice(leaves)()

    def mutated(request: dict[str, Any]) -> dict[str, Any]:
        other = orjson.loads(orjson.dumps(request))
        messages = other.get("messages")
        inner = [*(messages if isinstance(messages, list) else ()), other.get("response_format")]
        place = chance.choice([other, *(one for one in inner if isinstance(one, dict))])
        action = chance.random()
        if action < 0.2 and len(place) > 1:
            del place[chance.choice(list(place))]
        elif action < 0.3 and isinstance(messages, list):
            messages.insert(chance.randrange(3), {"role": chance.choice(words), "content": leaf()})
        else:
            place[chance.choice([*words, *place])] = leaf()
        return other  # type: ignore[no-any-return]  # what orjson reads

    seen: dict[bytes, str] = {}
    n_different = 0
    request = CHAT
    for turn in range(100_000):
        if turn % 50 == 0:
            request = CHAT
        before, request = request, mutated(request)
        key, text = key_of(request), oracle(request)
        n_different += text != oracle(before) if turn % 10 == 0 else 0
        assert seen.setdefault(key, text) == text, "two requests, one key"
    assert len(seen) == len(set(seen.values())) > 50_000
    assert n_different > 8_000


def leaves_of(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(deeper for name, one in inner for deeper in leaves_of(one, (*path, name)))][0 if path else 1 :]


@pytest.mark.parametrize("path", leaves_of(CHAT), ids=repr)
@pytest.mark.parametrize("n_bytes", [0, LONG])
def test_every_field_counts(path: tuple[Any, ...], n_bytes: int) -> None:
    def changed(change: Callable[[dict[Any, Any] | list[Any], Any], None]) -> ResponseKey:
        other = orjson.loads(orjson.dumps(CHAT))
        place = other
        for step in path[:-1]:
            place = place[step]
        change(place, path[-1])
        return key_of(other, n_bytes=n_bytes)

    changes: list[Callable[[Any, Any], None]] = [
        lambda place, name: place.__setitem__(name, "another"),
        lambda place, name: place.__setitem__(name, [place[name]]),
        lambda place, name: place.__setitem__(name, 7.5),
        lambda place, name: place.__delitem__(name),
    ]
    assert len({key_of(CHAT), *map(changed, changes)}) == len(changes) + 1


@pytest.mark.parametrize("name", sorted(DELIVERY | BYSTANDERS))
def test_what_cannot_change_an_answer_does_not_count(name: str) -> None:
    for value in (True, "somebody", {"include_usage": True}, None):
        assert key_of({**CHAT, name: value}) == key_of(CHAT)
        assert key_of({**CHAT, "messages": [{name: value}]}) != key_of({**CHAT, "messages": [{}]}), "only at the top"


def test_what_a_dialect_echoes_counts_in_it() -> None:
    for name in BYSTANDERS:
        assert key_of({**CHAT, name: "a"}, "responses") != key_of({**CHAT, name: "b"}, "responses")
    for name in DELIVERY:
        assert key_of({**CHAT, name: "a"}, "responses") == key_of({**CHAT, name: "b"}, "responses")
    assert key_of({**CHAT, "metadata": {"user_id": "a"}}, "anthropic") == key_of(CHAT, "anthropic")
    assert key_of({**CHAT, "metadata": {"user_id": "a"}}) != key_of(CHAT)


def test_what_is_beside_the_request_counts() -> None:
    keys = [
        response_key(scope, model, dialect, route, CHAT, variants=variants)
        for scope in (b"", b"a", b"ab")
        for model in ("", "b", "bc")
        for dialect in ("", "c", "openai", "responses")
        for route in ("", "c", "/v1/chat/completions")
        for variants in ([], [("a", "b")], [("ab", "")], [("", "ab")], [("a", "b"), ("", "")], [("a", ""), ("b", "")])
    ]
    assert len(set(keys)) == len(keys) == 3 * 3 * 4 * 3 * 6


@pytest.mark.parametrize(
    "values",
    [
        [1, 1.0, True, "1", [1], {"1": 1}, "1.0", "true"],
        [0, 0.0, -0.0, False, None, "", [], {}, "null", "0"],
        [2**53, 2**53 + 1, 2.0**53, 2**64 - 1, -(2**63), 1e300, 5e-324, 0.1, 0.1 + 2**-56],
        ["\u00e9", "e\u0301", "\\u00e9", "\x00", "", "\U0001f600", "\u2028"],
        [["a", "b"], ["ab"], ["a,b"], [["a"], "b"], ["a", ["b"]], {"a": "b"}],
        [2**64, 2**64 + 1, -(2**63) - 1, 10**400],
        ["\ud800", "\udc00", "\\ud800", "?", "\ud800" + "a" * 70_000, "a" * 70_000 + "\ud800"],
    ],
)
def test_values_that_look_alike_differ(values: list[object]) -> None:
    keys = {key_of({"x": value}, n_bytes=n_bytes) for value in values for n_bytes in (0, LONG)}
    assert len(keys) == len(values)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), b"bytes", object(), {1: 2}, (1, 2)])
def test_what_is_no_json_has_no_key(value: object) -> None:
    for n_bytes in (0, LONG):
        with pytest.raises(ValueError, match="request"):
            key_of({"x": [None, value]}, n_bytes=n_bytes)


def test_nesting() -> None:
    def nested(depth: int) -> dict[str, Any]:
        return {"x": orjson.loads(b"[" * depth + b"]" * depth)}

    assert len({key_of(nested(depth)) for depth in range(1, 300)}) == 299
    with pytest.raises(ValueError, match="too deep"):
        key_of(nested(1_000))


def test_a_long_text_is_hashed_in_pieces_as_if_it_were_whole() -> None:
    for text in ("a" * 200_000, 'é"\\\n\x01\U0001f600' * 40_000):
        request = {"messages": [{"content": text, "role": "user"}], "prompt": list(range(1_000)), "none": None}
        assert key_of(request) == key_of(request, n_bytes=len(text))
        assert key_of(request) != key_of({**request, "messages": [{"content": text[:-1], "role": "user"}]})


def test_the_request_is_left_as_it_is() -> None:
    request = {"stream": True, "user": "me", "b": 1, "a": 2}
    key_of(request)
    assert list(request.items()) == [("stream", True), ("user", "me"), ("b", 1), ("a", 2)]


def test_parts_of_a_key() -> None:
    key = key_of(CHAT)
    assert len(key) == KEY_BYTES
    assert tag_of(key) == scope_tag(SCOPE) == key[:8]
    assert len(store_key(key)) == 32
    assert key.startswith(store_key(key))
    assert scope_tag(b"another") != scope_tag(SCOPE)
    assert model_tag("a") != model_tag("b")
    assert bytes(model_tag("b")) != bytes(scope_tag(b"b"))


def test_a_key_is_the_same_in_every_process_and_release() -> None:
    request = {"model": "m", "temperature": 0, "messages": [{"role": "user", "content": "hi"}]}
    golden = "4fd100e40c65ef93267f7bbfb99adb1d01148c86d6239ea4db424429751ebb9028f0acf69c32abdc"
    assert key_of(request).hex() == golden


@pytest.mark.parametrize(
    ("body", "unambiguous"),
    [
        (b'{"a": 1, "b": {"a": 1}, "c": [-1.5e3, null, true, 9223372036854775807, -9223372036854775808]}', True),
        (b'{"a": 1, "a": 1}', False),
        (b'{"a": 1, "\\u0061": 2}', False),
        (b'{"x": [{"a": 1, "b": 2, "a": 3}]}', False),
        (b'{"a": 9223372036854775808}', False),
        (b'{"a": -9223372036854775809}', False),
        (b'{"a": %s}' % (b"9" * 10_000), False),
        (b'{"a": NaN}', False),
        (b'{"a": -Infinity}', False),
        (b"[" * 100_000, False),
        (b"\xff", False),
        (b"", False),
    ],
)  # fmt: skip
def test_bodies_that_parsers_read_differently_are_seen(body: bytes, unambiguous: bool) -> None:
    assert is_unambiguous(body) is unambiguous


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(REQUEST)
def test_what_json_writes_is_unambiguous(request: dict[str, Any]) -> None:
    big = any(abs(number) >= 1 << 63 for number in _integers(request))
    assert big or is_unambiguous(orjson.dumps(request))


def _integers(value: Any) -> list[int]:
    if isinstance(value, dict | list):
        return [one for inner in (value.values() if isinstance(value, dict) else value) for one in _integers(inner)]
    return [value] if type(value) is int else []
