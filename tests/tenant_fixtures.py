"""Tenants for tests: keys, their digests, and configurations with them."""

from __future__ import annotations

from gateway.api_keys import digest_of, written

KEYS = {name: f"pg-{name}-{'0123456789' * 4}" for name in ("acme", "beta", "crew")}
SALT_KEY = "a salt key for tests, long enough"


def digest(name: str) -> str:
    """As it stands in a configuration."""
    return written(digest_of(KEYS[name].encode()))


def tenants(*members: str, more: str = "") -> str:
    """The section of a configuration. Each member is a name, or a name and further settings: `acme, weight: 2`."""
    entries = []
    for member in members:
        name, _, rest = member.partition(",")
        entries.append(f"{{name: {name}, keys: ['{digest(name)}']{f', {rest}' if rest else ''}}}")
    return f"tenants: {{salt_key: '{SALT_KEY}', members: [{', '.join(entries)}]{more}}}\n"


def bearer(name: str) -> bytes:
    """The header line of a tenant's client."""
    return b"Authorization: Bearer " + KEYS[name].encode()
