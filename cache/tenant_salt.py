"""The cache salt of a tenant: what keeps its blocks apart from everybody else's. Pure.

HMAC-SHA256 under a secret of the operator over whose it is and, where a client brought a salt of its own, that too.
So a client can make its scope narrower and never reach another: it cannot choose the salt, and cannot guess one.

An epoch counts how often what is under the salt was forgotten. Each has salts of its own, so that nothing of an earlier
one can be reached any more, wherever it lies.
"""

from __future__ import annotations

import hmac
from typing import Final

_DOMAIN: Final = b"prefixgate tenant salt v1"
_SALT_BYTES: Final = 16
"""As many as make guessing hopeless; engines take any text."""
LEAST_KEY_BYTES: Final = 32


def tenant_salt(key: bytes, tenant: str, own: str = "", epoch: int = 0) -> str:
    """The salt of a tenant's requests, 32 hexadecimal digits. `own` is the client's salt, empty for none."""
    return _salt(key, b"T", tenant, own, epoch)


def group_salt(key: bytes, group: str, epoch: int = 0) -> str:
    """The salt of requests that are shared within a group of tenants; a name of a tenant makes another one."""
    return _salt(key, b"G", group, "", epoch)


def tenant_account(key: bytes, tenant: str) -> str:
    """Under what workers count the tenant's KV, whatever its salts, 32 hexadecimal digits; it opens nothing."""
    return _salt(key, b"A", tenant, "", 0)


def _salt(key: bytes, tag: bytes, name: str, own: str, epoch: int) -> str:
    """Each field is a type tag, a length (u64 little-endian) and that many bytes. The client's is left out where it
    brought none, and the epoch (u64 little-endian) where it is 0, which no value of them can look like.
    """
    fields = _field(b"D", _DOMAIN) + _field(tag, _encoded(name))
    if own:
        fields += _field(b"C", _encoded(own))
    if epoch:
        fields += _field(b"E", epoch.to_bytes(8, "little"))
    return hmac.digest(key, fields, "sha256")[:_SALT_BYTES].hex()


def _field(tag: bytes, value: bytes) -> bytes:
    return tag + len(value).to_bytes(8, "little") + value


def _encoded(text: str) -> bytes:
    # A salt from a JSON body may hold a lone surrogate; it must become some bytes of its own, not an error.
    return text.encode("utf-8", "surrogatepass")
