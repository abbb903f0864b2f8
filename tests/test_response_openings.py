"""How prompts begin, and what is forgotten by it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.response_openings import MOST_OPENINGS, OPENING_CHARS, openings_of, prefix_digest

SALT = b"sixteen bytes..."
TEXTS = st.text(st.characters(categories=["L", "N", "Cs", "So"]), max_size=600)


@given(TEXTS, st.integers(1, 600), st.binary(min_size=16, max_size=16))
def test_a_text_begins_as_it_begins(text: str, n: int, salt: bytes) -> None:
    openings = openings_of([text])
    prefix = text[:n]
    if prefix:
        digest = prefix_digest(prefix, salt)
        assert digest.matches(openings)
        assert digest.n_chars == min(len(prefix), OPENING_CHARS)
        assert not digest.matches(())
        assert prefix_digest(prefix + "!", salt).matches(openings) is (len(prefix) >= OPENING_CHARS)
    assert openings is not None
    assert all(len(one.encode()) <= 4 * OPENING_CHARS for one in openings)


@given(TEXTS, TEXTS)
def test_a_prefix_matches_what_begins_so_and_nothing_else(text: str, prefix: str) -> None:
    if prefix:
        plain = [one.encode("utf-8", "replace") for one in (text[:OPENING_CHARS], prefix[:OPENING_CHARS])]
        assert prefix_digest(prefix, SALT).matches(openings_of([text])) is plain[0].startswith(plain[1])


def test_of_several_texts_any_counts() -> None:
    openings = openings_of(["You are kind.", "", "My name is Ada.", "You are kind."])
    assert openings == ("You are kind.", "My name is Ada.")
    assert prefix_digest("My name", SALT).matches(openings)
    assert prefix_digest("You", SALT).matches(openings)
    assert not prefix_digest("name", SALT).matches(openings)


def test_what_is_not_known_may_begin_in_any_way() -> None:
    assert openings_of(f"{number}" for number in range(MOST_OPENINGS + 1)) is None
    assert prefix_digest("x", SALT).matches(None)


def test_a_digest_shows_nothing_of_the_text() -> None:
    one, other = prefix_digest("Hello", SALT), prefix_digest("Hello", bytes(16))
    assert one.digest != other.digest
    assert b"Hel" not in one.digest
    with pytest.raises(ValueError, match="at least one"):
        prefix_digest("", SALT)
