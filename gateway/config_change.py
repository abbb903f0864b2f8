"""What lies between two configurations: which settings only a restart takes up, and what can go on as it is."""

from __future__ import annotations

from typing import Final

from gateway.config import Config

_SOCKETS: Final = (("listen", ("host", "port", "backlog", "reuse_port", "tls")), ("admin", ("host", "port")))


def needs_restart(opened: Config, after: Config) -> list[str]:
    """Settings of sockets that differ from those they were opened with, and that only a restart takes up."""
    return [
        f"{section}.{name}"
        for section, names in _SOCKETS
        for name in names
        if getattr(getattr(opened, section), name) != getattr(getattr(after, section), name)
    ]


def same_collector(before: Config, after: Config) -> bool:
    """Do spans go where they went?"""
    return before.telemetry.model_copy(update={"sample": after.telemetry.sample}) == after.telemetry
