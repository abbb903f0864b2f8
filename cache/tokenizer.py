"""A model's tokenizer: text to ids, chats to text, equal to what the engine itself would make."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from math import prod
from sys import maxsize
from typing import TYPE_CHECKING, Any

from cache.chat_template import ChatTemplate, NotTextError, TemplateError
from cache.token_backends import ReferenceBackend, TokenBackend, choose_backend
from cache.tokenizer_files import TokenizerError, TokenizerFiles, read_text, read_tokenizer_files

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import tokenizers
    from tokenizers import AddedToken

    from policies.types import TokenIds

__all__ = ["NotTextError", "TemplateError", "Tokenizer", "TokenizerError"]

log = logging.getLogger(__name__)

_PROBED_TOKENS = 24
"""Added tokens put into the start-up probes; some tokenizers have a thousand that differ in a number."""


class Tokenizer:
    """One model's tokenizer; immutable after loading, and thread-safe."""

    def __init__(self, files: TokenizerFiles, *, backends: Sequence[str] = ("fastokens", "tokenizers")) -> None:
        reference = ReferenceBackend(files.tokenizer)
        self._reference = files.tokenizer
        self.added_tokens: tuple[AddedToken, ...] = tuple(files.tokenizer.get_added_tokens_decoder().values())
        """Every token that is matched in the text before it is split, with its flags."""
        self.special_tokens = frozenset(token.content for token in self.added_tokens if token.special)
        """The added tokens which decoding may skip: markers of turns, begin and end of text."""
        self.vocab_size: int = files.tokenizer.get_vocab_size(with_added_tokens=True)
        self._backend: TokenBackend = reference
        self.backend_reason = "asked for"
        if "fastokens" in backends:
            probed = [token.content for token in self.added_tokens][:: max(1, len(self.added_tokens) // _PROBED_TOKENS)]
            self._backend, self.backend_reason = choose_backend(files.tokenizer.to_str(), reference, probed)
        self.longest_token_chars = _longest_token_chars(files.tokenizer)
        """A text of n characters has at least n / this many tokens. `sys.maxsize`: no bound holds."""
        self.chat_template = ChatTemplate(files.templates, files.special_tokens) if files.templates else None
        """None when the directory has no chat template: only completions can be tokenized."""

    @classmethod
    def load(
        cls,
        directory: Path,
        *,
        backends: Sequence[str] = ("fastokens", "tokenizers"),
        chat_template: Path | None = None,
    ) -> Tokenizer:
        """Read a Hugging Face tokenizer directory; `backends` are those allowed, and the file `chat_template` takes
        the place of the directory's own templates. Raises TokenizerError.

        Takes from 0.1 s to about 2 s with a large vocabulary, most of it to prove `fastokens` equal to
        `tokenizers`.
        """
        files = read_tokenizer_files(directory)
        if chat_template is not None:
            files = replace(files, templates={"default": read_text(chat_template)})
        try:
            tokenizer = cls(files, backends=backends)
        except ValueError as error:
            raise TokenizerError(directory, str(error)) from error
        log.info("tokenizer %s: %s (%s)", directory, tokenizer.backend, tokenizer.backend_reason)
        return tokenizer

    @property
    def backend(self) -> str:
        """`fastokens` or `tokenizers`: the library that encodes."""
        return self._backend.name

    @property
    def reference(self) -> tokenizers.Tokenizer:
        """The `tokenizers` object, for questions about structure."""
        return self._reference

    def encode(self, text: str, *, add_special_tokens: bool) -> TokenIds:
        """Ids of `text`. Engines add special tokens (a BOS) to completions and not to rendered chats.

        Raises ValueError when the text has a lone surrogate.
        """
        try:
            return self._backend.encode(text, add_special_tokens=add_special_tokens)
        except TypeError as error:
            raise ValueError(NO_SURROGATES) from error

    def encode_many(self, texts: Sequence[str]) -> list[TokenIds]:
        """Ids of each text, as one call to the library; no special tokens are added. Raises as `encode`."""
        try:
            return self._backend.encode_many(texts)
        except TypeError as error:
            raise ValueError(NO_SURROGATES) from error

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the ids, special tokens included; an id outside of the vocabulary adds nothing."""
        return str(self._reference.decode(list(ids), skip_special_tokens=False))

    def render_chat(self, body: Mapping[str, object]) -> str:
        """The prompt of a chat request's body. Raises TemplateError without a template or when it refuses."""
        if self.chat_template is None:
            message = "this model's tokenizer has no chat template"
            raise TemplateError(message)
        return self.chat_template.render(body)


NO_SURROGATES = "the text has a lone surrogate, which no UTF-8 text can have"

_NFC_SHRINK = 4
"""The most characters that canonical composition makes one of."""


def _longest_token_chars(tokenizer: tokenizers.Tokenizer) -> int:
    """A bound by the vocabulary, where each character becomes a part of some token.

    That holds for byte-level BPE and for BPE that falls back on bytes; WordPiece drops white space, Unigram
    makes one unknown token of a run, and added tokens with `lstrip` or `rstrip` swallow any amount of white
    space.
    """
    structure = json.loads(tokenizer.to_str())
    shrink = _normalizer_shrink(structure["normalizer"])
    stripping = any(token["lstrip"] or token["rstrip"] for token in structure["added_tokens"])
    if shrink is None or stripping or structure["model"]["type"] != "BPE":
        return maxsize
    byte_level = '"type":"ByteLevel"' in json.dumps(structure["pre_tokenizer"], separators=(",", ":"))
    if not (byte_level or structure["model"].get("byte_fallback")):
        return maxsize
    return shrink * max(map(len, tokenizer.get_vocab(with_added_tokens=True)), default=maxsize)


def _normalizer_shrink(normalizer: Any) -> int | None:  # a piece of JSON
    """How many characters of text can become one of normalized text; None when there is no bound."""
    kind = normalizer["type"] if normalizer else None
    if kind is None or kind in ("Prepend", "NFD", "ByteLevel"):
        return 1
    if kind == "NFC":
        return _NFC_SHRINK
    if kind == "Replace":
        pattern = normalizer["pattern"].get("String")
        return 1 if pattern and len(pattern) <= len(normalizer["content"]) else None
    if kind == "Sequence":
        shrinks = [_normalizer_shrink(step) for step in normalizer["normalizers"]]
        return None if None in shrinks else prod(shrink for shrink in shrinks if shrink)
    return None
