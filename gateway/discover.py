"""Follows where workers are found, and keeps the fleet to it."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import TypeAlias

from backends.address import bracketed
from backends.discovery.base import Found
from backends.discovery.dns import DnsDiscovery
from backends.fleet import Fleet
from backends.worker_spec import FeedSpec, WorkerSpec
from gateway.assembly import spec_at
from gateway.config import DnsDiscovery as DnsSettings

log = logging.getLogger(__name__)


Place: TypeAlias = tuple[str, str, int | None]


def place_of(settings: DnsSettings) -> Place:
    """Where is looked: with another one of these other workers are found."""
    return settings.name, settings.record, settings.port


async def follow_discovery(
    settings: DnsSettings, fleet: Fleet, *, grace: float, known: MutableMapping[Place, frozenset[Found]]
) -> None:
    """Until cancelled. A worker that is found no longer has `grace` seconds for what it is at. `known`: what was found
    last in each place, for whoever follows it next.
    """
    place = place_of(settings)
    source = f"dns {settings.name}"
    discovery = DnsDiscovery(
        settings.name,
        record=settings.record,
        port=settings.port or 0,
        interval=settings.interval,
        timeout=settings.timeout,
        nameserver=settings.nameserver,
        nameserver_port=settings.nameserver_port,
        known=known.get(place, frozenset()),
    )
    async for found in discovery.watch():
        known[place] = found
        try:
            fleet.reconcile(source, [_spec(settings, each, source) for each in found], grace=grace)
        except Exception:  # what is found next may be better
            log.exception("%s: what was found could not be taken up", source)


def _spec(settings: DnsSettings, found: Found, source: str) -> WorkerSpec:
    host = bracketed(found.host)
    events = settings.kv_events
    feed = None
    if events is not None:
        replay = None if events.replay_port is None else f"tcp://{host}:{events.replay_port}"
        feed = FeedSpec(f"tcp://{host}:{events.port}", replay, events.topic, events.ranks)
    return spec_at(
        settings,
        found.name,
        found.host,
        found.port,
        source=source,
        uses_tls=settings.scheme == "https",
        feed=feed,
        weight=settings.weight * found.weight,
    )
