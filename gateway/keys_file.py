"""The file of API keys: digests, whose they are and since when. Written by `prefixgate keys`, read by the gateway."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec
import orjson

from gateway.api_keys import KeyDigest, read_digest, written
from gateway.config import ConfigError, Problem
from gateway.private_file import locked, read_file, replace_file

_MOST_BYTES: Final = 64 << 20
_SETTING: Final = "tenants.keys_file"
_VERSION: Final = 1


class KeyEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One key."""

    tenant: str
    digest: str
    created: datetime


class _File(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    keys: list[KeyEntry]


def read_keys(file: Path) -> Sequence[KeyEntry]:
    """The entries, in the file's order; none where there is no file.

    Raises:
        ConfigError: It cannot be read, is no such file, names one key twice, or others may write it.
    """
    data = read_file(file, _MOST_BYTES, _SETTING)
    if data is None:
        return ()
    if len(data) > _MOST_BYTES:
        raise _error(file, f"is longer than {_MOST_BYTES} bytes")
    try:
        found = msgspec.json.decode(data, type=_File)
    except (msgspec.DecodeError, RecursionError):
        # What the library says of it may hold a part of the file.
        raise _error(file, "is no file of `prefixgate keys`") from None
    if found.version != _VERSION:
        raise _error(file, f"is of version {found.version}, not {_VERSION}")
    seen: dict[KeyDigest, int] = {}
    for at, entry in enumerate(found.keys):
        try:
            digest = read_digest(entry.digest)
        except ValueError as error:
            raise _error(file, f"keys[{at}].digest: {error}") from None
        if digest in seen:
            raise _error(file, f"keys[{at}].digest: already that of keys[{seen[digest]}]")
        seen[digest] = at
    return found.keys


def add_key(file: Path, tenant: str, digest: KeyDigest) -> None:
    """Add a key, and make the file where there is none. Raises ConfigError."""
    with _changing(file):
        created = datetime.now(UTC).replace(microsecond=0)
        _write(file, [*read_keys(file), KeyEntry(tenant, written(digest), created)])


def remove_key(file: Path, digest: str) -> bool:
    """Remove the key of this written digest; False where there is none. Raises ConfigError."""
    with _changing(file):
        entries = read_keys(file)
        gone = read_digest(digest)
        left = [entry for entry in entries if read_digest(entry.digest) != gone]
        if len(left) == len(entries):
            return False
        _write(file, left)
        return True


@contextlib.contextmanager
def _changing(file: Path) -> Iterator[None]:
    """One at a time: of two that add a key, none may be lost."""
    try:
        with locked(file.with_name(f".{file.name}.lock")):
            yield
    except OSError as error:
        raise _error(file, f"cannot be written: {error.strerror}") from None


def _write(file: Path, entries: Sequence[KeyEntry]) -> None:
    data = orjson.dumps(
        {"version": _VERSION, "keys": [msgspec.structs.asdict(entry) for entry in entries]},
        option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE | orjson.OPT_UTC_Z,
    )
    replace_file(file, data)


def _error(file: Path, text: str) -> ConfigError:
    return ConfigError(str(file), [Problem(_SETTING, text)])
