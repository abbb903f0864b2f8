"""What stands in deploy/ is true: files, flags, ports and configurations exist, and what they name serves."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import AsyncIterator, Coroutine, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import typer
import yaml

from gateway.cli import application
from gateway.config import Config, parse_config
from tests.admin_fixtures import control_plane
from tests.ports import free_port, free_ports

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
WORKERS = [name for name, service in SERVICES.items() if service.get("command", [""])[0] == "simulate"]
TOKEN = {"PREFIXGATE_ADMIN_TOKEN": "a-token"}


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions, continuation lines joined."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / "Dockerfile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    lines = [line.strip() for line in text.replace("\\\n", " ").splitlines() if line.strip()]
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in lines)]


def values(name: str) -> list[str]:
    return [rest for instruction, rest in instructions() if instruction == name]


def compose_config() -> Config:
    text = (DEPLOY / "compose-gateway.yaml").read_text(encoding="utf-8")
    return parse_config(text, environment=TOKEN)


def parsed(words: Sequence[str]) -> dict[str, Any]:
    """A command line as the program reads it. Raises where it has no such command or flag."""
    program = typer.main.get_command(application())
    command = program.commands[words[0]]  # type: ignore[attr-defined]  # a group, as it has commands
    return dict(command.make_context(words[0], list(words[1:])).params)


# --- the image ---------------------------------------------------------------------------------------------


def test_the_image_is_built_in_stages_and_runs_as_nobody_in_particular() -> None:
    assert len(values("FROM")) == 2
    assert values("FROM")[-1] == values("FROM")[0].removesuffix(" AS build")
    names = [name for name, _ in instructions()]
    assert names.index("USER") > max(at for at, name in enumerate(names) if name == "RUN")
    assert int(values("USER")[0]) >= 10_000


def test_what_is_copied_into_it_exists_and_is_not_ignored() -> None:
    sources = [source for rest in values("COPY") if "--from" not in rest for source in rest.split()[:-1]]
    allowed = {line.removeprefix("!") for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()}
    assert sources
    for source in sources:
        assert (ROOT / source).exists(), source
        assert source in allowed
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"][
        "packages"
    ]
    assert set(packages) <= set(sources)


def test_its_versions_are_those_that_are_tested_together() -> None:
    assert any("PIP_CONSTRAINT=/src/constraints.txt" in rest for rest in values("ENV"))
    assert values("WORKDIR") == ["/src"]
    assert "constraints.txt" in values("COPY")[0].split()


def test_its_health_is_liveness_on_the_control_plane_s_port() -> None:
    (health,) = values("HEALTHCHECK")
    config = parse_config("workers: [{url: 'http://x:1'}]")
    assert f"http://127.0.0.1:{config.admin.port}/livez" in health
    assert values("EXPOSE") == [f"{config.listen.port} {config.admin.port}"]


async def test_its_health_command_tells_whether_the_control_plane_answers() -> None:
    command = json.loads(values("HEALTHCHECK")[0].partition("CMD ")[2])
    async with control_plane() as plane:
        command = [sys.executable, *(word.replace("http://127.0.0.1:9400", plane.url) for word in command[1:])]
        plane.fleet.draining = True  # which is no reason to restart it
        async with running(command) as process:
            assert await asyncio.wait_for(process.wait(), 20) == 0
    async with running(command) as process:
        assert await asyncio.wait_for(process.wait(), 20) == 1


def test_it_starts_the_gateway_from_the_place_where_compose_puts_its_file() -> None:
    command = json.loads(values("ENTRYPOINT")[0]) + json.loads(values("CMD")[0])
    assert command[0] == "prefixgate"
    assert command[1:] == SERVICES["gateway"]["command"]
    (volume,) = SERVICES["gateway"]["volumes"]
    source, target, mode = volume.split(":")
    assert (DEPLOY / source).is_file()
    assert mode == "ro"
    assert parsed(command[1:])["config"] == Path(target)


# --- compose -----------------------------------------------------------------------------------------------


def test_there_are_a_gateway_two_workers_and_a_redis() -> None:
    assert len(WORKERS) == 2
    assert set(SERVICES) == {"gateway", "redis", *WORKERS}
    for name in ("gateway", *WORKERS):
        build = SERVICES[name]["build"]
        assert (DEPLOY / build["context"] / build["dockerfile"]).resolve() == (DEPLOY / "Dockerfile").resolve()


def test_the_gateway_s_workers_are_the_services_with_the_ports_that_those_are_given() -> None:
    config = compose_config()
    told = {}
    for name in WORKERS:
        flags = parsed(SERVICES[name]["command"])
        assert flags["host"] == "0.0.0.0"
        assert f"http://127.0.0.1:{flags['port']}/health" in SERVICES[name]["healthcheck"]["test"][-1]
        told[name] = (
            f"http://{name}:{flags['port']}",
            (flags["model"],),
            f"tcp://{name}:{flags['kv_port']}",
            f"tcp://{name}:{flags['kv_port'] + 1}",
            flags["block_size"],
        )
    configured = {
        worker.name: (
            worker.url,
            worker.models,
            worker.kv_events.endpoint if worker.kv_events else None,
            worker.kv_events.replay_endpoint if worker.kv_events else None,
            worker.block_size,
        )
        for worker in config.workers
    }
    assert configured == told


def test_ports_secrets_and_time_to_drain_fit_the_configuration() -> None:
    config, gateway = compose_config(), SERVICES["gateway"]
    assert gateway["ports"] == [
        f"{config.listen.port}:{config.listen.port}",
        f"127.0.0.1:{config.admin.port}:{config.admin.port}",
    ]
    assert config.listen.host == config.admin.host == "0.0.0.0"
    assert list(gateway["environment"]) == list(TOKEN)
    assert ":?" in gateway["environment"]["PREFIXGATE_ADMIN_TOKEN"], "without a token it must not start"
    assert int(gateway["stop_grace_period"].removesuffix("s")) > config.limits.drain_timeout
    assert set(gateway["depends_on"]) == set(WORKERS)


def test_check_finds_the_configuration_of_compose_good() -> None:
    checked = subprocess.run(
        [sys.executable, "-m", "gateway", "check", "-c", "compose-gateway.yaml", "--no-tokenizers"],
        cwd=DEPLOY, env={**os.environ, **TOKEN, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=30,
        check=False,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "is valid" in checked.stdout


@pytest.mark.skipif(shutil.which("redis-server") is None, reason="redis-server is not installed")
async def test_redis_starts_as_compose_starts_it() -> None:
    port = free_port()
    async with running([*SERVICES["redis"]["command"], "--port", str(port)]):
        async with asyncio.timeout(10):
            while True:
                with contextlib.suppress(OSError):
                    reader, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.write(b"CONFIG GET maxmemory-policy\r\n")
                    assert b"allkeys-lru" in await reader.readuntil(b"lru\r\n")
                    writer.close()
                    return
                await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def running(command: Sequence[str], **environment: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that ends with the block, by the signal that a container engine sends."""
    process = await asyncio.create_subprocess_exec(
        *command, env={**os.environ, "PYTHONPATH": str(ROOT), **environment}, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), 10)
        except TimeoutError:
            process.kill()
            await process.wait()


def asked(url: str, body: object = None) -> bytes:
    data = json.dumps(body).encode() if body is not None else None
    with urllib.request.urlopen(urllib.request.Request(url, data), timeout=10) as answer:
        content: bytes = answer.read()
        return content


async def answered(url: str, body: object = None, *, within: float = 30.0) -> bytes:
    """Ask until there is an answer."""
    async with asyncio.timeout(within):
        while True:
            with contextlib.suppress(OSError):
                return await asyncio.to_thread(asked, url, body)
            await asyncio.sleep(0.1)


async def test_the_services_commands_make_a_fleet_that_serves(tmp_path: Path) -> None:
    """As compose would, but on this machine: other hosts and ports, the same commands and the same file."""
    config_text = (DEPLOY / "compose-gateway.yaml").read_text(encoding="utf-8")
    own = free_ports(2)
    starting: list[Coroutine[Any, Any, bytes]] = []
    async with contextlib.AsyncExitStack() as stack:
        for name in WORKERS:
            http, kv = free_port(), free_ports(2)
            flags = [*SERVICES[name]["command"], "--host", "127.0.0.1", "--port", str(http), "--kv-port", str(kv)]
            await stack.enter_async_context(running([sys.executable, "-m", "gateway", *flags]))
            starting.append(answered(f"http://127.0.0.1:{http}/health"))
            for there, here in ((8100, http), (5557, kv), (5558, kv + 1)):
                config_text = config_text.replace(f"{name}:{there}", f"127.0.0.1:{here}")
        await asyncio.gather(*starting)
        config_text = config_text.replace("port: 8000", f"port: {own}").replace("port: 9400", f"port: {own + 1}")
        file = tmp_path / "prefixgate.yaml"
        file.write_text(config_text.replace("host: 0.0.0.0", "host: 127.0.0.1"))
        serve = [sys.executable, "-m", "gateway", "serve", "-c", str(file)]
        process = await stack.enter_async_context(running(serve, **TOKEN))
        url = f"http://127.0.0.1:{own}/v1/chat/completions"
        chat = {"model": "simulated", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}
        assert json.loads(await answered(url, chat))["usage"]["completion_tokens"] == 3
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 20) == 0


# --- the rest ----------------------------------------------------------------------------------------------


def test_prometheus_scrapes_the_control_plane_s_port() -> None:
    scrape = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"][0]
    config = parse_config("workers: [{url: 'http://x:1'}]")
    assert scrape["static_configs"][0]["targets"] == [f"localhost:{config.admin.port}"]
    assert scrape.get("metrics_path", "/metrics") == "/metrics"


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool comes with Debian's prometheus package")
def test_promtool_finds_the_scrape_configuration_good() -> None:
    checked = subprocess.run(
        ["promtool", "check", "config", str(DEPLOY / "prometheus.yml")],
        capture_output=True, text=True, timeout=20, check=False,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout + checked.stderr


def engine_commands() -> dict[str, tuple[list[str], dict[str, Any]]]:
    """The engines' command lines in deploy/README.md, and the events' configuration in each."""
    text = (DEPLOY / "README.md").read_text(encoding="utf-8").replace("\\\n", " ")
    found = {}
    for line in re.findall(r"^\$ ((?:vllm|python -m sglang).*)$", text, re.MULTILINE):
        words = shlex.split(line)
        found[words[0]] = (words, json.loads(words[words.index("--kv-events-config") + 1]))
    return found


def test_the_engines_flags_fit_the_configuration_to_start_from() -> None:
    commands = engine_commands()
    assert set(commands) == {"vllm", "python"}
    text = (DEPLOY / "two-vllm-workers.yaml").read_text(encoding="utf-8")
    worker = parse_config(text).workers[0]
    assert worker.kv_events is not None
    for words, events in commands.values():
        assert events["publisher"] == "zmq"
        assert urlsplit(events["endpoint"].replace("*", "x")).port == urlsplit(worker.kv_events.endpoint).port
        replay = worker.kv_events.replay_endpoint
        assert replay is not None
        assert urlsplit(events["replay_endpoint"].replace("*", "x")).port == urlsplit(replay).port
        assert events["topic"] == worker.kv_events.topic
        assert ("enable_kv_cache_events" in events) is (words[0] == "vllm")
    sglang = commands["python"][0]
    assert int(sglang[sglang.index("--page-size") + 1]) == worker.block_size
