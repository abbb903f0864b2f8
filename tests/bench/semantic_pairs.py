"""What the guards of the semantic cache let pass: `python -m tests.bench semantic_pairs [--mutations N]`.

For each set: its pairs that must be refused and how many of them were served; its pairs that mean the same and how many
of those were served (recall). Then every guard: how many wrong pairs it refuses, how many it alone refuses, and how
many
right ones it alone keeps from being served. Last, texts of the published sets with one change of meaning each.

GPTCache's rows are split in two: rows 0, 2, 4, ... were looked at when word lists were written, the others were not.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from policies.guards.check import GUARDS, check, objections
from policies.guards.profile import profile
from tests.semantic_mutations import mutate
from tests.semantic_pairs import Pair, checklist_pairs, gptcache_pairs, own_pairs, published_folder

Cosine = Callable[[str, str], float]
"""Similarity of two texts by an embedding, for the column beside the guards."""
SERVED_BY_COSINE = 0.9


@dataclass
class Tally:
    """One set of pairs, as the guards see it."""

    wrong: int = 0
    wrong_served: int = 0
    right: int = 0
    right_served: int = 0
    cosine_wrong: int = 0
    cosine_right: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    """Wrong pairs that a guard refuses."""
    alone: Counter[str] = field(default_factory=Counter)
    """Wrong pairs that no other guard refuses."""
    lost: Counter[str] = field(default_factory=Counter)
    """Right pairs that no other guard refuses."""

    @property
    def recall(self) -> float:
        return self.right_served / self.right if self.right else float("nan")


def tally(pairs: Sequence[Pair], cosine: Cosine | None = None) -> Tally:
    """Asks every guard about every pair."""
    made = Tally()
    for pair in pairs:
        against = objections(profile(pair.stored), profile(pair.new))
        near = cosine is not None and cosine(pair.stored, pair.new) >= SERVED_BY_COSINE
        if pair.same:
            made.right += 1
            made.right_served += not against
            made.cosine_right += near
            made.lost.update(list(against) if len(against) == 1 else ())
        else:
            made.wrong += 1
            made.wrong_served += not against
            made.cosine_wrong += near
            made.refused.update(list(against))
            made.alone.update(list(against) if len(against) == 1 else ())
    return made


def show(sets: dict[str, Tally], *, cosine: bool) -> None:
    """Prints both tables."""
    print(
        f"{'set':28}{'must refuse':>12}{'served':>8}{'same':>7}{'served':>8}{'recall':>8}   cosine >= "
        "{SERVED_BY_COSINE}"
    )
    for name, made in sets.items():
        beside = f"{made.cosine_wrong} wrong, {made.cosine_right} right" if cosine else "-"
        recall = f"{made.recall:8.1%}" if made.right else f"{'-':>8}"
        print(
            f"{name:28}{made.wrong:12,}{made.wrong_served:8,}{made.right:7,}{made.right_served:8,}{recall}   {beside}"
        )
    print(f"\n{'guard':12}{'refuses':>10}{'it alone':>10}{'right ones it alone keeps back':>32}")
    for guard in GUARDS:
        sums = [sum(getattr(made, what)[guard.name] for made in sets.values()) for what in ("refused", "alone", "lost")]
        print(f"{guard.name:12}{sums[0]:10,}{sums[1]:10,}{sums[2]:32,}")


def show_mutations(texts: Sequence[tuple[str, str]], count: int, seed: int) -> int:
    """Texts with one change of meaning, against the text as it was; returns how many were served."""
    chance = random.Random(seed)
    tried: Counter[str] = Counter()
    served: Counter[str] = Counter()
    while sum(tried.values()) < count:
        stored, source = chance.choice(texts)
        mutation = mutate(source, chance)
        if mutation is not None:
            tried[mutation.kind] += 1
            served[mutation.kind] += check(profile(stored), profile(mutation.text)).same
    print(f"\n{'change of meaning':20}{'pairs':>10}{'served':>8}")
    for kind, number in sorted(tried.items()):
        print(f"{kind:20}{number:10,}{served[kind]:8,}")
    return sum(served.values())


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


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs everything that data is there for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutations", type=int, default=50_000, help="changed texts of each source to try")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    own = own_pairs()
    sets = {"our own sentences": tally(own)}
    sources = {"our own": [(pair.stored, pair.stored) for pair in own]}
    folder = published_folder()
    timed = own
    if folder is None:
        print("The published sets are not here: set PREFIXGATE_SIMILARITY_DATA to their folder.")
    else:
        checklist, gptcache = checklist_pairs(folder), gptcache_pairs(folder)
        sets |= {
            "CheckList (QQP)": tally(checklist),
            "GPTCache, looked at": tally(gptcache[::2]),
            "GPTCache, held out": tally(gptcache[1::2]),
            "GPTCache, all": tally(gptcache),
        }
        sources |= {
            "CheckList": [(text, text) for pair in checklist for text in (pair.stored, pair.new)],
            "GPTCache": [(text, text) for pair in gptcache for text in (pair.stored, pair.new)],
            "GPTCache's paraphrases, against the original": [(pair.stored, pair.new) for pair in gptcache],
        }
        timed = gptcache
    show(sets, cosine=False)
    for name, texts in sources.items():
        print(f"\n{name}:", end="")
        show_mutations(texts, options.mutations, options.seed)
    show_costs(timed)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
