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
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import orjson

from cache.response_entry import ResponseEntry, Stamp
from cache.response_key import ResponseKey, is_unambiguous
from gateway import answers
from gateway.alike_answers import GRACE, LONG_BODY, AlikeAnswers, result_of
from gateway.answer_flights import AnswerFlights
from gateway.answer_openings import openings_in
from gateway.answer_replay import replay_body, replay_stream
from gateway.answer_verifier import AnswerVerifier
from gateway.api_error import ApiError
from gateway.background_client import BackgroundClient
from gateway.cached_call import CachedCall, CachingSettings, Result, tell, told
from gateway.header_finder import header_finder, list_finder
from gateway.request_keys import Keyed, keyed
from gateway.request_record import Outcome
from gateway.routes import Kind
from gateway.thread_line import BusyError, ThreadLine
from policies.response_freshness import (
    NOTHING_SAID,
    CacheDirectives,
    Freshness,
    FreshnessRules,
    judge,
    parse_cache_control,
)
from policies.response_policy import AnswerFacts, Refusal, refuse_answer, refuse_request

if TYPE_CHECKING:
    from cache.response_cache import Found, ResponseCache
    from gateway.exchange import Exchange
    from policies.tenant import TenantPolicy

log = logging.getLogger(__name__)

T = TypeVar("T")
Examined = tuple[answers.Facts, bytes]
"""What is known of an answer, and its body in one piece."""

_cache_control: Final = list_finder("cache-control")
_own_header: Final = header_finder("x-prefixgate-cache")
_OK: Final = 200


class ResponseCaching(AlikeAnswers):
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
        self.flights = AnswerFlights()
        self.semantic = None
        self.threads = ThreadLine(executor)
        self.verifier = AnswerVerifier(proceed)
        self.refusals: Counter[str] = Counter()
        """Requests that were not looked up, and answers that were not kept, by why."""
        self.refreshed = 0
        self.saved_tokens = 0
        """Prompt and output tokens of answers from the cache, where they are known."""
        self._loop = loop
        self._proceed = proceed
        self._attempt = attempt
        self._wall = wall

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
        asks = asked.asks or own == b"on"
        wishes = None if self.semantic is None else self.semantic.wishes(exchange, asks=asks)
        refusal = refuse_request(call.kind.value, call.fields, asked=asks)
        if refusal is not None or asked.no_store:
            return self._bypass(exchange, asked, refusal)
        beginning = CachedCall(self, _NO_KEY, call, rules, asked, self.cache.begin(), False)
        beginning.usage = call.streams and answers.wants_usage(call.fields)
        beginning.wishes = wishes
        if len(exchange.body) <= LONG_BODY:
            return self._look_up(exchange, beginning, keyed(exchange, call, self.settings, check=False))
        key = partial(keyed, exchange, call, self.settings, check=True)
        self._in_thread(exchange, beginning, _KEY_WAIT, key, self._long_keyed)
        return True

    def _long_keyed(self, exchange: Exchange, cached: CachedCall, keyed: Keyed | None) -> None:
        """The key of a long request is known; None: that took too long."""
        known = self._bypass(exchange, cached.asked, None) if keyed is None else self._look_up(exchange, cached, keyed)
        if not known:
            self._proceed(exchange)

    def _look_up(self, exchange: Exchange, cached: CachedCall, keyed: Keyed) -> bool:
        """Answer what has a key, or have it wait; False where it is to go on to a worker."""
        if keyed.key is None:
            return self._bypass(exchange, cached.asked, Refusal.AMBIGUOUS)
        cached.key = keyed.key
        cached.unambiguous = keyed.unambiguous
        if cached.asked.reads:
            found = self.cache.lookup(cached.key, cached.rules, cached.asked)
            if found is not None and self._serve(exchange, cached, found):
                return True
            # Another gateway may have fetched a newer one than what is only better than an error.
            if self.cache.has_slower and (found is None or cached.fallback is not None):
                look = partial(self.cache.lookup_slower, cached.key, cached.rules, cached.asked)
                self._in_thread(exchange, cached, self.settings.lookup_timeout, look, self._found)
                return True
        return self._miss(exchange, cached)

    def _rules(self, policy: TenantPolicy, kind: Kind) -> FreshnessRules | None:
        """How long an answer is fresh; None where the cache has nothing to do with such requests."""
        settings, own = self.settings, policy.cache.responses
        if kind not in _KINDS or not (settings.enabled if own.enabled is None else own.enabled):
            return None
        rules = settings.by_route.get(kind, settings.rules)
        return rules if own.ttl_s is None else replace(rules, ttl=own.ttl_s)

    def _bypass(self, exchange: Exchange, asked: CacheDirectives, refusal: Refusal | None) -> bool:
        if refusal is not None:
            self._refuse(exchange, refusal)
        if asked.only_if_cached:
            raise _not_cached()
        tell(exchange, Result.BYPASS)
        return False

    def _refuse(self, exchange: Exchange, refusal: Refusal) -> None:
        self.refusals[refusal.value] += 1
        exchange.record.cache_refusal = refusal.value

    # -- an answer is known

    def _serve(self, exchange: Exchange, cached: CachedCall, found: Found) -> bool:
        """Answer with what was found, if it may be used; what may be used only if all else fails is kept for that."""
        if found.freshness is Freshness.FRESH:
            return self._replay(exchange, cached, found.entry, Result.HIT, found.age)
        if found.freshness is Freshness.STALE_IF_ERROR:
            if cached.fallback is None or found.entry.stored_at > cached.fallback.entry.stored_at:
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
        if found is None or not self.cache.still_readable(cached.key, found.entry):
            return False
        freshness, age, _ = judge(found.entry.stored_at, self._wall(), cached.rules, cached.asked)
        if freshness is Freshness.EXPIRED:  # while workers were asked
            return False
        exchange.own_fields = exchange.own_fields.replace(told(Result.MISS), b"")
        return self._replay(exchange, cached, found.entry, Result.STALE, age)

    def _replay(
        self,
        exchange: Exchange,
        cached: CachedCall,
        entry: ResponseEntry,
        result: str,
        age: int,
        *,
        key: ResponseKey | None = None,
    ) -> bool:
        """Answer with an entry, in the form that the client asks for; False where that cannot be made of it. `key` is
        the entry's own, where it is another request's.
        """
        events: list[bytes] | None = None
        if cached.call.streams:
            if cached.usage and entry.prompt_tokens is None:
                return False  # whoever asked first did not want to know it
            try:
                events = answers.disassemble(cached.call.kind, entry.body, usage=cached.usage)
            except answers.AnswerError:
                log.warning("an answer in the cache cannot be given as a stream; it is removed")
                self.threads.executor.submit(self.cache.discard, key or cached.key)
                return False
        exchange.caching = exchange.recording = None
        exchange.worker = None
        tell(exchange, result)
        exchange.own_fields += b"\r\nage: %d" % age
        self.saved_tokens += (entry.prompt_tokens or 0) + (entry.completion_tokens or 0)
        if events is None:
            replay_body(exchange, entry.body, entry.content_type)
        else:
            replay_stream(exchange, events, pace=self.settings.pace)
        return True

    # -- what takes a thread

    def _in_thread(
        self,
        exchange: Exchange,
        cached: CachedCall,
        timeout: float,
        work: Callable[[], T],
        then: Callable[[Exchange, CachedCall, T | None], None],
    ) -> None:
        """Go on with what comes of `work`, or with None where that fails or takes too long."""

        def go_on(found: T | None) -> None:
            # By then it may wait for something else.
            if cached.timer is timer and cached.unpark(exchange):
                self._attempt(exchange, lambda each: then(each, cached, found))

        def give_up() -> None:
            if working is not None:
                working.cancel()  # if it has not begun
            go_on(None)

        timer = self._park(exchange, cached, timeout, give_up)
        working = self._work(work, go_on)
        if working is None:
            go_on(None)

    def _work(self, work: Callable[[], T], then: Callable[[T | None], None]) -> asyncio.Future[T] | None:
        """Have a thread do it, `then` go on with what comes of it, None where it failed. None: too much waits there."""
        try:
            working = self.threads.begin(work)
        except BusyError:
            return None
        working.add_done_callback(lambda worked: then(result_of(worked)))
        return working

    def _found(self, exchange: Exchange, cached: CachedCall, found: Found | None) -> None:
        """What the slower stores have; None where there is nothing, or it took too long."""
        # It may have been forgotten while the thread came back.
        known = found is not None and self.cache.still_readable(cached.key, found.entry)
        served = found is not None and known and self._serve(exchange, cached, found)
        if not served and not self._miss(exchange, cached):
            self._proceed(exchange)

    def _park(
        self, exchange: Exchange, cached: CachedCall, timeout: float, otherwise: Callable[[], None]
    ) -> asyncio.TimerHandle:
        exchange.caching = cached
        cached.waits = True
        timer = cached.timer = self._loop.call_later(timeout, otherwise)
        exchange.wait(timeout + GRACE)
        return timer

    # -- nobody knows the answer

    def _miss(self, exchange: Exchange, cached: CachedCall) -> bool:
        """Have it wait for one who asks the same, or let it go on and listen to its answer; True where it waits."""
        if cached.asked.only_if_cached:
            raise _not_cached()
        together = self.settings.coalesce and cached.asked.reads and cached.fallback is None
        if together and self.flights.leader(cached.key) is None:
            together = self._is_unambiguous(exchange, cached)  # else its answer may be another's than theirs who wait
        if together and not self._leader_is_late(cached) and self.flights.waits(exchange, cached):
            wait = self.settings.coalesce_wait
            self._park(exchange, cached, wait, lambda: self._alone(exchange, cached))
            self.flights.follow(exchange, cached)
            return True
        if self._look_alike(exchange, cached):
            return True
        self._listen(exchange, cached)
        tell(exchange, Result.MISS)
        return False

    def _leader_is_late(self, cached: CachedCall) -> bool:
        """Would it wait for an answer that was asked for before such answers were forgotten?"""
        leader = self.flights.leader(cached.key)
        if leader is None or cached.stamp in {None, leader.stamp}:
            return False
        if leader.stamp is None:  # what was forgotten was not known then
            return True
        model = leader.call.model or ""
        return not self.cache.may_keep(leader.key, model, leader.stamp, self._wall(), leader.openings)

    def _listen(self, exchange: Exchange, cached: CachedCall) -> None:
        if not self._is_unambiguous(exchange, cached):
            cached.stamp = None
            self._refuse(exchange, Refusal.AMBIGUOUS)
        cached.openings = openings_in(cached.call.fields)  # they are gone when the answer comes
        exchange.caching = cached
        cached.again(exchange)

    @staticmethod
    def _is_unambiguous(exchange: Exchange, cached: CachedCall) -> bool:
        if cached.unambiguous is None:
            cached.unambiguous = is_unambiguous(exchange.body)
        return cached.unambiguous

    def _alone(self, exchange: Exchange, cached: CachedCall) -> None:
        """It has waited long enough, or in vain."""
        if cached.unpark(exchange):
            self.flights.leave(exchange, cached)
            tell(exchange, Result.MISS)
            self._proceed(exchange)

    def _refresh(self, exchange: Exchange, cached: CachedCall, body: bytes) -> None:
        """Fetch another answer in place of one that is stale, for nobody in particular."""
        server = exchange.client.server
        if server.draining or len(server.background) >= _MOST_BACKGROUND:
            return
        client = BackgroundClient(server)
        twin = client.ask(exchange.head, body)
        again = replace(cached, waits=False, timer=None, fallback=None, asked=NOTHING_SAID)
        if not self.flights.leads(twin, again):  # somebody fetches it already
            client.exchange_over(twin)
            return
        self.refreshed += 1
        twin.dialect, twin.repeatable, twin.call = exchange.dialect, exchange.repeatable, cached.call
        twin.tenant, twin.policy, twin.salting = exchange.tenant, exchange.policy, exchange.salting
        before, record = exchange.record, twin.record
        record.kind, record.dialect, record.model = before.kind, before.dialect, before.model
        record.streams, record.tenant = before.streams, before.tenant
        self._understand(twin, again)
        self._listen(twin, again)
        tell(twin, Result.MISS)
        self._proceed(twin)

    # -- a request is over

    def finished(self, exchange: Exchange) -> None:
        """A request is over, however it ended: what has come of it is for all who wait for the same."""
        cached, exchange.caching = exchange.caching, None
        if cached is None:
            return
        if cached.timer is not None:
            cached.timer.cancel()
        if cached.waits or cached.follows:
            led, cached.waits = cached.waits and cached.leads, False
            if led:  # it was still looked for, and others wait for what comes of it
                self._settle(exchange, cached, None)
            else:
                self.flights.leave(exchange, cached)
                if self.semantic is not None:
                    self.semantic.let_go(cached)
            return
        record, recorded = exchange.record, cached.recorded()
        self.flights.end_streams(cached, whole=record.outcome in (Outcome.OK, Outcome.WORKER_ERROR))
        cached.parts = None  # nobody follows any more
        if recorded is None or record.outcome is not Outcome.OK or record.status != _OK or exchange.cut_short:
            self._settle(exchange, cached, None)
            return
        examine = partial(_examined, cached.call.kind, recorded, streamed=exchange.watch is not None)
        settle = partial(self._settle, exchange, cached)
        if len(recorded) < _LONG:
            settle(examine())
        elif self._work(examine, settle) is None:
            settle(None)

    def _settle(self, exchange: Exchange, cached: CachedCall, examined: Examined | None) -> None:
        """Keep an answer where it may be kept, and give it to all who wait for it; they go on where there is none."""
        entry = None if examined is None else self._entry(exchange, cached, *examined)
        if entry is None and self.semantic is not None:
            self.semantic.let_go(cached)
        for waiter, waiting in self.flights.end(exchange, cached):
            if entry is None:
                self._alone(waiter, waiting)
            elif waiting.unpark(waiter):
                self._attempt(waiter, partial(self._share, cached=waiting, entry=entry))

    def _share(self, exchange: Exchange, *, cached: CachedCall, entry: ResponseEntry) -> None:
        if self._replay(exchange, cached, entry, Result.HIT, 0):
            self.flights.coalesced += 1
        else:
            tell(exchange, Result.MISS)
            self._proceed(exchange)

    def _entry(self, exchange: Exchange, cached: CachedCall, facts: answers.Facts, body: bytes) -> ResponseEntry | None:
        """An answer for others, put into the cache where it may be kept; None where it is none."""
        kind = cached.call.kind
        told = AnswerFacts(
            status=_OK,
            ended=facts.whole,
            finish_reasons=facts.finish_reasons,
            n_bytes=len(body),
            failed=facts.failed,
        )
        refusal = refuse_answer(kind.value, told, most_bytes=self.settings.max_entry)
        if refusal is not None:
            self._refuse(exchange, refusal)
        if not facts.whole or facts.failed:
            return None
        usage, stamp = facts.usage, cached.stamp
        entry = ResponseEntry(
            content_type=_JSON,
            body=body,
            model=cached.call.model or "",
            stored_at=self._wall(),
            stamp=stamp or _NO_STAMP,
            prompt_tokens=usage.prompt,
            completion_tokens=usage.completion,
            openings=cached.openings,
        )
        kept = refusal is None and stamp is not None and self.cache.keep(cached.key, entry)
        if self.semantic is not None:
            if kept:
                self.semantic.learn(exchange, cached, entry)
            else:
                self.semantic.let_go(cached)
        return entry


_NO_STAMP: Final = Stamp(bytes(16), 0)
"""Of an answer that is shared with those who wait for it, and not kept."""
_JSON: Final = "application/json"
_LONG: Final = 32 << 10
"""Bytes of an answer from which on it is looked at in a thread."""
_KINDS: Final = (Kind.CHAT, Kind.COMPLETION, Kind.RESPONSES, Kind.MESSAGES, Kind.EMBEDDING)
_KEY_WAIT: Final = 2.0
_NO_KEY: Final = ResponseKey(b"")
_MOST_BACKGROUND: Final = 64
"""Answers that are fetched for nobody in particular at a time."""


def _not_cached() -> ApiError:
    return ApiError(504, "There is no stored answer to this request, and it asks for nothing else.", code="not_cached")


def _examined(kind: Kind, recorded: bytes, *, streamed: bool) -> Examined:
    """What is known of an answer, and its body in one piece."""
    if kind is not Kind.EMBEDDING:
        return answers.examine(kind, recorded, streamed=streamed)
    try:
        return answers.Facts(whole="data" in orjson.loads(recorded)), recorded
    except (orjson.JSONDecodeError, TypeError):
        return answers.Facts(whole=False), b""
