"""Small tools that the generators share: one template in many wordings, lists in words, articles."""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random

_CHOICE = re.compile(r"\[([^\[\]]*)\]")


def say(rng: Random, template: str, **slots: object) -> str:
    """`template` with every `[a|b|c]` replaced by one of its parts (they nest) and its `{slots}` filled in."""
    while (choice := _CHOICE.search(template)) is not None:
        chosen = rng.choice(choice[1].split("|"))
        template = template[: choice.start()] + chosen + template[choice.end() :]
    return template.format(**slots) if slots else template


def article(noun: str) -> str:
    """The noun with `a` or `an`."""
    return f"{'an' if noun[0].lower() in 'aeiou' else 'a'} {noun}"


def capital(text: str) -> str:
    """The text with its first letter large."""
    return text[:1].upper() + text[1:]


def listed(items: Sequence[str]) -> str:
    """`a, b and c`."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def plural(noun: str) -> str:
    """The regular plural of a noun."""
    if noun.endswith(("s", "x", "ch", "sh")):
        return noun + "es"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + "s"
