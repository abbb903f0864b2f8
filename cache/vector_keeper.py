"""The file of vectors as the index uses it: optional, and never a reason to fail, but for what must be gone from it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from cache import vector_slots as fmt
from cache.store import StoreError
from cache.vector_file import VectorFile
from cache.vector_rows import GONE
from cache.vector_slots import Layout, Record

log = logging.getLogger(__name__)


class VectorKeeper:
    """Keeps records in a file once one is opened, and as long as it can be written to."""

    def __init__(self) -> None:
        self._file: VectorFile | None = None
        self._full = False
        self._failed = False

    @property
    def bytes(self) -> int:
        """Of the file; 0 without one."""
        return 0 if self._file is None else self._file.size

    def open(self, directory: Path, layout: Layout, *, max_slots: int) -> Iterator[tuple[int, Record]]:
        """All that is in the file there: slots and records, to be read to the end. Raises StoreError, at any of them,
        where the directory cannot be used, or another process uses it; there is no file then.
        """
        if max_slots < 1:
            raise StoreError(f"{directory}: too few bytes for one vector")
        file = None
        try:
            file = VectorFile(directory, layout, max_slots=max_slots)
            yield from file.records()
        except BaseException as error:
            if file is not None:
                file.close()
            if isinstance(error, OSError):
                raise StoreError(f"{directory} cannot be opened for vectors: {error.strerror}") from error
            raise
        if file.discarded:
            log.warning("vectors in %s are thrown away: %s", directory, file.discarded)
        if file.damaged:
            log.warning("%d damaged vectors in %s are thrown away", file.damaged, directory)
        self._file = file

    def write(self, record: Record) -> int:
        """Its slot; `GONE` where it could not be kept, which is logged once until it can."""
        if self._file is None:
            return GONE
        try:
            slot = self._file.write(record)
        except OSError as error:
            self._note_failure(error.strerror)
            return GONE
        if slot is None:
            if not self._full:
                self._full = True
                log.warning("the file in %s is full: further vectors are kept in memory alone", self._file.path)
            return GONE
        self._full = self._failed = False
        return slot

    def used(self, slot: int, used: int) -> None:
        """Its record was used."""
        if self._file is not None and slot != GONE:
            try:
                self._file.used(slot, used)
            except OSError as error:
                self._note_failure(error.strerror)

    def clear(self, slots: Sequence[int]) -> None:
        """What they hold is gone from the file, if need be with the file. Raises StoreError where that fails too."""
        if self._file is not None:
            try:
                self._file.clear([slot for slot in slots if slot != GONE])
            except OSError as error:
                self._destroy(error)

    def sync(self) -> None:
        """All that was done until now survives a crash of the machine. Raises StoreError as `clear` does."""
        if self._file is not None:
            try:
                self._file.sync()
            except OSError as error:
                # What of it is on the disk is not known then, nor whether what was cleared is.
                self._destroy(error)

    def close(self) -> None:
        """Give the file back. Raises StoreError as `sync` does."""
        try:
            self.sync()
        finally:
            if self._file is not None:
                self._file.close()
                self._file = None

    def _note_failure(self, reason: str | None) -> None:
        if not self._failed and self._file is not None:
            self._failed = True
            log.warning("vectors cannot be written to %s: %s", self._file.path, reason)

    def _destroy(self, error: OSError) -> None:
        file, self._file = self._file, None
        assert file is not None
        try:
            file.destroy()
        except OSError as second:
            raise StoreError(f"{file.path} holds vectors that should be gone: {second.strerror}") from second
        finally:
            file.close()
        log.warning("vectors are no longer kept in %s, and what was there is deleted: %s", file.path, error.strerror)


def slots_within(layout: Layout, n_bytes: int) -> int:
    """How many slots a file of so many bytes has."""
    return (n_bytes - fmt.HEADER_SIZE) // layout.slot_size
