"""How much a text tells of software: there more words, and more orders, say the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from policies.guards.stemming import stem
from policies.guards.tokens import LITERAL, WORD, Token
from policies.guards.word_lists import listed

SURELY: Final = 2
_ALWAYS: Final = frozenset(
    stem(word)[0]
    for word in listed(
        "dataset metadata api python software schema tokenizer repository parameter url boolean json csv javascript "
        "runtime compiler backend frontend filesystem tensor pytorch tensorflow numpy linux sql dataframe tuple"
    )
)
_PERHAPS: Final = frozenset(
    stem(word)[0]
    for word in listed(
        "function method class library program table column row file data script command server model document "
        "documentation page object string array index feature code module package directory folder database user "
        "download install configuration format field query token cache memory disk version return yield select guide "
        "tutorial combine slice"
    )
)


def tells_of_software(tokens: Sequence[Token]) -> int:
    """0 to `SURELY`; 1 where a word alone may mean other things."""
    stems = {stem(token.text)[0] for token in tokens if token.kind == WORD}
    if not stems.isdisjoint(_ALWAYS) or any(token.kind == LITERAL and len(token.text) > 1 for token in tokens):
        return SURELY
    return min(len(stems & _PERHAPS), SURELY)
