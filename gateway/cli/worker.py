"""`prefixgate worker`: serve a model with the torch engine that comes with prefixgate."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import signal
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import uvloop
import zmq
from rich.console import Console

from backends.worker.engine_client import EngineError
from backends.worker.model_source import DEFAULT_MODEL, ModelSourceError
from backends.worker.options import EngineOptions, WorkerOptions
from backends.worker.worker import Worker
from cache.tokenizer import TokenizerError
from gateway.cli.console import fail, fail_to_listen
from gateway.cli.fleet_config import STDOUT, fleet_config, worker_entry
from gateway.cli.fleet_config import write_config as write
from gateway.cli.options import option, told
from gateway.config.units import parse_duration, parse_size


class LoadFormat(StrEnum):
    """Where weights come from."""

    auto = "auto"
    dummy = "dummy"


class Dtype(StrEnum):
    """Number type of weights, KV and computation."""

    auto = "auto"
    bfloat16 = "bfloat16"
    float16 = "float16"
    float32 = "float32"
    float64 = "float64"


_serving = partial(option, "Serving")
_model = partial(option, "Model")
_engine = partial(option, "Engine")
_tiers = partial(option, "KV beyond the pool")


def worker(
    model: Annotated[
        str,
        _model(f"Directory with safetensors, an id to fetch, or '{DEFAULT_MODEL}': the one inside.", metavar="DIR|ID"),
    ] = DEFAULT_MODEL,
    served_model_name: Annotated[str | None, _model("How clients name it. Default: the directory's name.")] = None,
    tokenizer: Annotated[Path | None, _model("Tokenizer's directory. Default: the model's.", metavar="DIR")] = None,
    chat_template: Annotated[Path | None, _model("Jinja file instead of the tokenizer's.", metavar="FILE")] = None,
    load_format: Annotated[LoadFormat, _model("dummy: random weights of the real shape.")] = LoadFormat.auto,
    device: Annotated[str, _model("auto, cpu, cuda or cuda:1.")] = "auto",
    dtype: Annotated[Dtype, _model("auto: bfloat16 where the device is faster with it.")] = Dtype.auto,
    host: Annotated[str, _serving("Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, _serving("Port, 0 for a free one.", min=0, max=65535)] = 8100,
    name: Annotated[str, _serving("Told in x-worker-id.")] = "worker-0",
    api_key: Annotated[
        str | None,
        _serving("Want it as the bearer token on every route under /v1.", envvar="PREFIXGATE_WORKER_API_KEY"),
    ] = None,
    kv_events: Annotated[bool, _serving("Publish KV events over ZMQ.")] = True,
    kv_port: Annotated[int, _serving("Port of the events; replay is on the next. 0: free.", min=0, max=65534)] = 5557,
    write_config: Annotated[
        str | None, _serving("Write the gateway configuration that fits: for `serve -c FILE`.", metavar="FILE|-")
    ] = None,
    hung_after: Annotated[
        float,
        _serving("Unhealthy when the engine tells nothing for TIME.", parser=told(parse_duration), metavar="TIME"),
    ] = "60s",  # type: ignore[assignment]  # is parsed
    max_model_len: Annotated[int | None, _engine("Longest prompt plus answer. Default: the model's.", min=2)] = None,
    memory: Annotated[
        int | None,
        _engine("Bound for weights, KV and work space together.", parser=told(parse_size), metavar="SIZE"),
    ] = None,
    kv_blocks: Annotated[int | None, _engine("KV blocks. Default: what fits into the memory.", min=1)] = None,
    block_size: Annotated[int, _engine("Tokens in a block.", min=1, max=1024)] = 16,
    max_num_seqs: Annotated[int, _engine("Sequences that run at once.", min=1, max=4096)] = 64,
    max_num_batched_tokens: Annotated[int, _engine("Tokens computed in one step.", min=1)] = 2048,
    max_waiting: Annotated[int | None, _engine("Refuse with 503 when so many wait.", min=1)] = None,
    enable_prefix_caching: Annotated[bool, _engine("Reuse the KV of equal beginnings.")] = True,
    enable_chunked_prefill: Annotated[bool, _engine("Compute long prompts in parts, beside the decoding ones.")] = True,
    compile_model: Annotated[bool, _engine("torch.compile: slower to start, faster then.", "--compile")] = False,
    threads: Annotated[int | None, _engine("CPU threads. Default: torch decides.", min=1)] = None,
    seed: Annotated[int, _engine("Of dummy weights.")] = 0,
    kv_host: Annotated[
        int, _tiers("Host memory for KV that outlives the pool.", parser=told(parse_size), metavar="SIZE")
    ] = 0,
    kv_disk: Annotated[Path | None, _tiers("Directory for it; of one worker.", metavar="DIR")] = None,
    kv_disk_bytes: Annotated[
        int, _tiers("Bound of that directory.", parser=told(parse_size), metavar="SIZE")
    ] = "10GiB",  # type: ignore[assignment]  # is parsed
    kv_redis: Annotated[
        str | None, _tiers("Redis server for it, which workers may share.", metavar="URL", envvar="PREFIXGATE_KV_REDIS")
    ] = None,
    kv_redis_cluster: Annotated[bool, _tiers("The URL names a node of a Redis Cluster.")] = False,
    kv_redis_ca: Annotated[
        Path | None, _tiers("PEM file: who signs the server's certificate. Default: the system's.", metavar="FILE")
    ] = None,
    kv_redis_cert: Annotated[Path | None, _tiers("The worker's own certificate, PEM.", metavar="FILE")] = None,
    kv_redis_key: Annotated[Path | None, _tiers("Its key, PEM.", metavar="FILE")] = None,
    kv_eviction: Annotated[str, _tiers("What leaves host memory and disk first.", metavar="POLICY")] = "lru",
    kv_tenant_share: Annotated[
        float, _tiers("Share of host memory and disk that one cache salt may take.", min=0.001, max=1.0)
    ] = 1.0,
    kv_policy: Annotated[
        bool,
        _tiers("Believe what a gateway's requests say of their tenant's KV: times, quotas, pins."),
    ] = True,
    kv_uses: Annotated[
        int, _tiers("To the slower stores after so many uses; before that when there is time.", min=1)
    ] = 2,
    kv_int8: Annotated[bool, _tiers("Store bytes with scales: half the size, and not exact.")] = False,
    kv_key_file: Annotated[
        Path | None, _tiers("Encrypt what is stored under the key in this file (openssl rand -hex 32).", metavar="FILE")
    ] = None,
    kv_patience: Annotated[
        float,
        _tiers("A request waits so long for its KV, at most.", parser=told(parse_duration), metavar="TIME"),
    ] = "2s",  # type: ignore[assignment]  # is parsed
) -> None:
    r"""Serve a model, OpenAI-compatible, with prefix caching and KV events: a small, exact engine in torch.

    Llama 3, Qwen2, Qwen2.5, Qwen3 and Mistral models, on CPU or CUDA.

    [dim]The small model that comes with prefixgate:[/]

        prefixgate worker

    [dim]A model of yours, and a gateway in front of it:[/]

        prefixgate worker --model ./Qwen3-0.6B --memory 8GiB \
            --write-config fleet.yaml

        prefixgate serve -c fleet.yaml
    """
    if importlib.util.find_spec("torch") is None:
        fail("the worker needs torch: pip install 'prefixgate[worker]'")
    engine = EngineOptions(
        model=model,
        served_model_name=served_model_name,
        device=device,
        dtype=dtype.value,
        load_format=load_format.value,
        block_size=block_size,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_waiting=max_waiting,
        memory=memory,
        kv_blocks=kv_blocks,
        enable_prefix_caching=enable_prefix_caching,
        enable_chunked_prefill=enable_chunked_prefill,
        compile=compile_model,
        threads=threads,
        seed=seed,
        kv_host=kv_host,
        kv_disk=_text(kv_disk),
        kv_disk_bytes=kv_disk_bytes,
        kv_redis=kv_redis,
        kv_redis_cluster=kv_redis_cluster,
        kv_redis_ca=_text(kv_redis_ca),
        kv_redis_certificate=_text(kv_redis_cert),
        kv_redis_key=_text(kv_redis_key),
        kv_eviction=kv_eviction,
        kv_tenant_share=kv_tenant_share,
        kv_uses=kv_uses,
        kv_int8=kv_int8,
        kv_key_file=_text(kv_key_file),
        kv_patience=kv_patience,
    )
    options = WorkerOptions(
        engine=engine,
        tokenizer=tokenizer,
        chat_template=chat_template,
        name=name,
        host=host,
        port=port,
        kv_events=kv_events,
        kv_policy=kv_policy,
        kv_port=kv_port,
        api_key=api_key,
        hung_after=hung_after,
    )
    try:
        reason = uvloop.run(_serve(options, write_config))
    except (TokenizerError, ModelSourceError, EngineError) as error:
        fail(str(error))
    except (OSError, zmq.ZMQError) as error:
        fail_to_listen(error)
    if reason:
        fail(reason)


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def gateway_config(workers: list[Worker]) -> dict[str, object]:
    """The configuration of a gateway in front of these running workers, as YAML data."""
    tokenizers = {each.model: str(each.tokenizer_directory.resolve()) for each in workers}
    return fleet_config(
        tokenizers,
        [
            worker_entry(
                each.name,
                each.url,
                [each.model],
                block_size=each.ready.block_size,
                kv_blocks=each.ready.blocks,
                max_model_len=each.ready.max_model_len,
                kv_endpoint=each.kv_endpoint,
                replay_endpoint=each.replay_endpoint,
            )
            for each in workers
        ],
    )


async def _serve(options: WorkerOptions, write_config: str | None) -> str:
    """Run until SIGINT or SIGTERM, or until the engine is gone: the reason of that."""
    serving = asyncio.create_task(_until_failed(options, write_config))
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, serving.cancel)
    await asyncio.wait({serving})
    return "" if serving.cancelled() else serving.result()


async def _until_failed(options: WorkerOptions, write_config: str | None) -> str:
    # Standard output belongs to the configuration where that was asked for.
    console = Console(stderr=write_config == STDOUT)
    async with contextlib.AsyncExitStack() as stack:
        with console.status(f"Loading {options.engine.name} ..."):
            running = await stack.enter_async_context(Worker(options))
        if write_config is not None:
            await asyncio.to_thread(write, gateway_config([running]), write_config)
        _print(console, running)
        return await running.failed()


def _print(console: Console, running: Worker) -> None:
    ready, events = running.ready, running.kv_endpoint or "off"
    tokens = ready.blocks * ready.block_size
    console.print(f"[bold green]{running.name}[/] serves [bold]{running.model}[/] at [bold]{running.url}[/]")
    console.print(
        f"on {ready.device} in {ready.dtype}, KV for {tokens:,} tokens, up to {ready.max_model_len:,} a request"
    )
    console.print(
        f"KV events: {events}, replay: {running.replay_endpoint or 'off'}. Stop with Ctrl+C.", highlight=False
    )
