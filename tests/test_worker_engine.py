"""The whole engine on small random models: whatever the schedule, every sequence gets the tokens it gets alone."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from backends.worker.engine.block_manager import BlockManager
from backends.worker.engine.engine import Engine
from backends.worker.engine.scheduler import Scheduler, SchedulerConfig
from backends.worker.messages import FinishReason, Refused, SamplingParams, Submit, TokensOut
from backends.worker.model.decoder import Decoder
from backends.worker.model.kv_pool import KvPool
from backends.worker.model.runner import ModelRunner
from backends.worker.model.sampler import Sampler
from tests import worker_model_fixtures as models
from tests.worker_core_fixtures import token_ids

MOST_PROMPT = 24
MOST_OUTPUT = 24
EOS = 2
DTYPE = torch.float64
"""Sums in another order differ by 1e-15 here, and no two logits of these models are so near: texts are equal, or
something is wrong."""


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@dataclass
class Case:
    """A model, prompts that share beginnings, and what each gets when it is alone in an engine without any cache."""

    decoder: Decoder
    model: Any
    submits: list[Submit]
    alone: dict[str, list[int]] = field(default_factory=dict)


def engine(
    decoder: Decoder, *, n_blocks: int = 64, block_size: int = 4, dtype: torch.dtype = DTYPE, **changes: Any
) -> Engine:
    """A new one, with a pool and a cache of its own."""
    pool = KvPool(decoder.config, n_blocks=n_blocks, block_size=block_size, dtype=dtype, device=models.CPU)
    settings = {"max_num_seqs": 8, "max_num_batched_tokens": 128, "max_model_len": 96, "max_waiting": 2000, **changes}
    scheduler = Scheduler(
        SchedulerConfig(eos_token_ids=frozenset({EOS}), **settings), BlockManager(n_blocks, block_size, "tiny")
    )
    return Engine(scheduler, ModelRunner(decoder, pool), Sampler(models.VOCAB))


def run(it: Engine, submits: Sequence[Submit], chance: random.Random | None = None) -> dict[str, list[TokensOut]]:
    """Submit all, at random steps where `chance` is given, and step until everything has ended."""
    told: dict[str, list[TokensOut]] = {submit.id: [] for submit in submits}
    waiting = list(submits)
    while waiting or it.has_work:
        while waiting and (chance is None or not it.has_work or chance.random() < 0.3):
            assert it.submit(waiting.pop(0)) is None
        done, dropped = it.step()
        assert not dropped
        for out in done.outputs:
            told[out.id].append(out)
        it.scheduler.check_integrity()
    return told


def ids_of(told: Sequence[TokensOut]) -> list[int]:
    return [token for out in told for token in out.token_ids]


@torch.no_grad()
def greedy(model: Any, prompt: Sequence[int], count: int) -> list[int]:
    """As `transformers` computes it: everything anew for each token."""
    ids = list(prompt)
    while len(ids) < len(prompt) + count:
        ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
        if ids[-1] == EOS:
            break
    return ids[len(prompt) :]


def prompts(chance: random.Random, count: int) -> list[list[int]]:
    """Of 1 to `MOST_PROMPT` tokens; half of them go on where an earlier one was cut."""
    made: list[list[int]] = []
    for _ in range(count):
        before = chance.choice(made) if made and chance.random() < 0.6 else []
        kept = before[: chance.randint(0, len(before))]
        more = chance.randint(1, MOST_PROMPT - len(kept) // 2)
        made.append([*kept, *(chance.randrange(3, models.VOCAB) for _ in range(more))][:MOST_PROMPT])
    return made


VARIANTS = [
    models.Variant("llama"),
    models.Variant("qwen2", "qwen2"),
    models.Variant("qwen3, sliding", "qwen3", models.SLIDING),
    models.Variant("mistral, short window", "mistral", {"sliding_window": 5}),
    models.Variant("llama, yarn", settings=models.rope("yarn", **models.YARN)),
]


def small(variant: models.Variant, *, layers: int, seed: int = 0) -> Any:
    """What a schedule can change, it changes in few layers too."""
    return models.make(replace(variant, settings={**variant.settings, "num_hidden_layers": layers}), seed=seed)


@pytest.fixture(scope="module", params=VARIANTS, ids=lambda variant: variant.name)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    torch.set_num_threads(1)
    chance = random.Random(7)
    model = small(request.param, layers=2, seed=3).to(DTYPE)
    decoder = models.decoder(models.saved(model, tmp_path_factory.mktemp("model")), dtype=DTYPE)
    submits = []
    for at, prompt in enumerate(prompts(chance, 24)):
        sampled = at % 3 == 2
        params = SamplingParams(
            max_tokens=chance.randint(1, MOST_OUTPUT),
            temperature=1.3 if sampled else 0.0,
            top_p=0.9 if sampled else 1.0,
            presence_penalty=0.5 if sampled else 0.0,
            seed=at,
        )
        submits.append(
            Submit(
                id=str(at),
                token_ids=token_ids(prompt),
                params=params,
                salt=chance.choice(("", "", "s")),
                priority=chance.choice((0, 0, 1)),
            )
        )
    it = Case(decoder, model, submits)
    for submit in submits:
        alone = engine(decoder, enable_prefix_caching=False, enable_chunked_prefill=False, max_num_seqs=1)
        it.alone[submit.id] = ids_of(run(alone, [submit])[submit.id])
    return it


def test_alone_it_is_as_in_transformers(case: Case) -> None:
    compared = 0
    for submit in case.submits:
        if submit.params.temperature == 0:
            prompt = torch.frombuffer(bytearray(submit.token_ids), dtype=torch.int32).tolist()
            assert case.alone[submit.id] == greedy(case.model, prompt, submit.params.max_tokens)
            compared += 1
    assert compared == 16


def test_no_schedule_changes_a_text(case: Case) -> None:
    """Random pools, budgets, arrivals and orders, with prefix cache, chunked prefill and preemption on."""
    preemptions = cached = chunked = 0
    for seed in range(40):
        chance = random.Random(seed)
        budget = chance.choice((8, 9, 16, 40, 128))
        it = engine(
            case.decoder,
            n_blocks=chance.choice((13, 13, 14, 18, 200)),
            max_num_seqs=chance.choice((2, 4, 6, 8)),
            max_num_batched_tokens=budget,
            max_model_len=MOST_PROMPT + MOST_OUTPUT + 2,
        )
        submits = chance.sample(case.submits, chance.randint(4, 10))
        told = run(it, submits, chance)
        for submit in submits:
            assert ids_of(told[submit.id]) == case.alone[submit.id], (seed, submit.id)
        stats = it.scheduler.stats()
        assert (stats.running, stats.waiting, stats.free_blocks) == (0, 0, it.scheduler.blocks.n_blocks)
        preemptions += stats.preemptions
        cached += stats.cached_tokens
        chunked += any(len(submit.token_ids) // 4 > budget for submit in submits)
    assert min(preemptions, cached, chunked) > 10, "these schedules did what they are there for"


def test_choices_of_one_prompt_share_its_prefill(case: Case) -> None:
    it = engine(case.decoder)
    params = SamplingParams(max_tokens=4, temperature=1.0, ignore_eos=True)
    submits = [
        Submit(
            id=f"n{seed}", token_ids=token_ids(range(3, 44)), params=SamplingParams(**{**_fields(params), "seed": seed})
        )
        for seed in range(4)
    ]
    told = run(it, submits)
    assert [told[submit.id][0].cached_tokens for submit in submits] == [0, 40, 40, 40]
    assert len({tuple(ids_of(each)) for each in told.values()}) > 1, "they are drawn with seeds of their own"
    for submit in submits:
        other = engine(case.decoder, enable_prefix_caching=False)
        assert ids_of(run(other, [submit])[submit.id]) == ids_of(told[submit.id])


def _fields(params: SamplingParams) -> dict[str, Any]:
    return {name: getattr(params, name) for name in params.__struct_fields__}


def test_a_thousand_requests_some_of_them_cancelled_lose_no_block(tmp_path: Path) -> None:
    decoder = models.decoder(models.saved(small(models.Variant("llama"), layers=1), tmp_path))
    chance = random.Random(1)
    it = engine(decoder, n_blocks=60, dtype=torch.float32, max_num_batched_tokens=64, max_model_len=76)
    texts = prompts(chance, 200)
    open_: set[str] = set()
    ended = cancelled = 0
    for number in range(1000):
        params = SamplingParams(max_tokens=chance.randint(1, 10), temperature=chance.choice((0.0, 1.0)), seed=number)
        submit = Submit(
            id=str(number), token_ids=token_ids(chance.choice(texts)), params=params, priority=chance.randint(0, 2)
        )
        assert it.submit(submit) is None
        open_.add(submit.id)
        while len(open_) > chance.randint(0, 30):
            done, _ = it.step()
            finished = {out.id for out in done.outputs if out.finish_reason}
            open_ -= finished
            ended += len(finished)
            if open_ and chance.random() < 0.15:
                gone = chance.choice(sorted(open_))
                it.cancel(gone)
                open_.discard(gone)
                cancelled += 1
            it.scheduler.check_integrity()
    while it.has_work:
        done, _ = it.step()
        ended += sum(out.finish_reason is not None for out in done.outputs)
    stats = it.scheduler.stats()
    assert ended + cancelled == 1000
    assert cancelled > 100
    assert (stats.running, stats.waiting, stats.free_blocks) == (0, 0, 60)
    it.scheduler.check_integrity()


def test_logits_that_are_no_numbers_end_one_sequence_and_no_other(tmp_path: Path) -> None:
    model = small(models.Variant("llama"), layers=2)
    with torch.no_grad():
        model.get_input_embeddings().weight[100].fill_(float("nan"))
    decoder = models.decoder(models.saved(model, tmp_path))
    it = engine(decoder, dtype=torch.float32)
    greedily = SamplingParams(max_tokens=5, temperature=0.0, ignore_eos=True)
    good = Submit(id="good", token_ids=token_ids(range(3, 30)), params=greedily)
    alone = ids_of(run(engine(decoder, dtype=torch.float32), [good])["good"])
    bad = Submit(id="bad", token_ids=token_ids([*range(3, 30), 100]), params=greedily)
    assert it.submit(good) is None
    assert it.submit(bad) is None
    done, dropped = it.step()
    assert (done.outputs, [each.id for each in dropped]) == ((), ["bad"])
    assert isinstance(dropped[0], Refused)
    assert done.stats.cached_blocks == 0, "nothing of that step can be found"
    told: list[TokensOut] = []
    while it.has_work:
        done, dropped = it.step()
        assert not dropped
        told += done.outputs
    assert ids_of(told) == alone
    assert told[-1].finish_reason is FinishReason.LENGTH
    it.scheduler.check_integrity()


def test_what_can_never_fit_is_refused_with_the_reason(case: Case) -> None:
    it = engine(case.decoder, n_blocks=5)
    params = SamplingParams(max_tokens=10)
    long = it.submit(Submit(id="long", token_ids=token_ids(range(3, 103)), params=params))
    big = it.submit(Submit(id="big", token_ids=token_ids(range(3, 18)), params=params))
    assert long is not None
    assert (long.param, "at most 95" in long.reason) == ("prompt", True)
    assert big is not None
    assert (big.param, "the KV pool holds 20" in big.reason) == ("max_tokens", True)
    assert not it.has_work
