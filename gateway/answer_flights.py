"""Identical requests at the same time: one of them makes the call, and its answer is for all.

A stream goes on to all who want the same stream as it comes; everybody else waits for its end. A call goes on when its
own client leaves, as long as anybody waits for it, and stops with the last of them. It comes as fast as the fastest of
its clients reads; who falls too far behind that one is cut off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from backends.errors import UpstreamFault
from cache.response_key import ResponseKey
from cache.single_flight import Role, SingleFlight
from gateway.answer_replay import begin_stream
from gateway.background_client import BackgroundClient
from gateway.cached_call import CachedCall, Result, tell

if TYPE_CHECKING:
    from gateway.exchange import Exchange

_LEAST_BEHIND: Final = 1 << 20
"""Bytes that a client may have to read that the fastest one has read, if the cache would not keep longer answers."""


class AnswerFlights:
    """Of one pipeline. Who takes part is known by its exchange."""

    def __init__(self) -> None:
        self.table: SingleFlight[ResponseKey, Exchange] = SingleFlight()
        self.coalesced = 0
        """Requests that were answered by another's call."""
        self._leaders: dict[ResponseKey, CachedCall] = {}
        self._orphans: dict[ResponseKey, BackgroundClient] = {}

    # -- coming

    def waits(self, exchange: Exchange, cached: CachedCall) -> bool:
        """Does another make the call? If not, this one does, and may lead others who come."""
        role = self.table.join(cached.key, exchange)
        self._note(cached, role)
        if role is Role.WAITER:
            self.set_pace(cached.key)
        return role is Role.WAITER

    def leads(self, exchange: Exchange, cached: CachedCall) -> bool:
        """Can this one make the call? It does not wait for another's."""
        role = self.table.join(cached.key, exchange)
        self._note(cached, role)
        if role is Role.WAITER:
            self.table.leave(cached.key, exchange)
        return role is Role.LEADER

    def _note(self, cached: CachedCall, role: Role) -> None:
        cached.leads = role is Role.LEADER
        if cached.leads:
            self._leaders[cached.key] = cached

    def leader(self, key: ResponseKey) -> CachedCall | None:
        """Who makes the call at the moment."""
        return self._leaders.get(key)

    def askers(self, cached: CachedCall) -> int:
        """How many get the answer that this one gets, as far as is known by now."""
        return 1 + (self.table.line(cached.key) if cached.leads else 0)

    # -- streams

    def follow(self, exchange: Exchange, cached: CachedCall) -> None:
        """Have one that waits get the leader's stream as it comes, where it wants the same one to the letter."""
        leader = self._leaders.get(cached.key)
        same = leader is not None and cached.call.streams and leader.call.streams and cached.usage == leader.usage
        if leader is None or not same or (leader.parts is None and not leader.waits):
            return
        leader.followers.append(exchange)
        if leader.parts and leader.streams:
            self._begin(exchange, b"".join(leader.parts))

    def pass_on(self, leader: CachedCall, data: bytes) -> None:
        """More of a leader's answer has come, for which others wait."""
        followers = list(leader.followers) if leader.streams else []
        for exchange in followers:
            if exchange.streaming:
                exchange.response_data(data)
            else:
                self._begin(exchange, data)
        for one in (self.table.leader(leader.key), *followers):
            if one is not None:
                one.client.keep_up(max(leader.caching.settings.max_entry, _LEAST_BEHIND))
        self.set_pace(leader.key)

    def set_pace(self, key: ResponseKey) -> None:
        """Read no more of an answer while nobody can take more of it: none of those who get it as it comes, nor any who
        wait for the whole.
        """
        leader, call = self.table.leader(key), self._leaders.get(key)
        if leader is None or call is None or leader.upstream is None:
            return
        readers = [one for one in call.followers if one.streaming]
        others = self.table.line(key) - len(readers)
        nobody = isinstance(leader.client, BackgroundClient)
        if not nobody:
            readers.append(leader)
        waits = bool(readers) and all(one.client.paused for one in readers) and not (others and call.parts)
        if nobody:
            leader.client.paused = waits  # as those do for whom it stands
        if waits:
            leader.upstream.pause()
        else:
            leader.upstream.resume()

    @staticmethod
    def _begin(exchange: Exchange, data: bytes) -> None:
        cached = exchange.caching
        if cached is None or not cached.unpark(exchange):
            return
        exchange.caching = cached
        cached.follows = True
        tell(exchange, Result.HIT)
        exchange.own_fields += b"\r\nage: 0"
        begin_stream(exchange)
        exchange.response_data(data)

    def end_streams(self, leader: CachedCall, *, whole: bool) -> None:
        """A leader's stream is over, well or not: for those who got its beginning it ends as it did. `whole`: as far as
        that is known, where it could not be watched.
        """
        followers, leader.followers = leader.followers, []
        for exchange in followers:
            if exchange.finished or not exchange.streaming:
                continue
            exchange.caching = None
            if whole and exchange.watch is not None and exchange.watch.complete:
                self.coalesced += 1
                exchange.response_end()
            else:
                exchange.response_fault(UpstreamFault.TRUNCATED, "the answer that it shared broke off")

    # -- going

    def adopt(self, exchange: Exchange, cached: CachedCall) -> bool:
        """The client of a request has left: does it go on without one, since others wait for its answer?"""
        server = exchange.client.server
        if not cached.leads or server.draining or not self.table.line(cached.key):
            return False
        client = self._orphans[cached.key] = BackgroundClient(server)
        client.adopt(exchange)
        return True

    def leave(self, exchange: Exchange, cached: CachedCall) -> None:
        """It waits no longer for another's answer; a call without a client, and without anybody who waits, stops."""
        self.table.leave(cached.key, exchange)
        leader = self._leaders.get(cached.key)
        if leader is not None and exchange in leader.followers:
            leader.followers.remove(exchange)
        self.set_pace(cached.key)
        orphan = self._orphans.get(cached.key)
        if orphan is not None and not self.table.line(cached.key):
            del self._orphans[cached.key]
            orphan.close()

    def end(self, exchange: Exchange, cached: CachedCall) -> list[tuple[Exchange, CachedCall]]:
        """A call is over: who waits for it still."""
        if not cached.leads:
            return []
        self._leaders.pop(cached.key, None)
        self._orphans.pop(cached.key, None)
        line = self.table.finish(cached.key, exchange)
        return [(waiter, waiter.caching) for waiter in line if waiter.caching is not None]

    def check_empty(self) -> None:
        """Raises AssertionError where anything is left of anybody."""
        self.table.check()
        assert (len(self.table), self.table.waiting, self._leaders, self._orphans) == (0, 0, {}, {})
