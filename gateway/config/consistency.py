"""Settings that are fine one by one and unsafe together. Pure: a configuration in, problems out."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from gateway.config.problems import Problem, nearest

if TYPE_CHECKING:
    from gateway.config.schema import Config

_ANY_ADDRESS: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared with, not bound to
_OFF: Final = frozenset({"off", None})
_THIS_MACHINE: Final = frozenset({"localhost", "127.0.0.1", "::1", *_ANY_ADDRESS})


def inconsistencies(config: Config) -> list[Problem]:
    """Everything in `config` that contradicts something else in it."""
    return [
        *_somewhere_to_go(config),
        *_ports(config),
        *_tls(config),
        *_repeated(config),
        *_loops(config),
        *_models_and_workers(config),
        *_kv_events(config),
        *_bounds(config),
        *_tenants(config),
        *_cache_groups(config),
        *_issuer(config),
        *_shared_limits(config),
        *_fallbacks(config),
        *_admission(config),
        *_semantic(config),
    ]


def _admission(config: Config) -> Iterator[Problem]:
    standard, batch = config.admission.standard, config.admission.batch
    if standard.reserve + batch.reserve >= 1:
        yield Problem("admission.batch.reserve", "must leave something to the interactive class, with standard.reserve")
    if batch.yield_from >= batch.yield_all:
        yield Problem("admission.batch.yield_all", f"must be above yield_from, which is {batch.yield_from:g}")


def _somewhere_to_go(config: Config) -> Iterator[Problem]:
    if not config.workers and not config.discovery.dns:
        yield Problem("workers", "expected a list of at least 1, or names under discovery.dns; given nothing")
    for position, source in enumerate(config.discovery.dns):
        if source.record == "A" and source.port is None:
            yield Problem(f"discovery.dns[{position}].port", "required with A records, which tell no port")
        if source.record == "SRV" and source.port is not None:
            yield Problem(f"discovery.dns[{position}].port", "must be left out with SRV records, which tell the port")


def _ports(config: Config) -> Iterator[Problem]:
    listen, admin = config.listen, config.admin
    if admin.port and admin.port == listen.port and _meet(admin.host, listen.host):
        yield Problem("admin.port", f"must differ from listen.port, which is {listen.port} too")


def _meet(one: str, other: str) -> bool:
    return one == other or one in _ANY_ADDRESS or other in _ANY_ADDRESS


def _tls(config: Config) -> Iterator[Problem]:
    for position, worker in enumerate(config.workers):
        path = f"workers[{position}].tls"
        if (worker.tls.certificate is None) != (worker.tls.key is None):
            yield Problem(path, "needs certificate and key together")
        if worker.tls != type(worker.tls)() and not worker.uses_tls:
            yield Problem(path, f"needs an https:// URL; {worker.url} is not")


def _repeated(config: Config) -> Iterator[Problem]:
    columns: tuple[tuple[str, str, list[str | None]], ...] = (
        ("models", "name", [model.name for model in config.models]),
        ("workers", "name", [worker.name for worker in config.workers]),
        ("workers", "url", [worker.url for worker in config.workers]),
        (
            "workers",
            "kv_events.endpoint",
            [worker.kv_events.endpoint if worker.kv_events else None for worker in config.workers],
        ),
    )
    for section, key, values in columns:
        first: dict[str, int] = {}
        for position, value in enumerate(values):
            if value is None:
                continue
            if value in first:
                yield Problem(f"{section}[{position}].{key}", f"{value} is already that of {section}[{first[value]}]")
            first.setdefault(value, position)


def _loops(config: Config) -> Iterator[Problem]:
    """A worker's URL that leads back to the gateway would send each request round until it fails."""
    listen = config.listen
    for position, worker in enumerate(config.workers):
        host, port = worker.address
        both_local = listen.host in _THIS_MACHINE and host in _THIS_MACHINE
        if port == listen.port and (host == listen.host or both_local):
            yield Problem(
                f"workers[{position}].url",
                f"{worker.url} is the gateway itself (listen.port is {listen.port} too)",
            )


def _models_and_workers(config: Config) -> Iterator[Problem]:
    names = [model.name for model in config.models]
    for position, worker in enumerate(config.workers):
        for place, name in enumerate(worker.models or ()):
            if names and name not in names:
                near = nearest(name, names)
                hint = f"did you mean {near}?" if near else f"known: {', '.join(names)}"
                yield Problem(f"workers[{position}].models[{place}]", f"no model {name} under models; {hint}")
    named = [*config.workers, *config.discovery.dns]
    if named and all(each.models for each in named):  # else they tell it themselves, or the operator adds others
        served = {name for each in named for name in each.models or ()}
        for position, name in enumerate(names):
            if name not in served:
                yield Problem(f"models[{position}].name", f"no worker serves {name}")
    for position, model in enumerate(config.models):
        if model.chat_template is not None and model.tokenizer is None:
            yield Problem(f"models[{position}].chat_template", "needs a tokenizer beside it to be of use")


def _kv_events(config: Config) -> Iterator[Problem]:
    for position, worker in enumerate(config.workers):
        if worker.kv_events is None:
            continue
        path = f"workers[{position}].kv_events"
        if worker.kv_events.replay_endpoint == worker.kv_events.endpoint:
            yield Problem(f"{path}.replay_endpoint", "must differ from endpoint: they are two sockets of the worker")


def _tenants(config: Config) -> Iterator[Problem]:
    tenants = config.tenants.members
    names: dict[str, int] = {}
    owners: dict[str, str] = {}
    for position, tenant in enumerate(tenants):
        path = f"tenants.members[{position}]"
        if tenant.name in names:
            yield Problem(f"{path}.name", f"{tenant.name} is already that of tenants.members[{names[tenant.name]}]")
        names.setdefault(tenant.name, position)
        for place, key in enumerate(tenant.keys):
            digest = key.get_secret_value()
            if digest in owners:
                yield Problem(f"{path}.keys[{place}]", f"tenant {owners[digest]} has this key already")
            owners.setdefault(digest, tenant.name)
        models = [model.name for model in tenant.per_model]
        for place, name in enumerate(models):
            if name in models[:place]:
                first = models.index(name)
                yield Problem(f"{path}.per_model[{place}].name", f"{name} is already that of per_model[{first}]")
    if tenants:
        for section, workers in (("workers", config.workers), ("discovery.dns", config.discovery.dns)):
            for position, worker in enumerate(workers):
                if worker.forward_client_key:
                    reason = "must be false where there are tenants: a client's key is for the gateway alone"
                    yield Problem(f"{section}[{position}].forward_client_key", reason)
    elif config.tenants != type(config.tenants)():
        yield Problem("tenants.members", "expected a list of at least 1 beside the other settings of tenants")


def _cache_groups(config: Config) -> Iterator[Problem]:
    """What tenants share has one time to live, or it would be that of whoever used it last."""
    first: dict[str, tuple[int, dict[str | None, float | None]]] = {}
    for position, tenant in enumerate(config.tenants.members):
        group, kv = tenant.cache.group, tenant.cache.kv
        if group is None:
            continue
        ttls = {None: kv.ttl} | {model.name: model.cache.kv.ttl or kv.ttl for model in tenant.per_model}
        other, theirs = first.setdefault(group, (position, ttls))
        if any(ttls.get(model, kv.ttl) != theirs.get(model, theirs[None]) for model in {*ttls, *theirs}):
            text = f"must be that of tenants.members[{other}], which is in the cache group {group} too"
            yield Problem(f"tenants.members[{position}].cache.kv.ttl", text)


def _fallbacks(config: Config) -> Iterator[Problem]:
    for model, others in config.routing.fallbacks.items():
        if model in others:
            yield Problem(f"routing.fallbacks.{model}", "must not name the model itself")


def _semantic(config: Config) -> Iterator[Problem]:
    settings, embedding = config.semantic_cache, config.semantic_cache.embedding
    members = config.tenants.members
    caches = [tenant.cache for tenant in members]
    of_models = [model.cache for tenant in members for model in tenant.per_model]
    if {settings.mode, *(one.semantic.mode for one in caches), *(one.semantic.mode for one in of_models)} <= _OFF:
        return
    kept = {*(one.responses.mode for one in caches), *(one.responses.mode for one in of_models)}
    if {config.response_cache.mode, *kept} <= _OFF:
        yield Problem("semantic_cache.mode", "needs response_cache.mode: on, whose answers it serves")
    if embedding.kind == "none":
        yield Problem("semantic_cache.embedding.kind", "must be minilm or http: without vectors nothing is alike")
    if embedding.kind == "http":
        for name in ("url", "model", "dimensions"):
            if getattr(embedding, name) is None:
                yield Problem(f"semantic_cache.embedding.{name}", "required where kind is http")
    if settings.path is not None and config.response_cache.encryption_key is not None:
        text = "must be left out beside response_cache.encryption_key: it holds questions in clear"
        yield Problem("semantic_cache.path", text)
    names = [category.name for category in settings.categories]
    for position, name in enumerate(names):
        if name in {"default", *names[:position]}:
            yield Problem(f"semantic_cache.categories[{position}].name", f"{name} is there already")


def _issuer(config: Config) -> Iterator[Problem]:
    issuer = config.tenants.jwt
    if issuer is not None and (issuer.jwks_url is None) == (issuer.jwks_file is None):
        yield Problem("tenants.jwt", "needs one of jwks_url and jwks_file")


def _shared_limits(config: Config) -> Iterator[Problem]:
    shared = config.tenants.shared_limits
    if shared is None:
        return
    if shared.ttl < (least := 3 * (shared.interval + shared.timeout)):
        text = f"must be at least {least:g} s, three times interval and timeout: else who is slow seems gone"
        yield Problem("tenants.shared_limits.ttl", text)
    if shared.tls_ca is not None and not shared.redis.get_secret_value().startswith("rediss:"):
        yield Problem("tenants.shared_limits.tls_ca", "needs a rediss:// URL")


def _bounds(config: Config) -> Iterator[Problem]:
    limits, upstream, tokens = config.limits, config.upstream, config.tokens
    if config.listen.reuse_port and config.listen.port == 0:
        yield Problem("listen.reuse_port", "needs a fixed port: with port 0 each process would take another one")
    if config.listen.port == 0 and not _is_address(config.listen.host):
        yield Problem(
            "listen.host",
            "must be an address such as 127.0.0.1 with port 0: a name may stand for several, each with another port",
        )
    if limits.body_bytes > limits.total_body_bytes:
        yield Problem("limits.total_body_bytes", "must not be less than limits.body_bytes")
    if limits.head_bytes > limits.body_bytes:
        yield Problem("limits.head_bytes", "must not be more than limits.body_bytes")
    if tokens.inline_chars > limits.body_bytes:
        yield Problem("tokens.inline_chars", "must not be more than limits.body_bytes: no prompt is that long")
    if upstream.connect_timeout > upstream.first_byte_timeout:
        yield Problem("upstream.connect_timeout", "must not be more than upstream.first_byte_timeout")
    if upstream.cooldown > upstream.cooldown_max:
        yield Problem("upstream.cooldown", "must not be more than upstream.cooldown_max")
    if tokens.wait >= upstream.first_byte_timeout:
        yield Problem("tokens.wait", "must be less than upstream.first_byte_timeout")
    cost = config.routing.cost
    if cost.recompute_weight_idle > cost.recompute_weight_full:
        yield Problem("routing.cost.recompute_weight_idle", "must not be more than recompute_weight_full")
    held = sum(worker.kv_blocks or 0 for worker in config.workers)
    if held > config.index.max_blocks:
        yield Problem("index.max_blocks", f"must be at least {held}: the workers' kv_blocks add up to that")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
