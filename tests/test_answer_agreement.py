"""Whether two answers say the same, as far as words can tell."""

from __future__ import annotations

import pytest

from policies.answer_agreement import Agreement, compare

LONG = "The committee met again on that day and talked about many things that mattered to it. " * 30


@pytest.mark.parametrize(
    ("one", "other", "told"),
    [
        ("Paris.", "**paris**", "same"),
        ("Open *Settings*,\nthen Reset.", "Open Settings, then Reset", "same"),
        (LONG, LONG, "same"),
        ("# Steps\n> Open `a b` now.", "Steps\nOpen a b now.", "same"),
        ("***Really*** so.", "Really so.", "same"),
        ("It is 2*3*4.", "It is 23*4.", "different"),
        ("Write it in C#.", "Write it in C.", "different"),
        ("Here x > 3 holds.", "Here x 3 holds.", "different"),
        ("Call my_file here.", "Call myfile here.", "different"),
        ("Paris is the capital of France.", "The capital of France is Paris.", "perhaps"),
        ("Open the settings menu to reset it.", "To reset it, open the settings menu.", "perhaps"),
        ("It takes 3 days.", "It takes 4 days.", "different"),
        ("It takes three days.", "It takes 3 days.", "perhaps"),
        ("Yes, you can return it.", "No, you can return it.", "different"),
        ("You can return it.", "You cannot return it.", "different"),
        ("Write to Anna Berg.", "Write to Paul Stein.", "different"),
        ("Due on May 3, 2024.", "Due on May 4, 2024.", "different"),
        ("Run `a --fast`.", "Run `a --slow`.", "different"),
        ("", "", "different"),
        ("It works.", "", "different"),
        ("Das geht nicht, weil es zu spät ist.", "Es ist zu spät, das geht nicht.", "different"),
        (LONG, LONG + " It ended late.", "different"),
    ],
)
def test_it_is_the_same_or_perhaps_or_cannot_be_told(one: str, other: str, told: str) -> None:
    assert compare(one, other) == compare(other, one) == Agreement(told)
