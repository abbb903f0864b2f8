"""Tokenizers: the ids of the reference whichever library encodes, and directories of every layout."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from tokenizers import Tokenizer as Reference
from transformers import PreTrainedTokenizerFast

from cache.token_backends import (
    LONG_TEXT_CHARS,
    FastBackend,
    ReferenceBackend,
    bytes_to_ids,
    choose_backend,
    probe_texts,
)
from cache.tokenizer import TemplateError, Tokenizer, TokenizerError
from tests.tokens_fixtures import (
    EMBEDDED,
    bert,
    bert_tokenizer,
    deepseek,
    deepseek_directory,
    embedded,
    metaspace,
    real_text,
)

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["bert", "deepseek", "deepseek_directory", "embedded", "metaspace"]

USER = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture(params=["embedded", "deepseek", "metaspace", "bert"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    loaded = request.getfixturevalue(request.param)
    assert isinstance(loaded, Tokenizer)
    return loaded


def test_fastokens_where_it_agrees(embedded: Tokenizer, deepseek: Tokenizer, bert: Tokenizer) -> None:
    assert (embedded.backend, deepseek.backend) == ("fastokens", "fastokens")
    assert bert.backend == "tokenizers"
    assert "refuses" in bert.backend_reason


@pytest.mark.parametrize("add_special_tokens", [True, False])
def test_ids_are_those_of_the_reference(
    tokenizer: Tokenizer,
    add_special_tokens: bool,
) -> None:
    text = real_text()
    texts = [*probe_texts(sorted(tokenizer.special_tokens)[:9]), text[: LONG_TEXT_CHARS + 1], text[:30_000]]
    for case in texts:
        expected = tokenizer.reference.encode(case, add_special_tokens=add_special_tokens).ids
        assert bytes_to_ids(tokenizer.encode(case, add_special_tokens=add_special_tokens)) == expected
    if not add_special_tokens:
        assert tokenizer.encode_many(texts) == [tokenizer.encode(t, add_special_tokens=False) for t in texts]


def test_threads_may_encode_at_once(tokenizer: Tokenizer) -> None:
    texts = [real_text()[start : start + 3_000] for start in range(0, 60_000, 3_000)]
    expected = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda text: tokenizer.encode(text, add_special_tokens=False), texts)) == expected


def test_facts_about_a_vocabulary(
    embedded: Tokenizer, deepseek: Tokenizer, metaspace: Tokenizer, bert: Tokenizer
) -> None:
    assert embedded.vocab_size == 8192
    assert embedded.special_tokens == {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}
    assert (deepseek.vocab_size, len(deepseek.added_tokens)) == (129280, 1283)
    assert "<｜Assistant｜>" in deepseek.special_tokens or "<｜Assistant｜>" in {
        t.content for t in deepseek.added_tokens
    }
    for tokenizer in (embedded, deepseek, metaspace):
        for text in probe_texts([]):
            n_tokens = len(tokenizer.encode(text, add_special_tokens=False)) // 4
            assert len(text) <= n_tokens * tokenizer.longest_token_chars
    # WordPiece drops white space: no text is too long for one token.
    assert len(" " * 100_000) < bert.longest_token_chars


def test_decoding(embedded: Tokenizer) -> None:
    text = "<|im_start|>user\nnaïve 你好 😀<|im_end|>"
    assert embedded.decode(bytes_to_ids(embedded.encode(text, add_special_tokens=False))) == text
    assert embedded.decode([]) == ""
    assert embedded.decode([99_999]) == ""


@pytest.mark.parametrize("chars", [1, LONG_TEXT_CHARS])
def test_a_lone_surrogate_is_a_value_error(tokenizer: Tokenizer, chars: int) -> None:
    with pytest.raises(ValueError, match="surrogate"):
        tokenizer.encode("\ud800" * chars, add_special_tokens=False)
    with pytest.raises(ValueError, match="surrogate"):
        tokenizer.encode_many(["\ud800" * chars])


def test_words_are_one_token_each_in_any_order(embedded: Tokenizer, deepseek: Tokenizer) -> None:
    words = (EMBEDDED / "words.txt").read_text().split()
    assert len(words) == len(set(words)) == 2048
    for tokenizer in (embedded, deepseek):
        for order in (words, words[::-1]):
            assert len(tokenizer.encode(" " + " ".join(order), add_special_tokens=False)) // 4 == len(words)


class Wrong(ReferenceBackend):
    """A reference with another opinion, as after a fault in fastokens."""

    def encode(self, text: str, *, add_special_tokens: bool) -> Any:
        return super().encode(text + ("x" if "straße" in text else ""), add_special_tokens=add_special_tokens)


def test_a_library_with_other_ids_is_not_used(embedded: Tokenizer) -> None:
    backend, reason = choose_backend(embedded.reference.to_str(), Wrong(embedded.reference), [])
    assert backend.name == "tokenizers"
    assert reason.startswith("fastokens gives other ids for 'naïve")


def test_a_failing_library_is_replaced_for_that_text(embedded: Tokenizer) -> None:
    class Failing(FastBackend):
        def __init__(self) -> None:
            super().__init__(embedded.reference.to_str(), ReferenceBackend(embedded.reference))
            self._tokenizer = None  # every call is an AttributeError

    failing = Failing()
    assert failing.encode("hello", add_special_tokens=True) == embedded.encode("hello", add_special_tokens=True)
    assert failing.encode_many(["hello"]) == embedded.encode_many(["hello"])
    assert failing.failures == 2


def directory(tmp_path: Path, **files: object) -> Path:
    """The embedded tokenizer.json with other files beside it; `__` stands for a dot in a name."""
    shutil.copy(EMBEDDED / "tokenizer.json", tmp_path)
    for name, content in files.items():
        path = tmp_path / name.replace("__", ".")
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return tmp_path


def test_a_directory_without_a_template_serves_completions(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(directory(tmp_path))
    assert tokenizer.chat_template is None
    assert len(tokenizer.encode(" hello", add_special_tokens=True)) > 0
    with pytest.raises(TemplateError, match="no chat template"):
        tokenizer.render_chat(USER)


def test_a_template_in_the_configuration(tmp_path: Path) -> None:
    config = {
        "chat_template": "{{ bos_token }}{{ messages[0].content }}",
        "bos_token": {"content": "<|endoftext|>"},
    }
    assert Tokenizer.load(directory(tmp_path, tokenizer_config__json=config)).render_chat(USER) == "<|endoftext|>hi"


def test_named_templates_in_the_configuration(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    tokenizer = Tokenizer.load(directory(tmp_path, tokenizer_config__json={"chat_template": named}))
    assert tokenizer.render_chat(USER) == "plain"
    assert tokenizer.render_chat({**USER, "tools": []}) == "tools"


def test_template_files_win(tmp_path: Path) -> None:
    folder = directory(tmp_path, tokenizer_config__json={"chat_template": "old"}, chat_template__jinja="new")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.render_chat(USER) == "new"
    assert tokenizer.render_chat({**USER, "tools": []}) == "tools"


def test_special_tokens_from_the_older_file(tmp_path: Path) -> None:
    folder = directory(
        tmp_path, special_tokens_map__json={"bos_token": "<|im_start|>"}, chat_template__jinja="{{bos_token}}"
    )
    assert Tokenizer.load(folder).render_chat(USER) == "<|im_start|>"


@pytest.mark.parametrize(
    "config",
    [
        {"add_bos_token": True, "bos_token": "<|endoftext|>"},
        {
            "add_bos_token": True,
            "add_eos_token": True,
            "bos_token": "<|endoftext|>",
            "eos_token": "<|im_end|>",
        },
        {"add_bos_token": False, "bos_token": "<|endoftext|>"},
        {"bos_token": "<new_token>"},
        {"added_tokens_decoder": {"8192": {"content": "<extra>", "special": False, "normalized": False}}},
    ],
)
def test_what_the_configuration_adds_is_what_transformers_adds(tmp_path: Path, config: dict[str, Any]) -> None:
    folder = directory(tmp_path, tokenizer_config__json={"tokenizer_class": "PreTrainedTokenizerFast", **config})
    theirs = PreTrainedTokenizerFast.from_pretrained(folder)
    tokenizer = Tokenizer.load(folder)
    for text in ("hello", "a<new_token>b", "a <extra> b", ""):
        for add_special_tokens in (True, False):
            ids = bytes_to_ids(tokenizer.encode(text, add_special_tokens=add_special_tokens))
            assert ids == theirs.encode(text, add_special_tokens=add_special_tokens)


def test_truncation_in_the_file_is_not_for_serving(tmp_path: Path) -> None:
    reference = Reference.from_file(str(EMBEDDED / "tokenizer.json"))
    reference.enable_truncation(4)
    reference.enable_padding(length=4)
    reference.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.load(tmp_path)
    assert len(tokenizer.encode(" the" * 9, add_special_tokens=True)) == 36
    assert len(tokenizer.encode(" the", add_special_tokens=True)) == 4


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"tokenizer__json": "{"}, "tokenizer.json: not a tokenizer"),
        ({"tokenizer_config__json": "["}, "tokenizer_config.json: cannot be read"),
        ({"tokenizer_config__json": "[]"}, "tokenizer_config.json: not a JSON object"),
        ({"tokenizer_config__json": {"chat_template": [1]}}, "tokenizer_config.json: chat_template must be"),
        ({"chat_template__jinja": "{% for %}"}, "chat template 'default', line 1"),
    ],
)
def test_a_bad_directory_is_named_with_the_reason(tmp_path: Path, files: dict[str, object], reason: str) -> None:
    with pytest.raises(TokenizerError, match=str(tmp_path)) as error:
        Tokenizer.load(directory(tmp_path, **files))
    assert reason in str(error.value)


def test_a_missing_directory(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: cannot be read"):
        Tokenizer.load(tmp_path / "none")


def test_bert_fixture_is_what_it_says() -> None:
    assert bert_tokenizer().encode("hello").tokens[0] == "[CLS]"


def test_a_template_file_takes_the_place_of_the_directorys_own(tmp_path: Path) -> None:
    file = tmp_path / "own.jinja"
    file.write_text("{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}")
    tokenizer = Tokenizer.load(EMBEDDED, chat_template=file)
    assert tokenizer.render_chat({"messages": [{"role": "user", "content": "hi"}]}) == "<user>hi"
    with pytest.raises(TokenizerError, match="cannot be read"):
        Tokenizer.load(EMBEDDED, chat_template=tmp_path / "missing.jinja")
