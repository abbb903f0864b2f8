"""Answers by meaning, as clients see them: served only where that has proved right, and a miss whatever goes wrong."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from gateway.config import Config, ConfigError
from gateway.semantic_call import Learner
from gateway.semantic_learners import EvidenceFile
from gateway.thread_line import BusyError
from policies.response_freshness import FreshnessRules
from policies.types import Tier
from tests.gateway_fixtures import config_for, eventually
from tests.semantic_fixtures import DIM, EASY, Wise, Words, by_topic, semantic_setting
from tests.tenant_fixtures import KEYS, tenants

ROOT = Path(__file__).parent.parent
PASSWORD = "How do I reset my password?"
SAME = "How can I reset my password?"
ABOUT = "All about password and reset."
INVOICE = "Where do I find my invoice?"


# --- served, and not


async def test_what_means_the_same_is_served_once_that_has_proved_right() -> None:
    async with semantic_setting() as it:
        assert await it.ask(PASSWORD) == (ABOUT, "miss")
        await it.quiet()
        told = await it.learn(PASSWORD, 12)
        assert told[:6] == ["miss"] * 6
        assert told[-1] == "semantic"
        await it.learn(SAME, 2)  # other words are another class of risk, which has to show something too
        calls = it.worker.calls
        assert await it.ask(it.again(SAME)) == (ABOUT, "semantic")
        text, told_headers = await it.told(it.again(SAME), stream=True, stream_options={"include_usage": True})
        assert (text, told_headers["x-prefixgate-cache"], told_headers["age"]) == (ABOUT, "semantic", "0")
        assert it.worker.calls == calls
        assert await it.ask("How do I reset my router?") == ("All about reset and router.", "miss")
        report = it.semantic.report()
        assert report["tenants"]["default"]["categories"]["default/same_text"]["served"] >= 2
        assert report["labels"]["agreement: right"] >= 8
        it.check_left()


async def test_shadow_mode_serves_nothing_and_tells_what_it_would_have() -> None:
    async with semantic_setting(mode="shadow") as it:
        assert await it.learn(PASSWORD, 16) == ["miss"] * 16
        assert it.worker.calls == 16
        told = it.semantic.report()["tenants"]["default"]
        assert told["mode"] == "shadow"
        category = told["categories"]["default/same_text"]
        assert category["served"] == 0
        assert category["would_serve"] == category["audited"] >= 2
        assert category["estimate"] == 0.0
        it.check_left()


async def test_in_shadow_mode_nobody_waits_for_a_vector() -> None:
    async with semantic_setting(mode="shadow") as it:
        it.words.may.clear()
        assert await it.ask(PASSWORD) == (ABOUT, "miss")
        await eventually(lambda: it.words.asked == [PASSWORD])
        it.words.may.set()
        await it.quiet()
        assert it.semantic.questions.stats().entries == 1


async def test_an_entry_that_turns_wrong_is_found_out_and_served_no_longer() -> None:
    worker = Wise()
    async with semantic_setting(EASY.replace("audit_rate: 0", "audit_rate: 0.5"), worker=worker) as it:
        told = await it.learn(PASSWORD, 40)
        assert "semantic" in told
        worker.says = lambda _: "No longer possible, write to us."
        for _ in range(40):
            told = await it.learn(PASSWORD, 1)
            if it.semantic.labels["agreement", "wrong"]:
                break
        assert it.semantic.labels["agreement", "wrong"] == 1
        # The new answer has taken the place of the old one, which nobody gets any more.
        assert {(await it.ask(it.again(PASSWORD)))[0] for _ in range(8)} == {"No longer possible, write to us."}
        it.check_left()


@pytest.mark.parametrize(
    "other",
    ["How do I not reset my password?", "How do I reset my password 2 times?", "How do I reset my passport?"],
)
async def test_a_question_that_only_looks_alike_is_refused_by_guards_whatever_its_vector(other: str) -> None:
    async with semantic_setting() as it:
        it.words.vector = lambda _: [1.0] * DIM  # to the endpoint all are the same
        await it.learn(PASSWORD, 14)
        served = it.semantic.lookups["served"]
        assert served > 0
        assert await it.ask(other) == (by_topic(other), "miss")
        assert it.semantic.lookups["served"] == served
        assert it.semantic.questions.refusals.total() == 1


async def test_what_else_differs_keeps_questions_apart() -> None:
    async with semantic_setting() as it:
        await it.learn(PASSWORD, 12)
        assert (await it.ask(it.again(PASSWORD)))[1] == "semantic"
        for more in ({"max_tokens": 5}, {"seed": 1}, {"response_format": {"type": "json_object"}}):
            assert (await it.ask(it.again(PASSWORD), **more))[1] == "miss"
        system: dict[str, Any] = {"role": "system", "content": "Be brief."}
        messages = [system, {"role": "user", "content": it.again(PASSWORD)}]
        assert (await it.ask("", messages=messages))[1] == "miss"
        tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
        assert (await it.ask(it.again(PASSWORD), tools=[tool]))[1] == "miss"
        assert it.semantic.refusals == {"tools": 1}


async def test_tenants_learn_and_are_served_apart() -> None:
    who = tenants("acme", "beta", "crew, cache: {semantic: {mode: off}}")
    async with semantic_setting(extra=who) as it:
        told = await it.learn(PASSWORD, 12, key=KEYS["acme"])
        assert told[-1] == "semantic"
        assert (await it.ask(it.again(PASSWORD), key=KEYS["beta"]))[1] == "miss"
        await it.quiet()
        assert (await it.ask(it.again(PASSWORD), key=KEYS["beta"]))[1] == "miss"
        assert (await it.ask(it.again(PASSWORD), key=KEYS["crew"]))[1] == "miss"
        assert (await it.ask(it.again(PASSWORD), key=KEYS["acme"]))[1] == "semantic"
        await it.quiet()
        report = it.semantic.report()
        assert set(report["tenants"]) == {"acme", "beta"}
        assert report["index"]["scopes"] == 2


async def test_a_client_can_ask_for_more_certainty_and_not_for_less() -> None:
    async with semantic_setting() as it:
        await it.learn(PASSWORD, 12)
        question = it.again(PASSWORD)
        for strict in (
            {"x-prefixgate-max-error": "0.0001"},
            {"Cache-Control": "no-cache"},
            {"Cache-Control": "max-age=0"},
        ):
            assert (await it.ask(it.again(PASSWORD), headers=strict))[1] == "miss"
        assert (await it.ask(it.again(SAME), headers={"x-prefixgate-min-similarity": "0.9999"}))[1] == "miss"
        assert (await it.ask(it.again(PASSWORD), headers={"Cache-Control": "no-store"}))[1] == "bypass"
        loose = {"x-prefixgate-max-error": "1", "x-prefixgate-min-similarity": "0"}
        assert (await it.ask(question, headers=loose))[1] == "semantic"
        for name in loose:
            for bad in ("1.5", "-1", "much", "", "nan", "1e0"):
                with pytest.raises(openai.BadRequestError, match=name):
                    await it.ask(PASSWORD, headers={name: bad})
        with pytest.raises(openai.InternalServerError) as refused:
            await it.ask(it.again(PASSWORD), headers={"Cache-Control": "only-if-cached"})
        assert refused.value.code == "not_cached"
        await it.quiet()
        it.check_left()


async def test_categories_learn_apart_and_unknown_ones_are_the_default() -> None:
    async with semantic_setting(EASY + ", categories: [{name: prices, ttl: 1ms}]") as it:
        prices = {"x-prefixgate-category": "prices"}
        await it.learn(PASSWORD, 12, headers={"x-prefixgate-category": "whatever"})
        assert (await it.ask(it.again(PASSWORD)))[1] == "semantic"
        assert (await it.ask(it.again(PASSWORD), headers=prices))[1] == "miss"  # too old for this one
        assert it.semantic.lookups["expired"] == 1


async def test_messages_and_responses_are_answered_by_meaning_too() -> None:
    async with semantic_setting() as it:
        claude = anthropic.AsyncAnthropic(base_url=it.gateway.url, api_key="none", max_retries=0)

        async def message() -> tuple[str, str | None]:
            raw = await claude.messages.with_raw_response.create(
                model="m",
                max_tokens=50,
                messages=[{"role": "user", "content": it.again(PASSWORD)}],
                extra_body={"temperature": 0},
            )
            (block,) = (await raw.parse()).content
            assert block.type == "text"
            return block.text, raw.headers.get("x-prefixgate-cache")

        async def response() -> tuple[str, str | None]:
            raw = await it.client.responses.with_raw_response.create(
                model="m", temperature=0, store=False, input=it.again(PASSWORD)
            )
            return raw.parse().output_text, raw.headers.get("x-prefixgate-cache")

        async with claude:
            for ask in (message, response):
                told = []
                for _ in range(13):
                    told.append(await ask())
                    await it.quiet()
                assert told[0] == (ABOUT, "miss")
                assert told[-1] == (ABOUT, "semantic")
        assert it.semantic.questions.stats().partitions == 2
        it.check_left()


@pytest.mark.parametrize(
    ("answers", "label"),
    [
        (("To reset it, open the settings menu.", "Open the settings menu to reset it."), "right"),
        (("Open the settings menu to reset it.", "Our friendly colleagues will gladly do so."), "wrong"),
        (("It takes 3 days.", "It takes 4 days."), "wrong"),
    ],
)
async def test_answers_are_compared_by_words_and_by_their_vectors(answers: tuple[str, str], label: str) -> None:
    worker = Wise()
    told = itertools.cycle(answers)
    worker.says = lambda _: next(told)
    async with semantic_setting(worker=worker) as it:
        assert await it.learn(PASSWORD, 2) == ["miss"] * 2
        assert it.semantic.labels == {("agreement", label): 1}
        asked = {text.strip() for text in it.words.asked}
        assert (set(answers) <= asked) == ("3 days" not in answers[0])


VERIFIER = ", verifier: {model: m, share: 1, misses: 0.05}"


async def test_a_model_judges_what_words_cannot_tell() -> None:
    worker = Wise()
    answers = itertools.cycle(["Sure, long story.", "Well, it depends."])  # to words all of them differ
    worker.says = lambda question: "YES" if "first answer" in question else next(answers)
    async with semantic_setting(EASY + VERIFIER, worker=worker, extra=tenants("acme")) as it:
        told = await it.learn(PASSWORD, 14, key=KEYS["acme"])
        assert told[-1] == "semantic"
        assert it.semantic.labels.keys() == {("verifier", "right")}
        judged = [asked for asked in worker.asked if len(asked["messages"]) == 2]
        assert len(judged) == it.semantic.labels["verifier", "right"]
        assert json.loads(judged[0]["messages"][1]["content"])["question"].split() == PASSWORD.split()
        assert "depends" in judged[0]["messages"][1]["content"]
        it.check_left()


@pytest.mark.parametrize(("says", "label"), [("No, they differ.", "wrong"), ("Hard to say.", "wrong")])
async def test_a_model_that_says_no_or_nothing_is_not_taken_for_a_yes(says: str, label: str) -> None:
    worker = Wise()
    worker.says = lambda question: says if "first answer" in question else ABOUT
    async with semantic_setting(EASY + VERIFIER, worker=worker) as it:
        assert await it.learn(PASSWORD, 3) == ["miss"] * 3
        assert it.semantic.labels == {("verifier", label): 2}
        it.check_left()


async def test_answers_too_long_for_a_model_count_as_wrong_unasked() -> None:
    worker = Wise()
    worker.says = lambda _: "It depends. " * 800
    async with semantic_setting(EASY + VERIFIER, worker=worker) as it:
        assert await it.learn(PASSWORD, 2) == ["miss"] * 2
        assert it.semantic.labels == {("verifier", "wrong"): 1}
        assert worker.calls == 2
        it.check_left()


async def test_a_model_that_does_not_answer_in_time_gives_no_label() -> None:
    worker = Wise()
    async with semantic_setting(EASY + VERIFIER.replace("misses: 0.05", "timeout: 50ms"), worker=worker) as it:
        await it.learn(PASSWORD, 1)
        worker.hold = True
        asked = asyncio.create_task(it.ask(it.again(PASSWORD)))
        await eventually(lambda: worker.calls == 2)
        worker.may.release()  # for the request, and none for the judgement
        assert await asked == (ABOUT, "miss")
        await it.quiet()
        assert it.semantic.labels == {("verifier", "none"): 1}
        await eventually(lambda: worker.given_up == 1)
        await eventually(lambda: not it.pipeline.live)
        it.check_left()


# --- what goes wrong


async def test_a_vector_that_comes_too_late_is_a_miss_and_the_question_is_kept_all_the_same() -> None:
    async with semantic_setting(EASY.replace("deadline: 5s", "deadline: 20ms")) as it:
        it.words.may.clear()
        assert await it.ask(PASSWORD) == (ABOUT, "miss")
        assert it.semantic.lookups["late"] + it.semantic.lookups["no_vector"] == 1
        it.words.may.set()
        await it.quiet()
        assert it.semantic.questions.stats().entries == 1
        it.check_left()


async def test_an_embedder_that_fails_is_told_once_and_everybody_is_answered(caplog: pytest.LogCaptureFixture) -> None:
    async with semantic_setting() as it:
        it.words.status = 500
        for _ in range(12):
            assert await it.ask(it.again(PASSWORD)) == (ABOUT, "miss")
        assert [each.message for each in caplog.records if "embedding" in each.message] == [
            "embeddings keep failing, and are left alone for a while: status 500"
        ]
        assert PASSWORD not in caplog.text
        await it.quiet()
        it.check_left()


async def test_an_answer_that_is_gone_leads_nowhere() -> None:
    async with semantic_setting() as it:
        told = await it.learn(PASSWORD, 12)
        assert told[-1] == "semantic"
        assert it.pipeline.responses is not None
        it.pipeline.responses.cache.forget()
        assert (await it.ask(it.again(PASSWORD)))[1] == "miss"
        await it.quiet()
        assert it.semantic.questions.stats().entries == 1  # the new one alone
        it.check_left()


# --- clients that leave, and several that ask at once


async def test_identical_requests_look_once_and_are_served_together() -> None:
    async with semantic_setting() as it:
        await it.learn(PASSWORD, 12)
        question, embedded, calls = it.again(PASSWORD), len(it.words.asked), it.worker.calls
        it.words.may.clear()
        strict = {"x-prefixgate-max-error": "0"}
        tasks = [asyncio.create_task(it.ask(question, stream=bool(n % 2))) for n in range(20)]
        await eventually(lambda: len(it.words.asked) > embedded)
        assert it.pipeline.responses is not None
        flights = it.pipeline.responses.flights
        await eventually(lambda: flights.table.waiting == 19)
        alone = asyncio.create_task(it.ask(question, headers=strict))
        await eventually(lambda: flights.table.waiting == 20)
        it.words.may.set()
        assert await asyncio.gather(*tasks) == [(ABOUT, "semantic")] * 20
        # Each answer counts; as does the one that was not served after all, to who came before it was decided.
        (_, policy), *_ = it.semantic.learners
        assert sum(told.served for told in policy.report().values()) >= 20
        assert await alone == (ABOUT, "miss")
        assert (it.worker.calls, len(it.words.asked)) == (calls + 1, embedded + 1)
        await it.quiet()
        it.check_left()


@pytest.mark.parametrize("served", [True, False])
async def test_who_leads_leaves_while_it_is_looked_for_and_the_others_get_an_answer(*, served: bool) -> None:
    async with semantic_setting() as it:
        await it.learn(PASSWORD, 12)
        question = it.again(PASSWORD) if served else INVOICE
        embedded, calls = len(it.words.asked), it.worker.calls
        it.words.may.clear()
        first = asyncio.create_task(it.ask(question))
        await eventually(lambda: len(it.words.asked) > embedded)
        others = [asyncio.create_task(it.ask(question)) for _ in range(3)]
        assert it.pipeline.responses is not None
        flights = it.pipeline.responses.flights
        await eventually(lambda: flights.table.waiting == 3)
        first.cancel()
        await eventually(lambda: len(it.gateway.server.background) == 1)
        it.words.may.set()
        assert await asyncio.gather(*others) == [(by_topic(question), "semantic" if served else "hit")] * 3
        assert it.worker.calls == calls + (not served)
        await it.quiet()
        it.check_left()


async def test_who_leaves_alone_leaves_nothing_and_the_worker_is_not_asked() -> None:
    async with semantic_setting() as it:
        it.words.may.clear()
        tasks = [asyncio.create_task(it.ask(PASSWORD))]
        await eventually(lambda: it.words.asked)
        tasks.append(asyncio.create_task(it.ask(PASSWORD)))
        assert it.pipeline.responses is not None
        flights = it.pipeline.responses.flights
        await eventually(lambda: flights.table.waiting == 1)
        for task in tasks:
            task.cancel()
            await asyncio.sleep(0.02)
        await eventually(lambda: not it.pipeline.live)
        it.words.may.set()
        await it.quiet()
        assert it.worker.calls == 0
        it.check_left()


async def test_those_who_waited_while_it_was_looked_for_get_the_stream_as_it_comes() -> None:
    async with semantic_setting() as it:
        it.words.may.clear()
        first = asyncio.create_task(it.ask(PASSWORD, stream=True))
        await eventually(lambda: it.words.asked)
        others = [asyncio.create_task(it.ask(PASSWORD, stream=bool(n))) for n in range(2)]
        assert it.pipeline.responses is not None
        flights = it.pipeline.responses.flights
        await eventually(lambda: flights.table.waiting == 2)
        it.words.may.set()
        assert await first == (ABOUT, "miss")
        assert await asyncio.gather(*others) == [(ABOUT, "hit")] * 2
        assert it.worker.calls == 1
        await it.quiet()
        it.check_left()


@pytest.mark.parametrize("seed", range(2))
async def test_however_clients_leave_nothing_is_left(seed: int) -> None:
    chance = random.Random(seed)
    async with semantic_setting() as it:
        await it.learn(PASSWORD, 10)
        it.worker.hold = True
        tasks: list[asyncio.Task[tuple[str, str | None]]] = []
        for _ in range(60):
            question = PASSWORD + " " * chance.randrange(4)
            tasks.append(asyncio.create_task(it.ask(question, stream=chance.random() < 0.5)))
            if chance.random() < 0.5:
                await asyncio.sleep(chance.random() * 0.01)
            if chance.random() < 0.3:
                chance.choice(tasks).cancel()
            if chance.random() < 0.3:
                it.worker.may.release()
            (it.words.may.clear if chance.random() < 0.5 else it.words.may.set)()
        it.words.may.set()
        it.worker.hold = False
        for _ in range(200):
            it.worker.may.release()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                assert (await task)[0] == ABOUT
        await eventually(lambda: not it.pipeline.live)
        await it.quiet()
        it.check_left()


# --- what is kept, and forgotten


async def test_questions_and_what_was_learnt_outlive_a_restart(tmp_path: Path) -> None:
    more = f"{EASY}, path: '{tmp_path / 'meanings'}'"
    disk = f", disk: {{path: '{tmp_path / 'answers'}', size: 64MiB}}"
    async with Words().running() as words:
        async with semantic_setting(more, cache=disk, words=words) as it:
            assert (await it.learn(PASSWORD, 12))[-1] == "semantic"
            assert it.semantic.questions.stats().file_bytes > 0
        async with semantic_setting(more, cache=disk, words=words) as it:
            assert await it.ask(PASSWORD + "   ") == (ABOUT, "semantic")
            assert it.worker.calls == 0
        (tmp_path / "meanings" / "evidence.msgpack").write_bytes(b"\xc1 nonsense")
        async with semantic_setting(more, cache=disk, words=words) as it:
            assert await it.ask(PASSWORD + "    ") == (ABOUT, "miss")  # all is to be learnt anew


async def test_a_folder_that_cannot_be_used_is_told_and_all_is_in_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    more = f"{EASY}, path: '{tmp_path}'"
    async with semantic_setting(more) as it, semantic_setting(more, words=it.words) as other:
        assert "semantic_cache.path cannot be used" in caplog.text
        assert (await other.learn(PASSWORD, 12))[-1] == "semantic"


async def test_forgetting_takes_questions_and_what_was_learnt() -> None:
    async with semantic_setting(extra=tenants("acme", "beta")) as it:
        for name in ("acme", "beta"):
            await it.learn(PASSWORD, 12, key=KEYS[name])
        tenancy = it.pipeline.tenancy
        assert tenancy is not None
        scope = tenancy.tenants["acme"].answers_scope

        async def forget(**more: Any) -> int:
            told = await asyncio.to_thread(it.semantic.forget, scope, **more)
            assert told.complete
            return told.entries[Tier.HOST]

        assert await forget(dry_run=True) == 1
        assert await forget(model="another") == 0
        assert await forget(older_than=3600) == 0
        assert (await it.ask(it.again(PASSWORD), key=KEYS["acme"]))[1] == "semantic"
        assert await forget(model="m") == 1
        assert (await it.ask(it.again(PASSWORD), key=KEYS["acme"]))[1] == "miss"
        await it.quiet()
        assert await forget(older_than=0) == 1
        await it.ask(it.again(PASSWORD), key=KEYS["acme"])
        await it.quiet()
        assert await forget(prefix="You are", older_than=3600) == 1  # which began so nobody knows
        assert await forget() == 0
        assert set(it.semantic.report()["tenants"]) == {"beta"}
        assert (await it.ask(it.again(PASSWORD), key=KEYS["beta"]))[1] == "semantic"


async def test_an_answer_that_is_fetched_anew_is_found_by_meaning_again() -> None:
    async with semantic_setting(cache=", ttl: 1ms, stale_while_revalidate: 60s") as it:
        await it.ask(PASSWORD)
        await it.quiet()
        await asyncio.sleep(0.01)
        assert (await it.ask(PASSWORD))[1] == "stale"
        await eventually(lambda: it.worker.calls == 2 and not it.pipeline.live)
        await it.quiet()
        assert it.pipeline.responses is not None
        settings = it.pipeline.responses.settings
        it.pipeline.responses.settings = replace(settings, rules=FreshnessRules(ttl=3600))
        assert (await it.ask(it.again(PASSWORD)))[1] == "miss"
        await it.quiet()
        assert it.semantic.lookups["learning"] == 1  # it was found, and the worker's answer compared with it
        it.check_left()


async def test_an_answer_too_old_to_be_served_by_meaning_makes_room_for_a_newer_one() -> None:
    async with semantic_setting(EASY + ", ttl: 300ms") as it:
        await it.learn(PASSWORD, 1)
        await asyncio.sleep(0.35)
        assert await it.learn(PASSWORD, 1) == ["miss"]
        assert it.semantic.lookups["expired"] == 1
        assert it.semantic.questions.stats().entries == 1
        assert await it.learn(PASSWORD, 1) == ["miss"]
        assert it.semantic.lookups["expired"] == 1
        assert it.semantic.lookups["learning"] == 1


async def test_however_many_give_up_what_waits_for_the_thread_is_bounded() -> None:
    async with semantic_setting() as it:
        questions, blocked = it.semantic.questions, threading.Event()
        questions._submit(blocked.wait)
        for _ in range(300):
            with suppress(TimeoutError, BusyError):
                async with asyncio.timeout(0):
                    await questions.flush()
        waiting = questions._executor._work_queue.qsize()
        blocked.set()
        assert waiting <= 256
        await it.quiet()


async def test_what_was_forgotten_while_it_was_being_written_is_not_written_last(tmp_path: Path) -> None:
    async with semantic_setting(f"{EASY}, path: '{tmp_path / 'meanings'}'") as it:
        assert (await it.learn(PASSWORD, 12))[-1] == "semantic"
        it.semantic._evidence = file = _SlowOnce(tmp_path / "meanings", it.semantic.batcher.name)
        saved = asyncio.create_task(it.semantic.save())
        await asyncio.to_thread(file.begun.wait)
        assert await it.semantic.forget_questions() == 1
        await saved
        assert file.read() == {}


class _SlowOnce(EvidenceFile):
    """The first to write is overtaken, if it can be."""

    def __init__(self, folder: Path, embedder: str) -> None:
        super().__init__(folder, embedder)
        self.begun = threading.Event()

    def write(self, learnt: list[tuple[Learner, Mapping[str, Any]]]) -> None:
        if not self.begun.is_set():
            self.begun.set()
            time.sleep(0.3)
        super().write(learnt)


async def test_what_was_asked_before_it_was_forgotten_is_not_added_after() -> None:
    async with semantic_setting() as it:
        it.worker.hold = True
        asked = asyncio.create_task(it.ask(PASSWORD))
        await eventually(lambda: it.worker.calls == 1)
        assert await it.semantic.forget_questions() == 0
        it.worker.may.release()
        assert (await asked)[0] == ABOUT
        await it.quiet()
        assert it.semantic.questions.stats().entries == 0


# --- the configuration


async def test_tenants_and_their_models_have_rules_of_their_own() -> None:
    who = tenants(
        "acme, cache: {semantic: {mode: shadow, delta: 0.1}}, "
        "per_model: [{name: m, cache: {semantic: {mode: 'on', ttl: 60s}}}]",
        "beta",
        "crew, cache: {semantic: {mode: 'on'}}",
    )
    async with semantic_setting(mode="off", extra=who) as it:
        for name in KEYS:
            await it.learn(PASSWORD, 1, key=KEYS[name])
        policies = {learner[:2]: policy.settings for learner, policy in it.semantic.learners}
        assert policies == {}
        for name in KEYS:
            await it.learn(PASSWORD, 1, key=KEYS[name])
        policies = {learner[:2]: policy.settings for learner, policy in it.semantic.learners}
        told = {who: (settings.delta, settings.ttl, settings.shadow) for who, settings in policies.items()}
        assert told == {("acme", "m"): (0.1, 60.0, False), ("crew", ""): (0.4, 86_400.0, False)}


async def test_what_was_learnt_of_tenants_that_are_no_more_is_forgotten() -> None:
    from gateway import semantic_assembly  # noqa: PLC0415 - of this test alone

    async with semantic_setting(extra=tenants("acme", "crew")) as it:
        for name in ("acme", "crew"):
            await it.learn(PASSWORD, 2, key=KEYS[name])
        assert {learner.tenant for learner, _ in it.semantic.learners} == {"acme", "crew"}
        left = config_for(["http://127.0.0.1:1"], tenants("acme"))
        semantic_assembly.configure(it.semantic, left)
        assert [learner.tenant for learner, _ in it.semantic.learners] == ["acme"]
        assert [learner.tenant for learner, _ in it.semantic.learners.snapshots()] == ["acme"]
        semantic_assembly.configure(it.semantic, config_for(["http://127.0.0.1:1"]))
        assert [*it.semantic.learners] == []


@pytest.mark.parametrize(
    ("sections", "problem"),
    [
        ("semantic_cache: {mode: on, embedding: {kind: minilm}}", "semantic_cache.mode: needs response_cache.mode: on"),
        ("response_cache: {mode: on}\nsemantic_cache: {mode: shadow}", "semantic_cache.embedding.kind: must be"),
        (
            "response_cache: {mode: on}\nsemantic_cache: {mode: on, embedding: {kind: http, url: 'http://a'}}",
            "semantic_cache.embedding.model: required where kind is http",
        ),
        (
            "response_cache: {mode: on, encryption_key: 'a key that is long enough, as it seems'}\n"
            "semantic_cache: {mode: on, embedding: {kind: minilm}, path: here}",
            "semantic_cache.path: must be left out",
        ),
    ],
)
def test_what_cannot_work_is_told(sections: str, problem: str) -> None:
    with pytest.raises(ConfigError) as error:
        config_for(["http://127.0.0.1:1"], sections)
    assert problem in str(error.value)


def test_without_its_libraries_the_program_runs_and_tells_what_is_missing() -> None:
    """Nothing of the gateway needs numpy but this."""
    script = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"numpy", "usearch", "torch", "threadpoolctl", "safetensors"}:
            raise ImportError(name, name=name)

sys.meta_path.insert(0, Missing())
import gateway.program
from gateway.config import ConfigError, parse_config
from gateway.semantic_assembly import open_semantic

for embedding in ("{kind: http, url: 'http://a/v1', model: m, dimensions: 4}", "{kind: minilm, folder: /}"):
    text = "workers: [{url: 'http://a:1'}]\\nresponse_cache: {mode: on}\\n"
    try:
        open_semantic(parse_config(text + "semantic_cache: {mode: on, embedding: %s}" % embedding))
    except ConfigError as error:
        print(error)
"""
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert told.stdout.count("pip install 'prefixgate[semantic]'") == 2


async def test_a_model_that_is_not_there_is_told(tmp_path: Path) -> None:
    from gateway.semantic_assembly import open_semantic  # noqa: PLC0415 - of this test alone

    sections = "response_cache: {mode: on}\nsemantic_cache: {mode: on, embedding: {kind: minilm, folder: '%s'}}\n"
    config: Config = config_for(["http://127.0.0.1:1"], sections % (tmp_path / "none"))
    with pytest.raises(ConfigError, match="prefixgate fetch minilm"):
        open_semantic(config)
