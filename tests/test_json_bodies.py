"""Request bodies on a JSON route: what is not JSON is told so and goes nowhere; what is JSON is never called malformed."""

from __future__ import annotations

import json
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.data_plane_fixtures import BODY, Inside, RawWorker, ask, client_of, inside, plane, post
from tests.gateway_fixtures import eventually

ARCHIVE = Path(__file__).parent / "data" / "json_corpus" / "JSONTestSuite.tar.xz"
ROUTES = (b"/v1/chat/completions", b"/v1/completions", b"/v1/embeddings")


def corpus() -> dict[str, bytes]:
    """JSONTestSuite by file name: `y_` must be accepted, `n_` refused, `i_` either."""
    files = {}
    with tarfile.open(ARCHIVE) as archive:
        for member in archive:
            data = archive.extractfile(member)
            if data is not None:
                files[Path(member.name).name] = data.read()
    return files


@pytest.fixture
async def worker() -> AsyncIterator[RawWorker]:
    async with RawWorker().running() as worker:
        yield worker


@pytest.fixture
async def gateway(worker: RawWorker) -> AsyncIterator[Inside]:
    async with inside(plane([worker.url])) as gateway:
        yield gateway


@pytest.fixture
async def reading(worker: RawWorker) -> AsyncIterator[Inside]:
    models = "models: [{name: m, tokenizer: embedded}]"  # so that whatever is JSON is read for its prompt too
    async with inside(plane([worker.url], extra=models)) as gateway:
        yield gateway


async def test_the_corpus(reading: Inside, worker: RawWorker) -> None:
    gateway, files = reading, corpus()
    assert {name[:2] for name in files} == {"y_", "n_", "i_"}
    assert len(files) == 318
    for route in ROUTES:
        async with client_of(gateway) as client:
            for name, body in files.items():
                before = len(worker.requests)
                client.post(body, path=route)
                response = await client.response()
                sent = len(worker.requests) > before
                if name.startswith("n_"):
                    assert (response.status, response.error["code"]) == (400, "invalid_json"), name
                    assert "not valid JSON" in str(response.error["message"]), name
                    assert not sent, name
                elif name.startswith("y_"):
                    _accepted(response.status, response.body, json.loads(body), sent=sent)
                else:
                    assert response.status in (200, 400), name
                    assert sent is (response.status == 200), name
                if sent:
                    assert worker.requests[-1][1] == body, "byte for byte"
            client.post(path=route)
            assert (await client.response()).body == b"ok"
    await eventually(lambda: gateway.active == 0)


def _accepted(status: int, body: bytes, value: object, *, sent: bool) -> None:
    """An object goes on to the worker; anything else is called JSON, but not an object."""
    if isinstance(value, dict):
        assert status == 200
        assert sent
    else:
        error = json.loads(body)["error"]
        assert status == 400
        assert error["code"] == "invalid_body"
        assert "must be a JSON object" in error["message"]
        assert not sent


@pytest.mark.parametrize(
    ("body", "got"),
    [
        (b"[]", "an array"),
        (b'"x"', "a string"),
        (b"1", "a number"),
        (b"1.5", "a number"),
        (b"true", "a boolean"),
        (b"null", "null"),
        (b"[" * 500 + b"]" * 500, "an array"),
    ],
)
async def test_a_body_that_is_not_an_object(gateway: Inside, worker: RawWorker, body: bytes, got: str) -> None:
    response = await ask(gateway, post(body))
    assert response.status == 400
    assert response.error["message"] == f"The request body must be a JSON object, not {got}."
    assert worker.requests == []


@pytest.mark.parametrize(
    ("model", "got"),
    [
        ("[]", "an array"),
        ("{}", "an object"),
        ("1", "a number"),
        ("1e2", "a number"),
        ("true", "a boolean"),
        ("false", "a boolean"),
    ],
)
async def test_a_model_of_the_wrong_type(gateway: Inside, worker: RawWorker, model: str, got: str) -> None:
    response = await ask(gateway, post(b'{"model": %b}' % model.encode()))
    assert response.status == 400
    assert response.error["message"] == f"`model` must be a string, not {got}."
    assert (response.error["param"], response.error["code"]) == ("model", "invalid_type")
    assert worker.requests == []


async def test_models(gateway: Inside, worker: RawWorker) -> None:
    for unknown in (b'""', b'"M"', b'"m "', b'"\\u0000"', b'"%b"' % (b"x" * 10_000)):
        response = await ask(gateway, post(b'{"model": %b}' % unknown))
        assert (response.status, response.error["code"]) == (404, "model_not_found")
        assert len(response.body) < 1_000
    assert worker.requests == []
    for known in (
        b"{}",
        b'{"model": null}',
        b'{"model": "m"}',
        b'{"model": "x", "model": "m"}',
        b'{"mod\\u0065l": "\\u006d"}',
    ):
        assert (await ask(gateway, post(known))).status == 200
        assert worker.requests[-1][1] == known


SHAPES: tuple[object, ...] = (
    None, True, 0, -1, 1.5, 10**30, "", "x", "\u0000", [], {}, [None], [True], [[]], [{}], [1, -1], [1.5], [2**32], [2**64 - 1],
    ["a", 1], [[1, 2], [3]], [{"role": 1, "content": 2}], [{"role": "user"}], [{"role": "user", "content": None}],
    [{"role": "user", "content": {}}], [{"role": "user", "content": [None]}], [{"role": "user", "content": [{"type": "text"}]}],
    [{"role": "user", "content": [{"type": 1, "text": 2}]}], [{"role": "user", "content": [{"type": "image_url", "image_url": 5}]}],
    [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": None}}]}], [{"content": "x"}], [["user", "x"]],
    [{"role": "tool", "content": "x"}], [{"role": "assistant", "tool_calls": 5}],
    [{"role": "assistant", "tool_calls": [{"function": {"arguments": "{"}}]}], {"role": "user", "content": "x"},
)  # fmt: skip


@pytest.mark.parametrize(
    ("route", "field"),
    [
        *(
            (ROUTES[0], field)
            for field in (
                "messages",
                "tools",
                "chat_template_kwargs",
                "add_generation_prompt",
                "cache_salt",
                "documents",
            )
        ),
        *((ROUTES[1], field) for field in ("prompt", "add_special_tokens", "cache_salt", "stream")),
        (ROUTES[2], "input"),
    ],
)
async def test_fields_of_any_shape_are_the_workers_to_judge(
    reading: Inside, worker: RawWorker, route: bytes, field: str
) -> None:
    """However odd a field is, the gateway neither fails on it nor changes it: the body goes on as it came."""
    async with client_of(reading) as client:
        for shape in SHAPES:
            request = {
                "model": "m",
                "prompt": "x",
                "messages": [{"role": "user", "content": "x"}],
                field: shape,
            }
            body = json.dumps(request).encode()
            client.post(body, path=route)
            response = await client.response()
            assert response.status == 200, (shape, response.body)
            assert worker.requests[-1][1] == body


async def test_large_and_deep_bodies(reading: Inside, worker: RawWorker) -> None:
    for value in (
        b"[" * 1_000 + b"]" * 1_000,
        b'{"a":' * 900 + b"1" + b"}" * 900,
        b'"' + b"\\u00e9" * 300_000 + b'"',
        b"9" * 100_000,
    ):
        body = b'{"model": "m", "messages": %b}' % value
        response = await ask(reading, post(body))
        assert response.status in (200, 400), response
        assert (response.status == 200) is (bool(worker.requests) and worker.requests[-1][1] == body)
    for bomb in (b"[" * 100_000, b'{"a":' * 100_000, b'[{"":' * 50_000):
        response = await ask(reading, post(b'{"model": "m", "messages": ' + bomb))
        assert response.error["code"] == "invalid_json"
    assert (await ask(reading, post(BODY))).status == 200


async def test_an_empty_body_is_told_so(gateway: Inside) -> None:
    for raw in (post(b""), b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\n\r\n"):
        assert "empty" in str((await ask(gateway, raw)).error["message"])
