"""Words that a statement about software may do without, as data, and where each may be left out.

Every other word has to be found again in the other text. What is here neither narrows nor changes what the rest says:
words that repeat what stands beside them ("the `f` function"), that only carry the next word ("a way of sorting"), or
that point at the reader or at the text itself.
"""

from __future__ import annotations

from typing import Final

from policies.guards.profile import Item
from policies.guards.stemming import ED, stem

EMPTY: Final = "empty"
"""Says nothing, whatever the other text says."""
FULL: Final = "full"
"""Says nothing as long as the other text puts no word of its own in its place."""


def stems(text: str) -> frozenset[str]:
    """Keys of the words of `text`."""
    return frozenset("w:" + stem(word)[0] for word in text.split())


ANYBODY: Final = frozenset({"p:you", "p:your", "p:we", "p:our"})
NAMED_BEFORE: Final = frozenset({"p:this", "p:these", "p:its", "p:their"})
_MARKERS: Final = stems("use utilize utilise employ suchlike namely according-to") | ANYBODY | NAMED_BEFORE
"""Point at what is named anyway, or mark an instrument."""

POINTING: Final = stems("given provided following particular specific certain respective available various")
"""Say of a noun that it is the one meant; they may go only where something else is told in other words too."""
_GIVEN: Final = stems("given provided")

KINDS: Final = stems(
    "function method parameter argument class option command file variable folder library package module attribute "
    "property value dataset script object format tool flag field page"
)
"""Beside a literal or a name they tell what kind of thing it is."""

CARRIERS: Final = stems(
    "way manner means purpose goal aim objective process task act ability capability capacity possibility option order "
    "functionality feature function method procedure help serve allow enable support provide offer give furnish user "
    "task type kind set collection"
)
"""Before "of", "to" or "for" and a word that tells more."""
_CARRYING: Final = frozenset({"of", "to", "for"})

HOLDERS: Final = stems("have contain include")
"""Between two nouns they say no more than "with" or "of"."""
_PLACED: Final = stems(
    "contain include store locate find list provide give specify mention available present place exist"
)
"""After a noun and before a preposition: "the file (stored) in the folder"."""
_GENERAL: Final = stems(
    "allow enable permit help make take get obtain gain set perform carry conduct achieve accomplish apply involve "
    "want wish intend design relate regard concern refer correspond associate follow adhere indicate specify determine "
    "outline procedure action operation information detail context situation aspect part step fact tool platform "
    "resource facility utility people individual developer different associated corresponding related relevant "
    "appropriate suitable convenient useful helpful easily simply effectively efficiently properly specifically "
    "particularly together process data user feature"
)
"""One of them more does not change what is told."""
_CALLED: Final = "w:call"


def may_go(items: list[Item], at: int, others: frozenset[str]) -> str:
    """`EMPTY` or `FULL` where the item at `at` says nothing that the rest does not say; "" where it does.

    `others` are the keys of the other text.
    """
    item = items[at]
    if item.key in _MARKERS or (item.key in POINTING and (item.ending == ED or item.key not in _GIVEN)):
        return EMPTY
    following = items[at + 1] if at + 1 < len(items) else None
    if item.key in KINDS and _tells_kind(items[at - 1] if at else None, item, following):
        return EMPTY
    if following is None or following.sentence != item.sentence:
        return ""
    if item.key == _CALLED and _names(following):
        return EMPTY
    return FULL if _carries(item, following, others) or _places(item, following, first=not at) else ""


def _tells_kind(before: Item | None, kind: Item, following: Item | None) -> bool:
    if before is not None and not kind.links and _names(before):
        return True
    return following is not None and not following.links and not following.after_comma and _names(following)


def _carries(item: Item, following: Item, others: frozenset[str]) -> bool:
    """A general word, one that repeats a noun before another, or one that only carries the next."""
    if item.key in others and not following.links and not (following.after_comma or following.hard or item.hard):
        # "A column by its column name", "a column by its name".
        return True
    if item.key in _GENERAL and not (item.links or item.hard or item.opens or item.article):
        return True
    return item.key in CARRIERS and (following.links[-1:] != () and following.links[-1] in _CARRYING)


def _places(item: Item, following: Item, *, first: bool) -> bool:
    """A verb between a noun and what belongs to it, or where it is."""
    if item.key in _PLACED and item.ending == ED and item.form != "passive" and following.links:
        return True
    return item.key in HOLDERS and not following.links and not first and not item.article


def _names(item: Item) -> bool:
    return item.key[0] == "l" or item.capital
