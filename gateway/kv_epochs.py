"""How often the KV of tenants, and of groups of tenants, was forgotten: counts that their cache salts are made with.

Kept in the state folder beside the salt key, in a file that others may not write. Several gateways may share the
folder: each takes up what the others have counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Final

import msgspec

from gateway.config import ConfigError, Problem
from gateway.private_file import locked, read_file, replace_file

NAME: Final = "kv-epochs"
MOST_TOLD: Final = 1 << 31
"""The largest that may be told from outside: there must be room to count on."""

_SETTING: Final = "tenants.state_dir"
_MOST_BYTES: Final = 16 << 20
_VERSION: Final = 1

Epoch = Annotated[int, msgspec.Meta(ge=0)]


class KvEpochs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Counts by name; 0 for names that are not there."""

    tenants: Mapping[str, Epoch] = {}
    groups: Mapping[str, Epoch] = {}

    def merged(self, other: KvEpochs) -> KvEpochs:
        """The larger of both counts, name by name."""
        return KvEpochs(_larger(self.tenants, other.tenants), _larger(self.groups, other.groups))


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    epochs: KvEpochs


def read_epochs(folder: Path) -> KvEpochs:
    """What is kept in `folder`; nothing where there is no file.

    Raises:
        ConfigError: It cannot be read, is no such file, or others may write it: with smaller counts what was forgotten
            could be found again.
    """
    file = folder / NAME
    data = read_file(file, _MOST_BYTES, _SETTING)
    if data is None:
        return KvEpochs()
    try:
        found = msgspec.json.decode(data, type=_File)
    except (msgspec.DecodeError, RecursionError):
        raise _error(file, "holds no counts") from None
    if found.version != _VERSION:
        raise _error(file, f"is of version {found.version}, not {_VERSION}")
    return found.epochs


class EpochWatch:
    """Sees when another process has counted."""

    def __init__(self) -> None:
        self._seen: object = None

    def news(self, folder: Path) -> KvEpochs | None:
        """What is kept, if the file is another one than at the last call; takes some microseconds if not. Raises
        ConfigError, once for each file.
        """
        try:
            found = (folder / NAME).stat()
        except OSError:
            return None
        seen = (found.st_ino, found.st_ctime_ns, found.st_size)  # which a change of the mode changes too
        if seen == self._seen:
            return None
        self._seen = seen
        return read_epochs(folder)


def keep_epochs(folder: Path, change: Callable[[KvEpochs], KvEpochs]) -> KvEpochs:
    """Replace what is kept by what `change` makes of it, for good once this returns, and return that. One at a time,
    of all processes; for a thread. Raises ConfigError.
    """
    file = folder / NAME
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with locked(file.with_name(f".{NAME}.lock")):
            before = read_epochs(folder)
            after = change(before).merged(before)
            if after != before:
                replace_file(file, msgspec.json.encode(_File(_VERSION, after)))
            return after
    except OSError as error:
        raise _error(file, f"cannot be written: {error.strerror}") from None


def _larger(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in {**one, **other}}


def _error(file: Path, text: str) -> ConfigError:
    return ConfigError(str(file), [Problem(_SETTING, text)])
