"""The host memory tier: the contract of stores, and what is its own."""

from __future__ import annotations

import pytest

from cache.memory_store import MemoryStore
from tests.store_contract import NewStore, StoreContract


class TestMemoryStore(StoreContract):
    has_quotas = True

    @pytest.fixture
    def new_store(self) -> NewStore:
        return lambda capacity, tenant_bytes=None: MemoryStore(capacity, tenant_bytes=tenant_bytes, page_bytes=4_096)
