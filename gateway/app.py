"""The composition root: everything is put together here, and nothing else is done."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import random
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import uvloop

import backends.simulated
from backends.fleet_state import FleetState, Worker
from backends.kv_subscriber import FeedState, KvSubscriber
from backends.upstream_pool import UpstreamPool
from backends.worker_probe import WorkerProbe
from cache.prefix_index import PrefixIndex
from cache.prompt_blocks import PromptBlockCache
from cache.tokenizer import Tokenizer
from gateway.config import Config, Model
from gateway.config import Worker as WorkerSettings
from gateway.http_server import HttpServer, Limits
from gateway.logs import set_up_logging
from gateway.pipeline import RequestPipeline
from gateway.prompts import PromptReader, ReadingLimits
from gateway.routes import RouteTable
from policies.prefill_queue import FleetRate, PrefillQueue
from policies.routing import RoutingPolicy, make_policy

log = logging.getLogger(__name__)

EMBEDDED_TOKENIZER: Final = Path(backends.simulated.__file__).parent / "tokenizer"
_FIRST_ROUND_SECONDS: Final = 3.0


def run(config: Config) -> None:
    """Serve until SIGINT or SIGTERM; a second one ends at once. Raises OSError where the port is taken, and
    TokenizerError where a tokenizer cannot be read.
    """
    set_up_logging(config.log)
    uvloop.run(_serve_until_signalled(config))


async def _serve_until_signalled(config: Config) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def on_signal() -> None:
        if stop.is_set():
            log.warning("stopping at once")
            os._exit(130)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    async with serving(config) as port:
        host = f"[{config.listen.host}]" if ":" in config.listen.host else config.listen.host
        log.info("listening on http://%s:%d", host, port)
        await stop.wait()
        log.info("stopping; requests in flight have %g s to finish", config.limits.drain_timeout)


@contextlib.asynccontextmanager
async def serving(config: Config) -> AsyncIterator[int]:
    """A running gateway; yields its port. Leaving drains it."""
    loop = asyncio.get_running_loop()
    fleet_rate = FleetRate()
    fleet = FleetState(
        [_worker(settings, fleet_rate) for settings in config.workers],
        cooldown=config.upstream.cooldown,
        cooldown_max=config.upstream.cooldown_max,
        tokenized=[model.name for model in config.models if model.tokenizer is not None],
    )
    index = PrefixIndex(max_blocks=config.index.max_blocks)
    pools = {worker.id: _pool(config, worker, loop) for worker in fleet.workers}
    via = b"prefixgate-" + os.urandom(6).hex().encode()
    async with contextlib.AsyncExitStack() as stack:
        executor = ThreadPoolExecutor(config.tokens.threads, thread_name_prefix="tokens")
        stack.callback(executor.shutdown, wait=False, cancel_futures=True)
        pipeline = RequestPipeline(
            fleet,
            pools,
            _policy(config),
            index=index,
            readers={
                model.name: reader for model in config.models if (reader := _reader(config, model, index, executor))
            },
            routes=RouteTable(config.routes.passthrough),
            loop=loop,
            via=via,
            max_attempts=config.upstream.max_attempts,
            token_wait=config.tokens.wait,
            prediction_ttl=config.index.prediction_ttl,
            unconfirmed_ttl=config.index.unconfirmed_ttl,
            sample=random.Random(config.routing.cost.seed).random,  # noqa: S311 - it breaks ties
            access_log=config.log.access,
        )
        server = HttpServer(pipeline, _limits(config), loop, via=via, worker_header=config.response_headers.worker)
        for pool in pools.values():
            stack.push_async_callback(pool.close)
            server.every_sweep(pool.expire)
        server.every_sweep(index.expire)
        await _follow_workers(config, fleet, index, stack)
        port = await server.start(
            config.listen.host,
            config.listen.port,
            backlog=config.listen.backlog,
            reuse_port=config.listen.reuse_port,
        )
        stack.push_async_callback(server.close, config.limits.drain_timeout)
        # What is alive now lives as long as the process; the collector need not look at it again, and what a
        # request leaves behind is freed by reference counts.
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 50, 100)
        yield port


def _worker(settings: WorkerSettings, fleet_rate: FleetRate) -> Worker:
    host, port = settings.address
    return Worker(
        id=settings.name,
        host=host,
        port=port,
        block_size=settings.block_size,
        configured_models=settings.models or (),
        max_model_len=settings.max_model_len,
        kv_blocks=settings.kv_blocks,
        prefill=PrefillQueue(fleet_rate, settings.prefill_tokens_per_s),
    )


def _pool(config: Config, worker: Worker, loop: asyncio.AbstractEventLoop) -> UpstreamPool:
    upstream = config.upstream
    return UpstreamPool(
        worker.host,
        worker.port,
        connect_timeout=upstream.connect_timeout,
        keepalive=upstream.keepalive,
        max_idle=upstream.max_idle_connections,
        loop=loop,
    )


def _policy(config: Config) -> RoutingPolicy:
    if config.routing.policy != "cost":
        return make_policy(config.routing.policy)
    cost = config.routing.cost
    return make_policy(
        "cost",
        idle_weight=cost.recompute_weight_idle,
        full_weight=cost.recompute_weight_full,
        decode_tokens=cost.decode_weight,
        spread=cost.spread_weight,
    )


def _reader(config: Config, model: Model, index: PrefixIndex, executor: ThreadPoolExecutor) -> PromptReader | None:
    if model.tokenizer is None:
        return None
    tokens = config.tokens
    directory = model.tokenizer if isinstance(model.tokenizer, Path) else EMBEDDED_TOKENIZER
    tokenizer = Tokenizer.load(
        directory,
        backends=("fastokens", "tokenizers") if tokens.fast else ("tokenizers",),
        chat_template=model.chat_template,
    )
    return PromptReader(
        model.name,
        tokenizer,
        PromptBlockCache(tokenizer, max_bytes=tokens.cache_bytes, piece_chars=tokens.piece_chars),
        index=index,
        executor=executor,
        limits=ReadingLimits(
            inline_chars=tokens.inline_chars,
            taste_chars=tokens.piece_chars,
            max_chars=tokens.max_chars,
            max_messages=tokens.max_messages,
        ),
    )


def _limits(config: Config) -> Limits:
    limits, upstream = config.limits, config.upstream
    return Limits(
        head_bytes=limits.head_bytes,
        body_bytes=limits.body_bytes,
        total_body_bytes=limits.total_body_bytes,
        head_timeout=limits.head_timeout,
        body_timeout=limits.body_timeout,
        idle_timeout=limits.idle_timeout,
        max_connections=limits.max_connections,
        buffer_bytes=limits.buffer_bytes,
        pipelined_bytes=limits.pipelined_bytes,
        first_byte_timeout=upstream.first_byte_timeout,
        response_idle_timeout=upstream.idle_timeout,
    )


async def _follow_workers(
    config: Config, fleet: FleetState, index: PrefixIndex, stack: contextlib.AsyncExitStack
) -> None:
    """Learn each worker's models and follow its KV events from then on; waits a moment for the first answers."""
    events = {worker.name: worker.kv_events for worker in config.workers}
    keys = {worker.name: worker.api_key for worker in config.workers}
    followed: dict[Worker, str] = {}
    feeds: dict[Worker, KvSubscriber] = {}
    tasks = await stack.enter_async_context(_task_group())

    def follow(worker: Worker) -> None:
        model = fleet.base_model(worker)
        if model is None or followed.get(worker) == model:
            return
        followed[worker] = model
        index.add_worker(worker.id, model=model, block_size=worker.block_size)
        feed = events[worker.id]
        if feed is None:
            return
        if worker in feeds:
            feeds[worker].reset()  # what it told was chained under another name: it has to tell it again
            return
        feeds[worker] = KvSubscriber(
            worker.id,
            index,
            endpoint=feed.endpoint,
            replay_endpoint=feed.replay_endpoint,
            topic=feed.topic,
            on_state=_feed_follower(worker),
        )
        tasks(feeds[worker].run(), f"KV events of {worker.id}")

    def follow_all() -> None:
        # All of them, since one worker's answer can tell that two names mean the same model on another.
        for worker in fleet.workers:
            follow(worker)

    follow_all()
    probe = WorkerProbe(
        fleet,
        interval=config.upstream.model_refresh,
        timeout=config.upstream.connect_timeout,
        api_keys={name: key.get_secret_value() for name, key in keys.items() if key is not None},
        on_models=follow_all,
    )
    first_round = asyncio.Event()
    tasks(probe.run(first_round), "worker probe")
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(first_round.wait(), _FIRST_ROUND_SECONDS)
    _report_names(config, fleet)


def _feed_follower(worker: Worker) -> Callable[[FeedState], None]:
    """Predictions wait to be confirmed only where somebody confirms: while the feed is live."""

    def follow(state: FeedState) -> None:
        worker.publishes_events = state is FeedState.LIVE
        log.info("KV events of worker %s: %s", worker.id, state.value)

    return follow


def _report_names(config: Config, fleet: FleetState) -> None:
    """Say once at start where names do not meet: nobody would see it in an answer."""
    served = set(fleet.models)
    for model in config.models:
        if model.name not in served and served:
            log.warning("model %s: no worker serves it; they serve %s", model.name, ", ".join(sorted(served)))
    readable = {model.name for model in config.models if model.tokenizer is not None}
    for name in sorted(served):
        if fleet.chain_of(name)[0] not in readable and config.routing.policy == "cost":
            log.info("model %s has no tokenizer and is routed by load", name)


@contextlib.asynccontextmanager
async def _task_group() -> AsyncIterator[Callable[[Coroutine[object, object, None], str], None]]:
    """Tasks that live as long as the gateway; one that fails is logged and takes nothing with it."""
    tasks: set[asyncio.Task[None]] = set()

    def ended(task: asyncio.Task[None]) -> None:
        tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s: stopped by a fault of the gateway's own", task.get_name(), exc_info=error)

    def start(coroutine: Coroutine[object, object, None], name: str) -> None:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(coroutine, name=name)
        tasks.add(task)
        task.add_done_callback(ended)

    try:
        yield start
    finally:
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
