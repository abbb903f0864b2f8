"""What routing reads from a request, and the same body with another model in it."""

from __future__ import annotations

import json
import random
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api_error import ApiError
from gateway.calls import Call, read_call
from gateway.model_rewrite import splice_of, with_model
from gateway.multipart import form_field
from gateway.prompt_text import amount
from gateway.prompts import guess
from gateway.routes import Kind, RouteTable

TABLE = RouteTable(("/v1/audio/*", "/v1/files"))


def call_of(path: str, body: object = None, method: str = "POST") -> Call:
    raw = body if type(body) is bytes else b"" if body is None else orjson.dumps(body)
    return read_call(TABLE.find(path.encode(), method.encode()), raw, path.encode())


def test_a_responses_call() -> None:
    body = {"model": "m", "input": "hi", "stream": True, "prompt_cache_key": "k", "user": "u"}
    call = call_of("/v1/responses", body)
    assert (call.kind, call.model, call.streams, call.follows) == (Kind.RESPONSES, "m", True, None)
    assert call.session_hint == "k"
    assert call.generates
    assert not call.partial
    assert not call.may_go_anywhere


def test_a_response_that_goes_on_is_only_part_of_its_prompt() -> None:
    call = call_of("/v1/responses", {"model": "m", "input": "hi", "previous_response_id": "resp_1"})
    assert call.follows == "resp_1"
    assert call.partial
    whole = call_of("/v1/responses", {"model": "m", "input": "hi", "previous_response_id": None})
    assert whole.follows is None
    assert not whole.partial


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/v1/responses/resp_1"), ("DELETE", "/v1/responses/resp_1"), ("POST", "/v1/responses/resp_1/cancel")],
)
def test_a_stored_response_follows_its_id(method: str, path: str) -> None:
    call = call_of(path, b"not json", method)
    assert (call.kind, call.model, call.follows) == (Kind.STORED, None, "resp_1")
    assert call.may_go_anywhere
    assert not call.partial
    assert guess(call).tokens == 1


@pytest.mark.parametrize(
    ("path", "fields", "hint"),
    [
        ("/v1/chat/completions", {"user": "u"}, "u"),
        ("/v1/chat/completions", {"user": "u", "prompt_cache_key": "k"}, "k"),
        ("/v1/chat/completions", {"user": 5, "prompt_cache_key": ""}, None),
        ("/v1/completions", {"user": "u"}, "u"),
        ("/v1/messages", {"metadata": {"user_id": "u"}, "user": "other"}, "u"),
        ("/v1/messages", {"metadata": {"user_id": ["u"]}}, None),
        ("/v1/messages", {"metadata": "u"}, None),
        ("/v1/embeddings", {"user": "u"}, None),
    ],
)
def test_what_a_client_says_of_its_session(path: str, fields: dict[str, object], hint: str | None) -> None:
    assert call_of(path, {"model": "m", **fields}).session_hint == hint


@pytest.mark.parametrize("value", [5, True, ["m"], {"m": 1}, 1.5])
@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/chat/completions", "model"),
        ("/v1/responses", "model"),
        ("/v1/messages", "model"),
        ("/tokenize", "model"),
        ("/v1/responses", "previous_response_id"),
    ],
)
def test_a_field_of_the_wrong_type_is_named(path: str, name: str, value: object) -> None:
    with pytest.raises(ApiError) as caught:
        call_of(path, {"model": "m", name: value})
    assert caught.value.status == 400
    assert caught.value.param == name
    assert caught.value.message.startswith(f"`{name}` must be a string, not a")


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize", "/v1/messages/count_tokens"])
def test_what_only_a_tokenizer_works_on_has_no_prompt(path: str) -> None:
    call = call_of(path, {"model": "m", "prompt": "x" * 4000, "messages": [{"role": "user", "content": "x" * 4000}]})
    assert (call.kind, call.model, call.fields) == (Kind.TOKENS, "m", {})
    assert not call.has_prompt
    assert guess(call).tokens == 1


@pytest.mark.parametrize(
    ("fields", "chars"),
    [
        ({"input": "12345", "instructions": "67"}, 7),
        ({"input": [{"role": "user", "content": [{"type": "input_text", "text": "1234"}]}]}, 4),
        (
            {
                "input": [
                    {"type": "function_call", "arguments": "123"},
                    {"type": "function_call_output", "output": "45"},
                ]
            },
            5,
        ),
        ({"system": [{"type": "text", "text": "123"}], "messages": [{"role": "user", "content": "45"}]}, 5),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result", "content": "123"}]}]}, 3),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result", "content": [{"text": "1234"}]}]}]}, 4),
        ({"messages": [{"role": "assistant", "content": [{"type": "thinking", "thinking": "123"}]}]}, 3),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}, {"type": "text"}]}]}, 2),
    ],
)
def test_how_much_there_is_to_read_in_every_dialect(fields: dict[str, object], chars: int) -> None:
    assert amount(fields).chars == chars


# --- what is passed through


def form(*parts: tuple[str, bytes], boundary: str = "x-7MA4YWxkTrZu0gW") -> bytes:
    """A form of `(content-disposition's parameters, value)`."""
    pieces = [
        f"--{boundary}\r\ncontent-disposition: form-data; {options}\r\n\r\n".encode() + value + b"\r\n"
        for options, value in parts
    ]
    return b"".join(pieces) + f"--{boundary}--\r\n".encode()


MODEL = ('name="model"', b"whisper")
FILE = ('name="file"; filename="a.wav"', random.Random(1).randbytes(4096))


@pytest.mark.parametrize(
    "body",
    [
        form(MODEL, FILE),
        form(FILE, MODEL),
        form(("name=model", b"whisper"), FILE),
        form(('name="language"', b"en"), ('name="model"', b"whisper"), FILE),
        form(('name="file"; filename="model"', b"no"), MODEL),
        form(('name="model"; filename="model"', b"no"), MODEL),
        form(('filename="model; name=model"; name="file"', b"no"), MODEL),
        form(('name="prompt"', b'\r\ncontent-disposition: form-data; name="model"\r\n\r\nno'), MODEL),
        form(('name="file"; filename="f"', bytes(3 << 20)), MODEL),
        form(MODEL, ('name="file"; filename="f"', bytes(3 << 20))),
        form(('name="empty"', b""), MODEL),
        form(MODEL, boundary="b" * 70),
        form(('name="model"\r\ncontent-type: text/plain; charset=utf-8', b"whisper")),
        form(MODEL).replace(
            b"content-disposition: form-data", b"Content-Type: text/plain\r\nContent-Disposition:form-data"
        ),
    ],
)
def test_the_model_of_a_form_is_found(body: bytes) -> None:
    assert form_field(body, b"model") == b"whisper"
    call = call_of("/v1/audio/transcriptions", body)
    assert (call.kind, call.model, call.fields) == (Kind.PASSTHROUGH, "whisper", {})


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"--",
        b"--\r\n",
        b"--x",
        b"--x\r\n",
        b"-" * 5000,
        b"--" + b"b" * 80 + b"\r\ncontent-disposition: form-data; name=model\r\n\r\nm\r\n",
        form(FILE),
        form(('name="model"', b"m" * 5000)),
        form(('name="models"', b"m")),
        form(('name="file"; filename="f"', bytes(2 << 20)), MODEL, ('name="g"; filename="g"', bytes(2 << 20))),
        form(MODEL)[:40],
        form(*[('name="n"', b"v")] * 100, MODEL),
        b"not a form",
        b"[1]",
        b"{",
        b'{"model": 5}',
        b"\x00\x01",
    ],
)
def test_a_body_that_names_no_model_may_go_anywhere(body: bytes) -> None:
    call = call_of("/v1/audio/transcriptions", body)
    assert call.model is None
    assert call.may_go_anywhere


def test_a_form_cut_off_anywhere_is_read_without_a_fault() -> None:
    body = form(FILE, MODEL)
    whole = body.index(b"whisper") + len(b"whisper\r\n--x-7MA4YWxkTrZu0gW")
    for length in range(len(body)):
        assert form_field(body[:length], b"model") == (b"whisper" if length >= whole else None)


@given(st.binary(max_size=200))
def test_no_bytes_are_too_odd_to_be_passed_through(body: bytes) -> None:
    assert call_of("/v1/audio/x", body).kind is Kind.PASSTHROUGH
    assert call_of("/v1/audio/x", b"--" + body).kind is Kind.PASSTHROUGH


def test_json_is_passed_through_by_its_model() -> None:
    assert call_of("/v1/audio/speech", b' \n{"model": "tts", "input": "hi"}').model == "tts"


# --- the same body with another model


def check_rewritten(body: bytes, model: str) -> bytes:
    fields = orjson.loads(body)
    rewritten = with_model(body, fields, model)
    assert orjson.loads(rewritten) == {**fields, "model": model}
    if fields.get("model") == model:
        assert rewritten == body
        return rewritten
    # What differs is one run of bytes, the value; or, where there was none, the field itself.
    encoded = orjson.dumps(model)
    places = [at for at in range(len(rewritten)) if rewritten.startswith(encoded, at)]
    around = [(rewritten[:at], rewritten[at + len(encoded) :]) for at in places]
    if "model" in fields:
        assert any(body.startswith(before) and body.endswith(after) for before, after in around)
    else:
        added = b'"model":' + encoded + (b"," if fields else b"")
        assert body == rewritten.replace(added, b"", 1)
    return rewritten


@pytest.mark.parametrize(
    ("body", "rewritten"),
    [
        (b'{"model":"a"}', b'{"model":"new"}'),
        (b'{ "model" : "a" , "n":1.50e+30}', None),
        (b'{"model" :\n "a","seed":123456789012345678901234567890}', None),
        (b"{}", b'{"model":"new"}'),
        (b' {  "n":1}', b' {"model":"new",  "n":1}'),
        (b'{"model":null,"n":1}', b'{"model":"new","n":1}'),
        (b'{"model":"a","model":"b"}', b'{"model":"a","model":"new"}'),
        (b'{"model":5,"model":"b"}', b'{"model":5,"model":"new"}'),
        (b'{"model":{"model":"a"},"model":"b"}', b'{"model":{"model":"a"},"model":"new"}'),
        (b'{"x":{"model":"a"},"model":"b"}', b'{"x":{"model":"a"},"model":"new"}'),
        (b'{"model":"b","x":[{"model":"a"}]}', b'{"model":"new","x":[{"model":"a"}]}'),
        (b'{"x":"\\"model\\": \\"a\\"","model":"b"}', b'{"x":"\\"model\\": \\"a\\"","model":"new"}'),
        (b'{"a\\"model":"x","model":"y"}', b'{"a\\"model":"x","model":"new"}'),
        (b'{"mod\\u0065l":"y"}', b'{"mod\\u0065l":"new"}'),
        (b'{"model":"x","mod\\u0065l":"y"}', b'{"model":"x","mod\\u0065l":"new"}'),
        (
            b'{"x":"model","y":{"model":"model"},"model":"\\u00e9\\"\\\\"}',
            b'{"x":"model","y":{"model":"model"},"model":"new"}',
        ),
        (
            b'{"x":"}{][","y":[["]"]],"z":{"model":1},"model":"b"}',
            b'{"x":"}{][","y":[["]"]],"z":{"model":1},"model":"new"}',
        ),
    ],
)
def test_only_the_models_value_is_replaced(body: bytes, rewritten: bytes | None) -> None:
    if rewritten is None:
        rewritten = body.replace(b'"a"', b'"new"')
    fields = {**json.loads(body)}
    assert with_model(body, fields, "new") == rewritten


@pytest.mark.parametrize(
    ("body", "spliced"),
    [
        (b"{}", b'{"cache_salt":"s"}'),
        (b' {"n":1}', b' {"cache_salt":"s","n":1}'),
        (b'{"cache_salt" : "x", "n":1}', b'{"cache_salt" : "s", "n":1}'),
        (b'{"cache_salt":null}', b'{"cache_salt":"s"}'),
        (b'{"cache_salt":"a","cache_salt":"b"}', b'{"cache_salt":"a","cache_salt":"s"}'),
        (b'{"cache_salt":null,"cache_salt":"b"}', b'{"cache_salt":null,"cache_salt":"s"}'),
        (b'{"x":{"cache_salt":"a"}}', b'{"cache_salt":"s","x":{"cache_salt":"a"}}'),
        (b'{"x":{"cache_salt":"a"},"cache_salt":"b"}', b'{"x":{"cache_salt":"a"},"cache_salt":"s"}'),
        (b'{"cache\\u005fsalt":"b"}', b'{"cache\\u005fsalt":"s"}'),
        (
            b'{"m":[{"content":"\\"cache_salt\\":\\"x\\""}]}',
            b'{"cache_salt":"s","m":[{"content":"\\"cache_salt\\":\\"x\\""}]}',
        ),
    ],
)
def test_any_field_is_replaced_or_added_in_the_same_way(body: bytes, spliced: bytes) -> None:
    splice = splice_of(body, orjson.loads(body), "cache_salt", b'"s"')
    assert splice.into(body) == spliced
    assert orjson.loads(spliced)["cache_salt"] == "s"


def test_a_model_of_the_same_name_changes_nothing() -> None:
    body = b'{"model" : "\\u0061"}'
    assert with_model(body, orjson.loads(body), "a") is body


KEYS = st.sampled_from(["model", "mod", 'a"model', "x", "\\", "messages"]) | st.text(max_size=4)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.sampled_from(["model", '"model":"x"', "\\"])
    | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@given(
    pairs=st.lists(st.tuples(KEYS, VALUES), max_size=5),
    models=st.lists(st.text(max_size=5) | st.none(), max_size=2),
    new=st.text(max_size=8),
    seed=st.randoms(use_true_random=False),
)
def test_any_body_with_another_model(
    pairs: list[tuple[str, Any]], models: list[str | None], new: str, seed: random.Random
) -> None:
    """Keys in any order, some of them twice, with odd spaces and escapes."""
    fields = [(key, value) for key, value in pairs if key != "model"] + [("model", model) for model in models]
    seed.shuffle(fields)

    def spaced() -> str:
        return seed.choice(["", " ", "\n\t", "  "])

    members = [
        f"{spaced()}{json.dumps(key)}{spaced()}:{spaced()}"
        f"{json.dumps(value, ensure_ascii=seed.random() < 0.5, indent=seed.choice([None, 1]))}{spaced()}"
        for key, value in fields
    ]
    body = f"{spaced()}{{{','.join(members)}}}{spaced()}".encode()
    check_rewritten(body, new)
