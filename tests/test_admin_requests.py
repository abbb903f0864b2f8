"""Recent requests: newest first, filtered, and each with the explanation of where it went."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Any

import pytest

from gateway.admin import RecentRequests
from gateway.admin.explain import explanation, summary
from gateway.dialects.base import Usage
from gateway.request_record import Attempt, Outcome
from gateway.telemetry.trace_context import TraceContext
from policies.restore_route import DEFAULT_HOST, PricedRun, RestoreSplit
from policies.routing import RouteDecision
from policies.types import Tier, TierRun
from tests.admin_fixtures import control_plane
from tests.record_fixtures import W0, W1, attempt, record


def ids(data: dict[str, object]) -> list[str]:
    rows = data["data"]
    assert isinstance(rows, list)
    return [row["id"] for row in rows]


def test_only_so_many_are_kept_and_none_where_none_is_to_be() -> None:
    recent = RecentRequests(3)
    for number in range(5):
        recent.finished(record(b"r-%d" % number))
    assert [one.request_id for one in recent.newest(10)] == [b"r-4", b"r-3", b"r-2"]
    recent.keep(2)
    recent.finished(record(b"r-5"))
    assert [one.request_id for one in recent.newest(10)] == [b"r-5", b"r-4"]
    recent.keep(0)
    recent.finished(record(b"r-6"))
    assert recent.newest(10) == []


def test_of_two_requests_of_one_id_the_newest_is_found() -> None:
    recent = RecentRequests(3)
    recent.finished(record(b"same", status=200))
    recent.finished(record(b"same", status=404))
    found = recent.find("same")
    assert found is not None
    assert found.status == 404
    assert recent.find("other") is None


async def test_the_list_is_newest_first_and_can_be_filtered() -> None:
    async with control_plane() as plane:
        plane.recent.finished(record(b"r-0", attempts=[attempt(W0)]))
        plane.recent.finished(record(b"r-1", attempts=[attempt(W0, fault="no answer in time"), attempt(W1)]))
        plane.recent.finished(record(b"r-2", model="other model", tenant="acme"))
        plane.recent.finished(record(b"r-3", attempts=[], outcome=Outcome.CLIENT_ERROR, status=404, model=None))
        for query, wanted in (
            ("", ["r-3", "r-2", "r-1", "r-0"]),
            ("?limit=2", ["r-3", "r-2"]),
            ("?worker=w0", ["r-1", "r-0"]),
            ("?outcome=client_error", ["r-3"]),
            ("?tenant=acme", ["r-2"]),
            ("?model=other%20model", ["r-2"]),
            ("?worker=w1&model=m&limit=1", ["r-1"]),
            ("?worker=none", []),
        ):
            answered, data = await plane.ask("GET", "/admin/requests" + query)
            assert (answered, ids(data)) == (200, wanted), query


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("limit=x", "limit"),
        ("limit=", "limit"),
        ("limit=%C2%B2", "limit"),
        ("outcome=fine", "outcome"),
        ("wroker=w1", "wroker"),
    ],
)
async def test_a_bad_filter_is_told(query: str, param: str) -> None:
    async with control_plane() as plane:
        answered, data = await plane.ask("GET", f"/admin/requests?{query}")
        assert answered == 400
        assert data["error"]["param"] == param  # type: ignore[index]  # an error


async def test_one_request_is_explained_by_its_id_whatever_that_looks_like() -> None:
    async with control_plane() as plane:
        for request_id, written in ((b"r-1", "r-1"), (b"a/b c?", "a%2Fb%20c%3F"), (b"100%", "100%25")):
            plane.recent.finished(record(request_id))
            answered, data = await plane.ask("GET", f"/admin/requests/{written}")
            assert (answered, data["id"]) == (200, request_id.decode())
        answered, data = await plane.ask("GET", "/admin/requests/none")
        assert answered == 404
        assert "admin.requests_kept" in str(data["error"])


async def test_times_are_of_the_wall_clock() -> None:
    async with control_plane() as plane:
        plane.recent.finished(record(arrived=asyncio.get_running_loop().time()))
        _, data = await plane.ask("GET", "/admin/requests/r-1")
        arrived = datetime.fromisoformat(str(data["arrived"]))
        assert abs(arrived.timestamp() - time.time()) < 60


def test_an_explanation_tells_candidates_costs_choice_and_what_came_of_it() -> None:
    done = record(
        attempts=[
            attempt(W0, at=100.01, fault="connection refused", costs=(0.125, 0.25)),
            attempt(W1, at=100.02, costs=(0.5, 0.25)),
        ],
        usage=Usage(130, 11, 90),
        trace=TraceContext(b"a" * 32, b"b" * 16, None, True, b""),
    )
    done.tenant, done.charged_tokens = "acme", 141
    done.service_class, done.queued_s, done.predicted_ttft = "batch", 0.004, 0.03
    told = explanation(done, epoch=datetime(2026, 1, 1, tzinfo=UTC).timestamp() - 100.0)
    assert told == {
        "id": "r-1",
        "arrived": "2026-01-01T00:00:00.000+00:00",
        "method": "POST",
        "path": "/v1/chat/completions",
        "tenant": "acme",
        "class": "batch",
        "model": "m",
        "outcome": "ok",
        "status": 200,
        "error": None,
        "response_cache": None,
        "response_cache_refusal": None,
        "worker": "w1",
        "retries": 1,
        "prompt_tokens": 128,
        "predicted_cached_tokens": 96,
        "predicted_restored_tokens": 0,
        "reported_cached_tokens": 90,
        "completion_tokens": 11,
        "time_to_first_byte_s": 0.05,
        "duration_s": 1.05,
        "dialect": "openai",
        "route": "chat",
        "stream": True,
        "session_affinity": False,
        "response_model": None,
        "reported_prompt_tokens": 130,
        "charged_tokens": 141,
        "response_bytes": 4321,
        "trace_id": "a" * 32,
        "queued_s": 0.004,
        "predicted_ttft_s": 0.03,
        "times_s": {"routed": 0.01, "first_byte": 0.05, "finished": 1.05},
        "attempts": [
            {
                "worker": "w0",
                "after_s": 0.01,
                "why": "lowest cost of 2: 0.125, the next is 0.25",
                "choice": None,
                "predicted_cached_tokens": 0,
                "predicted_restored_tokens": 0,
                "predicted_restore_s": None,
                "candidates": told["attempts"][0]["candidates"],  # type: ignore[index]  # told below
                "result": "connection refused",
            },
            {
                "worker": "w1",
                "after_s": 0.02,
                "why": "lowest cost of 2: 0.25, the next is 0.5",
                "choice": None,
                "predicted_cached_tokens": 96,
                "predicted_restored_tokens": 0,
                "predicted_restore_s": None,
                "candidates": [
                    {
                        "worker": "w0",
                        "chosen": False,
                        "cost": 0.5,
                        "active_requests": 3,
                        "queued_tokens": 700.0,
                        "recent_tokens": 900.0,
                        "prefill_tokens_per_s": 8000.0,
                        "cached_tokens": 0,
                        "restorable_tokens": 0,
                        "blocks_by_tier": None,
                    },
                    {
                        "worker": "w1",
                        "chosen": True,
                        "cost": 0.25,
                        "active_requests": 1,
                        "queued_tokens": 20.0,
                        "recent_tokens": 0.0,
                        "prefill_tokens_per_s": None,
                        "cached_tokens": 96,
                        "restorable_tokens": 0,
                        "blocks_by_tier": {"device": 4, "host": 2},
                    },
                ],
                "result": "ok",
            },
        ],
    }


def test_a_choice_among_tiers_is_told() -> None:
    restorable = {W0: [PricedRun(64, DEFAULT_HOST), PricedRun(16, DEFAULT_HOST)]}
    decision = RouteDecision(0, 32, (0.1, 0.2), "restore", RestoreSplit(64, 0.0125, 32))
    views = attempt().candidates
    made = Attempt(W0, views, {W0: 32}, decision, 100.01, {W0: [TierRun(Tier.DEVICE, 2)]}, restorable)
    done = record(attempts=[made])
    done.restored_tokens = 64
    told: dict[str, Any] = explanation(done, epoch=0.0)
    [one] = told["attempts"]
    assert told["predicted_restored_tokens"] == one["predicted_restored_tokens"] == 64
    assert (one["choice"], one["predicted_restore_s"]) == ("restore", 0.0125)
    assert one["why"] == "lowest cost of 2: 0.1, the next is 0.2 (restore)"
    assert [each["restorable_tokens"] for each in one["candidates"]] == [80, 0]


def test_the_reason_is_true_where_no_cost_decided() -> None:
    session = record()
    session.attempts[0].decision = session.attempts[0].decision._replace(reason="session")
    alone = record()
    alone.attempts[0].candidates = alone.attempts[0].candidates[1:]
    alone.attempts[0].decision = alone.attempts[0].decision._replace(chosen=0, costs=())
    for done, why in (
        (record(attempts=[attempt(costs=())]), "picked from 2 by the routing policy, which has no costs"),
        (record(attempts=[attempt(costs=(0.25, 0.25))]), "lowest cost of 2: 0.25, equal to the next"),
        (
            record(attempts=[attempt(costs=(0.1, 0.25))]),
            "cost 0.25, not the lowest of 2, 0.1: the routing policy has other reasons",
        ),
        (session, "its session is there"),
        (alone, "the only candidate"),
    ):
        attempts = explanation(done, 0.0)["attempts"]
        assert isinstance(attempts, list)
        assert attempts[0]["why"] == why


def test_a_request_that_reached_no_worker_is_told_too() -> None:
    done = record(attempts=[], outcome=Outcome.CLIENT_ERROR, status=404, model=None, error="unknown_route", kind="")
    told = explanation(done, 0.0)
    assert (told["worker"], told["attempts"], told["time_to_first_byte_s"]) == (None, [], None)
    assert summary(done, 0.0)["error"] == "unknown_route"
