"""Models without a known tokenizer: conversations follow their worker by their text, or by ids that workers tell."""

from __future__ import annotations

import asyncio
import gc
import random
import tracemalloc
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.remote_tokenizer import RemoteTokenizer, TokenizeTarget
from backends.simulated.fleet import FleetConfig, SimulatedFleet
from backends.simulated.model_text import EMBEDDED_TOKENIZER
from cache.block_hash import ChainKey, extend_chain, root_hash
from cache.prefix_index import PrefixIndex
from cache.text_blocks import TextBytes
from cache.tokenizer import Tokenizer
from gateway.calls import Call
from gateway.prompts import PromptView, Reader, ReadingLimits
from gateway.reader_table import AutoReader, ReaderTable, make_reader
from gateway.routes import Kind
from gateway.text_prompts import TextReader
from gateway.token_memory import TokenMemory, common_tokens
from policies.routing import PredictedCost, Prompt, WorkerView
from policies.types import TokenIds, WorkerId
from tests.gateway_fixtures import MODEL, model_text

WORDS = (EMBEDDED_TOKENIZER / "words.txt").read_text().split()
TOKENIZER = Tokenizer.load(EMBEDDED_TOKENIZER)
LIMITS = ReadingLimits()
WORKERS = tuple(WorkerId(f"w{i}") for i in range(4))


def words(n: int, seed: int) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=n))


def message(role: str, content: object) -> dict[str, object]:
    return {"role": role, "content": content}


def chat(messages: Sequence[object], **fields: object) -> Call:
    return Call(Kind.CHAT, MODEL, True, {"model": MODEL, "messages": list(messages), **fields})


def completion(prompt: object, **fields: object) -> Call:
    return Call(Kind.COMPLETION, MODEL, False, {"model": MODEL, "prompt": prompt, **fields})


@dataclass
class Router:
    """What the pipeline does with a view, without its sockets: match, choose, predict."""

    reader: Reader
    index: PrefixIndex = field(default_factory=lambda: PrefixIndex(max_blocks=100_000))
    policy: PredictedCost = field(default_factory=PredictedCost)
    sample: random.Random = field(default_factory=lambda: random.Random(1))

    def __post_init__(self) -> None:
        for worker in WORKERS:
            self.index.add_worker(worker, model=MODEL, block_size=16)

    def route(self, call: Call, *, adapter: str = "") -> tuple[WorkerId, int, PromptView]:
        """The worker chosen, tokens thought to be cached there, and the view."""
        view = self.reader.read(call, adapter=adapter, block_sizes=(16,), longest=None)
        return (*self.choose(view), view)

    def choose(self, view: PromptView) -> tuple[WorkerId, int]:
        hashes = view.blocks[16].hashes if view.blocks else []
        cached = {worker: depth * 16 for worker, depth in self.index.match(hashes).items()}
        views = [WorkerView(worker, 0, 0.0, None) for worker in WORKERS]
        decision = self.policy.choose(Prompt(view.tokens, cached), views, self.sample.random())
        worker = WORKERS[decision.chosen]
        if hashes:
            self.index.predict(worker, hashes, start=0, now=0.0, ttl=300.0)
        return worker, decision.cached_tokens


# --- text alone --------------------------------------------------------------------------------------------


@pytest.fixture
def router() -> Router:
    return Router(TextReader(MODEL, limits=LIMITS))


def test_conversations_follow_their_worker_turn_by_turn(router: Router) -> None:
    """Eight at once, on chat and completion routes; each turn but the first is known up to the turn before."""
    talks: list[list[object]] = [[message("system", words(20, i))] for i in range(8)]
    texts = [words(200, 100 + i) for i in range(8)]
    homes: dict[str, WorkerId] = {}
    sizes: dict[str, int] = {}
    for turn in range(6):
        for i in range(8):
            talks[i].append(message("user", words(120, 1000 * turn + i)))
            texts[i] += " " + words(120, 5000 * turn + i)
            for name, call in ((f"chat {i}", chat(talks[i])), (f"text {i}", completion(texts[i]))):
                worker, cached, view = router.route(call)
                assert worker == homes.setdefault(name, worker)
                assert cached >= sizes.get(name, 0) // 16 * 16 - 16
                sizes[name] = view.tokens
            talks[i].append(message("assistant", words(60, 2000 * turn + i)))
    assert len(set(homes.values())) > 1, "they did not all go to one"


@pytest.mark.parametrize(
    ("fields", "adapter"),
    [({"cache_salt": "tenant"}, ""), ({}, "lora"), ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "")],
    ids=["salt", "adapter", "tools"],
)
def test_other_chains(router: Router, fields: dict[str, object], adapter: str) -> None:
    talk = [message("user", words(300, 1))]
    plain = router.route(chat(talk))[2]
    other = router.route(chat(talk, **fields), adapter=adapter)[2]
    assert len(other.blocks[16].hashes) >= len(plain.blocks[16].hashes) > 30
    assert not set(plain.blocks[16].hashes) & set(other.blocks[16].hashes)


def test_another_model_is_another_chain() -> None:
    call = chat([message("user", words(300, 1))])
    views = [
        TextReader(name, limits=LIMITS).read(call, adapter="", block_sizes=(16,), longest=None) for name in ("a", "b")
    ]
    assert not set(views[0].blocks[16].hashes) & set(views[1].blocks[16].hashes)


def test_what_stands_before_an_image_is_shared(router: Router) -> None:
    def with_image(url: str) -> Call:
        parts = [
            {"type": "text", "text": words(300, 2)},
            {"type": "image_url", "image_url": {"url": url}},
            {"type": "text", "text": words(300, 3)},
        ]
        return chat([message("user", parts)])

    first, again, other = (router.route(with_image(url))[2].blocks[16].hashes for url in ("data:A", "data:A", "data:B"))
    assert list(first) == list(again)
    same = [a == b for a, b in zip(first, other, strict=True)]
    assert 0.4 < sum(same) / len(same) < 0.6
    assert same == sorted(same, reverse=True)


def test_lengths_are_about_right_and_nothing_waits(router: Router) -> None:
    text = words(2000, 4)
    ids = TOKENIZER.encode(text, add_special_tokens=False)
    view = router.route(completion(text))[2]
    assert 0.5 < view.tokens / (len(ids) // 4) < 2
    assert (view.rest, view.matters, view.confirmable) == ((), False, False)
    assert not router.reader.resolve(view, lambda: None)
    batch = router.route(completion([text] * 4))[2]
    assert batch.tokens == pytest.approx(4 * view.tokens, rel=0.01)


def test_prompts_of_ids_are_chained_as_tokens(router: Router) -> None:
    view = router.route(completion(list(range(100))))[2]
    ids = TokenIds(b"".join(i.to_bytes(4, "little") for i in range(100)))
    assert list(view.blocks[16].hashes) == list(extend_chain(root_hash(ChainKey(MODEL, 16)), ids, 16))
    assert view.confirmable
    assert view.tokens == 100
    assert not router.reader.read(completion(list(range(100))), adapter="", block_sizes=(16,), longest=99).blocks


def test_every_dialects_way_to_write_a_chat(router: Router) -> None:
    text = words(300, 5)
    plain = router.route(chat([message("system", "be brief"), message("user", text)]))[2]
    anthropic = Call(Kind.MESSAGES, MODEL, True, {"system": "be brief", "messages": [message("user", text)]})
    responses = Call(Kind.RESPONSES, MODEL, True, {"instructions": "be brief", "input": text})
    for call in (anthropic, responses):
        view = router.route(call)[2]
        assert list(view.blocks[16].hashes) == list(plain.blocks[16].hashes)


@pytest.mark.parametrize(
    "call",
    [
        chat([]),
        Call(Kind.CHAT, MODEL, True, {}),
        Call(Kind.CHAT, MODEL, True, {"messages": 5}),
        Call(Kind.MESSAGES, MODEL, True, {"messages": []}),
        Call(Kind.RESPONSES, MODEL, True, {"input": []}),
        Call(Kind.RESPONSES, MODEL, True, {"messages": [message("user", "x" * 999)]}),
        Call(Kind.EMBEDDING, MODEL, False, {"input": "a " * 500}),
        completion(""),
        completion(None),
        chat([message("user", "x")] * 2001),
        completion("x" * 4_000_001),
    ],
    ids=[
        "no messages",
        "none",
        "a number",
        "no turns",
        "no items",
        "no input",
        "embedding",
        "empty",
        "null",
        "many",
        "long",
    ],
)
def test_what_is_not_read(router: Router, call: Call) -> None:
    view = router.reader.read(call, adapter="", block_sizes=(16,), longest=None)
    assert not view.blocks
    assert view.tokens >= 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(JSON, JSON, JSON)
def test_no_body_raises(messages: object, prompt: object, system: object) -> None:
    reader = TextReader(MODEL, limits=LIMITS)
    fields = {"messages": messages, "prompt": prompt, "system": system, "input": prompt, "cache_salt": system}
    for kind in (Kind.CHAT, Kind.COMPLETION, Kind.MESSAGES, Kind.RESPONSES, Kind.EMBEDDING):
        view = reader.read(Call(kind, MODEL, False, dict(fields)), adapter="", block_sizes=(16, 32), longest=None)
        assert view.tokens >= 1


def test_what_is_beside_the_messages_counts_too() -> None:
    reader = TextReader(MODEL, limits=ReadingLimits(max_chars=10_000))
    talk = [message("user", words(50, 1))]
    calls = [message("assistant", None) | {"tool_calls": ["x" * 1_000] * 12}]
    for call in (chat(talk, tools=["x" * 1_000] * 12), chat([*talk, *calls])):
        view = reader.read(call, adapter="", block_sizes=(16,), longest=None)
        assert not view.blocks, "the index is not filled by one request"
        assert view.tokens >= 1
    assert reader.read(chat(talk), adapter="", block_sizes=(16,), longest=None).blocks


# --- ids from the workers ----------------------------------------------------------------------------------


def truth(call: Call, *, salt: str = "", adapter: str = "") -> list[int]:
    """The chain that a worker's events would have."""
    if call.kind is Kind.COMPLETION:
        ids = TOKENIZER.encode(str(call.fields["prompt"]), add_special_tokens=True)
    else:
        ids = TOKENIZER.encode(TOKENIZER.render_chat(call.fields), add_special_tokens=False)
    return list(extend_chain(root_hash(ChainKey(MODEL, 16, adapter=adapter, salt=salt)), ids, 16))


@dataclass
class Remote:
    """A reader with a simulated worker that tokenizes."""

    reader: AutoReader
    index: PrefixIndex
    urls: list[str]
    events: bool = True

    async def known(self, call: Call) -> PromptView:
        """The view when all is known of it."""
        view = self.reader.read(call, adapter="", block_sizes=(16,), longest=None)
        if view.rest:
            done = asyncio.Event()
            assert self.reader.resolve(view, done.set)
            assert not done.is_set(), "never from within the call"
            async with asyncio.timeout(10):
                await done.wait()
        return view


@asynccontextmanager
async def remote_reader() -> AsyncIterator[Remote]:
    index = PrefixIndex(max_blocks=100_000)
    for worker in WORKERS:
        index.add_worker(worker, model=MODEL, block_size=16)
    async with SimulatedFleet(2, FleetConfig(model=MODEL), text=model_text()) as fleet:
        urls = list(fleet.urls)
        tokenizer = RemoteTokenizer(lambda _: [TokenizeTarget(WorkerId(url), url) for url in urls])
        it: Remote
        reader = make_reader(
            MODEL,
            remote=tokenizer,
            memory=TokenMemory(max_bytes=1 << 22),
            index=index,
            limits=LIMITS,
            has_events=lambda _: it.events,
            clock=asyncio.get_running_loop().time,
        )
        it = Remote(reader, index, urls)
        try:
            yield it
        finally:
            await reader.close()
            await tokenizer.close()


class Unshapely(Call):
    """A call that costs too much to be shaped as a chat."""

    @property
    def chat(self) -> Mapping[str, object]:
        raise AssertionError


async def test_what_is_too_much_to_read_is_not_shaped_either() -> None:
    async with remote_reader() as remote:
        items: list[object] = [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}]
        call = Unshapely(Kind.RESPONSES, MODEL, False, {"input": items * (LIMITS.max_messages + 1)})
        view = remote.reader.read(call, adapter="", block_sizes=(16,), longest=None)
        assert not view.blocks
        assert not view.rest


async def test_ids_from_a_worker_make_the_chain_of_its_events() -> None:
    async with remote_reader() as remote:
        talk: list[object] = [message("system", words(50, 1)), message("user", words(300, 2))]
        for call in (chat(talk), completion(words(400, 3)), chat(talk, cache_salt="s")):
            view = await remote.known(call)
            salt = str(call.fields.get("cache_salt", ""))
            assert list(view.blocks[16].hashes) == truth(call, salt=salt)
            assert view.tokens == view.blocks[16].n_tokens
            assert view.confirmable
            again = remote.reader.read(call, adapter="", block_sizes=(16,), longest=None)
            assert not again.rest, "it is remembered"
            assert list(again.blocks[16].hashes) == truth(call, salt=salt)


async def test_a_growing_conversation_is_known_but_for_its_last_turn() -> None:
    async with remote_reader() as remote:
        talk: list[object] = [message("system", words(200, 1))]
        before = 0
        for turn in range(5):
            talk.append(message("user", words(300, 10 + turn)))
            call = chat(talk)
            chain = truth(call)
            view = remote.reader.read(call, adapter="", block_sizes=(16,), longest=None)
            known = list(view.blocks[16].hashes)
            assert known == chain[: len(known)], "what is claimed is so"
            if turn:
                assert len(known) >= before - 2
                assert abs(view.tokens - len(chain) * 16) < 0.5 * 16 * len(chain)
            await remote.known(call)
            before = len(chain)
            talk.append(message("assistant", words(100, 20 + turn)))


async def test_a_tail_is_waited_for_only_where_it_may_pay() -> None:
    async with remote_reader() as remote:
        short = remote.reader.read(completion(words(50, 1)), adapter="", block_sizes=(16,), longest=None)
        assert short.rest
        assert not short.matters, "it is prefilled as soon as a worker has answered"
        text = words(1000, 2)
        assert remote.reader.read(completion(text), adapter="", block_sizes=(16,), longest=None).matters
        await remote.known(completion(text))
        longer = completion(text + " " + words(1000, 3))
        view = remote.reader.read(longer, adapter="", block_sizes=(16,), longest=None)
        assert view.rest
        assert view.blocks[16].hashes
        assert not view.matters, "no worker holds what is known, so no further token can lengthen a match"
        remote.index.predict(WORKERS[0], view.blocks[16].hashes, start=0, now=0.0, ttl=60.0)
        assert remote.reader.read(longer, adapter="", block_sizes=(16,), longest=None).matters


async def test_without_events_nobody_is_asked() -> None:
    async with remote_reader() as remote:
        remote.events = False
        view = remote.reader.read(completion(words(1000, 2)), adapter="", block_sizes=(16,), longest=None)
        assert (view.rest, view.confirmable) == ((), False)
        assert view.blocks[16].hashes


async def test_images_are_read_as_text() -> None:
    async with remote_reader() as remote:
        parts = [{"type": "text", "text": words(300, 1)}, {"type": "image_url", "image_url": {"url": "data:A"}}]
        view = remote.reader.read(chat([message("user", parts)]), adapter="", block_sizes=(16,), longest=None)
        assert (view.rest, view.confirmable) == ((), False)
        assert view.blocks[16].hashes


async def test_workers_that_do_not_tokenize_end_in_text_mode() -> None:
    async with remote_reader() as remote:
        remote.urls[:] = ["http://127.0.0.1:1"]
        call = completion(words(1000, 2))
        view = await remote.known(call)
        text = TextReader(MODEL, limits=LIMITS).read(call, adapter="", block_sizes=(16,), longest=None)
        assert list(view.blocks[16].hashes) == list(text.blocks[16].hashes)
        assert not view.confirmable
        later = remote.reader.read(call, adapter="", block_sizes=(16,), longest=None)
        assert not later.rest, "they are left alone for a while"
        assert list(later.blocks[16].hashes) == list(text.blocks[16].hashes)


async def test_one_prompt_is_asked_for_once() -> None:
    async with remote_reader() as remote:
        call = completion(words(1000, 2))
        views = [remote.reader.read(call, adapter="", block_sizes=(16,), longest=None) for _ in range(100)]
        ended: list[int] = []
        assert all(remote.reader.resolve(view, lambda i=i: ended.append(i)) for i, view in enumerate(views))  # type: ignore[misc]  # a default binds it
        await remote.known(call)
        assert ended == list(range(100))
        assert all(list(view.blocks[16].hashes) == truth(call) for view in views)


async def test_too_many_prompts_at_once_are_not_begun_and_closing_ends_the_rest() -> None:
    async with remote_reader() as remote:
        views = [
            remote.reader.read(completion(words(100, i)), adapter="", block_sizes=(16,), longest=None)
            for i in range(100)
        ]
        begun = [remote.reader.resolve(view, lambda: None) for view in views]
        assert sum(begun) == 64
        await remote.reader.close()


async def test_the_table_makes_readers_for_models_nobody_configured() -> None:
    async with remote_reader() as remote:
        made: list[str] = []

        def make(name: str) -> AutoReader:
            made.append(name)
            return remote.reader

        configured = TextReader("known", limits=LIMITS)
        table = ReaderTable({"known": configured}, make)
        assert table.get("known") is configured
        assert table.get("other") is table.get("other") is remote.reader
        assert made == ["other"]
        for number in range(100):
            table.get(str(number))
        table.get("other")
        assert made.count("other") == 2, "only so many are kept, and the oldest goes first"
        await table.close()


# --- the memory of ids -------------------------------------------------------------------------------------


def numbered(n: int, start: int = 0) -> TokenIds:
    return TokenIds(b"".join(i.to_bytes(4, "little") for i in range(start, start + n)))


def test_two_prompts_teach_where_they_part() -> None:
    memory = TokenMemory(max_bytes=1 << 20)
    shared = TextBytes(b"s" * 4096)
    memory.remember(TextBytes(shared + b"a" * 4096), TokenIds(numbered(1000) + numbered(1000, 50_000)), special=False)
    guessed = memory.find(TextBytes(shared + b"c" * 4096), special=False)
    assert not guessed.complete
    assert guessed.text_bytes == 4096
    assert 500 < len(guessed.ids) // 4 < 1000, "from below"
    memory.remember(TextBytes(shared + b"b" * 4096), TokenIds(numbered(1000) + numbered(900, 70_000)), special=False)
    assert memory.find(TextBytes(shared + b"c" * 4096), special=False).ids == numbered(1000), "now it is known"
    assert memory.find(TextBytes(shared + b"c" * 4096), special=True).ids == b""


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6), st.integers(0, 3)), max_size=30))
def test_what_is_remembered_is_bounded_and_begins_right(steps: list[tuple[int, int, int]]) -> None:
    memory = TokenMemory(max_bytes=20_000)
    for head, length, tail in steps:
        text = TextBytes(bytes([head]) * 512 * length + bytes([tail]) * 300)
        ids = TokenIds(numbered(100 * length, 10_000 * head) + numbered(60, 10_000 * tail + 5000))
        known = memory.find(text, special=False)
        assert known.complete == (known.ids == ids)
        memory.remember(text, ids, special=False)
        assert memory.find(text, special=False).ids == ids
        assert memory.bytes <= 20_000
        assert memory.bytes == sum(record.bytes for record in memory._records.values())
        assert all(record in memory._records.values() for record, _, _ in memory._marks.values())


def test_lengths_are_learnt() -> None:
    memory = TokenMemory(max_bytes=1 << 20)
    assert memory.tokens_per_byte == 0.25
    for i in range(100):
        memory.remember(TextBytes(b"%d " % i + b"x" * 597), numbered(100), special=False)
    assert memory.tokens_per_byte == pytest.approx(1 / 6, rel=0.02)


def test_the_memory_counts_what_it_holds() -> None:
    memory = TokenMemory(max_bytes=2 << 20)
    texts = [TextBytes(b"\xffuser %d " % i + b"x" * 3000 + b"\xffend") for i in range(1000)]
    gc.collect()
    tracemalloc.start()
    for text in texts:
        memory.remember(text, numbered(800), special=False)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert memory.bytes <= 2 << 20
    assert len(memory) > 200
    assert 0.6 < used / memory.bytes < 1.2


def test_a_prompt_beyond_the_bound_is_not_kept() -> None:
    memory = TokenMemory(max_bytes=2000)
    memory.remember(TextBytes(b"a"), numbered(1000), special=False)
    assert (len(memory), memory.bytes) == (0, 0)


@given(st.binary(max_size=40), st.binary(max_size=40), st.binary(max_size=40))
def test_common_tokens(head: bytes, a: bytes, b: bytes) -> None:
    x, y = (
        TokenIds(b"".join(i.to_bytes(4, "little") for i in head + a)),
        TokenIds(b"".join(i.to_bytes(4, "little") for i in head + b)),
    )
    expected = next((i for i, (p, q) in enumerate(zip(head + a, head + b, strict=False)) if p != q), None)
    assert common_tokens(x, y) == (min(len(head + a), len(head + b)) if expected is None else expected)
