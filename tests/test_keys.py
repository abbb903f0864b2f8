"""API keys: made, kept as digests, listed, revoked; the file that has them, and the secret of the salts."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from backends.http1 import parse_request_head
from gateway.admin.masked import masked
from gateway.api_keys import KeyRing, digest_of, key_id, new_key, presented_key, read_digest, written
from gateway.cli import application
from gateway.config import ConfigError, parse_config
from gateway.keys_file import add_key, read_keys, remove_key
from gateway.salt_key import NAME, default_folder, kept_salt_key
from gateway.tenant_assembly import keys_of
from tests.tenant_fixtures import KEYS, SALT_KEY, digest

WORKERS = "workers: [{url: 'http://127.0.0.1:8001'}]\n"


def keys(*words: str) -> Result:
    return CliRunner().invoke(application("keys"), ["keys", *words], env={"COLUMNS": "200", "NO_COLOR": "1"})


def config_file(folder: Path, more: str = "keys_file: keys.json") -> Path:
    file = folder / "prefixgate.yaml"
    members = f"[{{name: acme, keys: ['{digest('acme')}']}}, {{name: beta}}]"
    file.write_text(f"{WORKERS}tenants: {{salt_key: '{SALT_KEY}', members: {members}, {more}}}\n")
    return file


# --- keys


def test_a_key_holds_32_random_bytes() -> None:
    made = {new_key() for _ in range(100)}
    assert len(made) == 100
    for key in made:
        assert re.fullmatch(r"pg-[A-Za-z0-9_-]{43}", key)
        assert len(base64.urlsafe_b64decode(key[3:] + "=")) == 32


def test_a_digest_is_plain_sha_256() -> None:
    assert digest_of(b"abc").hex() == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert read_digest(written(digest_of(b"abc"))) == digest_of(b"abc")
    assert key_id(digest_of(b"abc")) == "ba7816bf8f01"
    for text in ("", "sha256:", "sha256:00", "ba" * 32, "sha256:" + "zz" * 32):
        with pytest.raises(ValueError, match=r"sha256|hexadecimal"):
            read_digest(text)


def test_keys_that_share_a_beginning_are_different_keys() -> None:
    long = b"k" * 64
    ring = KeyRing({digest_of(long): "one", digest_of(long + b"x"): "two"})
    assert ring.owner(long) == "one"
    assert ring.owner(long + b"x") == "two"
    for other in (b"", long[:-1], long[:20], long + b"y", long + b"\0", written(digest_of(long)).encode(), bytes(32)):
        assert ring.owner(other) is None
    assert len(ring) == 2


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_a_key_opens_what_is_its_own(key: bytes, other: bytes) -> None:
    assert KeyRing({digest_of(key): 1}).owner(other) == (1 if key == other else None)


@pytest.mark.parametrize(
    ("fields", "openai", "anthropic"),
    [
        ("Authorization: Bearer k", b"k", b"k"),
        ("authorization: bearer \t k ", b"k", b"k"),
        ("Authorization: Bearer", None, None),
        ("Authorization: Basic k", None, None),
        ("Authorization: Bearer a\r\nAuthorization: Bearer b", None, None),
        ("X-Api-Key: k", None, b"k"),
        ("X-Api-Key: k\r\nAuthorization: Bearer other", b"other", b"k"),
        ("X-Api-Key: k\r\nX-Api-Key: l", None, None),
        ("Cookie: authorization: Bearer k", None, None),
    ],
)
def test_where_a_key_is_looked_for(fields: str, openai: bytes | None, anthropic: bytes | None) -> None:
    head, _ = parse_request_head(f"GET / HTTP/1.1\r\nhost: g\r\n{fields}\r\n\r\n".encode(), object())
    assert presented_key(head.credentials, anthropic=False) == openai
    assert presented_key(head.credentials, anthropic=True) == anthropic


# --- the command


def test_a_new_key_is_printed_once_and_its_digest_kept(tmp_path: Path) -> None:
    config = config_file(tmp_path)
    made = keys("new", "beta", "-c", str(config))
    assert made.exit_code == 0
    key = made.stdout.strip()
    file = tmp_path / "keys.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert key not in file.read_text()
    (entry,) = read_keys(file)
    assert (entry.tenant, entry.digest) == ("beta", "sha256:" + hashlib.sha256(key.encode()).hexdigest())
    listed = keys("list", "-c", str(config)).stdout
    assert listed.split() == [
        *("tenant", "id", "created", "where"),
        *("acme", digest("acme")[7:19], "–", str(config)),
        *("beta", entry.digest[7:19], entry.created.isoformat(), str(file)),
    ]
    assert key not in listed
    assert keys("revoke", entry.digest[7:19], "-c", str(config)).exit_code == 0
    assert read_keys(file) == []
    again = keys("revoke", entry.digest[7:19], "-c", str(config))
    assert again.exit_code == 1
    assert "there is no key" in again.stderr


def test_a_key_whose_digest_is_in_capitals_can_be_revoked(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    entry = {"tenant": "acme", "digest": "sha256:" + digest("acme")[7:].upper(), "created": "2026-01-01T00:00:00Z"}
    file.write_text(json.dumps({"version": 1, "keys": [entry]}))
    file.chmod(0o600)
    shown = keys("list", "-f", str(file)).stdout.split()[5]
    assert keys("revoke", shown, "-f", str(file)).exit_code == 0
    assert read_keys(file) == []


def test_without_a_file_the_digest_is_told(tmp_path: Path) -> None:
    made = keys("new", "acme")
    key = made.stdout.strip()
    assert "sha256:" + hashlib.sha256(key.encode()).hexdigest() in made.stderr
    assert key not in made.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["new", "nobody", "-c", "CONFIG"], "has no tenant nobody; it has acme, beta"),
        (["new", "a b"], "a tenant's name is"),
        (["list"], "give --config FILE or --file FILE"),
        (["revoke", "abc", "-c", "CONFIG"], "an id has at least 8 digits"),
        (["revoke", digest("acme")[7:19], "-c", "CONFIG"], "take it out there"),
        (["list", "--file", "CONFIG"], "is no file of `prefixgate keys`"),
    ],
)
def test_what_is_wrong_is_told(tmp_path: Path, words: list[str], message: str) -> None:
    config = str(config_file(tmp_path))
    result = keys(*[config if word == "CONFIG" else word for word in words])
    assert result.exit_code != 0
    assert message in " ".join(re.sub(r"[│╭╰╮╯─]", " ", result.stderr).split())


def test_of_many_that_add_keys_at_once_none_is_lost(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    digests = [digest_of(b"%d" % number) for number in range(40)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda each: add_key(file, "acme", each), digests))
    assert {entry.digest for entry in read_keys(file)} == {written(each) for each in digests}
    assert remove_key(file, written(digests[0]))
    assert not remove_key(file, written(digests[0]))
    assert len(read_keys(file)) == 39
    assert sorted(path.name for path in tmp_path.iterdir()) == [".keys.json.lock", "keys.json"]


# --- the file


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"version": 1}',
        '{"version": 2, "keys": []}',
        '{"version": 1, "keys": [{"tenant": "a", "digest": "sha256:00", "created": "2026-01-01T00:00:00Z"}]}',
        '{"version": 1, "keys": [], "more": 1}',
        "[" * 100_000,
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "keys.json"
    file.write_text(text)
    file.chmod(0o600)
    with pytest.raises(ConfigError, match=r"tenants\.keys_file"):
        read_keys(file)


def test_a_file_that_others_may_write_and_a_key_that_is_there_twice_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    assert read_keys(file) == ()
    add_key(file, "acme", digest_of(b"k"))
    file.chmod(0o620)
    with pytest.raises(ConfigError, match="others may write it"):
        read_keys(file)
    file.chmod(0o600)
    add_key(file, "beta", digest_of(b"k"))
    with pytest.raises(ConfigError, match=r"already that of keys\[0\]"):
        read_keys(file)


def test_a_key_has_one_tenant(tmp_path: Path) -> None:
    add_key(tmp_path / "keys.json", "beta", digest_of(KEYS["acme"].encode()))
    config = config_file(tmp_path)
    with pytest.raises(ConfigError, match="of beta is one of acme in the configuration"):
        keys_of(parse_config(config.read_text(), base_dir=tmp_path))


def test_check_counts_the_keys(tmp_path: Path) -> None:
    config = config_file(tmp_path)
    result = CliRunner().invoke(application("check"), ["check", "-c", str(config)], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    assert re.search(r"acme +standard +1 +1 +private", result.stdout)
    assert "tenant beta has no key: nobody can be it" in result.stdout
    (tmp_path / "keys.json").write_text("{}")
    result = CliRunner().invoke(application("check"), ["check", "-c", str(config)], env={"COLUMNS": "200"})
    assert result.exit_code == 1


# --- the secret of the salts


def test_the_secret_is_made_once_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    folder = tmp_path / "state" / "prefixgate"
    with ThreadPoolExecutor(8) as threads:
        (key,) = set(threads.map(lambda _: kept_salt_key(folder), range(16)))
    assert len(key) >= 32
    assert stat.S_IMODE((folder / NAME).stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [path.name for path in folder.iterdir()] == [NAME]
    assert kept_salt_key(tmp_path / "other") != key
    (folder / NAME).chmod(0o640)
    with pytest.raises(ConfigError, match="others may read it") as told:
        kept_salt_key(folder)
    assert key.decode() not in str(told.value)
    (folder / NAME).chmod(0o600)
    (folder / NAME).write_text("short")
    with pytest.raises(ConfigError, match="too short"):
        kept_salt_key(folder)
    with pytest.raises(ConfigError, match=r"or set tenants\.salt_key"):
        kept_salt_key(folder / NAME)


def test_where_state_is_kept() -> None:
    assert default_folder({"STATE_DIRECTORY": "/var/lib/a:/var/lib/b"}) == Path("/var/lib/a")
    assert default_folder({"XDG_STATE_HOME": "/x"}) == Path("/x/prefixgate")
    assert default_folder({"XDG_STATE_HOME": "relative"}) == Path.home() / ".local/state/prefixgate"


# --- the configuration


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ("{members: [{name: a, keys: [pg-secret-of-a]}]}", "tenants.members[0].keys[0]: expected sha256: and 64"),
        ("{members: [{name: a}, {name: a}]}", "tenants.members[1].name: a is already that of tenants.members[0]"),
        (
            f"{{members: [{{name: a, keys: ['{digest('acme')}']}}, {{name: b, keys: ['{digest('acme')}']}}]}}",
            "tenants.members[1].keys[0]: tenant a has this key already",
        ),
        ("{members: [{name: a b}]}", "tenants.members[0].name: expected visible ASCII characters without spaces"),
        ("{members: [{name: a, models: []}]}", "tenants.members[0].models: expected a list of at least 1"),
        ("{members: [{name: a, priority: soon}]}", "tenants.members[0].priority: expected one of interactive,"),
        ("{members: [{name: a, rates: {concurrent: 0}}]}", "tenants.members[0].rates.concurrent: expected at least 1"),
        ("{members: [{name: a}], salt_key: short-secret}", "tenants.salt_key: expected a secret of at least 32"),
        ("{keys_file: keys.json}", "tenants.members: expected a list of at least 1 beside"),
        (
            "{members: [{name: a, per_model: [{name: m}, {name: m}]}]}",
            "tenants.members[0].per_model[1].name: m is already that of per_model[0]",
        ),
    ],
)
def test_a_bad_setting_is_told_without_its_secret(section: str, problem: str) -> None:
    with pytest.raises(ConfigError) as told:
        parse_config(f"{WORKERS}tenants: {section}\n")
    assert f"line 2: {problem}" in str(told.value)
    assert "secret-of-a" not in str(told.value)
    assert "short-secret" not in str(told.value)


def test_with_tenants_no_worker_is_shown_the_clients_key() -> None:
    workers = "workers: [{url: 'http://127.0.0.1:8001', forward_client_key: true}]\n"
    parse_config(workers)
    with pytest.raises(ConfigError, match=r"workers\[0\].forward_client_key: must be false where there are tenants"):
        parse_config(f"{workers}tenants: {{members: [{{name: a}}]}}\n")


def test_what_is_shown_of_a_configuration_has_no_key_in_it() -> None:
    section = f"tenants: {{salt_key: '{SALT_KEY}', members: [{{name: acme, keys: ['{digest('acme')}']}}]}}\n"
    shown = json.dumps(masked(parse_config(WORKERS + section)))
    assert "acme" in shown
    assert SALT_KEY not in shown
    assert digest("acme") not in shown
