"""From a request to the block hashes of its prompt, doing as little as the routing decision needs.

Text that was seen before costs a lookup. A short new tail is tokenized at once, on the loop. Of a long new tail only
a taste is: if no worker holds everything known up to there, no further token can lengthen any worker's match, and the
request need not wait. Otherwise, and for the prediction in any case, the rest is tokenized in a thread.

Models without a configured tokenizer have readers of their own, in `text_prompts` and `remote_prompts`;
`reader_table` says which is used when.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, Protocol, cast

from cache.block_hash import ChainKey
from cache.chat_messages import chat_size
from cache.prefix_index import PrefixIndex
from cache.prompt_blocks import EncodedTail, PromptBlockCache, PromptBlocks, PromptScan
from cache.tokenizer import TemplateError, Tokenizer
from gateway.calls import Call
from gateway.prompt_text import PromptSource, amount, chat_without_attachments, completion_source
from gateway.routes import Kind

log = logging.getLogger(__name__)

_CHARS_PER_TOKEN: Final = 4
"""A guess for prompts nobody counts; it only has to be right to a factor."""
_VALUES_PER_MESSAGE: Final = 5
_FEW_MESSAGES: Final = 100
_FEW_CHARS: Final = 100_000
_MAX_PENDING: Final = 64
"""Prompts whose tails may wait for a thread at once; further ones are routed by what is known of them."""


@dataclass(frozen=True, slots=True)
class ReadingLimits:
    """How much of a prompt is read, in characters unless told otherwise."""

    inline_chars: int = 16_384
    """Longest new tail that is tokenized at once, on the loop."""
    taste_chars: int = 2_048
    """About so much of a longer one is, to see whether the rest matters."""
    max_chars: int = 4_000_000
    """A longer prompt is not read at all."""
    max_messages: int = 2_000
    """Nor is a chat of more messages."""


@dataclass(slots=True)
class PromptView:
    """What is known of a prompt: `blocks` by block size, and its length in tokens, counted or guessed."""

    tokens: int
    blocks: dict[int, PromptBlocks] = field(default_factory=dict)
    rest: Sequence[object] = ()
    """What nobody has tokenized yet, for the `resolve` of the reader that made this view."""
    matters: bool = False
    """True where the rest may lengthen a match, so that the decision should wait for it."""
    confirmable: bool = True
    """False where no engine's events will ever speak of these blocks: attachments are in their chain."""
    share: float = 1.0
    """Share of its batch that the prompt which was read is."""


class Reader(Protocol):
    """Reads the prompts of one model."""

    def read(self, call: Call, *, adapter: str, block_sizes: Sequence[int], longest: int | None) -> PromptView:
        """Look at a prompt; never waits. `longest` is the longest prompt in tokens that any worker can hold, where
        that is known.
        """

    def resolve(self, view: PromptView, done: Callable[[], None]) -> bool:
        """Begin to find out the rest; `done` is called on the loop, not from within this call, once `view` is complete
        (or never will be). False where nothing was begun.
        """


class PromptReader:
    """Reads the prompts of a model whose tokenizer is at hand. A `Reader`."""

    def __init__(
        self,
        name: str,
        tokenizer: Tokenizer,
        cache: PromptBlockCache,
        *,
        index: PrefixIndex,
        executor: ThreadPoolExecutor,
        limits: ReadingLimits,
    ) -> None:
        """`executor` runs what would hold up the loop."""
        self.name = name
        self.tokenizer = tokenizer
        self.cache = cache
        self._index = index
        self._executor = executor
        self._limits = limits
        self._under_way: dict[object, list[tuple[PromptView, Callable[[], None]]]] = {}
        self._in_trouble = False

    def read(self, call: Call, *, adapter: str, block_sizes: Sequence[int], longest: int | None) -> PromptView:
        """Look at a chat's or completion's prompt; never waits. `longest` is the longest prompt in tokens that any
        worker can hold, where that is known: a text that must be longer is not tokenized at all.
        """
        source = self._source(call, longest)
        if source is None:
            return guess(call)
        salt = call.fields.get("cache_salt")
        view = PromptView(0, confirmable=not source.attachments, share=source.share)
        for size in block_sizes:
            key = ChainKey(self.name, size, adapter, source.attachments, salt if type(salt) is str else "")
            if source.ids is not None:
                self._take(view, size, self.cache.hash_ids(key, source.ids))
            else:
                scan = self.cache.start(key, source.text, add_special_tokens=source.add_special_tokens)
                self._scan(view, size, scan)
        return view

    def resolve(self, view: PromptView, done: Callable[[], None]) -> bool:
        """Tokenize the rest in a thread; `done` is called on the loop once `view` is complete (or never will be).
        False where too many wait already, and nothing was begun. A prompt that is under way is not begun twice.
        """
        rest = cast("Sequence[tuple[int, PromptScan]]", view.rest)
        prompt = tuple([(size, scan.whole_key) for size, scan in rest])
        waiting = self._under_way.get(prompt)
        if waiting is None and len(self._under_way) >= _MAX_PENDING:
            return False
        view.rest = ()
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
            if future.cancelled():
                return
            if (error := future.exception()) is not None:
                log.error("model %s: a prompt could not be tokenized", self.name, exc_info=error)
            else:
                scans = [(size, self.cache.finish(scan, tail)) for size, scan, tail in future.result()]
            for waiter, call_back in waiting:
                for size, scan in scans:
                    self._take(waiter, size, scan.known, scan)
                call_back()

        future.add_done_callback(finish)
        return True

    def _source(self, call: Call, longest: int | None) -> PromptSource | None:
        """The prompt to read, or None where none can be read or it is too much."""
        limits = self._limits
        pieces, chars = amount(call.fields)
        if not call.generates or call.partial or chars > limits.max_chars:
            return None
        if call.kind is Kind.COMPLETION:
            source = completion_source(call)
            if source is None or (source.ids is not None and longest and len(source.ids) // 4 > longest):
                return None
        elif pieces > limits.max_messages or self._is_long_to_render(call, pieces, chars):
            return None
        else:
            source = self._rendered(call)
        if source is not None and len(source.text) > limits.max_chars:
            return None
        if source is not None and longest and len(source.text) > longest * self.tokenizer.longest_token_chars:
            return None
        return source

    def _is_long_to_render(self, call: Call, pieces: int, chars: int) -> bool:
        """Would the template hold up the loop? Asked of those only that are long or have tools."""
        if pieces <= _FEW_MESSAGES and chars <= _FEW_CHARS and "tools" not in call.fields:
            return False
        most = _VALUES_PER_MESSAGE * self._limits.max_messages
        return chat_size(call.unshaped, most_values=most)[0] > most

    def _rendered(self, call: Call) -> PromptSource | None:
        try:
            fields, attachments = chat_without_attachments(call.chat)
            text = self.tokenizer.render_chat(fields)
        except TemplateError as error:
            if not self._in_trouble:
                self._in_trouble = True
                log.warning("model %s: a chat could not be rendered and was routed by load: %s", self.name, error)
            return None
        if self._in_trouble:
            self._in_trouble = False
            log.info("model %s: chats can be rendered again", self.name)
        special = fields.get("add_special_tokens") is True
        return PromptSource(text=text, add_special_tokens=special, attachments=attachments)

    def _scan(self, view: PromptView, size: int, scan: PromptScan) -> None:
        cache, limits = self.cache, self._limits
        if not scan.complete:
            if scan.tail_chars <= limits.inline_chars:
                scan = cache.finish(scan, cache.encode(scan))
            else:
                scan = cache.finish(scan, cache.encode(scan, max_chars=limits.taste_chars))
        self._take(view, size, scan.known, scan)
        if not scan.complete:
            view.rest = [*view.rest, (size, scan)]
            hashes = scan.known.hashes
            deepest = max(self._index.match(hashes).values(), default=0)
            view.matters = view.matters or deepest == len(hashes)

    def _take(self, view: PromptView, size: int, known: PromptBlocks, scan: PromptScan | None = None) -> None:
        tokens = float(known.n_tokens)
        if scan is not None and scan.tail_chars:  # its tokens are about as long as those known
            known_chars = len(scan.text) - scan.tail_chars
            tokens += scan.tail_chars * (tokens / known_chars if known_chars else 1 / _CHARS_PER_TOKEN)
        view.blocks[size] = known
        view.tokens = max(round(tokens / view.share), 1)


def guess(call: Call) -> PromptView:
    """A prompt nobody tokenizes: its length is guessed from its text."""
    return PromptView(max(amount(call.fields).chars // _CHARS_PER_TOKEN, 1))
