"""Requests that are answered by meaning: what was asked in other words before, and what is learnt from each miss.

Comes after an exact miss, for the one of identical requests that would make the call. A vector of the question, the
search, the guards and the answer's own place in the response cache all have one deadline together; then it is a miss.
In shadow mode the request does not even wait for that. Whatever fails is a miss too.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import CancelledError
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from cache.response_cache import Forgotten
from cache.response_key import model_tag, scope_tag, tag_of
from cache.store import StoreError
from gateway.semantic_call import (
    Judged,
    Learner,
    Meaning,
    Similar,
    Wishes,
    entry_name,
    wishes_of,
)
from gateway.semantic_lessons import Lessons
from gateway.thread_line import BusyError
from policies.response_freshness import Freshness, judge
from policies.semantic import Candidate, Choice, Outcome, SemanticPolicy
from policies.semantic_request import Question, question_of
from policies.types import Tier

if TYPE_CHECKING:
    from cache.response_key import ResponseKey
    from gateway.cached_call import CachedCall
    from gateway.embedding_batcher import EmbeddingBatcher
    from gateway.exchange import Exchange
    from gateway.response_caching import ResponseCaching
    from gateway.semantic_call import SemanticRequestSettings
    from gateway.semantic_learners import EvidenceFile, Learners
    from gateway.similar_questions import SimilarQuestions
    from policies.tenant import TenantPolicy

log = logging.getLogger(__name__)

_MOST_AT_ONCE: Final = 256
"""Requests whose questions are looked up at a time: beyond that it is skipped."""
_MOST_FEEDBACK: Final = 4_096
"""Answers of one tenant that can still be reported as wrong."""
_LAST_SAVE: Final = 10.0
_NOTHING_SERVED: Final[Mapping[str, tuple[Learner, bytes]]] = {}


class SemanticCaching(Lessons):
    """Of one pipeline, whose response cache it belongs to."""

    def __init__(
        self,
        questions: SimilarQuestions,
        batcher: EmbeddingBatcher,
        learners: Learners,
        settings: SemanticRequestSettings,
        *,
        loop: asyncio.AbstractEventLoop,
        evidence: EvidenceFile | None = None,
        wall: Callable[[], float] = time.time,
        sample: Callable[[], float] = random.random,
    ) -> None:
        """`wall` gives seconds since 1970; `sample` draws from [0, 1)."""
        self.settings = settings
        self.questions = questions
        self.batcher = batcher
        self.learners = learners
        self.lookups: Counter[str] = Counter()
        """Requests that were looked up, by what came of it."""
        self.refusals: Counter[str] = Counter()
        """Requests that were not, by why."""
        self.labels: Counter[tuple[str, str]] = Counter()
        """By source, and whether they said right or wrong."""
        self.changes = 0
        """Times that what was known no longer held."""
        self._loop = loop
        self._evidence = evidence
        self._wall = wall
        self._sample = sample
        self._epoch = 0
        self._looking = self._learning = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._served: dict[str, OrderedDict[str, tuple[Learner, bytes]]] = {}
        self._could_save = True
        self._saving = asyncio.Lock()

    # -- a request comes

    def wishes(self, exchange: Exchange, *, asks: bool) -> Wishes | None:
        """What its client says of this; None where nothing is served to it by meaning. Raises ApiError for what cannot
        be meant.
        """
        if self.learners.mode(exchange.policy.cache.semantic) == "off":
            return None
        return wishes_of(exchange.head.fields, self.settings, asks=asks)

    def understand(
        self, policy: TenantPolicy, cached: CachedCall, partition: Callable[[Question], ResponseKey]
    ) -> Meaning | None:
        """What a request asks; None where that may not be answered by meaning. `partition` makes a key of a question's
        rest.
        """
        wishes, call, mode = cached.wishes, cached.call, self.learners.mode(policy.cache.semantic)
        if wishes is None or mode == "off":
            return None
        question = question_of(call.kind.value, call.fields, asked=wishes.asks, allowed=self.settings.allowed)
        if not isinstance(question, Question):
            self.refusals[question.value] += 1
            return None
        key = partition(question)
        return Meaning(
            text=question.text,
            partition=_partition(key, call.model or ""),
            learner=Learner(policy.name, policy.cache.semantic.group, tag_of(key)),
            wishes=wishes,
            epoch=self._epoch,
            shadow=mode != "on",
        )

    def look_up(self, exchange: Exchange, cached: CachedCall, meaning: Meaning) -> asyncio.Task[Judged | None] | None:
        """Begin to look for a question that means the same, and decide; None where there is too much to do. The task
        ends by its deadline, and raises nothing.
        """
        if self._looking >= _MOST_AT_ONCE:
            self.lookups["busy"] += 1
            return None
        self._looking += 1
        look = meaning.look = self._task(self._look(cached, meaning, cached.caching, exchange.policy))
        look.add_done_callback(self._looked)
        return look

    def _looked(self, _: asyncio.Task[Judged | None]) -> None:
        self._looking -= 1

    async def _look(
        self, cached: CachedCall, meaning: Meaning, caching: ResponseCaching, policy: TenantPolicy
    ) -> Judged | None:
        try:
            async with asyncio.timeout(self.settings.deadline):
                found = await self._nearest(cached, meaning, caching)
        except TimeoutError:
            self.lookups["late"] += 1
            return None
        except BusyError:
            self.lookups["busy"] += 1
            return None
        except Exception as error:  # noqa: BLE001 - whatever it was, the request goes on to a worker
            self.lookups["failed"] += 1
            log.warning("a question could not be looked up: %s", type(error).__name__)
            return None
        if isinstance(found, str):
            self.lookups[found] += 1
            return None
        meaning.judged = self._judge(cached, meaning, policy, found)
        return meaning.judged

    async def _nearest(self, cached: CachedCall, meaning: Meaning, caching: ResponseCaching) -> Similar | str:
        """The most similar question whose answer is still to be had; or why there is none."""
        vector = await self.batcher.embed(meaning.text, self.settings.deadline, scope=meaning.learner.tenant)
        if vector is None:
            return "no_vector"
        meaning.vector = vector
        settings = self.settings
        similar = await self.questions.search(
            meaning.partition, vector, meaning.text, settings.floor, least=settings.guards
        )
        for each in similar:
            found = await caching.stored(each.key, cached.rules)
            if found is not None and found.entry.stored_at == each.stored_at:
                return each
            gone = found is not None or not caching.cache.has_slower
            if gone or self._wall() - each.stored_at > cached.rules.useful:
                self._forget_entry(meaning.learner, each.id)
        return "none"

    def _judge(self, cached: CachedCall, meaning: Meaning, policy: TenantPolicy, similar: Similar) -> Judged | None:
        asked, wishes, now = cached.asked, meaning.wishes, self._wall()
        if judge(similar.stored_at, now, cached.rules, asked).freshness is not Freshness.FRESH:
            self.lookups["expired"] += 1
            return None
        candidate = Candidate(
            entry=entry_name(similar.id),
            similarity=min(similar.similarity, 1.0),
            category=wishes.category,
            guard=similar.guard,
            age=max(now - similar.stored_at, 0.0),
        )
        decision = self.learners.policy(meaning.learner, policy.cache.semantic).decide(
            candidate,
            self._sample(),
            now,
            answers=cached.caching.flights.askers(cached),
            client_floor=wishes.min_similarity,
            client_delta=wishes.max_error,
            client_max_age=asked.max_age,
        )
        self.lookups["served" if decision.choice is Choice.SERVE else decision.why.value] += 1
        return Judged(similar, candidate, decision)

    # -- an answer is served

    def served(self, judged: Judged, meaning: Meaning) -> str:
        """The id under which a client can report it as wrong."""
        self.questions.touch(judged.similar.id)
        served = self._served.setdefault(meaning.learner.tenant, OrderedDict())
        answer_id = secrets.token_hex(12)
        served[answer_id] = meaning.learner, judged.similar.id
        if len(served) > _MOST_FEEDBACK:
            served.popitem(last=False)
        return answer_id

    def report_wrong(self, tenant: str, answer_id: str, client: str) -> Outcome | None:
        """A client says so; None where nothing was served under that id, or too long ago."""
        served = self._served.get(tenant, _NOTHING_SERVED).get(answer_id)
        policies: dict[Learner, SemanticPolicy] = dict(iter(self.learners))
        if served is None or served[0] not in policies:
            return None
        outcome = policies[served[0]].report_wrong(entry_name(served[1]), client, self._wall())
        self._drop(outcome)
        self.labels["feedback", "wrong"] += 1
        return outcome

    def _forget_entry(self, learner: Learner, entry_id: bytes) -> None:
        self.questions.remove(entry_id)
        policy = dict(iter(self.learners)).get(learner)
        if policy is not None:
            policy.forget(entry_name(entry_id))

    # -- forgetting

    def forget(
        self,
        scope: bytes | None = None,
        *,
        model: str | None = None,
        older_than: float | None = None,
        prefix: str | None = None,
        dry_run: bool = False,
        seconds: float = 60.0,
    ) -> Forgotten:
        """As `ResponseCache.forget`, and what was learnt of them too; for a thread. Of how a conversation began nothing
        is known here: where there is a `prefix` all questions go that may be meant.
        """
        asked = self.forget_questions(
            scope, model=model, older_than=None if prefix is not None else older_than, dry_run=dry_run
        )
        try:
            forgetting = asyncio.run_coroutine_threadsafe(asked, self._loop)
        except RuntimeError:  # the loop has ended
            asked.close()
            return Forgotten(complete=False)
        try:
            n = forgetting.result(seconds)
        except (StoreError, TimeoutError, CancelledError) as error:
            forgetting.cancel()
            log.warning("questions could not be forgotten: %s", type(error).__name__)
            return Forgotten(complete=False)
        return Forgotten(entries={Tier.HOST: n})

    async def forget_questions(
        self,
        scope: bytes | None = None,
        *,
        model: str | None = None,
        older_than: float | None = None,
        dry_run: bool = False,
    ) -> int:
        """Remove the questions of a tenant's scope or of all, of one model or of all, whose answers were stored more
        than `older_than` seconds ago or until now; how many. Questions that came before and are not added yet never
        will be. Raises StoreError where the file keeps what should be gone.
        """
        tag = None if scope is None else scope_tag(scope)
        if not dry_run:
            self._forget_learnt(tag, model, everything=older_than is None)
        removed = await self.questions.forget(
            tag or b"",
            model=None if model is None else model_tag(model),
            before=None if older_than is None else self._wall() - older_than,
            dry_run=dry_run,
        )
        if not dry_run:
            await self.save()
        return removed

    def _forget_learnt(self, tag: bytes | None, model: str | None, *, everything: bool) -> None:
        """At once, and for whatever is under way too. A tenant's evidence is of all its models together, and goes with
        all of them; it holds no text.
        """
        self._epoch += 1
        self.batcher.forget()

        def meant(learner: Learner) -> bool:
            return tag in {None, learner.tag} and model in {None, learner.model}

        if everything:
            self.learners.forget(meant)
        for served in self._served.values():
            for answer_id in [each for each, (learner, _) in served.items() if tag in {None, learner.tag}]:
                del served[answer_id]

    # -- what is shown, and what is kept

    def report(self) -> Mapping[str, Any]:
        """For the control plane."""
        learnt = {
            learner.name: {
                "delta": policy.settings.delta,
                "mode": "shadow" if policy.settings.shadow else "on",
                "categories": {name: asdict(told) for name, told in policy.report().items()},
            }
            for learner, policy in self.learners
        }
        embedding = self.batcher.stats()._asdict()
        return {
            "mode": self.settings.mode,
            "embedder": self.batcher.name,
            "lookups": dict(self.lookups),
            "refusals": dict(self.refusals),
            "guards": dict(self.questions.refusals),
            "labels": {f"{source}: {told}": count for (source, told), count in self.labels.items()},
            "changes": self.changes,
            "tenants": learnt,
            "index": asdict(self.questions.stats()),
            "embedding": {**embedding, "misses": dict(embedding["misses"])},
        }

    async def save(self) -> None:
        """Write what was learnt, where it is kept at all; one after the other, lest what was forgotten meanwhile be
        written last.
        """
        if self._evidence is not None:
            async with self._saving:
                await self._save(self._evidence)

    async def _save(self, file: EvidenceFile) -> None:
        learnt = []
        for each in self.learners.snapshots():
            learnt.append(each)
            await asyncio.sleep(0)  # each takes some milliseconds
        try:
            await asyncio.get_running_loop().run_in_executor(None, file.write, learnt)
            await self.questions.flush()
            self._could_save = True
        except (OSError, StoreError, BusyError) as error:
            if self._could_save:
                log.warning("what the semantic cache has learnt could not be written: %s", type(error).__name__)
            self._could_save = False

    async def keep_saving(self, interval: Callable[[], float]) -> None:
        """Every so many seconds, until it is cancelled."""
        while True:
            await asyncio.sleep(interval())
            await self.save()

    async def close(self) -> None:
        """End what runs, and write what was learnt."""
        for task in [*self._tasks]:
            task.cancel()
        if self._tasks:
            await asyncio.wait([*self._tasks], timeout=1.0)
        await asyncio.wait([asyncio.ensure_future(self.save())], timeout=_LAST_SAVE)
        self.batcher.close()
        await asyncio.get_running_loop().run_in_executor(None, self.questions.close)

    def _task(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the semantic cache: a fault of the gateway's own", exc_info=error)


def _partition(key: ResponseKey, model: str) -> bytes:
    """The scope's tag, the model's, and 128 bits of what must be equal to the letter."""
    return key[:8] + model_tag(model) + key[8:24]
