"""Sampling fields of a request: each one good, bad and at its bounds; errors name the field."""

from __future__ import annotations

from typing import Any

import pytest

from backends.worker.messages import SamplingParams
from backends.worker.text.sampling_request import (
    MOST_STOP_CHARS,
    MOST_STOP_IDS,
    MOST_STOPS,
    SamplingError,
    SamplingRequest,
    read_sampling,
)

SEED = 12345


def read(*, chat: bool = True, **body: Any) -> SamplingRequest:
    return read_sampling(body, chat=chat, vocab_size=1000, max_tokens_left=50, draw_seed=lambda: SEED)


def test_defaults() -> None:
    assert read() == SamplingRequest(SamplingParams(max_tokens=50, seed=SEED), 1, (), False, True)
    assert read(chat=False).params == SamplingParams(max_tokens=16, seed=SEED)
    nothing = read_sampling({}, chat=False, vocab_size=10, max_tokens_left=3, draw_seed=lambda: -1)
    assert nothing.params == SamplingParams(max_tokens=3, seed=2**64 - 1)


FIELDS = (
    *("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "seed"),
    *("logit_bias", "logprobs", "top_logprobs", "n", "stop", "stop_token_ids", "max_tokens", "max_completion_tokens"),
    *("min_tokens", "ignore_eos", "skip_special_tokens", "include_stop_str_in_output"),
)


@pytest.mark.parametrize("chat", [True, False])
def test_null_is_not_there(chat: bool) -> None:
    nothing: dict[str, Any] = {}
    nothing.update((name, None) for name in FIELDS)
    assert read(chat=chat, **nothing) == read(chat=chat)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("temperature", 0, 0.0),
        ("temperature", 2, 2.0),
        ("temperature", 1e-9, 1e-9),
        ("top_p", 1, 1.0),
        ("top_p", 1e-9, 1e-9),
        ("top_k", -1, 0),
        ("top_k", 0, 0),
        ("top_k", 10**9, 10**9),
        ("min_p", 0, 0.0),
        ("min_p", 1, 1.0),
        ("presence_penalty", -2, -2.0),
        ("presence_penalty", 2.0, 2.0),
        ("frequency_penalty", -2.0, -2.0),
        ("frequency_penalty", 2, 2.0),
        ("repetition_penalty", 2, 2.0),
        ("repetition_penalty", 0.01, 0.01),
        ("seed", 0, 0),
        ("seed", 2**64 - 1, 2**64 - 1),
        ("seed", -1, 2**64 - 1),
        ("seed", -(2**63), 2**63),
        ("logit_bias", {}, {}),
        ("logit_bias", {"0": -100, "999": 100.0, "7": 0.5}, {0: -100.0, 999: 100.0, 7: 0.5}),
        ("stop_token_ids", [], ()),
        ("stop_token_ids", [0, 999, 0], (0, 999)),
        ("max_tokens", 1, 1),
        ("max_tokens", 50, 50),
        ("min_tokens", 0, 0),
        ("min_tokens", 50, 50),
        ("ignore_eos", True, True),
    ],
)
def test_good_values(name: str, value: object, expected: object) -> None:
    body: dict[str, Any] = {name: value}
    got = getattr(read(**body).params, name)
    assert (got, type(got)) == (expected, type(expected))


BAD_NUMBERS = [True, "1", [1], {}, float("nan"), float("inf")]


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("temperature", [*BAD_NUMBERS, -0.01, 2.01, 10**400], "a number from 0 to 2"),
        ("top_p", [*BAD_NUMBERS, -0.1, 1.01], "a number from 0 to 1"),
        ("top_p", [0, 0.0], "above 0 and at most 1"),
        ("top_k", [*BAD_NUMBERS, -2, 1.0], "an integer of at least -1"),
        ("min_p", [*BAD_NUMBERS, -0.1, 1.1], "a number from 0 to 1"),
        ("presence_penalty", [*BAD_NUMBERS, -2.1, 2.1], "a number from -2 to 2"),
        ("frequency_penalty", [*BAD_NUMBERS, -2.1, 2.1], "a number from -2 to 2"),
        ("repetition_penalty", [*BAD_NUMBERS, -1, 2.1], "a number from 0 to 2"),
        ("repetition_penalty", [0], "above 0 and at most 2"),
        ("seed", [*BAD_NUMBERS, 2**64, -(2**63) - 1, 1.0], "an integer from -9223372036854775808 to 1844674407370955"),
        ("logit_bias", [True, "1", [1], 3], "an object from token ids to numbers"),
        ("logit_bias", [{k: 1} for k in ("1000", "-1", "a", "", "1.0", "+1", "1_0", "٣", "9" * 5000)], "from 0 to 999"),
        ("logit_bias", [{"1": v} for v in (*BAD_NUMBERS, None, 100.1, -101)], "of token 1 must be a number from -100"),
        ("n", [*BAD_NUMBERS, 0, 129, 1.0], "an integer from 1 to 128"),
        ("stop", [1, True, {}, ["a"] * (MOST_STOPS + 1)], "a text or a list of at most 64"),
        ("stop", ["", [""], ["a", None], ["a", 1], "a" * (MOST_STOP_CHARS + 1)], "a text of 1 to 1024 characters"),
        ("stop_token_ids", [1, "1", {}, [1] * (MOST_STOP_IDS + 1)], "a list of at most 1024 token ids"),
        ("stop_token_ids", [[1000], [-1], [True], ["1"], [1.0], [None]], "token ids from 0 to 999"),
        ("max_tokens", [*BAD_NUMBERS, 0, -1, 1.0], "an integer of at least 1"),
        ("max_tokens", [51, 10**30], "only 50 tokens fit"),
        ("max_completion_tokens", [*BAD_NUMBERS, 0, -1], "an integer of at least 1"),
        ("max_completion_tokens", [51], "max_completion_tokens is 51, but only 50"),
        ("min_tokens", [*BAD_NUMBERS, -1, 1.0], "an integer of at least 0"),
        ("min_tokens", [51], "at most max_tokens, which is 50"),
        ("ignore_eos", [1, 0, "true", []], "true or false"),
        ("skip_special_tokens", [1, "no"], "true or false"),
        ("include_stop_str_in_output", [1, "no"], "true or false"),
        ("logprobs", [1, 0, "true"], "true or false"),
        ("top_logprobs", [*BAD_NUMBERS, -1, 21], "an integer from 0 to 20"),
    ],
)
def test_bad_values(name: str, values: list[Any], expected: str) -> None:
    for value in values:
        with pytest.raises(SamplingError) as caught:
            read(**{name: value})
        assert caught.value.param == name
        assert expected in str(caught.value)
        assert name in str(caught.value)
        assert len(str(caught.value)) < 200


def test_errors_do_not_repeat_texts() -> None:
    for body in ({"stop": ["secret", ""]}, {"temperature": "secret"}, {"logit_bias": {"secret": 1}}):
        with pytest.raises(SamplingError) as caught:
            read(**body)
        assert "secret" not in str(caught.value)


def test_how_many_tokens() -> None:
    assert read(max_tokens=5, max_completion_tokens=7).params.max_tokens == 7
    assert read(chat=False, max_tokens=5, max_completion_tokens=7).params.max_tokens == 5
    assert read(max_tokens=5, min_tokens=5).params.min_tokens == 5
    with pytest.raises(SamplingError, match="at most max_tokens, which is 5, not 6"):
        read(max_tokens=5, min_tokens=6)


def test_logprobs_of_a_chat() -> None:
    assert read(logprobs=False).params.logprobs is None
    assert read(logprobs=True).params.logprobs == 0
    assert read(logprobs=True, top_logprobs=0).params.logprobs == 0
    assert read(logprobs=True, top_logprobs=20).params.logprobs == 20
    assert read(top_logprobs=0).params.logprobs is None
    for wanted in (False, None):
        with pytest.raises(SamplingError, match="needs logprobs") as caught:
            read(logprobs=wanted, top_logprobs=1)
        assert caught.value.param == "top_logprobs"


def test_logprobs_of_a_completion() -> None:
    assert [read(chat=False, logprobs=count).params.logprobs for count in (None, 0, 20)] == [None, 0, 20]
    for bad in (-1, 21, True, 1.0, "1"):
        with pytest.raises(SamplingError, match="logprobs must be an integer from 0 to 20"):
            read(chat=False, logprobs=bad)


def test_stops() -> None:
    assert read(stop="END").stops == ("END",)
    assert read(stop=[]).stops == ()
    assert read(stop=["b", "a", "b"]).stops == ("b", "a")
    assert len(read(stop=[str(at) for at in range(MOST_STOPS)]).stops) == MOST_STOPS
    assert read(stop="é" * MOST_STOP_CHARS).stops == ("é" * MOST_STOP_CHARS,)
    assert read(include_stop_str_in_output=True).include_stop
    assert not read(skip_special_tokens=False).skip_special_tokens


def test_each_choice_has_a_seed_that_follows_from_the_first() -> None:
    request = read(n=128, seed=7, temperature=0.5)
    choices = [request.choice(number) for number in range(request.n)]
    assert choices[0] is request.params
    assert len({choice.seed for choice in choices}) == 128
    assert all(0 <= choice.seed < 2**64 and choice.temperature == 0.5 for choice in choices)
    assert choices == [read(seed=7, temperature=0.5).choice(number) for number in range(128)]
    assert choices[1].seed != read(seed=8).params.seed
    assert choices[1].seed == 4799193096086172078


def test_a_given_seed_draws_none() -> None:
    def never() -> int:
        raise AssertionError

    assert read_sampling({"seed": 0}, chat=True, vocab_size=9, max_tokens_left=9, draw_seed=never).params.seed == 0
