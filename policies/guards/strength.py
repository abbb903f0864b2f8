"""How much two texts were found alike: the higher, the less was left to judgement.

Evidence is gathered for each strength by itself, so that a looser one serves only where it has proved itself.
"""

from __future__ import annotations

from typing import Final

LOOSE: Final = 1
"""Statements about software that tell the same things freely: general words may come and go."""
REWORDED: Final = 2
"""The same in other words: every word that may go, and every move, is accounted for."""
STRICT: Final = 3
"""Word for word, but for inflection, single synonyms, framings and moves that grammar accounts for. Any text."""
SAME_TEXT: Final = 4
"""The same text but for white space and its last full stop."""

NAMES: Final = {"loose": LOOSE, "reworded": REWORDED, "strict": STRICT, "same_text": SAME_TEXT}
"""As settings and reports call them."""
