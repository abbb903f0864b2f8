"""From requests to block hashes: what is waited for, what is not, and what shares nothing."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor

import aiohttp
import pytest

from backends.simulated.model_text import EMBEDDED_TOKENIZER
from cache.block_hash import ChainKey, extend_chain, root_hash
from cache.prefix_index import PrefixIndex
from cache.prompt_blocks import PromptBlockCache
from cache.tokenizer import Tokenizer
from gateway.calls import Call
from gateway.prompts import PromptReader, ReadingLimits
from gateway.routes import Kind
from policies.types import WorkerId
from tests.gateway_fixtures import MODEL, simulated_gateway

WORDS = (EMBEDDED_TOKENIZER / "words.txt").read_text().split()
TOKENIZER = Tokenizer.load(EMBEDDED_TOKENIZER)
WORKER = WorkerId("w0")


def words(n: int, seed: int) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=n))


def chat(*contents: str, **fields: object) -> Call:
    messages = [{"role": "user" if i % 2 == 0 else "assistant", "content": text} for i, text in enumerate(contents)]
    return Call(Kind.CHAT, MODEL, True, {"messages": messages, **fields})


def truth(call: Call, *, salt: str = "", adapter: str = "") -> list[int]:
    """The chain of the whole prompt, tokenized from scratch."""
    ids = TOKENIZER.encode(TOKENIZER.render_chat(call.fields), add_special_tokens=False)
    return list(extend_chain(root_hash(ChainKey(MODEL, 16, adapter=adapter, salt=salt)), ids, 16))


@pytest.fixture
def index() -> PrefixIndex:
    index = PrefixIndex(max_blocks=100_000)
    index.add_worker(WORKER, model=MODEL, block_size=16)
    return index


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as executor:
        yield executor


@pytest.fixture
def reader(index: PrefixIndex, executor: ThreadPoolExecutor) -> PromptReader:
    cache = PromptBlockCache(TOKENIZER, max_bytes=1 << 24)
    return PromptReader(
        MODEL, TOKENIZER, cache, index=index, executor=executor, limits=ReadingLimits(inline_chars=8_000)
    )


def test_a_short_prompt_is_known_at_once(reader: PromptReader) -> None:
    call = chat(words(300, 1))
    view = reader.read(call, adapter="", block_sizes=(16,), longest=None)
    assert list(view.blocks[16].hashes) == truth(call)
    assert view.tokens == view.blocks[16].n_tokens
    assert not view.rest


def test_a_long_prompt_that_nobody_holds_is_not_waited_for(reader: PromptReader) -> None:
    call = chat(words(8_000, 2))
    view = reader.read(call, adapter="", block_sizes=(16,), longest=None)
    assert view.rest
    assert not view.matters, "no worker holds its head, so no further token can lengthen a match"
    known = list(view.blocks[16].hashes)
    assert 0 < len(known) < len(truth(call))
    assert known == truth(call)[: len(known)]
    assert abs(view.tokens - 8_000) < 3_000, "the rest is guessed from its length"


async def test_a_long_prompt_whose_head_is_held_is_worth_waiting_for(reader: PromptReader, index: PrefixIndex) -> None:
    call = chat(words(8_000, 2))
    chain = truth(call)
    index.predict(WORKER, chain[:400], start=0, now=0.0, ttl=60.0)  # type: ignore[arg-type]  # plain ints
    view = reader.read(call, adapter="", block_sizes=(16,), longest=None)
    assert view.matters
    done = asyncio.Event()
    assert reader.resolve(view, done.set)
    await asyncio.wait_for(done.wait(), 10)
    assert list(view.blocks[16].hashes) == chain
    assert index.match(view.blocks[16].hashes) == {WORKER: 400}
    again = reader.read(call, adapter="", block_sizes=(16,), longest=None)
    assert not again.rest, "text seen before is not tokenized again"


async def test_too_many_tails_at_once_are_not_begun(reader: PromptReader, executor: ThreadPoolExecutor) -> None:
    stuck = threading.Event()
    executor.submit(stuck.wait)
    try:
        views = [
            reader.read(chat(words(4_000, 100 + i)), adapter="", block_sizes=(16,), longest=None) for i in range(70)
        ]
        begun = [reader.resolve(view, lambda: None) for view in views]
        assert begun == [True] * 64 + [False] * 6
    finally:
        stuck.set()


def test_a_prompt_that_no_worker_can_hold_is_not_tokenized(reader: PromptReader) -> None:
    text = words(40_000, 3)
    longest = len(text) // TOKENIZER.longest_token_chars - 10
    view = reader.read(chat(text), adapter="", block_sizes=(16,), longest=longest)
    assert not view.blocks
    assert not view.rest
    assert view.tokens > 10_000


def test_salt_adapter_model_and_images_share_nothing(reader: PromptReader) -> None:
    text = words(200, 4)
    plain = reader.read(chat(text), adapter="", block_sizes=(16,), longest=None)
    salted = reader.read(chat(text, cache_salt="s"), adapter="", block_sizes=(16,), longest=None)
    adapted = reader.read(chat(text), adapter="lora", block_sizes=(16,), longest=None)
    assert list(salted.blocks[16].hashes) == truth(chat(text), salt="s")
    assert list(adapted.blocks[16].hashes) == truth(chat(text), adapter="lora")
    chains: list[set[object]] = [set(view.blocks[16].hashes) for view in (plain, salted, adapted)]
    assert len(set.union(*chains)) == sum(map(len, chains))
    view = reader.read(with_image(text, "data:AAAA"), adapter="", block_sizes=(16,), longest=None)
    assert not set(view.blocks[16].hashes) & set.union(*chains)


def with_image(text: str, url: str) -> Call:
    image = {"type": "image_url", "image_url": {"url": url}}
    content = [{"type": "text", "text": text}, image]
    return Call(Kind.CHAT, MODEL, True, {"messages": [{"role": "user", "content": content}]})


def test_equal_images_meet_and_other_ones_do_not(reader: PromptReader) -> None:
    text = words(200, 8)
    views = [
        reader.read(with_image(text, url), adapter="", block_sizes=(16,), longest=None)
        for url in ("data:AAAA", "data:AAAA", "data:BBBB")
    ]
    chains = [list(view.blocks[16].hashes) for view in views]
    assert chains[0] == chains[1]
    assert not set(chains[0]) & set(chains[2])
    assert not any(view.confirmable for view in views), "no engine's events will speak of them"


def test_too_much_is_not_read_at_all(reader: PromptReader) -> None:
    many = Call(Kind.CHAT, MODEL, True, {"messages": [{"role": "user", "content": "x"}] * 2_001})
    long = chat("word " * 900_000)
    for call in (many, long):
        view = reader.read(call, adapter="", block_sizes=(16,), longest=None)
        assert not view.blocks
        assert not view.rest
    ids = Call(Kind.COMPLETION, MODEL, False, {"prompt": [1] * 5_000})
    assert not reader.read(ids, adapter="", block_sizes=(16,), longest=4_999).blocks
    assert reader.read(ids, adapter="", block_sizes=(16,), longest=5_000).blocks


def test_a_batch_counts_with_all_its_prompts(reader: PromptReader) -> None:
    prompts = [words(1_000, seed) for seed in range(8)]
    call = Call(Kind.COMPLETION, MODEL, False, {"prompt": prompts})
    view = reader.read(call, adapter="", block_sizes=(16,), longest=None)
    assert 7_500 < view.tokens < 8_500
    assert call.is_batch


def test_every_block_size_has_its_chain(reader: PromptReader) -> None:
    view = reader.read(chat(words(300, 5)), adapter="", block_sizes=(16, 64), longest=None)
    assert len(view.blocks[16].hashes) == view.tokens // 16
    assert len(view.blocks[64].hashes) == view.tokens // 64


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("a b c d " * 40, True),
        (["a b c d " * 40, "another"], True),
        (list(range(100)), True),
        ([list(range(100)), [1, 2]], True),
        ("", False),
        ([], False),
        (None, False),
        ([1, -2], False),
        ([1, "x"], False),
        ([1, 2**40], False),
        ({"a": 1}, False),
    ],
)
def test_completions_in_every_form(reader: PromptReader, prompt: object, expected: bool) -> None:
    call = Call(Kind.COMPLETION, MODEL, False, {"prompt": prompt})
    view = reader.read(call, adapter="", block_sizes=(16,), longest=None)
    assert bool(view.blocks and view.blocks[16].hashes) is expected
    assert view.tokens >= 1


def test_token_ids_hash_as_the_text_does(reader: PromptReader) -> None:
    text = words(100, 6)
    ids = TOKENIZER.encode(text, add_special_tokens=True)
    numbers = [int.from_bytes(ids[i : i + 4], "little") for i in range(0, len(ids), 4)]
    by_text = reader.read(
        Call(Kind.COMPLETION, MODEL, False, {"prompt": text}), adapter="", block_sizes=(16,), longest=None
    )
    by_ids = reader.read(
        Call(Kind.COMPLETION, MODEL, False, {"prompt": numbers}), adapter="", block_sizes=(16,), longest=None
    )
    assert list(by_text.blocks[16].hashes) == list(by_ids.blocks[16].hashes)


@pytest.fixture
async def four() -> AsyncIterator[str]:
    async with simulated_gateway(4, extra="tokens: {inline_chars: 4000, wait: 5s}") as (url, _):
        yield url


async def test_long_prompts_go_where_their_prefix_is(four: str) -> None:
    """The second of two long prompts with a long common head waits for its tokens and lands on the same worker."""
    async with aiohttp.ClientSession() as session:

        async def ask(content: str) -> tuple[str, int]:
            body = {"model": MODEL, "messages": [{"role": "user", "content": content}], "max_tokens": 2}
            async with session.post(four + "/v1/chat/completions", json=body) as response:
                usage = (await response.json())["usage"]
                return response.headers["x-worker"], usage["prompt_tokens_details"]["cached_tokens"]

        for seed in range(3):
            head = words(3_000, 50 + seed)
            first, _ = await ask(head + " one")
            second, cached = await ask(head + " " + words(1_500, 90 + seed))
            assert second == first
            assert cached > 2_500
