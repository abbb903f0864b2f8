"""How often KV was forgotten: kept for good, never smaller, and a salt of its own each time."""

from __future__ import annotations

import stat
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.tenant_salt import group_salt, tenant_salt
from gateway.config import ConfigError
from gateway.kv_epochs import NAME, EpochWatch, KvEpochs, keep_epochs, read_epochs
from gateway.tenancy import Tenancy, TenantRules
from policies.tenant import TenantPolicy

KEY = b"a salt key for tests, long enough"


def one_more(before: KvEpochs) -> KvEpochs:
    return KvEpochs({"acme": before.tenants.get("acme", 0) + 1})


def test_counts_are_kept(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    assert read_epochs(folder) == KvEpochs()
    assert keep_epochs(folder, one_more) == KvEpochs({"acme": 1})
    assert keep_epochs(folder, lambda _: KvEpochs({"beta": 7}, {"crew": 2})).tenants == {"acme": 1, "beta": 7}
    assert read_epochs(folder) == KvEpochs({"acme": 1, "beta": 7}, {"crew": 2})
    assert keep_epochs(folder, lambda _: KvEpochs({"beta": 1})).tenants["beta"] == 7, "never smaller"
    assert stat.S_IMODE((folder / NAME).stat().st_mode) == 0o600
    assert {file.name for file in folder.iterdir()} == {NAME, f".{NAME}.lock"}


def test_of_many_that_count_none_is_lost(tmp_path: Path) -> None:
    threads = [threading.Thread(target=keep_epochs, args=(tmp_path, one_more)) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read_epochs(tmp_path) == KvEpochs({"acme": 20})


@pytest.mark.parametrize("content", [b"", b"{}", b'{"version": 2, "epochs": {}}', b"[" * 100_000, b"\xff"])
def test_a_damaged_file_is_refused(tmp_path: Path, content: bytes) -> None:
    """With smaller counts what was forgotten would be found again."""
    (tmp_path / NAME).write_bytes(content)
    (tmp_path / NAME).chmod(0o600)
    with pytest.raises(ConfigError):
        read_epochs(tmp_path)
    with pytest.raises(ConfigError):
        keep_epochs(tmp_path, one_more)
    assert (tmp_path / NAME).read_bytes() == content


def test_negative_counts_and_files_of_others_are_refused(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text('{"version": 1, "epochs": {"tenants": {"acme": -1}}}')
    (tmp_path / NAME).chmod(0o600)
    with pytest.raises(ConfigError, match="holds no counts"):
        read_epochs(tmp_path)
    (tmp_path / NAME).chmod(0o666)
    with pytest.raises(ConfigError, match="others may write it"):
        read_epochs(tmp_path)


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be written"):
        keep_epochs(tmp_path / "file" / "state", one_more)


def test_what_others_count_is_seen(tmp_path: Path) -> None:
    watch = EpochWatch()
    assert watch.news(tmp_path) is None
    keep_epochs(tmp_path, one_more)
    assert watch.news(tmp_path) == KvEpochs({"acme": 1})
    assert watch.news(tmp_path) is None
    keep_epochs(tmp_path, one_more)
    assert watch.news(tmp_path) == KvEpochs({"acme": 2})


def test_what_could_not_be_read_is_seen_once_it_can(tmp_path: Path) -> None:
    watch = EpochWatch()
    keep_epochs(tmp_path, one_more)
    (tmp_path / NAME).chmod(0o666)
    with pytest.raises(ConfigError, match="others may write it"):
        watch.news(tmp_path)
    assert watch.news(tmp_path) is None, "it was told"
    (tmp_path / NAME).chmod(0o600)
    assert watch.news(tmp_path) == KvEpochs({"acme": 1})


# --- salts ----------------------------------------------------------------------------------------------------------


def tenancy(*rules: TenantRules, before: Tenancy | None = None, kept: KvEpochs | None = None) -> Tenancy:
    return Tenancy(rules, {}, salt_key=KEY, now=0.0, before=before, kv_epochs=kept or KvEpochs())


def rules(name: str, group: str | None = None, kv_epoch: int = 0) -> TenantRules:
    return TenantRules(TenantPolicy(name=name), group=group, kv_epoch=kv_epoch)


def salts(of: Tenancy) -> Sequence[str]:
    return [salt for tenant in of.tenants.values() for salt in (tenant.salt(""), tenant.salt("own"))]


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), st.sampled_from(["", "own"]), st.integers(0, 3)), unique=True))
def test_each_epoch_has_salts_of_its_own(scopes: list[tuple[str, str, int]]) -> None:
    made = [tenant_salt(KEY, *scope) for scope in scopes]
    made += [group_salt(KEY, "a", epoch) for epoch in range(3)]
    assert len({*made}) == len(made)


def test_epoch_0_is_what_it_was() -> None:
    assert tenant_salt(KEY, "acme", epoch=0) == tenant_salt(KEY, "acme")
    assert salts(tenancy(rules("acme"))) == [tenant_salt(KEY, "acme"), tenant_salt(KEY, "acme", "own")]


def test_forgetting_turns_the_salts_of_one_tenant() -> None:
    all_ = tenancy(rules("acme"), rules("beta"))
    before, scope = salts(all_), all_.tenants["acme"].answers_scope
    assert all_.forget_kv("acme") == KvEpochs({"acme": 1})
    after = salts(all_)
    assert not {*before[:2]} & {*after}
    assert before[2:] == after[2:]
    assert all_.tenants["acme"].salt_field == b'"cache_salt":"%b",' % after[0].encode()
    assert all_.tenants["acme"].answers_scope == scope
    assert all_.forget_kv("acme") == KvEpochs({"acme": 2})
    assert all_.forget_kv("acme", at_least=9) == KvEpochs({"acme": 9})


def test_within_a_group_all_are_turned() -> None:
    """Nobody can tell whose a block of the group is."""
    all_ = tenancy(rules("acme", "crew"), rules("beta", "crew"), rules("else"))
    before = salts(all_)
    assert all_.tenants["acme"].shared_salts == (before[0], tenant_salt(KEY, "acme"))
    assert all_.forget_kv("acme") == KvEpochs({"acme": 1}, {"crew": 1})
    after = salts(all_)
    assert [was == now for was, now in zip(before, after, strict=True)] == [False, False, False, True, True, True]
    assert after[0] == after[2] == group_salt(KEY, "crew", 1)
    assert all_.forget_kv("beta") == KvEpochs({"beta": 2}, {"crew": 2})
    told = tenancy(rules("acme", "crew"), rules("beta", "crew", kv_epoch=2))
    assert told.tenants["acme"].salt("") == all_.tenants["acme"].salt(""), "one number tells another gateway"


def test_the_larger_count_holds() -> None:
    kept = KvEpochs({"acme": 3})
    assert tenancy(rules("acme", kv_epoch=2), kept=kept).tenants["acme"].kv_epoch == 3
    assert tenancy(rules("acme", kv_epoch=4), kept=kept).tenants["acme"].kv_epoch == 4
    running = tenancy(rules("acme"), kept=kept)
    running.forget_kv("acme")
    assert tenancy(rules("acme"), kept=kept, before=running).tenants["acme"].kv_epoch == 4, "it could not be kept"
    running.take_epochs(KvEpochs({"acme": 2, "beta": 9}))
    assert running.tenants["acme"].kv_epoch == 4
