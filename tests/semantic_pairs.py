"""Pairs of questions that look alike: our own, and published sets where they are at hand.

The published sets do not come with the repository. They are looked for in `shared/data/similarity` beside any folder
above this one, or where `PREFIXGATE_SIMILARITY_DATA` says.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
OWN = HERE / "data/semantic/guard_pairs.jsonl"
UNSEEN = HERE / "data/semantic/guard_pairs_unseen.jsonl"
BLIND = HERE / "data/semantic/guard_pairs_blind.jsonl"
EVERYDAY = HERE / "data/semantic/guard_pairs_everyday.jsonl"
EVERYDAY_BLIND = HERE / "data/semantic/guard_pairs_everyday_blind.jsonl"
CHECKLIST = "checklist_qqp_mft_sample100.jsonl"
GPTCACHE = "gptcache/mock_data.json"

# Labelled as the same in the set, though its name, and English, say that order matters: "is Ann hurting Bob?".
MISLABELLED = "Order does matter for asymmetric relations"


class Pair(NamedTuple):
    kind: str
    stored: str
    new: str
    same: bool


def own_pairs() -> list[Pair]:
    """Our own sentences; no guard was fitted to a published set alone."""
    return _read(OWN)


def unseen_pairs() -> list[Pair]:
    """More of our own, written before anybody looked at what the guards make of them, in five lots: of 332, 85, 50, 413
    and 162 that must be refused, 12, 1, 1, 65 and 9 were served at first, and the rules behind them were changed.
    """
    return _read(UNSEEN)


def blind_pairs() -> list[Pair]:
    """More of our own, by somebody who did not know the rules: of 428 that must be refused one was served at first, and
    the rule behind it was changed.
    """
    return _read(BLIND)


def everyday_pairs() -> list[Pair]:
    """Short questions about anything, and short statements about software, for development. Of those that must be
    refused 423 were written by somebody who did not know the rules, and none was served at first; 118 after a first
    look at the rules, and 4 were; 436 against the rules, and 213 were.
    """
    return _read(EVERYDAY)


def everyday_blind_pairs() -> list[Pair]:
    """The other half, drawn at random, of the first two lots: none of 423 was served at first, and 2 of 117; and two
    lots written later by somebody who knew the rules: 8 of 175 and 5 of 131 before the rules were changed after the
    development set, one and none after. The rules behind what was still served were changed too.
    """
    return _read(EVERYDAY_BLIND)


def _read(path: Path) -> list[Pair]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [Pair(row["kind"], row["a"], row["b"], row["same"]) for row in rows]


def cross_pairs(pairs: list[Pair], apart: Callable[[Pair, Pair], bool]) -> Iterator[tuple[str, str]]:
    """Every text with every text of another row, as far as `apart` holds the two rows to be of different meaning."""
    for at, one in enumerate(pairs):
        for other in pairs[at + 1 :]:
            if apart(one, other):
                yield from ((a, b) for a in (one.stored, one.new) for b in (other.stored, other.new))


def published_folder() -> Path | None:
    """Where the published sets lie; None where they do not."""
    named = os.environ.get("PREFIXGATE_SIMILARITY_DATA")
    places = [Path(named)] if named else [folder / "shared/data/similarity" for folder in HERE.parents]
    return next((place for place in places if (place / CHECKLIST).exists() and (place / GPTCACHE).exists()), None)


def checklist_pairs(folder: Path) -> list[Pair]:
    """CheckList's question pairs, whose kind is the name of the test that they belong to."""
    rows = [json.loads(line) for line in (folder / CHECKLIST).read_text().splitlines()]
    return [Pair(row["test"], row["q1"], row["q2"], bool(row["label"]) and row["test"] != MISLABELLED) for row in rows]


def gptcache_pairs(folder: Path) -> list[Pair]:
    """GPTCache's statements and their paraphrases, in the order of the file; all positive."""
    rows = json.loads((folder / GPTCACHE).read_text())
    return [Pair("paraphrase", row["origin"], row["similar"], same=True) for row in rows]
