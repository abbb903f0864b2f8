"""Texts that wait to be embedded, scopes in turn: who brings many waits for himself. Pure."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import Generic, NamedTuple, TypeVar

Job = TypeVar("Job")


class Key(NamedTuple):
    """A text of a scope. Equal texts of two scopes share nothing, not even the time it takes."""

    scope: str
    digest: bytes
    """SHA-256 of the text, which may be long."""

    @classmethod
    def of(cls, scope: str, text: str) -> Key:
        """Of any text, also one that is not valid Unicode."""
        return cls(scope, hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest())


class TextQueue(Generic[Job]):
    """What waits, by key. All methods take constant time but `add` when it is full, which looks at each scope."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._scopes: OrderedDict[str, OrderedDict[Key, Job]] = OrderedDict()
        """None is empty; the first has the next turn."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def get(self, key: Key) -> Job | None:
        """What waits under this key."""
        return self._scopes.get(key.scope, OrderedDict[Key, Job]()).get(key)

    def add(self, key: Key, job: Job) -> tuple[bool, Job | None]:
        """Is it in, and who had to leave for it: the last of the scope that has most, where that is at least two more
        than its own. The key must not be in it.
        """
        gone: Job | None = None
        if self._count >= self._most:
            if not self._scopes:
                return False, None
            longest = max(self._scopes, key=lambda scope: len(self._scopes[scope]))
            if len(self._scopes[longest]) < len(self._scopes.get(key.scope, ())) + 2:
                return False, None
            gone = self.remove(next(reversed(self._scopes[longest])))
        self._scopes.setdefault(key.scope, OrderedDict())[key] = job
        self._count += 1
        return True, gone

    def remove(self, key: Key) -> Job | None:
        """Out of the queue; None if it is not in it."""
        waiting = self._scopes.get(key.scope)
        if waiting is None or key not in waiting:
            return None
        job = waiting.pop(key)
        self._count -= 1
        if not waiting:
            del self._scopes[key.scope]
        return job

    def pop(self) -> Job | None:
        """The oldest of the scope whose turn it is; None if nothing waits."""
        if not self._scopes:
            return None
        scope = next(iter(self._scopes))
        job = self.remove(next(iter(self._scopes[scope])))
        if scope in self._scopes:
            self._scopes.move_to_end(scope)
        return job
