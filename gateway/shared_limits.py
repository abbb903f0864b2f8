"""Shares the tenants' limits with the other gateways of a fleet, through Redis: one round trip now and then.

All records are fields of one hash, one for each gateway: whoever tells its own reads the others' in the same round
trip. HSET, PEXPIRE, TIME, HGETALL and HDEL are all that is sent. No request waits for any of it. While Redis is away or
slow each gateway goes on by its own buckets, which have what was known until then.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from cache.redis_control import client_arguments
from cache.redis_settings import RedisSettings
from gateway.limit_records import VERSION, decode, encode
from policies.shared_limits import KEPT_S, Limiters, LimitLedger, Record, forget_elsewhere

if TYPE_CHECKING:
    from gateway.config import SharedLimits

log = logging.getLogger(__name__)

_LONGEST_PAUSE_S: Final = 2.0
"""Between two tries while Redis is away."""
_MOST_RECORDS: Final = 1000


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
        self._ledger = LimitLedger(limiters(), ttl=settings.ttl, now=clock())
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
        self._said: bool | None = None
        """What the log says last: are limits shared? None before it has said anything."""

    async def run(self) -> None:
        """Exchange again and again. Ends when it is cancelled; then `close`."""
        pause = self.settings.interval
        while True:
            if await self._try():
                pause = self.settings.interval
            else:
                pause = min(2 * pause, max(_LONGEST_PAUSE_S, self.settings.interval))
            await asyncio.sleep(pause)

    async def close(self) -> None:
        """Tell the last of it, where Redis is there, and share no more. `run` must have ended. Bounded in time."""
        if self.counts.up:
            await self._try()
        await self._disconnect()
        forget_elsewhere(self._limiters())

    async def _try(self) -> bool:
        """One exchange; tells the log when something has changed."""
        try:
            async with asyncio.timeout(self.settings.timeout):
                await self._exchange()
        except (redis.RedisError, OSError, TimeoutError, ValueError, TypeError) as error:
            self.counts.errors += 1
            self._tell(error)
            await self._disconnect()  # an answer may be under way that nobody waits for any more
            self.counts.up = False
        else:
            self.counts.exchanges += 1
            self._tell(None)
            self.counts.up = True
        self.counts.gateways = 1 + self._ledger.count_elsewhere(self._limiters(), self._clock())
        return self.counts.up

    async def _exchange(self) -> None:
        client = self._client
        if client is None:
            client = self._client = _client(self._redis)
        if self._offset is None:
            self._offset = _seconds(await client.time()) - self._clock()
        now = self._clock()
        record = self._ledger.record(self._limiters(), stamp=now + self._offset, now=now)
        async with client.pipeline(transaction=False) as pipeline:
            pipeline.hset(self._key, self._name, encode(record))
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
        self._hear(_seconds(time), fields)

    def _hear(self, stamp: float, fields: dict[bytes, bytes]) -> None:
        now = self._clock()
        self._offset = stamp - now
        records: dict[str, Record] = {}
        self._old = []
        own = self._name.encode()
        for field, data in fields.items():
            record = decode(data)
            if record is None or stamp - record.stamp_s > KEPT_S:
                self._old.append(field)
            elif field != own and len(records) < _MOST_RECORDS:
                records[field.decode("latin-1")] = record
        del self._old[_MOST_RECORDS:]
        self._ledger.hear(records, self._limiters(), stamp=stamp, now=now)

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
