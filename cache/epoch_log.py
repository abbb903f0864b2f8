"""Where the log of what was forgotten lies: in a file, in Redis, or nowhere but here."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol, TypeVar

from cache.guarded_tier import GuardedTier
from cache.redis_store import RedisStore
from cache.response_epochs import ITEM_BYTES, MOST_ITEMS
from cache.store import StoreError

R = TypeVar("R")

MOST_BYTES: Final = ITEM_BYTES * (MOST_ITEMS + 1)
"""Of a log; longer ones are not read to their end."""


class EpochLog(Protocol):
    """Bytes that are appended to. All calls raise StoreError."""

    @property
    def shared(self) -> bool:
        """Do others write to it?"""
        ...

    def read(self, first: int) -> bytes:
        """All from that byte on, MOST_BYTES and one more at most; empty where there is nothing."""
        ...

    def append(self, item: bytes) -> None:
        """Whole, and for good once this returns."""
        ...

    def clear(self) -> None:
        """Empty it."""
        ...


class MemoryEpochLog:
    """Gone with the process, as all that it is about."""

    shared: Final = False

    def __init__(self) -> None:
        self._bytes = b""

    def read(self, first: int) -> bytes:
        """See `EpochLog`."""
        return self._bytes[first:]

    def append(self, item: bytes) -> None:
        """See `EpochLog`."""
        self._bytes += item

    def clear(self) -> None:
        """See `EpochLog`."""
        self._bytes = b""


class FileEpochLog:
    """A file, synced with every item. One process has it open: who guards the store beside it guards it too."""

    shared: Final = False

    def __init__(self, path: Path) -> None:
        """The file is made where it is missing; its folder is not."""
        self._path = path

    def read(self, first: int) -> bytes:
        """See `EpochLog`."""
        try:
            with self._path.open("rb") as file:
                file.seek(first)
                return file.read(MOST_BYTES + 1)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise self._failed("read", error) from error

    def append(self, item: bytes) -> None:
        """See `EpochLog`. What could not be written as a whole is cut off again."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            fd = os.open(self._path, flags, 0o600)
            try:
                size = os.fstat(fd).st_size
                try:
                    _write_whole(fd, item)
                except OSError:
                    with suppress(OSError):
                        os.ftruncate(fd, size)
                    raise
            finally:
                os.close(fd)
            if size == 0:
                self._sync_folder()
        except OSError as error:
            raise self._failed("written", error) from error

    def clear(self) -> None:
        """See `EpochLog`."""
        try:
            self._path.unlink(missing_ok=True)
            self._sync_folder()
        except OSError as error:
            raise self._failed("removed", error) from error

    def _sync_folder(self) -> None:
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _failed(self, what: str, error: OSError) -> StoreError:
        return StoreError(f"{self._path} cannot be {what}: {error.strerror}")


def _write_whole(fd: int, item: bytes) -> None:
    if os.write(fd, item) != len(item):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.fsync(fd)


class RedisEpochLog:
    """A string in Redis, beside the entries, which never expires. APPEND is one step whoever else appends."""

    shared: Final = True

    def __init__(self, tier: GuardedTier, store: RedisStore, name: bytes) -> None:
        """`tier`: through which the store's failures are seen and logged. `name`: the key's."""
        self._tier = tier
        self._store = store
        self._name = name

    def read(self, first: int) -> bytes:
        """See `EpochLog`."""
        return self._done(lambda: self._store.part(self._name, first, first + MOST_BYTES))

    def append(self, item: bytes) -> None:
        """See `EpochLog`."""
        self._done(lambda: self._store.append(self._name, item), writes=True)

    def clear(self) -> None:
        """See `EpochLog`."""
        self._done(lambda: self._store.drop(self._name), writes=True)

    def _done(self, call: Callable[[], R], *, writes: bool = False) -> R:
        result = self._tier.ask(call, writes=writes)
        if result is None:
            raise StoreError("Redis does not tell what was forgotten")
        return result
