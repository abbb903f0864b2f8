"""Which reader reads the prompts of which model. Nobody needs to name a tokenizer to start.

| The model has | and its workers | so its prompts are read |
|---|---|---|
| a configured tokenizer | – | as tokens, here (`PromptReader`) |
| none | are set to publish KV events, and one answers `/tokenize` | as tokens that a worker tells (`RemoteReader`) |
| none | publish none, or none tokenizes | as text (`TextReader`) |

Text suffices where nothing but predictions is matched, for they are chained the same way. It is never compared with
events, whose blocks are chained tokens. Which of the last two rows holds is asked anew for each prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from backends.remote_tokenizer import RemoteTokenizer
from cache.prefix_index import PrefixIndex
from cache.prompt_blocks import PromptBlockCache
from gateway.calls import Call
from gateway.prompts import PromptReader, PromptView, Reader, ReadingLimits
from gateway.remote_prompts import RemoteReader
from gateway.text_prompts import TextReader
from gateway.token_memory import TokenMemory

_MAX_MADE: Final = 64
"""Readers without a configured tokenizer: each has a memory of its own."""


class AutoReader:
    """Reads the prompts of a model without a configured tokenizer. A `Reader`."""

    def __init__(self, text: TextReader, remote: RemoteReader, has_events: Callable[[str], bool]) -> None:
        """`has_events` tells whether any worker of a base model is set to publish KV events. That its feed is live is
        not asked for: an engine that is idle publishes nothing, and a chain that changes with the feed's state would
        lose what it had predicted.
        """
        self.name = text.name
        self._text = text
        self._remote = remote
        self._has_events = has_events

    def read(self, call: Call, *, adapter: str, block_sizes: Sequence[int], longest: int | None) -> PromptView:
        """By tokens where they can be had and events are to be met, else by text."""
        remote = self._has_events(self.name) and self._remote.available(call)
        reader: Reader = self._remote if remote else self._text
        return reader.read(call, adapter=adapter, block_sizes=block_sizes, longest=longest)

    def resolve(self, view: PromptView, done: Callable[[], None]) -> bool:
        """Only views of tokens have anything left to find out."""
        return self._remote.resolve(view, done) if view.rest else False

    async def close(self) -> None:
        """End what is under way."""
        await self._remote.close()


def make_reader(
    name: str,
    *,
    remote: RemoteTokenizer,
    memory: TokenMemory,
    index: PrefixIndex,
    limits: ReadingLimits,
    has_events: Callable[[str], bool],
    clock: Callable[[], float],
) -> AutoReader:
    """The reader of a model without a configured tokenizer. `memory` belongs to this model alone, as token ids mean
    nothing for another; `clock` is the loop's time.
    """
    text = TextReader(name, limits=limits)
    reader = RemoteReader(name, remote, memory, index=index, text=text, limits=limits, clock=clock)
    return AutoReader(text, reader, has_events)


class ReaderTable:
    """Readers by base model: those configured, and others made when a model is first asked for."""

    def __init__(self, configured: Mapping[str, Reader], make: Callable[[str], AutoReader]) -> None:
        """`make` is called once for each further model that workers serve."""
        self._configured = configured
        self._make = make
        self._made: dict[str, AutoReader] = {}

    def configure(self, configured: Mapping[str, Reader]) -> None:
        """Put other configured readers in place of those there were."""
        self._configured = configured

    def configured(self, model: str) -> Reader | None:
        """The reader that the configuration gave a model."""
        return self._configured.get(model)

    def caches(self) -> dict[str, PromptBlockCache]:
        """The caches of tokenized prefixes, by model."""
        readers = self._configured.items()
        return {model: reader.cache for model, reader in readers if isinstance(reader, PromptReader)}

    def get(self, model: str) -> Reader:
        """The reader of a base model."""
        reader = self._configured.get(model) or self._made.get(model)
        if reader is None:
            while len(self._made) >= _MAX_MADE:  # the oldest; what is under way in it ends by itself
                self._made.pop(next(iter(self._made)))
            reader = self._made[model] = self._make(model)
        return reader

    async def close(self) -> None:
        """End what is under way in all of them."""
        for reader in list(self._made.values()):
            await reader.close()
