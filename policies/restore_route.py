"""What a worker would restore of a prompt and what it would compute, as seen by who chooses among workers.

A prompt's leading blocks lie on a worker's device, behind them perhaps runs of blocks on slower tiers. Restoring the
first k of those tokens costs

    the time its transfers have still to go on + sum over tiers (round trip + tokens × seconds/token)

and leaves the rest to compute, each token at the weight that computing has while the fleet is as full as it is. That is
the worker's own price of a restore (`restore_price`), by what the worker tells of its tiers; so what is predicted here
is what it will do. It decides by itself, however: a prediction that is wrong costs a better choice, never an answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Final, NamedTuple

from policies.types import Tier, TierRun

LONGEST_STORE: Final = 128
"""Characters of a store's id; what is longer names none."""
_SLOWEST_ROUND_TRIP: Final = 600.0
_SLOWEST_TOKEN: Final = 1.0


class TierPrice(NamedTuple):
    """What a worker says that it takes to restore from one of its tiers."""

    tier: Tier
    round_trip_s: float
    s_per_token: float
    store: str = ""
    """Workers that name the same store on the same tier share what any of them has there; empty: nobody else's."""

    @property
    def credible(self) -> bool:
        """Can it be? Seconds that no tier takes, or a token for nothing, were not measured."""
        return (
            self.tier is not Tier.DEVICE
            and isfinite(self.round_trip_s)
            and 0.0 <= self.round_trip_s <= _SLOWEST_ROUND_TRIP
            and isfinite(self.s_per_token)
            and 0.0 < self.s_per_token <= _SLOWEST_TOKEN
        )


DEFAULT_HOST: Final = TierPrice(Tier.HOST, 0.005, 1e-5)
"""Of a worker that tells no price and yet has blocks on its host, such as a vLLM that offloads to the CPU: 128 KiB a
token (an 8B model) at 13 GB/s, half of what PCIe 4.0 ×16 carries, behind 5 ms. Of its other tiers nothing is known, and
what they hold counts as not there."""
_ON_DEVICE: Final = TierPrice(Tier.DEVICE, 0.0, 0.0)


class PricedRun(NamedTuple):
    """Consecutive tokens of a prompt on one tier, behind what is on the device, and what it takes to fetch them."""

    tokens: int
    price: TierPrice


class RestoreSplit(NamedTuple):
    """A prompt in three: on the device, restored, computed."""

    restored_tokens: int
    restore_s: float
    """Until they are there, earlier transfers of the same worker included; 0 where nothing is restored."""
    computed_tokens: int


def prices_of(told: Sequence[TierPrice]) -> dict[Tier, TierPrice]:
    """What to reckon with, by tier, from what a worker tells; nothing told leaves `DEFAULT_HOST`."""
    return {price.tier: price for price in told} if told else {Tier.HOST: DEFAULT_HOST}


def priced(
    runs: Sequence[TierRun], block_size: int, n_tokens: int, prices: Mapping[Tier, TierPrice]
) -> tuple[int, tuple[PricedRun, ...]]:
    """Tokens on the device, and the runs behind them, of a prompt of `n_tokens`. The last token is always computed. A
    tier without a price ends the chain: what lies behind needs what is there. Blocks on the device behind a run that
    has to be restored cost nothing: they are found once that is.
    """
    left = n_tokens - 1
    device = 0
    found: list[PricedRun] = []
    for at, (tier, blocks) in enumerate(runs):
        tokens = min(blocks * block_size, left)
        if tokens <= 0:
            break
        left -= tokens
        if at == 0 and tier is Tier.DEVICE:
            device = tokens
            continue
        price = _ON_DEVICE if tier is Tier.DEVICE else prices.get(tier)
        if price is None:
            break
        found.append(PricedRun(tokens, price))
    return device, tuple(found)


def best_split(
    n_tokens: int,
    device_tokens: int,
    runs: Sequence[PricedRun],
    *,
    rate: float,
    lack_weight: float = 1.0,
    wait_s: float = 0.0,
) -> RestoreSplit:
    """The cheapest way to come by a prompt of `n_tokens`, of which `device_tokens` are on the device and `runs` follow.

    `rate` is of prefill, in tokens/s; `lack_weight` is how much more a second of computing weighs than one of
    transfers; `wait_s` is how long earlier transfers still take. Within a run every token pays as much as the next, so
    only the ends of runs are looked at; a run that does not pay is taken where what lies behind makes up for it. To
    restore nothing is among the choices, so that it is never dearer than that. A tier's round trip is paid once.
    Linear in the runs.
    """
    left = n_tokens - device_tokens
    best, best_cost = RestoreSplit(0, 0.0, left), lack_weight * left
    tokens, seconds = 0, wait_s
    reached: set[Tier] = set()
    for run, price in runs:
        tokens += run
        seconds += run * price.s_per_token
        if price.tier not in reached:
            reached.add(price.tier)
            seconds += price.round_trip_s
        cost = seconds * rate + lack_weight * (left - tokens)
        if cost < best_cost:
            best, best_cost = RestoreSplit(tokens, seconds, left - tokens), cost
    return best
