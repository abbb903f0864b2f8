"""Who serves what, what each has in flight, and who rests."""

from __future__ import annotations

from math import inf

import pytest

from backends.fleet_state import FleetState
from backends.fleet_worker import Worker
from policies.progress import ProgressRules
from policies.types import WorkerId


def worker(name: str, *models: str, **options: object) -> Worker:
    return Worker(WorkerId(name), "10.0.0.1", 8_000, configured_models=models, **options)  # type: ignore[arg-type]  # bad input on purpose


def fleet_of(*workers: Worker) -> FleetState:
    return FleetState(workers, cooldown=1.0, cooldown_max=8.0)


def names(workers: object) -> list[str]:
    return [member.id for member in workers]  # type: ignore[attr-defined]  # frozen on purpose


# Models


def test_workers_by_model_in_the_order_of_the_configuration() -> None:
    fleet = fleet_of(worker("a", "m", "n"), worker("b", "n"), worker("c", "m"))
    assert fleet.models == ("m", "n")
    assert names(fleet.serving("m")) == ["a", "c"]
    assert names(fleet.serving("n")) == ["a", "b"]
    assert fleet.serving("x") == ()
    assert fleet.worker(WorkerId("b")).id == "b"
    with pytest.raises(KeyError):
        fleet.worker(WorkerId("x"))


def test_models_are_learnt_and_configured_names_win() -> None:
    told, fixed = worker("a"), worker("b", "m")
    fleet = fleet_of(told, fixed)
    assert list(fleet.models) == ["m"]
    cards: list[dict[str, object]] = [
        {"id": "m", "max_model_len": 4_096},
        {"id": 5},
        {},
        {"id": "lora", "parent": "m"},
    ]
    fleet.learn_models(told, cards)
    fleet.learn_models(fixed, [{"id": "other"}])
    assert list(fleet.models) == ["m", "lora"]
    assert names(fleet.serving("m")) == ["a", "b"]
    assert names(fleet.serving("lora")) == ["a"]
    assert fleet.serving("other") == ()
    assert told.longest_prompt == 4_096
    fleet.learn_models(told, [])
    assert fleet.models == ("m",)
    assert names(fleet.serving("m")) == ["b"]


def test_a_configured_length_is_kept() -> None:
    member = worker("a", max_model_len=100)
    fleet = fleet_of(member)
    fleet.learn_models(member, [{"id": "m", "max_model_len": 4_096}])
    assert member.longest_prompt == 100


def test_adapters_are_chained_under_their_base_model() -> None:
    member = worker("a")
    fleet = FleetState([member], cooldown=1.0, cooldown_max=1.0, tokenized=["m"])
    assert fleet.base_model(member) is None
    fleet.learn_models(member, [{"id": "lora", "parent": "m"}, {"id": "m"}, {"id": "alias"}])
    assert fleet.base_model(member) == "m"
    assert fleet.chain_of("m") == ("m", "")
    assert fleet.chain_of("lora") == ("m", "lora")
    assert fleet.chain_of("alias") == ("m", ""), "a further name of the same weights"
    assert fleet.chain_of("unknown") == ("unknown", "")


def test_cards_are_merged_by_name() -> None:
    one, two, silent = worker("a"), worker("b"), worker("c", "x")
    fleet = fleet_of(one, two, silent)
    fleet.learn_models(one, [{"id": "m", "owned_by": "one"}])
    fleet.learn_models(two, [{"id": "m", "owned_by": "two"}, {"id": "n"}])
    cards = {card["id"]: card for card in fleet.merged_cards()}
    assert cards["m"]["owned_by"] == "one"
    assert cards["n"] == {"id": "n"}
    assert cards["x"] == {"id": "x", "object": "model", "created": 0, "owned_by": "unknown"}
    assert len(fleet.merged_cards()) == 3


def test_block_sizes_of_those_that_serve_a_model() -> None:
    fleet = fleet_of(
        worker("a", "m", block_size=32), worker("b", "m"), worker("c", "m", block_size=32), worker("d", "n")
    )
    assert fleet.block_sizes("m") == (16, 32)
    assert fleet.block_sizes("n") == (16,)
    assert fleet.block_sizes("x") == ()


def test_the_longest_prompt() -> None:
    by_blocks, by_length = worker("a", "m", kv_blocks=10), worker("b", "m", max_model_len=500)
    both, unknown = worker("c", "m", "n", kv_blocks=10, max_model_len=100), worker("d", "n")
    assert [member.longest_prompt for member in (by_blocks, by_length, both, unknown)] == [160, 500, 100, None]
    fleet = fleet_of(by_blocks, by_length, both, unknown)
    assert fleet.longest_prompt("m") == 500
    assert fleet.longest_prompt("n") is None, "one of its workers does not tell"
    assert fleet.longest_prompt("x") is None


def test_addresses() -> None:
    assert worker("a").authority == b"10.0.0.1:8000"
    assert Worker(WorkerId("a"), "::1", 80).authority == b"[::1]:80"


# Reservations


def test_a_reservation_counts_until_it_is_released() -> None:
    member = worker("a", "m")
    fleet = fleet_of(member)
    one = fleet.reserve(member, 1_000, 0.0, streams=True)
    two = fleet.reserve(member, None, 0.0, streams=True)
    assert (member.active, member.prefill.total) == (2, 1_000)
    assert member.view(0.0) == (WorkerId("a"), 2, 1_000, None, 1_000, 1.0, 0.0, inf)
    assert member.load(0.0)[:3] == (WorkerId("a"), 2, 0.0)
    fleet.first_byte(one, 1.0)
    assert (member.active, member.prefill.total) == (2, 0)
    for _ in range(2):  # the second time changes nothing
        fleet.release(one, 2.0)
    assert (member.active, member.served) == (1, 1)
    fleet.check_integrity()
    fleet.release(two, 2.0)
    assert (member.active, member.served) == (0, 2)
    fleet.check_integrity()


def test_a_release_before_the_first_byte_empties_the_queue() -> None:
    member = worker("a", "m")
    fleet = fleet_of(member)
    reservation = fleet.reserve(member, 1_000, 0.0, streams=True)
    fleet.release(reservation, 0.5)
    assert member.prefill.total == 0
    assert member.view(0.5).queued_tokens == 0
    fleet.check_integrity()


def test_tickets_are_unique_over_the_fleet() -> None:
    one, two = worker("a", "m"), worker("b", "m")
    fleet = fleet_of(one, two)
    tickets = [fleet.reserve(member, 5, 0.0, streams=True).ticket for member in (one, two, one)]
    assert len(set(tickets)) == 3


def test_the_integrity_check_finds_what_does_not_add_up() -> None:
    member = worker("a", "m")
    fleet = fleet_of(member)
    fleet.reserve(member, 10, 0.0, streams=True)
    member.active = 0
    with pytest.raises(AssertionError):
        fleet.check_integrity()


# Resting


def test_a_worker_that_refuses_rests_longer_each_time() -> None:
    member, other = worker("a", "m"), worker("b", "m")
    fleet = fleet_of(member, other)
    now, ends = 100.0, []
    for _ in range(6):
        fleet.rest(member, now)
        ends.append(member.resting_until - now)
        assert names(fleet.candidates(fleet.serving("m"), [], now)) == ["b"]
        assert names(fleet.candidates(fleet.serving("m"), [], member.resting_until - 0.01)) == ["b"]
        now = member.resting_until
        assert names(fleet.candidates(fleet.serving("m"), [], now)) == ["a", "b"]
    assert ends == [1.0, 2.0, 4.0, 8.0, 8.0, 8.0]


def test_many_that_fail_at_once_count_once() -> None:
    member = worker("a", "m")
    fleet = fleet_of(member)
    assert fleet.rest(member, 0.0) is True
    assert [fleet.rest(member, 0.1) for _ in range(50)] == [False] * 50
    assert (member.failures, member.resting_until) == (1, 1.0)


def test_resting_for_ages_does_not_overflow() -> None:
    member = worker("a", "m")
    fleet = fleet_of(member)
    now = 0.0
    for _ in range(5_000):
        fleet.rest(member, now)
        now = member.resting_until
    assert member.resting_until - (now - 8.0) == pytest.approx(8.0)


def test_an_answer_wakes_a_worker() -> None:
    member, other = worker("a", "m"), worker("b", "m")
    fleet = fleet_of(member, other)
    reservation = fleet.reserve(member, None, 0.0, streams=True)
    fleet.rest(member, 0.0)
    fleet.first_byte(reservation, 0.5)
    assert (member.failures, member.resting_until) == (0, 0.0)
    assert names(fleet.candidates(fleet.serving("m"), [], 0.5)) == ["a", "b"]
    assert fleet.rest(member, 0.6) is True, "news again"
    assert member.resting_until == 1.6


def test_where_all_rest_they_are_tried_all_the_same() -> None:
    one, two = worker("a", "m"), worker("b", "m")
    fleet = fleet_of(one, two)
    fleet.rest(one, 0.0)
    fleet.rest(two, 0.0)
    assert names(fleet.candidates(fleet.serving("m"), [], 0.5)) == ["a", "b"]
    assert names(fleet.candidates(fleet.serving("m"), [one], 0.5)) == ["b"]


def test_those_tried_are_left_out() -> None:
    one, two, three = (worker(name, "m") for name in "abc")
    fleet = fleet_of(one, two, three)
    assert names(fleet.candidates(fleet.serving("m"), [one], 0.0)) == ["b", "c"]
    fleet.rest(two, 0.0)
    assert names(fleet.candidates(fleet.serving("m"), [one], 0.5)) == ["c"]
    assert names(fleet.candidates(fleet.serving("m"), [one, three], 0.5)) == ["b"], "resting, but the last one left"
    assert list(fleet.candidates(fleet.serving("m"), [one, two, three], 0.5)) == []


def test_short_answers_show_that_a_worker_with_a_long_one_does_not_hang() -> None:
    """The sweep sees the long request alone: the short ones begin and end between two looks."""
    member = worker("a", "m")
    member.progress.rules = ProgressRules(hung_after=10.0, patience=1.0)
    fleet = fleet_of(member)
    long = fleet.reserve(member, None, 0.0, streams=True)
    long.flight = member.progress.sent(0.0, streams=True)
    for second in range(1, 60):
        short = fleet.reserve(member, None, float(second), streams=True)
        fleet.first_byte(short, second + 0.1)
        fleet.release(short, second + 0.2)
        assert not member.progress.is_hung(second + 0.5, 1.0)
    assert member.progress.is_hung(100.0, 1.0), "it is silent now"
