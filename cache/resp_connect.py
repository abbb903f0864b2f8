"""How a payload connection to Redis begins: name, socket, TLS, user and database, all of it under one deadline."""

from __future__ import annotations

import socket
import ssl
import time
from typing import Any

from cache.bounded_call import call_within
from cache.redis_replies import Reason, Redirect, RedisStoreError, command, failure
from cache.redis_settings import Address, RedisSettings
from cache.resp_socket import RespSocket, seconds_left
from cache.store import StoreError


class RespConnector:
    """Opens connections as the settings say."""

    def __init__(self, settings: RedisSettings) -> None:
        """Raises StoreError where the TLS files are of no use."""
        self._settings = settings
        self._context = _context(settings) if settings.tls else None
        words = []
        if settings.credentials:
            words.append([b"AUTH", *(word.encode() for word in settings.credentials)])
        if settings.db:
            words.append([b"SELECT", b"%d" % settings.db])
        self._greeting = [command(*each) for each in words]

    def connect(self, address: Address, deadline: float) -> RespSocket:
        """A connection that is ready for commands. Raises RedisStoreError."""
        deadline = min(deadline, time.monotonic() + self._settings.connect_timeout)
        sock = _connected(address, deadline)
        try:
            if self._context is not None:
                sock.settimeout(seconds_left(deadline))
                sock = self._context.wrap_socket(sock, server_hostname=address.host)
            conn = RespSocket(sock)
            self._greet(conn, deadline)
        except ssl.SSLCertVerificationError:
            sock.close()
            raise RedisStoreError(Reason.CONNECT, f"the certificate of Redis at {address} is not accepted") from None
        except TimeoutError:
            sock.close()
            raise RedisStoreError(Reason.TIMEOUT, f"no connection to Redis at {address} in time") from None
        except (OSError, ValueError):
            sock.close()
            raise RedisStoreError(Reason.CONNECT, f"no encrypted connection to Redis at {address}") from None
        except BaseException:
            sock.close()
            raise
        return conn

    def _greet(self, conn: RespSocket, deadline: float) -> None:
        if not self._greeting:
            return
        conn.send([b"".join(self._greeting)], len(self._greeting), deadline)
        for _ in self._greeting:
            try:
                line = conn.line(deadline)
            except Redirect:
                raise failure(Reason.OTHER) from None
            if line.text != b"OK":
                raise RedisStoreError(Reason.PROTOCOL, "what came is no reply of Redis")


def _connected(address: Address, deadline: float) -> socket.socket:
    try:
        if address.is_unix:
            return _to(socket.AF_UNIX, address.host, deadline)
        last: OSError = OSError()
        for family, place in _resolved(address, deadline):
            try:
                return _to(family, place, deadline)
            except TimeoutError:
                raise
            except OSError as error:
                last = error
        raise last
    except TimeoutError:
        raise RedisStoreError(Reason.TIMEOUT, f"no connection to Redis at {address} in time") from None
    except (OSError, ValueError):
        # A ValueError: a name that can be nobody's, such as one with a part of more than 63 letters.
        raise RedisStoreError(Reason.CONNECT, f"no connection to Redis at {address}") from None


def _resolved(address: Address, deadline: float) -> list[tuple[int, tuple[Any, ...]]]:
    kind = socket.SOCK_STREAM
    try:
        found = socket.getaddrinfo(address.host, address.port, type=kind, flags=socket.AI_NUMERICHOST)
    except OSError:
        # A name: the resolver has times of its own.
        found = call_within(
            seconds_left(deadline), lambda: socket.getaddrinfo(address.host, address.port, type=kind), "redis-resolve"
        )
    return [(family, place) for family, _, _, _, place in found]


def _to(family: int, place: str | tuple[Any, ...], deadline: float) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.settimeout(seconds_left(deadline))
        if family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.connect(place)
    except BaseException:
        sock.close()
        raise
    return sock


def _context(settings: RedisSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = settings.tls_verify and settings.tls_check_host
    if not settings.tls_verify:
        context.verify_mode = ssl.CERT_NONE
    try:
        if settings.tls_ca is not None:
            context.load_verify_locations(settings.tls_ca)
        elif settings.tls_verify:
            context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        if settings.tls_certificate is not None:
            # An encrypted key is an error: OpenSSL would ask for its password on the terminal.
            context.load_cert_chain(settings.tls_certificate, settings.tls_key, password=lambda: "")
    except OSError:
        raise StoreError("the TLS files for Redis cannot be read, or do not fit together") from None
    return context
