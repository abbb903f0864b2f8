"""Incremental detokenization: the library's own decoding of all ids at once, in every cut; stop strings; bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders

from backends.worker.text.decoder_stages import MOST_HELD_BYTES, UnsupportedDecoderError, byte_level_alphabet
from backends.worker.text.detokenizer import Detokenizer, TokenTexts
from backends.worker.text.stop_strings import StopStrings
from cache.tokenizer import Tokenizer
from tests.tokens_fixtures import bert, deepseek, deepseek_directory, embedded, metaspace, metaspace_tokenizer

__all__ = ["bert", "deepseek", "deepseek_directory", "embedded", "metaspace"]

fixture_is_read_only = settings(
    max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)

LLAMA2 = decoders.Sequence(
    [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
)
DECODERS = {
    "llama-2": LLAMA2,
    "gemma": decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]),
    "fallback": decoders.ByteFallback(),
    "first-space": decoders.Metaspace(prepend_scheme="first"),
    "all-spaces": decoders.Metaspace(prepend_scheme="never"),
    "strip-each": decoders.Sequence([decoders.Metaspace(prepend_scheme="never"), decoders.Strip(" ", 2, 0)]),
    "strip-two": decoders.Sequence(
        [decoders.Metaspace(prepend_scheme="never"), decoders.Fuse(), decoders.Strip(" ", 2, 0)]
    ),
    "replace-behind": decoders.Sequence([decoders.ByteFallback(), decoders.Fuse(), decoders.Replace("▁", "_")]),
    "byte-level": decoders.Sequence([decoders.ByteLevel()]),
    "suffix": decoders.BPEDecoder(suffix="e"),
    "word-pieces": decoders.WordPiece(prefix="s", cleanup=True),
    "none": None,
}
NAMES = ["embedded", "deepseek", "metaspace", "bert", *DECODERS]


def with_decoder(name: str) -> tokenizers.Tokenizer:
    structure = json.loads(metaspace_tokenizer().to_str())
    # In real models byte tokens are a part of the vocabulary, and not special.
    structure["added_tokens"] = [token for token in structure["added_tokens"] if not token["content"].startswith("<0x")]
    structure["decoder"] = None
    made = tokenizers.Tokenizer.from_str(json.dumps(structure))
    made.add_special_tokens([AddedToken("<|end of turn|>", special=True)])
    made.add_tokens([AddedToken("<tool ▁>"), AddedToken(" é中")])
    if (decoder := DECODERS[name]) is not None:
        made.decoder = decoder
    return made


@pytest.fixture(scope="module", params=NAMES)
def reference(request: pytest.FixtureRequest) -> tokenizers.Tokenizer:
    if request.param in DECODERS:
        return with_decoder(request.param)
    loaded: Tokenizer = request.getfixturevalue(request.param)
    return loaded.reference


@pytest.fixture(scope="session")
def embedded_texts(embedded: Tokenizer) -> TokenTexts:
    return TokenTexts(embedded.reference)


@pytest.fixture(scope="session")
def deepseek_texts(deepseek: Tokenizer) -> TokenTexts:
    return TokenTexts(deepseek.reference)


@pytest.fixture(scope="module")
def texts(reference: tokenizers.Tokenizer) -> TokenTexts:
    return TokenTexts(reference)


def id_of(reference: tokenizers.Tokenizer, token: str) -> int:
    found = reference.token_to_id(token)
    assert found is not None
    return found


def cut(ids: Sequence[int], sizes: Iterator[int]) -> list[list[int]]:
    pieces, at = [], 0
    while at < len(ids):
        size = next(sizes)
        pieces.append(list(ids[at : at + size]))
        at += size
    return pieces


def shown(detokenizer: Detokenizer, pieces: Sequence[Sequence[int]]) -> str:
    return "".join([*(detokenizer.push(piece) for piece in pieces), detokenizer.finish()])


def sizes_of(data: st.DataObject) -> Iterator[int]:
    sizes = data.draw(st.lists(st.integers(1, 7), min_size=1, max_size=8))
    return chain.from_iterable(iter(lambda: sizes, None))


@pytest.fixture(scope="module")
def some_ids(reference: tokenizers.Tokenizer) -> st.SearchStrategy[list[int]]:
    """Texts of any script, any tokens at all, bytes in any order; an id that does not exist."""
    size = reference.get_vocab_size()
    alphabet = [reference.token_to_id(char) for char in byte_level_alphabet()]
    fallback = [reference.token_to_id(f"<0x{byte:02X}>") for byte in range(256)]
    single = [i for i in (*alphabet, *fallback) if i is not None]
    added = list(reference.get_added_tokens_decoder())
    run = st.text(max_size=12).map(lambda text: reference.encode(text, add_special_tokens=False).ids)
    tokens = st.integers(0, size + 1) | st.sampled_from(added or [0]) | st.sampled_from(single or [0])
    parts = st.lists(run | st.lists(tokens, max_size=20), max_size=5)
    return parts.map(lambda found: list(chain.from_iterable(found)))


@fixture_is_read_only
@given(skip=st.booleans(), data=st.data())
def test_every_cut_gives_what_decoding_at_once_gives(
    reference: tokenizers.Tokenizer,
    texts: TokenTexts,
    some_ids: st.SearchStrategy[list[int]],
    skip: bool,
    data: st.DataObject,
) -> None:
    ids = data.draw(some_ids)
    expected = reference.decode(ids, skip_special_tokens=skip)
    for pieces in ([[i] for i in ids], [ids], cut(ids, sizes_of(data))):
        assert shown(Detokenizer(texts, skip_special_tokens=skip), pieces) == expected


@fixture_is_read_only
@given(text=st.text(max_size=60))
def test_text_comes_whole_but_for_its_last_character(
    embedded: Tokenizer, embedded_texts: TokenTexts, text: str
) -> None:
    text = embedded.reference.normalizer.normalize_str(text)
    detokenizer = Detokenizer(embedded_texts)
    seen, given_bytes = "", b""
    for token in embedded.reference.encode(text).ids:
        seen += detokenizer.push([token])
        given_bytes += embedded_texts.token_bytes(token)
        # Only an unfinished character is held back, and nothing is shown that does not stay.
        assert seen == given_bytes.decode(errors="ignore")
        assert text.startswith(seen)
    assert seen + detokenizer.finish() == text


@fixture_is_read_only
@given(data=st.data())
def test_behind_a_prompt_nothing_is_stripped(
    reference: tokenizers.Tokenizer, texts: TokenTexts, data: st.DataObject
) -> None:
    prompt = reference.encode("Hello there", add_special_tokens=False).ids
    output = reference.encode("and so on it goes", add_special_tokens=False).ids
    both = reference.decode(prompt + output)
    if reference.decoder is not None and "BPEDecoder" in repr(reference.decoder):
        return  # the prompt's last piece is decoded in another way when it is the last
    assert both == reference.decode(prompt) + shown(Detokenizer(texts, prompt), cut(output, sizes_of(data)))


def test_a_broken_character_is_told_at_the_end_only(embedded: Tokenizer) -> None:
    texts = TokenTexts(embedded.reference)
    of_byte = {byte: id_of(embedded.reference, char) for char, byte in byte_level_alphabet().items()}
    detokenizer = Detokenizer(texts)
    assert detokenizer.push([of_byte[byte] for byte in b"a\xf0\x9f\x98"]) == "a"
    assert detokenizer.finish() == "\ufffd"
    detokenizer = Detokenizer(texts)
    assert [detokenizer.push([of_byte[byte]]) for byte in "a😀b".encode()] == ["a", "", "", "", "😀", "b"]
    detokenizer = Detokenizer(texts)
    assert [detokenizer.push([of_byte[byte]]) for byte in b"\xf0\x9fz"] == ["", "", "\ufffdz"]


def byte_ids(reference: tokenizers.Tokenizer, data: bytes) -> list[int]:
    return [id_of(reference, f"<0x{byte:02X}>") for byte in data]


def test_a_run_of_byte_tokens_is_held_until_it_is_certain() -> None:
    reference = with_decoder("llama-2")
    detokenizer = Detokenizer(TokenTexts(reference))
    for token in byte_ids(reference, "😀".encode()):
        assert detokenizer.push([token]) == ""
    # What the bytes were is known as soon as the run cannot be mended, or ends.
    assert detokenizer.push(byte_ids(reference, b"\x80")) == "\ufffd" * 5
    assert detokenizer.push(byte_ids(reference, b"A")) == "\ufffd"
    assert detokenizer.push([id_of(reference, "▁")]) == " "
    assert detokenizer.push(byte_ids(reference, b"A")) == ""
    assert detokenizer.finish() == "A"


@given(st.text(min_size=1, max_size=200), st.data())
@settings(deadline=None)
def test_what_is_held_of_byte_tokens_is_bounded(text: str, data: st.DataObject) -> None:
    reference = RUNS
    detokenizer = Detokenizer(RUN_TEXTS)
    seen = ""
    for at, token in enumerate(byte_ids(reference, text.encode()), 1):
        seen += detokenizer.push([token])
        assert at - len(seen.encode()) < MOST_HELD_BYTES + text.startswith(" ")
    assert seen + detokenizer.finish() == text.removeprefix(" ")


RUNS = with_decoder("llama-2")
RUN_TEXTS = TokenTexts(RUNS)


@pytest.mark.parametrize(
    "decoder",
    [
        decoders.CTC(),
        decoders.Strip(" ", 1, 1),
        decoders.Replace(tokenizers.Regex("a+"), "b"),
        decoders.Sequence([decoders.Fuse(), decoders.Replace("ab", "c")]),
        decoders.Sequence([decoders.Fuse(), decoders.ByteFallback()]),
    ],
)
def test_a_decoder_that_needs_all_ids_is_refused_by_name(decoder: Any) -> None:
    reference = metaspace_tokenizer()
    reference.decoder = decoder
    with pytest.raises(UnsupportedDecoderError, match=r"CTC|Strip|Replace|ByteFallback"):
        TokenTexts(reference)


# --- stop strings ------------------------------------------------------------------------------------------

letters = st.text("abc", max_size=30)
stops_of_letters = st.lists(st.text("abc", min_size=1, max_size=5), max_size=4)


def first_stop(text: str, stops: Sequence[str]) -> tuple[int, str] | None:
    """By definition: the match that ends first; among those, the one that begins first."""
    matches = [(at + len(stop), at, stop) for stop in stops for at in range(len(text)) if text.startswith(stop, at)]
    if not matches:
        return None
    _, at, stop = min(matches)
    return at, stop


@given(letters, stops_of_letters, st.data())
def test_stop_strings_are_those_of_the_whole_text(text: str, stops: list[str], data: st.DataObject) -> None:
    sizes = sizes_of(data)
    finder = StopStrings(stops)
    seen, given_text = "", ""
    while len(given_text) < len(text) and finder.found is None:
        piece = text[len(given_text) : len(given_text) + next(sizes)]
        given_text += piece
        seen += finder.push(piece)[0]
        assert text.startswith(seen)
        if finder.found is None:
            # As much is held as the longest head of a stop string at the end, and no more.
            held = max((n for stop in stops for n in range(len(stop)) if given_text.endswith(stop[:n])), default=0)
            assert seen == given_text[: len(given_text) - held]
    expected = first_stop(text, stops)
    assert (len(seen), finder.found) == expected if expected else seen + finder.finish() == text
    if expected:
        assert finder.push("more") == ("", True)


@fixture_is_read_only
@given(text=st.text("abc d\né", max_size=40), stops=st.lists(st.text("abc d\né", min_size=1, max_size=4), max_size=3))
@pytest.mark.parametrize("include", [True, False])
def test_the_text_ends_at_the_stop_string(
    embedded: Tokenizer, embedded_texts: TokenTexts, include: bool, text: str, stops: list[str]
) -> None:
    texts = embedded_texts
    text = embedded.decode(embedded.reference.encode(text).ids)
    ids = embedded.reference.encode(text).ids
    expected = first_stop(text, stops)
    one, whole = (Detokenizer(texts, stop=stops, include_stop=include) for _ in range(2))
    seen = shown(one, [[i] for i in ids])
    assert seen == shown(whole, [ids])
    assert (one.stopped, one.tokens_used) == (whole.stopped, whole.tokens_used)
    if expected is None:
        assert (seen, one.stopped, one.tokens_used) == (text, None, len(ids))
        return
    at, stop = expected
    assert (seen, one.stopped) == (text[: at + len(stop) * include], stop)
    # The fewest tokens whose text has the stop string.
    used = next(n for n in range(len(ids) + 1) if embedded.decode(ids[:n])[: at + len(stop)].endswith(stop)
                and len(embedded.decode(ids[:n])) >= at + len(stop))  # fmt: skip
    assert one.tokens_used == used


@pytest.mark.parametrize(
    ("stops", "pieces", "expected", "found"),
    [
        (["END"], ["to the E", "N", "D of"], ["to the ", "", ""], "END"),
        (["END"], ["E", "NE", "ND!"], ["", "EN", ""], "END"),
        (["END"], ["EN", "d"], ["", "ENd"], None),
        (["ab", "abc"], ["xabc"], ["x"], "ab"),
        (["abcd", "bc"], ["abcd"], ["a"], "bc"),
        (["bc", "abc"], ["abc"], [""], "abc"),
        (["aab"], ["aaab"], ["a"], "aab"),
        ([], ["abc"], ["abc"], None),
        (["", "b"], ["abc"], ["a"], "b"),
    ],
)
def test_stop_strings_by_example(stops: list[str], pieces: list[str], expected: list[str], found: str | None) -> None:
    finder = StopStrings(stops)
    assert [finder.push(piece)[0] for piece in pieces] == expected
    assert finder.found == found


def test_no_stop_string_within_the_least_tokens(embedded: Tokenizer) -> None:
    texts = TokenTexts(embedded.reference)
    ids = list(chain.from_iterable(embedded.reference.encode(word).ids for word in ("a", "b", "a", "b")))
    for least, seen, used in ((0, "", 1), (1, "ab", 3), (2, "ab", 3), (3, "abab", 4), (9, "abab", 4)):
        detokenizer = Detokenizer(texts, stop=["a"], min_tokens=least)
        assert (shown(detokenizer, [ids]), detokenizer.tokens_used) == (seen, used)


def test_nothing_comes_behind_a_stop_string(embedded: Tokenizer) -> None:
    detokenizer = Detokenizer(TokenTexts(embedded.reference), stop=["."])
    ids = embedded.reference.encode("One. Two.").ids
    assert detokenizer.push(ids) == "One"
    assert (detokenizer.push(ids), detokenizer.finish(), detokenizer.stopped) == ("", "", ".")
    assert detokenizer.tokens_used < len(ids)


# --- tokens for logprobs -----------------------------------------------------------------------------------


@fixture_is_read_only
@given(text=st.text(max_size=40))
@pytest.mark.parametrize("name", ["embedded", "deepseek"])
def test_bytes_of_tokens_make_the_text(name: str, request: pytest.FixtureRequest, text: str) -> None:
    reference = request.getfixturevalue(name).reference
    texts: TokenTexts = request.getfixturevalue(f"{name}_texts")
    ids = reference.encode(text, add_special_tokens=False).ids
    together = b"".join(map(texts.token_bytes, ids))
    assert together.decode() == reference.decode(ids, skip_special_tokens=False)
    assert all(texts.token_text(i) == texts.token_bytes(i).decode(errors="replace") for i in ids)


def test_single_tokens_by_example(embedded: Tokenizer) -> None:
    texts = TokenTexts(embedded.reference)
    (the,) = embedded.reference.encode(" the").ids
    assert (texts.token_bytes(the), texts.token_text(the)) == (b" the", " the")
    assert texts.token_text(id_of(embedded.reference, "<|im_end|>")) == "<|im_end|>"
    assert texts.token_bytes(embedded.vocab_size + 7) == b""
    llama = with_decoder("llama-2")
    texts = TokenTexts(llama)
    assert texts.token_bytes(id_of(llama, "<0xE2>")) == b"\xe2"
    assert texts.token_text(id_of(llama, "<0xE2>")) == "\ufffd"
    assert texts.token_text(id_of(llama, "▁the")) == " the"
