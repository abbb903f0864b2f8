"""One worker as the gateway knows it, and a request's place on it. Synchronous and without a clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from backends.address import place
from backends.worker_status import Standing
from policies.breaker import NO_LIMITS, BreakerLimits, admits
from policies.latency_model import Prediction
from policies.prefill_queue import PrefillQueue
from policies.progress import Flight, ProgressRules, ProgressWatch
from policies.restore_route import PricedRun, TierPrice, priced, prices_of
from policies.routing import WorkerView, slow_start_share
from policies.types import Tier, TierRun, WorkerId


@dataclass(slots=True)
class Reservation:
    """One request's place on one worker, from the choice until `release`."""

    worker: Worker
    ticket: int
    generates: bool
    """Are tokens to come, by which the worker's progress can be told?"""
    streams: bool
    flight: Flight | None = None
    """What it shows of that progress; None until somebody looks."""
    pending: bool = True
    """No byte of the answer has come yet."""
    released: bool = False
    lacking: float = 0.0
    """Prompt tokens that it has to compute, where somebody counts them."""
    predicted: Prediction | None = None
    """How long it was thought to take; None where nobody asks."""


@dataclass(slots=True, eq=False)
class Worker:
    """One worker. What is configured changes only with the configuration; what is learnt belongs to the fleet."""

    id: WorkerId
    host: str
    port: int
    scheme: str = "http"
    source: str = "config"
    block_size: int = 16
    configured_models: tuple[str, ...] = ()
    max_model_len: int | None = None
    """As configured; None to believe what it says itself."""
    kv_blocks: int | None = None
    """As configured; None to believe what it says itself."""
    weight: float = 1.0
    slow_start: float = 0.0
    limits: BreakerLimits = NO_LIMITS
    publishes_events: bool = False
    prefill: PrefillQueue = field(default_factory=PrefillQueue)
    progress: ProgressWatch = field(default_factory=lambda: ProgressWatch(ProgressRules()))
    model_cards: tuple[dict[str, object], ...] = ()
    is_ours: bool = False
    """Does it say that it is a worker of this project?"""
    told_kv_blocks: int | None = None
    tiers: tuple[TierPrice, ...] = ()
    """What it tells of its slower tiers; `learn_tiers` changes it."""
    running: int | None = None
    waiting: int | None = None
    kv_used: float | None = None
    """Share of its KV cache that it last said is in use."""
    unseen_tokens: float = 0.0
    """Tokens that it was given to compute since then, less those of requests that have ended."""
    foreign: int = 0
    """Requests it has from others than this gateway, as far as its own count tells."""
    active: int = 0
    pending: int = 0
    served: int = 0
    ejections: int = 0
    """Times that it was put out."""
    failures: int = 0
    resting_until: float = 0.0
    ramp_from: float = -1e18
    """When it joined, or came back: from then on it starts slowly."""
    probe_failures: int = 0
    probe_successes: int = 0
    unhealthy: bool = False
    hung: bool = False
    draining: bool = False
    failing: bool = False
    """Did the last request that ended fail?"""
    authority: bytes = b""
    _prices: dict[Tier, TierPrice] = field(init=False)
    name_only: WorkerView = field(init=False)
    """The view for policies that look at nothing but which workers there are."""

    def __post_init__(self) -> None:
        """Render once what every request to it needs."""
        self.authority = place(self.host, self.port).encode()
        self.weigh(self.weight)
        self.learn_tiers(self.tiers)

    def learn_tiers(self, tiers: Sequence[TierPrice]) -> None:
        """Take in what it says of its tiers now; nothing where it says nothing (any longer)."""
        self.tiers = tuple(tiers)
        self._prices = prices_of(self.tiers)

    @property
    def stores(self) -> dict[Tier, str]:
        """Its tiers that others can read too, and the names of the stores behind them."""
        return {price.tier: price.store for price in self.tiers if price.store}

    def priced(self, runs: Sequence[TierRun], n_tokens: int) -> tuple[int, tuple[PricedRun, ...]]:
        """Tokens of a prompt on its device, and what it could restore behind them, at its prices."""
        return priced(runs, self.block_size, n_tokens, self._prices)

    def weigh(self, weight: float) -> None:
        """Give it another weight."""
        self.weight = weight
        self.name_only = WorkerView(self.id, 0, 0.0, None, 0.0, weight)

    @property
    def url(self) -> str:
        """Its base URL."""
        return f"{self.scheme}://{self.authority.decode()}"

    @property
    def models(self) -> tuple[str, ...]:
        """The model names it answers to: as configured, else as it said itself."""
        return self.configured_models or tuple(str(card["id"]) for card in self.model_cards)

    @property
    def capacity(self) -> int | None:
        """Blocks that its KV cache holds, where that is known."""
        return self.kv_blocks or self.told_kv_blocks

    @property
    def longest_prompt(self) -> int | None:
        """Tokens of the longest prompt it can hold, where that is known."""
        by_blocks = self.kv_tokens
        told = [length for card in self.model_cards if type(length := card.get("max_model_len")) is int]
        by_context = self.max_model_len or max(told, default=None)
        bounds = [bound for bound in (by_context, by_blocks) if bound]
        return min(bounds) if bounds else None

    def view(self, now: float) -> WorkerView:
        """Its state at this moment, frozen."""
        prefill = self.prefill
        queued = prefill.remaining(now) if prefill.total else 0.0
        return WorkerView(
            self.id,
            self.active + self.foreign,
            queued,
            prefill.rate,
            prefill.recent(now),
            self._share(now),
            prefill.restoring(now),
            self._room(),
        )

    def learn_kv_used(self, share: float | None) -> None:
        """Take in what it says of how full it is; None where it says nothing."""
        self.kv_used, self.unseen_tokens = share, 0.0

    @property
    def kv_share(self) -> float | None:
        """Share of its KV cache in use, by what it said and what it was given since; None where it says nothing."""
        tokens = self.kv_tokens
        if self.kv_used is None or not tokens:
            return self.kv_used
        return self.kv_used + self.unseen_tokens / tokens

    @property
    def kv_tokens(self) -> int | None:
        """Tokens that its KV cache holds, where that is known."""
        capacity = self.capacity
        return capacity * self.block_size if capacity else None

    def _room(self) -> float:
        tokens = self.kv_tokens
        return inf if self.kv_used is None or not tokens else (1.0 - self.kv_used) * tokens

    def load(self, now: float) -> WorkerView:
        """The same for policies that count requests only."""
        return WorkerView(self.id, self.active + self.foreign, 0.0, None, 0.0, self._share(now))

    def name(self, now: float) -> WorkerView:
        """The same for policies that look at names and weights only."""
        if now - self.ramp_from >= self.slow_start:
            return self.name_only
        return self.name_only._replace(weight=self._share(now))

    def _share(self, now: float) -> float:
        age = now - self.ramp_from
        return self.weight if age >= self.slow_start else self.weight * slow_start_share(age, self.slow_start)

    def has_room(self) -> bool:
        """Is one request more within its limits?"""
        return not self.limits.bounded or admits(self.limits, self.active, self.pending, self.active)

    def standing(self, now: float, *, ejected: bool) -> Standing:
        """May it be given requests, and if not, why?"""
        if self.draining:
            return Standing.DRAINING
        if not self.models:
            return Standing.WAITING
        if ejected:
            return Standing.HUNG if self.hung else Standing.EJECTED
        if self.unhealthy:
            return Standing.UNHEALTHY
        return Standing.RESTING if self.resting_until > now else Standing.READY
