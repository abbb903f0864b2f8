"""What a configuration means: settings in, the values that the parts are made of out. No sockets, no tasks."""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from backends.simulated.model_text import EMBEDDED_TOKENIZER
from backends.tls import UpstreamTlsSpec
from backends.worker_spec import FeedSpec, FleetSettings, WorkerSpec
from cache.prefix_index import PrefixIndex
from cache.prompt_blocks import PromptBlockCache
from cache.tokenizer import Tokenizer
from gateway.admission import GateSettings
from gateway.config import Config, Model, Worker, WorkerSettings
from gateway.config.admission import AdmissionClass
from gateway.header_finder import header_finder
from gateway.http_server import Limits
from gateway.pipeline import Rules
from gateway.prompts import PromptReader, ReadingLimits
from policies.admission import AdmissionQueue, make_admission
from policies.admission_types import AdmissionSettings, ClassRules, Late
from policies.breaker import BreakerLimits
from policies.ejection import EjectionRules
from policies.progress import ProgressRules
from policies.retry_budget import RetryBudget
from policies.routing import RoutingPolicy, make_policy
from policies.types import WorkerId


def worker_spec(settings: Worker, *, source: str = "config") -> WorkerSpec:
    """One worker of the configuration, or of the operator's."""
    host, port = settings.address
    events = settings.kv_events
    feed = None
    if events is not None:
        feed = FeedSpec(events.endpoint, events.replay_endpoint, events.topic, events.ranks)
    return spec_at(settings, settings.name, host, port, source=source, uses_tls=settings.uses_tls, feed=feed)


def spec_at(
    settings: WorkerSettings,
    name: str,
    host: str,
    port: int,
    *,
    source: str,
    uses_tls: bool,
    feed: FeedSpec | None,
    weight: float | None = None,
) -> WorkerSpec:
    """A worker at an address; `weight` replaces the one in its settings."""
    tls = settings.tls
    return WorkerSpec(
        id=WorkerId(name),
        host=host,
        port=port,
        source=source,
        tls=UpstreamTlsSpec(tls.ca, tls.certificate, tls.key, tls.server_name, tls.verify) if uses_tls else None,
        models=settings.models or (),
        api_key=None if settings.api_key is None else settings.api_key.get_secret_value(),
        forward_client_key=settings.forward_client_key,
        cache_salt=settings.cache_salt,
        kv_policy=settings.kv_policy,
        weight=settings.weight if weight is None else weight,
        block_size=settings.block_size,
        kv_blocks=settings.kv_blocks,
        max_model_len=settings.max_model_len,
        prefill_tokens_per_s=settings.prefill_tokens_per_s,
        feed=feed,
    )


def fleet_settings(config: Config) -> FleetSettings:
    """What holds for all workers alike."""
    upstream, health = config.upstream, config.health
    probe, ejection, breaker = health.probe, health.ejection, health.breaker
    return FleetSettings(
        connect_timeout=upstream.connect_timeout,
        keepalive=upstream.keepalive,
        max_idle=upstream.max_idle_connections,
        cooldown=upstream.cooldown,
        cooldown_max=upstream.cooldown_max,
        slow_start=config.routing.slow_start,
        model_refresh=upstream.model_refresh,
        probe_path=probe.path,
        probe_interval=probe.interval,
        probe_timeout=probe.timeout,
        unhealthy_after=probe.unhealthy_after,
        healthy_after=probe.healthy_after,
        metrics_interval=probe.metrics_interval,
        limits=BreakerLimits(breaker.max_connections, breaker.max_pending, breaker.max_requests),
        ejection=EjectionRules(
            consecutive_failures=ejection.consecutive_failures,
            consecutive_gateway_failures=ejection.consecutive_failures,
            base_s=ejection.base,
            max_s=ejection.max,
            max_share=ejection.max_share,
            panic_share=ejection.panic_share,
            sweep_s=ejection.sweep,
        ),
        progress=ProgressRules(hung_after=health.hung.after, patience=health.hung.patience),
        tokenized=tuple(model.name for model in config.models if model.tokenizer is not None),
    )


def rules(config: Config) -> Rules:
    """The way of a request."""
    retries = config.health.retries
    return Rules(
        max_attempts=config.upstream.max_attempts,
        token_wait=config.tokens.wait,
        retry_statuses=frozenset(retries.statuses),
        retries=RetryBudget(retries.share, retries.minimum),
        aliases=dict(config.routing.aliases),
        fallbacks=dict(config.routing.fallbacks),
    )


def policy(config: Config) -> RoutingPolicy:
    """The routing policy, with its tunables."""
    routing = config.routing
    if routing.policy in {"cost", "slo"}:
        cost = routing.cost
        return make_policy(
            routing.policy,
            idle_weight=cost.recompute_weight_idle,
            full_weight=cost.recompute_weight_full,
            decode_tokens=cost.decode_weight,
            spread=cost.spread_weight,
        )
    if routing.policy == "consistent_hash":
        return make_policy("consistent_hash", bound=routing.consistent_hash.bound)
    if routing.policy == "prefix_affinity":
        affinity = routing.prefix_affinity
        return make_policy(
            "prefix_affinity",
            threshold=affinity.match_share,
            imbalance=float(affinity.imbalance_requests),
            ratio=affinity.imbalance_ratio,
        )
    return make_policy(routing.policy)


def admission_settings(config: Config) -> AdmissionSettings:
    """Of the queue."""
    told = config.admission
    return AdmissionSettings(
        interactive=_class_rules(told.interactive),
        standard=_class_rules(told.standard),
        batch=_class_rules(told.batch),
        max_waiting=told.max_waiting,
        max_bytes=told.max_waiting_bytes,
        tenant_max_waiting=told.tenant_max_waiting,
        tenant_max_bytes=told.tenant_max_waiting_bytes,
        yield_from=told.batch.yield_from,
        yield_all=told.batch.yield_all,
    )


def gate_settings(config: Config) -> GateSettings:
    """Of what is around it."""
    told = config.admission
    header = told.deadline_header
    return GateSettings(
        worker_queue_s=told.worker_queue,
        max_running=told.max_running,
        deadline_header=None if header is None else header_finder(header),
        header_name=header or "",
    )


def admission_queue(config: Config) -> AdmissionQueue | None:
    """None where nobody waits."""
    told = config.admission
    if told.policy == "none":
        return None
    return make_admission(told.policy, admission_settings(config))


def _class_rules(told: AdmissionClass) -> ClassRules:
    return ClassRules(told.reserve, Late(told.late), told.max_wait)


def limits(config: Config) -> Limits:
    """What clients may make the server hold, and for how long."""
    limits, upstream = config.limits, config.upstream
    return Limits(
        head_bytes=limits.head_bytes,
        body_bytes=limits.body_bytes,
        total_body_bytes=limits.total_body_bytes,
        head_timeout=limits.head_timeout,
        body_timeout=limits.body_timeout,
        idle_timeout=limits.idle_timeout,
        max_connections=limits.max_connections,
        buffer_bytes=limits.buffer_bytes,
        pipelined_bytes=limits.pipelined_bytes,
        first_byte_timeout=upstream.first_byte_timeout,
        response_idle_timeout=upstream.idle_timeout,
        request_timeout=upstream.request_timeout,
    )


def tokenizer_of(config: Config, model: Model) -> Tokenizer | None:
    """A model's tokenizer, loaded: that takes a while. Raises TokenizerError where it cannot be read."""
    if model.tokenizer is None:
        return None
    backends = ("fastokens", "tokenizers") if config.tokens.fast else ("tokenizers",)
    if not isinstance(model.tokenizer, Path) and model.chat_template is None:
        return _embedded(backends)
    directory = model.tokenizer if isinstance(model.tokenizer, Path) else EMBEDDED_TOKENIZER
    return Tokenizer.load(directory, backends=backends, chat_template=model.chat_template)


@functools.cache
def _embedded(backends: tuple[str, ...]) -> Tokenizer:
    """A part of the program, loaded once however many gateways a process has, or the same one again and again."""
    return Tokenizer.load(EMBEDDED_TOKENIZER, backends=backends)


def reading_limits(config: Config) -> ReadingLimits:
    """How much of a prompt is read."""
    tokens = config.tokens
    return ReadingLimits(
        inline_chars=tokens.inline_chars,
        taste_chars=tokens.piece_chars,
        max_chars=tokens.max_chars,
        max_messages=tokens.max_messages,
    )


def reader_of(
    config: Config, model: Model, tokenizer: Tokenizer, index: PrefixIndex, executor: ThreadPoolExecutor
) -> PromptReader:
    """Reads the prompts of a model whose tokenizer is known."""
    tokens = config.tokens
    return PromptReader(
        model.name,
        tokenizer,
        PromptBlockCache(tokenizer, max_bytes=tokens.cache_bytes, piece_chars=tokens.piece_chars),
        index=index,
        executor=executor,
        limits=reading_limits(config),
    )
