"""What the semantic cache learns when a worker has answered: the question, and whether the answer that was found would
have been right.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cache.store import StoreError
from gateway.answer_comparison import VERIFIER, WORDS, answer_text, answers_agree
from gateway.semantic_call import Judged, Meaning
from gateway.thread_line import BusyError
from policies.guards.strength import SAME_TEXT
from policies.semantic import Choice, Outcome, Why

if TYPE_CHECKING:
    from cache.response_entry import ResponseEntry
    from gateway.cached_call import CachedCall
    from gateway.embedding_batcher import EmbeddingBatcher
    from gateway.exchange import Exchange
    from gateway.http_server import HttpServer
    from gateway.semantic_call import SemanticRequestSettings, VerifierSettings
    from gateway.semantic_learners import Learners
    from gateway.similar_questions import SimilarQuestions
    from gateway.tenancy import Tenant
    from policies.tenant import TenantPolicy

log = logging.getLogger(__name__)

_MOST_LEARNING: Final = 128
"""Answers that are learnt from at a time."""
_ANSWERS: Final = "\0answers"
"""Behind a tenant's name: its answers and its questions take turns in the embedder."""
_PATIENCE: Final = 10.0
"""Seconds for a vector that nobody waits for."""


class _Asker(NamedTuple):
    """Whose request it was, once that is over."""

    server: HttpServer
    tenant: Tenant | None
    policy: TenantPolicy


class Lessons(ABC):
    """What `SemanticCaching` does beside all requests."""

    settings: SemanticRequestSettings
    questions: SimilarQuestions
    batcher: EmbeddingBatcher
    learners: Learners
    lookups: Counter[str]
    labels: Counter[tuple[str, str]]
    changes: int
    _learning: int
    _epoch: int
    _wall: Callable[[], float]
    _sample: Callable[[], float]

    @abstractmethod
    def _task(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]: ...

    def learn(self, exchange: Exchange, cached: CachedCall, entry: ResponseEntry) -> None:
        """An answer is kept: its question may lead to it from now on, and it tells whether another was right."""
        meaning = cached.meaning
        if meaning is None:
            return
        if self._learning >= _MOST_LEARNING:
            self.lookups["not_learnt"] += 1
            return
        self._learning += 1
        asker = _Asker(exchange.client.server, exchange.tenant, exchange.policy)
        self._task(self._learn(cached, meaning, entry, asker)).add_done_callback(self._learnt)

    def _learnt(self, _: asyncio.Task[None]) -> None:
        self._learning -= 1

    def let_go(self, cached: CachedCall) -> None:
        """Nothing is to be learnt from this request."""
        meaning = cached.meaning
        if meaning is not None and meaning.look is not None:
            meaning.look.cancel()

    async def _learn(self, cached: CachedCall, meaning: Meaning, entry: ResponseEntry, asker: _Asker) -> None:
        try:
            if meaning.look is not None:
                await asyncio.wait([meaning.look])
            judged, same = meaning.judged, None
            if judged is not None and judged.decision.choice is Choice.EXPLORE:
                same = await self._compare(cached, meaning, judged, entry.body, asker)
            if judged is not None and judged.similar.guard >= SAME_TEXT:
                if same is not False and judged.decision.why is not Why.EXPIRED:
                    return  # it is known in these very words
                self.questions.remove(judged.similar.id)
            await self._add(cached, meaning, entry)
        except (BusyError, StoreError):
            self.lookups["not_learnt"] += 1

    async def _add(self, cached: CachedCall, meaning: Meaning, entry: ResponseEntry) -> None:
        vector = meaning.vector
        if vector is None:
            vector = await self.batcher.embed(meaning.text, _PATIENCE, scope=meaning.learner.tenant)
        if vector is not None:
            await self.questions.add(
                meaning.partition,
                cached.key,
                entry.stored_at,
                vector,
                meaning.text,
                still=lambda: meaning.epoch == self._epoch,
            )

    async def _compare(
        self, cached: CachedCall, meaning: Meaning, judged: Judged, body: bytes, asker: _Asker
    ) -> bool | None:
        """Does the answer that was found say the same? None where that could not be told."""
        verifier, source = self.settings.verifier, WORDS
        # Whose label it is must not depend on what the answers are.
        if verifier is not None and self._sample() < verifier.share:
            source = VERIFIER
        stored = await cached.caching.stored(judged.similar.key, cached.rules)
        same = None
        if stored is not None and stored.entry.stored_at == judged.similar.stored_at:
            bodies = stored.entry.body, body
            if verifier is not None and source is VERIFIER:
                same = await self._verified(cached, meaning, verifier, bodies, asker)
            else:
                scope = meaning.learner.tenant + _ANSWERS
                executor, kind, least = cached.caching.threads.executor, cached.call.kind, self.settings.agreement
                same = await answers_agree(self.batcher, executor, kind, bodies, scope=scope, least=least)
        if same is None or meaning.epoch != self._epoch:
            self.labels[source, "none"] += 1
            return None
        self.labels[source, "right" if same else "wrong"] += 1
        learner = self.learners.policy(meaning.learner, asker.policy.cache.semantic)
        outcome = learner.observe(judged.candidate, judged.decision, wrong=not same, source=source, now=self._wall())
        if outcome.changed:
            self.changes += 1
            name = meaning.learner.name
            log.warning("semantic cache of %s: answers have changed, what was known of them is learnt anew", name)
        self._drop(outcome)
        return same

    async def _verified(
        self,
        cached: CachedCall,
        meaning: Meaning,
        verifier: VerifierSettings,
        bodies: tuple[bytes, bytes],
        asker: _Asker,
    ) -> bool | None:
        """Do both say the same, in a model's words?"""
        caching, kind = cached.caching, cached.call.kind
        one, other = [await caching.threads.begin(partial(answer_text, kind, body)) for body in bodies]
        if one is None or other is None:
            return False
        return await caching.verifier.agree(asker.server, verifier, asker.tenant, meaning.text, (one, other))

    def _drop(self, outcome: Outcome) -> None:
        for name in outcome.drop:
            self.questions.remove(bytes.fromhex(name))
