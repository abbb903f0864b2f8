"""Words that a statement about software may do without, as data, and where each may be left out.

Every other word has to be found again in the other text. What is here neither narrows nor changes what the rest says:
words that repeat what stands beside them ("the `f` function"), that only carry the next word ("a way of sorting"), or
that point at the reader or at the text itself.
"""

from __future__ import annotations

from typing import Final

from policies.guards.profile import Item
from policies.guards.stemming import stem


def stems(text: str) -> frozenset[str]:
    """Keys of the words of `text`."""
    return frozenset("w:" + stem(word)[0] for word in text.split())


EMPTY: Final = stems("use utilize utilise employ suchlike namely according-to") | {
    "p:you",
    "p:your",
    "p:this",
    "p:these",
    "p:we",
    "p:it",
    "p:its",
    "p:they",
    "p:them",
    "p:their",
    "n:1",
}
"""Point at what is named anyway, or mark an instrument."""

POINTING: Final = stems("given provided following particular specific certain respective available various")
"""Say of a noun that it is the one meant; they may go only where something else is told in other words too."""

KINDS: Final = stems(
    "function method parameter argument class option command file variable folder library package module "
    "attribute property value dataset script object format tool flag field"
)
"""Beside a literal or a name they tell what kind of thing it is."""

CARRIERS: Final = stems(
    "way manner means purpose goal aim objective process task act ability capability capacity possibility option "
    "order functionality feature function method procedure help serve allow enable support provide offer give "
    "furnish possible available user task type kind set collection"
)
"""Before "of", "to" or "for" and a word that tells more."""
_CARRYING: Final = frozenset({"of", "to", "for"})


def may_go(items: list[Item], at: int) -> bool:
    """Whether the item at `at` says nothing that the others do not say."""
    item = items[at]
    if item.key in EMPTY or item.key in POINTING:
        return True
    following = items[at + 1] if at + 1 < len(items) else None
    if item.key in KINDS:
        before = items[at - 1] if at else None
        if before is not None and not item.links and _names(before):
            return True
        if following is not None and (not following.links or following.links == ("of",)) and _names(following):
            return True
    if following is None or item.key not in CARRIERS:
        return False
    return (bool(following.links) and following.links[-1] in _CARRYING) or "@can" in following.hard


def _names(item: Item) -> bool:
    return item.key[0] == "l" or item.capital
