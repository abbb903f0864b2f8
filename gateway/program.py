"""The running program: its parts, how they start and end, and how another configuration takes their place.

A configuration is applied all or nothing. Whatever can fail (reading tokenizers and certificates) is done before
anything is changed; what remains cannot fail. Sockets stay as they were opened.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Callable, Collection, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Final

from backends.errors import UpstreamFault
from backends.fleet import Fleet, take_up
from backends.fleet_state import FleetState
from backends.fleet_worker import Worker
from backends.remote_tokenizer import RemoteTokenizer
from backends.tls import UpstreamTls
from backends.worker_spec import WorkerSpec
from cache.prefix_index import PrefixIndex
from cache.tokenizer import Tokenizer
from gateway import assembly, response_assembly, semantic_assembly
from gateway.admin.recent import RecentRequests
from gateway.admin.server import AdminServer
from gateway.admission import AdmissionGate
from gateway.cache_drift import CacheDrift
from gateway.config import Config, Model
from gateway.discover import follow_discovery
from gateway.forgetting import Forgetting, KeepsAnswers
from gateway.forwarding import Forwarding
from gateway.http_server import HttpServer
from gateway.jwks import follow_jwks
from gateway.jwt_tenants import JwtVerifier
from gateway.listen_error import listening
from gateway.pipeline import RequestPipeline
from gateway.placement import Placement
from gateway.program_control import ProgramControl, gauges_of
from gateway.prompts import Reader
from gateway.reader_table import AutoReader, ReaderTable, make_reader
from gateway.reload import Reloader, StoppingError
from gateway.request_record import Observer
from gateway.response_caching import ResponseCaching
from gateway.routes import RouteTable
from gateway.semantic_caching import SemanticCaching
from gateway.shared_limits import LimitSharing
from gateway.telemetry.access_log import AccessLog
from gateway.telemetry.admission_metrics import AdmissionMetrics
from gateway.telemetry.exposition import make_registry
from gateway.telemetry.metrics import RequestMetrics
from gateway.telemetry.response_metrics import ResponseMetrics
from gateway.telemetry.semantic_metrics import SemanticMetrics
from gateway.telemetry.span_export import SpanExport
from gateway.telemetry.tenant_metrics import TenantMetrics
from gateway.telemetry.trace_context import trace_of
from gateway.tenancy import Tenant
from gateway.tenant_assembly import state_folder, tenancy_of
from gateway.tls import ServerTls
from gateway.token_memory import TokenMemory
from gateway.watchdog import Watchdog
from policies.affinity import AffinityMap
from policies.routing import Needs, RoutingPolicy
from policies.shared_limits import Limiters

log = logging.getLogger(__name__)

_FIRST_ROUND_SECONDS: Final = 3.0
_END_SECONDS: Final = 5.0
"""For each part to end, beyond the grace that it was given: nothing may keep the program from ending."""
_EVICTED_A_TURN: Final = 1024
"""Blocks, when the index is made smaller: about a millisecond."""
CONFIGURED: Final = "config"
_STORES: Final = ("memory", "disk", "redis", "encryption_key", "tenant_share", "max_entry")
"""Settings of the response cache's stores, which stay as they were opened."""


class Program:
    """The gateway. Make it within a running loop; `start`, later `close`."""

    def __init__(self, config: Config) -> None:
        """Raises TokenizerError, TlsError or ConfigError where files cannot be used."""
        self.config = config
        self.loop = asyncio.get_running_loop()
        self.started = False
        """Have the workers been asked who they are, and may clients come?"""
        self.stopping = False
        self.reloader: Reloader | None = None
        self._via = b"prefixgate-" + os.urandom(6).hex().encode()
        self._executor = ThreadPoolExecutor(config.tokens.threads, thread_name_prefix="tokens")
        self._tasks: set[asyncio.Task[None]] = set()
        self._discoveries: set[asyncio.Task[None]] = set()
        self._issuer: JwtVerifier | None = None
        self._following: asyncio.Task[None] | None = None
        self.sharing: LimitSharing | None = None
        self._sharing: asyncio.Task[None] | None = None
        self._certificates_due = 0.0
        self.admin_port: int | None = None
        self.tls = None if config.listen.tls is None else ServerTls(config.listen.tls)
        self.index = PrefixIndex(max_blocks=config.index.max_blocks)
        settings = assembly.fleet_settings(config)
        self.state = FleetState(cooldown=settings.cooldown, cooldown_max=settings.cooldown_max)
        self.fleet = Fleet(self.state, self.index, settings, loop=self.loop, cut=self._cut)
        self.affinity = AffinityMap(config.routing.sessions.max_entries, config.routing.sessions.ttl)
        self._policy: RoutingPolicy = assembly.policy(config)
        loaded = {model: assembly.tokenizer_of(config, model) for model in config.models}
        self._tokenizers = {model: tokenizer for model, tokenizer in loaded.items() if tokenizer is not None}
        self.remote = RemoteTokenizer(self.fleet.tokenize_targets)
        self.readers = ReaderTable(self._readers(config, self._tokenizers), self._make_reader)
        self.pipeline = RequestPipeline(
            self.state,
            self.fleet.members,
            self._placement(config),
            index=self.index,
            readers=self.readers,
            routes=RouteTable(config.routes.passthrough),
            loop=self.loop,
            via=self._via,
            rules=assembly.rules(config),
        )
        self.pipeline.tenancy = tenancy_of(config, self.loop.time())
        self._take_up_admission(config)
        self.responses = response_assembly.open_responses(config)
        self.semantic = self._semantic_of(semantic_assembly.open_semantic(config), config)
        self._take_up_responses(config)
        self.forgetting = self._make_forgetting()
        self.drift = CacheDrift(lambda worker: self.state.worker(worker).block_size)
        self.metrics = RequestMetrics(self.drift)
        self.tenant_metrics = TenantMetrics(self._tenants)
        self.admission_metrics = AdmissionMetrics(lambda: self.pipeline.gate, self.state)
        self.response_metrics = ResponseMetrics(lambda: self.pipeline.responses)
        self.recent = RecentRequests(config.admin.requests_kept)
        self.spans = self._exporter(config)
        self._sending: asyncio.Task[None] | None = None
        self._observe(config)
        own = self.tenant_metrics, self.admission_metrics, self.response_metrics
        registry = make_registry(gauges_of(self), self.metrics, *own, SemanticMetrics(self.semantic_in_force))
        self.admin = AdminServer(ProgramControl(self), registry, self.recent, semantic=self.semantic_in_force)
        self.watchdog = Watchdog(self.state, self.pipeline)
        self.server = HttpServer(
            self.pipeline,
            assembly.limits(config),
            self.loop,
            via=self._via,
            worker_header=config.response_headers.worker,
            forwarding=Forwarding(config.listen.trusted_proxies),
        )
        for callback in (self.fleet.sweep, self.index.expire, self.watchdog.sweep, self._look_at_certificates):
            self.server.every_sweep(callback)

    # -- start and end

    async def start(self) -> int:
        """Begin to serve; returns the port. Raises ListenError where one is taken."""
        config = self.config
        admin = config.admin
        if admin.port is not None:  # first of all: who asks whether it lives is answered while it starts
            with listening(admin.host, admin.port, "admin.port"):
                self.admin_port = await self.admin.start(admin.host, admin.port)
        self.fleet.reconcile(CONFIGURED, self._specs(config), grace=0.0)
        self._discover(config)
        self._follow_issuer()
        self._share_limits()
        await self.fleet.first_round(_FIRST_ROUND_SECONDS)
        _report_names(config, self.state)
        listen = config.listen
        with listening(listen.host, listen.port, "listen.port"):
            port = await self.server.start(
                listen.host, listen.port, backlog=listen.backlog, reuse_port=listen.reuse_port, tls=self.tls
            )
        self.started = True
        return port

    async def close(self) -> None:
        """Let requests finish for a while, then end everything."""
        self.stopping = True
        drain = self.config.limits.drain_timeout
        await _within(drain + _END_SECONDS, self.server.close(drain), "the clients' connections")
        await _within(_END_SECONDS, _cancelled([*self._tasks]), "what runs in the background")
        if self.sharing is not None:
            await _within(_END_SECONDS, self.sharing.close(), "the sharing of limits")
        if self.spans is not None:
            await _within(_END_SECONDS, self.spans.close(), "spans")
        if self.semantic is not None:
            await _within(3 * _END_SECONDS, self.semantic.close(), "the semantic cache")
        if self.responses is not None:
            closing = self.loop.run_in_executor(None, self.responses.close)
            await _within(3 * _END_SECONDS, _done(closing), "the response cache")
        await _within(_END_SECONDS, self.readers.close(), "the reading of prompts")
        await _within(_END_SECONDS, self.remote.close(), "tokenizing by workers")
        await _within(3 * _END_SECONDS, self.fleet.close(), "the workers' connections")
        await _within(_END_SECONDS, self.admin.close(), "the control plane")
        self.forgetting.close()
        self._executor.shutdown(wait=False, cancel_futures=True)

    # -- another configuration

    async def apply(self, config: Config) -> list[str]:
        """Put another configuration in place of the one in force; returns the settings that need a restart.

        Raises:
            TokenizerError, TlsError, ConfigError, StoppingError: Nothing was changed.
        """
        tokenizers: dict[Model, Tokenizer] = {}
        for model in config.models:
            known = self._tokenizers.get(model) if config.tokens.fast == self.config.tokens.fast else None
            tokenizer = known or await self.loop.run_in_executor(None, assembly.tokenizer_of, config, model)
            if tokenizer is not None:
                tokenizers[model] = tokenizer
        specs = self._specs(config)
        for spec in specs:
            if spec.tls is not None:
                UpstreamTls(spec.tls)  # fails here, and not halfway
        if config.listen.tls is not None and config.listen.tls != self.config.listen.tls:
            ServerTls(config.listen.tls)  # else the restart that it waits for would fail
        responses = self.responses or await self.loop.run_in_executor(None, response_assembly.open_responses, config)
        semantic = None
        if self.semantic is None:
            semantic = await self.loop.run_in_executor(None, semantic_assembly.open_semantic, config)
        spans = self.spans if _same_collector(self.config, config) else self._exporter(config)
        tenancy = tenancy_of(config, self.loop.time(), before=self.pipeline.tenancy)
        if self.stopping:
            if semantic is not None:
                await self.loop.run_in_executor(None, semantic.close)
            raise StoppingError("the gateway is stopping")
        self.responses = responses
        self.semantic = self.semantic or self._semantic_of(semantic, config)
        restart = _needs_restart(self.config, config)
        self._put_in_force(config, tokenizers, specs, spans)
        self.pipeline.tenancy = tenancy
        self._follow_issuer()
        self._share_limits()
        return restart

    def take_up_keys(self) -> None:
        """Read the tenants' keys anew. Raises ConfigError where nothing was changed."""
        self.pipeline.tenancy = tenancy_of(self.config, self.loop.time(), before=self.pipeline.tenancy)

    def _put_in_force(
        self, config: Config, tokenizers: dict[Model, Tokenizer], specs: list[WorkerSpec], spans: SpanExport | None
    ) -> None:
        """In one turn of the loop: no request sees half of it."""
        before, self.config = self.config, config
        pipeline, server = self.pipeline, self.server
        if config.routing != before.routing:
            self._policy = assembly.policy(config)
        sessions, were = config.routing.sessions, before.routing.sessions
        if (sessions.max_entries, sessions.ttl) != (were.max_entries, were.ttl):
            self.affinity = AffinityMap(config.routing.sessions.max_entries, config.routing.sessions.ttl)
        pipeline.placement = self._placement(config)
        kept = {
            model.name: reader
            for model, tokenizer in tokenizers.items()
            if self._tokenizers.get(model) is tokenizer
            and config.tokens == before.tokens
            and (reader := self.readers.configured(model.name)) is not None
        }
        if config.tokens.threads != before.tokens.threads:
            self._executor.shutdown(wait=False)  # what was handed to it is done all the same
            self._executor = ThreadPoolExecutor(config.tokens.threads, thread_name_prefix="tokens")
        self.readers.configure(self._readers(config, tokenizers, kept))
        if config.index.max_blocks != before.index.max_blocks:
            self.background(self._resize_index(), "the index's new bound")
        if config.tokens != before.tokens:
            self.readers.forget_made()  # they are made again, with the new limits
        self._tokenizers = tokenizers
        pipeline.rules = assembly.rules(config)
        self._take_up_admission(config, before)
        self._take_up_responses(config)
        pipeline.routes = RouteTable(config.routes.passthrough)
        if spans is not self.spans:
            if self.spans is not None:
                self.background(_last_spans(self.spans, self._sending), "the last spans")
            self.spans, self._sending = spans, None
        self._observe(config)
        server.configure(
            assembly.limits(config),
            worker_header=config.response_headers.worker,
            forwarding=Forwarding(config.listen.trusted_proxies),
        )
        self.fleet.configure(assembly.fleet_settings(config))
        self.fleet.reconcile(CONFIGURED, specs, grace=config.discovery.drain)
        if config.discovery != before.discovery:
            self._discover(config)

    async def _resize_index(self) -> None:
        """Take up the index's bound; a smaller one in steps, so that the loop is never held up for long."""
        index = self.index
        while index.max_blocks != (target := self.config.index.max_blocks):
            index.resize(max(target, min(index.max_blocks, len(index) + index.stale_count) - _EVICTED_A_TURN))
            await asyncio.sleep(0)

    def _observe(self, config: Config) -> None:
        """Who is told of requests that are over."""
        if self.spans is not None and self._sending is None:
            self._sending = self.background(self.spans.run(), "spans")
        sample = config.telemetry.sample
        new_id = random.Random().randbytes  # noqa: S311 - ids are to be unique, not secret
        self.pipeline.trace = None if self.spans is None else lambda given: trace_of(given, new_id, sample)
        self.recent.keep(config.admin.requests_kept)
        observers: list[Observer] = [self.metrics, self.drift]
        if config.admin.requests_kept:
            observers.append(self.recent)
        if config.tenants.members:
            observers.append(self.tenant_metrics)
        if self.pipeline.gate is not None:
            observers.append(self.admission_metrics)
        if self.pipeline.responses is not None:
            observers.append(self.response_metrics)
        if config.log.access:
            observers.append(AccessLog())
        if self.spans is not None:
            observers.append(self.spans)
        self.pipeline.observers = tuple(observers)

    def _take_up_admission(self, config: Config, before: Config | None = None) -> None:
        """Another policy is another queue: what waits in the one before goes to the workers at once."""
        pipeline, gate = self.pipeline, self.pipeline.gate
        settings = assembly.gate_settings(config)
        same = before is not None and config.admission.policy == before.admission.policy
        if gate is not None and same:  # so it goes on predicting
            gate.queue.reconfigure(assembly.admission_settings(config))
            gate.configure(settings)
            return
        queue = assembly.admission_queue(config)
        self.state.predicts = queue is not None or self._policy.needs is Needs.LATENCY
        pipeline.gate = None
        if queue is not None:
            pipeline.gate = AdmissionGate(
                self.state,
                queue,
                settings,
                loop=self.loop,
                send=pipeline.send,
                held=pipeline.held,
            )
        if gate is not None:
            gate.release_all()

    def _semantic_of(self, opened: semantic_assembly.OpenedSemantic | None, config: Config) -> SemanticCaching | None:
        """What answers by meaning; None where nobody wants that."""
        if opened is None:
            return None
        semantic = semantic_assembly.semantic_caching(config, opened)
        saving = semantic.keep_saving(lambda: semantic_assembly.save_interval(self.config))
        self.background(saving, "the semantic cache's evidence")
        return semantic

    def semantic_in_force(self) -> SemanticCaching | None:
        """None where nothing is served by meaning, nor found out what would be."""
        responses = self.pipeline.responses
        return None if responses is None else responses.semantic

    def _take_up_responses(self, config: Config) -> None:
        """Answer from the cache, or do so no longer; its stores stay as they were opened."""
        pipeline, kept = self.pipeline, self.responses
        if kept is None or not response_assembly.is_wanted(config):
            pipeline.responses = None
        elif pipeline.responses is not None:
            pipeline.responses.settings = response_assembly.caching_settings(config)
        else:
            pipeline.responses = ResponseCaching(
                kept.cache,
                response_assembly.caching_settings(config),
                loop=self.loop,
                executor=kept.executor,
                proceed=pipeline.proceed,
                attempt=pipeline.attempt,
            )
        if self.semantic is not None:  # its index and its embedder stay as they were opened
            semantic_assembly.configure(self.semantic, config)
        if pipeline.responses is not None:
            pipeline.responses.semantic = self.semantic if semantic_assembly.is_wanted(config) else None

    def _make_forgetting(self) -> Forgetting:
        fleet = self.fleet
        return Forgetting(
            keepers=self._keepers,
            tenancy=lambda: self.pipeline.tenancy,
            targets=lambda: [(target, fleet.members[target.worker].takes_salt) for target in fleet.all_targets()],
            folder=lambda: state_folder(self.config),
            audit_file=lambda: self.config.log.audit_file,
            served_name=lambda name: self.config.routing.aliases.get(name, name),
        )

    def _keepers(self) -> Mapping[str, KeepsAnswers]:
        """All that keep answers, for whoever has them forget: by what that is called."""
        kept: dict[str, KeepsAnswers] = {} if self.responses is None else {"responses": self.responses.cache}
        if self.semantic is not None:
            kept["semantic"] = self.semantic
        return kept

    def _tenants(self) -> Mapping[str, Tenant]:
        tenancy = self.pipeline.tenancy
        return {} if tenancy is None else tenancy.tenants

    def _limiters(self) -> Limiters:
        tenancy = self.pipeline.tenancy
        return {} if tenancy is None else tenancy.limiters

    def _exporter(self, config: Config) -> SpanExport | None:
        return None if config.telemetry.endpoint is None else SpanExport(config.telemetry, loop_time=self.loop.time)

    def _specs(self, config: Config) -> list[WorkerSpec]:
        return [assembly.worker_spec(worker) for worker in config.workers]

    def _placement(self, config: Config) -> Placement:
        return Placement(
            self.state,
            self.index,
            self._policy,
            affinity=self.affinity,
            session_header=config.routing.sessions.header,
            prediction_ttl=config.index.prediction_ttl,
            unconfirmed_ttl=config.index.unconfirmed_ttl,
            sample=random.Random(config.routing.cost.seed).random,  # noqa: S311 - it breaks ties
        )

    def _readers(
        self, config: Config, tokenizers: Mapping[Model, Tokenizer], kept: Mapping[str, Reader] = MappingProxyType({})
    ) -> dict[str, Reader]:
        return {
            model.name: kept.get(model.name) or assembly.reader_of(config, model, tokenizer, self.index, self._executor)
            for model, tokenizer in tokenizers.items()
        }

    def _make_reader(self, name: str) -> AutoReader:
        """The reader of a model whose tokenizer is not configured."""
        return make_reader(
            name,
            remote=self.remote,
            memory=TokenMemory(max_bytes=self.config.tokens.cache_bytes),
            index=self.index,
            limits=assembly.reading_limits(self.config),
            has_events=self.fleet.has_events,
            clock=self.loop.time,
        )

    def _discover(self, config: Config) -> None:
        """Look for workers where the configuration says, and nowhere else."""
        for task in self._discoveries:
            task.cancel()
        named = {f"dns {source.name}" for source in config.discovery.dns}
        for gone in {member.spec.source for member in self.fleet.members.values()} - named:
            if gone.startswith("dns "):
                self.fleet.reconcile(gone, [], grace=config.discovery.drain)
        self._discoveries = {
            self.background(follow_discovery(source, self.fleet, grace=config.discovery.drain), f"dns {source.name}")
            for source in config.discovery.dns
        }

    def _follow_issuer(self) -> None:
        """Read the keys of the tenants' issuer where it publishes them, and of no other."""
        tenancy = self.pipeline.tenancy
        issuer = None if tenancy is None else tenancy.issuer
        if issuer is self._issuer:
            return
        self._issuer = issuer
        if self._following is not None:
            self._following.cancel()
            self._following = None
        if issuer is not None and issuer.settings.jwks_url is not None:
            following = follow_jwks(issuer, issuer.settings.jwks_url, issuer.settings.refresh)
            self._following = self.background(following, "the issuer's keys")

    def _share_limits(self) -> None:
        """Hold the tenants' limits together with other gateways, as the configuration says."""
        settings, before, running = self.config.tenants.shared_limits, self.sharing, self._sharing
        if settings == (None if before is None else before.settings):
            return
        self.sharing = None if settings is None else LimitSharing(settings, self._limiters, self.loop.time)
        self._sharing = self.background(_share(before, running, self.sharing), "the sharing of limits")

    # -- what happens along the way

    def _cut(self, worker: Worker) -> None:
        """A worker is gone: its requests end here, or go elsewhere."""
        for exchange in [exchange for exchange in self.pipeline.live if exchange.worker is worker]:
            exchange.give_up(UpstreamFault.RESET, "the worker has been removed")
        if worker.id not in self.fleet.members:  # nobody has taken its name
            self.affinity.forget_worker(worker.id)
            self.drift.forget(worker.id)

    def _look_at_certificates(self, now: float) -> None:
        watch = self.config.reload.watch
        if watch and now >= self._certificates_due:
            self._certificates_due = now + watch
            self.reload_certificates()
            self.forgetting.take_up()

    def reload_certificates(self) -> None:
        """Take up changed certificates."""
        if self.tls is not None:
            take_up(self.tls)
        self.fleet.reload_certificates()

    def background(self, coroutine: Coroutine[object, object, None], name: str) -> asyncio.Task[None]:
        """Run something as long as the program runs; what fails is logged and takes nothing with it."""
        task: asyncio.Task[None] = self.loop.create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended())
        return task

    def _task_ended(self) -> Callable[[asyncio.Task[None]], None]:
        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                log.error("%s: stopped by a fault of the gateway's own", task.get_name(), exc_info=error)

        return ended


async def _within(seconds: float, ending: Coroutine[object, object, object], what: str) -> None:
    """Wait for something to end, but not for ever: what fails or hangs is told, and the rest ends all the same."""
    task = asyncio.get_running_loop().create_task(ending, name=f"end of {what}")
    done, _ = await asyncio.wait([task], timeout=seconds)
    if not done:
        task.cancel()
        log.error("%s did not end within %g s", what, seconds)
    elif not task.cancelled() and (error := task.exception()) is not None:
        log.error("%s did not end as they should", what, exc_info=error)


async def _done(future: asyncio.Future[None]) -> None:
    await future


async def _cancelled(tasks: Collection[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


async def _last_spans(spans: SpanExport, sending: asyncio.Task[None] | None) -> None:
    """The configuration names another collector, or none: what waits goes where it was meant to go."""
    if sending is not None:
        await _cancelled([sending])
    await spans.close()


async def _share(before: LimitSharing | None, running: asyncio.Task[None] | None, after: LimitSharing | None) -> None:
    """One after the other: the limits are theirs both."""
    if running is not None:
        await _cancelled([running])
    if before is not None:
        await before.close()
    if after is not None:
        await after.run()


def _same_collector(before: Config, after: Config) -> bool:
    return before.telemetry.model_copy(update={"sample": after.telemetry.sample}) == after.telemetry


def _needs_restart(before: Config, after: Config) -> list[str]:
    """Settings that have changed and that only a restart takes up: those of sockets."""
    changed = [
        f"{section}.{name}"
        for section, names in (
            ("listen", ("host", "port", "backlog", "reuse_port", "tls")),
            ("admin", ("host", "port")),
            ("response_cache", _STORES if response_assembly.is_wanted(before) else ()),
            ("semantic_cache", semantic_assembly.STORES if semantic_assembly.is_wanted(before) else ()),
        )
        for name in names
        if getattr(getattr(before, section), name) != getattr(getattr(after, section), name)
    ]
    return sorted(changed)


def _report_names(config: Config, state: FleetState) -> None:
    """Say once at start where names do not meet: nobody would see it in an answer."""
    served = set(state.models)
    for model in config.models:
        if model.name not in served and served:
            log.warning("model %s: no worker serves it; they serve %s", model.name, ", ".join(sorted(served)))
