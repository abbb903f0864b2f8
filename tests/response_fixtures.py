"""Answers, keys and caches for the tests of the response cache."""

from __future__ import annotations

import time
from typing import Any

from cache.epoch_log import MemoryEpochLog
from cache.epochs import Epochs
from cache.response_cache import ResponseCache
from cache.response_entry import ResponseEntry, Stamp
from cache.response_key import ResponseKey, response_key
from cache.small_store import SmallStore
from policies.response_freshness import FreshnessRules

A, B = b"scope of a", b"scope of b"
RULES = FreshnessRules(ttl=60, stale_while_revalidate=30, stale_if_error=300)


def key_of(number: int, scope: bytes = A, model: str = "llama") -> ResponseKey:
    return response_key(scope, model, "openai", "/v1/chat/completions", {"model": model, "prompt": number})


def answer(stamp: Stamp | None, model: str = "llama", body: bytes = b"an answer", **others: Any) -> ResponseEntry:
    assert stamp is not None, "what was forgotten is not known"
    facts: dict[str, Any] = {"content_type": "application/json", **others}
    facts.setdefault("stored_at", time.time())
    return ResponseEntry(body=body, model=model, stamp=stamp, **facts)


def in_memory(capacity: int = 1 << 20) -> ResponseCache:
    return ResponseCache(SmallStore(capacity), epochs=Epochs(MemoryEpochLog()))
