"""Words that count as they are: one or several of what is meant, any form where a text is about words, and the words of
a term that it asks about.
"""

from __future__ import annotations

from typing import Final

from policies.guards.alignment import Pair
from policies.guards.closed_words import LANGUAGE_NAMES, POLITE
from policies.guards.profile import Item, Profile
from policies.guards.statement_words import stems
from policies.guards.stemming import ING
from policies.guards.synonyms import SPELLED
from policies.guards.word_lists import words

_OF_WORDS: Final = stems(
    "spell spelling pronounce pronunciation plural singular tense verb noun adjective adverb participle infinitive "
    "gerund conjugate conjugation inflect inflection rhyme synonym antonym homonym etymology syllable anagram "
    "palindrome hyphenate translate translation word say character string vowel consonant prefix suffix opposite "
    "definition define meaning difference differ differentiate distinguish compare comparison versus sentence grammar "
    "grammatical phrase expression term vocabulary definition rewrite rephrase paraphrase reword proofread punctuation"
)
"""What is asked is about words, so that each counts as it is."""
_LETTERS: Final = words("w:letter w:letters")
_INTO: Final = words("in into to")
_OF_SENTENCES: Final = stems(
    "sentence grammar grammatical translate rewrite rephrase paraphrase reword proofread punctuation"
)
"""There, even the little words and their forms do."""
_OWN_PLURALS: Final = words(
    "securities futures interests woods communications shorts jeans briefs tights trunks terms credits arts times "
    "properties peoples persons compliments respects regards heads tails bonds stocks shares wages drafts ashes scales "
    "stairs airs remains humanities proceeds valuables necessities utilities liberties relations numbers figures "
    "lines rights wrongs sands heights depths lights lows highs ups downs returns heavens deserts fruits feelings "
    "letters lives spirits savings powers services resources options commons classics blues greens reds"
)
"""Plurals that mean something else, too: what are futures is not what is a future."""
_ASKED_FOR: Final = frozenset({"what", "who"})


class FormGuard:
    """Refuses "the king" against "the kings", "the time" against "time", "a falling price" against "a fallen price",
    "spell running" against "spell run", and "what is hard water" against "what is difficult water". Not among
    statements.
    """

    name = "form"

    def refuses(self, pair: Pair) -> str:
        """See `Guard`."""
        if pair.statement:
            return ""
        stored, new = pair.stored, pair.new
        if stored.quoted != new.quoted:
            return "quoted"
        keys = stored.keys | new.keys
        if not _OF_SENTENCES.isdisjoint(keys) and _without_asking(stored) != _without_asking(new):
            return "sentence"
        of_words = not _OF_WORDS.isdisjoint(keys) or _weighs_words(stored)
        term = _asks_for_a_term(pair)
        for at, place in pair.alignment.order:
            before, after = stored.items[place], new.items[at]
            if before.written != after.written:
                if of_words and not {before.key, after.key} <= _OF_WORDS:
                    return "word"
                if term and before.key != after.key and (before.general & after.general).isdisjoint(SPELLED):
                    return "term"
            if reason := _other_form(before, after):
                return reason
        return ""


def _other_form(before: Item, after: Item) -> str:
    """Of one word: the water and water, a cut and cuts of it, parking and a park."""
    if before.definite != after.definite:
        return "article"
    if before.written == after.written:
        return "article" if before.article != after.article else ""
    if (before.ending == ING) != (after.ending == ING):
        return "noun"
    if before.key != after.key or before.ending != after.ending:
        return ""
    if not _OWN_PLURALS.isdisjoint((before.written, after.written)):
        return "plural"
    # One and many of a kind are the same only where they stand for all of it: a dog, dogs.
    return "number" if before.article == after.article else ""


def _without_asking(profile: Profile) -> list[str]:
    return [word for word in profile.bag if word not in POLITE]


def _weighs_words(profile: Profile) -> bool:
    """Which is longer, buy or sell; is an error the same as a bug; how many letters; what is it in Greek."""
    if "same" in profile.hard or ("many" in profile.hard and not _LETTERS.isdisjoint(profile.keys)):
        return True
    chooses = profile.opening == "which"
    return any(
        (chooses and "or" in item.links) or (item.key[2:] in LANGUAGE_NAMES and not _INTO.isdisjoint(item.links))
        for item in profile.items
    )


def _asks_for_a_term(pair: Pair) -> bool:
    """What is a simple fracture, who is Big Ben: nothing stands there but the name of what is asked for."""
    return pair.stored.opening in _ASKED_FOR and not any(item.links for item in pair.stored.items)
