"""Every content word of one text is found again in the other."""

from __future__ import annotations

from typing import Final

from policies.guards.alignment import align, is_statement
from policies.guards.profile import Item, Profile
from policies.guards.stemming import stem

_MAX_DROPPED: Final = 3
FRAME: Final = frozenset(
    "w:" + stem(word)[0]
    for word in """
    use utilize employ provide furnish offer have contain include given specified following particular specific certain
    set serve call type kind available exist enable allow support facilitate possible ability capability functionality
    way manner order purpose method function parameter argument class module feature library data dataset information
    suchlike relate access user value related various designed intended process action task able option capable
    """.split()
) | {"p:you", "p:your", "p:this", "p:we", "n:1"}  # fmt: skip
"""Words that a statement may do without: what it tells stands in the others."""


class ContentGuard:
    """Refuses a word that only one text has."""

    name = "content"

    def refuses(self, stored: Profile, new: Profile) -> str:
        pairs = align(stored, new)
        lone, fresh = pairs.stored_only, pairs.new_only
        if not lone and not fresh:
            return ""
        if not is_statement(stored, new):
            return "word"
        if len(lone) > _MAX_DROPPED or len(fresh) > _MAX_DROPPED:
            return "words"
        if any(stored.items[at].key not in FRAME for at in lone) or any(new.items[at].key not in FRAME for at in fresh):
            return "word"
        to = dict(pairs.order)
        for at in fresh:
            before = to.get(at - 1, -1)
            if before + 1 in lone and (before >= 0 or at == 0):
                return "swap"
        return ""
