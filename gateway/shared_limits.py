"""Shares the tenants' limits with the other gateways of a fleet, through Redis: one round trip now and then.

All records are fields of one hash, one for each gateway: whoever tells its own reads the others' in the same round
trip. HSET, PEXPIRE, TIME, HGETALL and HDEL are all that is sent. No request waits for any of it. While Redis is away or
slow each gateway goes on by its own buckets, which have what was known until then.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from cache.redis_control import client_arguments
from cache.redis_settings import RedisSettings
from gateway.limit_records import VERSION, decode, encode
from policies.shared_limits import KEPT_S, Limiters, LimitLedger, end_sharing

if TYPE_CHECKING:
    from gateway.config import SharedLimits

log = logging.getLogger(__name__)

_LEAST_PAUSE_S: Final = 0.02
"""Between two exchanges, however much there is to tell."""
_LONGEST_PAUSE_S: Final = 2.0
"""Between two tries while Redis is away."""
_MOST_RECORDS: Final = 1000
_BUSY_SHARE: Final = 0.05
"""Of the loop's time, at most: with many gateways and tenants exchanges get rarer."""


@dataclass(slots=True)
class SharingCounts:
    """For metrics."""

    up: bool = False
    """Did the last exchange succeed?"""
    gateways: int = 1
    """That share, this one among them, as far as is known."""
    exchanges: int = 0
    errors: int = 0


class LimitSharing:
    """One gateway's part, from `run` until `close`."""

    def __init__(self, settings: SharedLimits, limiters: Callable[[], Limiters], clock: Callable[[], float]) -> None:
        """`limiters` are those in force."""
        self.settings = settings
        self.counts = SharingCounts()
        self._limiters = limiters
        self._clock = clock
        self._name = os.urandom(8).hex()
        self._key = f"{settings.prefix}{VERSION}"
        self._due = asyncio.Event()
        self._ledger = LimitLedger(limiters(), ttl=settings.ttl, now=clock(), hurry=self._due.set)
        self._redis = RedisSettings(
            url=settings.redis.get_secret_value(),
            tls_ca=settings.tls_ca,
            timeout=settings.timeout,
            connect_timeout=settings.timeout,
        )
        self._client: redis.asyncio.Redis | None = None
        self._offset: float | None = None
        """From this process's clock to that of Redis."""
        self._old: list[bytes] = []
        """Fields that nobody needs any more."""
        self._busy_s = 0.0
        """That the exchange under way has computed."""
        self._said: bool | None = None
        """What the log says last: are limits shared? None before it has said anything."""
        self._ends = False

    async def run(self) -> None:
        """Exchange again and again. Ends when it is cancelled; then `close`."""
        interval = pause = self.settings.interval
        this = asyncio.current_task()
        while True:
            self._busy_s = 0.0
            shared = await self._try()
            if this is not None and this.cancelling():
                return  # redis-py loses a cancellation now and then
            if not shared:
                pause = min(2 * pause, max(_LONGEST_PAUSE_S, interval))
                await asyncio.sleep(pause)
                continue
            pause = interval
            await asyncio.sleep(least := max(_LEAST_PAUSE_S, self._busy_s / _BUSY_SHARE))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, interval - least)):
                    await self._due.wait()

    async def close(self) -> None:
        """Tell the last of it, where Redis is there, and share no more. `run` must have ended. Bounded in time."""
        self._ends = True
        if self.counts.up:
            await self._try()
        await self._disconnect()
        end_sharing(self._limiters())

    async def _try(self) -> bool:
        """One exchange; tells the log when something has changed."""
        try:
            async with asyncio.timeout(self.settings.timeout):
                stamp, fields = await self._exchange()
            await self._hear(stamp, fields)
        except Exception as error:
            if not isinstance(error, (redis.RedisError, OSError, TimeoutError)):
                log.exception("tenants: limits are not shared for a fault of the gateway's own")
            self.counts.up = False
            self.counts.errors += 1
            self._tell(error)
            await self._disconnect()  # an answer may be under way that nobody waits for any more
        else:
            self.counts.exchanges += 1
            self._tell(None)
            self.counts.up = True
        self.counts.gateways = 1 + self._ledger.count_elsewhere(self._limiters(), self._clock())
        return self.counts.up

    async def _exchange(self) -> tuple[float, dict[bytes, bytes]]:
        """Tell, and read: the time by the clock of Redis, and all records."""
        client = self._client
        if client is None:
            client = self._client = _client(self._redis)
        if self._offset is None:
            self._offset = _seconds(await client.time()) - self._clock()
        with self._busy():
            now = self._clock()
            self._due.clear()
            record = self._ledger.record(self._limiters(), stamp=now + self._offset, now=now, last=self._ends)
            own = encode(record)
        async with client.pipeline(transaction=False) as pipeline:
            pipeline.hset(self._key, self._name, own)
            pipeline.pexpire(self._key, int(KEPT_S * 1e3))
            if self._old:
                pipeline.hdel(self._key, *self._old)
            pipeline.time()
            pipeline.hgetall(self._key)
            answers = await pipeline.execute(raise_on_error=False)  # else the error repeats the whole command
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        *_, time, fields = answers
        return _seconds(time), fields

    async def _hear(self, stamp: float, fields: dict[bytes, bytes]) -> None:
        """All records, one in a turn of the loop."""
        now = self._clock()
        self._offset = stamp - now
        self._old = []
        fields.pop(self._name.encode(), None)
        names = {field: field.decode("latin-1") for field in islice(fields, _MOST_RECORDS)}
        self._ledger.listen(set(names.values()), now)
        for field, name in names.items():
            with self._busy():
                record = decode(fields[field])
                if record is None or stamp - record.stamp_s > KEPT_S:
                    self._old.append(field)
                else:
                    self._ledger.hear(name, record, self._limiters(), stamp=stamp, now=now)
            await asyncio.sleep(0)

    @contextlib.contextmanager
    def _busy(self) -> Iterator[None]:
        began = perf_counter()
        yield
        self._busy_s += perf_counter() - began

    def _tell(self, error: Exception | None) -> None:
        if self._said is (error is None):
            return
        address = self._redis.address
        if error is not None:
            reason = str(error) or type(error).__name__
            log.warning("tenants: this gateway holds limits alone: Redis at %s: %s", address, reason)
        else:
            log.info(
                "tenants: limits are shared %sthrough Redis at %s", "again " if self._said is False else "", address
            )
        self._said = error is None

    async def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is None:
            return
        try:
            async with asyncio.timeout(self.settings.timeout):
                await client.aclose()
        except (redis.RedisError, OSError, TimeoutError):
            log.debug("a connection to Redis did not end as it should", exc_info=True)


def _client(settings: RedisSettings) -> redis.asyncio.Redis:
    arguments: dict[str, Any] = client_arguments(settings, settings.address, settings.timeout)
    return redis.asyncio.Redis(**{**arguments, "retry": Retry(NoBackoff(), 0), "max_connections": 1})


def _seconds(time: Any) -> float:
    """Redis answers seconds and microseconds."""
    seconds, micros = time
    return int(seconds) + int(micros) / 1e6
