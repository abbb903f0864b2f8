"""Vectors from an OpenAI-compatible endpoint for embeddings.

Blocking, on the standard library: it runs in the thread of whoever batches, as a local model does, so that there is one
kind of embedder. What takes part in a call, from the look-up of the name to the last byte, has one deadline together.
"""

from __future__ import annotations

import hashlib
import http.client
import threading
import time
from collections.abc import Sequence
from http import HTTPStatus
from ssl import SSLContext, create_default_context
from typing import Any, Final, cast
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from cache.deadline_socket import DeadlineSocket
from cache.embedding import EmbeddingError, EmbeddingRefusedError
from cache.embedding_answers import most_bytes, read_answer, request_body

_REFUSED: Final = frozenset(
    {HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNPROCESSABLE_ENTITY}
)
_AT_ONCE: Final = 64
"""Texts in one request."""
_PIECE: Final = 1 << 16


class HttpEmbedder:
    """An `Embedder`. Keeps one connection for the next call; calls of several threads have one each."""

    def __init__(
        self,
        base_url: str,
        model: str,
        dim: int,
        *,
        api_key: str | None = None,
        timeout_s: float = 5.0,
        send_dimensions: bool = False,
        base64_: bool = True,
        tls: SSLContext | None = None,
    ) -> None:
        """`base_url` ends in `/v1` or whatever `/embeddings` follows. `dim` is what the model's vectors have: any other
        is an error. `timeout_s` is for one request with all that belongs to it. Raises ValueError for a URL that is not
        http or https, or one with credentials in it.
        """
        parts = urlsplit(base_url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError("the endpoint for embeddings needs an http or https URL")
        if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
            raise ValueError("the URL of the endpoint for embeddings may only have a host, a port and a path")
        self._tls = (tls or create_default_context()) if parts.scheme == "https" else None
        self._host, self._port = parts.hostname, parts.port or (443 if self._tls else 80)
        self._path = f"{parts.path.rstrip('/')}/embeddings"
        self._model, self._dim = model, dim
        self._dimensions = dim if send_dimensions else None
        self._base64 = base64_
        self._timeout_s = timeout_s
        self._headers = {
            "content-type": "application/json",
            "accept": "application/json",
            "accept-encoding": "identity",
        }
        if api_key:
            self._headers["authorization"] = f"Bearer {api_key}"
        told = "\n".join([parts.scheme, self._host, str(self._port), self._path, model, str(dim)])
        self._name = f"http:{hashlib.sha256(told.encode()).hexdigest()[:32]}"
        self._lock = threading.Lock()
        self._idle: http.client.HTTPConnection | None = None
        self._closed = False

    @property
    def name(self) -> str:
        """Of the endpoint, the model's name and its dimensions."""
        return self._name

    @property
    def dim(self) -> int:
        """See `Embedder`."""
        return self._dim

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """See `Embedder`. Raises EmbeddingRefusedError for 400, 413 and 422, which blame the texts."""
        rows = np.empty((len(texts), self._dim), np.float32)
        for start in range(0, len(texts), _AT_ONCE):
            some = texts[start : start + _AT_ONCE]
            body = request_body(self._model, some, dimensions=self._dimensions, base64_=self._base64)
            answer = self._answered(body, most_bytes(len(some), self._dim))
            rows[start : start + len(some)] = read_answer(answer, n=len(some), dim=self._dim)
        return rows

    def close(self) -> None:
        """See `Embedder`."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, None
        if idle is not None:
            idle.close()

    def _answered(self, body: bytes, most: int) -> bytes:
        deadline = time.monotonic() + self._timeout_s
        with self._lock:
            idle, self._idle = self._idle, None
        try:
            if idle is not None:
                cast("DeadlineSocket", idle.sock).deadline = deadline
                try:
                    return self._exchange(idle, body, most)
                except (ConnectionError, http.client.BadStatusLine):
                    pass  # most likely it was closed since: a vector may be asked for twice
            return self._exchange(self._connection(deadline), body, most)
        except TimeoutError as error:
            raise EmbeddingError("no answer in time") from error
        except OSError as error:
            raise EmbeddingError(f"the connection failed: {error.strerror or type(error).__name__}") from error
        except http.client.HTTPException as error:
            # Its text may quote what was received.
            raise EmbeddingError(f"the answer is not HTTP: {type(error).__name__}") from error

    def _connection(self, deadline: float) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(self._host, self._port)
        # It reads and writes, and never looks at what else a socket can do.
        connection.sock = cast("Any", DeadlineSocket(self._host, self._port, tls=self._tls, deadline=deadline))
        return connection

    def _exchange(self, connection: http.client.HTTPConnection, body: bytes, most: int) -> bytes:
        """One request on this connection, which is kept only where all went well."""
        kept = False
        try:
            connection.request("POST", self._path, body, self._headers)
            response = connection.getresponse()
            if response.status in _REFUSED:
                raise EmbeddingRefusedError(f"the texts were refused: status {response.status}")
            if response.status != HTTPStatus.OK:
                raise EmbeddingError(f"status {response.status}")
            answer = _bounded(response, most)
            kept = connection.sock is not None and self._keep(connection)
            return answer
        finally:
            if not kept:
                connection.close()

    def _keep(self, connection: http.client.HTTPConnection) -> bool:
        with self._lock:
            if self._closed or self._idle is not None:
                return False
            self._idle = connection
            return True


def _bounded(response: http.client.HTTPResponse, most: int) -> bytes:
    answer = bytearray()
    while piece := response.read(_PIECE):
        answer += piece
        if len(answer) > most:
            raise EmbeddingError("the answer is longer than any can be")
    if response.length:  # what is still to come
        raise EmbeddingError("the answer was cut")
    return bytes(answer)
