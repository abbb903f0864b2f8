"""All guards as one question: may these two texts share an answer?"""

from __future__ import annotations

from typing import Final

from policies.guards.alignment import Pair
from policies.guards.base import Guard, Verdict
from policies.guards.content import ContentGuard
from policies.guards.contrasts import ContrastGuard
from policies.guards.forms import FormGuard
from policies.guards.language import LanguageGuard, LengthGuard
from policies.guards.literals import LiteralGuard
from policies.guards.modality import ModalityGuard
from policies.guards.names import NameGuard
from policies.guards.negation import NegationGuard
from policies.guards.numbers import DateGuard, NumberGuard
from policies.guards.order import OrderGuard
from policies.guards.profile import Profile
from policies.guards.quantities import QuantityGuard
from policies.guards.strength import LOOSE, REWORDED, SAME_TEXT, STRICT

GUARDS: Final[tuple[Guard, ...]] = (
    LengthGuard(), LanguageGuard(), NumberGuard(), DateGuard(), LiteralGuard(), NegationGuard(), QuantityGuard(),
    NameGuard(), ModalityGuard(), ContentGuard(), FormGuard(), ContrastGuard(), OrderGuard(),
)  # fmt: skip
"""All there are, the cheap ones first."""

_NO_PROFILE: Final = Verdict(same=False, guard="profile", reason="missing")
_NO_GUARDS: Final = Verdict(same=False, guard="guards", reason="none")
_FAILED: Final = "failed"
_SAME: Final = {strength: Verdict(same=True, strength=strength) for strength in (LOOSE, REWORDED, STRICT, SAME_TEXT)}


def check(
    stored: Profile | None, new: Profile | None, guards: tuple[Guard, ...] = GUARDS, least: int = LOOSE
) -> Verdict:
    """Whether no guard objects. What is missing, and a guard that fails, refuses.

    `least` is the weakest strength asked for; `Verdict.strength` tells which rules it took, so that evidence can be
    gathered for each strength by itself. A refusal is that of the loosest rules.
    """
    if stored is None or new is None:
        return _NO_PROFILE
    if not guards:
        return _NO_GUARDS
    if _is_same_text(stored, new):
        return _SAME[SAME_TEXT]
    stored, new = _ordered(stored, new)
    refusal: Verdict | None = None
    for rules in (STRICT, REWORDED, LOOSE):
        if rules < least:
            break
        pair = Pair(stored, new, rules)
        if rules < STRICT and not pair.statement:
            continue
        refusal = _refusal(pair, guards)
        if refusal is None:
            return _SAME[rules]
    return refusal or _NO_GUARDS


def _is_same_text(stored: Profile, new: Profile) -> bool:
    """But for white space and how it ends; what is told and what is asked are two texts."""
    return stored.exact == new.exact != "" and {stored.end, new.end} != {"?", "."}


def _ordered(stored: Profile, new: Profile) -> tuple[Profile, Profile]:
    """The longer one first, whoever asked first: words are paired one after the other."""
    if (len(stored.items), stored.exact) < (len(new.items), new.exact):
        return new, stored
    return stored, new


def _refusal(pair: Pair, guards: tuple[Guard, ...]) -> Verdict | None:
    for guard in guards:
        try:
            reason = guard.refuses(pair)
        except Exception:  # noqa: BLE001 - a guard that fails is a miss, whatever went wrong
            reason = _FAILED
        if reason:
            return Verdict(same=False, guard=guard.name, reason=reason)
    return None


def objections(stored: Profile, new: Profile, rules: int = LOOSE) -> dict[str, str]:
    """Every guard that refuses, with its reason: for benchmarks, which ask what each one is good for."""
    if _is_same_text(stored, new):
        return {}
    pair = Pair(*_ordered(stored, new), rules)
    return {guard.name: reason for guard in GUARDS if (reason := guard.refuses(pair))}
