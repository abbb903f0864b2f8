"""The disk store's directory: files by name, held by one process, and the few calls of Linux that a log needs.

Everything goes through a descriptor of the directory and follows no link. All methods raise `OSError`.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from cache.disk_segment import ALIGN
from cache.store import Buffer, StoreError

LOCK: Final = "lock"
ORDER: Final = "order"
_SEGMENT: Final = re.compile(r"([0-9a-f]{16})\.seg")
_INDEX: Final = re.compile(r"([0-9a-f]{16})\.idx")
_FLAGS: Final = os.O_CLOEXEC | os.O_NOFOLLOW
_PIECES_AT_ONCE: Final = 512
"""Pieces of one system call; Linux takes 1,024."""
_KEEP_SIZE: Final = 1
_PUNCH_HOLE: Final = 2


class Directory:
    """An open directory that nobody else has open as a store."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        # One that is there keeps its mode: somebody may have meant it.
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
        with contextlib.ExitStack() as undo:
            self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            undo.callback(os.close, self._fd)
            self._lock = self.open(LOCK, os.O_RDWR | os.O_CREAT)
            undo.callback(os.close, self._lock)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StoreError(f"{path} is in use by another process: each needs a folder of its own") from None
            undo.pop_all()

    def close(self) -> None:
        """Let others have it."""
        os.close(self._lock)
        os.close(self._fd)

    def open(self, name: str, flags: int = os.O_RDONLY) -> int:
        """A descriptor of a file in it; new ones are for their owner alone."""
        return os.open(name, flags | _FLAGS, 0o600, dir_fd=self._fd)

    @contextlib.contextmanager
    def opened(self, name: str, flags: int = os.O_RDONLY) -> Iterator[int]:
        """A descriptor for a while."""
        fd = self.open(name, flags)
        try:
            yield fd
        finally:
            os.close(fd)

    def read(self, name: str, *, limit: int) -> bytes:
        """The whole file; nothing where it is longer than `limit`."""
        with self.opened(name) as fd:
            size = os.fstat(fd).st_size
            data = bytearray(size if size <= limit else 0)
            return bytes(data) if read_exactly(fd, [memoryview(data)], 0) else b""

    def write(self, name: str, data: bytes, *, sync: bool = True) -> None:
        """Replace the file; after a crash it may be any part of it. `sync`: not after one that comes later."""
        with self.opened(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as fd:
            write_all(fd, [data], 0)
            if sync:
                os.fdatasync(fd)

    def unlink(self, name: str) -> None:
        """Remove it, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._fd)

    def size(self, number: int) -> int:
        """Bytes of a segment and its index; 0 where that cannot be told."""
        total = 0
        for name in segment_name(number), index_name(number):
            with contextlib.suppress(OSError):
                total += os.stat(name, dir_fd=self._fd, follow_symlinks=False).st_size
        return total

    def sync(self) -> None:
        """Make names last."""
        os.fsync(self._fd)

    def listing(self) -> tuple[list[int], list[int], int]:
        """Numbers of segments, numbers of indexes, and bytes of all that is not the store's."""
        segments, indexes, foreign = [], [], 0
        with os.scandir(self._fd) as entries:
            for entry in entries:
                if found := _SEGMENT.fullmatch(entry.name):
                    segments.append(int(found[1], 16))
                elif found := _INDEX.fullmatch(entry.name):
                    indexes.append(int(found[1], 16))
                elif entry.name not in {LOCK, ORDER}:
                    foreign += entry.stat(follow_symlinks=False).st_size
        return sorted(segments), indexes, foreign

    def block_size(self) -> int:
        """Of the file system, in bytes."""
        return os.fstatvfs(self._fd).f_bsize


def segment_name(number: int) -> str:
    """Its file."""
    return f"{number:016x}.seg"


def index_name(number: int) -> str:
    """The file beside it."""
    return f"{number:016x}.idx"


def read_exactly(fd: int, pieces: Sequence[memoryview], offset: int) -> bool:
    """Fill all of them from there; False where the file ends before."""
    return _all(os.preadv, fd, pieces, offset)


def write_all(fd: int, pieces: Sequence[Buffer], offset: int) -> None:
    """Write all of them there."""
    if not _all(os.pwritev, fd, pieces, offset):
        raise OSError(errno.EIO, "nothing was written")


def _all(call: object, fd: int, pieces: Sequence[Buffer], offset: int) -> bool:
    assert callable(call)
    at = 0
    left = list(pieces)
    while at < len(left):
        done = call(fd, left[at : at + _PIECES_AT_ONCE], offset)
        offset += done
        progress = done
        while at < len(left) and done >= len(left[at]):
            done -= len(left[at])
            at += 1
            progress = 1
        if not progress:
            return False
        if done:
            left[at] = memoryview(left[at])[done:]
    return True


def next_data(fd: int, offset: int) -> int | None:
    """Where data begins, from `offset` on; None: nowhere. Where holes are unknown all of a file is data."""
    try:
        return os.lseek(fd, offset, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return None
        raise


def _libc_fallocate() -> ctypes._NamedFuncPointer | None:
    try:
        call = ctypes.CDLL(None, use_errno=True).fallocate
    except (OSError, AttributeError):
        return None
    call.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    call.restype = ctypes.c_int
    return call


_fallocate: Final = _libc_fallocate()


def punch(fd: int, offset: int, length: int) -> None:
    """Give the space of this part of a file back: it reads as zeros then. See fallocate(2), FALLOC_FL_PUNCH_HOLE."""
    if _fallocate is None:
        raise OSError(errno.EOPNOTSUPP, "no fallocate here")
    while _fallocate(fd, _KEEP_SIZE | _PUNCH_HOLE, offset, length):
        code = ctypes.get_errno()
        if code != errno.EINTR:
            raise OSError(code, os.strerror(code))


def can_punch(directory: Directory) -> bool:
    """Whether the file system gives parts of files back, by trying it on the lock file."""
    if directory.block_size() > ALIGN:
        return False
    try:
        with directory.opened(LOCK, os.O_RDWR) as fd:
            punch(fd, 0, ALIGN)
    except OSError as error:
        if error.errno in {errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EPERM}:
            return False
        raise
    return True
