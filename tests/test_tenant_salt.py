"""The salt of a tenant: a golden vector, no two scopes alike, and nobody reaches another's."""

from __future__ import annotations

import hashlib
import hmac

from hypothesis import given
from hypothesis import strategies as st

from cache.tenant_salt import group_salt, tenant_salt

KEY = b"0123456789abcdef0123456789abcdef"
TEXT = st.text(st.characters(codec=None), max_size=30)


def by_hand(*fields: tuple[bytes, bytes]) -> str:
    data = b"".join(tag + len(value).to_bytes(8, "little") + value for tag, value in fields)
    return hmac.new(KEY, data, hashlib.sha256).hexdigest()[:32]


def test_golden_vectors() -> None:
    """As other gateways of a fleet, and later versions, must make them: a change empties every cache."""
    assert tenant_salt(KEY, "acme") == by_hand((b"D", b"prefixgate tenant salt v1"), (b"T", b"acme"))
    assert tenant_salt(KEY, "acme") == "31345aec4dbb8e2146120db54784c562"
    assert tenant_salt(KEY, "acme", "own") == "689efe12d59ff981350b41a5922cb536"
    assert group_salt(KEY, "acme") == "79bebfaf29e0c1bdcb78027e78c087cc"
    assert tenant_salt(KEY, "acme", "\ud800") == by_hand(
        (b"D", b"prefixgate tenant salt v1"), (b"T", b"acme"), (b"C", b"\xed\xa0\x80")
    )


@given(TEXT, TEXT, TEXT, TEXT)
def test_two_scopes_share_a_salt_only_if_they_are_the_same(a: str, own_a: str, b: str, own_b: str) -> None:
    assert (tenant_salt(KEY, a, own_a) == tenant_salt(KEY, b, own_b)) == ((a, own_a) == (b, own_b))
    assert group_salt(KEY, a) not in (tenant_salt(KEY, a, own_a), tenant_salt(KEY, b, own_b))


@given(TEXT, TEXT)
def test_no_salt_of_a_clients_own_leads_to_another_tenant(own: str, name: str) -> None:
    """Not even the salt of that tenant itself."""
    victim = tenant_salt(KEY, "victim")
    for tried in (own, victim, f"victim{own}", victim + own):
        assert tenant_salt(KEY, f"attacker{name}", tried) != victim
        assert tenant_salt(KEY + b"x", "victim", tried) != victim
