"""One choice as it grows, in steps of any size: what is shown does not depend on them."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.worker.messages import FinishReason, SamplingParams, TokenLogprobs, TokensOut
from backends.worker.server.choice import Choice
from backends.worker.server.plan import Plan, PlannedChoice
from backends.worker.server.rendering import Rendering
from backends.worker.text.detokenizer import TokenTexts
from backends.worker.text.sampling_request import SamplingRequest
from cache.token_backends import bytes_to_ids, ids_to_bytes
from tests.gateway_fixtures import model_text

TOKENIZER = model_text().tokenizer
TEXTS = TokenTexts(TOKENIZER.reference)
TEXT = "Grüße aus Köln: 你好, 🙂🙃 and good bye, good night, STOP here. The rest is never told."
IDS = bytes_to_ids(TOKENIZER.encode(TEXT, add_special_tokens=False))
LOGPROBS = [TokenLogprobs(-0.1 * at, (each, 5), (-0.1 * at, float("-inf"))) for at, each in enumerate(IDS)]


def plan_of(*, chat: bool = True, stream: bool = True, params: dict[str, Any] | None = None, **sampling: Any) -> Plan:
    drawn = SamplingParams(max_tokens=1000, **(params or {}))
    asked = {"n": 1, "stops": (), "include_stop": False, "skip_special_tokens": True, **sampling}
    choices = [PlannedChoice(0, ids_to_bytes([1, 2, 3]), drawn)]
    return Plan(
        chat=chat, model="m", sampling=SamplingRequest(drawn, **asked), prompt_tokens=3, stream=stream, usage=True,
        continuous_usage=False, token_ids=True, salt="", priority=0, choices=choices,
    )  # fmt: skip


def steps_of(cuts: list[int], *, logprobs: bool) -> list[TokensOut]:
    bounds = [0, *sorted({cut % len(IDS) for cut in cuts} - {0}), len(IDS)]
    return [
        TokensOut(
            "a",
            tuple(IDS[start:end]),
            FinishReason.LENGTH if end == len(IDS) else None,
            None,
            2,
            tuple(LOGPROBS[start:end]) if logprobs else None,
        )
        for start, end in pairwise(bounds)
    ]


def run(plan: Plan, steps: list[TokensOut], drains: list[bool]) -> tuple[Choice, list[dict[str, Any]], bytes]:
    """The choice at its end, and every event of its stream; `drains`: after which steps somebody looks."""
    choice = Choice(plan.choices[0], plan, TEXTS)
    rendering = Rendering("id", 1, plan, [choice])
    sent = b""
    for at, step in enumerate(steps):
        choice.take(step)
        if drains[at % len(drains)] or choice.finish_reason:
            sent += rendering.events()
        if choice.finish_reason:
            break
    end = rendering.end()
    return choice, [json.loads(event[6:]) for event in sent.split(b"\n\n") if event], end


CUTS = st.lists(st.integers(0, 200), max_size=30)
DRAINS = st.lists(st.booleans(), min_size=1, max_size=10)


@settings(deadline=None)
@given(cuts=CUTS, drains=DRAINS, chat=st.booleans(), logprobs=st.booleans(), include=st.booleans())
@pytest.mark.parametrize("stops", [(), ("STOP", "never said"), ("🙃",), ("d night",)])
def test_steps_and_looks_change_nothing(
    stops: tuple[str, ...], *, cuts: list[int], drains: list[bool], chat: bool, logprobs: bool, include: bool
) -> None:
    wanted = {"logprobs": 2} if logprobs else {}
    plan = plan_of(chat=chat, params=wanted, stops=stops, include_stop=include)
    choice, events, _ = run(plan, steps_of(cuts, logprobs=logprobs), drains)
    parts = [event["choices"][0] for event in events]
    text = "".join(part["delta"]["content"] if chat else part["text"] for part in parts)
    stop = next((each for each in stops if each in TEXT), None)
    assert text == (TEXT if stop is None else TEXT[: TEXT.index(stop) + (len(stop) if include else 0)])
    reason = "length" if stop is None else "stop"
    assert [part["finish_reason"] for part in parts] == [None] * (len(parts) - 1) + [reason]
    assert parts[-1]["stop_reason"] == stop
    assert choice.n_output == (len(IDS) if stop is None else tokens_to_reach(TEXT.index(stop) + len(stop)))
    assert [each for part in parts for each in part.get("token_ids", [])] == IDS[: choice.n_output]
    if logprobs:
        told = [part["logprobs"] for part in parts if part["logprobs"]]
        values = [entry["logprob"] for each in told for entry in each["content"]] if chat else []
        values += [value for each in told for value in each.get("token_logprobs", [])]
        assert values == [each.logprob for each in LOGPROBS[: choice.n_output]]
    assert choice.cached_tokens == 2


def tokens_to_reach(n_chars: int) -> int:
    """How many tokens make so many whole characters."""
    return next(n for n in range(len(IDS) + 1) if len(TOKENIZER.decode(IDS[:n]).rstrip("\ufffd")) >= n_chars)


@pytest.mark.parametrize("include", [False, True])
def test_the_token_that_ends_a_text_counts_and_is_not_shown(include: bool) -> None:
    plan = plan_of(params={"stop_token_ids": (IDS[3],)}, include_stop=include)
    step = TokensOut("a", tuple(IDS[:4]), FinishReason.STOP, IDS[3])
    choice, events, end = run(plan, [step], [True])
    text = "".join(event["choices"][0]["delta"]["content"] for event in events)
    assert text == TOKENIZER.decode(IDS[: 4 if include else 3])
    assert (choice.n_output, choice.stop_reason) == (4, IDS[3])
    assert b'"completion_tokens":4' in end


def test_the_model_s_own_end_has_no_stop_reason() -> None:
    choice, events, _ = run(plan_of(), [TokensOut("a", (*IDS[:2], 0), FinishReason.STOP, 0)], [True])
    assert (choice.finish_reason, choice.stop_reason, choice.n_output) == (FinishReason.STOP, None, 3)
    assert events[-1]["choices"][0]["stop_reason"] is None


def test_minus_infinity_is_a_number_that_json_has() -> None:
    plan = plan_of(stream=False, params={"logprobs": 2})
    choice = Choice(plan.choices[0], plan, TEXTS)
    choice.take(steps_of([], logprobs=True)[0])
    body = json.loads(Rendering("id", 1, plan, [choice]).body())
    entry = body["choices"][0]["logprobs"]["content"][0]
    assert entry["top_logprobs"][1]["logprob"] == -9999.0
    assert body["usage"]["completion_tokens"] == len(IDS)
    assert body["prompt_token_ids"] == [1, 2, 3]


def test_an_answer_of_no_text_still_has_a_beginning_and_an_end() -> None:
    _, events, _ = run(plan_of(), [TokensOut("a", (0,), FinishReason.STOP, 0)], [True])
    first, last = (event["choices"][0] for event in events)
    assert first["delta"] == {"role": "assistant", "content": ""}
    assert (last["delta"], last["finish_reason"]) == ({"content": ""}, "stop")
