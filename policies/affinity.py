"""Which worker served a key last: a bounded map for sessions and for `previous_response_id`."""

from __future__ import annotations

from collections import OrderedDict

from policies.types import WorkerId


class _Home:
    """A worker as the entries name it: to forget it, one flag is turned, however many entries there are."""

    __slots__ = ("entries", "forgotten", "worker")

    def __init__(self, worker: WorkerId) -> None:
        self.worker = worker
        self.entries = 0
        self.forgotten = False


class AffinityMap:
    """Key → worker, for `ttl` seconds after the last use, and for the `max_entries` keys used last.

    `now` must not go backwards. What was forgotten with its worker still takes its place until it is the oldest.
    """

    def __init__(self, max_entries: int, ttl: float) -> None:
        """Raises ValueError unless both are above 0."""
        self._entries: OrderedDict[bytes | str, tuple[_Home, float]] = OrderedDict()
        """With the time of the last use; the one longest unused first."""
        self._homes: dict[WorkerId, _Home] = {}
        self._live = 0
        self.configure(max_entries, ttl)

    def configure(self, max_entries: int, ttl: float) -> None:
        """These hold from now on, for what is known already too. Raises ValueError unless both are above 0."""
        if max_entries < 1 or not ttl > 0:
            raise ValueError(f"a map of {max_entries!r} entries for {ttl!r} s holds nothing")
        self._max_entries = max_entries
        self._ttl = ttl
        while len(self._entries) > max_entries:
            self._drop(next(iter(self._entries)))

    def __len__(self) -> int:
        """Keys whose worker is known; those that expired count until the next `get` or `put`."""
        return self._live

    def get(self, key: bytes | str, now: float) -> WorkerId | None:
        """The worker of a key, or None; the use prolongs the entry."""
        self._expire(now)
        entry = self._entries.get(key)
        if entry is None or entry[0].forgotten:
            return None
        home = entry[0]
        self._entries[key] = (home, now)
        self._entries.move_to_end(key)
        return home.worker

    def put(self, key: bytes | str, worker: WorkerId, now: float) -> None:
        """From now on this key belongs to that worker."""
        self._expire(now)
        self._drop(key)
        if len(self._entries) >= self._max_entries:
            self._drop(next(iter(self._entries)))
        home = self._homes.get(worker)
        if home is None:
            home = self._homes[worker] = _Home(worker)
        home.entries += 1
        self._live += 1
        self._entries[key] = (home, now)

    def forget_worker(self, worker: WorkerId) -> None:
        """No key belongs to this worker any longer. Takes the same short time for any number of keys."""
        home = self._homes.pop(worker, None)
        if home is not None:
            home.forgotten = True
            self._live -= home.entries

    def _expire(self, now: float) -> None:
        entries = self._entries
        while entries:
            key = next(iter(entries))
            if entries[key][1] + self._ttl > now:
                return
            self._drop(key)

    def _drop(self, key: bytes | str) -> None:
        entry = self._entries.pop(key, None)
        if entry is None or entry[0].forgotten:
            return
        home = entry[0]
        home.entries -= 1
        self._live -= 1
        if not home.entries:
            del self._homes[home.worker]
