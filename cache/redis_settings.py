"""Which Redis keeps KV, and how long anything about it may take."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

DEFAULT_PORT = 6379


class Address(NamedTuple):
    """A server: host and port, or the path of a Unix socket and port 0."""

    host: str
    port: int

    def __str__(self) -> str:
        if self.is_unix:
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_unix(self) -> bool:
        """A Unix socket?"""
        return self.port == 0


def parse_address(text: str) -> Address:
    """`host`, `host:port` or `[v6]:port`. Raises ValueError."""
    parts = urlsplit(f"//{text}")
    if not parts.hostname or parts.username is not None or parts.path:
        raise ValueError(f"a Redis node is host:port, not {text!r}")
    return Address(parts.hostname, _port(parts))


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisSettings:
    """Raises ValueError where they contradict each other. Times in seconds.

    Redis 6.2 or later. It needs `maxmemory` and `maxmemory-policy allkeys-lru`: the bound on its bytes is its own,
    since many workers write to it. The user needs, on keys that begin with `prefix`, exactly these commands:

        ACL SETUSER kv on >password resetchannels ~prefixgate:kv:* -@all +getex +set +pexpire +exists +unlink

    and besides: `+select` for a `db` other than 0; `+asking +cluster|slots` in a cluster; `+get` in place of
    `+getex +pexpire` without a `ttl` or without `renew`; `+info +dbsize` if sizes shall be shown, which nothing else
    depends on; `+getrange +scan` where entries are found without their keys, or a tenant's frames forgotten;
    `+append` where epochs are shared.
    """

    url: str = field(default="redis://127.0.0.1:6379", repr=False)
    """redis://[user[:password]@]host[:port][/db], rediss:// for TLS, or unix:///path[?db=1]."""
    username: str | None = field(default=None, repr=False)
    """In place of the URL's; with a password alone it is Redis' user `default`."""
    password: str | None = field(default=None, repr=False)
    cluster: bool = False
    """The URL names one node of a Redis Cluster; the others are found."""
    more_nodes: tuple[str, ...] = ()
    """host:port of more nodes of the cluster, to ask where the URL's is away."""
    tls_ca: Path | None = None
    """Whom the server's certificate must be signed by, PEM; None means the system's authorities."""
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    tls_verify: bool = True
    tls_check_host: bool = True
    """Whether the certificate must name the host that is connected to; its signature is checked all the same."""
    prefix: str = "prefixgate:kv:"
    """What keys begin with. No braces: they would put all keys into one slot of a cluster."""
    ttl: float | None = 86400.0
    """How long a frame is kept after its last use; None: until Redis evicts it."""
    renew: bool = True
    """Does a use put off when a frame expires? If not, `ttl` counts from when it was written."""
    connect_timeout: float = 0.5
    timeout: float = 1.0
    """For one call as a whole: waiting for a connection, connecting, sending, receiving, being sent elsewhere."""
    max_frame_bytes: int = 64 << 20
    pool_size: int = 4
    """Connections to one server at most, and so calls that it serves at the same time."""
    max_rest: float = 30.0
    """How long a server that keeps failing is left alone at most, before it is tried again."""

    def __post_init__(self) -> None:
        _ = self.address, self.db, self.nodes
        if min(self.connect_timeout, self.timeout, self.max_rest) <= 0:
            raise ValueError("timeouts and rests are above zero")
        if self.ttl is not None and self.ttl < 0.001:
            raise ValueError("ttl is a millisecond or more")
        if not 0 < self.max_frame_bytes <= 512 << 20:
            raise ValueError("max_frame_bytes is between 1 and 512 MiB, Redis' own limit")
        if self.pool_size < 1:
            raise ValueError("pool_size is 1 or more")
        if set(self.prefix) & set("{}"):
            raise ValueError("a key prefix has no braces")
        if self.more_nodes and not self.cluster:
            raise ValueError("more_nodes are nodes of a cluster")
        if self.cluster and (self.db or self.address.is_unix):
            raise ValueError("a cluster has no databases but 0, and no Unix sockets")
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key go together")
        if self.username is not None and self.password is None and self._split().password is None:
            raise ValueError("a username needs a password")

    @property
    def address(self) -> Address:
        """The URL's server."""
        parts = self._split()
        if parts.scheme == "unix":
            path = unquote(parts.path)
            if not path.startswith("/") or parts.hostname:
                raise ValueError("a Redis URL of a Unix socket is unix:///path")
            return Address(path, 0)
        if not parts.hostname:
            raise ValueError("a Redis URL names a host")
        return Address(parts.hostname, _port(parts))

    @property
    def nodes(self) -> tuple[Address, ...]:
        """Servers to begin with."""
        return (self.address, *map(parse_address, self.more_nodes))

    @property
    def tls(self) -> bool:
        """Whether all connections are encrypted."""
        return self._split().scheme == "rediss"

    @property
    def db(self) -> int:
        """The database's number."""
        parts = self._split()
        text = parts.path.strip("/") if parts.scheme != "unix" else parse_qs(parts.query).get("db", ["0"])[0]
        if text and not (text.isascii() and text.isdigit()):
            raise ValueError("a Redis database is a number")
        return int(text or 0)

    @property
    def credentials(self) -> tuple[str, ...]:
        """Password, or user and password; nothing where none is told."""
        parts = self._split()
        username = self.username if self.username is not None else unquote(parts.username or "")
        password = self.password if self.password is not None else unquote(parts.password or "")
        if not password:
            return ()
        return (username, password) if username else (password,)

    def _split(self) -> SplitResult:
        parts = urlsplit(self.url)
        if parts.scheme not in {"redis", "rediss", "unix"}:
            raise ValueError("a Redis URL begins with redis://, rediss:// or unix://")
        return parts


def _port(parts: SplitResult) -> int:
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise ValueError("a port is between 1 and 65535")
    return DEFAULT_PORT if port is None else port
