"""Every content word of one text is found again in the other."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from policies.guards.alignment import align, is_statement
from policies.guards.profile import Item, Profile
from policies.guards.stemming import stem
from policies.guards.thesaurus import STATEMENT

_MAX_LIGHT: Final = 4
_MAX_FRAME: Final = 4
_MIN_CHANGES: Final = 2
FRAME: Final = frozenset(
    "w:" + stem(word)[0]
    for word in """
    use utilize employ provide furnish offer have contain include given specified following particular specific certain
    set serve call type kind available exist enable allow support facilitate possible ability capability functionality
    way manner order purpose method function parameter argument class module feature library data dataset information
    suchlike according-to relate access user value related various designed intended process action task able option capable
    """.split()
) | {"p:you", "p:your", "p:this", "p:these", "p:those", "p:here", "p:we", "p:it", "p:its", "p:they", "p:them", "p:their", "n:1"}  # fmt: skip
"""Words that a statement may do without: what it tells stands in the others."""


LIGHT: Final = FRAME | frozenset(f"w:{root}" for root in STATEMENT) | frozenset(
    "w:" + stem(word)[0]
    for word in """
    file become etc sure don easier simpler randomly exactly actual effectiveness particularly case instance situation content item standard together explicitly simply further specifically back adhere consult
    tutorial guidance instruction outline devote list go represent embody host project task procedure work convenient
    account advice aspect basis behavior benefit broad caliber characteristic clear collective common commonly complex
    concept conceptual condition consistent context contribute criterion decide degree demonstrate depend desired detail
    detailed diverse due duty ease effective effort element encompass entity environment essence establish evident
    explicit extensive extent fact factor field focus former frequent fundamental further general generally goal
    helpful ideal idea impact implement implementation importance improvement individual insight integral integration
    intention interest involve issue kind level likely logical main mainly major matter mean means measure need notable
    note objective obligation obvious occur opportunity outcome overall overview own part partly perspective phase point
    potential practice precise presence principle prior procedure proper quality quantity question reason reference
    regarding relation relevant remain resource respect respective result role scope seamless seek sense significant
    solution specialised state status strategy structure style subject substantial suggest sure tailor target tend term
    theme topic typical typically undergo understanding unique usage utility valuable variety version view vital whole
    wide works integration code citation accuracy successful successfully combination introduction conversion
    generation removal expose encapsulate enumerate render derive inherit implement
    fully mode currently together assemble come resort tap click achieve gain aspect context additionally
    """.split()
)
"""General words of telling about software; the content is in others."""


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
        heavy = 0
        for items, places in ((stored.items, lone), (new.items, fresh)):
            if any(items[at].key not in LIGHT for at in places):
                return "word"
            count = sum(items[at].key not in FRAME for at in places)
            if count > _MAX_LIGHT or len(places) - count > _MAX_FRAME or 5 * len(places) > 2 * len(items):
                return "words"
            heavy += count
        if heavy > _MAX_LIGHT + 1:
            return "words"
        changed = sum(stored.items[place].key != new.items[at].key for at, place in pairs.order)
        marked = sum(
            stored.items[place].links != new.items[at].links or stored.items[place].hard != new.items[at].hard
            for at, place in pairs.order
        )
        moved = sum(place != last + 1 for (_, last), (_, place) in pairwise(pairs.order))
        # One word more, less or other in a text that else says the same word by word is what changes a meaning.
        return "" if changed + moved + min(len(lone), len(fresh)) + max(0, marked - len(lone) - len(fresh)) >= _MIN_CHANGES else "edit"
