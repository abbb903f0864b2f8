"""`prefixgate plan` as a person runs it, and what stands behind it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from typer.testing import CliRunner, Result

from backends.simulated.engine import EngineConfig
from gateway.cli import application
from gateway.replay.arrival import Arrival
from gateway.replay.capacity import Scenario, coarse, fewest, fitting, judge, unshared
from gateway.replay.slo import Slos
from gateway.replay.traces import read_trace
from policies.admission_types import ServiceClass

DATA = Path(__file__).parent / "data"
MOONCAKE = str(DATA / "traces/mooncake_conversation_2000.jsonl.xz")


def run(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "160"}).invoke(application("plan"), ["plan", *arguments])


def document(path: Path, *arguments: str) -> dict[str, Any]:
    result = run(*arguments, "--out", str(path))
    assert result.exit_code == 0, result.output
    found = orjson.loads(path.read_bytes())
    assert isinstance(found, dict)
    return found


def test_it_says_how_many_workers_will_do(tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    result = run(MOONCAKE, "--limit", "100", "--rate", "12", "-n", "3-8", "--policy", "cost", "--html", str(page))
    assert result.exit_code == 0, result.output
    assert "workers will do for mooncake_conversation_2000.jsonl.xz" in result.output
    assert "The cache saves" in result.output
    html = page.read_text()
    assert html.startswith("<!doctype html>")
    assert html.count("<svg") == 2
    assert "<script" not in html


def test_its_tables_have_room_on_a_terminal_of_80_columns() -> None:
    terminal = CliRunner(env={"COLUMNS": "80", "FORCE_COLOR": "1", "TERM": "dumb"})
    words = "plan demo --rate 1200 -n 2 --policy consistent_hash --policy prefix_affinity"
    result = terminal.invoke(application("plan"), words.split())
    assert result.exit_code == 0, result.output
    assert "…" not in result.output
    rows = [line for line in result.output.splitlines() if "%" in line and "cache saves" not in line]
    assert len(rows) == 4, "none of them takes two lines"
    assert all(row.rstrip()[-1].isdigit() and len(row) <= 80 for row in rows), rows


def test_the_fewest_that_keep_the_promise_are_found(tmp_path: Path) -> None:
    found = document(
        tmp_path / "plan.json",
        *(MOONCAKE, "--limit", "200", "--rate", "12", "-n", "1-16", "--policy", "cost", "--no-cache"),
    )
    (answer,) = found["answers"]
    assert answer["workers"] == found["workers"] > 1
    enough = {row["workers"]: row["enough"] for row in answer["tried"]}
    assert enough[found["workers"]]
    assert not enough[found["workers"] - 1]
    row = next(row for row in answer["tried"] if row["workers"] == found["workers"])
    assert row["classes"]["standard"]["share"] >= 0.95
    assert row["goodput"] == pytest.approx(row["met"] / 200 * 12, rel=0.01)


def test_a_cache_is_worth_something_where_prompts_share_and_nothing_where_none_does(tmp_path: Path) -> None:
    options = ("--rate", "6", "-n", "4", "--policy", "cost", "--max-output", "4")
    shared = document(tmp_path / "a.json", MOONCAKE, "--limit", "150", *options)
    alone = document(tmp_path / "b.json", str(DATA / "arrivals/azure_conv_300.csv"), "--limit", "150", *options)
    hits = [[answer["tried"][0]["hit_share"] for answer in each["answers"]] for each in (shared, alone)]
    assert hits[0][0] > 0.02
    assert hits[0][1] == 0.0
    assert hits[1] == [0.0, 0.0]
    computed = [answer["tried"][0]["computed_tokens"] for answer in shared["answers"]]
    assert computed[0] < computed[1]


def test_admission_keeps_the_promise_to_one_class_where_all_cannot_be_served(tmp_path: Path) -> None:
    options = (
        *(str(DATA / "arrivals/azure_conv_300.csv"), "--rate", "60", "-n", "1", "--policy", "cost", "--no-cache"),
        *("--classes", "interactive=0.3,batch=0.7", "--tenants", "a=1,b=2", "--slo", "batch:ttft=1s"),
    )
    fair, fcfs = (
        document(tmp_path / f"{name}.json", *options, "--admission", name)["answers"][0]["tried"][0]
        for name in ("fair", "fcfs")
    )
    assert fair["classes"]["interactive"]["share"] == 1.0
    assert fcfs["classes"]["interactive"]["share"] < 0.8
    assert set(fair["tenants"]) == {"a", "b"}
    assert fair["tenants"]["a"]["requests"] < fair["tenants"]["b"]["requests"]


def test_routing_by_prefix_needs_no_more_workers_than_routing_without(tmp_path: Path) -> None:
    found = document(tmp_path / "plan.json", "demo", "--rate", "120", "-n", "1-8", "--slo-ttft", "200ms", "--no-cache")
    needed = {answer["routing"]: answer["workers"] for answer in found["answers"]}
    assert set(needed) == {"cost", "round_robin", "least_loaded"}
    assert needed["cost"] < min(needed["round_robin"], needed["least_loaded"])


def test_the_same_question_has_the_same_answer(tmp_path: Path) -> None:
    options = ("demo", "--rate", "30", "-n", "1-4", "--admission", "fair", "--classes", "interactive=1,batch=1")
    assert document(tmp_path / "a.json", *options)["answers"] == document(tmp_path / "b.json", *options)["answers"]


def test_more_than_allowed_is_said(tmp_path: Path) -> None:
    result = run(MOONCAKE, "--limit", "60", "--speed", "100", "-n", "1-2", "--policy", "cost", "--slo-ttft", "50ms")
    assert result.exit_code == 0, result.output
    assert "More than 2 workers are needed" in result.output
    assert "> 2" in result.output


def test_what_fits_into_no_engine_is_left_out_and_said(tmp_path: Path) -> None:
    result = run(MOONCAKE, "--limit", "60", "-n", "8", "--policy", "cost", "--no-cache", "--max-model-len", "16384")
    assert result.exit_code == 0, result.output
    assert "do not fit into 16,384 tokens (--max-model-len, --blocks) and are left out" in result.output


def test_json_on_stdout_is_nothing_but_json() -> None:
    result = run("demo", "-n", "2", "--policy", "cost", "--no-cache", "--out", "-")
    assert result.exit_code == 0
    assert orjson.loads(result.stdout)["schema"] == "prefixgate.plan/1"
    assert "workers will do" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.jsonl"], "nowhere.jsonl: cannot be opened"),
        (["demo", "-n", "0"], "'0': expected 1 to 1,024 workers"),
        (["demo", "-n", "8-4"], "'8-4': expected 1 to 1,024 workers, the smaller number first"),
        (["demo", "-n", "many"], "'many' is neither a number of workers such as 8 nor a range such as 1-32"),
        (["demo", "--policy", "best"], "no routing policy 'best'; there are consistent_hash, cost"),
        (["demo", "--admission", "lifo"], "no admission policy 'lifo'; there are fair, fcfs, none, priority"),
        (["demo", "--classes", "gold=1"], "'gold' is no class; there are interactive, standard, batch"),
        (["demo", "--classes", "batch=x"], "expected NAME=SHARE"),
        (["demo", "--tenants", "a=1,a=2"], "a is given twice"),
        (["demo", "--tenants", "a=0"], "all shares are 0"),
        (["demo", "--slo", "gold:ttft=1s"], "--slo gold: expected CLASS:BOUNDS"),
        (["demo", "--rate", "5", "--speed", "2"], "give one of them"),
        (["demo", "--out", "-", "--html", "-"], "only one of --out and --html"),
        (["demo", "--max-num-seqs", "512", "--max-batched-tokens", "256"], "max_batched_tokens must be at least"),
        (["demo", "--max-model-len", "8"], "no request of demo fits into 8 tokens"),
        (["demo", "-n", "1", "--out", "/nowhere/plan.json"], "/nowhere/plan.json: cannot be written"),
    ],
)
def test_what_cannot_be_asked_is_said_clearly(arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())


def test_larger_blocks_are_simulated_only_where_the_trace_knows_no_smaller_ones() -> None:
    def sized(*sizes: int) -> list[Arrival]:
        return [Arrival(0.0, size, 1, (n,), size) for n, size in enumerate(sizes)]

    engine = EngineConfig(blocks=1_000, block_size=16)
    assert coarse(engine, sized(512))[0].block_size == 256
    assert coarse(engine, sized(512))[0].blocks == 62
    assert coarse(engine, sized(512, 64))[0].block_size == 64
    assert coarse(engine, sized(512, 24))[0].block_size == 16
    assert coarse(EngineConfig(blocks=1_000, block_size=512), sized(512))[0].block_size == 512


def test_larger_blocks_change_the_figures_little() -> None:
    arrivals = read_trace(MOONCAKE, 200)
    engine = EngineConfig(blocks=32_768, max_model_len=131_072)
    fit = fitting(arrivals, engine)
    promise = {ServiceClass.STANDARD: Slos(ttft=2.0)}
    exact, quick = (judge(Scenario(fit, each, promise), 3, "cost") for each in (engine, coarse(engine, fit)[0]))
    assert exact.ttft is not None
    assert quick.ttft is not None
    assert quick.ttft.p50 == pytest.approx(exact.ttft.p50, rel=0.1)
    assert quick.hit_share == pytest.approx(exact.hit_share, abs=0.02)
    assert quick.share == pytest.approx(exact.share, abs=0.03)


def test_unshared_prompts_have_nothing_in_common() -> None:
    arrivals = read_trace(MOONCAKE, 100)
    ids = [block for arrival in unshared(arrivals) for block in arrival.block_ids]
    assert len(ids) == len(set(ids)) == sum(len(arrival.block_ids) for arrival in arrivals)


@pytest.mark.parametrize("wanted", [1, 2, 3, 7, 8, 13, 20])
def test_the_search_finds_what_is_wanted_in_few_steps(wanted: int) -> None:
    verdict = judge(Scenario([Arrival(0.0, 16, 1, (1,), 16)], EngineConfig(), {}), 1, "cost")

    class Told:
        def __init__(self, workers: int) -> None:
            self.workers = workers

        def enough(self, _: float) -> bool:
            return self.workers >= wanted

    assert verdict.enough(1.0)
    needed, tried = fewest(1, 16, 1.0, Told)  # type: ignore[arg-type]  # it is asked nothing else
    assert needed == (wanted if wanted <= 16 else None)
    assert len(tried) <= 9
