"""Metrics: each number is what happened, labels stay bounded, and the text is what Prometheus reads."""

from __future__ import annotations

import asyncio
import re
import shutil
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from backends.fleet_state import FleetState
from backends.kv_subscriber import FeedStats
from backends.worker_status import Standing
from cache.http_embedding import HttpEmbedder
from cache.prompt_blocks import PromptBlockCache
from cache.response_stores import ResponseStores, open_response_cache
from cache.similarity import Limits, SimilarityIndex
from gateway.admin import RecentRequests
from gateway.admission import AdmissionGate, GateSettings
from gateway.cache_drift import CacheDrift
from gateway.cached_call import CachingSettings
from gateway.dialects.base import Usage
from gateway.embedding_batcher import EmbeddingBatcher
from gateway.request_record import Observer, Outcome
from gateway.response_caching import ResponseCaching
from gateway.semantic_caching import SemanticCaching
from gateway.semantic_call import SemanticRequestSettings
from gateway.semantic_learners import Learners
from gateway.similar_questions import SimilarQuestions
from gateway.telemetry.access_log import AccessLog
from gateway.telemetry.admission_metrics import AdmissionMetrics
from gateway.telemetry.exposition import make_registry, render
from gateway.telemetry.gauges import TokenCache
from gateway.telemetry.metrics import RequestMetrics
from gateway.telemetry.response_metrics import ResponseMetrics
from gateway.telemetry.semantic_metrics import SemanticMetrics
from gateway.telemetry.series import Histogram
from gateway.telemetry.tenant_metrics import TenantMetrics
from gateway.tenancy import Tenant, TenantRules
from policies.admission import AdmissionQueue
from policies.admission_types import Reason, ServiceClass
from policies.response_freshness import FreshnessRules
from policies.semantic import SemanticSettings
from policies.tenant import TenantPolicy
from policies.types import WorkerId
from tests.gateway_fixtures import model_text
from tests.record_fixtures import W0, W1, attempt, record
from tests.telemetry_fixtures import Numbers, status

ROOT = Path(__file__).parent.parent
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def made(
    numbers: Numbers | None = None, *, drift: CacheDrift | None = None
) -> tuple[RequestMetrics, CollectorRegistry]:
    requests = RequestMetrics(drift or CacheDrift(lambda _: 16))
    tenant = Tenant(TenantRules(TenantPolicy("acme")), bytes(32), 0.0)
    tenants = TenantMetrics(lambda: {"acme": tenant})
    more = (tenants, AdmissionMetrics(gate, FLEET), ResponseMetrics(caching), SemanticMetrics(semantic))
    return requests, make_registry((numbers or Numbers()).gauges(), requests, *more)


FLEET = FleetState(cooldown=1.0, cooldown_max=1.0)


def gate() -> AdmissionGate:
    """As a gateway has it; nothing is sent through it."""
    loop = asyncio.new_event_loop()
    try:
        made = AdmissionGate(
            FLEET,
            AdmissionQueue(),
            GateSettings(),
            loop=loop,
            send=lambda *_: None,
            held=lambda _: {},
        )
    finally:
        loop.close()
    made.refusals[ServiceClass.BATCH, Reason.WAITED] = 2
    return made


def caching() -> ResponseCaching:
    """As a gateway has it; nothing goes through it."""
    made = ResponseCaching(
        open_response_cache(ResponseStores()),
        CachingSettings(FreshnessRules(ttl=1.0)),
        loop=asyncio.new_event_loop(),
        executor=ThreadPoolExecutor(1),
        proceed=lambda _: None,
        attempt=lambda *_: None,
    )
    made._loop.close()
    made.cache.close()
    return made


def semantic() -> SemanticCaching:
    """As a gateway has it; nothing goes through it."""
    endpoint = HttpEmbedder("http://127.0.0.1:1/v1", "m", 8)
    questions = SimilarQuestions(SimilarityIndex(8, Limits(entries=1, bytes=1 << 20), scope_size=8))
    learners = Learners(SemanticSettings(), "shadow")
    loop = asyncio.new_event_loop()
    made = SemanticCaching(questions, EmbeddingBatcher(endpoint), learners, SemanticRequestSettings(), loop=loop)
    loop.close()
    questions.close()
    for counts in (made.lookups, made.refusals, questions.refusals):
        counts["x"] += 1
    made.labels["agreement", "right"] += 1
    return made


def value(registry: CollectorRegistry, name: str, labels: Mapping[str, str] | None = None) -> float | None:
    return registry.get_sample_value(name, dict(labels or {}))


# --- requests ----------------------------------------------------------------------------------------------


def test_a_request_is_counted_once_by_route_model_outcome_and_status() -> None:
    requests, registry = made()
    requests.finished(record())
    requests.finished(record())
    requests.finished(record(outcome=Outcome.CUT, error="answer ended early"))
    requests.finished(record(outcome=Outcome.FAILED, status=502))
    labels = {"route": "chat", "model": "m", "outcome": "ok", "status": "2xx"}
    assert value(registry, "prefixgate_requests_total", labels) == 2
    assert value(registry, "prefixgate_requests_total", {**labels, "outcome": "cut"}) == 1
    assert value(registry, "prefixgate_requests_total", {**labels, "outcome": "failed", "status": "5xx"}) == 1


def test_a_clients_word_never_becomes_a_label() -> None:
    requests, registry = made()
    for number in range(50):
        requests.finished(record(attempts=[], model=f"invented-{number}", outcome=Outcome.CLIENT_ERROR, status=404))
    labels = {"route": "chat", "model": "", "outcome": "client_error", "status": "4xx"}
    assert value(registry, "prefixgate_requests_total", labels) == 50
    families = [family for family in registry.collect() if family.name == "prefixgate_requests"]
    assert len(families[0].samples) == 1


def test_times_and_tokens_go_where_the_conventions_say() -> None:
    requests, registry = made()
    requests.finished(record(usage=Usage(130, 11, 90)))
    requests.finished(record(streams=False, usage=Usage(30, 1, None)))
    labels = {"gen_ai_operation_name": "chat", "gen_ai_request_model": "m"}
    duration = "gen_ai_server_request_duration_seconds"
    assert value(registry, f"{duration}_count", labels) == 2
    assert value(registry, f"{duration}_sum", labels) == pytest.approx(2.1)
    assert value(registry, f"{duration}_bucket", {**labels, "le": "1.0"}) == 0
    assert value(registry, f"{duration}_bucket", {**labels, "le": "2.5"}) == 2
    assert value(registry, f"{duration}_bucket", {**labels, "le": "+Inf"}) == 2
    # Only the stream has a first token and a rate.
    assert value(registry, "gen_ai_server_time_to_first_token_seconds_count", labels) == 1
    assert value(registry, "gen_ai_server_time_to_first_token_seconds_sum", labels) == pytest.approx(0.05)
    assert value(registry, "gen_ai_server_time_per_output_token_seconds_sum", labels) == pytest.approx(0.1)
    usage = "gen_ai_client_token_usage_sum"
    assert value(registry, usage, {**labels, "gen_ai_token_type": "input"}) == 160
    assert value(registry, usage, {**labels, "gen_ai_token_type": "output"}) == 12
    route = {"route": "chat", "model": "m"}
    assert value(registry, "prefixgate_prompt_tokens_total", route) == 256
    assert value(registry, "prefixgate_predicted_cached_tokens_total", route) == 192
    assert value(registry, "prefixgate_reported_cached_tokens_total", route) == 90
    assert value(registry, "prefixgate_completion_tokens_total", route) == 12


def test_a_request_that_failed_tells_no_speed() -> None:
    requests, registry = made()
    requests.finished(record(status=503, outcome=Outcome.WORKER_ERROR))
    requests.finished(record(outcome=Outcome.CUT, usage=Usage(10, 5, None)))
    labels = {"gen_ai_operation_name": "chat", "gen_ai_request_model": "m"}
    assert value(registry, "gen_ai_server_request_duration_seconds_count", labels) == 2
    assert value(registry, "gen_ai_server_time_to_first_token_seconds_count", labels) == 1
    assert value(registry, "gen_ai_server_time_per_output_token_seconds_count", labels) is None


def test_faults_and_retries_belong_to_the_worker_that_failed() -> None:
    requests, registry = made(Numbers(statuses=[status("w0"), status("w1")]))
    requests.finished(record(attempts=[attempt(W0, fault="connection refused"), attempt(W1)]))
    requests.finished(record(attempts=[attempt(W0, fault="no answer in time")], outcome=Outcome.FAILED, status=504))
    refused = {"worker": "w0", "fault": "connection refused"}
    late = {"worker": "w0", "fault": "no answer in time"}
    assert value(registry, "prefixgate_attempts_total", {"worker": "w0"}) == 2
    assert value(registry, "prefixgate_attempts_total", {"worker": "w1"}) == 1
    assert value(registry, "prefixgate_faults_total", refused) == 1
    assert value(registry, "prefixgate_faults_total", late) == 1
    assert value(registry, "prefixgate_retries_total", refused) == 1
    assert value(registry, "prefixgate_retries_total", late) is None


def test_all_that_watch_requests_are_observers() -> None:
    watching: list[Observer] = [RequestMetrics(CacheDrift(lambda _: 16)), RecentRequests(10), AccessLog()]
    for one in watching:
        one.finished(record())


def test_labels_stay_bounded_whatever_comes_and_nothing_is_lost() -> None:
    requests, registry = made(Numbers(statuses=[status("w0"), status("w1")]))
    for number in range(2000):
        requests.finished(record(model=f"m{number}", attempts=[attempt(fault=f"odd {number}")]))
    families = {family.name: family.samples for family in registry.collect()}
    assert len(families["prefixgate_requests"]) <= 1001
    assert sum(sample.value for sample in families["prefixgate_requests"]) == 2000
    assert len(families["prefixgate_faults"]) <= 33
    assert sum(sample.value for sample in families["prefixgate_faults"]) == 2000


def test_the_series_of_a_worker_that_has_gone_end_with_it() -> None:
    numbers = Numbers(statuses=[status("w0"), status("w1")])
    requests, registry = made(numbers)
    requests.finished(record(attempts=[attempt(W0, fault="connection refused"), attempt(W1)]))
    numbers.statuses = [status("w1")]
    list(registry.collect())
    assert value(registry, "prefixgate_attempts_total", {"worker": "w0"}) is None
    assert value(registry, "prefixgate_attempts_total", {"worker": "w1"}) == 1


# --- what is cached, and what was thought to be ------------------------------------------------------------


def test_predicted_and_reported_are_compared_where_the_worker_reports() -> None:
    drift = CacheDrift(lambda _: 16)
    requests, registry = made(drift=drift)
    for _ in range(10_000):
        drift.finished(record(usage=Usage(128, 5, 64)))
    requests.finished(record(usage=Usage(128, 5, 64)))
    requests.finished(record(usage=Usage(128, 5, 128)))
    requests.finished(record(usage=Usage(128, 5, None)))
    worker = {"worker": "w1"}
    assert value(registry, "prefixgate_worker_cached_tokens_predicted_total", worker) == 192
    assert value(registry, "prefixgate_worker_cached_tokens_reported_total", worker) == 192
    assert value(registry, "prefixgate_worker_cached_tokens_missed_total", worker) == 32
    assert value(registry, "prefixgate_worker_cached_tokens_drift_ratio", worker) == pytest.approx(0.25, abs=0.01)


# --- histograms --------------------------------------------------------------------------------------------


@given(st.lists(st.floats(0, 10), max_size=40))
def test_a_histogram_counts_as_the_format_says(values: list[float]) -> None:
    histogram = Histogram((0.5, 1.0, 2.0))
    for one in values:
        histogram.observe(one)
    ends = {"0.5": 0.5, "1.0": 1.0, "2.0": 2.0, "+Inf": float("inf")}
    assert dict(histogram.buckets()) == {name: sum(one <= end for one in values) for name, end in ends.items()}
    assert histogram.n == len(values)
    assert histogram.total == pytest.approx(sum(values))


# --- gauges ------------------------------------------------------------------------------------------------


def test_gauges_are_read_at_the_moment_of_the_scrape() -> None:
    numbers = Numbers(statuses=[status(blocks_known=10)])
    _, registry = made(numbers)
    assert value(registry, "prefixgate_worker_index_blocks", {"worker": "w1"}) == 10
    numbers.statuses = [status(blocks_known=7, standing=Standing.EJECTED, kv_feed=None, running=None)]
    numbers.ready = (False, "draining")
    worker = {"worker": "w1"}
    assert value(registry, "prefixgate_worker_index_blocks", worker) == 7
    assert value(registry, "prefixgate_worker_standing", {**worker, "standing": "ejected"}) == 1
    assert value(registry, "prefixgate_worker_standing", {**worker, "standing": "ready"}) == 0
    assert value(registry, "prefixgate_worker_queued_tokens", worker) == 70.5
    assert value(registry, "prefixgate_worker_running_requests", worker) is None
    assert value(registry, "prefixgate_worker_kv_feed_live", worker) is None
    assert value(registry, "prefixgate_worker_ejections_total", worker) == 1
    assert value(registry, "prefixgate_ready") == 0
    assert value(registry, "prefixgate_requests_in_flight") == 2
    assert value(registry, "prefixgate_client_connections") == 9
    assert value(registry, "prefixgate_held_bytes") == 12345
    assert value(registry, "prefixgate_index_blocks") == 321
    assert value(registry, "prefixgate_spans_total", {"result": "dropped"}) == 1
    shared = {name: value(registry, f"prefixgate_shared_limits_{name}") for name in ("up", "gateways", "errors_total")}
    assert shared == {"up": 1, "gateways": 3, "errors_total": 2}
    assert value(registry, "prefixgate_token_cache_bytes", {"model": "m"}) == 7000


def test_the_ranks_of_one_worker_are_added_up() -> None:
    feeds = [(WorkerId("w1"), FeedStats(batches=3, gaps=1)), (WorkerId("w1"), FeedStats(batches=4, forgotten=2))]
    _, registry = made(Numbers(feeds=feeds))
    worker = {"worker": "w1"}
    assert value(registry, "prefixgate_kv_feed_batches_total", worker) == 7
    assert value(registry, "prefixgate_kv_feed_gaps_total", worker) == 1
    assert value(registry, "prefixgate_kv_feed_forgotten_total", worker) == 2


def test_the_program_s_own_token_cache_can_be_read() -> None:
    cache: TokenCache = PromptBlockCache(model_text().tokenizer, max_bytes=1 << 20)
    assert (cache.hits, cache.misses, cache.reused_chars, cache.new_chars) == (0, 0, 0, 0)
    assert cache.bytes > 0


def test_a_source_that_fails_is_left_out_and_counted_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    numbers = Numbers(feeds=None)  # type: ignore[arg-type]  # what it cannot read
    requests, registry = made(numbers)
    requests.finished(record())
    for scrape in range(1, 4):
        names = {family.name for family in registry.collect()}
        assert "prefixgate_worker_standing" in names
        assert "prefixgate_kv_feed_batches" not in names
        assert value(registry, "prefixgate_scrape_errors_total") == 2 * scrape  # each read is a scrape
    assert [entry.getMessage() for entry in caplog.records] == ["metrics of feeds could not be read"]


# --- the text ----------------------------------------------------------------------------------------------


def busy() -> CollectorRegistry:
    """A registry in which every metric has a value."""
    requests, registry = made(Numbers(statuses=[status("w0"), status("w1")]))
    requests.finished(record(attempts=[attempt(W0, fault="connection refused"), attempt(W1)], usage=Usage(130, 11, 90)))
    requests.finished(record(model='odd "name"\\\n'))
    return registry


async def test_prometheus_gets_its_text_and_openmetrics_where_it_asks() -> None:
    text, kind = await render(busy())
    assert kind.startswith("text/plain; version=")
    assert b"# EOF" not in text
    classic = {family.name for family in parse_text(text.decode())}
    text, kind = await render(busy(), OPENMETRICS)
    assert kind.startswith("application/openmetrics-text; version=1.0.0")
    assert text.endswith(b"\n# EOF\n")
    assert text.count(b"# EOF") == 1
    families = {family.name: family for family in parse_openmetrics(text.decode())}  # type: ignore[no-untyped-call]  # the library's own
    assert {name.removesuffix("_total").removesuffix("_info") for name in classic} == {
        name.removesuffix("_info") for name in families
    }
    models = {sample.labels["model"] for sample in families["prefixgate_requests"].samples}
    assert models == {"m", 'odd "name"\\\n'}


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
async def test_a_large_fleet_is_told_in_pieces_and_reads_the_same(accept: str) -> None:
    fleet = [status(f"w\r#{number}") for number in range(200)]
    _, registry = made(Numbers(statuses=fleet))
    text, _ = await render(registry, accept)
    lines = [line for line in text.split(b"\n") if line.startswith(b"prefixgate_worker_standing{")]
    assert len(lines) == len(set(lines)) == 200 * len(Standing)
    assert sum(line.endswith(b" 1.0") for line in lines) == 200
    assert text.count(b"# TYPE prefixgate_worker_standing ") == 1


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool comes with Debian's prometheus package")
async def test_promtool_has_nothing_to_say_about_them() -> None:
    text, _ = await render(busy())
    lines = [line for line in text.decode().splitlines(keepends=True) if "process_" not in line]
    checked = await asyncio.create_subprocess_exec(
        "promtool", "check", "metrics", stdin=PIPE, stdout=PIPE, stderr=STDOUT
    )
    told, _ = await asyncio.wait_for(checked.communicate("".join(lines).encode()), 20)
    assert (checked.returncode, told) == (0, b"")


async def test_no_prompt_no_key_and_no_request_id_is_in_them() -> None:
    requests, registry = made()
    requests.finished(record(b"canary-request-id"))
    text, _ = await render(registry)
    assert b"canary" not in text


def documented() -> set[str]:
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    section = page.split("\n## Metrics\n")[1].split("\n## ")[0]
    return set(re.findall(r"^\| `([a-z_]+)` \|", section, re.MULTILINE))


def test_every_metric_is_documented_and_every_documented_metric_exists() -> None:
    names = {
        {"counter": f"{family.name}_total", "info": f"{family.name}_info"}.get(family.type, family.name)
        for family in busy().collect()
        if not family.name.startswith("process_")
    }
    assert names == documented()


def test_waits_are_counted_by_class() -> None:
    metrics = AdmissionMetrics(gate, FLEET)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(metrics)
    for queued in (0.2, 3.0):
        waited = record()
        waited.service_class, waited.queued_s = "batch", queued
        metrics.finished(waited)
    metrics.finished(record())
    batch = {"class": "batch"}
    assert value(registry, "prefixgate_admission_wait_seconds_count", batch) == 2
    assert value(registry, "prefixgate_admission_wait_seconds_bucket", {**batch, "le": "0.25"}) == 1
    assert value(registry, "prefixgate_admission_waiting", batch) == 0
    assert value(registry, "prefixgate_admission_refusals_total", {**batch, "reason": "waited"}) == 2
    without = CollectorRegistry(auto_describe=False)
    without.register(AdmissionMetrics(lambda: None, FLEET))
    assert [*without.collect()] == []


def test_tenants_are_counted_by_names_of_the_configuration_alone() -> None:
    tenants = {name: Tenant(TenantRules(TenantPolicy(name)), bytes(32), 0.0) for name in ("acme", "beta")}
    metrics = TenantMetrics(lambda: tenants)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(metrics)
    served = record(b"1", tenant="acme", usage=Usage(130, 11, 90))
    served.charged_tokens = 141
    refused = record(b"2", tenant="acme", attempts=[], outcome=Outcome.CLIENT_ERROR, status=429)
    refused.error = "rate_limit_exceeded"
    other = record(b"3", tenant="acme", attempts=[], outcome=Outcome.CLIENT_ERROR, status=400, error="whatever-it-was")
    for each in (served, refused, other, record(b"4"), record(b"5", tenant="beta")):
        metrics.finished(each)
    tenants["acme"].limiter.take(0, 0.0)
    acme = {"tenant": "acme"}
    for name, expected in (("prompt", 130), ("cached", 90), ("completion", 11), ("charged", 141)):
        assert value(registry, f"prefixgate_tenant_{name}_tokens_total", acme) == expected
    assert value(registry, "prefixgate_tenant_requests_total", {**acme, "outcome": "ok", "status": "2xx"}) == 1
    assert value(registry, "prefixgate_tenant_refusals_total", {**acme, "code": "rate_limit_exceeded"}) == 1
    assert value(registry, "prefixgate_tenant_refusals_total", {**acme, "code": "whatever-it-was"}) is None
    assert value(registry, "prefixgate_tenant_requests_in_flight", acme) == 1
    assert value(registry, "prefixgate_tenant_prompt_tokens_total", {"tenant": "beta"}) == 128, "counted here"
    del tenants["acme"]
    assert value(registry, "prefixgate_tenant_prompt_tokens_total", acme) is None
    assert list(metrics._counts) == ["beta"]
    tenants.clear()
    assert list(metrics.collect()) == []
