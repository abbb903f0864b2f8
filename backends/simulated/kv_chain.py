"""The engine's own block hashes: a chain of truncated SHA-256, deliberately not the gateway's."""

from __future__ import annotations

from hashlib import sha256
from typing import NewType

from policies.types import TokenIds

EngineHash = NewType("EngineHash", int)
"""The engine's chained hash of one full block: 64 bits, unsigned, opaque to everybody else."""

_TOKEN_BYTES = 4


def chain_root(model: str, adapter: str = "", salt: str = "") -> EngineHash:
    """Where the chain of one model, adapter and cache salt starts; different fields never share a root."""
    fields = (field.encode("utf-8", "surrogatepass") for field in (model, adapter, salt))
    return _truncated(b"".join(len(field).to_bytes(4, "little") + field for field in fields))


def extend(parent: EngineHash, ids: TokenIds, block_size: int) -> list[EngineHash]:
    """One hash for each full block of `ids`, chained on `parent`; the incomplete rest is left out."""
    width = block_size * _TOKEN_BYTES
    hashes: list[EngineHash] = []
    for start in range(0, len(ids) - width + 1, width):
        parent = _truncated(parent.to_bytes(8, "little") + ids[start : start + width])
        hashes.append(parent)
    return hashes


def unique_block(parent: EngineHash, request_id: str, index: int) -> EngineHash:
    """Hash for a generated block whose token ids nobody knows: never equal to another request's."""
    return _truncated(parent.to_bytes(8, "little") + index.to_bytes(8, "little") + request_id.encode())


def _truncated(data: bytes) -> EngineHash:
    return EngineHash(int.from_bytes(sha256(data).digest()[:8], "little"))
