"""The load of each engine from its metrics page: golden pages, several ranks, and whatever is no page."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from backends.engine_metrics import PAGE_LIMIT, EngineLoad, read_load
from backends.simulated.engine import EngineConfig
from backends.simulated.fleet import FleetConfig, SimulatedFleet
from backends.tls import UpstreamTls, UpstreamTlsSpec
from backends.worker_poll import PollSettings, WorkerPoll, model_cards
from policies.restore_route import TierPrice
from policies.types import Tier, WorkerId
from tests.gateway_fixtures import MODEL, eventually, model_text

VLLM = b"""\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct"} 7.0
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 2.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct"} 0.375
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct"} 1.234567e+06
# TYPE vllm:prefix_cache_queries_created gauge
vllm:prefix_cache_queries_created{engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct"} 1.7601e+09
vllm:prefix_cache_hits_total{engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct"} 834560.0
vllm:prompt_tokens_total{engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct"} 1.234567e+06
vllm:prompt_tokens_created{engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct"} 1.7601e+09
vllm:generation_tokens_total{engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct"} 98765.0
# TYPE vllm:iteration_tokens_total histogram
vllm:iteration_tokens_total_bucket{engine="0",le="1.0",model_name="m"} 12.0
# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",cache_dtype="auto",calculate_kv_scales="False",cpu_offload_gb="0",\
enable_prefix_caching="True",engine="0",gpu_memory_utilization="0.9",is_attention_free="False",\
num_cpu_blocks="None",num_gpu_blocks="27532",num_gpu_blocks_override="None",sliding_window="None"} 1.0
"""
VLLM_LOAD = EngineLoad(7, 2, 0.375, 16, 27532, 1234567, 834560, 1234567, 98765)

VLLM_OLD = b"""\
vllm:num_requests_running{model_name="m"} 1.0
vllm:gpu_cache_usage_perc{model_name="m"} 0.5
vllm:cache_config_info{block_size="32",num_gpu_blocks="None"} 1.0
vllm:gpu_prefix_cache_queries{model_name="m"} 10.0
vllm:gpu_prefix_cache_hits{model_name="m"} 4.0
"""

SGLANG = b"""\
# HELP sglang:prompt_tokens_total Number of prefill tokens processed.
# TYPE sglang:prompt_tokens_total counter
sglang:prompt_tokens_total{model_name="meta-llama/Llama-3.1-8B-Instruct"} 8.128902e+06
sglang:cached_tokens_total{cache_source="device",model_name="meta-llama/Llama-3.1-8B-Instruct"} 60000.0
sglang:cached_tokens_total{cache_source="host",model_name="meta-llama/Llama-3.1-8B-Instruct"} 1024.0
sglang:generation_tokens_total{is_streaming="true",model_name="meta-llama/Llama-3.1-8B-Instruct"} 7.5e+06
sglang:generation_tokens_total{is_streaming="false",model_name="meta-llama/Llama-3.1-8B-Instruct"} 57572.0
sglang:token_usage{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 0.28
sglang:token_usage{engine_type="unified",model_name="m",pp_rank="0",tp_rank="1"} 0.28
sglang:cache_hit_rate{model_name="m"} 0.0075
sglang:num_running_reqs{engine_type="unified",model_name="m",pp_rank="0",priority="",tp_rank="0"} 14.0
sglang:num_running_reqs{engine_type="unified",model_name="m",pp_rank="0",priority="-1",tp_rank="0"} 4.0
sglang:num_running_reqs{engine_type="unified",model_name="m",pp_rank="0",priority="10",tp_rank="0"} 10.0
sglang:num_queue_reqs{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 3.0
sglang:num_queue_reqs{engine_type="unified",model_name="m",pp_rank="0",tp_rank="1"} 3.0
sglang:max_total_num_tokens{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 1.041408e+06
sglang:max_total_num_tokens{engine_type="unified",model_name="m",pp_rank="0",tp_rank="1"} 1.041408e+06
sglang:page_size{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 64.0
"""
SGLANG_LOAD = EngineLoad(14, 3, 0.28, 64, 16272, 8128902, 61024, 8128902, 7557572)

TENSORRT = b"""\
trtllm_kv_cache_utilization{engine_type="trtllm",model_name="m"} 0.125
trtllm_num_requests_running{engine_type="trtllm",model_name="m"} 4.0
trtllm_num_requests_waiting{engine_type="trtllm",model_name="m"} 1.0
trtllm_kv_cache_max_blocks{engine_type="trtllm",model_name="m"} 19960.0
trtllm_kv_cache_tokens_per_block{engine_type="trtllm",model_name="m"} 32.0
trtllm_prompt_tokens_total{engine_type="trtllm",model_name="m"} 5000.0
trtllm_prompt_cached_tokens_total{engine_type="trtllm",model_name="m"} 3200.0
trtllm_generation_tokens_total{engine_type="trtllm",model_name="m"} 700.0
"""
TENSORRT_LOAD = EngineLoad(4, 1, 0.125, 32, 19960, 5000, 3200, 5000, 700)


@pytest.mark.parametrize(
    ("page", "load"),
    [
        (VLLM, VLLM_LOAD),
        (VLLM_OLD, EngineLoad(running=1, kv_used=0.5, block_size=32, prefix_queries=10, prefix_hits=4)),
        (SGLANG, SGLANG_LOAD),
        (TENSORRT, TENSORRT_LOAD),
        (b"", EngineLoad()),
        (b"# EOF\n", EngineLoad()),
    ],
    ids=["vllm", "old vllm", "sglang", "tensorrt", "empty", "openmetrics end"],
)
def test_each_engines_page(page: bytes, load: EngineLoad) -> None:
    assert read_load(page) == load
    assert read_load(page.replace(b"\n", b"\r\n")) == load
    assert load.tells is bool(page.strip(b"# EOF\n"))


def test_a_page_that_is_cut_anywhere_is_read_as_far_as_it_goes() -> None:
    for end in range(len(VLLM)):
        load = read_load(VLLM[:end])
        assert load.running in (None, 7)
        assert load.kv_blocks in (None, 27532)


def test_several_ranks_are_added_up_and_their_use_averaged() -> None:
    second = VLLM.replace(b'engine="0"', b'engine="1"').replace(b"0.375", b"0.625")
    load = read_load(VLLM + second)
    assert load == EngineLoad(14, 4, 0.5, 16, 55064, 2469134, 1669120, 2469134, 197530)
    ranks = b"".join(b'sglang:num_running_reqs{dp_rank="%d",tp_rank="%d"} 3\n' % (rank, rank) for rank in range(4))
    assert read_load(ranks).running == 12


def test_pages_of_one_token_tell_the_capacity_in_any_block_size() -> None:
    load = read_load(b"sglang:page_size 1\nsglang:max_total_num_tokens 200000\n")
    assert (load.kv_tokens, load.blocks_of(16), load.blocks_of(1)) == (200_000, 12_500, 200_000)
    load = read_load(b'sglang:cache_config_info{page_size="1",num_pages="200000"} 1.0\n')
    assert load.blocks_of(64) == 3125
    assert read_load(b"sglang:max_total_num_tokens 200000\n").kv_blocks is None, "the size of a page is not told"
    assert EngineLoad(kv_blocks=10).blocks_of(16) is None


def test_both_names_of_one_thing_count_once() -> None:
    page = b"vllm:kv_cache_usage_perc 0.25\nvllm:gpu_cache_usage_perc 0.25\n"
    page += b"vllm:prompt_tokens 5\nvllm:prompt_tokens_total 5\n"
    assert read_load(page) == EngineLoad(kv_used=0.25, prompt_tokens=5)


@pytest.mark.parametrize(
    "line",
    [
        b'vllm:num_requests_running{model_name="a } b, c=\\"d\\" \\\\",engine="0"} 3',
        b'vllm:num_requests_running{model_name="\xff\xfe"} 3.0 1760000000000',
        b'vllm:num_requests_running 3 # {trace_id="a"} 0.5',
        b"vllm:num_requests_running\t3",
        b"vllm:num_requests_running{} 3",
        b'vllm:num_requests_running { engine = "0" } 3'.replace(b" = ", b"="),
        b'vllm:num_requests_running{engine="0",} 3',
    ],
)
def test_odd_lines_that_are_in_order(line: bytes) -> None:
    assert read_load(line).running == 3


@pytest.mark.parametrize(
    "line",
    [
        b"vllm:num_requests_running",
        b"vllm:num_requests_running NaN",
        b"vllm:num_requests_running +Inf",
        b"vllm:num_requests_running -1",
        b"vllm:num_requests_running 1e300",
        b"vllm:num_requests_running three",
        b'vllm:num_requests_running{engine="0" 3',
        b'vllm:num_requests_running{engine="0} 3',
        b'vllm:num_requests_running{engine="0\\"} 3',
        b"vllm:num_requests_running{engine 3",
        b"vllm:num_requests_running_total 3",
        b" vllm:num_requests_running 3",
        b"vllm:",
    ],
)
def test_lines_that_are_skipped(line: bytes) -> None:
    assert read_load(line) == EngineLoad()
    assert read_load(line + b"\n" + VLLM) == VLLM_LOAD, "and nothing else is"


def test_a_page_without_end_is_read_to_its_bound_and_no_number_is_cut() -> None:
    page = b"vllm:num_requests_running 7\n" + b"#" * (PAGE_LIMIT - 65) + b"\nvllm:num_requests_waiting 12345678901\n"
    assert len(page) > PAGE_LIMIT
    assert read_load(page) == EngineLoad(running=7)


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "line", [b'vllm:num_requests_running{a="' + b"\\" * PAGE_LIMIT, b"vllm:num_requests_running{" + b'=",' * (1 << 20)]
)
def test_hostile_labels_take_linear_time(line: bytes) -> None:
    assert read_load(line) == EngineLoad()


TIERS = b"""\
prefixgate:kv_tier_round_trip_seconds{tier="redis",store="9f3a"} 0.004
prefixgate:kv_tier_seconds_per_token{tier="redis",store="9f3a"} 2e-05
prefixgate:kv_tier_round_trip_seconds{tier="host",store=""} 0
prefixgate:kv_tier_seconds_per_token{tier="host",store=""} 4.5e-06
prefixgate:kv_tier_round_trip_seconds{tier="disk",store=""} 0.01
"""


def test_tiers_are_read_the_fastest_first_and_whole() -> None:
    told = read_load(TIERS)
    assert told.tells
    assert told == EngineLoad(tiers=(TierPrice(Tier.HOST, 0.0, 4.5e-6), TierPrice(Tier.REDIS, 0.004, 2e-5, "9f3a"))), (
        "of the disk one number is missing"
    )
    assert read_load(VLLM + TIERS) == replace(VLLM_LOAD, tiers=told.tiers)


@pytest.mark.parametrize(
    ("round_trip", "per_token"),
    [("601", "1e-5"), ("0.1", "0"), ("0.1", "1.5"), ("NaN", "1e-5"), ("0.1", "+Inf"), ("-1", "1e-5"), ("x", "1e-5")],
)
def test_a_tier_that_cannot_be_is_not_there(round_trip: str, per_token: str) -> None:
    page = f"""\
prefixgate:kv_tier_round_trip_seconds{{tier="host",store=""}} {round_trip}
prefixgate:kv_tier_seconds_per_token{{tier="host",store=""}} {per_token}
"""
    assert read_load(page.encode()) == EngineLoad()


def test_tiers_are_few_and_stores_have_short_names() -> None:
    lines = [
        f'prefixgate:kv_tier_{what}{{tier="{tier}",store="{store}"}} {value}'
        for tier, store in (
            ("host", "a"),
            ("host", "b"),
            ("disk", "x" * 129),
            ("device", ""),
            *((f"t{n}", "") for n in range(99)),
        )
        for what, value in (("round_trip_seconds", 0.1 if store != "b" else 0.2), ("seconds_per_token", 1e-5))
    ]
    told = read_load("\n".join(lines).encode()).tiers
    assert told == (TierPrice(Tier.HOST, 0.2, 1e-5), TierPrice(Tier.DISK, 0.1, 1e-5)), (
        "ranks that disagree share nothing"
    )


def test_a_page_of_tiers_that_is_cut_anywhere_tells_less_or_the_same() -> None:
    whole = read_load(TIERS).tiers
    for end in range(len(TIERS) + 1):
        for price in read_load(TIERS[:end]).tiers:
            assert price.tier in {full.tier for full in whole}


@given(st.binary(max_size=300))
def test_no_bytes_raise(data: bytes) -> None:
    read_load(data)


@given(st.data())
def test_no_damaged_page_raises_or_tells_nonsense(data: st.DataObject) -> None:
    page = bytearray(data.draw(st.sampled_from([VLLM, SGLANG, TENSORRT])))
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(page) - 1))
        page[at : at + data.draw(st.integers(0, 30))] = data.draw(st.binary(max_size=10))
    load = read_load(bytes(page))
    assert load.kv_used is None or 0 <= load.kv_used <= 1
    for count in (load.running, load.waiting, load.kv_blocks, load.prompt_tokens, load.generation_tokens):
        assert count is None or count >= 0


# --- polling -----------------------------------------------------------------------------------------------

W = WorkerId("w")


class Heard:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.probes: list[tuple[bool, str]] = []
        self.loads: list[EngineLoad] = []
        self.cards: list[list[dict[str, object]]] = []
        self.fails = False

    def probed(self, worker: WorkerId, ok: bool, detail: str, now: float) -> None:
        assert worker == W
        assert now > 0
        self.probes.append((ok, detail))
        if self.fails:
            raise RuntimeError("a fault of the listener")

    def load(self, worker: WorkerId, load: EngineLoad, now: float) -> None:
        assert worker == W
        self.loads.append(load)

    def models(self, worker: WorkerId, cards: Sequence[dict[str, object]]) -> None:
        self.cards.append(list(cards))


Answer = Callable[[web.Request], web.StreamResponse]


class Site:
    """A worker of which a test decides every answer."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.keys: set[str | None] = set()
        self.answers: dict[str, Answer] = {
            "/health": lambda _: web.Response(),
            "/metrics": lambda _: web.Response(body=VLLM),
            "/v1/models": lambda _: web.json_response({"object": "list", "data": [{"id": "m"}, "no card"]}),
        }
        self.stalls: set[str] = set()
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request.path)
        self.keys.add(request.headers.get("authorization"))
        if request.path in self.stalls:
            await asyncio.sleep(30)
        answer = self.answers.get(request.path)
        return web.Response(status=404) if answer is None else answer(request)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Site]:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()


FAST = PollSettings(
    health_interval=0.02, health_timeout=0.3, metrics_interval=0.02, metrics_timeout=0.3,
    models_interval=0.02, models_timeout=0.3, rare_interval=60.0,
)  # fmt: skip


@asynccontextmanager
async def polled(url: str, heard: Heard, settings: PollSettings = FAST, **more: str) -> AsyncIterator[WorkerPoll]:
    poll = WorkerPoll(W, url, listener=heard, settings=settings, sample=lambda: 0.5, **more)  # type: ignore[arg-type]  # a key
    task = asyncio.create_task(poll.run())
    try:
        yield poll
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_worker_tells_all_three() -> None:
    heard = Heard()
    async with Site().running() as site, polled(site.url, heard, api_key="s3cret") as poll:
        async with asyncio.timeout(5):
            await poll.first_round.wait()
        assert heard.probes[0] == (True, "")
        assert heard.loads[0] == VLLM_LOAD
        assert heard.cards[0] == [{"id": "m"}]
        await eventually(lambda: len(heard.loads) > 3 and len(heard.probes) > 3 and len(heard.cards) > 3)
        assert site.keys == {"Bearer s3cret"}


async def test_the_simulated_engine_tells_its_load() -> None:
    heard = Heard()
    engine = EngineConfig(speed=100.0, blocks=1234)
    fleet_config = FleetConfig(model=MODEL, engine=engine)
    async with SimulatedFleet(1, fleet_config, text=model_text()) as fleet, polled(fleet.urls[0], heard):
        await eventually(lambda: heard.loads)
        assert (heard.loads[0].kv_blocks, heard.loads[0].block_size) == (1234, engine.block_size)
        assert heard.loads[0].running == 0


async def test_a_worker_that_fails_and_comes_back(caplog: pytest.LogCaptureFixture) -> None:
    heard, site = Heard(), Site()
    caplog.set_level("INFO", "backends.worker_poll")
    async with site.running(), polled(site.url, heard):
        await eventually(lambda: len(heard.probes) > 2)
        well = site.answers["/health"]
        site.answers["/health"] = lambda _: web.Response(status=503)
        await eventually(lambda: heard.probes[-1] == (False, "status 503"))
        failed = len(heard.probes)
        await eventually(lambda: len(heard.probes) > failed + 3)
        site.answers["/health"] = well
        await eventually(lambda: heard.probes[-1] == (True, ""))
    lines = [record.getMessage() for record in caplog.records]
    assert lines == ["worker w: a probe failed: status 503", "worker w: probes succeed again"]


async def test_no_health_path_no_metrics(caplog: pytest.LogCaptureFixture) -> None:
    heard, site = Heard(), Site()
    caplog.set_level("INFO", "backends.worker_poll")
    del site.answers["/health"], site.answers["/metrics"]
    async with site.running(), polled(site.url, heard) as poll:
        await eventually(lambda: len(heard.probes) > 5 and poll.first_round.is_set())
        assert {ok for ok, _ in heard.probes} == {True}, "its list of models is the probe"
        assert site.asked.count("/health") == 1
        assert site.asked.count("/metrics") == 1, "it is asked rarely from then on"
    assert heard.loads == []
    assert [record.getMessage() for record in caplog.records] == ["worker w tells no load: status 404"]


async def test_metrics_under_tensorrts_path() -> None:
    heard, site = Heard(), Site()
    site.answers["/metrics"] = lambda _: web.json_response([{"iter": 1, "gpuMemUsage": 5}])
    site.answers["/prometheus/metrics"] = lambda _: web.Response(body=TENSORRT)
    async with site.running(), polled(site.url, heard):
        await eventually(lambda: len(heard.loads) > 3)
    assert heard.loads[0] == TENSORRT_LOAD
    assert site.asked.count("/metrics") == 1


async def test_a_stalled_answer_holds_up_no_other_question() -> None:
    heard, site = Heard(), Site()
    site.stalls = {"/metrics"}
    async with site.running(), polled(site.url, heard) as poll:
        await eventually(lambda: len(heard.probes) > 3 and len(heard.cards) > 3)
        await eventually(poll.first_round.is_set)
        assert heard.loads == []
        site.stalls = {"/health"}
        await eventually(lambda: heard.loads and heard.probes[-1] == (False, "no answer in time"))


async def test_a_dead_port_is_told_and_ends_the_first_round() -> None:
    heard, site = Heard(), Site()
    async with site.running():
        pass
    async with polled(site.url, heard) as poll:
        await eventually(poll.first_round.is_set)
        assert not heard.probes[0][0]
        assert heard.probes[0][1]
        assert not heard.cards


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'{"data": 5}', b'{"data": [' + b'"x",' * 2_000_000 + b'"x"]}'],
    ids=["empty", "cut", "list", "no list", "too long"],
)
async def test_lists_of_models_that_are_none(body: bytes, caplog: pytest.LogCaptureFixture) -> None:
    heard, site = Heard(), Site()
    site.answers["/v1/models"] = lambda _: web.Response(body=body)
    async with site.running(), polled(site.url, heard) as poll:
        await eventually(poll.first_round.is_set)
        await eventually(lambda: "did not tell its models" in caplog.text)
        assert heard.cards == []
        assert heard.probes[0][0], "which says nothing about its health"


async def test_a_listener_that_fails_ends_no_poll(caplog: pytest.LogCaptureFixture) -> None:
    heard = Heard()
    heard.fails = True
    async with Site().running() as site, polled(site.url, heard):
        await eventually(lambda: len(heard.probes) > 3)
    assert "could not be taken in" in caplog.text


async def test_many_polls_of_which_some_go() -> None:
    async with Site().running() as site:
        heard = [Heard() for _ in range(20)]
        polls = [WorkerPoll(W, site.url, listener=each, settings=FAST) for each in heard]
        tasks = [asyncio.create_task(poll.run()) for poll in polls]
        await asyncio.gather(*(poll.first_round.wait() for poll in polls))
        for task in tasks[:10]:
            task.cancel()
        await asyncio.gather(*tasks[:10], return_exceptions=True)
        counts = [len(each.probes) for each in heard]
        await eventually(lambda: all(len(each.probes) > n for each, n in zip(heard[10:], counts[10:], strict=True)))
        assert [len(each.probes) for each in heard[:10]] == counts[:10]
        for task in tasks[10:]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_load_that_is_told_no_longer_is_no_longer_known() -> None:
    heard = Heard()
    async with Site().running() as site:
        del site.answers["/metrics"]
        settings = replace(FAST, rare_interval=0.02)
        task = asyncio.create_task(WorkerPoll(W, site.url, listener=heard, settings=settings).run())
        await eventually(lambda: len(heard.probes) > 2)
        assert heard.loads == [], "there never was one"
        site.answers["/metrics"] = lambda _: web.Response(body=VLLM)
        await eventually(lambda: heard.loads)
        assert heard.loads[-1].tells
        site.answers["/metrics"] = lambda _: web.Response(status=500)
        await eventually(lambda: not heard.loads[-1].tells)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_worker_that_speaks_no_tls_is_not_well_under_https() -> None:
    heard = Heard()
    async with Site().running() as site:
        url = site.url.replace("http:", "https:")
        poll = WorkerPoll(W, url, listener=heard, settings=FAST, tls=UpstreamTls(UpstreamTlsSpec()))
        task = asyncio.create_task(poll.run())
        await eventually(lambda: heard.probes)
        assert not heard.probes[0][0], "it speaks no TLS"
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_model_cards() -> None:
    assert model_cards(200, b'{"data": [{"id": "a"}, 5]}') == [{"id": "a"}]
    with pytest.raises(ValueError, match="status 401"):
        model_cards(401, b"{}")
