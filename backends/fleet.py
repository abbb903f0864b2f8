"""The workers as running things: connections, probes and KV feeds, which come and go with each worker.

What is known of the workers is in `FleetState`, synchronous and without I/O; here are the sockets and tasks behind it.
Workers are named by several sources (the configuration, discovery, the operator), each of which owns those it named.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from backends.engine_metrics import EngineLoad
from backends.fleet_state import FleetState
from backends.fleet_worker import Worker
from backends.kv_subscriber import FeedState, FeedStats, KvSubscriber, rank_endpoint
from backends.remote_tokenizer import TokenizeTarget
from backends.tls import TlsError, TlsFiles, UpstreamTls
from backends.upstream_pool import UpstreamPool
from backends.upstream_request import WorkerAccess
from backends.worker_poll import PollSettings, WorkerPoll
from backends.worker_spec import FleetSettings, WorkerSpec
from backends.worker_status import WorkerStatus
from cache.prefix_index import PrefixIndex
from policies.prefill_queue import FleetRate, PrefillQueue
from policies.progress import ProgressWatch
from policies.types import WorkerId

log = logging.getLogger(__name__)

_LOOK_AGAIN: Final = 0.05
_END_SECONDS: Final = 5.0
"""For what was cancelled to end. It takes no time; but nothing waits for ever."""


@dataclass(slots=True, eq=False)
class Member:
    """One worker and what runs for it."""

    spec: WorkerSpec
    worker: Worker
    pool: UpstreamPool
    access: WorkerAccess
    tls: UpstreamTls | None
    poll: WorkerPoll
    model: str | None = None
    """Under which its events are chained."""
    feeds: list[KvSubscriber] = field(default_factory=list)
    live: set[int] = field(default_factory=set)
    """Ranks whose feed is live."""
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def takes_salt(self) -> bool:
        """Does it take the salts of tenants?"""
        return self.spec.cache_salt


class Fleet:
    """All workers. Use it within one loop; `close` ends everything."""

    def __init__(
        self,
        state: FleetState,
        index: PrefixIndex,
        settings: FleetSettings,
        *,
        loop: asyncio.AbstractEventLoop,
        cut: Callable[[Worker], None] = lambda _: None,
    ) -> None:
        """`cut` is called with a worker that is removed before its requests are over: it has to end them."""
        self.state = state
        self.members: dict[WorkerId, Member] = {}
        self.settings = settings
        self.cut = cut
        self._index = index
        self._loop = loop
        self._rate = FleetRate()
        self.leaving: set[asyncio.Task[None]] = set()
        self._closed = False
        self._apply_settings()

    # -- who there is

    def add(self, spec: WorkerSpec) -> Worker:
        """A worker joins and is probed from now on.

        Raises:
            ValueError: Its name is taken, or the fleet is closed.
            TlsError: Its certificates cannot be used.
        """
        if spec.id in self.members:
            raise ValueError(f"there is a worker {spec.id} already")
        if self._closed:
            raise ValueError("the gateway is stopping")
        settings = self.settings
        tls = None if spec.tls is None else UpstreamTls(spec.tls)
        worker = Worker(
            id=spec.id,
            host=spec.host,
            port=spec.port,
            scheme=spec.scheme,
            source=spec.source,
            block_size=spec.block_size,
            configured_models=spec.models,
            max_model_len=spec.max_model_len,
            kv_blocks=spec.kv_blocks,
            weight=spec.weight,
            slow_start=settings.slow_start,
            ramp_from=self._loop.time(),
            limits=settings.limits,
            prefill=PrefillQueue(self._rate, spec.prefill_tokens_per_s),
            progress=ProgressWatch(settings.progress),
        )
        pool = UpstreamPool(
            spec.host,
            spec.port,
            connect_timeout=settings.connect_timeout,
            keepalive=settings.keepalive,
            max_idle=settings.max_idle,
            loop=self._loop,
            tls=tls,
            server_name=None if spec.tls is None else spec.tls.server_name,
        )
        poll = WorkerPoll(
            spec.id,
            worker.url,
            listener=self,
            settings=_poll_settings(settings),
            api_key=spec.api_key,
            tls=tls,
        )
        access = WorkerAccess.of(spec.api_key, forward_client=spec.forward_client_key)
        member = self.members[spec.id] = Member(spec, worker, pool, access, tls, poll)
        self.state.add(worker)
        self._run(member, poll.run(), "probe")
        self._follow_all()
        return worker

    def drain(self, worker: WorkerId) -> None:
        """It gets nothing new; what it has goes on. Raises KeyError."""
        state = self.members[worker].worker
        state.draining = True
        self.state.look_after(state)

    def resume(self, worker: WorkerId) -> None:
        """It gets requests again. Raises KeyError."""
        state = self.members[worker].worker
        state.draining = False
        state.ramp_from = self._loop.time()

    def remove(self, worker: WorkerId, grace: float) -> asyncio.Task[None]:
        """It leaves: nothing new goes there from now on, and what it has is cut off after `grace` seconds.

        The task that is returned ends when it has gone. Nobody has to wait for it, and nobody is to cancel it. Raises
        KeyError.
        """
        member = self._take_out(worker)
        task: asyncio.Task[None] = self._loop.create_task(self._see_out(member, grace), name=f"worker {worker} leaves")
        self.leaving.add(task)
        task.add_done_callback(self.leaving.discard)
        return task

    async def _see_out(self, member: Member, grace: float) -> None:
        deadline = self._loop.time() + grace
        try:
            while (  # noqa: ASYNC110 - it is rare
                member.worker.active and self._loop.time() < deadline and not self._closed
            ):
                await asyncio.sleep(_LOOK_AGAIN)
        finally:
            self.cut(member.worker)
            await _end(member)

    def _take_out(self, worker: WorkerId) -> Member:
        member = self.members.pop(worker)
        member.worker.draining = True
        self.state.remove(member.worker)
        self._index.remove_worker(worker)
        for task in member.tasks:
            task.cancel()
        member.pool.close_idle()
        return member

    def reconcile(self, source: str, specs: Collection[WorkerSpec], *, grace: float) -> None:
        """Make the workers that `source` has named those of `specs`; those it names no longer have `grace` seconds.

        A worker whose weight alone has changed goes on; one that is changed otherwise begins anew.
        """
        wanted = {spec.id: spec for spec in specs}
        for member in [member for member in self.members.values() if member.spec.source == source]:
            spec = wanted.pop(member.spec.id, None)
            if spec == member.spec:
                continue
            if spec is not None and replace(spec, weight=member.spec.weight) == member.spec:
                member.spec = spec
                member.worker.weigh(spec.weight)
                continue
            log.info("worker %s leaves (%s)", member.spec.id, source)
            self.remove(member.spec.id, grace)
            if spec is not None:
                wanted[spec.id] = spec
        for spec in wanted.values():
            try:
                self.add(spec)
            except (ValueError, TlsError) as error:
                log.warning("worker %s of %s does not join: %s", spec.id, source, error)
            else:
                log.info("worker %s joins (%s)", spec.id, source)

    def configure(self, settings: FleetSettings) -> None:
        """Take up other settings, at workers that are there already too."""
        self.settings = settings
        self._apply_settings()
        for member in self.members.values():
            worker = member.worker
            worker.slow_start, worker.limits = settings.slow_start, settings.limits
            worker.progress.rules = settings.progress
            self.state.look_after(worker)
            member.pool.configure(
                connect_timeout=settings.connect_timeout, keepalive=settings.keepalive, max_idle=settings.max_idle
            )
            member.poll.settings = _poll_settings(settings)
        self._follow_all()

    def _apply_settings(self) -> None:
        settings = self.settings
        self.state.configure(
            cooldown=settings.cooldown,
            cooldown_max=settings.cooldown_max,
            tokenized=settings.tokenized,
            ejection=settings.ejection,
        )

    # -- what the probes tell

    def probed(self, worker: WorkerId, ok: bool, detail: str, now: float) -> None:
        """See `PollListener`."""
        member = self.members.get(worker)
        if member is None:
            return
        settings = self.settings
        if self.state.probed(
            member.worker, now, well=ok, fail_after=settings.unhealthy_after, well_after=settings.healthy_after
        ):
            if ok:
                log.info("worker %s is well again", worker)
            else:
                log.warning("worker %s fails its probes: %s", worker, detail)

    def load(self, worker: WorkerId, load: EngineLoad, now: float) -> None:
        """See `PollListener`."""
        member = self.members.get(worker)
        if member is None:
            return
        state = member.worker
        state.running, state.waiting = load.running, load.waiting
        state.learn_kv_used(load.kv_used)
        at_work = 0 if load.running is None else load.running + (load.waiting or 0)
        state.foreign = max(0, at_work - state.active)
        tokens = [count for count in (load.prompt_tokens, load.generation_tokens) if count is not None]
        state.progress.counters(float(sum(tokens)) if tokens else None, now)
        if load.kv_blocks:
            self.state.learn_capacity(state, load.blocks_of(state.block_size) or load.kv_blocks)
            self._set_capacity(member)
        if load.tiers != state.tiers:
            state.learn_tiers(load.tiers)
            self._index.set_stores(worker, state.stores)

    def models(self, worker: WorkerId, cards: Sequence[dict[str, object]]) -> None:
        """See `PollListener`."""
        member = self.members.get(worker)
        if member is not None:
            if not member.worker.models:
                member.worker.ramp_from = self._loop.time()  # only now can it be given anything
            self.state.learn_models(member.worker, cards)
            self._follow_all()

    # -- KV events

    def _follow_all(self) -> None:
        # All of them, since one worker's answer can tell that two names mean the same model on another.
        for member in self.members.values():
            self._follow(member)

    def _follow(self, member: Member) -> None:
        worker = member.worker
        model = self.state.base_model(worker)
        if model is None or member.model == model:
            return
        member.model = model
        self._index.add_worker(worker.id, model=model, block_size=worker.block_size)
        self._index.set_stores(worker.id, worker.stores)
        self._set_capacity(member)
        feed = member.spec.feed
        if feed is None:
            return
        if member.feeds:
            for subscriber in member.feeds:
                subscriber.reset()  # what it told was chained under another name: it has to tell it again
            return
        for rank in range(feed.ranks):
            subscriber = KvSubscriber(
                worker.id,
                self._index,
                endpoint=rank_endpoint(feed.endpoint, rank),
                replay_endpoint=None if feed.replay_endpoint is None else rank_endpoint(feed.replay_endpoint, rank),
                topic=feed.topic,
                rank=rank,
                on_state=_feed_follower(member, rank),
            )
            member.feeds.append(subscriber)
            self._run(member, subscriber.run(), "KV events")

    def _set_capacity(self, member: Member) -> None:
        """Without events, what a worker is thought to hold is bounded by what fits in its cache."""
        if member.spec.feed is None and member.model is not None:
            self._index.set_capacity(member.worker.id, member.worker.capacity)

    # -- for the rest of the program

    def tokenize_targets(self, model: str) -> list[TokenizeTarget]:
        """Workers of a base model that may be asked for token ids."""
        now = self._loop.time()
        return [
            TokenizeTarget(
                worker.id,
                worker.url,
                member.spec.api_key,
                True if member.tls is None else member.tls.context,
                None if member.tls is None else member.tls.spec.server_name,
            )
            for worker in self.state.candidates(self.state.serving(model), (), now)
            if (member := self.members.get(worker.id)) is not None
        ]

    def has_events(self, model: str) -> bool:
        """Is any worker of a base model to publish KV events? An idle one has told none yet."""
        return any(
            (member := self.members.get(worker.id)) is not None and member.spec.feed is not None
            for worker in self.state.serving(model)
        )

    def feeds(self) -> list[tuple[WorkerId, FeedStats]]:
        """Counters of each feed, with its worker's name."""
        return [(member.spec.id, feed.stats) for member in self.members.values() for feed in member.feeds]

    async def first_round(self, timeout: float) -> None:
        """Wait until every worker has been asked once, but not for longer than `timeout` seconds."""
        rounds = [member.poll.first_round.wait() for member in self.members.values()]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await asyncio.gather(*rounds)

    def sweep(self, now: float) -> None:
        """Close connections that have been idle for too long."""
        for member in self.members.values():
            member.pool.expire(now)

    def reload_certificates(self) -> None:
        """Take up changed files; what cannot be used leaves the old ones in force, and is said once."""
        for member in self.members.values():
            if member.tls is not None:
                take_up(member.tls)

    def statuses(self, now: float) -> list[WorkerStatus]:
        """Every worker as it is now, in the order in which they joined."""
        return [self._status(member, now) for member in self.members.values()]

    def _status(self, member: Member, now: float) -> WorkerStatus:
        worker, ejections = member.worker, self.state.ejections
        ejected = ejections.is_out(worker.id, now)
        until = max(worker.resting_until, (ejections.until(worker.id) or 0.0) if ejected else 0.0)
        return WorkerStatus(
            id=worker.id,
            url=worker.url,
            source=worker.source,
            standing=worker.standing(now, ejected=ejected),
            models=worker.models,
            weight=worker.weight,
            active=worker.active,
            served=worker.served,
            queued_tokens=worker.prefill.remaining(now) if worker.prefill.total else 0.0,
            prefill_tokens_per_s=worker.prefill.rate,
            block_size=worker.block_size,
            kv_blocks=worker.capacity,
            blocks_known=self._index.block_count(worker.id),
            kv_feed=_worst(member.feeds),
            running=worker.running,
            waiting=worker.waiting,
            kv_used=worker.kv_used,
            connections=member.pool.open_connections,
            out_for=until - now if until > now else None,
        )

    async def close(self) -> None:
        """End everything, at once; nobody joins any more."""
        self._closed = True
        members = list(self.members.values())
        self.members.clear()
        ends = [self._loop.create_task(_end(member)) for member in members]
        if waiting := [*self.leaving, *ends]:
            await asyncio.wait(waiting, timeout=2 * _END_SECONDS)

    def _run(self, member: Member, coroutine: Coroutine[object, object, None], what: str) -> None:
        task: asyncio.Task[None] = self._loop.create_task(coroutine, name=f"{what} of worker {member.spec.id}")
        member.tasks.add(task)
        task.add_done_callback(_ended(member))


def take_up(tls: TlsFiles) -> None:
    """Take up changed files of one context."""
    try:
        if tls.reload():
            log.info("TLS: changed files are in force for new connections: %s", tls)
    except TlsError as error:
        log.error("TLS: changed files cannot be used, the old ones stay in force: %s", error)  # noqa: TRY400 - the message is all


async def _end(member: Member) -> None:
    tasks = list(member.tasks)
    for task in tasks:
        task.cancel()
    await member.pool.close()
    if tasks:
        _, left = await asyncio.wait(tasks, timeout=_END_SECONDS)
        for task in left:
            log.error("%s does not end", task.get_name())


def _ended(member: Member) -> Callable[[asyncio.Task[None]], None]:
    def ended(task: asyncio.Task[None]) -> None:
        member.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s: stopped by a fault of the gateway's own", task.get_name(), exc_info=error)

    return ended


def _feed_follower(member: Member, rank: int) -> Callable[[FeedState], None]:
    """Predictions wait to be confirmed only where somebody confirms: while every rank's feed is live."""

    def follow(state: FeedState) -> None:
        (member.live.add if state is FeedState.LIVE else member.live.discard)(rank)
        member.worker.publishes_events = len(member.live) == len(member.feeds)

    return follow


def _worst(feeds: Iterable[KvSubscriber]) -> str | None:
    """The state of a worker's feeds: that of the first one which is not live."""
    states = [feed.state for feed in feeds]
    return next((state.value for state in states if state is not FeedState.LIVE), states[0].value if states else None)


def _poll_settings(settings: FleetSettings) -> PollSettings:
    return PollSettings(
        health_path=settings.probe_path,
        health_interval=settings.probe_interval,
        health_timeout=settings.probe_timeout,
        metrics_interval=settings.metrics_interval,
        metrics_timeout=settings.probe_timeout,
        models_interval=settings.model_refresh,
        models_timeout=settings.probe_timeout,
    )
