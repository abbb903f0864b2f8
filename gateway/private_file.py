"""Files for their owner alone: none is read that others may write, and nobody ever finds half of one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

from gateway.config import ConfigError, Problem


@contextlib.contextmanager
def locked(lock: Path) -> Iterator[None]:
    """One process at a time, by a file for that purpose. Raises OSError."""
    handle = os.open(lock, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def read_file(file: Path, most: int, setting: str) -> bytes | None:
    """Its first `most` + 1 bytes; None where there is no file.

    Raises:
        ConfigError: It cannot be read, or others may write it: a problem of the `setting` that says where it is.
    """
    try:
        with file.open("rb") as source:
            mode = stat.S_IMODE(os.fstat(source.fileno()).st_mode)
            data = source.read(most + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(str(file), [Problem(setting, f"cannot be read: {error.strerror}")]) from None
    if mode & 0o022:
        text = f"others may write it (mode {mode:04o}); it should be 0600"
        raise ConfigError(str(file), [Problem(setting, text)])
    return data


def replace_file(file: Path, data: bytes) -> None:
    """Another file takes its place, mode 0600, which a crash of the machine does not undo. Raises OSError."""
    fresh = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        fresh.replace(file)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
    folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
