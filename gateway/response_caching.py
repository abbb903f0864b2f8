"""Requests that need no worker: their answers are known, or another request has just asked for the same.

The response cache (`cache.response_cache`) knows what is kept and who leads a flight of identical requests; here are
the requests themselves. Each step is synchronous but for the lookup on disk and in Redis, which is done in a thread,
under a deadline. Whatever fails here is a miss, and the request goes on to a worker.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import orjson

from backends.errors import UpstreamFault
from cache.response_entry import ResponseEntry, Stamp
from cache.response_key import ResponseKey, is_unambiguous, response_key
from cache.single_flight import Role, SingleFlight
from gateway import answers
from gateway.answer_replay import begin_stream, replay_body, replay_stream
from gateway.api_error import ApiError
from gateway.background_client import BackgroundClient
from gateway.cached_call import CachedCall, CachingSettings, Result
from gateway.header_finder import header_finder
from gateway.request_record import Outcome
from gateway.routes import Kind
from policies.response_freshness import (
    NOTHING_SAID,
    CacheDirectives,
    Freshness,
    FreshnessRules,
    parse_cache_control,
)
from policies.response_policy import AnswerFacts, Refusal, refuse_answer, refuse_request

if TYPE_CHECKING:
    from cache.response_cache import Found, ResponseCache
    from gateway.calls import Call
    from gateway.exchange import Exchange
    from policies.tenant import TenantPolicy

log = logging.getLogger(__name__)

_cache_control: Final = header_finder("cache-control")
_own_header: Final = header_finder("x-prefixgate-cache")
_beta: Final = header_finder("anthropic-beta")
_version: Final = header_finder("anthropic-version")
_RESULT: Final = b"\r\nx-prefixgate-cache: "
_OK: Final = 200
_GRACE: Final = 1.0
"""Seconds that a client's deadline is beyond our own."""


class ResponseCaching:
    """Of one pipeline."""

    def __init__(
        self,
        cache: ResponseCache,
        settings: CachingSettings,
        *,
        loop: asyncio.AbstractEventLoop,
        executor: Executor,
        proceed: Callable[[Exchange], None],
        attempt: Callable[[Exchange, Callable[[Exchange], None]], None],
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`proceed` sends a request on its way to a worker; `attempt` takes a step with it, and refuses it where that
        fails. `wall` gives seconds since 1970.
        """
        self.cache = cache
        self.settings = settings
        self.flights: SingleFlight[ResponseKey, Exchange] = SingleFlight()
        self.refusals: Counter[str] = Counter()
        """Requests that were not looked up, and answers that were not kept, by why."""
        self.coalesced = 0
        self.refreshed = 0
        self.saved_tokens = 0
        """Prompt and output tokens of answers from the cache, where they are known."""
        self._loop = loop
        self._executor = executor
        self._proceed = proceed
        self._attempt = attempt
        self._wall = wall
        self._looking = 0
        self._leaders: dict[ResponseKey, CachedCall] = {}
        self._orphans: dict[ResponseKey, BackgroundClient] = {}

    # -- a request comes

    def enter(self, exchange: Exchange) -> bool:
        """Answer a request, or have it wait for its answer; False where it is to go on to a worker.

        Raises:
            ApiError: 504 where the client wants an answer from the cache or none, and there is none.
        """
        call = exchange.call
        assert call is not None, "read before"
        rules = self._rules(exchange.policy, call.kind)
        if rules is None:
            return False
        fields = exchange.head.fields
        asked, own = NOTHING_SAID, _own_header(fields)
        if (control := _cache_control(fields)) is not None:
            asked = parse_cache_control(control.decode("latin-1"))
        if own == b"off":
            asked = replace(asked, no_store=True)
        refusal = refuse_request(call.kind.value, call.fields, asked=asked.asks or own == b"on")
        if refusal is not None or asked.no_store:
            return self._bypass(exchange, asked, refusal)
        try:
            key = self._key(exchange, call)
        except ValueError:
            return self._bypass(exchange, asked, Refusal.AMBIGUOUS)
        usage = call.streams and answers.wants_usage(call.fields)
        cached = CachedCall(self, key, call, rules, asked, self.cache.begin(), usage)
        if asked.reads:
            found = self.cache.lookup(key, rules, asked)
            if found is not None:
                if self._serve(exchange, cached, found):
                    return True
            elif self._look_further(exchange, cached):
                return True
        return self._miss(exchange, cached)

    def _rules(self, policy: TenantPolicy, kind: Kind) -> FreshnessRules | None:
        """How long an answer is fresh; None where the cache has nothing to do with such requests."""
        settings, own = self.settings, policy.responses
        if kind not in _KINDS or not (settings.enabled if own.enabled is None else own.enabled):
            return None
        rules = settings.by_route.get(kind, settings.rules)
        return rules if own.ttl_s is None else replace(rules, ttl=own.ttl_s)

    def _key(self, exchange: Exchange, call: Call) -> ResponseKey:
        variants = []
        if call.kind is Kind.MESSAGES:
            for name, find in (("anthropic-beta", _beta), ("anthropic-version", _version)):
                if (value := find(exchange.head.fields)) is not None:
                    variants.append((name, value.decode("latin-1")))
        return response_key(
            _scope(exchange),
            call.model or "",
            exchange.dialect.name,
            call.kind.value,
            {**call.fields, "model": call.model},  # one answer for all names of a model
            variants=variants,
            n_bytes=len(exchange.body),
        )

    def _bypass(self, exchange: Exchange, asked: CacheDirectives, refusal: Refusal | None) -> bool:
        if refusal is not None:
            self.refusals[refusal.value] += 1
        if asked.only_if_cached:
            raise _not_cached()
        self._tell(exchange, Result.BYPASS)
        return False

    # -- an answer is known

    def _serve(self, exchange: Exchange, cached: CachedCall, found: Found) -> bool:
        """Answer with what was found, if it may be used; what may be used only if all else fails is kept for that."""
        if found.freshness is Freshness.FRESH:
            return self._replay(exchange, cached, found.entry, Result.HIT, found.age)
        if found.freshness is Freshness.STALE_IF_ERROR:
            cached.fallback = found
            return False
        body = exchange.body  # which is dropped once it is answered
        if not self._replay(exchange, cached, found.entry, Result.STALE, found.age):
            return False
        self._refresh(exchange, cached, body)
        return True

    def fall_back(self, exchange: Exchange, cached: CachedCall) -> bool:
        """No worker gave an answer: is there one that is better than none?"""
        found, cached.fallback = cached.fallback, None
        if found is None:
            return False
        exchange.own_fields = exchange.own_fields.replace(_RESULT + Result.MISS.encode(), b"")
        return self._replay(exchange, cached, found.entry, Result.STALE, found.age)

    def _replay(self, exchange: Exchange, cached: CachedCall, entry: ResponseEntry, result: str, age: int) -> bool:
        """Answer with an entry, in the form that the client asks for; False where that cannot be made of it."""
        call, body = cached.call, entry.body
        events: list[bytes] | None = None
        try:
            if call.streams:
                form = answers.restream if entry.streamed else answers.disassemble
                events = form(call.kind, body, usage=cached.usage)
            elif entry.streamed:
                body = answers.assemble(call.kind, body)
        except answers.AnswerError:
            log.warning("an answer in the cache cannot be given in another form; it is removed")
            self._executor.submit(self.cache.discard, cached.key)
            return False
        exchange.caching = exchange.recording = None
        exchange.worker = None
        self._tell(exchange, result)
        exchange.own_fields += b"\r\nage: %d" % age
        self.saved_tokens += (entry.prompt_tokens or 0) + (entry.completion_tokens or 0)
        if events is None:
            replay_body(exchange, body, entry.content_type)
        else:
            replay_stream(exchange, events, pace=self.settings.pace)
        return True

    def _tell(self, exchange: Exchange, result: str) -> None:
        exchange.own_fields += _RESULT + result.encode()
        exchange.record.cache = result

    # -- an answer may be known elsewhere

    def _look_further(self, exchange: Exchange, cached: CachedCall) -> bool:
        """Ask the slower stores, in a thread. False where there are none, or too many ask."""
        if not self.cache.has_slower or self._looking >= _MOST_LOOKING:
            return False
        self._looking += 1
        timeout = self.settings.lookup_timeout
        self._park(exchange, cached, timeout, lambda: self._found(exchange, cached, None))
        future = self._loop.run_in_executor(
            self._executor, self.cache.lookup_slower, cached.key, cached.rules, cached.asked
        )

        def done(looked: asyncio.Future[Found | None]) -> None:
            self._looking -= 1
            failed = looked.cancelled() or looked.exception() is not None
            self._found(exchange, cached, None if failed else looked.result())

        future.add_done_callback(done)
        return True

    def _found(self, exchange: Exchange, cached: CachedCall, found: Found | None) -> None:
        """What there is elsewhere; None where there is nothing, or it took too long."""
        if not self._unpark(exchange, cached):
            return

        def go_on(exchange: Exchange) -> None:
            served = found is not None and self._serve(exchange, cached, found)
            if not served and not self._miss(exchange, cached):
                self._proceed(exchange)

        self._attempt(exchange, go_on)

    def _park(self, exchange: Exchange, cached: CachedCall, timeout: float, otherwise: Callable[[], None]) -> None:
        exchange.caching = cached
        cached.waits = True
        cached.timer = self._loop.call_later(timeout, otherwise)
        exchange.wait(timeout + _GRACE)

    @staticmethod
    def _unpark(exchange: Exchange, cached: CachedCall) -> bool:
        """It waits no longer; False where it did not wait any more."""
        if exchange.finished or not cached.waits:
            return False
        cached.waits = False
        exchange.caching = None
        if cached.timer is not None:
            cached.timer.cancel()
        return True

    # -- nobody knows the answer

    def _miss(self, exchange: Exchange, cached: CachedCall) -> bool:
        """Have it wait for one who asks the same, or let it go on and listen to its answer; True where it waits."""
        if cached.asked.only_if_cached:
            raise _not_cached()
        if self.settings.coalesce and cached.asked.reads and cached.fallback is None:
            role = self.flights.join(cached.key, exchange)
            if role is Role.WAITER:
                wait = self.settings.coalesce_wait
                self._park(exchange, cached, wait, lambda: self._alone(exchange, cached))
                self._follow(exchange, cached)
                return True
            cached.leads = role is Role.LEADER
        self._listen(exchange, cached)
        self._tell(exchange, Result.MISS)
        return False

    def _listen(self, exchange: Exchange, cached: CachedCall) -> None:
        if cached.stamp is not None and not is_unambiguous(exchange.body):
            cached.stamp = None
            self.refusals[Refusal.AMBIGUOUS.value] += 1
        exchange.caching = cached
        cached.again(exchange)
        if cached.leads:
            self._leaders[cached.key] = cached

    def _alone(self, exchange: Exchange, cached: CachedCall) -> None:
        """It has waited long enough, or in vain."""
        if self._unpark(exchange, cached):
            self._leave(exchange, cached)
            self._tell(exchange, Result.MISS)
            self._proceed(exchange)

    # -- a stream that others want too

    def _follow(self, exchange: Exchange, cached: CachedCall) -> None:
        """Have it get the leader's stream as it comes, where it wants the same one to the letter."""
        leader = self._leaders.get(cached.key)
        same = leader is not None and cached.call.streams and leader.call.streams and cached.usage == leader.usage
        if leader is None or not same or leader.parts is None:
            return
        leader.followers.append(exchange)
        if leader.parts:
            self._begin_following(exchange, b"".join(leader.parts))

    def pass_on(self, leader: CachedCall, data: bytes) -> None:
        """More of a leader's stream has come."""
        for exchange in list(leader.followers):
            if exchange.streaming:
                exchange.response_data(data)
            else:
                self._begin_following(exchange, data)

    def _begin_following(self, exchange: Exchange, data: bytes) -> None:
        cached = exchange.caching
        if cached is None or not self._unpark(exchange, cached):
            return
        exchange.caching = cached
        cached.follows = True
        self._tell(exchange, Result.HIT)
        begin_stream(exchange)
        exchange.response_data(data)

    def _end_following(self, leader: CachedCall) -> None:
        """A leader's stream is over, well or not: for those who got its beginning it ends as it did."""
        for exchange in leader.followers:
            if exchange.finished or not exchange.streaming:
                continue
            exchange.caching = None
            if exchange.watch is not None and exchange.watch.complete:
                self.coalesced += 1
                exchange.response_end()
            else:
                exchange.response_fault(UpstreamFault.TRUNCATED, "the answer that it shared broke off")

    def _refresh(self, exchange: Exchange, cached: CachedCall, body: bytes) -> None:
        """Fetch another answer in place of one that is stale, for nobody in particular."""
        server = exchange.client.server
        if server.draining or len(server.background) >= _MOST_BACKGROUND:
            return
        client = BackgroundClient(server)
        twin = client.ask(exchange.head, body)
        if self.flights.join(cached.key, twin) is not Role.LEADER:
            self.flights.leave(cached.key, twin)
            client.exchange_over(twin)
            return
        self.refreshed += 1
        twin.dialect, twin.repeatable, twin.call = exchange.dialect, exchange.repeatable, cached.call
        twin.tenant, twin.policy, twin.salting = exchange.tenant, exchange.policy, exchange.salting
        before, record = exchange.record, twin.record
        record.kind, record.dialect, record.model = before.kind, before.dialect, before.model
        record.streams, record.tenant = before.streams, before.tenant
        self._listen(twin, replace(cached, leads=True, waits=False, timer=None, asked=NOTHING_SAID))
        self._tell(twin, Result.MISS)
        self._proceed(twin)

    # -- a request is over

    def adopt(self, exchange: Exchange, cached: CachedCall) -> bool:
        """The client of a request has left: it goes on without one where others wait for its answer."""
        server = exchange.client.server
        if not cached.leads or server.draining or not self.flights.line(cached.key):
            return False
        client = self._orphans[cached.key] = BackgroundClient(server)
        client.adopt(exchange)
        return True

    def finished(self, exchange: Exchange) -> None:
        """A request is over, however it ended: what has come of it is for all who wait for the same."""
        cached, exchange.caching = exchange.caching, None
        exchange.recording = None
        if cached is None:
            return
        if cached.timer is not None:
            cached.timer.cancel()
        if cached.waits or cached.follows:
            cached.waits = False
            self._leave(exchange, cached)
            return
        if cached.leads:
            self._leaders.pop(cached.key, None)
            self._orphans.pop(cached.key, None)
        entry = self._kept(exchange, cached)
        self._end_following(cached)
        for waiter in self.flights.finish(cached.key, exchange) if cached.leads else ():
            waiting = waiter.caching
            if waiting is None:
                continue  # it has followed
            if entry is None:
                self._alone(waiter, waiting)
            elif self._unpark(waiter, waiting):
                self.coalesced += 1
                self._attempt(waiter, lambda each, call=waiting: self._share(each, call, entry))  # type: ignore[misc]  # of this turn

    def _share(self, exchange: Exchange, cached: CachedCall, entry: ResponseEntry) -> None:
        if not self._replay(exchange, cached, entry, Result.HIT, 0):
            self._tell(exchange, Result.MISS)
            self._proceed(exchange)

    def _leave(self, exchange: Exchange, cached: CachedCall) -> None:
        """It waits no longer for another's answer; who is left without anybody that waits stops."""
        self.flights.leave(cached.key, exchange)
        leader = self._leaders.get(cached.key)
        if leader is not None and exchange in leader.followers:
            leader.followers.remove(exchange)
        orphan = self._orphans.get(cached.key)
        if orphan is not None and not self.flights.line(cached.key):
            del self._orphans[cached.key]
            orphan.close()

    def _kept(self, exchange: Exchange, cached: CachedCall) -> ResponseEntry | None:
        """The answer, put into the cache where it may be kept; None where it is none for others."""
        record, parts = exchange.record, cached.parts
        if parts is None or record.outcome is not Outcome.OK or record.status != _OK or exchange.cut_short:
            return None
        body = b"".join(parts)
        streamed = exchange.watch is not None
        kind = cached.call.kind
        facts = _facts(kind, body, streamed=streamed)
        told = AnswerFacts(
            status=record.status,
            ended=facts.whole,
            finish_reasons=facts.finish_reasons,
            n_bytes=len(body),
            failed=facts.failed,
        )
        refusal = refuse_answer(kind.value, told, most_bytes=self.settings.max_entry)
        if refusal is not None:
            self.refusals[refusal.value] += 1
        if not facts.whole or facts.failed:
            return None
        usage, stamp = record.usage, cached.stamp
        entry = ResponseEntry(
            status=_OK,
            content_type=_STREAM if streamed else _JSON,
            body=body,
            streamed=streamed,
            model=cached.call.model or "",
            stored_at=self._wall(),
            stamp=stamp or _NO_STAMP,
            prompt_tokens=usage.prompt,
            completion_tokens=usage.completion,
        )
        if refusal is None and stamp is not None:
            self.cache.keep(cached.key, entry)
        return entry


_NO_STAMP: Final = Stamp(bytes(16), 0)
"""Of an answer that is shared with those who wait for it, and not kept."""
_JSON: Final = "application/json"
_STREAM: Final = "text/event-stream"
_KINDS: Final = (Kind.CHAT, Kind.COMPLETION, Kind.RESPONSES, Kind.MESSAGES, Kind.EMBEDDING)
_MOST_LOOKING: Final = 256
"""Requests that wait for disk or Redis at a time."""
_MOST_BACKGROUND: Final = 64
"""Answers that are fetched for nobody in particular at a time."""


def _not_cached() -> ApiError:
    return ApiError(504, "There is no stored answer to this request, and it asks for nothing else.", code="not_cached")


def _facts(kind: Kind, body: bytes, *, streamed: bool) -> answers.Facts:
    if kind is not Kind.EMBEDDING:
        return answers.facts(kind, body, streamed=streamed)
    try:
        return answers.Facts(whole="data" in orjson.loads(body))
    except (orjson.JSONDecodeError, TypeError):
        return answers.Facts(whole=False)


def _scope(exchange: Exchange) -> bytes:
    """Whose answers it may meet."""
    return b"" if exchange.tenant is None else exchange.tenant.scope
