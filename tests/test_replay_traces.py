"""Trace readers: real data, both formats, and errors that say where."""

from __future__ import annotations

import gzip
import json
import lzma
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gateway.replay import demo_trace
from gateway.replay.arrival import Arrival, TraceError
from gateway.replay.stats import one_cache_hit_share, one_cache_hits
from gateway.replay.traces import read_trace

if TYPE_CHECKING:
    from collections.abc import Callable

TRACES = Path(__file__).parent / "data" / "traces"
MOONCAKE = TRACES / "mooncake_conversation_2000.jsonl.xz"
AGENTS = TRACES / "agent_sessions_5.compact.jsonl"

ROW = {"timestamp": 1500, "input_length": 600, "output_length": 7, "hash_ids": [0, 1]}


def write(path: Path, *rows: object) -> Path:
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n")
    return path


def session(**changes: object) -> dict[str, object]:
    request = {"t": 0.0, "in": 130, "out": 5, "hash_ids": [0, [1, 2]]}
    return {"id": "s", "block_size": 64, "requests": [request]} | changes


def test_mooncake_rows_become_arrivals() -> None:
    arrivals = read_trace(MOONCAKE)
    assert len(arrivals) == 2000
    assert arrivals[0] == Arrival(0.0, 6758, 500, tuple(range(14)), 512, None)
    assert arrivals[-1].at == 669.0
    assert all(len(row.block_ids) == -(-row.input_tokens // 512) for row in arrivals)


def test_limit_of_one_cache_on_the_mooncake_slice() -> None:
    assert one_cache_hit_share(read_trace(MOONCAKE)) == pytest.approx(0.294, abs=5e-4)


def test_one_cache_counts_leading_blocks_only_and_partial_last_blocks() -> None:
    rows = [
        Arrival(0, 1000, 1, (1, 2), 512),
        Arrival(1, 1000, 1, (1, 2), 512),  # the whole input, its partial block too
        Arrival(2, 1500, 1, (1, 3, 2), 512),  # 2 is known, but not behind 3
        Arrival(3, 600, 1, (9, 1), 512),
    ]
    assert one_cache_hits(rows) == [0, 1000, 512, 0]
    assert one_cache_hit_share(rows) == 1512 / 4100
    assert one_cache_hit_share([]) == 0.0


def test_limit_reads_the_first_rows() -> None:
    assert read_trace(MOONCAKE, 20) == read_trace(MOONCAKE)[:20]


def test_time_begins_at_the_first_arrival_and_is_sorted(tmp_path: Path) -> None:
    trace = write(tmp_path / "t.jsonl", ROW | {"timestamp": 3000}, "", ROW)
    assert [arrival.at for arrival in read_trace(trace)] == [0.0, 1.5]


@pytest.mark.parametrize(("suffix", "pack"), [(".gz", gzip.compress), (".xz", lzma.compress)])
def test_packed_files(tmp_path: Path, suffix: str, pack: Callable[[bytes], bytes]) -> None:
    path = tmp_path / f"trace.jsonl{suffix}"
    path.write_bytes(pack(json.dumps(ROW).encode()))
    assert read_trace(path)[0].input_tokens == 600


def test_tokens_without_an_id_are_shared_with_nobody(tmp_path: Path) -> None:
    trace = write(tmp_path / "t.jsonl", ROW | {"hash_ids": [0]}, ROW | {"hash_ids": [0]})
    first, second = read_trace(trace)
    assert first.block_ids[0] == second.block_ids[0] == 0
    assert len({*first.block_ids, *second.block_ids}) == 3


def test_demo_trace_is_what_its_recipe_makes() -> None:
    arrivals = read_trace("demo")
    path = Path(demo_trace.__file__).with_name("demo_trace.jsonl")
    assert path.read_text().splitlines() == demo_trace.lines()
    assert len(arrivals) == 60
    assert one_cache_hit_share(arrivals) > 0.6


def decoded_by_the_book(requests: list[dict[str, Any]], start: float = 0.0) -> list[tuple[float, list[int], int, int]]:
    """An independent reading: (time, ids, input, output) of every request, nested ones too."""
    found: list[tuple[float, list[int], int, int]] = []
    previous: list[int] = []
    for request in requests:
        if "requests" in request:
            found += decoded_by_the_book(request["requests"], start + request["t"])
        if "hash_ids" in request:
            keep, *runs = request["hash_ids"]
            previous = previous[:keep] + [first + step for first, count in runs for step in range(count)]
            found.append((start + request["t"], previous, request["in"], request["out"]))
    return found


def test_agent_sessions_equal_an_independent_decoding() -> None:
    raw = [json.loads(line) for line in AGENTS.read_text().splitlines()]
    arrivals = read_trace(AGENTS, session_gap=10.0)
    assert any("requests" in request for entry in raw for request in entry["requests"])
    for number, entry in enumerate(raw):
        mine = [arrival for arrival in arrivals if arrival.session == entry["id"]]
        expected = sorted(decoded_by_the_book(entry["requests"]), key=lambda row: row[0])
        assert [round(arrival.at - 10.0 * number, 6) for arrival in mine] == [round(row[0], 6) for row in expected]
        assert [(arrival.input_tokens, arrival.output_tokens) for arrival in mine] == [
            (row[2], max(1, row[3])) for row in expected
        ]
        for arrival, (_, ids, tokens, _) in zip(mine, expected, strict=True):
            assert arrival.block_tokens == 64
            assert [block_id & 0xFFFFFFFF for block_id in arrival.block_ids[: len(ids)]] == ids
            assert len(arrival.block_ids) == -(-tokens // 64)


def test_ids_of_two_sessions_never_meet() -> None:
    arrivals = read_trace(AGENTS)
    names = {arrival.session for arrival in arrivals}
    ids = {name: {i for a in arrivals if a.session == name for i in a.block_ids} for name in names}
    assert len(names) == 5
    assert sum(map(len, ids.values())) == len(set().union(*ids.values()))


def test_a_session_keeps_its_ids_in_another_file(tmp_path: Path) -> None:
    last = AGENTS.read_text().splitlines()[-1]
    alone = read_trace(write(tmp_path / "one.jsonl", last))
    together = [arrival for arrival in read_trace(AGENTS) if arrival.session == alone[0].session]
    assert [arrival.block_ids for arrival in alone] == [arrival.block_ids for arrival in together]


def test_limit_of_sessions_is_the_head_of_the_merged_order() -> None:
    whole = read_trace(AGENTS, session_gap=5.0)
    assert whole == sorted(whole, key=lambda arrival: arrival.at)
    assert read_trace(AGENTS, 7, session_gap=5.0) == whole[:7]


def test_long_pauses_are_cut(tmp_path: Path) -> None:
    requests = [{"t": t, "in": 64, "out": 1, "hash_ids": [0, [1, 1]]} for t in (0.0, 5.0, 905.0)]
    trace = write(tmp_path / "t.jsonl", session(requests=requests))
    assert [arrival.at for arrival in read_trace(trace)] == [0.0, 5.0, 905.0]
    assert [arrival.at for arrival in read_trace(trace, max_pause=60.0)] == [0.0, 5.0, 65.0]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("{", ["line 2", "not JSON"]),
        ("[1]", ["line 2", "expected a JSON object"]),
        (ROW | {"timestamp": "now"}, ["line 2", "timestamp", "expected a number, got 'now'"]),
        (ROW | {"timestamp": -1}, ["line 2", "timestamp", "at least 0"]),
        (ROW | {"input_length": 0}, ["line 2", "input_length", "at least 1"]),
        (ROW | {"input_length": True}, ["line 2", "input_length", "expected an integer"]),
        (ROW | {"output_length": 1.5}, ["line 2", "output_length", "expected an integer, got 1.5"]),
        (ROW | {"hash_ids": [0, "x"]}, ["line 2", "hash_ids[1]", "expected an integer"]),
        (ROW | {"hash_ids": {}}, ["line 2", "hash_ids", "expected a list"]),
        (ROW | {"hash_ids": [1, 2, 3]}, ["line 2", "hash_ids", "3 blocks of 512 tokens", "600 tokens"]),
        ({"input_length": 5, "hash_ids": []}, ["line 2", "timestamp", "missing"]),
    ],
)
def test_a_bad_mooncake_line_is_named(tmp_path: Path, row: object, words: list[str]) -> None:
    trace = write(tmp_path / "bad.jsonl", ROW, row)
    with pytest.raises(TraceError) as caught:
        read_trace(trace)
    assert all(word in str(caught.value) for word in ["bad.jsonl", *words]), str(caught.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"id": 5}, ["id", "non-empty string"]),
        ({"block_size": 0}, ["block_size", "at least 1"]),
        ({"requests": [3]}, ["requests[0]", "expected an object"]),
        (
            {"requests": [{"t": 0, "in": 64, "out": 1, "hash_ids": [1]}]},
            ["requests[0]", "hash_ids[0]", "0 ids before"],
        ),
        ({"requests": [{"t": 0, "in": 64, "out": 1, "hash_ids": []}]}, ["requests[0]", "hash_ids[0]"]),
        ({"requests": [{"t": 0, "in": 64, "out": 1, "hash_ids": [0, 7]}]}, ["requests[0]", "hash_ids[1]"]),
        (
            {"requests": [{"t": 0, "in": 64, "out": 1, "hash_ids": [0, [1, 5]]}]},
            ["requests[0]", "5 blocks of 64"],
        ),
        ({"requests": [{"t": 0, "requests": [{"in": 1}]}]}, ["requests[0]: requests[0]", "t", "missing"]),
    ],
)
def test_a_bad_session_is_named(tmp_path: Path, changes: dict[str, object], words: list[str]) -> None:
    trace = write(tmp_path / "bad.jsonl", session(), session(id="t"), session(id="u") | changes)
    with pytest.raises(TraceError) as caught:
        read_trace(trace)
    assert all(word in str(caught.value) for word in ["bad.jsonl, line 3", *words]), str(caught.value)


def test_unknown_format_empty_file_and_missing_file(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"line 1: not a known trace format.*this one has a, b"):
        read_trace(write(tmp_path / "x.jsonl", {"a": 1, "b": 2}))
    with pytest.raises(TraceError, match="no requests in it"):
        read_trace(write(tmp_path / "empty.jsonl"))
    with pytest.raises(TraceError, match="cannot be opened: No such file"):
        read_trace(tmp_path / "none.jsonl")
    (tmp_path / "broken.jsonl.gz").write_bytes(b"no gzip")
    with pytest.raises(TraceError, match="cannot be read"):
        read_trace(tmp_path / "broken.jsonl.gz")
