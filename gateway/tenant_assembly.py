"""From settings, keys and the salt key to tenants. Reads the two files that the settings name, and nothing else."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from gateway.api_keys import KeyDigest, key_id, read_digest
from gateway.config import Config, ConfigError, JwtIssuer, Problem, Tenant, TenantModel
from gateway.config.response_cache import TenantResponses
from gateway.config.semantic_cache import TenantSemantic
from gateway.config.tenants import Slo, TenantCaps, TenantKv, TenantRates
from gateway.jwt_tenants import JwtVerifier
from gateway.keys_file import read_keys
from gateway.kv_epochs import read_epochs
from gateway.salt_key import default_folder, kept_salt_key
from gateway.tenancy import Tenancy, TenantRules
from policies.kv_policy import NO_KV_POLICY, KvPolicy
from policies.tenant import CachePolicy, Caps, Priority, Rates, ResponsePolicy, SemanticRules, TenantPolicy

log = logging.getLogger(__name__)


def tenancy_of(
    config: Config, now: float, *, before: Tenancy | None = None, environment: Mapping[str, str] = os.environ
) -> Tenancy | None:
    """The tenants of a configuration; None where it has none. What those of `before` have used still counts.

    Raises:
        ConfigError: A file that it names cannot be used. Nothing was changed in `before`.
    """
    settings = config.tenants
    if not settings.members:
        return None
    keys = keys_of(config)
    if settings.salt_key is not None:
        salt_key = settings.salt_key.get_secret_value().encode()
    else:
        salt_key = kept_salt_key(state_folder(config, environment))
    issuer = _issuer(settings.jwt, None if before is None else before.issuer)
    epochs = read_epochs(state_folder(config, environment))
    return Tenancy(
        map(rules_of, settings.members), keys,
        salt_key=salt_key, now=now, before=before, issuer=issuer, kv_epochs=epochs,
    )  # fmt: skip


def state_folder(config: Config, environment: Mapping[str, str] = os.environ) -> Path:
    """Where a gateway with tenants keeps what must outlive it."""
    return config.tenants.state_dir or default_folder(environment)


def _issuer(settings: JwtIssuer | None, before: JwtVerifier | None) -> JwtVerifier | None:
    """The same one as long as its settings stay. Another one knows the keys that were fetched from the same place: the
    issuer may be away just now. A file is read each time.
    """
    if settings is None:
        return None
    verifier = before
    if verifier is None or verifier.settings != settings:
        try:
            verifier = JwtVerifier(settings)
        except ImportError:
            text = "needs a library that is not installed: pip install 'prefixgate[jwt]'"
            raise ConfigError("configuration", [Problem("tenants.jwt", text)]) from None
        if before is not None and before.data is not None and before.settings.jwks_url == settings.jwks_url:
            with suppress(ValueError):  # none that may be used any more
                verifier.take_up(before.data)
    if settings.jwks_file is not None:
        try:
            verifier.take_up(settings.jwks_file.read_bytes())
        except (OSError, ValueError) as error:
            text = f"cannot be used: {error.strerror if isinstance(error, OSError) else error}"
            raise ConfigError(str(settings.jwks_file), [Problem("tenants.jwt.jwks_file", text)]) from None
    return verifier


def keys_of(config: Config) -> Mapping[KeyDigest, str]:
    """Names of tenants by the digests of their keys, from the configuration and the file of keys. Raises ConfigError
    where one key belongs to two tenants.
    """
    settings = config.tenants
    keys = {read_digest(key.get_secret_value()): tenant.name for tenant in settings.members for key in tenant.keys}
    if settings.keys_file is None:
        return keys
    names = {tenant.name for tenant in settings.members}
    for entry in read_keys(settings.keys_file):
        digest = read_digest(entry.digest)
        if entry.tenant not in names:
            log.warning("tenants: key %s is of %s, which is no tenant: it opens nothing", key_id(digest), entry.tenant)
        elif keys.setdefault(digest, entry.tenant) != entry.tenant:
            text = f"key {key_id(digest)} of {entry.tenant} is one of {keys[digest]} in the configuration"
            raise ConfigError(str(settings.keys_file), [Problem("tenants.keys_file", text)])
    return keys


def rules_of(tenant: Tenant) -> TenantRules:
    """What the settings of one tenant mean."""
    policy = TenantPolicy(
        name=tenant.name,
        priority=Priority(tenant.priority),
        weight=tenant.weight,
        slo_ttft_s=tenant.slo.ttft,
        slo_tpot_s=tenant.slo.tpot,
        caps=_caps(tenant.caps, Caps()),
        cache=CachePolicy(
            kv=_kv(tenant.cache.kv, NO_KV_POLICY),
            responses=_responses(tenant.cache.responses, ResponsePolicy()),
            semantic=_semantic(tenant.cache.semantic, SemanticRules(), ""),
        ),
    )
    return TenantRules(
        policy,
        by_model={model.name: _for_model(policy, model) for model in tenant.per_model},
        rates=_rates(tenant.rates),
        rates_by_model={model.name: _rates(model.rates) for model in tenant.per_model if model.rates != TenantRates()},
        models=None if tenant.models is None else frozenset(tenant.models),
        paths=None if tenant.paths is None else tuple(path.encode() for path in tenant.paths),
        group=tenant.cache.group,
        kv_epoch=tenant.kv_epoch,
    )


def _for_model(policy: TenantPolicy, model: TenantModel) -> TenantPolicy:
    slo: Slo = model.slo
    return TenantPolicy(
        name=policy.name,
        priority=policy.priority if model.priority is None else Priority(model.priority),
        weight=policy.weight,
        slo_ttft_s=policy.slo_ttft_s if slo.ttft is None else slo.ttft,
        slo_tpot_s=policy.slo_tpot_s if slo.tpot is None else slo.tpot,
        caps=_caps(model.caps, policy.caps),
        cache=CachePolicy(
            kv=_kv(model.cache.kv, policy.cache.kv),
            responses=_responses(model.cache.responses, policy.cache.responses),
            semantic=_semantic(model.cache.semantic, policy.cache.semantic, model.name),
        ),
    )


def _responses(settings: TenantResponses, otherwise: ResponsePolicy) -> ResponsePolicy:
    return ResponsePolicy(
        enabled=otherwise.enabled if settings.mode is None else settings.mode == "on",
        ttl_s=otherwise.ttl_s if settings.ttl is None else settings.ttl,
    )


def _semantic(settings: TenantSemantic, otherwise: SemanticRules, model: str) -> SemanticRules:
    differs = settings.delta is not None or settings.ttl is not None or settings.mode is not None
    return SemanticRules(
        mode=otherwise.mode if settings.mode is None else settings.mode,
        delta=otherwise.delta if settings.delta is None else settings.delta,
        ttl_s=otherwise.ttl_s if settings.ttl is None else settings.ttl,
        group=model if differs else "",
    )


def _caps(caps: TenantCaps, otherwise: Caps) -> Caps:
    return Caps(
        max_tokens=otherwise.max_tokens if caps.max_tokens is None else caps.max_tokens,
        n=otherwise.n if caps.n is None else caps.n,
    )


def _kv(kv: TenantKv, otherwise: KvPolicy) -> KvPolicy:
    return KvPolicy(
        ttl=otherwise.ttl if kv.ttl is None else kv.ttl,
        host=otherwise.host if kv.host is None else kv.host,
        disk=otherwise.disk if kv.disk is None else kv.disk,
        redis=otherwise.redis if kv.redis is None else kv.redis,
        pin=otherwise.pin if kv.pin is None else kv.pin,
    )


def _rates(rates: TenantRates) -> Rates:
    return Rates(rates.requests_per_minute, rates.tokens_per_minute, rates.concurrent)
