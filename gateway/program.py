"""The running program: its parts, how they start and end, and how another configuration takes their place.

A configuration is applied all or nothing. Whatever can fail (reading tokenizers and certificates) is done before
anything is changed; what remains cannot fail. Sockets stay as they were opened.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Mapping
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
from gateway import assembly
from gateway.admin.server import AdminServer
from gateway.admission import AdmissionGate
from gateway.answer_caches import AnswerCaches
from gateway.background import BackgroundTasks, within
from gateway.config import Config, Model
from gateway.config_change import needs_restart
from gateway.followers import Followers
from gateway.forgetting import Forgetting
from gateway.forwarding import Forwarding
from gateway.http_server import HttpServer
from gateway.listen_error import listening
from gateway.observation import Observation
from gateway.pipeline import RequestPipeline
from gateway.placement import Placement
from gateway.program_control import ProgramControl, gauges_of
from gateway.prompts import Reader
from gateway.reader_table import AutoReader, ReaderTable, make_reader
from gateway.reload import Reloader, StoppingError
from gateway.routes import RouteTable
from gateway.shared_limits import LimitSharing
from gateway.telemetry.exposition import make_registry
from gateway.telemetry.semantic_metrics import SemanticMetrics
from gateway.telemetry.span_export import SpanExport
from gateway.tenant_assembly import state_folder, tenancy_of
from gateway.tls import ServerTls
from gateway.token_memory import TokenMemory
from gateway.watchdog import Watchdog
from policies.affinity import AffinityMap
from policies.routing import Needs, RoutingPolicy

log = logging.getLogger(__name__)

_FIRST_ROUND_SECONDS: Final = 3.0
_END_SECONDS: Final = 5.0
"""For each part to end, beyond the grace that it was given: nothing may keep the program from ending."""
_EVICTED_A_TURN: Final = 1024
"""Blocks, when the index is made smaller: about a millisecond."""
CONFIGURED: Final = "config"


class Program:
    """The gateway. Make it within a running loop; `start`, later `close`."""

    def __init__(self, config: Config) -> None:
        """Raises TokenizerError, TlsError or ConfigError where files cannot be used."""
        self.config = config
        self._opened_for = config
        self.loop = asyncio.get_running_loop()
        self.started = False
        """Have the workers been asked who they are, and may clients come?"""
        self.stopping = False
        self.reloader: Reloader | None = None
        self._via = b"prefixgate-" + os.urandom(6).hex().encode()
        self._executor = ThreadPoolExecutor(config.tokens.threads, thread_name_prefix="tokens")
        self.background = BackgroundTasks(self.loop)
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
        self.answers = AnswerCaches(config, self.pipeline, self.background)
        self.semantic_in_force = self.answers.semantic_in_force
        self.forgetting = self._make_forgetting()
        self.observation = Observation(config, self.pipeline, self.state, self.background)
        observed = self.observation
        self.metrics, self.drift, self.recent = observed.requests, observed.drift, observed.recent
        self.followers = Followers(self.fleet, lambda: self.pipeline.tenancy, self.background)
        own = observed.tenants, observed.admission, observed.responses
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

    @property
    def spans(self) -> SpanExport | None:
        """What sends spans at this moment."""
        return self.observation.spans

    @property
    def sharing(self) -> LimitSharing | None:
        """What shares limits at this moment."""
        return self.followers.sharing

    # -- start and end

    async def start(self) -> int:
        """Begin to serve; returns the port. Raises ListenError where one is taken."""
        config = self.config
        admin = config.admin
        if admin.port is not None:  # first of all: who asks whether it lives is answered while it starts
            with listening(admin.host, admin.port, "admin.port"):
                self.admin_port = await self.admin.start(admin.host, admin.port)
        self.fleet.reconcile(CONFIGURED, self._specs(config), grace=0.0)
        self.followers.configure(config)
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
        await within(drain + _END_SECONDS, self.server.close(drain), "the clients' connections")
        await within(_END_SECONDS, self.background.cancel(), "what runs in the background")
        if self.sharing is not None:
            await within(_END_SECONDS, self.sharing.close(), "the sharing of limits")
        if self.spans is not None:
            await within(_END_SECONDS, self.spans.close(), "spans")
        if self.answers.semantic is not None:
            await within(3 * _END_SECONDS, self.answers.semantic.close(), "the semantic cache")
        if self.answers.responses is not None:
            closing = self.loop.run_in_executor(None, self.answers.responses.close)
            await within(3 * _END_SECONDS, _done(closing), "the response cache")
        await within(_END_SECONDS, self.readers.close(), "the reading of prompts")
        await within(_END_SECONDS, self.remote.close(), "tokenizing by workers")
        await within(3 * _END_SECONDS, self.fleet.close(), "the workers' connections")
        await within(_END_SECONDS, self.admin.close(), "the control plane")
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
        opened = await self.answers.open(config)
        try:
            spans = self.observation.exporter(config)
            tenancy = tenancy_of(config, self.loop.time(), before=self.pipeline.tenancy)
            self._check_going_on()
        except BaseException:
            await self.loop.run_in_executor(None, opened.close)
            raise
        self.answers.keep(opened, config)
        restart = sorted([*needs_restart(self._opened_for, config), *self.answers.out_of_date(config)])
        self._put_in_force(config, tokenizers, specs, spans)
        self.pipeline.tenancy = tenancy
        self.followers.configure(config)
        return restart

    def _check_going_on(self) -> None:
        if self.stopping:
            raise StoppingError("the gateway is stopping")

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
        self.affinity.configure(config.routing.sessions.max_entries, config.routing.sessions.ttl)
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
            self.background.start(self._resize_index(), "the index's new bound")
        if config.tokens != before.tokens:
            self.readers.forget_made()  # they are made again, with the new limits
        self._tokenizers = tokenizers
        pipeline.rules = assembly.rules(config)
        self._take_up_admission(config, before)
        self.answers.configure(config)
        pipeline.routes = RouteTable(config.routes.passthrough)
        self.observation.configure(config, spans)
        server.configure(
            assembly.limits(config),
            worker_header=config.response_headers.worker,
            forwarding=Forwarding(config.listen.trusted_proxies),
        )
        self.fleet.configure(assembly.fleet_settings(config))
        self.fleet.reconcile(CONFIGURED, specs, grace=config.discovery.drain)

    async def _resize_index(self) -> None:
        """Take up the index's bound; a smaller one in steps, so that the loop is never held up for long."""
        index = self.index
        while index.max_blocks != (target := self.config.index.max_blocks):
            index.resize(max(target, min(index.max_blocks, len(index) + index.stale_count) - _EVICTED_A_TURN))
            await asyncio.sleep(0)

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

    def _make_forgetting(self) -> Forgetting:
        fleet = self.fleet
        return Forgetting(
            keepers=self.answers.keepers,
            tenancy=lambda: self.pipeline.tenancy,
            targets=lambda: [(target, fleet.members[target.worker].takes_salt) for target in fleet.all_targets()],
            folder=lambda: state_folder(self.config),
            audit_file=lambda: self.config.log.audit_file,
            served_name=lambda name: self.config.routing.aliases.get(name, name),
        )

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


async def _done(future: asyncio.Future[None]) -> None:
    await future


def _report_names(config: Config, state: FleetState) -> None:
    """Say once at start where names do not meet: nobody would see it in an answer."""
    served = set(state.models)
    for model in config.models:
        if model.name not in served and served:
            log.warning("model %s: no worker serves it; they serve %s", model.name, ", ".join(sorted(served)))
