"""From the records of a DNS answer to workers, and what is believed when an answer fails to come. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from enum import Enum, auto
from typing import Final, NamedTuple

from backends.address import place
from backends.discovery.base import Found

_LEAST_WEIGHT: Final = 0.01
_LARGEST_WEIGHT: Final = 1000.0


class Service(NamedTuple):
    """One SRV record (RFC 2782)."""

    priority: int
    weight: int
    port: int
    target: str
    """Without the dot at its end."""


def from_addresses(addresses: Iterable[str], port: int) -> frozenset[Found]:
    """Workers behind A and AAAA records, all on one port."""
    return frozenset(Found(address, port) for address in addresses)


def best_services(services: Collection[Service]) -> list[Service]:
    """Those of the lowest priority number, which alone are to be used; none whose target is the root, which says that
    the service is not offered.
    """
    offered = [service for service in services if service.target]
    best = min((service.priority for service in offered), default=0)
    return sorted({service for service in offered if service.priority == best})


def from_services(services: Collection[Service], hosts: Mapping[str, str] | None = None) -> frozenset[Found]:
    """Workers behind SRV records. Weights count relative to their mean, since publishers write 100 divided by the
    number of workers, the same number each, or nothing; 0 becomes a very small weight, as RFC 2782 has it.

    `hosts` are addresses by target, where somebody has looked them up; then a target without one is left out. The
    name is the target's in any case: it stays when the address changes.
    """
    best = best_services(services)
    if hosts is not None:
        best = [service for service in best if service.target in hosts]
    mean = sum(service.weight for service in best) / len(best) if best else 0.0
    found: dict[str, Found] = {}
    for service in best:
        share = round(service.weight / mean, 3) if mean else 1.0
        name = place(service.target, service.port)
        host = service.target if hosts is None else hosts[service.target]
        found[name] = Found(host, service.port, min(max(share, _LEAST_WEIGHT), _LARGEST_WEIGHT), name)
    return frozenset(found.values())


class Change(Enum):
    """What an answer has changed, for a log line."""

    NONE = auto()
    FAILED = auto()
    """Lookups have begun to fail."""
    EMPTY = auto()
    """The name has begun to have no records; the last set stays for a while."""
    GIVEN_UP = auto()
    """It had none for so long that the last set is dropped."""
    RECOVERED = auto()
    """There are records again."""


class LastKnown:
    """The set that is believed. A lookup that fails changes nothing; a name without records is believed after
    `grace` seconds, for an empty answer is more often a slip of those who publish it than the end of all workers.
    """

    def __init__(self, grace: float, found: frozenset[Found] = frozenset()) -> None:
        self.found = found
        self._grace = grace
        self._empty_since: float | None = None
        self._state = Change.NONE

    def answered(self, found: frozenset[Found], now: float) -> Change:
        """An answer, perhaps without records."""
        if found:
            self.found = found
            self._empty_since = None
            return self._become(Change.NONE)
        if self._empty_since is None:
            self._empty_since = now
        if now - self._empty_since < self._grace and self.found:
            return self._become(Change.EMPTY)
        had, self.found = bool(self.found), frozenset()
        return self._become(Change.GIVEN_UP if had or self._state is Change.GIVEN_UP else Change.EMPTY)

    def failed(self) -> Change:
        """No answer, or none that can be read."""
        return self._become(Change.FAILED)

    def _become(self, state: Change) -> Change:
        before, self._state = self._state, state
        if before is state:
            return Change.NONE
        return Change.RECOVERED if state is Change.NONE else state
