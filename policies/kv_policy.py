"""What a tenant's KV may take beyond the pool and how long it is kept, and how a gateway tells a worker. Pure.

The header's value is a list of `name=value`, or of a name alone, parted by commas: `owner=6f0c…, ttl=3600,
host=2000000000, pin`. Names that are not known are passed over, so that a newer gateway can tell an older worker more.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from policies.types import Tier

KV_POLICY_FIELD: Final = "x-prefixgate-kv"
"""Name of the header."""
LONGEST_POLICY: Final = 512
"""Characters of its value."""

_ITEM: Final = re.compile(r"[ \t]*([a-z]{1,16})(?:=([A-Za-z0-9.]{1,64}))?[ \t]*")
_OWNER: Final = re.compile(r"[0-9a-f]{1,64}")
_SECONDS: Final = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,3})?")
_BYTES: Final = re.compile(r"[0-9]{1,18}")
_QUOTAS: Final = ("host", "disk", "redis")


@dataclass(frozen=True, slots=True, kw_only=True)
class KvPolicy:
    """What holds for the frames of one tenant at one worker; None is no rule besides those of the worker."""

    owner: str = ""
    """Whose frames are counted together, in hexadecimal; empty: those under each salt by themselves."""
    ttl: float | None = None
    """Seconds since it was used last after which KV is not used again; 0: nothing is kept."""
    host: int | None = None
    """The most bytes in host memory."""
    disk: int | None = None
    redis: int | None = None
    pin: bool = False
    """The beginnings of its prompts are not evicted from host memory and disk, as far as that is bounded there."""

    @property
    def keeps(self) -> bool:
        """May anything be kept?"""
        return self.ttl is None or self.ttl > 0

    def quota(self, tier: Tier) -> int | None:
        """Bytes in this tier."""
        match tier:
            case Tier.HOST:
                return self.host
            case Tier.DISK:
                return self.disk
            case Tier.REDIS:
                return self.redis
        return None

    def expires(self, now: float) -> float | None:
        """Until when that may be used which is used `now`, on the same clock."""
        return None if self.ttl is None else now + self.ttl

    def text(self) -> str:
        """The header's value. Times are told to the millisecond, rounded up to one."""
        items = [f"owner={self.owner}"] if self.owner else []
        if self.ttl is not None:
            items.append(f"ttl={self.ttl if self.ttl == 0 else max(self.ttl, 0.001):.3f}".rstrip("0").rstrip("."))
        items += [f"{name}={quota}" for name in _QUOTAS if (quota := getattr(self, name)) is not None]
        if self.pin:
            items.append("pin")
        return ", ".join(items)


NO_KV_POLICY: Final = KvPolicy()
KEEP_NOTHING: Final = KvPolicy(ttl=0.0)


def read_kv_policy(text: str) -> KvPolicy | None:
    """The policy that a header tells; None where it cannot be read, or says something twice."""
    if len(text) > LONGEST_POLICY:
        return None
    told: dict[str, str | None] = {}
    for item in text.split(","):
        match = _ITEM.fullmatch(item)
        if match is None or match[1] in told:
            return None
        told[match[1]] = match[2]
    owner, ttl = told.get("owner", ""), told.get("ttl", "0")
    quotas = [told.get(name, "0") for name in _QUOTAS]
    if owner is None or (owner and not _OWNER.fullmatch(owner)):
        return None
    if ttl is None or not _SECONDS.fullmatch(ttl) or told.get("pin") is not None:
        return None
    if any(quota is None or not _BYTES.fullmatch(quota) for quota in quotas):
        return None
    host, disk, redis = (int(quota or 0) if name in told else None for name, quota in zip(_QUOTAS, quotas, strict=True))
    return KvPolicy(
        owner=owner, ttl=float(ttl) if "ttl" in told else None, host=host, disk=disk, redis=redis, pin="pin" in told
    )
