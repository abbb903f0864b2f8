"""The batcher: what is embedded together, who is waited for, and every way in which there is no vector."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from cache.embedding import Embedder, EmbeddingError, EmbeddingRefusedError
from cache.local_embedding import load_minilm
from gateway.embedding_batcher import MISSES, EmbeddingBatcher
from gateway.embedding_queue import Key, TextQueue
from gateway.embedding_thread import embed_each
from policies.tier_rest import TierRest
from tests.embedding_fixtures import write_bert
from tests.gateway_fixtures import eventually

LONG = 60.0


class Embeds:
    """An embedder that a test holds up and lets fail. A text's vector tells its length."""

    name = "embeds"
    dim = 2

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.go_on = threading.Event()
        self.go_on.set()
        self.trouble: Callable[[Sequence[str]], Exception | None] = lambda texts: None
        self.closed = 0
        self.threads = set[str]()

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.batches.append(list(texts))
        self.threads.add(threading.current_thread().name)
        assert self.go_on.wait(30)
        if (error := self.trouble(texts)) is not None:
            raise error
        return np.array([self.row(text) for text in texts], np.float32).reshape(len(texts), 2)

    @staticmethod
    def row(text: str) -> tuple[float, float]:
        return float(np.cos(len(text))), float(np.sin(len(text)))

    def close(self) -> None:
        self.closed += 1


@contextlib.asynccontextmanager
async def batching(embedder: Embeds, **settings: object) -> AsyncIterator[EmbeddingBatcher]:
    batcher = EmbeddingBatcher(embedder, **settings)  # type: ignore[arg-type]  # by name
    try:
        yield batcher
    finally:
        embedder.go_on.set()
        batcher.close()
        await eventually(lambda: not batcher.running and embedder.closed == 1)


def missed(batcher: EmbeddingBatcher) -> dict[str, int]:
    return {why: count for why, count in batcher.stats().misses.items() if count}


async def asked(
    batcher: EmbeddingBatcher, *texts: str, deadline_s: float = LONG, scope: str = ""
) -> list[asyncio.Task[object]]:
    """Tasks that ask, each of them as far as it gets."""
    tasks: list[asyncio.Task[object]] = [
        asyncio.create_task(batcher.embed(text, deadline_s, scope=scope)) for text in texts
    ]
    await asyncio.sleep(0)
    return tasks


async def held(batcher: EmbeddingBatcher, embedder: Embeds) -> list[asyncio.Task[object]]:
    """The thread is at a text that does not end."""
    embedder.go_on.clear()
    before = len(embedder.batches)
    tasks = await asked(batcher, "held", scope="holder")
    await eventually(lambda: len(embedder.batches) == before + 1)
    return tasks


async def test_texts_that_come_together_are_embedded_together_in_one_thread() -> None:
    embedder = Embeds()
    async with batching(embedder, max_batch=4) as batcher:
        assert not batcher.running
        rows = await asyncio.gather(*(batcher.embed("x" * at, LONG) for at in range(1, 7)))
        for at, row in enumerate(rows, 1):
            assert row is not None
            assert row.tolist() == pytest.approx(Embeds.row("x" * at))
            assert not row.flags.writeable
        assert embedder.batches == [["x", "xx", "xxx", "xxxx"], ["xxxxx", "xxxxxx"]]
        assert embedder.threads == {"embedding"}
        stats = batcher.stats()
        assert (stats.asked, stats.texts, stats.batches, stats.failed_batches, stats.waiting) == (6, 6, 2, 0, 0)
        assert stats.seconds > 0
        assert set(stats.misses) == set(MISSES)
        assert missed(batcher) == {}
        assert (batcher.name, batcher.dim) == ("embeds", 2)


async def test_the_loop_goes_on_while_a_text_is_embedded() -> None:
    embedder = Embeds()
    async with batching(embedder) as batcher:
        (task,) = await held(batcher, embedder)
        for _ in range(10):
            await asyncio.sleep(0)
        assert not task.done()
        embedder.go_on.set()
        assert await task is not None


async def test_equal_texts_are_embedded_once_and_remembered() -> None:
    embedder = Embeds()
    async with batching(embedder) as batcher:
        rows = await asyncio.gather(*(batcher.embed("fox", LONG) for _ in range(5)))
        assert all(row is rows[0] for row in rows)
        assert await batcher.embed("fox", 0.0) is rows[0]
        assert embedder.batches == [["fox"]]
        assert batcher.stats().remembered == 1


async def test_who_comes_while_his_text_is_embedded_gets_that_vector() -> None:
    embedder = Embeds()
    async with batching(embedder, remembered=0) as batcher:
        embedder.go_on.clear()
        first = await asked(batcher, "fox")
        await eventually(lambda: embedder.batches == [["fox"]])
        second = await asked(batcher, "fox")
        embedder.go_on.set()
        one, other = await asyncio.gather(*first, *second)
        assert one is not None
        assert one is other
        assert embedder.batches == [["fox"]]


async def test_what_is_forgotten_while_it_is_embedded_is_not_remembered() -> None:
    embedder = Embeds()
    async with batching(embedder) as batcher:
        (task,) = await held(batcher, embedder)
        batcher.forget()
        embedder.go_on.set()
        assert await task is not None
        for _ in range(2):
            assert await batcher.embed("held", LONG, scope="holder") is not None
        assert embedder.batches == [["held"]] * 2


async def test_scopes_share_nothing() -> None:
    embedder = Embeds()
    async with batching(embedder, max_batch=1) as batcher:
        await asyncio.gather(*(batcher.embed("fox", LONG, scope=scope) for scope in ("a", "b", "a")))
        assert embedder.batches == [["fox"], ["fox"]]
        assert await batcher.embed("fox", LONG, scope="c") is not None
        assert len(embedder.batches) == 3


async def test_few_vectors_are_remembered_those_used_last() -> None:
    embedder = Embeds()
    async with batching(embedder, remembered=2) as batcher:
        for text in ("a", "b", "a", "c", "a", "b"):
            assert await batcher.embed(text, LONG) is not None
        assert embedder.batches == [["a"], ["b"], ["c"], ["b"]]


async def test_a_full_queue_is_a_miss() -> None:
    embedder = Embeds()
    async with batching(embedder, max_waiting=2) as batcher:
        holding = await held(batcher, embedder)
        waiting = await asked(batcher, "a", "b")
        assert batcher.stats().waiting == 2
        assert await batcher.embed("c", LONG) is None
        assert missed(batcher) == {"full": 1}
        more = await asked(batcher, "b")  # needs no place of its own
        embedder.go_on.set()
        rows = await asyncio.gather(*holding, *waiting, *more)
        assert all(row is not None for row in rows)
        assert embedder.batches == [["held"], ["a", "b"]]


async def test_who_fills_the_queue_makes_room_for_others() -> None:
    embedder = Embeds()
    async with batching(embedder, max_waiting=3, max_batch=2) as batcher:
        holding = await held(batcher, embedder)
        greedy = await asked(batcher, "a", "b", "c", scope="greedy")
        modest = await asked(batcher, "m", scope="modest")
        assert await greedy[2] is None
        assert missed(batcher) == {"full": 1}
        assert await batcher.embed("n", LONG, scope="modest") is None, "the greedy one has only one more now"
        embedder.go_on.set()
        await asyncio.gather(*holding, *greedy, *modest)
        assert embedder.batches == [["held"], ["a", "m"], ["b"]]


async def test_a_deadline_is_a_miss_and_the_text_is_not_embedded() -> None:
    embedder = Embeds()
    async with batching(embedder) as batcher:
        holding = await held(batcher, embedder)
        assert await batcher.embed("late", 0.02) is None
        assert await batcher.embed("too late", 0.0) is None
        assert batcher.stats().waiting == 0
        embedder.go_on.set()
        assert (await asyncio.gather(*holding))[0] is not None
        assert embedder.batches == [["held"]]
        assert missed(batcher) == {"late": 2}


async def test_a_text_whose_time_has_passed_when_its_turn_comes_is_skipped() -> None:
    embedder = Embeds()
    async with batching(embedder, gather_s=0.02) as batcher:
        tasks = await asked(batcher, "late", deadline_s=0.01)
        time.sleep(0.03)  # noqa: ASYNC251 - the loop is busy: both times have passed when it looks again
        assert await tasks[0] is None
        assert missed(batcher) == {"late": 1}
        assert await batcher.embed("fine", LONG) is not None
        assert embedder.batches == [["fine"]]


async def test_what_was_begun_too_late_is_remembered_for_the_next() -> None:
    embedder = Embeds()
    async with batching(embedder) as batcher:
        embedder.go_on.clear()
        assert await batcher.embed("slow", 0.05) is None
        assert embedder.batches == [["slow"]]
        embedder.go_on.set()
        await eventually(lambda: batcher.stats().texts == 1)
        assert await batcher.embed("slow", 0.0) is not None


async def test_one_who_is_cancelled_gives_his_place_back() -> None:
    embedder = Embeds()
    async with batching(embedder, max_waiting=1) as batcher:
        holding = await held(batcher, embedder)
        (gone,) = await asked(batcher, "gone")
        (also,) = await asked(batcher, "gone")
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        assert batcher.stats().waiting == 1, "somebody else waits for it"
        also.cancel()
        with pytest.raises(asyncio.CancelledError):
            await also
        assert batcher.stats().waiting == 0
        stays = await asked(batcher, "stays")
        embedder.go_on.set()
        await asyncio.gather(*holding, *stays)
        assert embedder.batches == [["held"], ["stays"]]
        assert missed(batcher) == {}


async def test_whoever_leaves_while_his_text_is_embedded_does_no_harm() -> None:
    embedder = Embeds()
    async with batching(embedder) as batcher:
        (gone,) = await held(batcher, embedder)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        embedder.go_on.set()
        assert await batcher.embed("next", LONG) is not None
        assert embedder.batches == [["held"], ["next"]]


async def test_a_long_text_is_a_miss() -> None:
    embedder = Embeds()
    async with batching(embedder, max_chars=5) as batcher:
        assert await batcher.embed("123456", LONG) is None
        assert await batcher.embed("12345", LONG) is not None
        assert missed(batcher) == {"long": 1}


async def test_one_refused_text_does_not_spoil_its_neighbours() -> None:
    embedder = Embeds()
    embedder.trouble = lambda texts: EmbeddingRefusedError("no") if "bad" in texts else None
    async with batching(embedder, rest=TierRest(after=1, first_s=60)) as batcher:
        rows = await asyncio.gather(*(batcher.embed(text, LONG) for text in ("a", "bad", "b")))
        assert [row is None for row in rows] == [False, True, False]
        assert embedder.batches == [["a", "bad", "b"], ["a"], ["bad"], ["b"]]
        assert await batcher.embed("bad", LONG) is None
        assert embedder.batches[4:] == [["bad"]]
        assert missed(batcher) == {"refused": 2}
        assert await batcher.embed("c", LONG) is not None, "it is no reason to rest"
        assert batcher.stats().failed_batches == 0


async def test_failures_rest_and_each_change_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gateway.embedding_batcher")
    embedder = Embeds()
    embedder.trouble = lambda texts: EmbeddingError("status 500")
    async with batching(embedder, rest=TierRest(after=2, first_s=60)) as batcher:
        for text in ("secret a", "secret b", "secret c"):
            assert await batcher.embed(text, LONG) is None
        assert missed(batcher) == {"failed": 2, "resting": 1}
        assert len(embedder.batches) == 2
        embedder.trouble = lambda texts: None

        batcher._rest._until = 0.0
        assert await batcher.embed("d", LONG) is not None
        assert embedder.batches[2:] == [["d"]], "nothing was tried while it rested"
        assert batcher.stats().failed_batches == 2
    assert caplog.messages == [
        "embeddings keep failing, and are left alone for a while: status 500",
        "embeddings are to be had again",
    ]


async def test_whoever_waits_when_a_rest_begins_is_told_at_once(caplog: pytest.LogCaptureFixture) -> None:
    embedder = Embeds()
    embedder.trouble = lambda texts: RuntimeError(f"it quotes {texts[0]}")
    async with batching(embedder, rest=TierRest(after=1, first_s=60)) as batcher:
        holding = await held(batcher, embedder)
        waiting = await asked(batcher, "a", "b")
        embedder.go_on.set()
        assert await asyncio.gather(*holding, *waiting) == [None, None, None]
        assert missed(batcher) == {"failed": 1, "resting": 2}
        assert batcher.stats().waiting == 0
    assert caplog.messages == ["embeddings keep failing, and are left alone for a while: RuntimeError"]


async def test_closing_is_a_miss_for_all() -> None:
    embedder = Embeds()
    async with batching(embedder) as batcher:
        holding = await held(batcher, embedder)
        waiting = await asked(batcher, "a")
        batcher.close()
        assert await asyncio.gather(*holding, *waiting) == [None, None]
        assert await batcher.embed("b", LONG) is None
        assert missed(batcher) == {"closed": 3}
        assert embedder.closed == 0, "it is still at work"
    assert embedder.batches == [["held"]]


async def test_one_that_was_never_asked_is_closed_at_once() -> None:
    embedder = Embeds()
    batcher = EmbeddingBatcher(embedder)
    batcher.close()
    batcher.close()
    assert embedder.closed == 1
    assert not batcher.running


def test_a_loop_that_has_ended_does_no_harm() -> None:
    embedder = Embeds()
    embedder.go_on.clear()
    batchers: list[EmbeddingBatcher] = []

    async def begin() -> None:
        batchers.append(EmbeddingBatcher(embedder))
        assert await batchers[0].embed("fox", 0.05) is None

    asyncio.run(begin())
    embedder.go_on.set()
    batchers[0].close()
    for _ in range(1000):
        if embedder.closed:
            break
        threading.Event().wait(0.01)
    assert embedder.closed == 1


@pytest.mark.parametrize("shape", [(1, 2), (3, 2), (2, 3), (2,)])
def test_an_embedder_that_breaks_its_word_has_failed(shape: tuple[int, ...]) -> None:
    class Wrong(Embeds):
        def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
            return np.ones(shape, np.float32)

    rows, error = embed_each(Wrong(), ["a", "b"])
    assert rows == [None, None]
    assert isinstance(error, EmbeddingError)


@pytest.mark.parametrize(
    ("texts", "had", "fails"),
    [
        ("ab", "b", False),
        ("aa", "", False),
        ("bcb", "b", True),
        ("cab", "", True),
        ("bacb", "b", True),
        ("a", "", False),
    ],
)
def test_what_fails_while_texts_are_asked_one_by_one_keeps_what_was_had(texts: str, had: str, fails: bool) -> None:
    embedder, refused, down = Embeds(), EmbeddingRefusedError("no"), EmbeddingError("down")
    embedder.trouble = lambda some: {"a": refused, "b": None, "c": down}[some[0]] if len(some) == 1 else refused
    rows, error = embed_each(embedder, list(texts))
    assert len(rows) == len(texts)
    assert "".join(text for text, row in zip(texts, rows, strict=True) if row is not None) == had
    assert error is (down if fails else None)


async def test_with_the_model_itself(tmp_path: Path) -> None:
    model: Embedder = load_minilm(write_bert(tmp_path), "numpy")
    batcher = EmbeddingBatcher(model, niceness=1)
    try:
        texts = [f"the fox number {number}" for number in range(20)]
        rows = await asyncio.gather(*(batcher.embed(text, LONG) for text in texts))
        for row, expected in zip(rows, model.embed(texts), strict=True):
            assert row is not None
            assert np.abs(row - expected).max() < 1e-5
        assert batcher.stats().batches < len(texts)
        assert await batcher.embed("lone \ud800", LONG) is None
        assert missed(batcher) == {"refused": 1}
    finally:
        batcher.close()
        await eventually(lambda: not batcher.running)


# --- the queue, against a plain list -----------------------------------------------------------------------

STEPS = st.lists(
    st.tuples(st.sampled_from(["add", "remove", "pop"]), st.integers(0, 3), st.integers(0, 5)), max_size=60
)


@given(STEPS, st.integers(0, 6))
def test_the_queue_is_a_plain_list_in_turns(steps: list[tuple[str, int, int]], most: int) -> None:
    queue = TextQueue[str](most)
    plain: OrderedDict[int, list[int]] = OrderedDict()
    for step, scope, text in steps:
        key = Key.of(str(scope), str(text))
        mine = plain.get(scope, [])
        if step == "add":
            if text in mine:
                assert queue.get(key) == f"{scope} {text}"
                continue
            expected: tuple[bool, str | None] = True, None
            if sum(map(len, plain.values())) >= most:
                longest = max(plain, key=lambda each: len(plain[each]), default=None)
                if longest is None or len(plain[longest]) < len(mine) + 2:
                    expected = False, None
                else:
                    expected = True, f"{longest} {plain[longest].pop()}"
            assert queue.add(key, f"{scope} {text}") == expected
            if expected[0]:
                plain.setdefault(scope, []).append(text)
        elif step == "remove":
            assert queue.remove(key) == (f"{scope} {text}" if text in mine else None)
            if text in mine:
                mine.remove(text)
        else:
            turn = next(iter(plain), None)
            assert queue.pop() == (None if turn is None else f"{turn} {plain[turn].pop(0)}")
            if turn is not None:
                plain.move_to_end(turn)
        for name in [name for name, texts in plain.items() if not texts]:
            del plain[name]
        assert len(queue) == sum(map(len, plain.values())) <= most
