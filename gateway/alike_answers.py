"""The part of the response cache's way through the gateway that is about meaning: who waits while a similar question
is looked for, who is served, and who goes on.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from gateway.cached_call import CachedCall, Result, tell
from gateway.request_keys import key_of, variants_of
from policies.response_freshness import Freshness, FreshnessRules
from policies.semantic import Choice
from policies.semantic_request import SemanticRefusal

if TYPE_CHECKING:
    from cache.response_cache import Found, ResponseCache
    from cache.response_entry import ResponseEntry
    from cache.response_key import ResponseKey
    from gateway.answer_flights import AnswerFlights
    from gateway.exchange import Exchange
    from gateway.semantic_caching import SemanticCaching
    from gateway.semantic_call import Judged, Meaning
    from gateway.thread_line import ThreadLine
    from policies.semantic_request import Question

log = logging.getLogger(__name__)

T = TypeVar("T")

GRACE: Final = 1.0
"""Seconds that a client's deadline is beyond our own."""
LONG_BODY: Final = 256 << 10
"""Bytes of a request from which on its key is made in a thread: about a millisecond."""


class AlikeAnswers(ABC):
    """What `ResponseCaching` does after an exact miss."""

    cache: ResponseCache
    threads: ThreadLine
    flights: AnswerFlights
    semantic: SemanticCaching | None
    """None where nothing is served by meaning."""
    _proceed: Callable[[Exchange], None]
    _attempt: Callable[[Exchange, Callable[[Exchange], None]], None]

    @abstractmethod
    def _park(
        self, exchange: Exchange, cached: CachedCall, timeout: float, otherwise: Callable[[], None]
    ) -> asyncio.TimerHandle: ...

    @abstractmethod
    def _listen(self, exchange: Exchange, cached: CachedCall) -> None: ...

    @abstractmethod
    def _alone(self, exchange: Exchange, cached: CachedCall) -> None: ...

    @abstractmethod
    def _replay(
        self,
        exchange: Exchange,
        cached: CachedCall,
        entry: ResponseEntry,
        result: str,
        age: int,
        *,
        key: ResponseKey | None = None,
    ) -> bool: ...

    def _look_alike(self, exchange: Exchange, cached: CachedCall) -> bool:
        """Is it to wait until such a question has been looked for? It leads whoever asks the same meanwhile."""
        semantic = self.semantic
        meaning = self._understand(exchange, cached)
        if semantic is None or meaning is None or cached.fallback is not None or not cached.asked.reads:
            return False
        look = semantic.look_up(exchange, cached, meaning)
        if look is None or meaning.shadow:
            return False
        # The deadline is the look's own; this one only holds where the loop itself is late.
        self._park(exchange, cached, semantic.settings.deadline + GRACE, lambda: self._unlike(exchange, cached))
        look.add_done_callback(lambda done: self._looked(exchange, cached, result_of(done)))
        return True

    def _understand(self, exchange: Exchange, cached: CachedCall) -> Meaning | None:
        """What it asks, where that may be answered by meaning, or teach something."""
        semantic = self.semantic
        if semantic is None or cached.wishes is None:
            return None
        if len(exchange.body) > LONG_BODY:  # its key would be made anew
            semantic.refusals[SemanticRefusal.LONG.value] += 1
            return None

        def partition(question: Question) -> ResponseKey:
            variants = [
                *variants_of(exchange, cached.call, cached.caching.settings),
                ("embedder", semantic.batcher.name),
            ]
            return key_of(exchange, cached.call, question.rest, variants)

        try:
            cached.meaning = semantic.understand(exchange.policy, cached, partition)
        except Exception:
            log.exception("a question could not be told from the rest of its request")
        return cached.meaning

    def _looked(self, exchange: Exchange, cached: CachedCall, judged: Judged | None) -> None:
        if judged is None or judged.decision.choice is not Choice.SERVE:
            self._unlike(exchange, cached)
        elif cached.unpark(exchange):
            self._attempt(exchange, lambda each: self._serve_alike(each, cached, judged))

    def _unlike(self, exchange: Exchange, cached: CachedCall) -> None:
        """Nothing is served by meaning: it makes the call, for itself and all who wait for the same."""
        if cached.unpark(exchange):
            self._listen(exchange, cached)
            tell(exchange, Result.MISS)
            self._proceed(exchange)

    def _serve_alike(self, exchange: Exchange, cached: CachedCall, judged: Judged) -> None:
        """The answer to a question that means the same, for this request and for all who wait for its answer and say
        nothing else of how alike or how old it may be.
        """
        if not self._replay_alike(exchange, cached, judged):
            self._listen(exchange, cached)
            tell(exchange, Result.MISS)
            self._proceed(exchange)
            return
        cached.followers = []
        said = cached.asked, cached.wishes, cached.rules
        for waiter, waiting in self.flights.end(exchange, cached):
            if (waiting.asked, waiting.wishes, waiting.rules) != said:
                self._alone(waiter, waiting)
            elif waiting.unpark(waiter):
                self._attempt(waiter, partial(self._share_alike, cached=waiting, meant=cached, judged=judged))

    def _share_alike(self, exchange: Exchange, *, cached: CachedCall, meant: CachedCall, judged: Judged) -> None:
        cached.meaning = meant.meaning
        if self._replay_alike(exchange, cached, judged):
            self.flights.coalesced += 1
        else:
            tell(exchange, Result.MISS)
            self._proceed(exchange)

    def _replay_alike(self, exchange: Exchange, cached: CachedCall, judged: Judged) -> bool:
        semantic, meaning, before = self.semantic, cached.meaning, exchange.own_fields
        if semantic is None or meaning is None:
            return False
        # Again, and at once: it may have been forgotten since it was found. Whatever store had it, memory has it now.
        similar, found = judged.similar, self.cache.lookup(judged.similar.key, cached.rules)
        if found is None or found.freshness is not Freshness.FRESH or found.entry.stored_at != similar.stored_at:
            return False
        exchange.own_fields += b"\r\nx-prefixgate-cache-id: " + semantic.served(judged, meaning).encode()
        if self._replay(exchange, cached, found.entry, Result.SEMANTIC, found.age, key=similar.key):
            return True
        exchange.own_fields = before
        return False

    async def stored(self, key: ResponseKey, rules: FreshnessRules) -> Found | None:
        """What is kept under a key, in whatever store, and fresh. Raises BusyError."""
        found = self.cache.lookup(key, rules)
        if found is None and self.cache.has_slower:
            found = await self.threads.begin(partial(self.cache.lookup_slower, key, rules))
        return found if found is not None and found.freshness is Freshness.FRESH else None


def result_of(done: asyncio.Future[T]) -> T | None:
    """None where it failed, or was given up."""
    if done.cancelled() or done.exception() is not None:
        return None
    return done.result()
