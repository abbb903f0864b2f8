"""A gateway with tenants in front of simulated engines, each a process, for one run; and what it left behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

import aiohttp
import yaml
from prometheus_client.parser import text_string_to_metric_families

from backends.simulated.engine import EngineConfig
from gateway.api_keys import digest_of, new_key, written
from gateway.cli.fleet_config import fleet_config
from gateway.replay.slo import Slos
from policies.admission_types import ServiceClass
from tests.bench.live_engine import written as engine_written
from tests.bench.processes import ROOT, Server
from tests.ports import free_ports

MODEL: Final = "simulated"
_START_S: Final = 60.0
_STOP_S: Final = 10.0
_EMPTY: Final = (
    "prefixgate_worker_active_requests",
    "prefixgate_tenant_requests_in_flight",
    "prefixgate_admission_waiting",
    "prefixgate_admission_waiting_bytes",
)
"""What is 0 when everything is over."""


@dataclass(frozen=True)
class Setup:
    """What runs."""

    policy: str
    """Of admission."""
    engine: EngineConfig
    workers: int
    tenants: Mapping[str, ServiceClass]
    slos: Mapping[ServiceClass, Slos]
    reserve: float


@dataclass
class LiveFleet:
    """It, running."""

    url: str
    metrics_url: str
    keys: Mapping[str, str]
    """Of each tenant."""
    gateway: Server
    engines: list[subprocess.Popen[bytes]]
    log: Path
    faults: list[str] = field(default_factory=list)
    """What ought not to be: found at the end."""
    engine_lag: float = 0.0
    """Of the slowest engine's loop, the 99th percentile in seconds: known at the end."""

    async def left_over(self) -> list[str]:
        """What is not 0 within some seconds though nobody asks for anything any more."""
        until = time.monotonic() + _STOP_S
        async with aiohttp.ClientSession() as session:
            while (left := await self._left(session)) and time.monotonic() < until:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.1)
        return left

    async def _left(self, session: aiohttp.ClientSession) -> list[str]:
        async with session.get(self.metrics_url) as answer:
            families = text_string_to_metric_families(await answer.text())
            samples = [sample for family in families for sample in family.samples]
        found = {sample.name for sample in samples}
        missing = [name for name in _EMPTY[:2] if name not in found]
        return [f"no metric {name}" for name in missing] + [
            f"{sample.name}{sample.labels} is {sample.value:g}"
            for sample in samples
            if sample.name in _EMPTY and sample.value
        ]


@contextlib.asynccontextmanager
async def running(setup: Setup) -> AsyncIterator[LiveFleet]:
    """Until left. Raises RuntimeError, with its last words, where something does not start."""
    with tempfile.TemporaryDirectory(prefix="admission-live-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        engines = [_engine(setup, f"engine-{n}", folder, stack) for n in range(setup.workers)]
        entries = [await asyncio.to_thread(_line, engine) for engine in engines]
        keys = {tenant: new_key() for tenant in setup.tenants}
        port = free_ports(2)
        path = folder / "gateway.yaml"
        path.write_text(yaml.safe_dump(_config(setup, entries, keys, port, folder)))
        log = folder / "gateway.log"
        process = _start([sys.executable, "-m", "gateway", "serve", "-c", path], log, stack)
        fleet = LiveFleet(
            f"http://127.0.0.1:{port}", f"http://127.0.0.1:{port + 1}/metrics", keys, Server("gateway", process, port),
            engines, log,
        )  # fmt: skip
        await _until_ready(fleet, setup.workers)
        yield fleet
        fleet.faults += await fleet.left_over()
        _stop(fleet)


def _config(
    setup: Setup, entries: Sequence[Mapping[str, object]], keys: Mapping[str, str], port: int, folder: Path
) -> dict[str, object]:
    """What a gateway is started with; what the virtual one differs in from the defaults is set."""
    members = []
    for tenant, service_class in setup.tenants.items():
        slos = setup.slos[service_class]
        bounds = {"ttft": slos.ttft, "tpot": slos.tpot}
        members.append(
            {
                "name": tenant,
                "keys": [written(digest_of(keys[tenant].encode()))],
                "priority": service_class.name.lower(),
                "slo": {name: f"{bound * 1e3:.3f}ms" for name, bound in bounds.items() if bound is not None},
                "cache": {"group": "all"},
            }
        )
    admission: dict[str, object] = {"policy": setup.policy}
    if setup.policy != "none":
        admission |= {
            "max_running": setup.engine.max_num_seqs,
            "batch": {"late": "refuse", "reserve": setup.reserve},
        }
    return fleet_config({MODEL: "embedded"}, entries) | {
        "listen": {"port": port},
        "admin": {"port": port + 1},
        "log": {"level": "warning"},
        "admission": admission,
        "tenants": {"members": members, "state_dir": str(folder)},
    }


def _start(
    command: Sequence[str | Path], log: Path, stack: contextlib.ExitStack, *, speaks: bool = False
) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE if speaks else output, stderr=output)
    stack.callback(_end, process)
    return process


def _engine(setup: Setup, name: str, folder: Path, stack: contextlib.ExitStack) -> subprocess.Popen[bytes]:
    text = engine_written(name, MODEL, setup.engine)
    command = [sys.executable, "-m", "tests.bench.live_engine", text]
    return _start(command, folder / f"{name}.log", stack, speaks=True)


def _line(process: subprocess.Popen[bytes]) -> dict[str, object]:
    """The next line of JSON that it prints; waits for it or for its end."""
    line = _output(process).readline()
    if not line:
        raise RuntimeError("an engine did not start, or ended without a word")
    said: dict[str, object] = json.loads(line)
    return said


def _output(process: subprocess.Popen[bytes]) -> IO[bytes]:
    assert process.stdout is not None
    return process.stdout


async def _until_ready(fleet: LiveFleet, workers: int) -> None:
    """Listens, and has probed every worker."""
    until = time.monotonic() + _START_S
    async with aiohttp.ClientSession() as session:
        while time.monotonic() < until and fleet.gateway.process.poll() is None:
            with contextlib.suppress(aiohttp.ClientError):
                async with session.get(fleet.metrics_url) as answer:
                    families = list(text_string_to_metric_families(await answer.text()))
                told = [s for f in families for s in f.samples if s.name == "prefixgate_worker_running_requests"]
                if len(told) == workers:
                    return
            await asyncio.sleep(0.05)
    raise RuntimeError(f"the gateway did not start: {fleet.log.read_text(errors='replace')[-2000:]}")


def _stop(fleet: LiveFleet) -> None:
    """End the gateway, then the engines, and hear their last words."""
    fleet.gateway.process.terminate()
    code = fleet.gateway.process.wait(_STOP_S)
    if code:
        fleet.faults.append(f"the gateway ended with {code}")
    fleet.faults += [f"gateway: {line}" for line in fleet.log.read_text(errors="replace").splitlines()[:5]]
    for engine in fleet.engines:
        engine.terminate()
        said = _line(engine)
        fleet.engine_lag = max(fleet.engine_lag, float(str(said["lag_p99"])))
        if said["left"]:
            fleet.faults.append(f"an engine has {said['left']} requests left")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
