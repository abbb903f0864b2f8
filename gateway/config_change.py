"""What lies between two configurations: which settings only a restart takes up, and what can go on as it is."""

from __future__ import annotations

from typing import Final

from gateway import response_assembly, semantic_assembly
from gateway.config import Config

_STORES: Final = ("memory", "disk", "redis", "encryption_key", "tenant_share", "max_entry")
"""Settings of the response cache's stores, which stay as they were opened."""


def needs_restart(before: Config, after: Config) -> list[str]:
    """Settings that have changed and that only a restart takes up: those of sockets and of open stores."""
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


def same_collector(before: Config, after: Config) -> bool:
    """Do spans go where they went?"""
    return before.telemetry.model_copy(update={"sample": after.telemetry.sample}) == after.telemetry
