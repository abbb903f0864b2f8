"""What is followed outside, as the configuration says: where workers are found, an issuer's keys, other gateways."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from backends.discovery.base import Found
from backends.fleet import Fleet
from gateway.background import BackgroundTasks, cancelled
from gateway.config import Config
from gateway.config.workers import Discovery
from gateway.discover import Place, follow_discovery, place_of
from gateway.jwks import follow_jwks
from gateway.jwt_tenants import JwtVerifier
from gateway.shared_limits import LimitSharing
from gateway.tenancy import Tenancy
from policies.shared_limits import Limiters


class Followers:
    """A task for each source; one that another configuration names no longer is followed no longer."""

    def __init__(self, fleet: Fleet, tenancy: Callable[[], Tenancy | None], background: BackgroundTasks) -> None:
        """`tenancy` as it is at each moment."""
        self.sharing: LimitSharing | None = None
        self._fleet = fleet
        self._tenancy = tenancy
        self._background = background
        self._clock = asyncio.get_running_loop().time
        self._discovery: Discovery | None = None
        self._discoveries: set[asyncio.Task[None]] = set()
        self._found: dict[Place, frozenset[Found]] = {}
        self._issuer: JwtVerifier | None = None
        self._following: asyncio.Task[None] | None = None
        self._sharing: asyncio.Task[None] | None = None

    def configure(self, config: Config) -> None:
        """Follow what this configuration says, and nothing else. Its tenants are in force already."""
        if config.discovery != self._discovery:
            self._discover(config.discovery)
        self._follow_issuer()
        self._share_limits(config)

    def _discover(self, discovery: Discovery) -> None:
        """Look for workers where the configuration says, and nowhere else."""
        self._discovery = discovery
        for task in self._discoveries:
            task.cancel()
        named = {f"dns {source.name}" for source in discovery.dns}
        for gone in {member.spec.source for member in self._fleet.members.values()} - named:
            if gone.startswith("dns "):
                self._fleet.reconcile(gone, [], grace=discovery.drain)
        # A name server that fails just now takes no workers away.
        places = {place_of(source) for source in discovery.dns}
        known = self._found = {place: found for place, found in self._found.items() if place in places}
        self._discoveries = {
            self._background.start(
                follow_discovery(source, self._fleet, grace=discovery.drain, known=known), f"dns {source.name}"
            )
            for source in discovery.dns
        }

    def _follow_issuer(self) -> None:
        """Read the keys of the tenants' issuer where it publishes them, and of no other."""
        tenancy = self._tenancy()
        issuer = None if tenancy is None else tenancy.issuer
        if issuer is self._issuer:
            return
        self._issuer = issuer
        if self._following is not None:
            self._following.cancel()
            self._following = None
        if issuer is not None and issuer.settings.jwks_url is not None:
            following = follow_jwks(issuer, issuer.settings.jwks_url, issuer.settings.refresh)
            self._following = self._background.start(following, "the issuer's keys")

    def _share_limits(self, config: Config) -> None:
        """Hold the tenants' limits together with other gateways, as the configuration says."""
        settings, before, running = config.tenants.shared_limits, self.sharing, self._sharing
        if settings == (None if before is None else before.settings):
            return
        self.sharing = None if settings is None else LimitSharing(settings, self._limiters, self._clock)
        self._sharing = self._background.start(_share(before, running, self.sharing), "the sharing of limits")

    def _limiters(self) -> Limiters:
        tenancy = self._tenancy()
        return {} if tenancy is None else tenancy.limiters


async def _share(before: LimitSharing | None, running: asyncio.Task[None] | None, after: LimitSharing | None) -> None:
    """One after the other: the limits are theirs both."""
    if running is not None:
        await cancelled([running])
    if before is not None:
        await before.close()
    if after is not None:
        await after.run()
