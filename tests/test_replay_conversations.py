"""Conversations, JSON arrays and Azure's CSV as traces: what is sent, in which order, and errors that say where."""

from __future__ import annotations

import itertools
import json
import lzma
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.replay.arrival import Arrival, TraceError
from gateway.replay.plan import digest, session_chains, starts, timed_chains, with_times
from gateway.replay.rows import ArraySplitter, json_array, lines
from gateway.replay.stats import one_cache_hit_share
from gateway.replay.traces import read_times, read_trace

DATA = Path(__file__).parent / "data"
TAU = DATA / "conversations" / "tau_bench_4_raw.json.xz"
OASST = DATA / "conversations" / "oasst_8_tree.jsonl"
AZURE = DATA / "arrivals" / "azure_conv_300.csv"


def chat(*roles: str, **more: object) -> dict[str, object]:
    return {"messages": [{"role": role, "content": f"{role} {n}"} for n, role in enumerate(roles)], **more}


def write(path: Path, *rows: object) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    return path


# --- conversations -----------------------------------------------------------------------------------------


def test_every_recorded_answer_is_asked_for_after_exactly_what_was_said_before() -> None:
    arrivals = read_trace(TAU, think_time=3.0)
    dialogues = orjson.loads(lzma.decompress(TAU.read_bytes()))
    sent = {(a.session, a.chat.count): a for a in arrivals if a.chat}
    asked = 0
    for number, dialogue in enumerate(dialogues):
        for place, message in enumerate(dialogue["traj"]):
            if message["role"] == "assistant":
                asked += 1
                arrival = sent[str(number), place]
                assert arrival.chat is not None
                assert list(arrival.chat.messages[:place]) == dialogue["traj"][:place]
    assert asked == len(arrivals) > 40
    tools = [a for a in arrivals if a.chat and a.chat.messages[a.chat.count - 1]["role"] == "tool"]  # type: ignore[index]  # a message
    assert tools
    assert {a.pause for a in tools} == {0.0}
    assert {a.pause for a in arrivals} == {None, 0.0, 3.0}


def test_a_turn_extends_the_blocks_of_the_turn_before() -> None:
    arrivals = read_trace(TAU)
    for chain in session_chains(arrivals):
        for before, after in itertools.pairwise(chain):
            full = len(arrivals[before].block_ids) - 1  # the last one may be partial
            assert arrivals[after].block_ids[:full] == arrivals[before].block_ids[:full]
    assert all(len(a.block_ids) == -(-a.input_tokens // 16) for a in arrivals)
    assert one_cache_hit_share(arrivals) > 0.8  # one policy prompt for all


def test_equal_beginnings_have_equal_blocks_in_different_conversations(tmp_path: Path) -> None:
    policy = {"role": "system", "content": "be kind " * 100}
    said = [[policy, {"role": "user", "content": word}, {"role": "assistant", "content": "yes"}] for word in "ab"]
    first, second = read_trace(write(tmp_path / "t.jsonl", *({"messages": messages} for messages in said)))
    shared = [a == b for a, b in zip(first.block_ids, second.block_ids, strict=True)]
    assert shared.index(False) == (len(orjson.dumps(policy)) + len('\n{"content":"')) // 64
    assert not any(shared[shared.index(False) :])


def assistants(node: dict[str, Any]) -> int:
    return int(node["role"] == "assistant") + sum(assistants(reply) for reply in node["replies"])


def test_a_tree_asks_once_for_every_answer_and_a_branch_is_a_session() -> None:
    trees = [json.loads(line)["prompt"] for line in OASST.read_text().splitlines()]
    arrivals = read_trace(OASST)
    assert len(arrivals) == sum(map(assistants, trees))
    assert len({a.session for a in arrivals}) > len(trees)
    for arrival in arrivals:
        assert arrival.chat is not None
        roles = [message["role"] for message in arrival.chat.messages[: arrival.chat.count]]  # type: ignore[index]  # a message
        assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"]


def test_branches_by_hand(tmp_path: Path) -> None:
    def node(role: str, text: str, *replies: object) -> dict[str, object]:
        return {"role": role, "text": text, "replies": list(replies)}

    tree = node(
        "prompter",
        "q",
        node("assistant", "a1", node("prompter", "q2", node("assistant", "b1"), node("assistant", "b2"))),
        node("assistant", "a2", node("prompter", "q3")),
    )
    arrivals = read_trace(write(tmp_path / "t.jsonl", {"prompt": tree}), session_gap=10.0)
    rows = [
        (a.session, a.at, "".join(m["content"] for m in a.chat.messages[: a.chat.count]))  # type: ignore[index]  # a message
        for a in arrivals
        if a.chat
    ]
    assert rows == [("0", 0.0, "q"), ("0", 0.0, "qa1q2"), ("1", 10.0, "q"), ("2", 20.0, "qa1q2")]


def test_tools_and_openai_messages_in_an_array() -> None:
    arrivals = read_trace(DATA / "conversations" / "tau_bench_airline.json.xz", 9)
    assert len(arrivals) == 9
    assert all(a.chat and a.chat.tools for a in arrivals)


def test_limit_takes_the_first_in_order_of_time(tmp_path: Path) -> None:
    whole = read_trace(TAU, session_gap=2.0, think_time=1.0)
    assert read_trace(TAU, 17, session_gap=2.0, think_time=1.0) == whole[:17]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"messages": 5}, ["messages", "expected a list"]),
        ({"messages": ["hi"]}, ["messages[0]", "an object with role and content"]),
        (chat("user", "robot"), ["messages[1].role", "expected one of assistant, developer"]),
        ({"traj": [{"role": "user", "content": 3}]}, ["traj[0].content", "expected text"]),
        ({"messages": [{"role": "assistant", "tool_calls": {}}]}, ["messages[0].tool_calls", "expected a list"]),
        (chat("user", "assistant", tools=3), ["tools", "expected a list"]),
        ({"prompt": {"role": "bot"}}, ["prompt.role", "expected one of prompter, assistant"]),
        ({"prompt": {"role": "prompter"}}, ["prompt.text", "expected text"]),
        ({"prompt": {"role": "prompter", "text": "", "replies": 1}}, ["prompt.replies", "expected a list"]),
        ({"prompt": {"role": "prompter", "text": "", "replies": [1]}}, ["prompt.replies[]", "an object"]),
        ({"other": 1}, ["messages", "missing"]),
    ],
)
def test_a_bad_conversation_is_named_without_its_words(tmp_path: Path, row: object, words: list[str]) -> None:
    with pytest.raises(TraceError) as caught:
        read_trace(write(tmp_path / "bad.jsonl", chat("user", "assistant"), row))
    assert all(word in str(caught.value) for word in ["bad.jsonl, line 2", *words]), str(caught.value)


# --- rows --------------------------------------------------------------------------------------------------

ROWS = st.lists(
    st.dictionaries(
        st.text(max_size=5),
        st.recursive(st.text(max_size=8) | st.integers(), lambda inner: st.lists(inner, max_size=3), max_leaves=5),
        max_size=3,
    ),
    max_size=6,
)


@given(ROWS, st.sampled_from([None, 1, 2]), st.integers(1, 7))
def test_an_array_in_any_pieces_gives_its_objects(rows: list[dict[str, object]], indent: int | None, size: int) -> None:
    for ascii_only in (True, False):
        data = json.dumps(rows, indent=indent, ensure_ascii=ascii_only).encode()
        pieces = [data[at : at + size] for at in range(0, len(data), size)]
        assert [record.fields for record in json_array("f", pieces)] == rows
        assert [record.place for record in json_array("f", pieces)] == [r.place for r in json_array("f", [data])]


def test_objects_of_an_array_are_placed_at_their_lines() -> None:
    data = b'[\n  {"a": "}\\"[",\n   "b": 1},\n\n {"c":\n [{}]}]\n'
    assert [(r.place, dict(r.fields)) for r in json_array("f", [data])] == [
        ("f, line 2", {"a": '}"[', "b": 1}),
        ("f, line 5", {"c": [{}]}),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[{}", "line 1: the file ends inside its JSON array"),
        ('[\n"a"]', "line 2: expected an array of objects, got a string"),
        ("[{} {}]", "separated by commas"),
        ("[{},\n]", "line 2: unexpected ']'"),
        ("[[1]]", "expected a JSON array of objects"),
        ("[1, {}]", "expected a JSON array of objects"),
        ("[{}]\n{}", "line 2: expected a JSON array"),
        ("[{}] x", "expected nothing after"),
        ("[{1}]", "line 1: not JSON"),
        ("[{]]", "line 1: unexpected ']'"),
    ],
)
def test_what_is_wrong_with_an_array_is_told(text: str, words: str) -> None:
    for pieces in ([text.encode()], [bytes([byte]) for byte in text.encode()]):
        with pytest.raises(TraceError) as caught:
            list(json_array("f", pieces))
        assert words in str(caught.value)


def test_a_row_has_a_limit() -> None:
    with pytest.raises(TraceError, match="line 1: an object of more than 100 bytes"):
        ArraySplitter("f", limit=100).feed(b"[{" + b" " * 200)
    with pytest.raises(TraceError, match="line 2: more than 10 bytes"):
        list(lines("f", [b"a\nbbbbbb", b"bbbbbb"], limit=10))


@given(st.lists(st.binary(max_size=6).filter(lambda line: b"\n" not in line), max_size=8), st.integers(1, 5))
def test_lines_in_any_pieces_keep_their_numbers(found: list[bytes], size: int) -> None:
    data = b"\n".join(found)
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    assert list(lines("f", pieces)) == [(n, line) for n, line in enumerate(found, 1) if line.strip()]


# --- Azure's arrivals --------------------------------------------------------------------------------------


def test_azure_rows_become_arrivals_that_share_nothing() -> None:
    arrivals = read_trace(AZURE)
    assert len(arrivals) == 300
    first, second = arrivals[:2]
    assert (first.at, first.input_tokens, first.output_tokens, len(first.block_ids)) == (0.0, 374, 44, 1)
    assert second.at == pytest.approx(4.314579, abs=1e-6)
    assert second.input_tokens == 396
    assert one_cache_hit_share(arrivals) == 0.0


def csv(path: Path, *rows: str) -> Path:
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]) + "\n")
    return path


def test_a_time_zone_and_no_generated_tokens(tmp_path: Path) -> None:
    path = csv(tmp_path / "a.csv", "2024-05-10 00:00:01.5+00:00,5,0", "2024-05-10 00:00:00+00:00,7,3")
    assert [(a.at, a.input_tokens, a.output_tokens) for a in read_trace(path)] == [(0.0, 7, 3), (1.5, 5, 1)]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("2023-11-16 18:15:46,1", "expected 3 values, TIMESTAMP,ContextTokens,GeneratedTokens, got 2"),
        ("yesterday,1,1", "TIMESTAMP: expected 2023-11-16 18:15:46.68, got 'yesterday'"),
        ("2023-11-16 18:15:46,many,1", "ContextTokens: expected a whole number, got 'many'"),
        ("2023-11-16 18:15:46,0,1", "ContextTokens: expected 1 to"),
        ("2023-11-16 18:15:46,1,-1", "GeneratedTokens: expected a whole number, got '-1'"),
        ("2023-11-16 18:15:46+01:00,1,1", "a time zone on every line or on none"),
    ],
)
def test_a_bad_csv_line_is_named(tmp_path: Path, row: str, words: str) -> None:
    with pytest.raises(TraceError) as caught:
        read_trace(csv(tmp_path / "bad.csv", "2023-11-16 18:15:46,1,1", row))
    assert "bad.csv, line 3: " in str(caught.value)
    assert words in str(caught.value)


def test_another_header_is_no_known_format(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    with pytest.raises(TraceError, match=r"line 1: not a known trace format.*TIMESTAMP,ContextTokens"):
        read_trace(tmp_path / "x.csv")


# --- start times from another trace ------------------------------------------------------------------------


def test_sessions_begin_at_the_given_times_and_keep_their_pauses() -> None:
    arrivals = read_trace(TAU, session_gap=5.0, think_time=2.0)
    times = read_times(AZURE, starts(arrivals))
    moved = with_times(arrivals, times)
    assert len(times) == 4
    heads = [moved[chain[0]] for chain in session_chains(moved)]
    assert [head.at for head in heads] == pytest.approx(times)
    assert digest(sorted(moved, key=by_turn)) == digest(sorted(arrivals, key=by_turn))
    agents = read_trace(DATA / "traces" / "agent_sessions_5.compact.jsonl")
    for chain in session_chains(shifted := with_times(agents, [0.0, 0.5, 1.0, 1.5, 2.0])):
        own = [a.at for a in agents if a.session == shifted[chain[0]].session]
        gaps = [shifted[index].at - shifted[chain[0]].at for index in chain]
        assert gaps == pytest.approx([at - own[0] for at in own])


def by_turn(arrival: Arrival) -> tuple[str, int]:
    return (arrival.session or "", arrival.input_tokens)


def test_too_few_times_and_times_of_sessions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="has 2 arrivals, and 3 are needed; lower --limit"):
        read_times(csv(tmp_path / "a.csv", *["2023-11-16 18:15:46,1,1"] * 2), 3)
    with pytest.raises(TraceError, match="its sessions have no recorded arrivals"):
        read_times(TAU, 2)
    with pytest.raises(TraceError, match="need as many arrivals; there are 1"):
        with_times(read_trace(TAU), [0.0])


def test_chains() -> None:
    rows = [
        Arrival(0.0, 1, 1, (1,), 16, "a"),
        Arrival(0.0, 1, 1, (1,), 16),
        Arrival(1.0, 1, 1, (1,), 16, "a", pause=1.0),
        Arrival(2.0, 1, 1, (1,), 16, "a"),
        Arrival(3.0, 1, 1, (1,), 16, "a", pause=0.0),
        Arrival(3.0, 1, 1, (1,), 16, "b", pause=0.0),  # nothing before it to wait for
    ]
    assert timed_chains(rows) == [[0, 2], [1], [3, 4], [5]]
    assert session_chains(rows) == [[0, 2, 3, 4], [1], [5]]
