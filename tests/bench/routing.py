"""Routing policies on a real trace, with real processes: engines, gateway and client, each policy on a fresh fleet.

`python -m tests.bench.routing` replays the first 2,000 requests of the Mooncake conversation trace over eight
simulated workers (caches that hold the slice, published timing) at a speed where prefill without any cache would
take 80% of what the fleet can prefill. About 100 s a policy.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any, Final

import yaml
from rich.console import Console
from rich.table import Table

from backends.simulated.timing import PublishedTiming
from gateway.replay.traces import read_trace

TRACE: Final = Path(__file__).parents[1] / "data/traces/mooncake_conversation_2000.jsonl.xz"
BUDGET: Final = 8_192
_TICKS: Final = os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Run every policy and print what came of it."""
    options = _options()
    rows = read_trace(TRACE, options.limit)
    rate = BUDGET / PublishedTiming().step_s(BUDGET, decoding=False, kv_used=0.0)
    offered = sum(row.input_tokens for row in rows) / rows[-1].at
    speed = options.demand * options.workers * rate / offered
    results = {policy: run(policy, options, speed) for policy in options.policies.split(",")}
    show(results, speed)
    if options.json:
        Path(options.json).write_text(json.dumps({"speed": speed, "policies": results}, indent=1))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", default="least_loaded,cost")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--limit", type=int, default=2000)
    parser.add_argument("--demand", type=float, default=0.8, help="of what the fleet can prefill without a cache")
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--json", metavar="FILE")
    return parser.parse_args()


def run(policy: str, options: argparse.Namespace, speed: float) -> dict[str, Any]:
    """One policy on a fleet of its own: what the replay measured, and each process' CPU time in seconds."""
    with tempfile.TemporaryDirectory() as folder:
        config, out = Path(folder) / "fleet.yaml", Path(folder) / "replay.json"
        engines = _start(
            "simulate", "-n", options.workers, "--port", 0, "--kv-port", 0, "--max-model-len", 200_000,
            "--block-size", options.block_size, "--blocks", 5_440_000 // options.block_size, "--write-config", config,
        )  # fmt: skip
        gateway = None
        try:
            _wait(config.exists)
            settings = yaml.safe_load(config.read_text())
            settings |= {
                "listen": {"port": 0},
                "admin": {"port": None},
                "routing": {"policy": policy},
                "index": {"max_blocks": 8_000_000},
            }
            settings["log"] = {"format": "json"}
            config.write_text(yaml.safe_dump(settings))
            log = Path(folder) / "gateway.log"
            with log.open("w") as stderr:
                gateway = _start("serve", "-c", config, stderr=stderr)
            _wait(lambda: "listening" in log.read_text())
            url = next(
                json.loads(line)["message"].split()[-1] for line in log.read_text().splitlines() if "listening" in line
            )
            _wait(lambda: _answers(url))
            replay = subprocess.run(
                [sys.executable, "-m", "gateway.cli.replay", str(TRACE), "--url", url, "--speed", str(speed),
                 "--limit", str(options.limit), "--workers", str(options.workers), "--json", str(out)],
                check=False,
            )  # fmt: skip
            summary = json.loads(out.read_text())["summary"]
            return {
                "exit": replay.returncode,
                "summary": summary,
                "computed_max_over_mean": _imbalance(json.loads(out.read_text()), options.workers),
                "cpu_s": {"engines": _cpu(engines), "gateway": _cpu(gateway)},
                "gateway_rss_mb": _rss(gateway),
            }
        finally:
            for process in (gateway, engines):
                if process is not None:
                    process.send_signal(signal.SIGTERM)
                    process.wait(40)


def _imbalance(replay: dict[str, Any], workers: int) -> float:
    """Most uncached prompt tokens on one worker, over the mean."""
    computed: dict[str, int] = {}
    for row in replay["requests"]:
        if row["worker"] is not None and row["prompt_tokens"] is not None:
            tokens = row["prompt_tokens"] - (row["cached_tokens"] or 0)
            computed[row["worker"]] = computed.get(row["worker"], 0) + tokens
    return max(computed.values()) * workers / sum(computed.values())


def show(results: dict[str, dict[str, Any]], speed: float) -> None:
    """One row a policy; ratios are to the first one."""
    table = Table(title=f"Mooncake conversation at {speed:.2f} × its own speed")
    for column in (
        "policy",
        "mean TTFT",
        "ratio",
        "P90 TTFT",
        "ratio",
        "hits",
        "max ÷ mean",
        "gateway CPU",
        "RSS",
    ):
        table.add_column(column, justify="right" if column != "policy" else "left")
    first = next(iter(results.values()))["summary"]["ttft"]
    for policy, result in results.items():
        ttft, hits = result["summary"]["ttft"], result["summary"]["hits"]
        table.add_row(
            policy, f"{ttft['mean']:.3f} s", f"{ttft['mean'] / first['mean']:.2f}", f"{ttft['p90']:.3f} s",
            f"{ttft['p90'] / first['p90']:.2f}", f"{hits['share']:.1%}", f"{result['computed_max_over_mean']:.2f}",
            f"{result['cpu_s']['gateway']:.0f} s", f"{result['gateway_rss_mb']:.0f} MB",
        )  # fmt: skip
    Console(width=110).print(table)


def _start(*arguments: object, stderr: Any = None) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "gateway", *map(str, arguments)], stdout=subprocess.DEVNULL, stderr=stderr
    )


def _wait(condition: Any, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"gave up after {seconds:g} s")
        time.sleep(0.1)
    time.sleep(0.3)


def _answers(url: str) -> bool:
    with urllib.request.urlopen(url + "/v1/models") as response:
        return bool(json.load(response)["data"])


def _cpu(process: subprocess.Popen[bytes]) -> float:
    fields = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _rss(process: subprocess.Popen[bytes]) -> float:
    return int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


if __name__ == "__main__":
    main()
