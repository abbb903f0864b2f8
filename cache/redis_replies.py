"""The Redis protocol, version 2, as far as frames need it: commands, first lines of replies, errors. Pure.

https://redis.io/docs/latest/develop/reference/protocol-spec/
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

from cache.redis_settings import Address
from cache.store import StoreError

MAX_LINE: Final = 4096
"""Bytes of a reply's first line, its end included; Redis' own are far shorter."""


class Reason(StrEnum):
    """Why it failed: what failures are counted by."""

    CONNECT = "connect"
    CLOSED = "closed"
    TIMEOUT = "timeout"
    PROTOCOL = "protocol"
    CROWDED = "crowded"
    RESTING = "resting"
    SHUT = "shut"
    OOM = "oom"
    LOADING = "loading"
    READONLY = "readonly"
    MASTERDOWN = "masterdown"
    CLUSTERDOWN = "clusterdown"
    BUSY = "busy"
    MISCONF = "misconf"
    REDIRECTED = "redirected"
    NOAUTH = "noauth"
    WRONGPASS = "wrongpass"
    NOPERM = "noperm"
    OTHER = "other"


_SENTENCES: Final = {
    Reason.OOM: "Redis is at its memory bound and may evict nothing: set maxmemory-policy allkeys-lru",
    Reason.LOADING: "Redis is still loading its data",
    Reason.READONLY: "this Redis is a replica and takes no commands that write",
    Reason.MASTERDOWN: "this Redis is a replica that has lost its master",
    Reason.CLUSTERDOWN: "the cluster does not serve this slot",
    Reason.BUSY: "Redis is busy with a script",
    Reason.MISCONF: "Redis cannot write its snapshots and takes no commands that write",
    Reason.NOAUTH: "Redis asks for a password and none is configured",
    Reason.WRONGPASS: "Redis does not accept this user and password",
    Reason.NOPERM: "the Redis user may not use this command or key: see what rights it needs",
    Reason.OTHER: "Redis answered with an error",
}
_CODES: Final = {
    b"OOM": Reason.OOM,
    b"LOADING": Reason.LOADING,
    b"READONLY": Reason.READONLY,
    b"MASTERDOWN": Reason.MASTERDOWN,
    b"CLUSTERDOWN": Reason.CLUSTERDOWN,
    b"TRYAGAIN": Reason.CLUSTERDOWN,
    b"BUSY": Reason.BUSY,
    b"MISCONF": Reason.MISCONF,
    b"NOAUTH": Reason.NOAUTH,
    b"WRONGPASS": Reason.WRONGPASS,
    b"NOPERM": Reason.NOPERM,
    b"WRONGTYPE": Reason.OTHER,
    b"NOREPLICAS": Reason.MISCONF,
}
_SINGLE_CALL: Final = {Reason.OOM, Reason.OTHER, Reason.CROWDED, Reason.RESTING, Reason.SHUT, Reason.REDIRECTED}


class RedisStoreError(StoreError):
    """A StoreError that knows its reason. Its text holds nothing that the server sent."""

    def __init__(self, reason: Reason, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason

    @property
    def means_server(self) -> bool:
        """Whether the next call is likely to fail as well, so that the server should be left alone for a while."""
        return self.reason not in _SINGLE_CALL


class Redirect(Exception):  # noqa: N818 - the protocol's word; it is an answer rather than an error
    """MOVED: the slot is served elsewhere from now on; ASK: this key is, for this once."""

    def __init__(self, slot: int, address: Address, *, ask: bool) -> None:
        super().__init__("the key is on another node")
        self.slot = slot
        self.address = address
        """Its host is empty where the node does not know its own: then it is the one that answered."""
        self.ask = ask


class Line(NamedTuple):
    """The first line of a reply: `$` and a length (-1: nothing there), `:` and a number, `+` and a word."""

    kind: str
    number: int
    text: bytes


def parse_line(line: bytes) -> Line:
    """A reply's first line, without its end.

    Raises:
        RedisStoreError: What an error reply means; with Reason.PROTOCOL where it is no reply.
        Redirect: It is to be asked elsewhere.
    """
    kind, rest = line[:1], line[1:]
    if kind in {b"$", b":"}:
        return Line(kind.decode(), _number(rest), b"")
    if kind == b"+":
        return Line("+", 0, rest)
    if kind == b"-":
        raise _error(rest)
    raise protocol_failure()


def protocol_failure() -> RedisStoreError:
    """What was read is not what Redis says there."""
    return RedisStoreError(Reason.PROTOCOL, "what came is no reply of Redis")


def failure(reason: Reason) -> RedisStoreError:
    """One that an error reply means."""
    return RedisStoreError(reason, _SENTENCES[reason])


def reason_of_code(code: bytes) -> Reason | None:
    """What an error's first word means; None where it is not one of those known here."""
    return _CODES.get(code, Reason.OTHER if code == b"ERR" else None)


def _number(text: bytes) -> int:
    if text == b"-1":
        return -1
    if not text.isdigit() or len(text) > 12 or (len(text) > 1 and text[:1] == b"0"):
        raise protocol_failure()
    return int(text)


def _error(text: bytes) -> Exception:
    code, _, rest = text.partition(b" ")
    if code in {b"MOVED", b"ASK"}:
        return _redirect(rest, ask=code == b"ASK")
    reason = reason_of_code(code)
    # An error of a code unknown here is taken for damage: what follows it in the stream may not be a reply.
    return protocol_failure() if reason is None else failure(reason)


def _redirect(rest: bytes, *, ask: bool) -> Exception:
    slot, _, place = rest.partition(b" ")
    host, colon, port = place.rpartition(b":")
    valid = slot.isdigit() and port.isdigit() and len(slot) <= 5 and len(port) <= 5 and colon
    if not valid or int(slot) >= 16384 or not 0 < int(port) < 65536 or not host.isascii():
        return protocol_failure()
    return Redirect(int(slot), Address(host.decode().strip("[]"), int(port)), ask=ask)


# --- commands ---------------------------------------------------------------------------------------------------


def command(*words: bytes) -> bytes:
    """A whole command."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


def set_around(key: bytes, length: int, ttl_ms: int | None) -> tuple[bytes, bytes]:
    """What is sent before and after a value of `length` bytes, to set it unless the key is there."""
    expiry = b"" if ttl_ms is None else b"$2\r\nPX\r\n" + _bulk(b"%d" % ttl_ms)
    head = b"*%d\r\n$3\r\nSET\r\n%b$%d\r\n" % (4 if ttl_ms is None else 6, _bulk(key), length)
    return head, b"\r\n" + expiry + b"$2\r\nNX\r\n"


def _bulk(word: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(word), word)
