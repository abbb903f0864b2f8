"""Files whose contents are known beforehand by their SHA-256: are they there, and how do they get to their place?

Nothing is taken over that is not exactly what was expected, and nobody ever sees half of it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import IO, Final, NamedTuple

_PIECE: Final = 1 << 20


class PinError(Exception):
    """A file is missing where it was looked for, or is not the one expected."""


class Pin(NamedTuple):
    """What a file must be."""

    sha256: str
    size: int


Pins = Mapping[str, Pin]
"""By name, without a folder."""


def is_complete(folder: Path, pins: Pins) -> bool:
    """Are all files there, each with its contents?"""
    return all(_is(folder / name, pin) for name, pin in pins.items())


@contextlib.contextmanager
def beside(folder: Path) -> Iterator[Path]:
    """An empty folder on the same file system, removed afterwards. Raises OSError."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = folder.parent / f".{folder.name}.{secrets.token_hex(8)}"
    made.mkdir(mode=0o700)
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def check(folder: Path, pins: Pins) -> None:
    """Raises PinError, which names the first file that is missing or another one."""
    for name, pin in pins.items():
        if not (folder / name).is_file():
            raise PinError(f"{name} is missing")
        if not _is(folder / name, pin):
            raise PinError(f"{name} is not the file expected: its SHA-256 is another one")


def unzip(archive: Path, into: Path, pins: Pins) -> None:
    """The pinned files alone, wherever in the archive they lie, and of each no byte more than expected.

    Raises PinError, and OSError where they cannot be written.
    """
    try:
        with zipfile.ZipFile(archive) as opened:
            names = {PurePosixPath(name).name: name for name in reversed(opened.namelist())}
            for name, pin in pins.items():
                if name not in names:
                    raise PinError(f"{archive.name} has no {name}")
                with opened.open(names[name]) as source, (into / name).open("xb") as out:
                    if not _copy(source, out, pin):
                        raise PinError(f"{name} in {archive.name} is not the file expected: its SHA-256 is another one")
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise PinError(f"{archive.name} cannot be read: {error}") from error


def place(fetched: Path, folder: Path, pins: Pins) -> None:
    """Move checked files from a folder of `beside` to where they belong: as a whole where nothing is, else one by one.
    Others in `folder` stay. Raises OSError.
    """
    for name in pins:
        with (fetched / name).open("rb") as file:
            os.fsync(file.fileno())
    whole = fetched / "whole"
    whole.mkdir(mode=0o755)
    for name in pins:
        (fetched / name).chmod(0o644)
        (fetched / name).rename(whole / name)
    try:
        whole.rename(folder)
    except OSError:  # something is there
        folder.mkdir(exist_ok=True)
        for name in pins:
            (whole / name).replace(folder / name)


def _copy(source: IO[bytes], out: IO[bytes], pin: Pin) -> bool:
    """Is it the file expected? Stops where it is too long."""
    digest, length = hashlib.sha256(), 0
    while piece := source.read(_PIECE):
        length += len(piece)
        if length > pin.size:
            return False
        digest.update(piece)
        out.write(piece)
    return length == pin.size and digest.hexdigest() == pin.sha256


def _is(path: Path, pin: Pin) -> bool:
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size != pin.size:
                return False
            return hashlib.file_digest(file, "sha256").hexdigest() == pin.sha256
    except OSError:
        return False
