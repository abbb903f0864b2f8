"""Text mode: the prompts of a model whose tokenizer nobody knows, as chained pieces of text.

What a worker was sent is predicted to be in its cache, and prompts that begin alike meet there; that needs no
tokenizer, no request to anybody, and costs one pass of hashing. Lengths in tokens are guessed from bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cache.block_hash import ChainKey
from cache.chat_messages import TemplateError
from cache.prompt_blocks import PromptBlockCache
from cache.text_blocks import TextBytes, chat_text, completion_text, hash_text
from gateway.calls import Call
from gateway.prompt_text import PromptSource, amount, chat_without_attachments, completion_source
from gateway.prompts import PromptView, ReadingLimits, guess
from gateway.routes import Kind
from policies.types import TokenIds


class TextReader:
    """Reads the prompts of one model as text. A `Reader` that is always done at once."""

    def __init__(self, name: str, *, limits: ReadingLimits) -> None:
        self.name = name
        self._limits = limits

    def read(self, call: Call, *, adapter: str, block_sizes: Sequence[int], longest: int | None) -> PromptView:
        """The whole prompt, as far as it is not too much to be read; a prompt of token ids as what it is."""
        source = read_source(call, self._limits)
        if source is None or (source.ids is not None and longest and len(source.ids) // 4 > longest):
            return guess(call)
        salt = salt_of(call)
        if source.ids is not None:
            return view_of_ids(source.ids, self.name, adapter, block_sizes, salt=salt, share=source.share)
        view = PromptView(0, confirmable=False, share=source.share)
        try:
            text = canonical(call, source)
        except TemplateError:
            return guess(call)  # the worker will say what is wrong with it
        if len(text) > self._limits.max_chars:  # with its tools and calls, which were not counted before
            return guess(call)
        fill_from_text(view, text, ChainKey(self.name, 1, adapter, salt=salt), block_sizes)
        return view

    def resolve(self, view: PromptView, done: Callable[[], None]) -> bool:  # noqa: ARG002 - one signature for all
        """Nothing is ever left to find out."""
        return False


def read_source(call: Call, limits: ReadingLimits) -> PromptSource | None:
    """The prompt to read, without the text of a chat (see `canonical`); None where it is none or too much."""
    pieces, chars = amount(call.fields)
    if not pieces or not call.generates or call.partial or chars > limits.max_chars:
        return None
    if call.kind is Kind.COMPLETION:
        return completion_source(call)
    return None if pieces > limits.max_messages else PromptSource()


def canonical(call: Call, source: PromptSource) -> TextBytes:
    """The text of a prompt in the form in which it is hashed. In a chat, an attachment's digest stands in its place:
    what comes before it is shared with the same chat without it.

    Raises:
        TemplateError: The chat has another shape than its dialect's, or no message.
    """
    if call.kind is Kind.COMPLETION:
        return completion_text(source.text)
    fields, _ = chat_without_attachments(call.chat, inline=True)
    messages = fields.get("messages")
    if type(messages) is not list or not messages:
        reason = "there are no messages"
        raise TemplateError(reason)
    return chat_text(fields)


def salt_of(call: Call) -> str:
    """The tenant's salt, as engines read it; empty for none."""
    salt = call.fields.get("cache_salt")
    return salt if type(salt) is str else ""


def fill_from_text(view: PromptView, text: TextBytes, key: ChainKey, block_sizes: Sequence[int]) -> None:
    """Put chains of text into a view, one for each block size."""
    for size in block_sizes:
        view.blocks[size] = blocks = hash_text(key._replace(block_size=size), text)
        view.tokens = max(round(blocks.n_tokens / view.share), 1)


def view_of_ids(
    ids: TokenIds, model: str, adapter: str, block_sizes: Sequence[int], *, salt: str, share: float
) -> PromptView:
    """A view of a prompt whose leading token ids are known."""
    view = PromptView(max(round(len(ids) // 4 / share), 1), share=share)
    for size in block_sizes:
        view.blocks[size] = PromptBlockCache.hash_ids(ChainKey(model, size, adapter, salt=salt), ids)
    return view
