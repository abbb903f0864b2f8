"""The rules of tiers: what goes behind, in which order, and when a tier that fails is asked again."""

from __future__ import annotations

from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.tier_rest import TierRest
from policies.write_behind import Backlog, WriteRules

P = TypeVar("P")


def backlog(**rules: int) -> Backlog[str]:
    return Backlog(WriteRules(**rules))


def chain(log: Backlog[str], *names: bytes, wanted: bool = False) -> None:
    for parent, name in zip([None, *names], names, strict=False):
        log.add(name, parent, name.decode(), wanted=wanted)


def taken(log: Backlog[P], *, everything: bool = False) -> list[P]:
    keys = []
    while (pending := log.take(everything=everything)) is not None:
        keys.append(pending.payload)
    return keys


# --- what is due -----------------------------------------------------------------------------------------------


def test_a_frame_is_due_at_its_second_use() -> None:
    log = backlog()
    chain(log, b"a")
    assert not log.has_work(everything=False)
    assert log.has_work(everything=True)
    assert taken(log) == []
    chain(log, b"a")
    assert log.has_work(everything=False)
    assert taken(log) == ["a"]
    assert not log.has_work(everything=True)


@pytest.mark.parametrize(("uses", "n_until_due"), [(1, 1), (2, 2), (5, 5)])
def test_how_often_is_a_rule(uses: int, n_until_due: int) -> None:
    log = backlog(uses=uses)
    for _ in range(n_until_due):
        assert taken(log) == []
        chain(log, b"a")
    assert taken(log) == ["a"]


def test_what_is_said_of_it_last_counts() -> None:
    log = backlog()
    log.add(b"a", None, "until one")
    log.add(b"a", None, "until two")
    assert taken(log) == ["until two"]


def test_what_is_wanted_is_due_at_once() -> None:
    log = backlog()
    chain(log, b"a", b"b", wanted=True)
    chain(log, b"c")
    log.add(b"c", None, "c", wanted=True)
    assert taken(log) == ["a", "b", "c"]


def test_those_before_it_in_its_chain_are_due_before_it() -> None:
    log = backlog()
    chain(log, b"a", b"b", b"c", b"d")
    chain(log, b"x")
    log.add(b"c", b"b", "c")
    assert taken(log) == ["a", "b", "c"]
    assert taken(log, everything=True) == ["d", "x"]


def test_a_chain_that_bites_its_tail_ends() -> None:
    log = backlog()
    log.add(b"a", b"b", "a")
    log.add(b"b", b"a", "b")
    log.add(b"a", b"b", "a")
    assert sorted(taken(log)) == ["a", "b"]


def test_everything_goes_oldest_first_and_heads_before_their_tails() -> None:
    log = backlog()
    log.add(b"tail", b"head", "tail")
    chain(log, b"other")
    log.add(b"head", None, "head")
    assert taken(log, everything=True) == ["head", "tail", "other"]


# --- what cannot be written now ------------------------------------------------------------------------------------


def test_what_is_put_back_is_next() -> None:
    log = backlog(uses=1)
    chain(log, b"a", b"b")
    first = log.take(everything=False)
    assert first is not None
    chain(log, b"a")  # used again meanwhile
    log.put_back(first)
    assert len(log) == 2
    assert taken(log) == ["a", "b"]


def test_a_frame_is_tried_so_often_and_no_more() -> None:
    log = backlog(uses=1, attempts=3)
    chain(log, b"a", b"b")
    tried = []
    while (pending := log.take(everything=False)) is not None:
        tried.append((pending.payload, log.failed(pending)))
    assert tried == [(name, again) for name in ("a", "b") for again in (True, True, False)]


def test_what_is_removed_is_not_written() -> None:
    log = backlog()
    chain(log, b"a", b"b", b"c")
    log.add(b"b", b"a", "b")
    assert [log.remove(key) for key in (b"a", b"a", b"c", b"x")] == [True, False, True, False]
    assert taken(log, everything=True) == ["b"]


# --- bounds ----------------------------------------------------------------------------------------------------


def test_of_too_many_the_oldest_is_dropped_and_what_is_due_last() -> None:
    log = backlog(most_pending=3)
    chain(log, b"due", wanted=True)
    chain(log, b"a", b"b")
    assert log.add(b"c", None, "c") == 1
    assert log.add(b"d", None, "d", wanted=True) == 1
    assert log.add(b"e", None, "e", wanted=True) == 1
    assert len(log) == 3
    assert log.add(b"f", None, "f", wanted=True) == 1
    assert taken(log, everything=True) == ["d", "e", "f"]


@pytest.mark.parametrize("rules", [{"uses": 0}, {"most_pending": 0}, {"attempts": 0}])
def test_rules_that_make_no_sense(rules: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least once"):
        WriteRules(**rules)


@given(st.lists(st.tuples(st.sampled_from(["add", "want", "take", "all", "remove", "back"]), st.integers(0, 15))))
def test_no_frame_is_lost_or_kept_twice_and_heads_go_first(operations: list[tuple[str, int]]) -> None:
    """Frame n continues frame n // 2 - 1; 0 and 1 begin prompts."""
    log: Backlog[int] = Backlog(WriteRules(most_pending=1_000))
    here: set[int] = set()
    last = None

    def parent(n: int) -> int | None:
        return n // 2 - 1 if n > 1 else None

    for name, n in operations:
        if name in {"add", "want"}:
            before = parent(n)
            log.add(bytes([n]), None if before is None else bytes([before]), n, wanted=name == "want")
            here.add(n)
        elif name == "remove":
            assert log.remove(bytes([n])) == (n in here)
            here.discard(n)
        elif name == "back":
            if last is not None:
                log.put_back(last)
                here.add(last.payload)
                last = None
        else:
            last = log.take(everything=name == "all")
            assert last is not None or name == "take" or not here
            if last is not None:
                here.remove(last.payload)
                assert last.due
        assert len(log) == len(here)
    assert set(taken(log, everything=True)) == here
    assert len(log) == 0


@given(st.permutations(range(12)), st.sets(st.integers(0, 11)))
def test_of_a_whole_chain_the_order_is_its_own(order: list[int], again: set[int]) -> None:
    log: Backlog[int] = Backlog(WriteRules())
    for n in [*order, *again]:
        log.add(bytes([n]), bytes([n - 1]) if n else None, n)
    last = max(again, default=-1)
    due = []
    while (pending := log.take(everything=False)) is not None:
        due.append(pending.payload)
    assert due == list(range(last + 1)), "all before the last that is due, in order"


# --- rests -----------------------------------------------------------------------------------------------------


def fail(rest: TierRest, now: float) -> bool:
    assert rest.ready(now)
    rest.begin()
    return rest.failed(now)


def test_three_failures_in_a_row_are_a_rest() -> None:
    rest = TierRest()
    assert [fail(rest, 5.0), fail(rest, 5.0)] == [False, False]
    rest.begin()
    assert rest.succeeded() is False
    assert [fail(rest, 6.0), fail(rest, 7.0), fail(rest, 8.0)] == [False, False, True]
    assert rest.resting
    assert [rest.ready(8.0), rest.ready(8.999), rest.ready(9.0)] == [False, False, True]
    assert [rest.left(8.25), rest.left(9.0), rest.left(50.0)] == [0.75, 0.0, 0.0]


def test_rests_double_up_to_the_longest() -> None:
    rest, now, rests = TierRest(), 0.0, []
    for _ in range(2):
        fail(rest, now)
    for _ in range(9):
        assert fail(rest, now)
        rests.append(rest.left(now))
        now += rest.left(now)
    assert rests == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_a_single_call_tries_it() -> None:
    rest = TierRest(after=1)
    fail(rest, 0.0)
    assert rest.ready(1.0)
    rest.begin()
    assert [rest.ready(1.0), rest.ready(1_000.0)] == [False, False]
    assert rest.succeeded() is True
    assert not rest.resting
    assert rest.ready(1.0)
    assert fail(rest, 1.0)
    assert rest.left(1.0) == 1.0, "it is forgiven"


def test_what_fails_late_does_not_count() -> None:
    rest = TierRest(after=1)
    rest.begin()
    rest.begin()
    assert rest.failed(0.0) is True
    assert rest.failed(0.5) is False
    assert rest.left(0.5) == 0.5


@pytest.mark.parametrize("rules", [{"after": 0}, {"first_s": 0.0}, {"first_s": 2.0, "longest_s": 1.0}])
def test_rests_that_make_no_sense(rules: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="first rest"):
        TierRest(**rules)  # type: ignore[arg-type]  # numbers
