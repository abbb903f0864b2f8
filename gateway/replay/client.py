"""The replay client: one streaming request per arrival over aiohttp, each booked in its own record."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import urlsplit

import aiohttp
import orjson

from gateway.replay.arrival import Chat
from gateway.replay.prompts import PromptMaker
from gateway.replay.records import RequestRecord, StreamError, error_message, read_event
from gateway.replay.sse import SseDecoder, SseError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.replay.arrival import Arrival
    from gateway.replay.schedule import Clock

Endpoint = Literal["chat", "completions"]

_PATHS: Final[dict[Endpoint, str]] = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}

# Below uvicorn's 5 s: a request on a connection that the server is just closing fails by the client's fault.
_KEEP_ALIVE_S: Final = 4.0

_MODELS_TIMEOUT_S: Final = 10.0


class ReplayError(RuntimeError):
    """The replay cannot start; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where and how requests are sent; ``timeout`` is seconds for one whole request."""

    url: str
    model: str | None = None  # None: the first one that the endpoint lists
    endpoint: Endpoint = "chat"
    timeout: float = 600.0
    api_key: str | None = None
    ignore_eos: bool = True
    worker_header: str = "x-worker-id"


def base_url(url: str) -> str:
    """``url`` without a trailing slash or ``/v1``, so that both usual ways to write it work.

    Raises `ReplayError` where it is no base URL.
    """
    if not _is_base_url(url):
        raise ReplayError(f"--url: expected a base URL such as http://127.0.0.1:8000; given {url!r}")
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def _is_base_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return False
    whole = not (parts.query or parts.fragment) and url.isprintable() and " " not in url
    return whole and parts.scheme in {"http", "https"} and bool(host) and port != 0


def open_session(api_key: str | None) -> aiohttp.ClientSession:
    """A session without a limit on connections: an open loop never waits for one."""
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S, ttl_dns_cache=300),
        timeout=aiohttp.ClientTimeout(total=None),  # each request has its own deadline
        headers=headers,
        raise_for_status=False,
    )


async def find_model(session: aiohttp.ClientSession, url: str) -> str:
    """The first model that the endpoint lists. Raises `ReplayError`."""
    address = base_url(url) + "/v1/models"
    try:
        async with asyncio.timeout(_MODELS_TIMEOUT_S), session.get(address) as response:
            body = await response.read()
            if response.status != HTTPStatus.OK:
                raise ReplayError(f"{address} answered {response.status}; name the model with --model")
            return str(orjson.loads(body)["data"][0]["id"])
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise ReplayError(f"{address} cannot be reached: {_reason(error)}") from error
    except (ValueError, LookupError, TypeError) as error:
        raise ReplayError(f"{address} lists no model; name it with --model") from error


class ReplayClient:
    """Sends the arrivals by index and books each in the record of the same index."""

    def __init__(
        self,
        target: Target,
        arrivals: Sequence[Arrival],
        records: Sequence[RequestRecord],
        *,
        session: aiohttp.ClientSession,
        clock: Clock,
    ) -> None:
        self._target = target
        self._arrivals = arrivals
        self._records = records
        self._session = session
        self._clock = clock
        self._address = base_url(target.url) + _PATHS[target.endpoint]
        sizes = {arrival.block_tokens for arrival in arrivals if arrival.chat is None}
        self._makers = {size: PromptMaker(size) for size in sizes}

    async def send(self, index: int) -> None:
        """One request to the end of its stream; only cancellation is raised, all else is booked."""
        record = self._records[index]
        body = self._body(self._arrivals[index], record.output_tokens)
        record.sent = self._clock.now()
        try:
            async with asyncio.timeout(self._target.timeout):
                await self._exchange(record, body)
        except asyncio.CancelledError:
            record.error, record.error_detail = "cancelled", "the replay was stopped"
            raise
        except StreamError as error:
            record.error, record.error_detail = error.kind, str(error)
        except (aiohttp.ClientError, OSError, SseError) as error:  # TimeoutError is an OSError
            record.error, record.error_detail = classify(error, begun=record.first_token is not None)
        finally:
            record.finished = self._clock.now()

    async def _exchange(self, record: RequestRecord, body: bytes) -> None:
        headers = {"content-type": "application/json"}
        async with self._session.post(self._address, data=body, headers=headers) as response:
            record.status = response.status
            record.worker = response.headers.get(self._target.worker_header)
            if response.status != HTTPStatus.OK:
                raise StreamError(f"http_{response.status}", _error_text(await response.content.read(65_536)))
            if response.content_type != "text/event-stream":
                raise StreamError("not_a_stream", f"the answer is {response.content_type}, not text/event-stream")
            await self._read(record, response.content)

    async def _read(self, record: RequestRecord, content: aiohttp.StreamReader) -> None:
        decoder = SseDecoder()
        done = False
        async for chunk in content.iter_any():
            now = self._clock.now()
            for data in decoder.feed(chunk):
                done = done or read_event(record, data, now)
        if not done:
            raise StreamError("truncated", f"the stream ended after {record.token_events} tokens without [DONE]")
        if record.first_token is None:
            raise StreamError("no_tokens", "the stream ended without a token")

    def _body(self, arrival: Arrival, output_tokens: int) -> bytes:
        prompt = arrival.chat or self._makers[arrival.block_tokens].prompt(arrival)
        return request_body(self._target, prompt, output_tokens)


def request_body(target: Target, prompt: str | Chat, output_tokens: int) -> bytes:
    """The JSON of one streaming request; recorded messages go out as they were recorded."""
    body: dict[str, object] = {"model": target.model}
    if isinstance(prompt, Chat):
        body["messages"] = prompt.messages[: prompt.count]
        if prompt.tools:
            body["tools"] = prompt.tools
    elif target.endpoint == "chat":
        body["messages"] = [{"role": "user", "content": prompt}]
    else:
        body["prompt"] = prompt
    body |= {
        "max_tokens": output_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if target.ignore_eos:
        body["ignore_eos"] = True
    return orjson.dumps(body)


def classify(error: Exception, *, begun: bool) -> tuple[str, str]:  # noqa: PLR0911 - a table
    """Error class and detail of a failure of the transport; ``begun``: a token had arrived."""
    detail = _reason(error)
    match error:
        case aiohttp.ConnectionTimeoutError():
            return "connect_timeout", detail
        case TimeoutError():
            return ("timeout_mid_stream" if begun else "timeout"), detail
        case aiohttp.ClientConnectorDNSError():
            return "unknown_host", detail
        case aiohttp.ClientConnectorError(os_error=cause) if cause.errno == errno.ECONNREFUSED:
            return "connect_refused", detail
        case aiohttp.ClientConnectorError():
            return "connect_failed", detail
        case aiohttp.ServerDisconnectedError() | ConnectionResetError() | aiohttp.ClientOSError():
            return ("reset_mid_stream" if begun else "reset"), detail
        case aiohttp.ClientPayloadError():
            return "truncated", detail
        case SseError():
            return "malformed_event", detail
        case _:
            return type(error).__name__, detail


def _error_text(body: bytes) -> str:
    try:
        return error_message(orjson.loads(body))
    except orjson.JSONDecodeError:
        return error_message(body.decode("utf-8", "replace"))


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
