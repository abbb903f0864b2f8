"""Limits that several processes hold together, without asking each other first. Pure: `now` is given.

Each process decides alone, by its own token buckets. Every now and then, in one exchange, it tells what it has taken in
all so far and reads what the others told; the difference to what it had read before is charged to its own buckets. It
does so at regular times, and as soon as it has taken `TOLD_SHARE` / n of a limit, where n processes share it.

Let S be what all have told. Once S has reached a limit, each process takes at most what it takes until it reads that,
and tells all of it. So over any time t, in minutes, all processes together take at most

    rate × (1 + t) + TOLD_SHARE × limit + n + what comes while those exchanges, which are due, are under way.

What was taken too much stays charged: the rate holds in the long run, and the excess does not grow with t. Late charges
leave a bucket lower than it would be, never higher.

What is told are totals (a state, not a change): an exchange that is lost, doubled or late is made up for by the next.
Clocks of two processes are never compared; `Record.stamp_s` is by the clock of whatever keeps the records.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, NamedTuple, NewType, TypeAlias

from policies.rate_limit import RateLimiter

LimiterId = NewType("LimiterId", bytes)
Limiters: TypeAlias = Mapping[LimiterId, RateLimiter]
_ID_BYTES: Final = 12
TOLD_SHARE: Final = 0.1
"""Of a limit: what all processes together may have taken that none of them has told."""
_IDLE_S: Final = 120.0
"""After so long without a request a limiter is not told of any more: its buckets are full, its totals known."""
KEPT_S: Final = 300.0
"""For so long the record of a process that is gone says to new ones what was taken."""


class Usage(NamedTuple):
    """What one process says of one limiter."""

    limiter: LimiterId
    epoch: int
    """Another one means that the totals begin at zero again."""
    requests: int
    tokens: float
    """Taken in this epoch, by that process alone; tokens may be given back."""
    running: int
    requests_lacking: float
    tokens_lacking: float
    """To full buckets, with all charges that it knew of; 0 where there is no such limit."""


class Record(NamedTuple):
    """What one process says, whole."""

    number: int
    """Rises from one record of a process to the next."""
    uptime_s: float
    """By its own clock, since it began."""
    stamp_s: float
    """When, by the clock of whatever keeps the records."""
    usages: list[Usage]


def limiter_id(tenant: str, model: str | None) -> LimiterId:
    """The same in all processes. No name stands in it."""
    name = tenant if model is None else f"{tenant}\0{model}"
    return LimiterId(sha256(name.encode()).digest()[:_ID_BYTES])


@dataclass(slots=True)
class _Own:
    """What is told of a limiter of this process."""

    limiter: RateLimiter
    counts: tuple[int, float]
    """What it had taken when it was last looked at."""
    base: tuple[int, float] = (0, 0.0)
    """What it had taken when the epoch began."""
    epoch: int | None = None
    """None: nothing is told of it."""
    changed_at: float = 0.0


@dataclass(slots=True)
class _Peer:
    """What was last heard of another process."""

    number: int
    uptime_s: float
    told_at: float
    """By the clock of this process."""
    usages: Mapping[LimiterId, Usage]


class LimitLedger:
    """What this process tells and what it has heard. Times are seconds of this process's own clock."""

    def __init__(
        self, limiters: Limiters, *, ttl: float, now: float, hurry: Callable[[], object] = lambda: None
    ) -> None:
        """What a limiter has taken before it is seen here is nobody else's concern. Who is not heard of for `ttl` is
        gone: its concurrent requests count no longer. `hurry` is called when there is so much to tell that it is due.
        """
        self._hurry = hurry
        self._share = TOLD_SHARE
        self._ttl = ttl
        self._began = now
        self._records = self._epochs = self._n_alive = 0
        self._own = {name: _Own(limiter, _counts(limiter)) for name, limiter in limiters.items()}
        self._peers: dict[str, _Peer] = {}
        self._heard_at = self._listening_since = float("-inf")
        self._gap = float("inf")

    def record(self, limiters: Limiters, *, stamp: float, now: float, last: bool = False) -> Record:
        """What to tell now. `limiters` are those in force. `last`: nothing more will be told, and so nothing runs any
        more, as far as the others know.
        """
        own = self._own
        for gone in own.keys() - limiters.keys():
            own.pop(gone).limiter.unmark()
        share = TOLD_SHARE / (1 + self._n_alive)
        shared_by_others, self._share = share != self._share, share
        usages = []
        for name, limiter in limiters.items():
            known = own.get(name)
            if known is None or known.limiter is not limiter:
                known = own[name] = _Own(limiter, _counts(limiter))
                limiter.mark(share, self._hurry)
            elif shared_by_others or limiter.running or known.counts != _counts(limiter):
                limiter.mark(share, self._hurry)
            if self._to_tell(known, now):
                usages.append(_usage(name, known, 0 if last else limiter.running, now))
        self._records += 1
        return Record(self._records, now - self._began, stamp, usages)

    def listen(self, names: Collection[str], now: float) -> None:
        """The records of these processes have been read at once, and will be heard one after the other. They are all
        that there are, but for that of this process.
        """
        self._gap = now - self._heard_at
        if self._gap > self._ttl:
            self._listening_since = now
        self._heard_at = now
        for name in [name for name, peer in self._peers.items() if name not in names and self._is_gone(peer, now)]:
            del self._peers[name]

    def hear(self, name: str, record: Record, limiters: Limiters, *, stamp: float, now: float) -> None:
        """Take up what another process told. `stamp` is the time by the clock of the records."""
        peer = self._peers.get(name)
        if peer is not None and record.number <= peer.number:
            return  # it has said nothing since
        age = min(max(0.0, stamp - record.stamp_s), self._gap)  # when all were read before, it was not there
        usages = {usage[0]: usage for usage in record.usages}
        self._peers[name] = _Peer(record.number, record.uptime_s, now - age, usages)
        before = self._known_before(peer, record, age, now)
        if before is not None:
            _charge_difference(before, usages, limiters, now)
        else:
            _let_lack(usages, limiters, age, now)

    def count_elsewhere(self, limiters: Limiters, now: float) -> int:
        """Count what runs in processes that are not gone; how many of those there are. To be called also while nothing
        can be heard.
        """
        running: dict[LimiterId, int] = {}
        alive = [peer for peer in self._peers.values() if not self._is_gone(peer, now)]
        for peer in alive:
            for name, usage in peer.usages.items():
                if usage[4]:
                    running[name] = running.get(name, 0) + usage[4]
        for name, limiter in limiters.items():
            limiter.elsewhere = running.get(name, 0)
        self._n_alive = len(alive)
        return self._n_alive

    def _is_gone(self, peer: _Peer, now: float) -> bool:
        return now - peer.told_at > self._ttl

    def _known_before(
        self, peer: _Peer | None, record: Record, age: float, now: float
    ) -> Mapping[LimiterId, Usage] | None:
        """What had been charged here before a new record came, so that the difference can be; None where too little was
        heard for that.
        """
        if age > self._ttl:
            return None
        if peer is not None:
            return peer.usages if record.uptime_s - peer.uptime_s <= self._ttl else None
        # Began while somebody was listening: it had taken nothing then.
        return {} if record.uptime_s + age < min(self._ttl, now - self._listening_since) else None

    def _to_tell(self, known: _Own, now: float) -> bool:
        """Is there anything to tell of a limiter? Begins and ends its epochs."""
        limiter, counts = known.limiter, _counts(known.limiter)
        if counts != known.counts or limiter.running:
            if known.epoch is None:
                self._epochs += 1
                known.epoch, known.base = self._epochs, known.counts
            known.counts, known.changed_at = counts, now
        elif known.epoch is not None and now - known.changed_at > _IDLE_S and not limiter.in_debt(now):
            known.epoch = None
        return known.epoch is not None


def end_sharing(limiters: Limiters) -> None:
    """These limits are shared no longer."""
    for limiter in limiters.values():
        limiter.elsewhere = 0
        limiter.unmark()


def _charge_difference(
    before: Mapping[LimiterId, Usage], usages: Mapping[LimiterId, Usage], limiters: Limiters, now: float
) -> None:
    # Thousands of times in a row: a tuple is unpacked in a quarter of the time that its fields take by name.
    for name, (_, epoch, requests, tokens, *_) in usages.items():
        last = before.get(name)
        if last is not None and last[1] == epoch:
            requests, tokens = requests - last[2], tokens - last[3]  # noqa: PLW2901 - what is new of them
        if (requests or tokens) and (limiter := limiters.get(name)) is not None:
            limiter.charge(requests, tokens, now)


def _let_lack(usages: Mapping[LimiterId, Usage], limiters: Limiters, age: float, now: float) -> None:
    """What a process took while nothing was heard of it, perhaps for hours, is not to be made up for. Its bucket, which
    has filled up all the while, says what is left.
    """
    for name, usage in usages.items():
        limiter = limiters.get(name)
        if limiter is None:
            continue
        if limiter.requests is not None:
            limiter.requests.let_lack(usage.requests_lacking, age, now)
        if limiter.tokens is not None:
            limiter.tokens.let_lack(usage.tokens_lacking, age, now)


def _usage(name: LimiterId, known: _Own, running: int, now: float) -> Usage:
    limiter = known.limiter
    requests, tokens = known.counts
    return Usage(
        name,
        known.epoch or 0,
        requests - known.base[0],
        tokens - known.base[1],
        running,
        0.0 if limiter.requests is None else limiter.requests.lacking(now),
        0.0 if limiter.tokens is None else limiter.tokens.lacking(now),
    )


def _counts(limiter: RateLimiter) -> tuple[int, float]:
    return limiter.taken_requests, limiter.taken_tokens
