"""The key of encrypted KV, from a file: taken as documented, and never told."""

from __future__ import annotations

import base64
import os
import random
import shutil
import subprocess
from hashlib import sha256
from pathlib import Path

import pytest

from backends.worker.kv.key_file import load_frame_keys
from cache.kv_codec import FrameError, FrameKeys, FrameSpec
from cache.kv_keys import Dtype, Geometry
from cache.store import ChunkKey

MASTER = sha256(b"master").digest()
SPEC = FrameSpec(
    key=ChunkKey(sha256(b"key").digest()),
    parent=None,
    fingerprint=sha256(b"weights").digest(),
    geometry=Geometry(n_layers=1, kv_heads=1, head_dim=4, block_size=2, dtype=Dtype.BF16),
    first_token=0,
    n_tokens=2,
)
PAYLOAD = random.Random(1).randbytes(SPEC.payload_bytes)


def file(directory: Path, content: bytes, mode: int = 0o600) -> Path:
    path = directory / "kv.key"
    path.write_bytes(content)
    path.chmod(mode)
    return path


def open_each_other(one: FrameKeys, other: FrameKeys) -> bool:
    target = memoryview(bytearray(SPEC.payload_bytes))
    header = one.encrypt_into([target], SPEC, [PAYLOAD])
    try:
        other.decrypt_into([target], header, [target], SPEC)
    except FrameError:
        return False
    return target == PAYLOAD


@pytest.mark.parametrize("form", [MASTER.hex().encode(), MASTER.hex().upper().encode(), base64.b64encode(MASTER)])
@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n", b" \n\n"])
def test_hex_and_base64(tmp_path: Path, form: bytes, end: bytes) -> None:
    keys = load_frame_keys(file(tmp_path, form + end))
    assert open_each_other(FrameKeys(MASTER), keys)
    assert not open_each_other(FrameKeys(bytes(32)), keys)


@pytest.mark.parametrize("mode", [0o400, 0o600, 0o700])
def test_its_owner_may_do_anything(tmp_path: Path, mode: int) -> None:
    load_frame_keys(file(tmp_path, MASTER.hex().encode(), mode))


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o610, 0o602, 0o777])
def test_a_file_that_others_may_use_is_refused(tmp_path: Path, mode: int) -> None:
    path = file(tmp_path, MASTER.hex().encode(), mode)
    with pytest.raises(ValueError, match=rf"kv\.key: others .*\(mode {mode:o}\): chmod 600 .*kv\.key$") as caught:
        load_frame_keys(path)
    assert MASTER.hex()[:8] not in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        b"", b"\n", b"correct horse battery staple", MASTER, MASTER.hex().encode()[:-1], MASTER.hex().encode() + b"0",
        MASTER.hex().encode()[:-1] + b"g", (MASTER.hex() + "\n" + MASTER.hex()).encode(),
        MASTER.hex().encode()[:32] + b" " + MASTER.hex().encode()[32:], b"0x" + MASTER.hex().encode(),
        base64.b64encode(MASTER)[:-1], base64.b64encode(MASTER[:31]), base64.b64encode(MASTER + b"1"),
        base64.b64encode(MASTER)[:20] + b"\n" + base64.b64encode(MASTER)[20:], b"\xff\xfe" + MASTER.hex().encode(),
        MASTER.hex().encode() * 100, MASTER.hex().encode() + b"\n" * 2000,
    ],
)  # fmt: skip
def test_what_is_no_key_is_refused_and_not_told(tmp_path: Path, content: bytes) -> None:
    path = file(tmp_path, content)
    with pytest.raises(ValueError, match="expected one line with 32 bytes as 64 hex digits or as base64") as caught:
        load_frame_keys(path)
    assert str(path) in str(caught.value)
    told = "".join(map(repr, (caught.value, caught.value.__cause__, caught.value.__context__)))
    for secret in (MASTER.hex()[:8], base64.b64encode(MASTER)[:8].decode(), repr(MASTER)[2:10], "horse"):
        assert secret not in told


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="missing: cannot be read: No such file or directory; expected one line"):
        load_frame_keys(tmp_path / "missing")
    with pytest.raises(ValueError, match="not a plain file"):
        load_frame_keys(tmp_path)
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(ValueError, match="not a plain file"):  # and it does not wait for a writer
        load_frame_keys(tmp_path / "pipe")


def test_a_link_is_as_good_as_its_file(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(file(tmp_path, MASTER.hex().encode()))
    assert open_each_other(load_frame_keys(link), FrameKeys(MASTER))
    file(tmp_path, MASTER.hex().encode(), 0o644)
    with pytest.raises(ValueError, match="chmod 600"):
        load_frame_keys(link)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_the_documented_command_makes_one(tmp_path: Path) -> None:
    path = tmp_path / "kv.key"
    subprocess.run(f"umask 077 && openssl rand -hex 32 > {path}", shell=True, check=True, timeout=30)
    assert open_each_other(load_frame_keys(path), load_frame_keys(path))
