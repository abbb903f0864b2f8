"""The file with the key under which KV is encrypted. `openssl rand -hex 32` makes one."""

from __future__ import annotations

import base64
import binascii
import os
import re
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from cache.kv_codec import MASTER_BYTES, FrameKeys

_MOST_BYTES: Final = 1024
_HEX: Final = re.compile(rb"[0-9a-fA-F]{%d}" % (2 * MASTER_BYTES))
_EXPECTED: Final = f"expected one line with {MASTER_BYTES} bytes as {2 * MASTER_BYTES} hex digits or as base64"


def load_frame_keys(path: Path) -> FrameKeys:
    """The keys that follow from the one in the file: 32 bytes as 64 hex digits or as base64, on one line.

    Raises ValueError, which names the file and never tells its content: where it cannot be read, is no plain file, may
    be read by others than its owner, or holds something else. Raises SealUnavailableError as `FrameKeys` does.
    """
    content = _content(path)
    key = _decoded(content.strip()) if len(content) <= _MOST_BYTES else None
    if key is None:
        raise ValueError(f"{path}: {_EXPECTED}; `openssl rand -hex 32` makes one")
    return FrameKeys(key)


def _content(path: Path) -> bytes:
    try:
        # What is asked about is what was opened; a pipe must not make it wait.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            mode = os.fstat(descriptor).st_mode
            if not stat.S_ISREG(mode):
                raise ValueError(f"{path}: not a plain file; {_EXPECTED}")
            if mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise ValueError(f"{path}: others than its owner may use it (mode {mode & 0o777:o}): chmod 600 {path}")
            return os.read(descriptor, _MOST_BYTES + 1)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}; {_EXPECTED}") from error


def _decoded(line: bytes) -> bytes | None:
    """The key; None: it is none."""
    if _HEX.fullmatch(line):
        return bytes.fromhex(line.decode("ascii"))
    with suppress(binascii.Error):
        key = base64.b64decode(line, validate=True)
        if len(key) == MASTER_BYTES:
            return key
    return None
