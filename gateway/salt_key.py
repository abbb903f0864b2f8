"""The secret from which cache salts are made, where the configuration has none: made once, then kept in a file.

A file that others than its owner may read is refused: who knows the key can tell what other tenants have cached.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from cache.tenant_salt import LEAST_KEY_BYTES
from gateway.config import ConfigError, Problem

NAME: Final = "salt-key"
_SETTING: Final = "tenants.state_dir"
_MOST_BYTES: Final = 4096


def default_folder(environment: Mapping[str, str]) -> Path:
    """Where state is kept unless the configuration says where: as systemd, or as the XDG base directories have it."""
    given = environment.get("STATE_DIRECTORY", "").partition(":")[0]
    if given:
        return Path(given)
    base = environment.get("XDG_STATE_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".local" / "state") / "prefixgate"


def kept_salt_key(folder: Path) -> bytes:
    """The key in `folder`, which is made if it has none. Several processes that begin together get the same one.

    Raises:
        ConfigError: It cannot be kept there, or not safely.
    """
    file = folder / NAME
    try:
        if not file.exists():
            _make(file)
        return _read(file)
    except OSError as error:
        raise ConfigError(str(file), [Problem(_SETTING, f"{error.strerror}; or set tenants.salt_key")]) from None


def _make(file: Path) -> None:
    """Write it beside its place and link it there: whoever comes second finds a whole file and leaves it."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = file.with_name(f"{NAME}.{secrets.token_hex(8)}")
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(secrets.token_hex(LEAST_KEY_BYTES).encode() + b"\n")
            out.flush()
            os.fsync(out.fileno())
        try:
            os.link(fresh, file)
        except FileExistsError:
            return
    finally:
        fresh.unlink()


def _read(file: Path) -> bytes:
    with file.open("rb") as source:
        mode = stat.S_IMODE(os.fstat(source.fileno()).st_mode)
        key = source.read(_MOST_BYTES).strip()
    if mode & 0o077:
        text = f"others may read it (mode {mode:04o}); it should be 0600"
        raise ConfigError(str(file), [Problem(_SETTING, text)])
    if len(key) < LEAST_KEY_BYTES:
        raise ConfigError(str(file), [Problem(_SETTING, "the key in it is too short; remove it to have one made")])
    return key
