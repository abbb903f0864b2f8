"""Which paths are served, by which methods, and that no spelling of a path slips through a pattern."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api_error import ApiError
from gateway.routes import Kind, RouteTable, dialect_of, response_id

TABLE = RouteTable(("/v1/audio/*", "/v1/files", "/v1/files/*", "/v1/chat/completions", "/v1/responses/compact"))


def refused(path: bytes, method: bytes = b"POST", table: RouteTable = TABLE) -> ApiError:
    with pytest.raises(ApiError) as caught:
        table.find(path, method)
    return caught.value


@pytest.mark.parametrize(
    ("method", "path", "kind", "dialect"),
    [
        ("POST", "/v1/chat/completions", Kind.CHAT, "openai"),
        ("POST", "/v1/completions", Kind.COMPLETION, "openai"),
        ("POST", "/v1/embeddings", Kind.EMBEDDING, "openai"),
        ("POST", "/v1/responses", Kind.RESPONSES, "responses"),
        ("GET", "/v1/responses/resp_1", Kind.STORED, "responses"),
        ("DELETE", "/v1/responses/resp_1", Kind.STORED, "responses"),
        ("POST", "/v1/responses/resp_1/cancel", Kind.STORED, "responses"),
        ("GET", "/v1/responses/resp_1/input_items", Kind.STORED, "responses"),
        ("POST", "/v1/messages", Kind.MESSAGES, "anthropic"),
        ("POST", "/v1/messages/count_tokens", Kind.TOKENS, "anthropic"),
        ("POST", "/tokenize", Kind.TOKENS, "openai"),
        ("POST", "/detokenize", Kind.TOKENS, "openai"),
        ("POST", "/v1/tokenize", Kind.TOKENS, "openai"),
        ("GET", "/v1/models", Kind.MODELS, "openai"),
        ("GET", "/v1/models/meta-llama/Llama-3.1-8B", Kind.MODEL, "openai"),
        ("GET", "/v1/models/meta-llama%2FLlama-3.1-8B", Kind.MODEL, "openai"),
        ("GET", "/health", Kind.HEALTH, "openai"),
        ("POST", "/v1/audio/transcriptions", Kind.PASSTHROUGH, "openai"),
        ("GET", "/v1/files", Kind.PASSTHROUGH, "openai"),
        ("DELETE", "/v1/files/file-1", Kind.PASSTHROUGH, "openai"),
        ("GET", "/v1/files/file-1/content", Kind.PASSTHROUGH, "openai"),
        ("POST", "/v1/responses/compact", Kind.PASSTHROUGH, "openai"),
    ],
)
def test_served_paths(method: str, path: str, kind: Kind, dialect: str) -> None:
    route = TABLE.find(path.encode(), method.encode())
    assert route.kind is kind
    assert route.dialect.name == dialect
    assert route.answered_here is (kind in (Kind.MODELS, Kind.MODEL, Kind.HEALTH))
    assert route.idempotent is (kind is not Kind.PASSTHROUGH)
    assert route.has_body is (kind.value in {"chat", "completion", "embedding", "responses", "messages", "tokens"})


@pytest.mark.parametrize(
    ("path", "method", "allow"),
    [
        (b"/v1/chat/completions", b"GET", b"POST"),
        (b"/v1/models", b"POST", b"GET"),
        (b"/v1/models/m", b"DELETE", b"GET"),
        (b"/v1/responses", b"GET", b"POST"),
        (b"/v1/responses/resp_1", b"POST", b"GET, DELETE"),
        (b"/v1/responses/resp_1/cancel", b"GET", b"POST"),
        (b"/v1/messages", b"HEAD", b"POST"),
        (b"/v1/files/file-1", b"HEAD", b"GET, POST, PUT, PATCH, DELETE, OPTIONS"),
    ],
)
def test_another_method_is_told_the_right_ones(path: bytes, method: bytes, allow: bytes) -> None:
    error = refused(path, method)
    assert error.status == 405
    assert error.code == "method_not_allowed"
    assert error.fields == b"\r\nallow: " + allow
    assert allow.decode() in error.message


@pytest.mark.parametrize(
    "path",
    [
        b"/",
        b"/metrics",
        b"/v1",
        b"/v1/chat/completions/",
        b"//v1/chat/completions",
        b"/v1/../v1/chat/completions",
        b"/V1/files",
        b"/v1/filesystem",
        b"/v1/models/",
        b"/v1/responses/",
        b"/v1/responses/a/b",
        b"/v1/responses/../files",
        b"/v1/responses/resp%5f1",
        b"/v1/responses/" + b"r" * 257,
        b"/v1/responses/resp_1/cancel/",
        b"/v1/messages/batches",
        b"/tokenize/",
        b"/health/",
    ],
)
def test_what_is_not_listed_is_not_there(path: bytes) -> None:
    error = refused(path)
    assert (error.status, error.code) == (404, "unknown_route")


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        (b"/chat/completions", "/v1/chat/completions"),
        (b"/v1/v1/chat/completions", "/v1/chat/completions"),
        (b"//v1/embeddings", "/v1/embeddings"),
        (b"/v1/models/", "/v1/models"),
        (b"/audio/speech", "/v1/audio/speech"),
        (b"/v1/health", "/health"),
    ],
)
def test_whoever_has_the_wrong_base_url_is_told(path: bytes, meant: str) -> None:
    assert f" Did you mean {meant}? A client's base URL ends in /v1." in refused(path).message


@pytest.mark.parametrize("path", ["/metrics", "/readyz", "/admin/workers"])
def test_whoever_asks_the_wrong_port_is_told(path: str) -> None:
    said = f"There is no route GET {path}. The control plane has a port of its own: admin.port."
    assert refused(path.encode(), b"GET").message == said


def test_nothing_is_guessed_otherwise() -> None:
    assert refused(b"/v1/load_lora_adapter").message == "There is no route POST /v1/load_lora_adapter."


@pytest.mark.parametrize(
    "rest",
    [
        b"../admin",
        b"..",
        b".",
        b"./x",
        b"x/../../admin",
        b"x/..",
        b"...",
        b"%2e%2e/admin",
        b"%2E%2E%2Fadmin",
        b"x%2f..%2fadmin",
        b"x%00",
        b"/admin",
        b"x//admin",
        b"x//",
        b"..;/admin",
        b"x;y",
        b"..\\admin",
        b"x\\y",
        b"\xc0\xae\xc0\xae/admin",
        b"x\x7f",
        b"",
    ],
)
def test_no_path_means_another_one_behind_a_pattern(rest: bytes) -> None:
    """Behind `*` only plain segments are let through, so that no worker can read anything else out of them."""
    if not rest:
        assert TABLE.find(b"/v1/files/", b"GET").kind is Kind.PASSTHROUGH
        return
    error = refused(b"/v1/files/" + rest)
    assert (error.status, error.code) == (400, "invalid_path")


@given(st.lists(st.sampled_from(["..", ".", "", "%2e", "%2E%2e", "a", "..;", "\\", "/", "v1", "files", "admin"])))
def test_a_path_that_is_let_through_stays_below_its_pattern(parts: list[str]) -> None:
    path = "/v1/files/" + "/".join(parts)
    try:
        TABLE.find(path.encode(), b"GET")
    except ApiError:
        return
    assert re.fullmatch(r"(/[A-Za-z0-9]+)+/?", path)


def test_a_pattern_does_not_take_a_route_of_our_own_away() -> None:
    assert RouteTable(("/v1/*",)).find(b"/v1/responses/resp_1", b"GET").kind is Kind.STORED
    assert RouteTable(("/v1/*",)).find(b"/v1/chat/completions", b"POST").kind is Kind.CHAT
    assert RouteTable(("/v1/*",)).find(b"/v1/batches", b"POST").kind is Kind.PASSTHROUGH
    assert refused(b"/v1/files", table=RouteTable()).status == 404


def test_the_id_of_a_stored_response() -> None:
    assert response_id(b"/v1/responses/resp_a-1") == "resp_a-1"
    assert response_id(b"/v1/responses/resp_a-1/cancel") == "resp_a-1"
    assert response_id(b"/v1/responses") is None


def test_the_dialect_of_a_path_that_is_not_served() -> None:
    assert dialect_of(b"/v1/messages/batches").name == "anthropic"
    assert dialect_of(b"/v1/responses/a/b").name == "responses"
    assert dialect_of(b"/x").name == "openai"
