"""Turns any text into one that says something else: `mutate(text, random)`.

Its word lists are its own: what guards know must not decide what they are tried with.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import NamedTuple

_OPPOSITES = [
    tuple(row.split())
    for row in """
    before after;above below;over under;inside outside;with without;more less;most least;bigger smaller;larger smaller;
    higher lower;faster slower;older younger;better worse;best worst;cheaper pricier;longer shorter;earlier later;
    first last;all some;all no;every no;always never;always sometimes;often rarely;many few;any all;each one;
    open closed;open close;start stop;begin end;increase decrease;add remove;enable disable;enabled disabled;
    allow forbid;allows forbids;upload download;import export;load save;loads saves;read write;reads writes;
    push pull;encode decode;encrypt decrypt;install uninstall;connect disconnect;include exclude;includes excludes;
    maximum minimum;largest smallest;newest oldest;previous next;left right;top bottom;public private;local remote;
    internal external;static dynamic;automatic manual;automatically manually;optional required;optional mandatory;
    valid invalid;legal illegal;possible impossible;safe dangerous;healthy unhealthy;happy sad;rich poor;strong weak;
    hot cold;good bad;easy difficult;simple complex;same different;similar different;true false;yes no;single multiple;
    full partial;whole half;rows columns;row column;input output;client server;parent child;buy sell;win lose;
    accept reject;win fail;temporary permanent;specific general;new old;big small;large small;long short;fast slow;
    returns deletes;create delete;creates deletes;show hide;split merge;training testing;train test;audio video;
    horizontal vertical;north south;east west;day night;morning evening;man woman;husband wife;teacher student;
    can must;can cannot;must may;should must;is was;are were;will did;does did;do did;and or;who what;where when;
    when why;how why;what where;he she;him her;his her;my your;we they;from to;into from;on under;in near;
    for against;at after;by without;Monday Friday;January July;today tomorrow;yesterday today;English French;
    Python Java;kg lb;kilograms pounds;km miles;meters feet;minutes hours;seconds minutes;days weeks;percent degrees;
    gb mb;celsius fahrenheit;dollars euros;am pm;million billion;hundred thousand;two three;one five;ten twelve;
    numeric alphabetic;string integer;default custom;directory database;function class;method class
    """.replace("\n", "").split(";")
]
_SWAPS: dict[str, list[str]] = {}
for _one, _other in _OPPOSITES:
    _SWAPS.setdefault(_one.lower(), []).append(_other)
    _SWAPS.setdefault(_other.lower(), []).append(_one)

_NAMES = [
    "Ruritania",
    "Kowalski",
    "Zanzibar",
    "Yamamoto",
    "Brigitte",
    "Qatar",
    "Lisbon",
    "Honda",
    "Sanderson",
    "Vermont",
    "Okafor",
    "Uruguay",
]
_ADJECTIVES = [
    "fake",
    "former",
    "unofficial",
    "broken",
    "counterfeit",
    "wooden",
    "French",
    "secret",
    "rival",
    "unlicensed",
    "second-hand",
]
_VERBS = frozenset(
    [
        "is",
        "are",
        "was",
        "were",
        "can",
        "could",
        "will",
        "would",
        "should",
        "must",
        "may",
        "does",
        "do",
        "did",
        "has",
        "have",
        "might",
    ]
)
_THINGS = tuple(
    """
    giraffe hammer violin taxes sugar passport glacier novel bridge chess vaccine pasta garden rocket mirror
    debt melt whisper gallop repaint forgive inherit colourful lonely northern bitter fragile musical
    """.split()  # noqa: SIM905 - a list of words reads best as words
)
_WORD = re.compile(r"[A-Za-z]+(?:'[a-z]+)?")
_FUNCTION_WORDS = frozenset(
    [
        "a",
        "an",
        "the",
        "such",
        "of",
        "to",
        "in",
        "on",
        "at",
        "for",
        "from",
        "by",
        "with",
        "and",
        "or",
        "is",
        "are",
        "was",
        "were",
        "be",
        "been",
        "being",
        "it",
        "its",
        "this",
        "that",
        "these",
        "those",
        "as",
        "you",
        "your",
        "i",
        "we",
        "he",
        "she",
        "they",
        "their",
        "his",
        "her",
        "which",
        "who",
        "what",
        "when",
        "where",
        "how",
        "why",
        "if",
        "can",
        "could",
        "will",
        "would",
        "should",
        "must",
        "may",
        "do",
        "does",
        "did",
        "has",
        "have",
        "not",
        "no",
        "used",
        "use",
        "uses",
        "using",
        "employ",
        "employed",
        "utilize",
        "utilized",
        "allow",
        "allows",
        "based",
        "purpose",
        "example",
        "case",
        "one",
        "quantity",
        "number",
        "amount",
        "there",
        "only",
        "almost",
    ]
)
_LISTED = re.compile(r"\b(and|or|and/or|both|either|between|with|to|of|is|are|also|e\.g|such as|like)\b|,|/")


class Mutation(NamedTuple):
    kind: str
    text: str


def mutate(text: str, chance: random.Random) -> Mutation | None:
    """`text` with one change of meaning, of a kind drawn by chance among those that it allows."""
    kinds = list(_KINDS)
    chance.shuffle(kinds)
    for kind in kinds:
        changed = kind(text, chance)
        if changed is not None and changed.lower() != text.lower():
            return Mutation(kind.__name__.strip("_"), changed)
    return None


def _outside_code(text: str) -> list[re.Match[str]]:
    """Words that are no part of code, of an address or of something quoted."""
    spans = [span.span() for span in re.finditer(r"`[^`]*`|\"[^\"]*\"|\S*[_/\\()\[\]=<>]\S*|\S+\.\S+", text)]
    return [word for word in _WORD.finditer(text) if not any(begin <= word.start() < end for begin, end in spans)]


def _put(text: str, word: re.Match[str], by: str) -> str:
    if word.group()[0].isupper() and by:
        by = by[0].upper() + by[1:]
    return text[: word.start()] + by + text[word.end() :]


def _number(text: str, chance: random.Random) -> str | None:
    found = list(re.finditer(r"(?<![\w.])\d+(?:\.\d+)?", text))
    if not found:
        return None
    number = chance.choice(found)
    return (
        text[: number.start()] + str(int(float(number.group())) + chance.choice([1, 2, 7, 10])) + text[number.end() :]
    )


def _opposite(text: str, chance: random.Random) -> str | None:
    found = [
        word
        for word in _outside_code(text)
        if word.group().lower() in _SWAPS
        # "To" before a verb is no direction.
        and (word.group().lower() != "to" or re.match(r" (?:an?|the|your|my|[A-Z])\b", text[word.end() :]))
    ]
    if not found:
        return None
    word = chance.choice(found)
    return _put(text, word, chance.choice(_SWAPS[word.group().lower()]))


def _negated(text: str, chance: random.Random) -> str | None:
    found = [
        word
        for word in _outside_code(text)
        if word.group().lower() in _VERBS and not re.match(r" (not|never|rarely|only|hardly|no)\b", text[word.end() :])
    ]
    if not found:
        return None
    word = chance.choice(found)
    by = chance.choice(["not", "never", "rarely", "only", "hardly"])
    return text[: word.end()] + " " + by + text[word.end() :]


def _named(text: str, chance: random.Random) -> str | None:
    found = [word for word in _outside_code(text) if word.group()[0].isupper() and word.start() > 0]
    return _put(text, chance.choice(found), chance.choice(_NAMES)) if found else None


def _identifier(text: str, chance: random.Random) -> str | None:
    found = list(re.finditer(r"`(\w+)`|\b(\w+_\w+)\b", text))
    if not found:
        return None
    word = chance.choice(found)
    name = word.group(1) or word.group(2)
    by = word.group().replace(name, chance.choice([name + "s", name[:-1], "other_" + name, name.swapcase()]))
    return text[: word.start()] + by + text[word.end() :]


def _content(text: str) -> list[re.Match[str]]:
    return [
        word for word in _outside_code(text) if word.group().lower() not in _FUNCTION_WORDS and len(word.group()) > 2
    ]


def _other_word(text: str, chance: random.Random) -> str | None:
    found = _content(text)
    return _put(text, chance.choice(found), chance.choice(_THINGS)) if found else None


def _exchanged(text: str, chance: random.Random) -> str | None:
    """Two content words in each other's place; not two of a list, nor two sides of "and"."""
    found = _content(text)
    pairs = [
        (one, other)
        for at, one in enumerate(found)
        for other in found[at + 1 : at + 6]
        if one.group().lower()[:4] != other.group().lower()[:4]
        and not re.fullmatch(r"\W*(,|and|or|and/or)?\W*(and|or)?\W*", text[one.end() : other.start()])
        and not _LISTED.search(text[one.end() : other.start()])
    ]
    if not pairs:
        return None
    one, other = chance.choice(pairs)
    return text[: one.start()] + other.group() + text[one.end() : other.start()] + one.group() + text[other.end() :]


def _limited(text: str, chance: random.Random) -> str | None:
    found = [
        word
        for word in _content(text)
        if word.group()[0].islower()
        and not re.search(r"\b(only|almost|except|without|instead of|no) $", text[: word.start()])
    ]
    if not found:
        return None
    word = chance.choice(found)
    by = chance.choice(["only", "almost", "except", "without", "instead of", "no"])
    return text[: word.start()] + by + " " + text[word.start() :]


def _described(text: str, chance: random.Random) -> str | None:
    found = list(re.finditer(r"\b(?:a|the|an|your|my) (?=[a-z])", text))
    if not found:
        return None
    word = chance.choice(found)
    return text[: word.end()] + chance.choice(_ADJECTIVES) + " " + text[word.end() :]


def _unconditioned(text: str, chance: random.Random) -> str | None:
    """Without its last phrase."""
    found = [
        word
        for word in re.finditer(r" (?:in|from|with|without|for|after|before|during|unless|if|under|against) ", text)
        if not text[: word.start()].endswith(("allow", "allows"))
        and len(text) - word.start() > 12
        and word.start() > 12
        and len(_content(text[word.start() :])) >= 1
    ]
    if not found:
        return None
    word = found[-1]
    dropped = [w.group().lower() for w in _content(text[word.start() :])]
    # A phrase that only repeats, or holds nothing but code, may go without loss.
    if not dropped or all(text.lower().count(w[:5]) > 1 for w in dropped):
        return None
    return text[: word.start()] + (text[-1] if text[-1] in ".?!" else "")


def _conditioned(text: str, chance: random.Random) -> str | None:
    end = text.rstrip(".?! ")
    mark = text[len(end) :] or ""
    return end + chance.choice([" in Norway", " for children", " at night", " without electricity", " on Windows 95",
                                " unless it rains", " since 2019", " after a divorce"]) + mark  # fmt: skip


_KINDS: tuple[Callable[[str, random.Random], str | None], ...] = (
    _number, _opposite, _opposite, _negated, _named, _identifier, _other_word, _exchanged, _exchanged, _limited,
    _described, _unconditioned, _conditioned,
)  # fmt: skip
