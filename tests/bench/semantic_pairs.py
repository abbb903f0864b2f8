"""What the guards of the semantic cache let pass: `python -m tests.bench semantic_pairs [--embedding FOLDER]`.

For each set: its pairs that must be refused and how many of them were served, by the guards of each strength; its pairs
that mean the same and how many of those were served (recall); the same for MiniLM's cosine alone, and for both
together. Then every guard: how many wrong pairs it refuses, how many it alone refuses, and how many right ones it alone
keeps from being served. Then pairs of different rows of a published set, all of them listed that were served: some do
mean the same. Last, texts with one change of meaning each, against the text and against its paraphrase.

GPTCache's rows are split in two: word lists were written with rows 0, 2, 4, ... in view; of the others, only words that
stood unexplained were looked at, late.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from policies.guards.check import GUARDS, check, objections
from policies.guards.profile import Profile
from policies.guards.reading import profile
from policies.guards.strength import LOOSE, NAMES, SAME_TEXT
from tests.semantic_mutations import mutate
from tests.semantic_pairs import (
    Pair,
    blind_pairs,
    checklist_pairs,
    cross_pairs,
    everyday_blind_pairs,
    everyday_pairs,
    gptcache_pairs,
    own_pairs,
    published_folder,
    unseen_pairs,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

SHOWN = [name for name, strength in NAMES.items() if strength < SAME_TEXT]
Cosine = Callable[[str, str], float]
"""Similarity of two texts by an embedding."""
SERVED_BY_COSINE = 0.9
SERVED_WITH_GUARDS = 0.7
_BATCH = 64


@dataclass
class Served:
    """Pairs of a set that one rule serves."""

    wrong: int = 0
    right: int = 0

    def count(self, pair: Pair, *, served: bool) -> None:
        """Takes one pair down."""
        self.right += served and pair.same
        self.wrong += served and not pair.same


@dataclass
class Tally:
    """One set of pairs, as the guards see it."""

    wrong: int = 0
    right: int = 0
    guards: dict[str, Served] = field(default_factory=lambda: {name: Served() for name in SHOWN})
    """By strength, each with what is stronger."""
    cosine: Served = field(default_factory=Served)
    both: Served = field(default_factory=Served)
    """What guards pass and the embedding holds to be near."""
    refused: Counter[str] = field(default_factory=Counter)
    """Wrong pairs that a guard refuses."""
    alone: Counter[str] = field(default_factory=Counter)
    """Wrong pairs that no other guard refuses."""
    lost: Counter[str] = field(default_factory=Counter)
    """Right pairs that no other guard refuses."""

    @property
    def recall(self) -> float:
        """Share of the pairs that mean the same which the guards let pass."""
        return self.guards["loose"].right / self.right if self.right else float("nan")


def tally(pairs: Sequence[Pair], cosine: Cosine | None = None) -> Tally:
    """Asks every guard about every pair."""
    made = Tally()
    for pair in pairs:
        stored, new = profile(pair.stored), profile(pair.new)
        against = objections(stored, new)
        made.right += pair.same
        made.wrong += not pair.same
        strength = check(stored, new).strength
        for name, served in made.guards.items():
            served.count(pair, served=strength >= NAMES[name])
        if cosine is not None:
            near = cosine(pair.stored, pair.new)
            made.cosine.count(pair, served=near >= SERVED_BY_COSINE)
            made.both.count(pair, served=strength > 0 and near >= SERVED_WITH_GUARDS)
        alone = list(against) if not strength and len(against) == 1 else ()
        if pair.same:
            made.lost.update(alone)
        else:
            made.refused.update(list(against))
            made.alone.update(alone)
    return made


def _by_rule(made: Tally, *, cosine: bool) -> dict[str, Served]:
    near = {f"cosine>={SERVED_BY_COSINE}": made.cosine, f"guards, cosine>={SERVED_WITH_GUARDS}": made.both}
    return made.guards | near if cosine else made.guards


def show(sets: Mapping[str, Tally], *, cosine: bool) -> None:
    """Prints both tables."""
    rules = list(_by_rule(Tally(), cosine=cosine))
    print(f"{'set':28}{'must refuse':>12}{'same':>7}" + "".join(f"{rule:>22}" for rule in rules))
    print(f"{'':47}" + f"{'wrong':>10}{'recall':>12}" * len(rules))
    for name, made in sets.items():
        cells = ""
        for served in _by_rule(made, cosine=cosine).values():
            cells += f"{served.wrong:10,}" + (f"{served.right / made.right:12.1%}" if made.right else f"{'-':>12}")
        print(f"{name:28}{made.wrong:12,}{made.right:7,}{cells}")
    print(f"\n{'guard':12}{'refuses':>10}{'it alone':>10}{'right ones it alone keeps back':>32}")
    for guard in GUARDS:
        sums = [sum(getattr(made, what)[guard.name] for made in sets.values()) for what in ("refused", "alone", "lost")]
        print(f"{guard.name:12}{sums[0]:10,}{sums[1]:10,}{sums[2]:32,}")


def served_across(texts: Iterable[tuple[str, str]], least: int = LOOSE) -> tuple[int, list[tuple[str, str]]]:
    """How many pairs there are, and those that are served: the same text but for capitals is not counted."""
    profiles: dict[str, Profile] = {}
    served: list[tuple[str, str]] = []
    count = 0
    for one, other in texts:
        for text in (one, other):
            if text not in profiles:
                profiles[text] = profile(text)
        stored, new = profiles[one], profiles[other]
        if stored.folded != new.folded:
            count += 1
            if check(stored, new, least=least).same:
                served.append((one, other))
    return count, served


def show_across(name: str, texts: Iterable[tuple[str, str]]) -> None:
    """Prints every pair that is served, for a person to read."""
    count, served = served_across(texts)
    print(f"\n{name}: {count:,} pairs of different rows, {len(served)} served")
    for one, other in served:
        print(f"    {one}\n  = {other}\n")


def show_mutations(texts: Sequence[tuple[str, str]], count: int, seed: int) -> int:
    """Texts with one change of meaning, against the text as it was; returns how many were served."""
    chance = random.Random(seed)
    tried: Counter[str] = Counter()
    served: dict[str, Counter[str]] = {name: Counter() for name in SHOWN}
    while sum(tried.values()) < count:
        stored, source = chance.choice(texts)
        mutation = mutate(source, chance)
        if mutation is not None and mutation.text.lower() != stored.lower():
            verdict = check(profile(stored), profile(mutation.text))
            tried[mutation.kind] += 1
            for name, counts in served.items():
                counts[mutation.kind] += verdict.strength >= NAMES[name]
    print(f"\n{'change of meaning':20}{'pairs':>10}" + "".join(f"{name:>10}" for name in served))
    for kind, number in sorted(tried.items()):
        print(f"{kind:20}{number:10,}" + "".join(f"{counts[kind]:10,}" for counts in served.values()))
    print(f"{'all':20}{count:10,}" + "".join(f"{counts.total():10,}" for counts in served.values()))
    return served["loose"].total()


def show_costs(pairs: Sequence[Pair]) -> None:
    """Microseconds a text and a pair, at the median."""
    profiling, checking = [], []
    for pair in pairs:
        begin = time.perf_counter()
        stored, new = profile(pair.stored), profile(pair.new)
        middle = time.perf_counter()
        check(stored, new)
        profiling.append((middle - begin) / 2)
        checking.append(time.perf_counter() - middle)
    words = statistics.mean(len(pair.stored.split()) for pair in pairs)
    print(
        f"\n{words:.0f} words a text: {statistics.median(profiling) * 1e6:.0f} us to profile it, "
        f"{statistics.median(checking) * 1e6:.0f} us to check a pair (medians)"
    )


def minilm(folder: Path, pairs: Iterable[Pair]) -> Cosine:
    """Embeds every text of `pairs` once; some minutes for ten thousand."""
    from cache.local_embedding import load_minilm  # noqa: PLC0415 - needs numpy, which the other tables do without

    texts = list(dict.fromkeys(text for pair in pairs for text in (pair.stored, pair.new)))
    embedder = load_minilm(folder)
    vectors: dict[str, NDArray[np.float32]] = {}
    for at in range(0, len(texts), _BATCH):
        some = texts[at : at + _BATCH]
        vectors.update(zip(some, embedder.embed(some), strict=True))
    embedder.close()
    return lambda one, other: float(vectors[one] @ vectors[other])


def _sets(folder: Path | None) -> dict[str, list[Pair]]:
    sets = {
        "our own sentences": own_pairs(),
        "our own, second set": unseen_pairs(),
        "our own, blind": blind_pairs(),
        "everyday": everyday_pairs(),
        "everyday, blind": everyday_blind_pairs(),
    }
    if folder is not None:
        gptcache = gptcache_pairs(folder)
        sets |= {
            "CheckList (QQP)": checklist_pairs(folder),
            "GPTCache, looked at": gptcache[::2],
            "GPTCache, held out": gptcache[1::2],
            "GPTCache, all": gptcache,
        }
    return sets


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs everything that data is there for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutations", type=int, default=20_000, help="changed texts of each source to try")
    parser.add_argument("--across", type=int, default=80_000, help="pairs of different rows to try, of each set")
    parser.add_argument("--embedding", type=Path, metavar="FOLDER", help="compare with all-MiniLM-L6-v2 from here")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    folder = published_folder()
    sets = _sets(folder)
    cosine = minilm(options.embedding, [p for pairs in sets.values() for p in pairs]) if options.embedding else None
    show({name: tally(pairs, cosine) for name, pairs in sets.items()}, cosine=cosine is not None)
    sources = {"our own": [(pair.stored, pair.stored) for pair in sets["our own sentences"]]}
    if folder is None:
        print("The published sets are not here: set PREFIXGATE_SIMILARITY_DATA to their folder.")
    else:
        checklist, gptcache = sets["CheckList (QQP)"], sets["GPTCache, all"]
        sources |= {
            "CheckList": [(text, text) for pair in checklist for text in (pair.stored, pair.new)],
            "GPTCache": [(text, text) for pair in gptcache for text in (pair.stored, pair.new)],
            "GPTCache's paraphrases, against the original": [(pair.stored, pair.new) for pair in gptcache],
        }
        chance = random.Random(options.seed)
        rows = int((options.across / 2) ** 0.5) + 1
        across = cross_pairs(chance.sample(gptcache, min(rows, len(gptcache))), lambda one, other: one != other)
        show_across("GPTCache", across)
        rows = int((options.across / 2) ** 0.5) + 1
        across = cross_pairs(chance.sample(checklist, rows), lambda one, other: one.kind != other.kind)
        show_across("CheckList, of different tests", across)
    for name, texts in sources.items():
        print(f"\n{name}:", end="")
        show_mutations(texts, options.mutations, options.seed)
    show_costs(sets.get("GPTCache, all", sets["our own sentences"]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
