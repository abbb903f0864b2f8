"""Do two answers say the same? Judged by their words, and by a similarity of vectors that somebody else computes. Pure.

It labels what a semantic cache would have served against what a worker said. An answer that is called wrong although it
is not costs hits; one that is called right although it is not breaks the bound. So whatever cannot be told is wrong:
answers that are too long to be compared, in another language, or with other numbers, names, dates, literals or
negations.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final

from policies.guards.profile import Profile
from policies.guards.reading import profile
from policies.semantic_bounds import Noise

AGREEMENT_NOISE: Final = Noise(false_wrong=0.0, false_correct=0.1)
"""Believed of such labels: at most a tenth of the wrong answers has the same numbers, names and negations as the right
one and reads like it. Right answers that are called wrong are many, and none of them is assumed.
"""
MOST_ALIKE: Final = 800
"""Characters of answers that are compared by their vectors: of a longer one models read the beginning, MiniLM 256
tokens.
"""

_MARKS: Final = re.compile(r"(?m)^[#>]+\s|(?<![\w*])(\*{1,3})(?=[^\s*])([^*\n]*[^\s*])\1(?![\w*])|(?<!\w)`|`(?!\w)")
"""Headings, quotes, emphasis, code. What stands within a text is part of it: 2*3 is not 23, nor C# C."""
_SPACE: Final = re.compile(r"\s+")


class Agreement(StrEnum):
    """What can be told by words."""

    SAME = "same"
    PERHAPS = "perhaps"
    """Only if their vectors are very similar."""
    DIFFERENT = "different"
    """Or nobody can tell."""


def compare(one: str, other: str) -> Agreement:
    """Symmetric. Takes up to some milliseconds."""
    if not one.strip() or not other.strip():
        return Agreement.DIFFERENT
    if _plain(one) == _plain(other):
        return Agreement.SAME
    if max(len(one), len(other)) > MOST_ALIKE:
        return Agreement.DIFFERENT
    first, second = profile(one), profile(other)
    if first.too_long or second.too_long or not (first.english and second.english):
        return Agreement.DIFFERENT
    # A name at the beginning of a sentence is no name by its capital alone.
    named = first.names <= second.keys and second.names <= first.keys
    return Agreement.PERHAPS if named and _facts(first) == _facts(second) else Agreement.DIFFERENT


def _plain(text: str) -> str:
    """Without what only changes how it looks."""
    return _SPACE.sub(" ", _MARKS.sub(r"\2", text)).strip(" .!").casefold()


def _facts(told: Profile) -> tuple[object, ...]:
    return (
        told.answer,
        sorted(told.numbers),
        sorted(told.literals),
        sorted(told.dates),
        sorted(told.negations),
    )
