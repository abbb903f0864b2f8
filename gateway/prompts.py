"""From a request to the block hashes of its prompt, doing as little as the routing decision needs.

Text that was seen before costs a lookup. A short new tail is tokenized at once, on the loop. Of a long new tail only
a taste is: if no worker holds everything known up to there, no further token can lengthen any worker's match, and the
request need not wait. Otherwise, and for the prediction in any case, the rest is tokenized in a thread.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from cache.block_hash import ChainKey
from cache.prefix_index import PrefixIndex
from cache.prompt_blocks import EncodedTail, PromptBlockCache, PromptBlocks, PromptScan
from cache.tokenizer import TemplateError, Tokenizer
from gateway.openai_api import Call, Kind
from policies.types import TokenIds

log = logging.getLogger(__name__)

_CHARS_PER_TOKEN: Final = 4
"""A guess for prompts nobody counts; it only has to be right to a factor."""
_MAX_PENDING: Final = 64
"""Prompts whose tails may wait for a thread at once; further ones are routed by what is known of them."""


@dataclass(slots=True)
class PromptView:
    """What is known of a prompt: `blocks` by block size, and its length in tokens, counted or guessed."""

    tokens: int
    blocks: dict[int, PromptBlocks] = field(default_factory=dict)
    rest: list[tuple[int, PromptScan]] = field(default_factory=list)
    """Scans with a tail that nobody has tokenized yet."""
    matters: bool = False
    """True where the rest may lengthen a match, so that the decision should wait for it."""


class PromptReader:
    """Reads the prompts of one model."""

    def __init__(
        self,
        name: str,
        tokenizer: Tokenizer,
        cache: PromptBlockCache,
        index: PrefixIndex,
        executor: ThreadPoolExecutor,
        *,
        inline_chars: int,
        taste_chars: int,
    ) -> None:
        """Tails of up to `inline_chars` are tokenized at once; of longer ones at first about `taste_chars`."""
        self.name = name
        self.tokenizer = tokenizer
        self.cache = cache
        self._index = index
        self._executor = executor
        self._inline_chars = inline_chars
        self._taste_chars = taste_chars
        self._under_way: dict[object, list[tuple[PromptView, Callable[[], None]]]] = {}
        self._template_failed = False

    def read(self, call: Call, *, adapter: str, block_sizes: Sequence[int], longest: int | None) -> PromptView:
        """Look at a chat's or completion's prompt; never waits. `longest` is the longest prompt in tokens that any
        worker can hold, where that is known: a text that must be longer is not tokenized at all.
        """
        if call.kind is Kind.EMBEDDING:
            return guess(call)
        text, ids, special = self._text(call)
        salt = call.fields.get("cache_salt")
        images = image_digests(call.fields) if call.kind is Kind.CHAT else ()
        view = PromptView(0)
        if ids is None and (not text or (longest and len(text) > longest * self.tokenizer.longest_token_chars)):
            return guess(call)
        for size in block_sizes:
            key = ChainKey(self.name, size, adapter, images, salt if type(salt) is str else "")
            if ids is not None:
                blocks = self.cache.hash_ids(key, ids)
                view.blocks[size] = blocks
                view.tokens = blocks.n_tokens
            else:
                self._scan(view, size, self.cache.start(key, text, add_special_tokens=special))
        return view

    def resolve(self, view: PromptView, done: Callable[[], None]) -> bool:
        """Tokenize the rest in a thread; `done` is called on the loop once `view` is complete (or never will be).
        False where too many wait already, and nothing was begun. A prompt that is under way is not begun twice.
        """
        rest = view.rest
        prompt = tuple([(size, scan.whole_key) for size, scan in rest])
        waiting = self._under_way.get(prompt)
        if waiting is None and len(self._under_way) >= _MAX_PENDING:
            return False
        view.rest = []
        if waiting is not None:
            waiting.append((view, done))
            return True
        self._under_way[prompt] = [(view, done)]
        encode = self.cache.encode
        future = asyncio.get_running_loop().run_in_executor(
            self._executor, lambda: [(size, scan, encode(scan)) for size, scan in rest]
        )

        def finish(future: asyncio.Future[list[tuple[int, PromptScan, EncodedTail]]]) -> None:
            waiting = self._under_way.pop(prompt)
            scans: list[tuple[int, PromptScan]] = []
            if not future.cancelled() and future.exception() is None:
                scans = [(size, self.cache.finish(scan, tail)) for size, scan, tail in future.result()]
            for waiter, call_back in waiting:
                for size, scan in scans:
                    self._take(waiter, size, scan)
                call_back()

        future.add_done_callback(finish)
        return True

    def _scan(self, view: PromptView, size: int, scan: PromptScan) -> None:
        cache = self.cache
        if not scan.complete:
            if scan.tail_chars <= self._inline_chars:
                scan = cache.finish(scan, cache.encode(scan))
            else:
                scan = cache.finish(scan, cache.encode(scan, max_chars=self._taste_chars))
        self._take(view, size, scan)
        if not scan.complete:
            view.rest.append((size, scan))
            hashes = scan.known.hashes
            deepest = max(self._index.match(hashes).values(), default=0)
            view.matters = view.matters or deepest == len(hashes)

    def _take(self, view: PromptView, size: int, scan: PromptScan) -> None:
        known = scan.known.n_tokens
        view.blocks[size] = scan.known
        view.tokens = known
        if scan.tail_chars:  # its tokens are as long as those known
            view.tokens += round(scan.tail_chars * known / max(len(scan.text) - scan.tail_chars, 1))

    def _text(self, call: Call) -> tuple[str, TokenIds | None, bool]:
        """The prompt's text or ids, and whether the engine adds special tokens to it."""
        if call.kind is Kind.CHAT:
            try:
                return (
                    self.tokenizer.render_chat(call.fields),
                    None,
                    call.fields.get("add_special_tokens") is True,
                )
            except TemplateError as error:
                if not self._template_failed:
                    self._template_failed = True
                    log.warning("model %s: a chat could not be rendered and was routed by load: %s", self.name, error)
                return "", None, False
        prompt = call.fields.get("prompt")
        if type(prompt) is list and prompt and type(prompt[0]) in (str, list):
            prompt = prompt[0]  # a batch: its first prompt decides
        if type(prompt) is str:
            return prompt, None, call.fields.get("add_special_tokens") is not False
        if type(prompt) is list and prompt and all(type(token) is int and 0 <= token < 1 << 32 for token in prompt):
            return "", TokenIds(b"".join([token.to_bytes(4, "little") for token in prompt])), False
        return "", None, False


def guess(call: Call) -> PromptView:
    """A prompt nobody tokenizes: its length is guessed from its text."""
    return PromptView(max(_chars(call.fields) // _CHARS_PER_TOKEN, 1))


def _chars(fields: Mapping[str, object]) -> int:
    chars = 0
    for value in (fields.get("prompt"), fields.get("input"), fields.get("messages")):
        if type(value) is str:
            chars += len(value)
        elif type(value) is list:
            for item in value:
                content = item.get("content") if type(item) is dict else item
                if type(content) in (str, list):
                    chars += len(content)  # type: ignore[arg-type]  # one of the two, and mypy cannot see it
    return chars


def image_digests(fields: Mapping[str, object]) -> tuple[bytes, ...]:
    """A digest of each image a chat refers to, in order: by its URL, which holds the data where it is inline."""
    messages = fields.get("messages")
    if type(messages) is not list:
        return ()
    digests = []
    for message in messages:
        content = message.get("content") if type(message) is dict else None
        if type(content) is list:
            for part in content:
                if type(part) is dict and part.get("type") == "image_url":
                    image = part.get("image_url")
                    url = image.get("url") if type(image) is dict else image
                    digests.append(hashlib.sha256(str(url).encode(errors="surrogatepass")).digest())
    return tuple(digests)
