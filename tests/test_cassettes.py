"""Recorded exchanges with OpenAI's API come back through the gateway byte for byte, however the network cuts them.

The exchanges were recorded by the Envoy AI Gateway project; see `data/MANIFEST.json`. A worker plays the recorded
answers, and the recorded requests are asked for over a raw socket.
"""

from __future__ import annotations

import json
import random
import tarfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest
import yaml

from gateway.config import Config
from gateway.routes import RouteTable
from tests.data_plane_fixtures import Inside, RawWorker, Turn, client_of, inside
from tests.gateway_fixtures import config_for

ARCHIVE = Path(__file__).parent / "data" / "openai_cassettes" / "cassettes.tar.xz"
OWN_FIELDS = {"content-length", "connection", "transfer-encoding", "x-request-id", "date", "server"}


class Recorded(NamedTuple):
    """One exchange."""

    name: str
    path: bytes
    content_type: str
    body: bytes
    status: int
    reason: str
    fields: dict[str, str]
    answer: bytes

    @property
    def streams(self) -> bool:
        return self.fields["content-type"].startswith("text/event-stream")


def _fields(headers: dict[str, list[str]]) -> dict[str, str]:
    return {name.lower(): ", ".join(values) for name, values in headers.items()}


def _recorded(name: str, interaction: dict[str, Any]) -> Recorded:
    request, response = interaction["request"], interaction["response"]
    return Recorded(
        name,
        urlsplit(request["url"]).path.encode(),
        _fields(request["headers"])["content-type"],
        request["body"].encode(),
        response["code"],
        response["status"].partition(" ")[2],
        _fields(response["headers"]),
        response["body"].encode(),
    )


def _exchanges() -> list[Recorded]:
    """All of the archive in order of their names."""
    found = []
    with tarfile.open(ARCHIVE) as archive:
        for member in sorted(archive.getnames()):
            if member.endswith(".yaml"):
                file = archive.extractfile(member)
                assert file is not None
                cassette = yaml.load(file.read(), Loader=yaml.CSafeLoader)
                found += [_recorded(Path(member).stem, each) for each in cassette["interactions"]]
    return found


EXCHANGES = _exchanges()
ROUTES = RouteTable(Config.model_fields["routes"].default.passthrough)
SERVED = [exchange for exchange in EXCHANGES if not exchange.path.startswith(b"/openai/deployments/")]


def _models() -> list[str]:
    """Every model that is asked for, those included that OpenAI does not know: the worker shall say so itself."""
    named = [json.loads(each.body)["model"] for each in SERVED if each.content_type == "application/json"]
    return sorted(set(named))


class Player:
    """A worker that answers each request with what was recorded, cut as `cut` says."""

    def __init__(self) -> None:
        self.worker = RawWorker(self.answer)
        self.exchange = SERVED[0]
        self.chunked = False
        self.sample = random.Random(0)

    async def answer(self, turn: Turn) -> None:
        recorded = self.exchange
        framing = "transfer-encoding: chunked" if self.chunked else f"content-length: {len(recorded.answer)}"
        kept = [f"{name}: {value}" for name, value in recorded.fields.items() if name not in OWN_FIELDS]
        head = "\r\n".join([f"HTTP/1.1 {recorded.status} {recorded.reason}", *kept, framing]) + "\r\n\r\n"
        pieces = self._pieces(recorded.answer)
        if self.chunked:
            pieces = [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces] + [b"0\r\n\r\n"]
        for piece in self._pieces(head.encode() + b"".join(pieces)):
            turn.write(piece)
            await turn.writer.drain()

    def _pieces(self, data: bytes) -> Sequence[bytes]:
        """`data` cut in a dozen random places."""
        cuts = sorted(self.sample.sample(range(1, len(data)), min(12, len(data) - 1)))
        return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


@pytest.fixture
async def player() -> AsyncIterator[Player]:
    played = Player()
    async with played.worker.running():
        yield played


@pytest.fixture
async def running(player: Player) -> AsyncIterator[Inside]:
    models = ", ".join(json.dumps(model) for model in _models())
    async with inside(config_for([player.worker.url], workers_extra=[f", models: [{models}]"])) as gateway:
        yield gateway


def test_every_exchange_of_a_served_route_is_played() -> None:
    assert len(EXCHANGES) == 43
    assert [each.name for each in EXCHANGES if each not in SERVED] == ["azure-chat-basic"]
    for each in SERVED:
        assert ROUTES.find(each.path, b"POST").methods
    assert {each.status for each in SERVED} == {200, 400, 404}
    assert sum(each.streams for each in SERVED) == 5


async def test_recorded_exchanges_come_back_byte_for_byte(player: Player, running: Inside) -> None:
    async with client_of(running) as client:
        for recorded in SERVED:
            player.exchange = recorded
            for player.chunked in (False, True):
                lines = [b"POST %b HTTP/1.1" % recorded.path, b"Host: gateway"]
                lines += [
                    b"Content-Type: " + recorded.content_type.encode(),
                    b"Content-Length: %d" % len(recorded.body),
                ]
                client.write(b"\r\n".join(lines) + b"\r\n\r\n" + recorded.body)
                response = await client.response()
                assert response.body == recorded.answer, recorded.name
                assert response.status == recorded.status, recorded.name
                wanted = {name: value for name, value in recorded.fields.items() if name not in OWN_FIELDS}
                assert {name: response.fields.get(name) for name in wanted} == wanted, recorded.name
                assert player.worker.requests[-1][1] == recorded.body, recorded.name
    assert running.active == 0
    assert len(player.worker.requests) == 2 * len(SERVED)
