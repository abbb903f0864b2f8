"""Aliases share a chain, models do not, adapters hang on their base."""

from __future__ import annotations

import pytest

from backends.model_names import Served, canonical_names


def card(name: str, *, root: str | None = None, parent: str | None = None) -> dict[str, object]:
    return {"id": name, "object": "model", "root": root, "parent": parent}


def test_a_model_alone_is_itself() -> None:
    assert canonical_names([Served(["m"], [])], []) == {"m": ("m", "")}


@pytest.mark.parametrize("order", [("b", "a"), ("a", "b")])
def test_aliases_in_any_order_on_any_worker_share_one_name(order: tuple[str, str]) -> None:
    first = Served(["a", "b"], [card("a", root="/m"), card("b", root="/m")])
    second = Served(list(order), [card(name, root="/m") for name in order])
    third = Served(["b"], [card("b", root="/m")])
    assert canonical_names([first, second, third], []) == {"a": ("a", ""), "b": ("a", "")}


def test_the_alias_with_a_tokenizer_is_preferred() -> None:
    served = Served(["a", "b", "c"], [card(name, root="/m") for name in "abc"])
    assert canonical_names([served], ["c", "b"]) == dict.fromkeys("abc", ("c", ""))


def test_two_models_behind_one_worker_stay_apart() -> None:
    served = Served(["a", "b"], [card("a", root="/m1"), card("b", root="/m2")])
    assert canonical_names([served], []) == {"a": ("a", ""), "b": ("b", "")}
    assert canonical_names([Served(["a", "b"], [])], ["a", "b"]) == {"a": ("a", ""), "b": ("b", "")}


def test_an_adapter_hangs_on_its_base_model() -> None:
    served = Served(
        ["base", "alias", "lora"], [card("base", root="/m"), card("alias", root="/m"), card("lora", parent="alias")]
    )
    names = canonical_names([served], ["base"])
    assert names == {"base": ("base", ""), "alias": ("base", ""), "lora": ("base", "lora")}
