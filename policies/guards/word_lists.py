"""Word lists are written as text: this reads them."""

from __future__ import annotations


def listed(text: str) -> list[str]:
    """The words of `text`, in order."""
    return text.split()


def words(text: str) -> frozenset[str]:
    """The words of `text`."""
    return frozenset(text.split())
