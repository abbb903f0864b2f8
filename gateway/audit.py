"""Who had what forgotten: a line in the log, and one in a file where the configuration names one.

No prompt is in either: of a prefix there is its length, and its SHA-256 by which somebody who knows the text can show
that it was this one.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import orjson

from gateway.logs import FIELDS

log = logging.getLogger(__name__)


class AuditError(Exception):
    """The record is not in the file; the message says why."""


def tell(message: str, fields: Mapping[str, object], *, level: int = logging.WARNING) -> None:
    """A line in the log: text for people, `fields` where lines are JSON."""
    log.log(level, "%s", message, extra={FIELDS: fields})


def append(file: Path, fields: Mapping[str, object]) -> None:
    """One more line, whole and safe on disk once this returns; for a thread. Raises AuditError."""
    line = orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)
    # Something else than a file must not hold it up.
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        handle = os.open(file, flags, 0o600)
        try:
            _check(os.fstat(handle))
            fcntl.flock(handle, fcntl.LOCK_EX)  # until it is closed
            size = os.fstat(handle).st_size
            _append(handle, line, size)
        finally:
            os.close(handle)
        if not size:  # it must be found again
            _sync(file.parent)
    except OSError as error:
        raise AuditError(f"{file}: {error.strerror}") from None


def _check(found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "is no file")
    if stat.S_IMODE(found.st_mode) & 0o022:
        raise OSError(errno.EPERM, "others may write it; it should be 0600")


def _append(handle: int, line: bytes, size: int) -> None:
    if size and os.pread(handle, 1, size - 1) != b"\n":
        line = b"\n" + line  # a crash has cut the last one off
    whole = False
    try:
        whole = os.write(handle, line) == len(line)
        os.fsync(handle)
    finally:
        if not whole:
            with suppress(OSError):
                os.ftruncate(handle, size)
    if not whole:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
