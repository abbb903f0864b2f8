"""What guards compare of a text: its words, numbers and literals in order, and what the rest of it says of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from policies.guards.stemming import BASE

NOTHING: Final[frozenset[int]] = frozenset()
NO_MARKS: Final[frozenset[str]] = frozenset()


@dataclass(slots=True)
class Item:
    """A content word, a number or a literal, and what the closed-class words before it say."""

    key: str
    """Stem, value with unit, or the literal; the first letter tells which."""
    general: frozenset[int] = NOTHING
    statement: frozenset[int | str] = NOTHING
    ending: str = BASE
    form: str = ""
    """past, prog, passive or perfect, by the auxiliary before it."""
    capital: bool = False
    possessive: bool = False
    article: bool = False
    definite: bool = False
    """The article is "the"."""
    sentence: int = 0
    after_comma: bool = False
    opens: bool = False
    """The first item of a sentence."""
    first: bool = False
    """Its very first word."""
    written: str = ""
    """The word as it stands there, in lower case."""
    aux: bool = False
    """An auxiliary or a modal stands before it: what came before was a phrase of its own."""
    hard: frozenset[str] = NO_MARKS
    """Negation, quantifiers, modals, comparatives, question words."""
    links: tuple[str, ...] = ()
    """Prepositions and conjunctions, in order."""


@dataclass(slots=True)
class Profile:
    """One text as guards see it."""

    exact: str
    """The text with only its white space and its last full stop put aside."""
    folded: str
    end: str = ""
    """A question mark, a full stop for any other end, or nothing."""
    bag: tuple[str, ...] = ()
    """Its words in alphabetical order."""
    too_long: bool = False
    english: bool = True
    software: int = 0
    """0 to 2: how much it tells of software; 1 where a word alone may mean other things."""
    question: bool = False
    answer: str = ""
    """The yes or no that it begins with."""
    opening: str = ""
    """What is asked for: how, what, ..., "yes/no", or "" for a statement or a command."""
    items: list[Item] = field(default_factory=list)
    keys: frozenset[str] = frozenset()
    numbers: tuple[str, ...] = ()
    literals: tuple[str, ...] = ()
    dates: tuple[str, ...] = ()
    names: frozenset[str] = frozenset()
    acronyms: frozenset[str] = frozenset()
    """Words all of capitals, unless the whole text is written so."""
    lower: bool = False
    """Written without capitals."""
    negations: tuple[str, ...] = ()
    hard: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    """The same and negations, in the order of the text."""
    tense: tuple[str, ...] = ()
    """past, perfect, as auxiliaries tell."""
    asides: tuple[str, ...] = ()
    """Words that a statement may do without, and a question may not: also, that, there."""
    auxiliaries: tuple[str, ...] = ()
    """be, have: what is he like is not what does he like."""
    quoted: str = ""
    """What stands behind the first colon: the matter of "translate: ..."."""
    tail: frozenset[str] = NO_MARKS
    tail_links: tuple[str, ...] = ()
    directions: tuple[str, ...] = ()
    """Prepositions of place, time and direction, which no other wording changes."""
    strict_order: bool = False
