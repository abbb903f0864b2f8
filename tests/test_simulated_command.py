"""`prefixgate simulate` as a process: it starts, tells where it listens, and stops cleanly."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import yaml

from gateway.config import parse_config

ROOT = Path(__file__).parent.parent
RUN = (
    sys.executable,
    "-c",
    "import typer; from gateway.cli.simulate import simulate; typer.run(simulate)",
)
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100"}


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_fleet_runs_writes_its_configuration_and_stops_cleanly(how: signal.Signals) -> None:
    options = ["-n", "2", "--port", "0", "--kv-port", "0", "--blocks", "100", "--write-config", "-"]
    with subprocess.Popen(
        [*RUN, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        lines = []
        while (line := process.stdout.readline()).strip():
            lines.append(line)
        config = parse_config("".join(lines))
        for worker in config.workers:
            with urllib.request.urlopen(f"{worker.url}/health", timeout=10) as response:
                assert response.status == 200
        process.send_signal(how)
        _, said = process.communicate(timeout=20)
    assert process.returncode == 0
    assert "sim-1" in said
    assert "Traceback" not in said
    assert [worker.name for worker in config.workers] == ["sim-0", "sim-1"]
    assert {worker.kv_blocks for worker in config.workers} == {100}
    assert all(worker.kv_events is not None for worker in config.workers)
    assert [model.tokenizer for model in config.models] == ["embedded"]
    assert yaml.safe_load("".join(lines))["workers"][0]["max_model_len"] == 1600


@pytest.mark.parametrize("taken", ["--port", "--kv-port"])
def test_a_port_that_is_taken_is_told(taken: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        ports = {"--port": "0", "--kv-port": "0", taken: port}
        words = [word for pair in ports.items() for word in pair]
        result = subprocess.run(
            [*RUN, *words], capture_output=True, text=True, env=ENVIRONMENT, timeout=60, check=False
        )
    assert result.returncode == 1
    (said,) = result.stderr.splitlines()
    assert said.startswith("prefixgate: cannot listen: ")
    assert port in said
    assert said.endswith("; choose others with --port and --kv-port")


def test_adapters_a_key_and_metric_names_reach_the_engines() -> None:
    options = ["--port", "0", "--no-kv-events", "--lora", "french", "--lora", "legal", "--api-key", "s3cret"]
    with subprocess.Popen(
        [*RUN, *options, "--flavour", "sglang", "--write-config", "-"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    ) as process:
        assert process.stdout is not None
        lines = []
        while (line := process.stdout.readline()).strip():
            lines.append(line)
        config = parse_config("".join(lines))
        (worker,) = config.workers
        asked = urllib.request.Request(f"{worker.url}/v1/models", headers={"Authorization": "Bearer s3cret"})
        with urllib.request.urlopen(asked, timeout=10) as response:
            served = [model["id"] for model in json.load(response)["data"]]
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"{worker.url}/v1/models", timeout=10)
        with urllib.request.urlopen(f"{worker.url}/metrics", timeout=10) as response:
            assert b"sglang:num_running_reqs" in response.read()
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=20)
    assert process.returncode == 0
    assert served == ["simulated", "french", "legal"] == [model.name for model in config.models]
    assert worker.models == tuple(served)
    assert "s3cret" not in said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--tokenizer", "/does/not/exist"], "/does/not/exist"),
        (["-n", "0"], "--workers"),
        (["--speed", "0"], "--speed"),
    ],
)
def test_bad_options_are_told_without_a_traceback(options: list[str], said: str) -> None:
    done = subprocess.run([*RUN, *options], capture_output=True, text=True, env=ENVIRONMENT, timeout=30, check=False)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
