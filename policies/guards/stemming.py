"""Inflection only: `stem("datasets") == stem("dataset")`, and which ending was taken off.

Derived words ("teacher", "quickly", "freedom") keep their endings: they are other words. A plural that has come to mean
something else ("glasses", "customs") keeps its own.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from policies.guards.word_lists import words

BASE: Final = ""
"""No ending, or the -s of a plural or of a third person."""
ING: Final = "ing"
ED: Final = "ed"
"""Past tense or participle, regular or not."""

# form → (base, ending). Only what rules cannot make.
_IRREGULAR_VERBS = """
arise arose arisen; use used; awake awoke awoken; beat beaten; become became; begin began begun; bend bent; bind bound;
bite bit bitten; blow blew blown; break broke broken; bring brought; build built; burn burnt; buy bought; catch caught;
choose chose chosen; come came; dig dug; draw drew drawn; dream dreamt; drink drank drunk; drive drove driven;
eat ate eaten; fall fell fallen; feed fed; feel felt; fight fought; find found; fly flew flown; forbid forbade
forbidden;
forget forgot forgotten; forgive forgave forgiven; freeze froze frozen; get got gotten; give gave given; go went gone;
grow grew grown; hang hung; hear heard; hide hid hidden; hold held; keep kept; know knew known; lead led; learn learnt;
leave left; lend lent; lose lost; make made; mean meant; meet met; pay paid; ride rode ridden; ring rang rung;
rise rose risen; run ran; say said; see saw seen; seek sought; sell sold; send sent; shake shook shaken;
shine shone; shoot shot; show shown; shrink shrank shrunk; sing sang sung; sink sank sunk; sit sat; sleep slept;
speak spoke spoken; spell spelt; spend spent; spoil spoilt; stand stood; steal stole stolen; stick stuck;
strike struck; swear swore sworn; sweep swept; swim swam swum; swing swung; take took taken; teach taught;
tear tore torn; tell told; think thought; throw threw thrown; understand understood; wake woke woken; wear wore worn;
weep wept; win won; write wrote written; rewrite rewrote rewritten; overwrite overwrote overwritten
"""
_IRREGULAR_NOUNS = """
child children; foot feet; tooth teeth; goose geese; mouse mice; man men; woman women; person people; ox oxen;
life lives; wife wives; knife knives; half halves; shelf shelves; wolf wolves; thief thieves; loaf loaves;
index indices; matrix matrices; vertex vertices; analysis analyses; crisis crises; thesis theses; hypothesis hypotheses;
phenomenon phenomena; criterion criteria; axis axes; datum data; medium media
"""
# Words that only look inflected, and plurals that mean something of their own.
_WHOLE = words("""
    news glasses customs goods arms waters spirits manners means works savings earnings surroundings belongings
    looks forces contents authorities letters
    grounds spectacles brains colours colors damages minutes papers irons quarters premises odds blues
    thanks series species always perhaps besides across less unless nevertheless whereas various numerous previous
    famous serious bus gas plus thus yes this its his is was has does us as business basis chess glass class pass
    mass boss loss cross dress address process access success express press stress progress possess discuss miss kiss
    canvas atlas christmas texas paris mars venus jesus virus status campus focus bonus census corpus radius genius
    lens physics mathematics economics politics ethics statistics athletics genetics mechanics dynamics electronics
    something anything nothing everything thing king ring sing bring string spring wing morning evening ceiling during
    wedding building meeting feeling painting clothing pudding sibling sterling bed red shed sled wed hundred sacred
    naked wicked beloved indeed need feed seed speed weed bleed breed exceed proceed succeed embed led fed
    united limited evening being beijing boring bored exciting excited tiring tired interesting interested
    confusing confused annoying annoyed amazing amazed scaring scared frightening frightened
    offspring outstanding pending according regarding concerning following
    """)  # fmt: skip


def _forms() -> dict[str, tuple[str, str]]:
    table: dict[str, tuple[str, str]] = {}
    for line in _IRREGULAR_VERBS.replace("\n", " ").split(";"):
        base, *forms = line.split()
        table.update(dict.fromkeys(forms, (base, ED)))
    for line in _IRREGULAR_NOUNS.replace("\n", " ").split(";"):
        base, *forms = line.split()
        table.update(dict.fromkeys(forms, (base, BASE)))
    table.update({"using": ("use", ING), "dying": ("die", ING), "lying": ("lie", ING), "tying": ("tie", ING)})
    table.update(
        {
            "died": ("die", ED),
            "lied": ("lie", ED),
            "tied": ("tie", ED),
            "owing": ("owe", ING),
            "going": ("go", ING),
            "goes": ("go", BASE),
        }
    )
    return table


_FORMS: Final = _forms()
_VOWELS = "aeiouy"


_KEEP_E = words("humane morale locale urbane rationale finale")
_DOUBLED = words("add odd egg inn ebb err butt mitt")
# Verbs in -e after two consonants, where most have none.
_WITH_E = words("cach ach creat recreat past tast wast hast bast chang rang hing ting sing bath breath cloth solv")


def _syllables(root: str) -> int:
    """Groups of vowels, a silent e at the end not counted."""
    count, before = 0, False
    for letter in root.removesuffix("e"):
        vowel = letter in _VOWELS
        count += vowel and not before
        before = vowel
    return count


def _tidy(base: str) -> str:
    """The stem of a word without ending: long words lose a silent e, short ones keep it: "plane" is no "plan"."""
    if len(base) > 3 and base[-1] == base[-2] and base[-1] not in "aeiouls" and base not in _DOUBLED:
        return base[:-1]
    if len(base) > 4 and base.endswith("ll") and _syllables(base) > 1:
        return base[:-1]
    if len(base) > 3 and base[-1] == "e" and base[-2] != "e" and base not in _KEEP_E:
        return base[:-1] if _syllables(base) > 1 else base
    if len(base) > 3 and base[-1] == "y" and base[-2] not in _VOWELS:
        return base[:-1] + "i"
    return base


def _without_ending(root: str) -> str:
    """What is left of a word without -ed or -ing, made the stem of its base: hopping to hop, hoping to hope."""
    if len(root) < 2:
        return root
    if _syllables(root) > 1 or (root[-1] == root[-2] and root[-1] not in "aeiou"):
        return _tidy(root)
    two = root[-2] in _VOWELS and len(root) > 2 and root[-3] in _VOWELS
    if (
        root in _WITH_E
        or root[-1] in "cvuz"
        or (root[-1] == "s" and root[-2] != "s")
        or root.endswith(("dg", "rg", "nc", "dl", "cl", "bl", "pl", "tl", "fl", "gl", "kl", "zl"))
    ):
        return root + "e"
    if root[-1] not in "aeiouwxy" and root[-2] in _VOWELS and not two:
        return root + "e"
    return _tidy(root)


def _has_vowel(root: str) -> bool:
    return any(letter in _VOWELS for letter in root)


@lru_cache(maxsize=20_000)
def stem(word: str) -> tuple[str, str]:
    """`word` in lower case → (stem, ending). Two words with one stem are inflections of one word."""
    if word in _FORMS:
        base, ending = _FORMS[word]
        return _tidy(base), ending
    if len(word) < 4 or word in _WHOLE:
        return (word if word in _WHOLE else _tidy(word)), BASE
    if word.endswith("ing") and len(word) > 5 and _has_vowel(word[:-3]):
        return _without_ending(word[:-3]), ING
    if word.endswith("eed") and len(word) > 5:
        return word[:-1], ED
    if word.endswith("ed") and len(word) > 4 and _has_vowel(word[:-2]):
        return _without_ending(word[:-2]), ED
    return _plural(word), BASE


def _plural(word: str) -> str:
    if word.endswith("ies") and len(word) > 4:
        return _tidy(word[:-3] + "y")
    if word.endswith(("sses", "shes", "ches", "xes", "zes")):
        return _tidy(word[:-2])
    if word.endswith("s") and not word.endswith(("ss", "us", "is", "ous")):
        return _tidy(word[:-1])
    return _tidy(word)


_NOUN_ENDINGS: Final = ("ization", "isation", "ation", "ition", "ement", "ment", "ion")
# They only look derived, or have gone their own way.
_UNDERIVED: Final = words(
    "department apartment statement station position section mention function question fraction action addition "
    "condition notion portion mission passion version session nation ration document comment element moment segment "
    "experiment environment argument instrument supplement investment equipment region religion opinion union million "
    "billion direction division vision decision commission permission fashion mansion pension tension attention "
    "intention"
)


@lru_cache(maxsize=20_000)
def root(base: str) -> str:
    """The root that "transform" and "transformation", "local" and "locally" share: a verb and the noun of doing it, an
    adjective and its adverb. Never a doer ("server"), a quality ("objective") or another noun ("directory").
    """
    if base in _UNDERIVED:
        return base
    if base.endswith("li") and len(base) > 5:
        return base[:-2]
    for suffix in _NOUN_ENDINGS:
        if base.endswith(suffix) and len(base) - len(suffix) >= 4:
            return _verb_root(base[: -len(suffix)])
    return _verb_root(base)


def _verb_root(base: str) -> str:
    for suffix in ("iz", "is", "at", "e"):
        if base.endswith(suffix) and len(base) - len(suffix) >= 5:
            return base[: -len(suffix)]
    return base
