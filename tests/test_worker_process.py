"""`prefixgate worker` as its user meets it: a process of its own, a real engine, and what stops it from starting."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import yaml

from backends.worker.engine_client import EngineError
from backends.worker.model_source import ModelSourceError
from backends.worker.worker import Worker
from gateway.config import parse_config
from tests.gateway_fixtures import eventually
from tests.worker_fixtures import real_options
from tests.worker_tiny_model import tiny_model

ROOT = Path(__file__).parent.parent
PATIENCE = 45.0
"""Seconds after which a test gives up; nothing here is measured."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("tiny"))


@contextlib.asynccontextmanager
async def command(*words: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "worker", *words),
        cwd=ROOT,
        env=os.environ | {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def line_with(stream: asyncio.StreamReader | None, words: str) -> str:
    assert stream is not None
    async with asyncio.timeout(PATIENCE):
        while line := (await stream.readline()).decode():
            if words in line:
                return line
    raise AssertionError(f"it ended before it said {words!r}")


def small(model: Path) -> tuple[str, ...]:
    return ("--model", str(model), "--port", "0", "--kv-port", "0", "--kv-blocks", "64", "--threads", "1")


async def ask(url: str) -> dict[str, object]:
    body = {"messages": [{"role": "user", "content": "hello there"}], "max_tokens": 4}
    async with aiohttp.ClientSession() as http, http.post(f"{url}/v1/chat/completions", json=body) as response:
        return dict(await response.json())


async def test_it_serves_until_it_is_told_to_stop(model: Path, tmp_path: Path) -> None:
    config = tmp_path / "fleet.yaml"
    async with command(*small(model), "--name", "w7", "--write-config", str(config)) as process:
        url = re.search(r"http://\S+", await line_with(process.stdout, "serves"))
        assert url is not None
        assert (await ask(url[0]))["model"] == model.name
        parsed = parse_config(config.read_text())
        (worker,) = parsed.workers
        assert (worker.name, str(worker.url).rstrip("/"), worker.kv_blocks) == ("w7", url[0], 64)
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(PATIENCE):
            _, err = await process.communicate()
        assert (process.returncode, err) == (0, b"")


async def test_it_ends_with_its_engine_and_says_why(model: Path) -> None:
    async with command(*small(model)) as process:
        await line_with(process.stdout, "serves")
        os.kill(_child(process), signal.SIGKILL)
        async with asyncio.timeout(PATIENCE):
            _, err = await process.communicate()
        assert process.returncode == 1
        assert "the engine was ended by signal 9" in err.decode()


async def test_the_engine_ends_with_its_server(model: Path) -> None:
    async with command(*small(model)) as process:
        await line_with(process.stdout, "serves")
        child = _child(process)
        process.kill()
        await process.communicate()
        await eventually(lambda: not _alive(child), timeout=10.0)


def _child(process: asyncio.subprocess.Process) -> int:
    (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return int(child)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def changed(model: Path, directory: Path, **fields: object) -> Path:
    """A copy of the model whose config.json says something else."""
    directory.mkdir()
    for file in model.iterdir():
        if file.name != "config.json":
            (directory / file.name).symlink_to(file)
    config = json.loads((model / "config.json").read_text()) | fields
    (directory / "config.json").write_text(json.dumps(config))
    return directory


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"architectures": ["GptOssForCausalLM"]}, "GptOssForCausalLM"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
        ({"intermediate_size": 96}, "shape"),
    ],
)
async def test_a_model_that_it_cannot_compute_is_refused_by_name(
    model: Path, tmp_path: Path, fields: dict[str, object], words: str
) -> None:
    directory = changed(model, tmp_path / "changed", **fields)
    with pytest.raises(EngineError, match=words):
        async with Worker(real_options(directory)):
            pass


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ({"memory": 1 << 20, "kv_blocks": None}, "a memory bound of 1.0 MiB has no room"),
        ({"max_model_len": 1_000_000}, "max_model_len is 1000000; the model's positions are made for 2048 tokens"),
        ({"device": "cuda"}, "device cuda: torch finds no CUDA device here"),
        ({"device": "tpu"}, "device is 'tpu'; expected auto, cpu or cuda"),
        ({"dtype": "int3"}, "dtype is 'int3'; expected auto, float32, bfloat16, float16 or float64"),
        ({"enable_chunked_prefill": False}, None),
        ({"enable_chunked_prefill": False, "max_num_batched_tokens": 512}, "max_num_batched_tokens must be at least"),
    ],
)
async def test_options_that_do_not_fit_are_refused_by_name(
    model: Path, engine: dict[str, object], words: str | None
) -> None:
    options = real_options(model, engine)
    if words is None:
        async with Worker(options) as worker:
            assert "choices" in await ask(worker.url)
        return
    with pytest.raises(EngineError, match=re.escape(words)):
        async with Worker(options):
            pass


async def test_what_is_no_model_is_refused_before_an_engine_starts(tmp_path: Path) -> None:
    for name, words in (("nowhere", "no directory"), ("", "no config.json")):
        with pytest.raises(ModelSourceError, match=words):
            async with Worker(real_options(tmp_path / name)):
                pass


async def test_dummy_weights_need_no_weights(model: Path, tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).symlink_to(model / name)
    async with Worker(real_options(tmp_path, {"load_format": "dummy", "seed": 3})) as worker:
        assert "choices" in await ask(worker.url)


async def test_configurations_name_the_engine(model: Path) -> None:
    async with command(*small(model), "--write-config", "-") as process:
        assert process.stdout is not None
        text = await line_with(process.stdout, "models:")
        await line_with(process.stderr, "serves")
        process.send_signal(signal.SIGTERM)
        text += (await process.communicate())[0].decode()
        entry = yaml.safe_load(text)["workers"][0]
        assert entry["models"] == [model.name]
        assert set(entry["kv_events"]) == {"endpoint", "replay_endpoint"}
