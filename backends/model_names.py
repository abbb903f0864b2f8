"""Which of the names that workers answer to mean the same model. Pure.

Engines list an alias (`--served-model-name a b`) as one more model with the same `root`, and a LoRA adapter as one
with its base model as `parent`. What shares KV must share the root of its block chain, so all aliases of a model are
chained under one of them: a name that has a tokenizer, else the first in the alphabet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

Card = Mapping[str, object]

OUR_NAME: Final = "prefixgate"
"""Workers of this project say so in `owned_by` of their models."""


class Served(NamedTuple):
    """The names that one worker answers to, and what it said of them."""

    names: Sequence[str]
    cards: Sequence[Card]


def canonical_names(workers: Iterable[Served], tokenized: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Each name's base model, by its canonical name, and its adapter ("" for none). `tokenized` are the names that
    have a tokenizer of their own, in the order of preference.
    """
    group: dict[str, str] = {}
    parents: dict[str, str] = {}

    def find(name: str) -> str:
        while group[name] != name:
            name = group[name]
        return name

    for worker in workers:
        cards = {str(card.get("id")): card for card in worker.cards}
        bases: list[str] = []
        for name in worker.names:
            parent = cards.get(name, {}).get("parent")
            if isinstance(parent, str) and parent != name:
                parents.setdefault(name, parent)
                group.setdefault(parent, parent)
            else:
                group.setdefault(name, name)
                bases.append(name)
        for i, one in enumerate(bases):
            for other in bases[i + 1 :]:
                if _same(one, other, cards, tokenized):
                    group[find(other)] = find(one)
    members: dict[str, list[str]] = {}
    for name in group:
        members.setdefault(find(name), []).append(name)
    rank = {name: place for place, name in enumerate(tokenized)}
    best = {head: min(names, key=lambda name: (rank.get(name, len(rank)), name)) for head, names in members.items()}
    canonical = {name: (best[find(name)], "") for name in group}
    return canonical | {name: (canonical[parent][0], name) for name, parent in parents.items()}


def _same(one: str, other: str, cards: Mapping[str, Card], tokenized: Sequence[str]) -> bool:
    """Are two names of one worker the same model? Its own word counts; without it, two tokenizers say no."""
    roots = [cards.get(name, {}).get("root") for name in (one, other)]
    if all(isinstance(root, str) for root in roots):
        return roots[0] == roots[1]
    return not (one in tokenized and other in tokenized)
