"""What a source of workers looks like: a list, a DNS name, and whatever else knows where they run. Pure."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from backends.address import place


@dataclass(frozen=True, slots=True)
class Found:
    """One worker that was found."""

    host: str
    """Name or address to connect to, without brackets."""
    port: int
    weight: float = 1.0
    """Its share of the work beside those that were found with it; 1 is the mean."""
    name: str = field(default="")
    """Stays the same as long as the worker does: by default `host:port`."""

    def __post_init__(self) -> None:
        """Name it by its place where nothing better is known."""
        if not self.name:
            object.__setattr__(self, "name", place(self.host, self.port))


class Discovery(Protocol):
    """A source of workers. A source that is watched by a loop of its own (Kubernetes' API, Ray's head, a registry)
    needs no more than this: whoever follows it compares each set with the one before, by name.
    """

    def watch(self) -> AsyncIterator[frozenset[Found]]:
        """The whole set, now and after each change; never the same set twice in a row.

        Ends where the set can never change again, and until then stays with the last set whatever fails: it raises
        nothing. Close it with `aclose`, or by cancelling the task that iterates.
        """


def in_order(found: Iterable[Found]) -> list[Found]:
    """The same set is always in the same order."""
    return sorted(found, key=lambda each: (each.name, each.host, each.port))
