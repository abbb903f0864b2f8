"""Prompts of a model whose tokenizer only its workers have, for workers that publish KV events.

Events speak of tokens, so a chain of text never meets them. What was tokenized before is known at once (see
`token_memory`): a conversation that grows is known but for its last turn. The rest is asked of a worker, and waited
for only where it may lengthen a match that is worth a round trip. Whatever fails ends in text mode.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, cast

from backends.remote_tokenizer import RemoteTokenizer, chat_request, text_request
from cache.block_hash import TOKEN_BYTES, ChainKey
from cache.chat_messages import TemplateError
from cache.prefix_index import PrefixIndex
from cache.remote_tokens import RemoteTokenizeError
from cache.text_blocks import TextBytes
from gateway.calls import Call
from gateway.prompt_text import PromptSource, chat_without_attachments
from gateway.prompts import PromptView, ReadingLimits, guess
from gateway.routes import Kind
from gateway.text_prompts import TextReader, canonical, fill_from_text, read_source, salt_of, view_of_ids
from gateway.token_memory import TokenMemory
from policies.types import TokenIds

log = logging.getLogger(__name__)

_MAX_PENDING: Final = 64
_MAX_BYTES: Final = 1_000_000
"""Longer prompts are read as text: their ids would weigh on the worker and on the loop."""
_WORTH_BYTES: Final = 2_048
"""A tail that is shorter is prefilled about as soon as a worker has answered: it is not waited for."""


class _Tail(NamedTuple):
    """What is left to find out about a prompt."""

    text: TextBytes
    special: bool
    request: Mapping[str, object]
    asked_for: str
    """The model as the request names it: the worker to ask must know it by that name."""
    model: str
    adapter: str
    salt: str
    block_sizes: Sequence[int]


class RemoteReader:
    """Reads the prompts of one model with its workers' help. A `Reader`."""

    def __init__(
        self,
        name: str,
        remote: RemoteTokenizer,
        memory: TokenMemory,
        *,
        index: PrefixIndex,
        text: TextReader,
        limits: ReadingLimits,
        clock: Callable[[], float],
    ) -> None:
        """`text` reads what is not for workers to tokenize; `clock` is the loop's time."""
        self.name = name
        self._remote = remote
        self._memory = memory
        self._index = index
        self._text = text
        self._limits = limits
        self._clock = clock
        self._under_way: dict[tuple[TextBytes, bool, str], list[tuple[PromptView, _Tail, Callable[[], None]]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def available(self, call: Call) -> bool:
        """Is there a worker that tokenizes for the model of this request, as far as is known?"""
        return self._remote.available(call.model or self.name, self._clock())

    def read(self, call: Call, *, adapter: str, block_sizes: Sequence[int], longest: int | None) -> PromptView:
        """What is known of a prompt; never waits."""
        source = read_source(call, self._limits)
        if source is None:  # too much to be shaped, too
            return guess(call)
        try:
            fields, attachments = chat_without_attachments(call.chat)
            readable = source.ids is None and not attachments
            text = canonical(call, source) if readable else TextBytes(b"")
        except TemplateError:
            return guess(call)  # the worker will say what is wrong with it
        if not readable or len(text) > _MAX_BYTES:
            return self._text.read(call, adapter=adapter, block_sizes=block_sizes, longest=longest)
        special, salt = _adds_special(call, source), salt_of(call)
        known = self._memory.find(text, special=special, salt=salt)
        view = view_of_ids(known.ids, self.name, adapter, block_sizes, salt=salt, share=source.share)
        if known.complete:
            return view
        tail_bytes = len(text) - known.text_bytes
        tokens = len(known.ids) // TOKEN_BYTES + tail_bytes * self._memory.tokens_per_byte
        view.tokens = max(round(tokens / view.share), 1)
        model = call.model or self.name
        request = (
            text_request(model, source.text, add_special_tokens=special)
            if call.kind is Kind.COMPLETION
            else chat_request(model, fields)
        )
        view.rest = (_Tail(text, special, request, model, self.name, adapter, salt, tuple(block_sizes)),)
        view.matters = tail_bytes >= _WORTH_BYTES and self._may_be_held(view)
        return view

    def resolve(self, view: PromptView, done: Callable[[], None]) -> bool:
        """Ask a worker for the ids; `done` is called when they are in `view`, or will never be. A prompt that is asked
        for already is not asked for twice.
        """
        tail = cast("_Tail", view.rest[0])
        prompt = (tail.text, tail.special, tail.salt)
        waiting = self._under_way.get(prompt)
        if waiting is None and (len(self._under_way) >= _MAX_PENDING or self._remote.busy):
            return False
        view.rest = ()
        if waiting is not None:
            waiting.append((view, tail, done))
            return True
        self._under_way[prompt] = [(view, tail, done)]
        task = asyncio.get_running_loop().create_task(self._ask(prompt, tail))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    async def close(self) -> None:
        """End what is under way."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _ask(self, prompt: tuple[TextBytes, bool, str], tail: _Tail) -> None:
        ids: TokenIds | None = None
        try:
            ids = await self._remote.tokenize(tail.asked_for, tail.request)
        except RemoteTokenizeError:
            pass  # the tokenizer tells it, where it is a worker's fault
        except asyncio.CancelledError:
            del self._under_way[prompt]
            raise
        except Exception:
            log.exception("model %s: a prompt could not be tokenized", self.name)
        else:
            self._memory.remember(tail.text, ids, special=tail.special, salt=tail.salt)
        for view, each, done in self._under_way.pop(prompt):
            _fill(view, each, ids)
            done()

    def _may_be_held(self, view: PromptView) -> bool:
        """Could more tokens lengthen any worker's match? Only where one holds all that is known, be it nothing."""
        return any(
            max(self._index.match(blocks.hashes).values(), default=0) == len(blocks.hashes)
            for blocks in view.blocks.values()
        )


def _adds_special(call: Call, source: PromptSource) -> bool:
    """Does the engine add special tokens? In a chat the template has them already, unless the request says so."""
    return source.add_special_tokens if call.kind is Kind.COMPLETION else call.fields.get("add_special_tokens") is True


def _fill(view: PromptView, tail: _Tail, ids: TokenIds | None) -> None:
    """Complete a view. Without ids, what was known of a prompt stays, and one of which nothing was becomes text."""
    if ids is not None:
        known = view_of_ids(ids, tail.model, tail.adapter, tail.block_sizes, salt=tail.salt, share=view.share)
        view.blocks, view.tokens = known.blocks, known.tokens
    elif not any(blocks.hashes for blocks in view.blocks.values()):
        view.confirmable = False
        fill_from_text(view, tail.text, ChainKey(tail.model, 1, tail.adapter, salt=tail.salt), tail.block_sizes)
