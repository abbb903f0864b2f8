"""Workers that are listed: found at once, and for good."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

from backends.discovery.base import Found


class StaticDiscovery:
    """A list, as a source."""

    def __init__(self, found: Iterable[Found]) -> None:
        self._found = frozenset(found)

    async def watch(self) -> AsyncIterator[frozenset[Found]]:
        """The list, once."""
        yield self._found
