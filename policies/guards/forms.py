"""Words that count as they are: one or several of what is meant, any form where a text is about words, and the words of
a term that it asks about.
"""

from __future__ import annotations

from typing import Final

from policies.guards.alignment import Pair
from policies.guards.statement_words import stems

_OF_WORDS: Final = stems(
    "spell spelling pronounce pronunciation plural singular tense verb noun adjective adverb participle infinitive "
    "gerund conjugate conjugation inflect inflection rhyme synonym antonym homonym etymology syllable anagram "
    "palindrome hyphenate translate translation word"
)
_ASKED_FOR: Final = frozenset({"what", "who"})


class FormGuard:
    """Refuses "the king" against "the kings", "spell running" against "spell run", and "what is hard water" against
    "what is difficult water". Not among statements.
    """

    name = "form"

    def refuses(self, pair: Pair) -> str:
        """See `Guard`."""
        if pair.statement:
            return ""
        stored, new = pair.stored, pair.new
        of_words = not _OF_WORDS.isdisjoint(stored.keys | new.keys)
        for at, place in pair.alignment.order:
            before, after = stored.items[place], new.items[at]
            if before.written == after.written:
                continue
            if of_words and not {before.key, after.key} <= _OF_WORDS:
                return "word"
            if before.key != after.key and _asks_for_a_term(pair):
                return "term"
            if before.key == after.key and before.definite and after.definite and before.ending == after.ending:
                return "number"
        return ""


def _asks_for_a_term(pair: Pair) -> bool:
    """What is a simple fracture, who is Big Ben: nothing stands there but the name of what is asked for."""
    return pair.stored.opening in _ASKED_FOR and not any(item.links for item in pair.stored.items)
