"""What is asked of Redis besides frames, by redis-py: which node of a cluster has which slots, and how full it is.

Each question has a connection of its own: they are rare. redis-py bounds each read and not a whole answer, so it runs
in a thread beside, for as long as the caller has time.
"""

from __future__ import annotations

import inspect
import ssl
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.connection import AbstractConnection
from redis.retry import Retry

from cache.bounded_call import call_within
from cache.redis_replies import Reason, RedisStoreError, failure, reason_of_code
from cache.redis_settings import Address, RedisSettings

T = TypeVar("T")


_PAGE: Final = 5_000
"""Keys that a server looks through in one turn: some milliseconds in which it does nothing else."""


class SlotRange(NamedTuple):
    """Slots `first` to `last`, both included, and who serves them."""

    first: int
    last: int
    address: Address


class Usage(NamedTuple):
    """Of one server, whoever else uses it; zeros where its user may not know."""

    entries: int = 0
    bytes: int = 0
    capacity: int = 0
    evictions: int = 0


class RedisControl:
    """Safe for many threads. All methods raise RedisStoreError, by `deadline` at the latest."""

    def __init__(self, settings: RedisSettings) -> None:
        self._settings = settings

    def slots(self, addresses: Iterable[Address], deadline: float) -> list[SlotRange]:
        """As the first of these nodes tells it that answers."""
        last: RedisStoreError | None = None
        for address in addresses:
            try:
                told = self._ask(address, deadline, _cluster_slots)
                return _ranges(told, address)
            except RedisStoreError as error:
                last = error
        raise last or RedisStoreError(Reason.CONNECT, "no node of the cluster is known")

    def usage(self, address: Address, deadline: float) -> Usage:
        """How full a server is."""

        def asked(client: redis.Redis) -> list[Any]:
            with client.pipeline(transaction=False) as pipeline:
                pipeline.info("memory")
                pipeline.info("stats")
                pipeline.dbsize()
                return pipeline.execute(raise_on_error=False)

        memory, stats, entries = self._ask(address, deadline, asked)
        return Usage(
            entries=entries if isinstance(entries, int) else 0,
            bytes=_number(memory, "used_memory"),
            capacity=_number(memory, "maxmemory"),
            evictions=_number(stats, "evicted_keys"),
        )

    def scan(self, address: Address, pattern: bytes, cursor: int, deadline: float) -> tuple[int, list[bytes]]:
        """One page of the names on a server that match, and where the next one begins; 0: there is none."""

        def asked(client: redis.Redis) -> tuple[int, list[bytes]]:
            following, names = client.scan(cursor, match=pattern, count=_PAGE)
            return int(following), [name for name in names if isinstance(name, bytes)]

        return self._ask(address, deadline, asked)

    def _ask(self, address: Address, deadline: float, question: Callable[[redis.Redis], T]) -> T:
        # Not to the end: there may be another node to ask.
        left = min(deadline - time.monotonic(), self._settings.timeout / 2)
        if left <= 0:
            raise RedisStoreError(Reason.TIMEOUT, "Redis took too long")

        def run() -> T:
            client = redis.Redis(**client_arguments(self._settings, address, left))
            try:
                return question(client)
            finally:
                client.close()

        try:
            return call_within(left, run, "redis-control")
        except (TimeoutError, redis.TimeoutError):
            raise RedisStoreError(Reason.TIMEOUT, f"Redis at {address} took too long") from None
        except redis.ResponseError as error:
            raise _translated(error) from None
        except redis.AuthenticationError:
            raise failure(Reason.WRONGPASS) from None
        except redis.BusyLoadingError:
            raise failure(Reason.LOADING) from None
        except (redis.RedisError, OSError, ValueError):
            raise RedisStoreError(Reason.CONNECT, f"no connection to Redis at {address}") from None


def client_arguments(settings: RedisSettings, address: Address, seconds: float) -> dict[str, Any]:
    """For a client of redis-py: one server, `seconds` for each read, no retries, no commands of the client's own."""
    *username, password = settings.credentials or (None,)
    arguments: dict[str, Any] = {
        "username": username[0] if username else None,
        "password": password,
        "db": settings.db,
        "protocol": 2,
        "socket_timeout": seconds,
        "socket_connect_timeout": min(seconds, settings.connect_timeout),
        "retry": Retry(NoBackoff(), 0),
        **_UNNAMED,
    }
    if address.is_unix:
        return {**arguments, "unix_socket_path": address.host}
    arguments |= {"host": address.host, "port": address.port}
    if settings.tls:
        arguments |= {
            "ssl": True,
            "ssl_ca_certs": _text(settings.tls_ca),
            "ssl_certfile": _text(settings.tls_certificate),
            "ssl_keyfile": _text(settings.tls_key),
            "ssl_cert_reqs": "required" if settings.tls_verify else "none",
            "ssl_check_hostname": settings.tls_verify and settings.tls_check_host,
            "ssl_min_version": ssl.TLSVersion.TLSv1_2,
        }
    return arguments


def _cluster_slots(client: redis.Redis) -> Any:
    return client.execute_command("CLUSTER SLOTS")  # type: ignore[no-untyped-call]  # redis-py gives it no types


def _unnamed() -> dict[str, None]:
    """No CLIENT SETINFO, which a user with few rights may not send; the switch has changed its name."""
    known = inspect.signature(AbstractConnection.__init__).parameters
    return {"driver_info": None} if "driver_info" in known else {"lib_name": None, "lib_version": None}


_UNNAMED = _unnamed()


def _text(path: object) -> str | None:
    return None if path is None else str(path)


def _number(section: Any, name: str) -> int:
    value = section.get(name, 0) if isinstance(section, dict) else 0
    return value if isinstance(value, int) else 0


def _ranges(told: Any, asked: Address) -> list[SlotRange]:
    """`told` is [first, last, [host, port, …], replicas…] for each range. Raises RedisStoreError."""
    ranges = []
    try:
        for first, last, primary, *_ in told:
            host, port = primary[0] or b"", int(primary[1])
            # A node that does not know its own name is the one that was asked.
            address = Address(host.decode("ascii").strip("?") or asked.host, port)
            ranges.append(SlotRange(int(first), int(last), address))
    except (AttributeError, IndexError, TypeError, ValueError):
        raise RedisStoreError(Reason.PROTOCOL, "what came is no list of a cluster's slots") from None
    return ranges


def _translated(error: redis.ResponseError) -> RedisStoreError:
    """redis-py keeps the code of some errors in their class and takes it out of their text."""
    by_class = {
        redis.exceptions.NoPermissionError: Reason.NOPERM,
        redis.exceptions.ReadOnlyError: Reason.READONLY,
        redis.exceptions.OutOfMemoryError: Reason.OOM,
        redis.exceptions.ClusterDownError: Reason.CLUSTERDOWN,
        redis.exceptions.MasterDownError: Reason.MASTERDOWN,
    }
    for kind, reason in by_class.items():
        if isinstance(error, kind):
            return failure(reason)
    code = str(error).partition(" ")[0].encode("utf-8", "replace")
    return failure(reason_of_code(code) or Reason.OTHER)
