"""Prompts of models whose tokenizer nobody knows: fixed pieces of text stand for blocks of tokens.

A prompt is written as bytes in one canonical form and cut every `TOKEN_TEXT_BYTES * block_size` bytes; the pieces are
hashed and chained as blocks of tokens are, under a root of a domain of its own. So two prompts share leading hashes
when their text begins alike, each hash stands for about `block_size` tokens, and prediction and matching need no
tokenizer. No engine's events speak of such blocks (their tokens make other hashes): they are for predictions alone.

The canonical form puts first what chat templates put first, the system prompt and the tools, and then the messages in
their order. Its parts are framed by bytes that UTF-8 never has (0xf8 to 0xff), so no text can be mistaken for a frame,
and no length stands before a text: what a conversation adds leaves every byte before it as it was.
"""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, Final, NewType

import orjson

from cache.block_hash import TOKEN_BYTES, ChainKey, extend_chain, root_hash
from cache.prompt_blocks import PromptBlocks
from policies.types import TokenIds

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from policies.types import BlockHash

TEXT_CHAIN: Final = b"prefixgate text chain v1"
"""Domain of chains of text."""

TOKEN_TEXT_BYTES: Final = TOKEN_BYTES
"""Bytes of UTF-8 that stand for one token: about right for English, code and, at three bytes a character, Chinese.
Equal to the bytes of a token id, so that one function hashes both."""

TextBytes = NewType("TextBytes", bytes)
"""A prompt in its canonical form."""

_MESSAGE: Final = b"\xff"
_FIELD: Final = b"\xfe"
_PART: Final = b"\xfd"
_HEAD: Final = b"\xfc"
_PLAIN: Final = b"\xfb"

_SYSTEM_ROLES: Final = frozenset({"system", "developer"})
_HEAD_FIELDS: Final = ("tools", "documents", "chat_template", "chat_template_kwargs", "reasoning_effort")
"""What else a template is given; most write it at the start, and those that do not only match less."""
_JSON: Final = orjson.OPT_NON_STR_KEYS


def completion_text(prompt: str) -> TextBytes:
    """The canonical form of a completion's prompt."""
    return TextBytes(_PLAIN + _utf8(prompt))


def chat_text(fields: Mapping[str, object]) -> TextBytes:
    """The canonical form of a chat, from the request's body. Never raises: whatever is no text is written as JSON.

    Images and other attachments are best taken out before, their digests in the `ChainKey`: here their whole data
    would be hashed. Keys of JSON objects count in the order they are in, as they do for templates.
    """
    messages = fields.get("messages")
    messages = messages if type(messages) is list else [messages]
    n_system = sum(1 for _ in takewhile(_is_system, messages))
    chunks: list[bytes] = []
    for message in messages[:n_system]:
        chunks += _message(message)
    for name in _HEAD_FIELDS:
        if fields.get(name) is not None:
            chunks += (_HEAD, name.encode(), _FIELD, _json(fields[name]))
    for message in messages[n_system:]:
        chunks += _message(message)
    return TextBytes(b"".join(chunks))


def hash_text(key: ChainKey, text: TextBytes) -> PromptBlocks:
    """The prompt's full pieces, each about `key.block_size` tokens, and its length in tokens as far as bytes tell."""
    chain = extend_chain(text_root(key), TokenIds(text), key.block_size)
    return PromptBlocks(chain, -(-len(text) // TOKEN_TEXT_BYTES))


def text_root(key: ChainKey) -> BlockHash:
    """The parent of the first piece. Differs from the root of every chain of tokens."""
    return root_hash(key, TEXT_CHAIN)


def _is_system(message: object) -> bool:
    return type(message) is dict and message.get("role") in _SYSTEM_ROLES


def _message(message: object) -> Iterator[bytes]:
    yield _MESSAGE
    if type(message) is not dict:
        yield _json(message)
        return
    role = message.get("role")
    yield _utf8(role) if type(role) is str else _json(role)
    # Not between role and content, where templates write nothing: what is rare would move all that is usual.
    yield from _content(message.get("content"))
    for name, value in message.items():
        if name not in {"role", "content"} and value is not None:
            yield from (_FIELD, _utf8(str(name)), _FIELD, _utf8(value) if type(value) is str else _json(value))


def _content(content: object) -> Iterator[bytes]:
    parts = content if type(content) is list else [content]
    for part in parts:
        text = part.get("text") if type(part) is dict and part.get("type") in {"text", None} else part
        # A text alone and a list of that one text are the same prompt for most templates.
        yield from (_PART, _utf8(text)) if type(text) is str else (_PART, _FIELD, _json(part))


def _utf8(text: str) -> bytes:
    # A lone surrogate becomes bytes of its own, not an error.
    return text.encode("utf-8", "surrogatepass")


def _json(value: object) -> bytes:
    try:
        return orjson.dumps(value, option=_JSON)
    except TypeError:
        # Lone surrogates, integers beyond 64 bits, or nesting too deep: nothing an engine would take either.
        return _utf8(repr(value)) if _is_shallow(value) else b"deep"


def _is_shallow(value: object) -> bool:
    """Whether `repr` stays within the stack."""
    level: list[object] = [value]
    for _ in range(200):
        level = [
            item
            for outer in level
            if type(outer) is dict or type(outer) is list
            for item in (outer.values() if type(outer) is dict else outer if type(outer) is list else ())
        ]
        if not level:
            return True
    return False
