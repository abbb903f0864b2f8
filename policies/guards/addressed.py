"""Whom a text speaks to, and of what: "please" said to a reader, or spoken of; "you" the reader, or anybody."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from policies.guards.closed_words import CONJUNCTION, PREPOSITION
from policies.guards.stemming import stem
from policies.guards.tokens import COMMA, STOP, WORD, Token
from policies.guards.word_lists import listed, words

READER: Final = frozenset({"@you"})
"""The mark of "how do you", where it is not anybody."""
_READER_OR_WRITER: Final = frozenset(
    "p:" + word for word in listed("i me my mine myself you your yours yourself we us our ours ourselves")
)
_OF_ONESELF: Final = frozenset(
    "w:" + stem(word)[0]
    for word in listed(
        "feel know think learn see hear look like love hate work sleep mean decide believe remember understand want "
        "wish hope fear differ compare function operate behave act react respond reply answer help handle deal process "
        "store train live exist define rate rank judge view consider expect plan earn vote choose generate produce"
    )
)
"""What one does differs by who is asked: "how do you feel about war"."""
_SAYING: Final = frozenset(
    stem(word)[0] for word in listed("say mean spell pronounce translate write use call type rhyme hear answer reply")
)
_NAMING: Final = words("word words phrase a an the is was are not no") | frozenset(PREPOSITION) | frozenset(CONJUNCTION)
"""What stands behind them is spoken of."""
_END: Final = Token(STOP, "")


def is_last(tokens: Sequence[Token], at: int) -> bool:
    """Whether a clause ends behind the token at `at`."""
    return at + 1 == len(tokens) or tokens[at + 1].kind in {STOP, COMMA}


def is_said_to_reader(tokens: Sequence[Token], at: int) -> bool:
    """Whether a polite word is one, "please tell me", rather than spoken of: "how do I say please"."""
    before = tokens[at - 1] if at else _END
    if before.kind in {STOP, COMMA}:
        following = tokens[at + 1] if at + 1 < len(tokens) else _END
        return following.text not in PREPOSITION and following.text not in CONJUNCTION
    if before.text == "you":
        return True
    spoken_of = stem(before.text)[0] in _SAYING or before.text in _NAMING
    return is_last(tokens, at) and before.kind == WORD and not spoken_of


def is_anybody(keys: Sequence[str]) -> bool:
    """Whether "how do you" asks no more of the reader than "how do I" of the writer: what is done to a thing, and
    neither of them is told of besides. `keys` are those of a text's items.
    """
    return len(keys) > 1 and _READER_OR_WRITER.isdisjoint(keys) and _OF_ONESELF.isdisjoint(keys)
