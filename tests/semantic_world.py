"""A world of requests in which it is known whether an answer fits: for simulations of the semantic cache's decision.

Families of questions, Zipf-popular, each in a category. Some families have several *meanings* (negated, another number,
another name) whose texts are near-duplicates. A request asks for one meaning; the nearest entry in the cache may have
the same meaning, another of the same family, or be of another family altogether. 1 − similarity is log-normal for each
of these, and they overlap widely: by similarity alone nobody can tell them apart (near-duplicates that differ in a
negation or a number score 0.83 to 0.9997 on nine encoders). Guards let most of the same and few of the others pass.
"""

from __future__ import annotations

import random
from bisect import bisect
from dataclasses import dataclass, field, replace
from itertools import accumulate
from math import exp, log2
from typing import Final

from policies.semantic import Candidate, Choice, SemanticPolicy, SemanticSettings
from policies.semantic_bounds import Noise

CATEGORIES: Final = ("facts", "how-to", "support", "code")
THRESHOLDS: Final = (0.80, 0.85, 0.90, 0.95, 0.98)


@dataclass(frozen=True)
class World:
    """What may be wrong with it. The defaults are the clean one."""

    families: int = 1_500
    zipf: float = 1.0
    confusable: float = 0.25
    """Share of families with several meanings."""
    volatile: float = 0.03
    """Share of families whose answer depends on what no text shows: three in ten are wrong for the same meaning."""
    same: tuple[float, float] = (0.07, 0.7)
    """Median and spread (of the logarithm) of 1 − similarity to an entry of the same meaning."""
    other: tuple[float, float] = (0.10, 0.9)
    far: tuple[float, float] = (0.28, 0.25)
    pass_same: float = 0.9
    """Share that the guards let pass."""
    pass_other: float = 0.15
    pass_far: float = 0.3
    noise: Noise = field(default_factory=Noise)
    """Of labels."""
    confirmed: bool = False
    """Each label that says wrong is asked for once more."""
    stale: float = 0.0
    """Share of families whose answers change at half time."""
    nearer: float = 1.0
    """From half time on: distances to other meanings are multiplied by this, and thrice as many pass the guards."""
    attacked: float = 0.0
    """Share of families whose other meanings are nearer than 0.97 and pass every guard."""
    attack_at: float = 0.0
    """When these are asked for first, as a share of the run; before that they look like the others."""


SCENARIOS: Final = {
    "clean": World(),
    "better guards": World(pass_other=0.03, pass_far=0.05, volatile=0.005),
    "noise 2%": World(noise=Noise(0.02, 0.02)),
    "noise 5%": World(noise=Noise(0.05, 0.05)),
    "noise 5%, confirmed": World(noise=Noise(0.05, 0.05), confirmed=True),
    "answers change": World(stale=0.15),
    "others nearer": World(nearer=0.5),
    "adversarial": World(attacked=0.10),
    "adversarial, late": World(attacked=0.10, attack_at=0.5),
}


@dataclass
class Tally:
    """What came of one run."""

    requests: int = 0
    candidates: int = 0
    right: int = 0
    """Candidates whose answer fits: what one who knows everything would serve."""
    served: int = 0
    wrong: int = 0
    explored: int = 0
    by_threshold: dict[float, list[int]] = field(default_factory=dict)
    """Of the same candidates: served and wrong by a fixed threshold behind the same guards."""

    @property
    def error(self) -> float:
        """Wrong ÷ served."""
        return self.wrong / self.served if self.served else 0.0


class _Family:
    __slots__ = ("attacked", "category", "entries", "meanings", "version", "volatile")

    def __init__(self, category: str, meanings: int, *, volatile: bool, attacked: bool) -> None:
        self.category = category
        self.meanings = meanings
        self.volatile = volatile
        self.attacked = attacked
        self.version = 0
        self.entries: dict[int, list[tuple[str, int, float]]] = {}
        """By meaning: key, version of the answer, and when it was written."""


class Simulation:
    """One seed of a world, asked by one policy. An entry is written for what went to a worker, unless a comparison has
    just found that the cache has it.
    """

    def __init__(self, world: World, settings: SemanticSettings, seed: int) -> None:
        self.world = world
        self._random = random.Random(seed)
        noise = world.noise.confirmed() if world.confirmed else world.noise
        self.policy = SemanticPolicy(replace(settings, sources={"shadow": noise}))
        self.tally = Tally(by_threshold={threshold: [0, 0] for threshold in THRESHOLDS})
        self._families = [self._family() for _ in range(world.families)]
        self._weights = list(accumulate(1.0 / rank**world.zipf for rank in range(1, world.families + 1)))
        self._written = 0
        self._recent: list[tuple[str, _Family]] = []
        self._home: dict[str, tuple[_Family, int]] = {}

    def _family(self) -> _Family:
        draw = self._random.random
        attacked = draw() < self.world.attacked
        meanings = self._random.randint(2, 4) if draw() < self.world.confusable else 1
        return _Family(
            self._random.choices(CATEGORIES, (0.4, 0.3, 0.2, 0.1))[0],
            6 if attacked else meanings,
            volatile=draw() < self.world.volatile,
            attacked=attacked,
        )

    def run(self, requests: int) -> Tally:
        """So many requests, one a second."""
        for number in range(requests):
            if number == requests // 2:
                self._change()
            self._request(number, late=number >= requests // 2, attack=number >= requests * self.world.attack_at)
        self.tally.requests += requests
        return self.tally

    def _change(self) -> None:
        for family in self._families:
            family.version += self._random.random() < self.world.stale

    def _request(self, now: float, *, late: bool, attack: bool) -> None:
        draw = self._random.random
        family = self._families[bisect(self._weights, draw() * self._weights[-1])]
        meanings = family.meanings if attack or not family.attacked else 1
        meaning = min(int(-1.5 * log2(1.0 - draw())), meanings - 1) if meanings > 1 else 0
        candidate, right = self._nearest(family, meaning, now, late=late, attack=attack)
        if candidate is None or not candidate.guard:
            self._write(family, meaning, now)
            return
        tally = self.tally
        tally.candidates += 1
        tally.right += right
        for threshold, counted in tally.by_threshold.items():
            if candidate.similarity >= threshold:
                counted[0] += 1
                counted[1] += not right
        decision = self.policy.decide(candidate, draw(), now)
        if decision.choice is Choice.SERVE:
            tally.served += 1
            tally.wrong += not right
            return
        if decision.choice is Choice.EXPLORE:
            tally.explored += 1
            wrong = self._label(right)
            for entry in self.policy.observe(candidate, decision, wrong=wrong, source="shadow", now=now).drop:
                self._drop(entry)
            if not wrong:
                return  # the cache has this answer already
        self._write(family, meaning, now)

    def _nearest(
        self, family: _Family, meaning: int, now: float, *, late: bool, attack: bool
    ) -> tuple[Candidate | None, bool]:
        world, choice = self.world, self._random.choice
        best, entry, owner, right, passes = 0.0, None, family, False, 0.0
        held = family.entries.get(meaning)
        if held:
            entry = choice(held)
            best, passes = 1.0 - self._distance(*world.same), world.pass_same
            right = entry[1] == family.version and not (family.volatile and self._random.random() < 0.3)
        others = [each for other, each in family.entries.items() if other != meaning and each]
        if others:
            attacked = family.attacked and attack
            median, spread = (0.004, 0.8) if attacked else world.other
            similarity = 1.0 - self._distance(median * (world.nearer if late else 1.0), spread)
            if similarity > best:
                best, entry, right = similarity, choice(choice(others)), False
                passes = 1.0 if attacked else min(world.pass_other * (3 if late and world.nearer < 1 else 1), 1.0)
        similarity = 1.0 - self._distance(*world.far)
        if similarity > best and self._recent:
            key, owner = choice(self._recent)
            best, entry, right, passes = similarity, (key, 0, now), False, world.pass_far
        if entry is None:
            return None, False
        guard = int(self._random.random() < passes)
        return Candidate(entry[0], best, owner.category, guard, now - entry[2]), right

    def _distance(self, median: float, spread: float) -> float:
        return min(median * exp(spread * self._random.gauss(0.0, 1.0)), 1.0)

    def _label(self, right: bool) -> bool:
        wrong = self._one_label(right)
        return wrong and self._one_label(right) if self.world.confirmed else wrong

    def _one_label(self, right: bool) -> bool:
        noise = self.world.noise
        return self._random.random() < (noise.false_wrong if right else 1.0 - noise.false_correct)

    def _write(self, family: _Family, meaning: int, now: float) -> None:
        held = family.entries.setdefault(meaning, [])
        key = f"e{self._written}"
        self._written += 1
        self._home[key] = family, meaning
        held.append((key, family.version, now))
        if len(held) > 3:
            self.policy.forget(held.pop(0)[0])
        self._recent.append((key, family))
        if len(self._recent) > 64:
            self._recent.pop(0)

    def _drop(self, entry: str) -> None:
        family, meaning = self._home[entry]
        held = family.entries[meaning]
        held[:] = [each for each in held if each[0] != entry]
        self._recent = [each for each in self._recent if each[0] != entry]
