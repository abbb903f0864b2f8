"""`python -m tests.bench [NAME] [OPTIONS]`: one of the benchmarks, the data plane unless another is named."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

_DEFAULT = "dataplane"
_NAMES = ("dataplane", "stages", "tokens", "index", "routing", "simulated", "churn")

if __name__ == "__main__":
    named = sys.argv[1:2] and sys.argv[1] in _NAMES
    name = sys.argv.pop(1) if named else _DEFAULT
    sys.argv[0] = str(Path(__file__).with_name(f"{name}.py"))
    runpy.run_module(f"tests.bench.{name}", run_name="__main__")
