"""Workers behind a DNS name: A and AAAA records, or SRV records with their ports, weights and priorities."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from ipaddress import ip_address
from typing import Final, Literal

import dns.asyncbackend
import dns.asyncresolver
import dns.exception
import dns.rdatatype
import dns.resolver
from dns.rdtypes.IN.A import A
from dns.rdtypes.IN.AAAA import AAAA
from dns.rdtypes.IN.SRV import SRV

from backends.discovery.base import Found
from backends.discovery.dns_answers import Change, LastKnown, Service, best_services, from_addresses, from_services

log = logging.getLogger(__name__)

_SHORTEST_PAUSE: Final = 1.0
_FAILURES: Final = (dns.exception.DNSException, OSError, ValueError, TimeoutError)
_MOST_TARGETS: Final = 1024
_LOOKUPS_AT_ONCE: Final = 16
_TRY_SECONDS: Final = 2.0


class DnsDiscovery:
    """Looks a name up every `interval` seconds, sooner where the records' TTL is shorter."""

    def __init__(
        self,
        name: str,
        *,
        record: Literal["A", "SRV"] = "A",
        port: int = 0,
        interval: float = 10.0,
        timeout: float = 5.0,
        grace: float = 60.0,
        shortest: float = _SHORTEST_PAUSE,
        nameserver: str | None = None,
        nameserver_port: int = 53,
        known: frozenset[Found] = frozenset(),
    ) -> None:
        """Times are seconds. `port` is that of the workers, for `A`. A name without records is believed after `grace`.
        With a `nameserver` of its own (a name or an address) the targets of SRV records are looked up there too, as
        the system may not know them; else whoever connects resolves them. `known` was found there before.
        """
        self._name = name
        self._record = record
        self._port = port
        self._interval = interval
        self._timeout = timeout
        self._shortest = min(shortest, interval)
        self._nameserver = nameserver
        self._nameserver_port = nameserver_port
        self._known = LastKnown(grace, known)
        self._by_type: dict[dns.rdatatype.RdataType, tuple[str, ...]] = {}
        self._backend = dns.asyncbackend.get_backend("asyncio")

    async def watch(self) -> AsyncIterator[frozenset[Found]]:
        """See `Discovery`; never ends. The first set comes with the first lookup; where that fails it is what was known
        before.
        """
        told: frozenset[Found] | None = None
        while True:
            pause = await self._look()
            if self._known.found != told:
                told = self._known.found
                yield told
            await asyncio.sleep(pause)

    async def _look(self) -> float:
        """One lookup; the seconds until the next."""
        pause = self._interval
        try:
            # The resolver keeps its own time; this is for what it does not count.
            async with asyncio.timeout(2 * self._timeout + 1):
                resolver = await self._resolver()
                found, ttl = await (self._services(resolver) if self._record == "SRV" else self._hosts(resolver))
        except _FAILURES as error:
            self._say(self._known.failed(), _reason(error))
        else:
            pause = min(pause, max(ttl, self._shortest)) if found else pause
            self._say(self._known.answered(found, asyncio.get_running_loop().time()))
        return pause

    async def _resolver(self) -> dns.asyncresolver.Resolver:
        """Made anew each time: the system's settings may have changed, and a name server's address too."""
        if self._nameserver is None:
            resolver = dns.asyncresolver.Resolver()
        else:
            resolver = dns.asyncresolver.Resolver(configure=False)
            resolver.nameservers = [await _address(self._nameserver)]
            resolver.port = self._nameserver_port
        resolver.timeout = min(_TRY_SECONDS, self._timeout)
        resolver.lifetime = self._timeout
        return resolver

    async def _hosts(self, resolver: dns.asyncresolver.Resolver) -> tuple[frozenset[Found], float]:
        if _is_address(self._name):
            return from_addresses([self._name], self._port), self._interval
        addresses, ttl = await self._addresses(resolver, self._name, self._by_type)
        return from_addresses(addresses, self._port), ttl

    async def _services(self, resolver: dns.asyncresolver.Resolver) -> tuple[frozenset[Found], float]:
        answer = await self._ask(resolver, self._name, dns.rdatatype.SRV)
        if answer is None:
            return frozenset(), self._interval
        services = [
            Service(each.priority, each.weight, each.port, each.target.to_text(omit_final_dot=True).removesuffix("."))
            for each in answer
            if isinstance(each, SRV)
        ]
        ttl = float(answer.chaining_result.minimum_ttl)
        if self._nameserver is None:
            return from_services(services), ttl
        hosts = await self._targets(resolver, best_services(services))
        return from_services(services, hosts), ttl

    async def _targets(self, resolver: dns.asyncresolver.Resolver, services: list[Service]) -> dict[str, str]:
        """An address for each target; one that cannot be looked up keeps the address it had."""
        before = {each.name.rpartition(":")[0]: each.host for each in self._known.found}
        gate = asyncio.Semaphore(_LOOKUPS_AT_ONCE)
        hosts: dict[str, str] = {}

        async def look(target: str) -> None:
            async with gate:
                try:
                    addresses, _ = await self._addresses(resolver, target, {})
                except _FAILURES:
                    addresses = [before[target]] if target in before else []
            if addresses:
                kept = before.get(target)
                hosts[target] = kept if kept in addresses and kept is not None else addresses[0]

        targets = sorted({service.target for service in services})[:_MOST_TARGETS]
        await asyncio.gather(*map(look, targets))
        if targets and not hosts:
            raise ValueError("none of its targets has an address")
        return hosts

    async def _addresses(
        self,
        resolver: dns.asyncresolver.Resolver,
        name: str,
        by_type: dict[dns.rdatatype.RdataType, tuple[str, ...]],
    ) -> tuple[list[str], float]:
        """IPv4 addresses, then IPv6 ones, and their TTL. Where one kind's lookup fails, the last ones of it, from
        `by_type`, stay; raises where both do, or one does and the other has none.
        """
        kinds = (dns.rdatatype.A, dns.rdatatype.AAAA)
        answers = await asyncio.gather(*(self._ask(resolver, name, kind) for kind in kinds), return_exceptions=True)
        ttl = self._interval
        failure: BaseException | None = None
        any_records = False
        for kind, answer in zip(kinds, answers, strict=True):
            if isinstance(answer, BaseException):
                failure = answer
                continue
            records = [] if answer is None else [each for each in answer if isinstance(each, (A, AAAA))]
            if answer is not None and records:
                any_records = True
                ttl = min(ttl, float(answer.chaining_result.minimum_ttl))
            by_type[kind] = tuple(sorted(each.address for each in records))
        if failure is not None and not any_records:
            raise failure
        return [address for kind in kinds for address in by_type.get(kind, ())], ttl

    async def _ask(
        self, resolver: dns.asyncresolver.Resolver, name: str, kind: dns.rdatatype.RdataType
    ) -> dns.resolver.Answer | None:
        """The answer, or None where the name or the type does not exist."""
        try:
            return await resolver.resolve(name, kind, lifetime=self._timeout, backend=self._backend)
        except (dns.resolver.NXDOMAIN, dns.resolver.NoAnswer):
            return None

    def _say(self, change: Change, reason: str = "") -> None:
        count = len(self._known.found)
        match change:
            case Change.FAILED:
                log.warning("%s: lookup failed, the %d workers known stay: %s", self._name, count, reason)
            case Change.EMPTY:
                stay = f"; the {count} workers known stay for a while" if count else ""
                log.warning("%s has no records%s", self._name, stay)
            case Change.GIVEN_UP:
                log.warning("%s still has no records: its workers are gone", self._name)
            case Change.RECOVERED:
                log.info("%s is found again: %d workers", self._name, count)
            case Change.NONE:
                pass


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


async def _address(host: str) -> str:
    if _is_address(host):
        return host
    found = await asyncio.get_running_loop().getaddrinfo(host, None)
    return str(found[0][4][0])


def _reason(error: BaseException) -> str:
    if isinstance(error, (dns.exception.Timeout, TimeoutError)):
        return "no answer in time"
    return str(error) or type(error).__name__
