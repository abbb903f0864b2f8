"""Restore or recompute: how many leading chunks of a prompt are worth fetching from where they lie.

The cost of restoring the first k chunks is

    sum over tiers (round trip + bytes ÷ bandwidth) × (1 + margin)  +  recompute(the rest) × (1 + ρ)

ρ is the price of the queue behind: what is recomputed holds up others too, while transfers go on beside their steps.
The k of least cost is found by looking at each. k = 0 is among them, so that a restore is only chosen where it is
cheaper than to recompute everything even if transfers take as much longer as they did of late.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from policies.restore_speed import PrefillModel, TierSpeed, attended
from policies.types import Tier

__all__ = ["PROBE_AFTER", "PrefillModel", "RestorableChunk", "RestorePlan", "TierSpeed", "attended", "plan_restore"]

PROBE_AFTER: Final = 1.0
"""Seconds after which the speed of a tier that nobody uses is measured again."""
_PROBE_SHARE: Final = 0.25
"""Of the time that may go into that, as a tier is believed to be."""
_UNSURE: Final = 0.25
"""From this doubt on it is measured again as soon as that share allows."""


class RestorableChunk(NamedTuple):
    """One of the leading chunks of a prompt, and the fastest tier that has it."""

    tokens: int
    bytes: int
    tier: Tier


class RestorePlan(NamedTuple):
    """What to do for one prompt."""

    n_chunks: int
    """How many leading chunks to restore; 0: none."""
    n_tokens: int
    """Tokens in them."""
    restore_s: float
    """Expected time until they are here, without margin."""
    compute_s: float
    """Expected time to compute the rest, without ρ."""
    recompute_s: float
    """Expected time to compute everything."""
    cost: float
    """The cost by which it was chosen, with margin and ρ, in seconds."""
    deadline_s: float
    """Whoever has waited this long for the chunks has lost by it: the cost of computing what they would save."""
    probe: int | None
    """A chunk to read beside the request, which does not wait for it, for its tier has not been measured of late;
    otherwise nobody would learn that a tier has recovered. None where there is none."""


def plan_restore(
    chunks: Sequence[RestorableChunk],
    n_tokens: int,
    speeds: Mapping[Tier, TierSpeed],
    prefill: PrefillModel,
    now: float,
    *,
    rho: float = 0.0,
    context: int = 0,
) -> RestorePlan:
    """The cheapest for a prompt of which `context` tokens are on the device and `n_tokens` follow, the first of which
    are in `chunks`, in order. Tiers are read one after the other, each in one go, also where they alternate. A chunk
    whose tier has no speed ends what can be restored, and so does one that reaches past the last token but one:
    something must be computed to get at the next token. Linear in the chunks.

    Raises ValueError for a negative `rho`.
    """
    if not rho >= 0:
        raise ValueError(f"a price of {rho!r} for the queue")
    everything = prefill.seconds(n_tokens, context)
    best_k, best_tokens, best_wait, best_rest, best_cost = 0, 0, 0.0, everything, everything * (1 + rho)
    tokens, wait, safe_wait = 0, 0.0, 0.0
    used: set[Tier] = set()
    for k, chunk in enumerate(chunks, 1):
        speed = speeds.get(chunk.tier)
        tokens += chunk.tokens
        if speed is None or tokens >= n_tokens:
            break
        more = speed.seconds(chunk.bytes) - (speed.rtt if chunk.tier in used else 0.0)
        used.add(chunk.tier)
        wait += more
        safe_wait += more * (1 + speed.margin)
        rest = prefill.seconds(n_tokens - tokens, context + tokens)
        cost = safe_wait + rest * (1 + rho)
        if cost < best_cost:
            best_k, best_tokens, best_wait, best_rest, best_cost = k, tokens, wait, rest, cost
    return RestorePlan(
        n_chunks=best_k,
        n_tokens=best_tokens,
        restore_s=best_wait,
        compute_s=best_rest,
        recompute_s=everything,
        cost=best_cost,
        deadline_s=(everything - best_rest) * (1 + rho),
        probe=_probe(chunks, best_k, speeds, now),
    )


def _probe(
    chunks: Sequence[RestorableChunk], n_restored: int, speeds: Mapping[Tier, TierSpeed], now: float
) -> int | None:
    """The first chunk on a tier that the restore does not measure and that is unsure or was not measured for long."""
    measured = {chunk.tier for chunk in chunks[:n_restored]}
    for index in range(n_restored, len(chunks)):
        tier = chunks[index].tier
        speed = speeds.get(tier)
        if tier in measured or speed is None:
            continue
        measured.add(tier)
        pause = max(0.0 if speed.doubt > _UNSURE else PROBE_AFTER, speed.seconds(chunks[index].bytes) / _PROBE_SHARE)
        if now - speed.measured_at >= pause:
            return index
    return None
