"""The cache of tokenized prefixes: the hashes of the whole text whatever was seen, within its bytes."""

from __future__ import annotations

import random
import re
import tracemalloc
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken

from cache.block_hash import ChainKey
from cache.prompt_blocks import PromptBlockCache, PromptScan, _allocated
from cache.text_pieces import REACH_PIECES, WORD_CUTS, PieceCutter, WordCut, _in_the_way, cut_tokens, trie_pattern
from cache.token_backends import probe_texts
from tests.tokens_fixtures import (
    bert,
    deepseek,
    deepseek_directory,
    dialogues,
    embedded,
    gpt2,
    metaspace,
    o200k,
    real_text,
)

if TYPE_CHECKING:
    from cache.tokenizer import Tokenizer

__all__ = ["bert", "deepseek", "deepseek_directory", "embedded", "gpt2", "metaspace", "o200k"]

KEY = ChainKey("model")
ALL = ["embedded", "deepseek", "metaspace", "bert", "gpt2", "o200k"]

SCRIPTS = (
    "Привет, мир! Это длинный текст: слова, числа 123 и знаки (скобки). Ёлка;\nещё строка ",
    "Καλημέρα κόσμε, αυτό είναι ένα κείμενο. Έλα; ναι ",
    "مرحبا بالعالم، هذا نص طويل؛ هل تفهم؟ نعم ١٢٣ ",
    "שלום עולם, זה טקסט. ",
    "नमस्ते दुनिया। यह एक लंबा पाठ है, शब्दों के साथ। ",
    "안녕하세요 세계, 한국어 텍스트입니다. 하나 둘 ",
    "これは日本語の文章です、とても長い。「カタカナ」も使います！Englishも混ざる。",
    "这是一个测试：中文，标点；还有（括号）。混合English词，第123章！",
    "สวัสดีชาวโลก นี่คือข้อความ ",
    "1,2.5,-3e4;0x7f,abc,\n4,5,6\n\n7,8\r\n",
    "QUJD/REVG+R0hJSktM/TU5PUFFS==",
    '{"a":"b","c":[1,2,{"d":null}],"url":"https://x.org/a?b=c&d=e#f"}',
    "for(i=0;i<n;i++){\n\tx[i]=y.z(i)*2;\n}\n// end\n",
    "a\u0301,b\u0308 c\u0338=\u0338 <\u0338 .\u0301 ",
    "\u0e33 \u200b a\u200b b\u00ad c\x1c d\x85 e\u2028f \u3000g ",
)


def complete(
    cache: PromptBlockCache,
    text: str,
    key: ChainKey = KEY,
    *,
    special: bool = False,
    max_chars: int | None = None,
) -> PromptScan:
    scan = cache.start(key, text, add_special_tokens=special)
    while not scan.complete:
        further = cache.finish(scan, cache.encode(scan, max_chars=max_chars))
        if further.position == scan.position and max_chars is not None:
            further = cache.finish(scan, cache.encode(scan))  # no place to cut for long
        assert further.tail_chars < scan.tail_chars or further.complete
        scan = further
    assert scan.tail_chars == 0
    return scan


def check(cache: PromptBlockCache, tokenizer: Tokenizer, scan: PromptScan) -> None:
    """What the scan knows is what the whole text gives from scratch."""
    ids = tokenizer.encode(scan.text, add_special_tokens=scan.add_special_tokens)
    expected = cache.hash_ids(scan.key, ids)
    assert list(scan.known.hashes) == expected.hashes
    assert scan.known.n_tokens == expected.n_tokens


def material(tokenizer: Tokenizer) -> list[str]:
    tokens = [token.content for token in tokenizer.added_tokens][:4]
    words = real_text()
    prose = [words[start : start + 700] for start in range(0, 9_000, 700)]
    return [
        *probe_texts(tokens),
        *prose,
        *tokens,
        "<",
        " ",
        "  ",
        "\n",
        "x",
        "é",
        "中文，字。",
        *SCRIPTS,
        "9f" * 300,
        *[t[:-1] for t in tokens],
    ]


@pytest.mark.parametrize("name", ALL)
def test_any_history_gives_the_hashes_of_the_whole_text(request: pytest.FixtureRequest, name: str) -> None:
    tokenizer = request.getfixturevalue(name)
    parts = material(tokenizer)
    for seed in range(6):
        rng = random.Random(seed)
        cache = PromptBlockCache(
            tokenizer, max_bytes=rng.choice([20_000, 1 << 20]), piece_chars=rng.choice([64, 300, 2048])
        )
        texts = [""]
        for _ in range(25):
            base = rng.choice(texts)
            text = base[: rng.randint(0, len(base))] if rng.random() < 0.5 else base
            text = (text + "".join(rng.choices(parts, k=rng.randint(0, 4))))[:12_000]
            texts.append(text)
            special = rng.random() < 0.5
            check(cache, tokenizer, complete(cache, text, special=special, max_chars=rng.choice([None, 1, 500])))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(st.data())
@pytest.mark.parametrize("name", ALL)
def test_pieces_give_the_tokens_of_the_whole(request: pytest.FixtureRequest, name: str, data: st.DataObject) -> None:
    """Hypothesis looks for a text where a cut is not safe."""
    tokenizer = request.getfixturevalue(name)
    cutter = cutter_of(tokenizer, name)
    tokens = [token.content for token in tokenizer.added_tokens][:3]
    alphabet = st.one_of(
        st.sampled_from(
            [
                *"  aB\n\t1.,;/<|é\u0301中，。яあ안नक्",
                "'s",
                *SCRIPTS,
                *tokens,
            ]
        ),
        st.characters(exclude_categories=["Cs"]),
    )
    text = "".join(data.draw(st.lists(alphabet, max_size=400)))
    bounds = [0, *cutter.cuts(text)]
    pieces = [text[start:end] for start, end in pairwise(bounds)]
    assert b"".join(tokenizer.encode_many(pieces)) == tokenizer.encode(text, add_special_tokens=False)


CUTTERS: dict[str, PieceCutter] = {}


def cutter_of(tokenizer: Tokenizer, name: str) -> PieceCutter:
    """Of pieces of eight characters; made once, as the proofs take a third of a second."""
    if name not in CUTTERS:
        CUTTERS[name] = PieceCutter(tokenizer, piece_chars=8)
    return CUTTERS[name]


def test_which_cuts_are_used(embedded: Tokenizer, deepseek: Tokenizer, metaspace: Tokenizer, bert: Tokenizer) -> None:
    cutters = [PieceCutter(tokenizer) for tokenizer in (embedded, deepseek, metaspace, bert)]
    # Without a pre-tokenizer tokens reach over spaces, so there are no places between words.
    assert [len(cutter.word_cuts) for cutter in cutters] == [len(WORD_CUTS), len(WORD_CUTS), 0, len(WORD_CUTS)]
    kinds = [row[0] for row in WORD_CUTS]
    assert list(cutters[0].word_cuts) == list(cutters[3].word_cuts) == kinds
    # DeepSeek's has an added token with a letter and a colon in it.
    assert [cut.char for cut, kind in zip(cutters[1].word_cuts, kinds, strict=True) if cut != kind] == [":"]
    assert [cutter.token_cuts > 0 for cutter in cutters] == [True, True, True, True]
    assert [(len(cutter.prefix), len(cutter.suffix)) for cutter in cutters] == [
        (0, 0),
        (0, 0),
        (4, 0),
        (4, 4),
    ]


@pytest.mark.parametrize("more", ["", "é", "你好", "😀"])
def test_seen_text_is_known_at_once(embedded: Tokenizer, more: str) -> None:
    cache = PromptBlockCache(embedded, max_bytes=1 << 20)
    text = real_text()[:9_000].encode("ascii", "ignore").decode() + more
    first = cache.start(KEY, text, add_special_tokens=False)
    assert (first.known.n_tokens, first.complete, first.tail_chars) == (0, False, len(text))
    done = complete(cache, text)
    again = cache.start(KEY, text, add_special_tokens=False)
    assert (again.complete, again.tail_chars, again.known) == (True, 0, done.known)
    assert (cache.hits, cache.misses) == (1, 2)


def test_a_longer_prompt_tokenizes_its_tail_only(embedded: Tokenizer) -> None:
    cache = PromptBlockCache(embedded, max_bytes=1 << 20)
    body = dialogues()[0]
    for turns in range(2, len(body["messages"])):
        scan = cache.start(
            KEY,
            embedded.render_chat({**body, "messages": body["messages"][:turns]}),
            add_special_tokens=False,
        )
        if turns > 2:
            assert scan.tail_chars <= 2048 + 512 + len(str(body["messages"][turns - 1])) + 200
            assert scan.known.n_tokens > 1_000
        check(cache, embedded, cache.finish(scan, cache.encode(scan)))


def test_the_tail_can_be_tokenized_in_steps(embedded: Tokenizer) -> None:
    cache = PromptBlockCache(embedded, max_bytes=1 << 20)
    scan = cache.start(KEY, real_text()[:40_000], add_special_tokens=False)
    step = cache.encode(scan, max_chars=5_000)
    part = cache.finish(scan, step)
    assert not part.complete
    assert 35_000 <= part.tail_chars < 40_000
    assert len(part.known.hashes) == part.known.n_tokens // 16
    check(cache, embedded, cache.finish(part, cache.encode(part)))


@pytest.mark.parametrize(
    "other",
    [
        ChainKey("model", salt="s"),
        ChainKey("other"),
        ChainKey("model", adapter="a"),
        ChainKey("model", 32),
        ChainKey("model", image_digests=(b"i",)),
    ],
)
def test_nothing_is_shared_between_keys(embedded: Tokenizer, other: ChainKey) -> None:
    cache = PromptBlockCache(embedded, max_bytes=1 << 20)
    text = real_text()[:9_000]
    mine = complete(cache, text)
    theirs = cache.start(other, text, add_special_tokens=False)
    assert (theirs.known.n_tokens, theirs.tail_chars) == (0, len(text))
    assert not set(complete(cache, text, other).known.hashes) & set(mine.known.hashes)


def test_special_tokens_make_another_prompt(bert: Tokenizer) -> None:
    cache = PromptBlockCache(bert, max_bytes=1 << 20)
    for special in (True, False, True):
        check(cache, bert, complete(cache, "hello there", special=special))


def test_empty_text(embedded: Tokenizer, bert: Tokenizer) -> None:
    for tokenizer, n_tokens in ((embedded, 0), (bert, 2)):
        cache = PromptBlockCache(tokenizer, max_bytes=1 << 20)
        assert complete(cache, "", special=True).known.n_tokens == n_tokens
        assert cache.start(KEY, "", add_special_tokens=True).complete


def test_token_ids_are_hashed_as_they_are(embedded: Tokenizer) -> None:
    cache = PromptBlockCache(embedded, max_bytes=1 << 20)
    text = real_text()[:3_000]
    ids = embedded.encode(text, add_special_tokens=False)
    assert cache.hash_ids(KEY, ids).hashes == list(complete(cache, text).known.hashes)


def test_a_lone_surrogate_is_a_value_error(embedded: Tokenizer) -> None:
    with pytest.raises(ValueError, match="surrogate"):
        PromptBlockCache(embedded, max_bytes=1 << 20).start(KEY, "a\ud800", add_special_tokens=False)


def test_bytes_stay_bounded_and_are_the_true_size(embedded: Tokenizer) -> None:
    """Fifty thousand prompts never seen before go through a cache with room for about two thousand."""
    cache = PromptBlockCache(embedded, max_bytes=500_000)
    seen = []
    for number in range(50_000):
        complete(cache, f"prompt {number}")
        if number % 1_000 == 999:
            seen.append(cache.bytes)
    assert max(seen) <= 500_000
    assert min(seen[5:]) > 250_000
    entries = cache._entries
    assert cache.bytes == sum(_allocated(key, entry) for key, entry in entries.items()) + entries.__sizeof__() + 16


def test_gauge_is_what_the_allocator_gives(embedded: Tokenizer) -> None:
    cache = PromptBlockCache(embedded, max_bytes=1 << 24)
    complete(cache, "warm up")
    tracemalloc.start()
    try:
        before, gauge = tracemalloc.get_traced_memory()[0], cache.bytes
        for number in range(4_000):
            complete(cache, f"prompt {number}")
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    # tracemalloc counts what is asked for; the gauge rounds up as the allocator does.
    assert 0.8 < grown / (cache.bytes - gauge) < 1.05


def test_what_is_used_stays(embedded: Tokenizer) -> None:
    cache = PromptBlockCache(embedded, max_bytes=60_000)
    kept = real_text()[:6_000]
    complete(cache, kept)
    for number in range(3_000):
        complete(cache, f"prompt {number}")
        assert cache.start(KEY, kept, add_special_tokens=False).complete
    # An extension walks over the pieces; they were not touched by the whole prompt's hits, and are gone.
    check(cache, embedded, complete(cache, kept + " and more"))


def test_one_entry_over_the_bound_is_not_kept(embedded: Tokenizer) -> None:
    cache = PromptBlockCache(embedded, max_bytes=2_000)
    check(cache, embedded, complete(cache, real_text()[:30_000]))
    assert cache.bytes <= 2_000


def token(content: str, **flags: bool) -> AddedToken:
    return AddedToken(content, **{"normalized": False, **flags})


def test_added_tokens_with_rules_are_no_places_to_cut() -> None:
    added = [
        token("<a>"),
        token("<l>", lstrip=True),
        token("<r>", rstrip=True),
        token("<w>", single_word=True),
        token("<n>", normalized=True),
        token(" s"),
        token("<x>"),
        token("<x>y", lstrip=True),
        token("b<b"),
        token("<b>"),
    ]
    assert cut_tokens(added) == ["<a>"]


@given(
    st.lists(st.text(alphabet="ab|<", min_size=1, max_size=5), min_size=1, max_size=6),
    st.text(alphabet="ab|<", max_size=30),
)
def test_trie_pattern_finds_the_leftmost_longest(words: list[str], text: str) -> None:
    found = re.search(trie_pattern(words), text)
    places = [(i, -len(w)) for w in words for i in range(len(text)) if text.startswith(w, i)]
    assert (found and (found.start(), found.start() - found.end())) == (min(places) if places else None)


def test_a_space_is_put_before_each_piece_so_only_spaces_are_cut_at(gpt2: Tokenizer) -> None:
    """A tokenizer that adds a space to every text gives other tokens to a piece which starts with anything else."""
    assert [cut.char for cut in PieceCutter(gpt2).word_cuts] == [" "]


@pytest.mark.parametrize(
    ("added", "cut", "refused"),
    [
        (token("a b"), WordCut(" ", "a-z", "a-z"), True),
        (token("a "), WordCut(" ", "a-z", "a-z"), True),
        (token(" b"), WordCut(" ", "a-z", "a-z"), False),
        (token("a 1"), WordCut(" ", "a-z", "a-z"), False),
        (token("<a>", rstrip=True), WordCut(" ", "a-z>", "a-z"), True),
        (token("<a>", rstrip=True), WordCut(" ", "a-z", "a-z"), False),
        (token("<a>", lstrip=True), WordCut(" ", "a-z>", "a-z<"), False),
        (token("x,"), WordCut(",", "a-z"), True),
        (token(",x"), WordCut(",", "a-z"), False),
        (token(",x", single_word=True), WordCut(",", "a-z"), True),
    ],
)
def test_added_tokens_in_the_way_of_a_cut(added: AddedToken, cut: WordCut, refused: bool) -> None:
    assert _in_the_way(added, cut) is refused


@pytest.mark.parametrize("sample", SCRIPTS[:8])
def test_every_script_is_tokenized_in_small_steps(embedded: Tokenizer, deepseek: Tokenizer, sample: str) -> None:
    text = sample * (40_000 // len(sample))
    for tokenizer in (embedded, deepseek):
        cache = PromptBlockCache(tokenizer, max_bytes=1 << 20)
        taste = cache.encode(cache.start(KEY, text, add_special_tokens=False), max_chars=2_048)
        assert 2_000 < taste.position.offset < 2_200
        complete(cache, text)
        longer = cache.start(KEY, text + sample, add_special_tokens=False)
        assert longer.tail_chars < 2_200 + len(sample)
        check(cache, tokenizer, cache.finish(longer, cache.encode(longer)))


@pytest.mark.parametrize("unit", ["a", "9f", "<", " ", "\n", "😀", "ไทย", "漢字"])
def test_text_without_a_place_to_cut_is_left_to_a_call_without_limit(embedded: Tokenizer, unit: str) -> None:
    cache = PromptBlockCache(embedded, max_bytes=1 << 20)
    scan = cache.start(KEY, "Some words first. " * 150 + unit * 60_000, add_special_tokens=False)
    first = cache.finish(scan, cache.encode(scan, max_chars=2_048))
    assert 2_000 < first.position.offset < 2_200
    nothing = cache.encode(first, max_chars=2_048)
    assert (nothing.position, nothing.complete, nothing.pieces) == (first.position, False, ())
    assert cache.finish(first, nothing) == first
    done = cache.finish(first, cache.encode(first))
    assert done.complete
    check(cache, embedded, done)
    # A short piece is tokenized whatever the limit, so that steps with a limit come to an end in ordinary text.
    short = cache.start(KEY, unit * 100, add_special_tokens=False)
    assert cache.encode(short, max_chars=1).complete


@pytest.mark.parametrize("char", [row[0].char for row in WORD_CUTS])
def test_every_kind_of_cut_is_found(embedded: Tokenizer, char: str) -> None:
    text = "x" * 20 + char + "x" * 20
    assert list(cutter_of(embedded, "embedded").cuts(text)) == [20, len(text)]


def test_the_search_for_a_cut_is_bounded(embedded: Tokenizer) -> None:
    cutter = PieceCutter(embedded, piece_chars=64)
    reach = REACH_PIECES * 64
    near, far = "a" * (reach - 10) + " b" * 10, "a" * (reach + 10) + " b" * 10
    assert (cutter.next_cut(near, 0), cutter.next_cut(far, 0)) == (reach - 10, len(far))
    # Texts with a common beginning have the pieces before its end in common, whatever follows.
    assert cutter.next_cut(near + "\n", 0) == cutter.next_cut(near[: reach - 8] + "x", 0) == reach - 10


def test_a_lookup_walks_over_few_long_pieces(embedded: Tokenizer) -> None:
    cache = PromptBlockCache(embedded, max_bytes=1 << 20, piece_chars=64)
    text = ("a" * 500 + " b " + "<|im_end|>") * 40
    complete(cache, text)
    longer = cache.start(KEY, text + "x", add_special_tokens=False)
    assert 7_000 < longer.position.offset < 64 * 128 + 500
    check(cache, embedded, cache.finish(longer, cache.encode(longer)))
