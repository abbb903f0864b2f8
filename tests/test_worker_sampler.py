"""The sampler: each step against plain arithmetic or transformers, tokens that depend on nothing but their own row."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from backends.worker.messages import SamplingParams, TokenLogprobs
from backends.worker.model.sampler import BadLogitsError, Sampler, SamplerRow
from backends.worker.model.token_draw import draw, ranked, uniform

VOCAB = 300
PROMPT = (5, 6, 7, 7, 250)
OUTPUT = (7, 9, 9, 9, 11)
torch.set_num_threads(1)


def params(**fields: Any) -> SamplingParams:
    return SamplingParams(max_tokens=100, **fields)


def logits_of(seed: int, rows: int = 1, spread: float = 2.0) -> Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * spread


def sample(logits: Tensor, *rows: SamplerRow) -> list[tuple[int, TokenLogprobs | None]]:
    return Sampler(logits.shape[1]).sample(logits, rows)


def token_of(logits: Tensor, row: SamplerRow) -> int:
    ((token, _),) = sample(logits, row)
    return token


# --- the random number and the order -----------------------------------------------------------------------


def test_the_random_number_is_fixed_for_all_time() -> None:
    assert uniform(0, 0) == 0.8150393007738989
    assert uniform(1, 0) == 0.15213972808574683
    assert uniform(2**64 - 1, 4_000_000) == uniform(-1, 4_000_000) == 0.08462824946118175


def test_random_numbers_are_even() -> None:
    numbers = np.array([uniform(seed, index) for seed in range(200) for index in range(200)])
    counts = np.histogram(numbers, 100, (0, 1))[0]
    # Chi square with 99 degrees of freedom: mean 99, standard deviation 14.
    assert ((counts - 400) ** 2 / 400).sum() < 99 + 4 * 14
    table = numbers.reshape(200, 200)
    for one, other in ((table[:-1], table[1:]), (table[:, :-1], table[:, 1:])):
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.02


@given(st.lists(st.floats(-5, 5, width=16), min_size=1), st.sampled_from(["float32", "float64"]))
def test_likeliest_first_and_equal_ones_by_id(scores: list[float], dtype: str) -> None:
    order = ranked(np.array(scores, dtype=dtype), np.arange(len(scores)))
    assert order.tolist() == sorted(range(len(scores)), key=lambda at: (-scores[at], at))


def test_draw_by_example() -> None:
    weights = np.array([4.0, 2.0, 1.0, 1.0])
    for sample_, place in ((0, 0), (0.499, 0), (0.5, 1), (0.749, 1), (0.75, 2), (0.875, 3), (1 - 2**-53, 3)):
        assert draw(weights, total=None, top_k=0, top_p=1, sample=sample_) == place
    # A share that is reached exactly needs no further token.
    assert draw(weights, total=8.0, top_k=0, top_p=0.75, sample=0.999) == 1
    assert draw(weights, total=8.0, top_k=0, top_p=0.7500001, sample=0.999) == 2
    # Top-p is a share of what top-k left.
    assert draw(weights, total=None, top_k=2, top_p=0.6, sample=0.999) == 0
    assert draw(weights, total=None, top_k=2, top_p=0.7, sample=0.999) == 1


# --- what remains after the filters is what transformers leaves --------------------------------------------

FILTERS: list[Mapping[str, Any]] = [
    {},
    {"temperature": 0.3},
    {"temperature": 2.0, "top_p": 0.8},
    {"top_p": 0.95},
    {"top_p": 0.1},
    {"top_k": 7},
    {"top_k": 299},
    {"top_k": 300},
    {"top_k": 10_000},
    {"min_p": 0.05},
    {"min_p": 0.2, "top_p": 0.7},
    {"temperature": 0.7, "min_p": 0.01, "top_k": 20, "top_p": 0.9},
]


def expected_scores(logits: Tensor, fields: Mapping[str, Any]) -> Tensor:
    """In vLLM v1's order, by transformers' own processors."""
    nothing: Any = torch.zeros(1, 1, dtype=torch.long)
    scores: Tensor = TemperatureLogitsWarper(float(fields.get("temperature", 1)))(nothing, logits)
    if "min_p" in fields:
        scores = MinPLogitsWarper(fields["min_p"])(nothing, scores)
    if "top_k" in fields:
        scores = TopKLogitsWarper(fields["top_k"])(nothing, scores)
    if "top_p" in fields:
        scores = TopPLogitsWarper(fields["top_p"])(nothing, scores)
    return scores


@pytest.mark.parametrize("fields", FILTERS, ids=str)
def test_filters_leave_what_transformers_leaves(fields: Mapping[str, Any]) -> None:
    """Every number draws the token that the inverse of transformers' distribution function has there."""
    for seed in range(3):
        logits = logits_of(seed).double()
        probs = expected_scores(logits, fields).softmax(-1)[0].numpy()
        order = sorted(range(VOCAB), key=lambda at: (-float(logits[0, at]), at))
        mass = np.cumsum(probs[order])
        rows = [SamplerRow(params(seed=seed, **fields), index) for index in range(150)]
        drawn = sample(logits.expand(150, -1), *rows)
        for index, (token, _) in enumerate(drawn):
            number = uniform(seed, index)
            place = order.index(token)
            assert probs[token] > 0
            assert mass[place] - probs[token] - 1e-9 <= number < mass[place] + 1e-9


@pytest.mark.parametrize("fields", FILTERS, ids=str)
def test_tokens_come_as_often_as_they_should(fields: Mapping[str, Any]) -> None:
    logits = logits_of(7)
    probs = expected_scores(logits, fields).softmax(-1)[0].double().numpy()
    draws = 5_000
    sampler = Sampler(VOCAB)
    counts: Counter[int] = Counter()
    for start in range(0, draws, 1000):
        rows = [SamplerRow(params(seed=start + at, **fields), 3) for at in range(1000)]
        counts.update(token for token, _ in sampler.sample(logits.expand(1000, -1), rows))
    assert set(counts) <= set(np.flatnonzero(probs).tolist())
    often = [at for at in range(VOCAB) if probs[at] * draws >= 10]
    rare = 1 - probs[often].sum()
    seen = [counts[at] for at in often]
    square = sum((n - probs[at] * draws) ** 2 / (probs[at] * draws) for n, at in zip(seen, often, strict=True))
    # Seeds are fixed, so this passes always or never: five standard deviations of chi square.
    assert square < len(often) + 5 * math.sqrt(2 * len(often))
    assert abs(draws - sum(seen) - rare * draws) <= 5 * math.sqrt(rare * draws + 1)


def test_equal_scores_are_cut_by_id() -> None:
    logits = torch.zeros(1, VOCAB)
    kept = {token_of(logits, SamplerRow(params(top_k=3, seed=seed), 0)) for seed in range(50)}
    assert kept == {0, 1, 2}
    kept = {token_of(logits, SamplerRow(params(top_p=0.01, seed=seed), 0)) for seed in range(50)}
    assert kept == {0, 1, 2}


# --- what changes the logits -------------------------------------------------------------------------------


def edited(logits: Tensor, row: SamplerRow) -> list[float]:
    """Log probabilities after all that changes logits, plainly: vLLM v1's order."""
    p = row.params
    scores = [float(value) for value in logits[0].double()]
    for token, bias in p.logit_bias.items():
        scores[token] += bias
    if row.index < p.min_tokens:
        for token in row.suppressed:
            scores[token] = -math.inf
    for token in {*row.prompt_ids, *row.output_ids}:
        scores[token] = (
            scores[token] / p.repetition_penalty if scores[token] > 0 else scores[token] * p.repetition_penalty
        )
    for token, count in Counter(row.output_ids).items():
        scores[token] -= count * p.frequency_penalty + p.presence_penalty
    top = max(scores)
    log_sum = top + math.log(sum(math.exp(score - top) for score in scores))
    return [score - log_sum for score in scores]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"presence_penalty": 1.5},
        {"presence_penalty": -2.0},
        {"frequency_penalty": 2.0},
        {"frequency_penalty": -0.7},
        {"repetition_penalty": 1.3},
        {"repetition_penalty": 0.5},
        {"logit_bias": {7: 100.0, 8: -100.0, 299: 3.25}},
        {"min_tokens": 6},
        {
            "presence_penalty": 0.5,
            "frequency_penalty": 0.25,
            "repetition_penalty": 1.1,
            "logit_bias": {9: 4.0, 250: -9.0},
            "min_tokens": 9,
            "temperature": 0.5,
            "top_k": 3,
        },
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_edits_and_logprobs(fields: Mapping[str, Any], dtype: torch.dtype) -> None:
    logits = logits_of(1).to(dtype)
    before = logits.clone()
    row = SamplerRow(params(logprobs=20, **fields), 5, PROMPT, OUTPUT, suppressed=(0, 3, 9))
    expected = edited(logits, row)
    ((token, told),) = sample(logits, row)
    assert told is not None
    assert told.logprob == pytest.approx(expected[token], abs=2e-5)
    order = sorted(range(VOCAB), key=lambda at: (-round(expected[at], 5), at))[:20]
    assert told.top_logprobs == pytest.approx([expected[at] for at in order], abs=2e-5)
    assert [expected[at] for at in told.top_ids] == pytest.approx([expected[at] for at in order], abs=2e-5)
    assert torch.equal(logits, before)


def test_repetition_penalty_is_that_of_transformers() -> None:
    logits = logits_of(2)
    ids = torch.tensor([[*PROMPT, *OUTPUT]])
    expected = RepetitionPenaltyLogitsProcessor(1.4)(ids, logits.clone()).log_softmax(-1)[0]
    row = SamplerRow(params(repetition_penalty=1.4, logprobs=20), 5, PROMPT, OUTPUT)
    ((_, told),) = sample(logits, row)
    assert told is not None
    assert told.top_logprobs == pytest.approx(expected.topk(20).values.tolist(), abs=1e-5)


def test_logprobs_are_log_softmax_whatever_the_temperature() -> None:
    logits = logits_of(3, rows=4)
    expected = logits.log_softmax(-1)
    rows = [
        SamplerRow(params(temperature=0.0, logprobs=0), 0),
        SamplerRow(params(temperature=0.5, top_k=2, logprobs=3), 0),
        SamplerRow(params(), 0),
        SamplerRow(params(temperature=2.0, top_p=0.5, logprobs=20), 0),
    ]
    drawn = sample(logits, *rows)
    assert drawn[2][1] is None
    for at, count in ((0, 0), (1, 3), (3, 20)):
        token, told = drawn[at]
        assert told is not None
        assert told.logprob == pytest.approx(float(expected[at, token]), abs=1e-5)
        assert list(told.top_ids) == expected[at].topk(count).indices.tolist()
        assert told.top_logprobs == pytest.approx(expected[at].topk(count).values.tolist(), abs=1e-5)


@pytest.mark.parametrize("kind", [list, tuple, np.array, lambda ids: array("I", ids), lambda ids: np.array(ids, "<u4")])
def test_ids_may_come_in_any_sequence(kind: Any) -> None:
    fields: dict[str, Any] = {"repetition_penalty": 1.3, "frequency_penalty": 0.5, "logprobs": 5}
    plain, other = (
        SamplerRow(params(**fields), 5, make(PROMPT), make(OUTPUT), suppressed=(1,)) for make in (list, kind)
    )
    assert sample(logits_of(4), plain) == sample(logits_of(4), other)


def test_ids_beyond_the_vocabulary_change_nothing() -> None:
    fields: dict[str, Any] = {"repetition_penalty": 1.3, "presence_penalty": 0.5, "logprobs": 5, "min_tokens": 9}
    inside = SamplerRow(params(logit_bias={1: 2.0}, **fields), 5, PROMPT, OUTPUT, (1,))
    beyond = SamplerRow(params(logit_bias={1: 2.0, 300: 9.0}, **fields), 5, (*PROMPT, 300), (*OUTPUT, 9999), (1, 300))
    assert sample(logits_of(5), inside) == sample(logits_of(5), beyond)


# --- a row depends on itself alone -------------------------------------------------------------------------

any_params = st.builds(
    params,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 1.7]),
    top_p=st.sampled_from([1.0, 0.95, 0.5]),
    top_k=st.sampled_from([0, 1, 40]),
    min_p=st.sampled_from([0.0, 0.1]),
    presence_penalty=st.sampled_from([0.0, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.2]),
    logit_bias=st.sampled_from([{}, {3: 5.0}]),
    min_tokens=st.sampled_from([0, 10]),
    logprobs=st.sampled_from([None, 0, 4]),
    seed=st.integers(0, 2**64 - 1),
)


@given(
    st.lists(st.tuples(any_params, st.integers(0, 20), st.integers(0, 4)), min_size=1, max_size=8),
    st.permutations(range(8)),
    st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
)
@settings(deadline=None)
def test_any_batch_gives_the_same_tokens(
    drawn: list[tuple[SamplingParams, int, int]], order: Sequence[int], dtype: torch.dtype
) -> None:
    rows = [SamplerRow(p, index, PROMPT, OUTPUT, (0, 1, 2)) for p, index, _ in drawn]
    logits = torch.cat([logits_of(which) for _, _, which in drawn]).to(dtype)
    together = sample(logits, *rows)
    sampler = Sampler(VOCAB)
    assert together == [sampler.sample(logits[at : at + 1], [row])[0] for at, row in enumerate(rows)]
    places = [at for at in order if at < len(rows)]
    assert sampler.sample(logits[places], [rows[at] for at in places]) == [together[at] for at in places]
    assert sampler.sample(logits, rows) == together


def test_a_large_vocabulary_in_any_batch_and_number_of_threads() -> None:
    """Large enough that torch divides the work."""
    vocab = 151_936
    logits = torch.randn(5, vocab, generator=torch.Generator().manual_seed(0)) * 2
    fields: list[dict[str, Any]] = [{"top_p": 0.95}, {}, {"top_k": 50}, {"min_p": 0.02}, {"top_k": 5000, "top_p": 0.99}]
    rows = [SamplerRow(params(seed=at, **each), at) for at, each in enumerate(fields)]
    sampler = Sampler(vocab)
    together = sampler.sample(logits, rows)
    torch.set_num_threads(2)
    try:
        assert sampler.sample(logits, rows) == together
    finally:
        torch.set_num_threads(1)
    assert [sampler.sample(logits[at : at + 1], [row])[0] for at, row in enumerate(rows)] == together
    # And each is the token that a full sort in float64 finds.
    for at, (row, (token, _)) in enumerate(zip(rows, together, strict=True)):
        scores = logits[at].double().numpy()
        order = np.lexsort((np.arange(vocab), -scores))
        weights = np.exp(scores[order] - scores.max())
        weights[weights < row.params.min_p] = 0
        place = draw(weights, total=None, top_k=row.params.top_k, top_p=row.params.top_p, sample=uniform(at, at))
        assert token == order[place]


@given(st.lists(any_params, min_size=1, max_size=6), st.integers(0, 100))
@settings(deadline=None)
def test_the_way_of_other_devices_draws_the_same_tokens(drawn: list[SamplingParams], seed: int) -> None:
    """Their selection is one operation for the whole batch; here it runs on the CPU."""
    logits = logits_of(seed, rows=len(drawn))
    rows = [SamplerRow(p, at, PROMPT, OUTPUT, (0, 1)) for at, p in enumerate(drawn)]
    sampler = Sampler(VOCAB)
    sampler._on_cpu = False
    for (token, told), (other, told_here) in zip(sampler.sample(logits, rows), sample(logits, *rows), strict=True):
        assert token == other
        assert (told is None) == (told_here is None)
        if told and told_here:
            assert told.top_ids == told_here.top_ids
            assert told.top_logprobs == pytest.approx(told_here.top_logprobs)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("fields", FILTERS, ids=str)
def test_a_gpu_draws_the_same_tokens(fields: Mapping[str, Any]) -> None:
    logits = logits_of(11, rows=50)
    rows = [SamplerRow(params(seed=at, **fields), at) for at in range(50)]
    assert Sampler(VOCAB, "cuda").sample(logits.cuda(), rows) == sample(logits, *rows)


def test_seeds_and_places_tell_tokens_apart() -> None:
    logits = torch.zeros(1, VOCAB)
    by_seed = [token_of(logits, SamplerRow(params(seed=seed), 0)) for seed in range(40)]
    by_index = [token_of(logits, SamplerRow(params(seed=1), index)) for index in range(40)]
    assert len(set(by_seed)) > 30
    assert len(set(by_index)) > 30
    assert by_seed == [token_of(logits, SamplerRow(params(seed=seed), 0)) for seed in range(40)]


# --- bounds ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0.0},
        {"temperature": 1e-6},
        {"temperature": 1e-5},
        {"temperature": 1e-4},
        {"top_k": 1},
        {"top_p": 1e-9},
        {"top_p": 5e-324},
        {"min_p": 1.0},
        {"temperature": 2.0, "top_k": 1, "top_p": 1e-9, "min_p": 1.0},
    ],
    ids=str,
)
def test_bounds_that_leave_the_likeliest_token(fields: Mapping[str, Any]) -> None:
    logits = logits_of(6, rows=50)
    rows = [SamplerRow(params(seed=at, **fields), at) for at in range(50)]
    assert [token for token, _ in sample(logits, *rows)] == logits.argmax(-1).tolist()


def test_of_equal_likeliest_tokens_greedy_takes_the_first() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, [40, 20, 30]] = 5
    assert token_of(logits, SamplerRow(params(temperature=0.0), 0)) == 20
    assert token_of(logits, SamplerRow(params(top_k=1), 0)) == 20


@pytest.mark.parametrize("temperature", [0.0, 1.0, 2.0])
def test_a_bias_of_a_hundred_decides(temperature: float) -> None:
    logits = logits_of(8, spread=1)
    likeliest = int(logits.argmax())
    assert token_of(logits, SamplerRow(params(temperature=temperature, logit_bias={17: 100.0}), 0)) == 17
    banned = params(temperature=temperature, logit_bias={likeliest: -100.0})
    assert all(token_of(logits, SamplerRow(banned, index)) != likeliest for index in range(50))


def test_suppressed_tokens_come_at_their_time() -> None:
    logits = torch.full((1, VOCAB), -5.0)
    logits[0, 2] = 50
    row_params = params(min_tokens=3, temperature=0.0)
    tokens = [token_of(logits, SamplerRow(row_params, index, suppressed=(2,))) for index in range(5)]
    assert tokens == [0, 0, 0, 2, 2]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_one_token_left(temperature: float) -> None:
    row_params = params(min_tokens=1, temperature=temperature, logprobs=20)
    all_but_one = [token for token in range(VOCAB) if token != 123]
    ((token, told),) = sample(logits_of(9), SamplerRow(row_params, 0, suppressed=all_but_one))
    assert told is not None
    assert (token, told.top_ids) == (123, (123,))
    assert [told.logprob, *told.top_logprobs] == pytest.approx([0.0, 0.0])


def test_bad_rows_are_told_and_the_others_can_go_on() -> None:
    logits = logits_of(10, rows=6)
    logits[1, 7] = math.nan
    logits[3, 7] = math.inf
    logits[4] = -math.inf
    logits[5, :200] = -math.inf
    rows = [SamplerRow(params(seed=at), at) for at in range(6)]
    with pytest.raises(BadLogitsError, match="in rows 1, 3, 4") as caught:
        sample(logits, *rows)
    assert caught.value.rows == (1, 3, 4)
    left = [0, 2, 5]
    tokens = sample(logits[left], *(rows[at] for at in left))
    assert tokens == [sample(logits[at : at + 1], rows[at])[0] for at in left]
    assert tokens[2][0] >= 200


def test_shapes() -> None:
    assert Sampler(VOCAB).sample(torch.empty(0, VOCAB), []) == []
    with pytest.raises(ValueError, match=r"\(1, 300\), not \(2, 300\)"):
        Sampler(VOCAB).sample(logits_of(0), [SamplerRow(params(), 0)] * 2)
    assert Sampler(1).sample(torch.zeros(1, 1), [SamplerRow(params(top_k=5, top_p=0.5), 0)]) == [(0, None)]
