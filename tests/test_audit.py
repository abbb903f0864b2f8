"""Records of what was forgotten: whole lines, safe on disk, in a file of our own."""

from __future__ import annotations

import json
import os
import resource
import threading
from pathlib import Path

import pytest

from gateway import audit


def test_lines_are_appended_and_nobody_else_may_read_them(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    for number in range(3):
        audit.append(file, {"id": number, "text": "two\nlines"})
    assert [json.loads(line)["id"] for line in file.read_text().splitlines()] == [0, 1, 2]
    assert file.stat().st_mode & 0o777 == 0o600


def test_of_many_at_once_each_line_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    threads = [threading.Thread(target=audit.append, args=(file, {"id": n, "text": "x" * 5_000})) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(json.loads(line)["id"] for line in file.read_text().splitlines()) == list(range(20))


def test_what_cannot_be_a_record_is_refused(tmp_path: Path) -> None:
    (tmp_path / "shared").touch()
    (tmp_path / "shared").chmod(0o664)
    (tmp_path / "link").symlink_to(tmp_path / "target")
    os.mkfifo(tmp_path / "pipe")
    for name, why in (
        ("shared", "others may write"),
        ("link", "symbolic links"),
        ("pipe", "is no file"),
        ("none/file", "No such file"),
    ):
        with pytest.raises(audit.AuditError, match=why):
            audit.append(tmp_path / name, {"id": 1})
    assert not (tmp_path / "target").exists()


def test_a_disk_that_is_full_is_told_and_the_next_line_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    audit.append(file, {"id": 0})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size + 5, before[1]))
    try:
        with pytest.raises(audit.AuditError):
            audit.append(file, {"id": 1, "text": "x" * 100})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    audit.append(file, {"id": 2})
    assert [json.loads(line) for line in file.read_text().splitlines()] == [{"id": 0}, {"id": 2}]


def test_a_line_that_a_crash_has_cut_off_spoils_no_other(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    file.touch(mode=0o600)
    file.write_bytes(b'{"id": 0}\n{"id"')
    audit.append(file, {"id": 2})
    assert file.read_bytes() == b'{"id": 0}\n{"id"\n{"id":2}\n'
