"""Asks workers for the token ids of a prompt, by `/tokenize` of vLLM and SGLang: the tokenizer may be theirs alone.

Few questions are under way at once and none is waited for beyond its deadline: whoever asks can do without the answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from ssl import SSLContext
from typing import Final, NamedTuple

import aiohttp
import orjson

from cache.remote_tokens import RemoteTokenizeError, read_tokens
from policies.types import TokenIds, WorkerId

log = logging.getLogger(__name__)

_PATH: Final = "/tokenize"
_NO_SUCH_PATH: Final = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED})
_LACKING_SECONDS: Final = 300.0
_RESTING_SECONDS: Final = 5.0
_ERROR_BYTES: Final = 4096
_SPARE_TOKENS: Final = 65_536
"""What a template may add to the tokens of a request."""
_CHAT_FIELDS: Final = (
    "messages", "tools", "documents", "chat_template", "chat_template_kwargs", "add_generation_prompt",
    "continue_final_message", "add_special_tokens", "reasoning_effort",
)  # fmt: skip


class TokenizeTarget(NamedTuple):
    """One worker that may be asked."""

    worker: WorkerId
    base_url: str
    """Without a path."""
    api_key: str | None = None
    ssl: SSLContext | bool = True
    server_name: str | None = None


class RemoteTokenizer:
    """Asks the workers of a model in turn. Belongs to one event loop; `close` it at the end."""

    def __init__(
        self,
        targets: Callable[[str], Sequence[TokenizeTarget]],
        *,
        timeout: float = 2.0,
        max_at_once: int = 8,
        max_waiting: int = 64,
    ) -> None:
        """`targets` are the healthy workers that answer to a model's name. Up to `max_at_once` questions are
        with workers, `max_waiting` more wait for their turn, at most `timeout` seconds; an answer may take what is left
        of that, and half of it in any case.
        """
        self._targets = targets
        self._timeout = timeout
        self._max_at_once = max_at_once
        self._most = max_at_once + max_waiting
        self._places = asyncio.Semaphore(max_at_once)
        self._under_way = 0
        self._turn = 0
        self._resting: dict[WorkerId, float] = {}
        self._lacking: set[WorkerId] = set()
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    @property
    def busy(self) -> bool:
        """Do as many questions wait as may?"""
        return self._under_way >= self._most

    def available(self, model: str, now: float) -> bool:
        """May any worker of the model be asked? False for a while after a failure, longer where it has no such path.
        `now` is the loop's time.
        """
        return bool(self._awake(model, now))

    async def tokenize(self, model: str, body: Mapping[str, object]) -> TokenIds:
        """Token ids of a prompt; `body` is a `/tokenize` request (see `chat_request`, `text_request`). Raises
        RemoteTokenizeError where none can be had.
        """
        loop = asyncio.get_running_loop()
        awake = self._awake(model, loop.time())
        if not awake or self.busy or self._closed:
            raise RemoteTokenizeError("too many prompts wait already" if awake else "no worker to ask")
        try:
            data = orjson.dumps(body)
        except TypeError as error:  # lone surrogates, nesting too deep: the prompt's fault, not the worker's
            raise RemoteTokenizeError("a prompt that is not valid JSON") from error
        self._turn += 1
        target = awake[self._turn % len(awake)]
        self._under_way += 1
        deadline = loop.time() + self._timeout
        try:
            ids = await self._in_turn(target, data, deadline)
        except _UnavailableError as trouble:
            self._rest(target.worker, trouble, loop.time())
            raise RemoteTokenizeError(str(trouble)) from trouble
        finally:
            self._under_way -= 1
        if self._resting.pop(target.worker, None) is not None:
            self._lacking.discard(target.worker)
            log.info("worker %s tokenizes again", target.worker)
        return ids

    async def close(self) -> None:
        """Close its connections; what is under way fails."""
        self._closed = True
        if self._session is not None:
            await self._session.close()

    async def _in_turn(self, target: TokenizeTarget, data: bytes, deadline: float) -> TokenIds:
        """Wait for a place, then ask. Only a deadline that passes at the worker is the worker's fault."""
        try:
            async with asyncio.timeout_at(deadline):
                await self._places.acquire()
        except TimeoutError as error:
            raise RemoteTokenizeError("too many prompts were before it") from error
        try:
            left = max(deadline - asyncio.get_running_loop().time(), self._timeout / 2)
            return await self._ask(target, data, left)
        finally:
            self._places.release()

    def _awake(self, model: str, now: float) -> list[TokenizeTarget]:
        resting = self._resting
        targets = self._targets(model)
        return [each for each in targets if resting.get(each.worker, now) <= now] if resting else list(targets)

    def _rest(self, worker: WorkerId, trouble: _UnavailableError, now: float) -> None:
        if worker not in self._resting or (trouble.lacking and worker not in self._lacking):
            log.info("worker %s does not tokenize: %s", worker, trouble)
        if trouble.lacking:
            self._lacking.add(worker)
        self._resting[worker] = now + (_LACKING_SECONDS if trouble.lacking else _RESTING_SECONDS)

    async def _ask(self, target: TokenizeTarget, data: bytes, timeout: float) -> TokenIds:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._max_at_once),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
            )
        # No text has more tokens than bytes, but for what a template adds.
        max_tokens = len(data) + _SPARE_TOKENS
        headers = {"content-type": "application/json", "accept-encoding": "identity"}
        if target.api_key:
            headers["authorization"] = f"Bearer {target.api_key}"
        try:
            async with self._session.post(
                target.base_url.rstrip("/") + _PATH,
                data=data,
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=timeout),
                allow_redirects=False,
                ssl=target.ssl,
                server_hostname=target.server_name,
            ) as response:
                if response.status in _NO_SUCH_PATH:
                    if b'"error"' in await response.content.read(_ERROR_BYTES):
                        # The engine's own words: it has the path, and not the model or adapter.
                        raise RemoteTokenizeError("the worker does not know this model")
                    raise _UnavailableError(f"status {response.status}", lacking=True)
                if response.status in (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY):
                    raise RemoteTokenizeError(f"the worker refuses this prompt: status {response.status}")
                if response.status != HTTPStatus.OK:
                    raise _UnavailableError(f"status {response.status}")
                body = bytearray()
                async for piece in response.content.iter_any():
                    body += piece
                    if len(body) > 12 * max_tokens:
                        raise _UnavailableError("its answer is longer than any can be")
        except TimeoutError as error:
            raise _UnavailableError("no answer in time") from error
        except (aiohttp.ClientError, OSError) as error:
            raise _UnavailableError(type(error).__name__) from error
        try:
            return read_tokens(bytes(body), max_tokens=max_tokens)
        except RemoteTokenizeError as error:
            raise _UnavailableError("its answer holds no token ids") from error


class _UnavailableError(Exception):
    """The worker is not to be asked for a while."""

    def __init__(self, reason: str, *, lacking: bool = False) -> None:
        super().__init__(reason)
        self.lacking = lacking


def chat_request(model: str, fields: Mapping[str, object]) -> dict[str, object]:
    """A `/tokenize` request for the chat in a request's body."""
    chosen = {name: fields[name] for name in _CHAT_FIELDS if fields.get(name) is not None}
    generation = fields.get("continue_final_message") is not True
    return {"model": model, "add_generation_prompt": generation, **chosen}


def text_request(model: str, text: str, *, add_special_tokens: bool) -> dict[str, object]:
    """A `/tokenize` request for a completion's prompt."""
    return {"model": model, "prompt": text, "add_special_tokens": add_special_tokens}
