"""Forms of a word that count: one or several of what is meant, and any form where a text is about words."""

from __future__ import annotations

from typing import Final

from policies.guards.alignment import Pair
from policies.guards.stemming import stem
from policies.guards.word_lists import listed

_OF_WORDS: Final = frozenset(
    "w:" + stem(word)[0]
    for word in listed(
        "spell spelling pronounce pronunciation plural singular tense verb noun adjective adverb participle infinitive "
        "gerund conjugate conjugation inflect inflection rhyme synonym antonym homonym etymology syllable anagram "
        "palindrome hyphenate translate translation word"
    )
)


class FormGuard:
    """Refuses "the king" against "the kings", and "spell running" against "spell run". Not among statements."""

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
            if before.key == after.key and before.definite and after.definite and before.ending == after.ending:
                return "number"
        return ""
