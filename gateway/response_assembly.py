"""The response cache that a configuration asks for."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256

from cache.kv_codec import SealUnavailableError
from cache.redis_settings import RedisSettings
from cache.response_cache import ResponseCache
from cache.response_entry import EntryKeys
from cache.response_stores import ResponseStores, open_response_cache
from cache.store import StoreError
from gateway.cached_call import CachingSettings
from gateway.config import Config, ConfigError, Problem
from gateway.config.response_cache import ResponseTtls, TenantResponses
from gateway.routes import Kind
from policies.response_freshness import FreshnessRules

_SECTION = "response_cache"
_STORES = ("memory", "disk", "redis", "encryption_key", "tenant_share", "max_entry")
"""Settings that stay as they were opened."""
_THREADS = 4
"""That ask disk and Redis."""


@dataclass(frozen=True, slots=True)
class KeptResponses:
    """The cache, and the threads that ask its slower stores."""

    cache: ResponseCache
    executor: ThreadPoolExecutor

    def close(self) -> None:
        """Write what waits, for a while; for a thread."""
        self.executor.shutdown(wait=False, cancel_futures=True)
        self.cache.close()


def is_wanted(config: Config) -> bool:
    """Is anybody's answer to be kept?"""
    return config.response_cache.mode == "on" or any(each.mode == "on" for each in _tenants(config))


def _tenants(config: Config) -> list[TenantResponses]:
    members = config.tenants.members
    return [tenant.cache.responses for tenant in members] + [
        model.cache.responses for tenant in members for model in tenant.per_model
    ]


def out_of_date(opened: Config, config: Config) -> list[str]:
    """Settings of stores that were opened for another configuration than this one."""
    names = [name for name in _STORES if getattr(opened.response_cache, name) != getattr(config.response_cache, name)]
    if "tenant_share" not in names and bool(opened.tenants.members) != bool(config.tenants.members):
        names.append("tenant_share")
    if opened.response_cache.redis is not None and longest_use(config) > longest_use(opened):
        names.append("ttl")  # Redis drops what nobody was to use any more
    return names


def open_responses(config: Config) -> KeptResponses | None:
    """None where no answers are kept. Blocks on disk. Raises ConfigError where a store cannot be used."""
    if not is_wanted(config):
        return None
    settings = config.response_cache
    redis = None
    if settings.redis is not None:
        redis = RedisSettings(
            url=settings.redis.url.get_secret_value(),
            prefix=settings.redis.prefix,
            timeout=settings.redis.timeout,
            ttl=max(longest_use(config), 1.0),
        )
    share = settings.tenant_share if config.tenants.members else None
    disk_bytes = 0 if settings.disk is None else settings.disk.size
    stores = ResponseStores(
        memory_bytes=settings.memory,
        disk=None if settings.disk is None else settings.disk.path,
        disk_bytes=disk_bytes,
        redis=redis,
        tenant_bytes=None if share is None else round(share * settings.memory),
        tenant_disk_bytes=None if share is None else round(share * disk_bytes),
        most_entry_bytes=settings.max_entry,
    )
    try:
        keys = None
        if settings.encryption_key is not None:
            keys = EntryKeys(sha256(settings.encryption_key.get_secret_value().encode()).digest())
        return KeptResponses(open_response_cache(stores, keys), ThreadPoolExecutor(_THREADS, "answers"))
    except SealUnavailableError as error:
        raise ConfigError("configuration", [Problem(f"{_SECTION}.encryption_key", str(error))]) from None
    except StoreError as error:
        raise ConfigError("configuration", [Problem(_SECTION, str(error))]) from None


def longest_use(config: Config) -> float:
    """Seconds for which any answer is of use to anybody, fresh or stale."""
    settings = config.response_cache
    ttls = [
        settings.ttl,
        *_by_route(settings.ttl_by_route).values(),
        *(each.ttl for each in _tenants(config) if each.ttl is not None),
    ]
    return max(ttls) + max(settings.stale_while_revalidate, settings.stale_if_error)


def _by_route(ttls: ResponseTtls) -> dict[Kind, float]:
    said = {
        Kind.CHAT: ttls.chat,
        Kind.COMPLETION: ttls.completion,
        Kind.RESPONSES: ttls.responses,
        Kind.MESSAGES: ttls.messages,
        Kind.EMBEDDING: ttls.embedding,
    }
    return {kind: ttl for kind, ttl in said.items() if ttl is not None}


def caching_settings(config: Config) -> CachingSettings:
    """How requests are answered from it."""
    settings = config.response_cache

    def rules(ttl: float) -> FreshnessRules:
        return FreshnessRules(
            ttl=ttl,
            stale_while_revalidate=settings.stale_while_revalidate,
            stale_if_error=settings.stale_if_error,
        )

    return CachingSettings(
        rules(settings.ttl),
        enabled=settings.mode == "on",
        by_route={kind: rules(ttl) for kind, ttl in _by_route(settings.ttl_by_route).items()},
        max_entry=settings.max_entry,
        lookup_timeout=settings.lookup_timeout,
        coalesce=settings.coalesce,
        coalesce_wait=settings.coalesce_wait,
        pace=settings.pace,
        by_credentials=any(worker.forward_client_key for worker in (*config.workers, *config.discovery.dns)),
    )
