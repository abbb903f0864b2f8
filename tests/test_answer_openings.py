"""Which texts of a request count as its prompt's beginning."""

from __future__ import annotations

import pytest

from gateway.answer_openings import openings_in

USER = {"role": "user", "content": "Who am I?"}
PARTS = [{"type": "text", "text": "See "}, {"type": "image_url", "image_url": {"url": "data:"}}, {"text": "this."}]


@pytest.mark.parametrize(
    ("fields", "openings"),
    [
        ({"messages": [USER]}, ("Who am I?",)),
        ({"messages": [{"role": "system", "content": "Be kind."}, USER]}, ("Be kind.", "Who am I?")),
        ({"messages": [{"role": "assistant", "content": None}, USER]}, ("Who am I?",)),
        ({"messages": [{"role": "user", "content": PARTS}]}, ("See this.",)),
        ({"messages": [{"role": "user", "content": PARTS[1:2]}]}, ()),
        ({"messages": ["no message", USER]}, ("Who am I?",)),
        ({"messages": "none"}, ()),
        ({"system": "Be kind.", "messages": [USER]}, ("Be kind.", "Who am I?")),
        ({"system": [{"type": "text", "text": "Be kind."}], "messages": [USER]}, ("Be kind.", "Who am I?")),
        ({"instructions": "Be kind.", "input": "Who am I?"}, ("Be kind.", "Who am I?")),
        ({"input": [{"type": "message", "role": "user", "content": PARTS}]}, ("See this.",)),
        ({"prompt": "Once upon"}, ("Once upon",)),
        ({"prompt": ["Once", "Twice"]}, ("Once", "Twice")),
        ({"input": ["a", "b", "c", "d", "e"]}, None),
        ({"prompt": [1, 2, 3]}, None),
        ({"input": [[1], [2]]}, None),
        ({"prompt": ["a", 1]}, None),
        ({"prompt": "x" * 1000}, ("x" * 256,)),
        ({}, ()),
    ],
)
def test_openings(fields: dict[str, object], openings: tuple[str, ...] | None) -> None:
    assert openings_in(fields) == openings
