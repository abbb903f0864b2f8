"""`python -m tests.bench [NAME] [OPTIONS]`: one of the benchmarks, the data plane unless another is named."""

from __future__ import annotations

import os
import sys

_DEFAULT = "dataplane"
_NAMES = (
    "dataplane", "stages", "tokens", "index", "routing", "sessions", "simulated", "churn", "slow_clients",
    "chaos", "worker", "worker_model", "kv_codec", "disk_store", "redis_store", "eviction", "restore_price",
    "restore", "admission", "admission_slo", "cases", "response_cache", "host_store", "latency_model",
    "tenant_timing", "tiers", "response_hits", "embedding", "semantic_bound", "similarity", "admission_live",
    "slo_routing", "semantic_pairs", "semantic_lookup",
)  # fmt: skip

if __name__ == "__main__":
    named = sys.argv[1:2] and sys.argv[1] in _NAMES
    name = sys.argv[1] if named else _DEFAULT
    # A process of its own: some benchmarks start others of their kind.
    os.execv(sys.executable, [sys.executable, "-m", f"tests.bench.{name}", *sys.argv[2 if named else 1 :]])
