"""The decoders of a tokenizer.json as stages that take tokens one by one, each exact with bounded memory. Pure.

A stage gets pieces of text and gives pieces of text, so that all pieces together are what the `tokenizers` library
makes of the whole list. Source: `tokenizers/src/decoders/` of that library.
"""

from __future__ import annotations

import codecs
import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

MOST_HELD_BYTES: Final = 64
"""A run of byte tokens is valid or broken as a whole, so it is held back while it lasts, up to so many bytes."""

_BYTE_TOKEN: Final = re.compile(r"<0x([0-9A-Fa-f]{2}|\+[0-9A-Fa-f])>")
_BROKEN: Final = "\N{REPLACEMENT CHARACTER}"


class UnsupportedDecoderError(ValueError):
    """A tokenizer's decoder that cannot be run token by token; the message names it."""


class Stage(Protocol):
    """One decoder."""

    def feed(self, pieces: Iterable[str]) -> list[str]:
        """What comes out for these pieces."""

    def end(self) -> list[str]:
        """What was held back."""


def byte_level_alphabet() -> dict[str, int]:
    """GPT-2's characters for bytes: printable ones of Latin-1 stand for themselves, the others follow from U+0100."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(plain)]
    return {chr(b): b for b in plain} | {chr(0x100 + at): b for at, b in enumerate(others)}


_ALPHABET: Final = byte_level_alphabet()


@functools.lru_cache(maxsize=1 << 16)
def byte_level_bytes(piece: str) -> bytes:
    """Bytes of a token of byte-level BPE; one with a character outside of the alphabet is text as it stands."""
    try:
        return bytes([_ALPHABET[char] for char in piece])
    except KeyError:
        return piece.encode()


def byte_of(piece: str) -> int | None:
    """The byte that a token such as `<0x0A>` stands for."""
    found = _BYTE_TOKEN.fullmatch(piece)
    return int(found[1], 16) if found else None


class _ByteLevel:
    """Bytes, then UTF-8 with U+FFFD for what is broken."""

    def __init__(self) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, pieces: Iterable[str]) -> list[str]:
        return [text for piece in pieces if (text := self._utf8.decode(byte_level_bytes(piece)))]

    def end(self) -> list[str]:
        return [self._utf8.decode(b"", final=True)]


class _Map:
    """Each piece by itself."""

    def __init__(self, change: Callable[[str], str]) -> None:
        self._change = change

    def feed(self, pieces: Iterable[str]) -> list[str]:
        return list(map(self._change, pieces))

    def end(self) -> list[str]:
        return []


class _MapFirst:
    """Each piece by itself, the very first in another way."""

    def __init__(self, first: Callable[[str], str], later: Callable[[str], str], *, begun: bool) -> None:
        self._first = first
        self._later = later
        self._begun = begun

    def feed(self, pieces: Iterable[str]) -> list[str]:
        made = []
        for piece in pieces:
            made.append(self._later(piece) if self._begun else self._first(piece))
            self._begun = True
        return made

    def end(self) -> list[str]:
        return []


class _ByteFallback:
    """A run of byte tokens: its text if it is valid UTF-8 as a whole, else U+FFFD for each byte."""

    def __init__(self) -> None:
        self._run = bytearray()
        self._broken = False

    def feed(self, pieces: Iterable[str]) -> list[str]:
        made: list[str] = []
        for piece in pieces:
            byte = byte_of(piece)
            if byte is not None:
                made += self._take(byte)
            else:
                made += self.end()
                made.append(piece)
        return made

    def _take(self, byte: int) -> list[str]:
        if self._broken:
            return [_BROKEN]
        self._run.append(byte)
        try:
            whole = len(self._run)
            self._run.decode()
        except UnicodeDecodeError as error:
            whole = error.start
            if error.reason != "unexpected end of data":
                # Nothing that follows can mend the run.
                self._broken = True
                return self._flush_broken()
        if len(self._run) < MOST_HELD_BYTES:
            return []
        text = self._run[:whole].decode()
        del self._run[:whole]
        return [text]

    def _flush_broken(self) -> list[str]:
        made = [_BROKEN] * len(self._run)
        self._run.clear()
        return made

    def end(self) -> list[str]:
        self._broken = False
        try:
            made = [self._run.decode()] if self._run else []
        except UnicodeDecodeError:
            return self._flush_broken()
        self._run.clear()
        return made


class _StripHead:
    """Takes up to `most` of a character off the beginning of the whole text."""

    def __init__(self, char: str, most: int) -> None:
        self._char = char
        self._left = most

    def feed(self, pieces: Iterable[str]) -> list[str]:
        made = []
        for piece in pieces:
            kept = _without_head(piece, self._char, self._left)
            self._left = 0 if kept else self._left - len(piece)
            made.append(kept)
        return made

    def end(self) -> list[str]:
        return []


class _Suffixed:
    """The end-of-word suffix as a space, the last piece's as nothing: one piece is held back."""

    def __init__(self, suffix: str) -> None:
        self._suffix = suffix
        self._last: str | None = None

    def feed(self, pieces: Iterable[str]) -> list[str]:
        made = []
        for piece in pieces:
            if self._last is not None:
                made.append(self._last.replace(self._suffix, " "))
            self._last = piece
        return made

    def end(self) -> list[str]:
        last, self._last = self._last, None
        return [] if last is None else [last.replace(self._suffix, "")]


def _without_head(text: str, char: str, most: int) -> str:
    kept = text.lstrip(char)
    return kept if len(text) - len(kept) <= most else text[most:]


_CONTRACTIONS: Final = (
    *((" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'"), (" n't", "n't"), (" 'm", "'m")),
    *((" do not", " don't"), (" 's", "'s"), (" 've", "'ve"), (" 're", "'re")),
)
"""What BERT's clean-up takes the space from, in its order."""


def _clean(text: str) -> str:
    for spaced, tight in _CONTRACTIONS:
        text = text.replace(spaced, tight)
    return text


def _word_piece(config: Mapping[str, Any], *, begun: bool) -> Stage:
    prefix = config["prefix"]
    clean = _clean if config["cleanup"] else str

    def later(piece: str) -> str:
        return clean(piece[len(prefix) :] if piece.startswith(prefix) else " " + piece)

    return _MapFirst(clean, later, begun=begun)


def _metaspace(config: Mapping[str, Any], *, begun: bool) -> Stage:
    sign = config["replacement"]
    first = " " if config["prepend_scheme"] == "never" else ""
    return _MapFirst(lambda piece: piece.replace(sign, first), lambda piece: piece.replace(sign, " "), begun=begun)


def build_stages(config: Mapping[str, Any] | None, *, begun: bool) -> list[Stage]:
    """The stages of a tokenizer.json's `decoder`; `begun`: text stands in front of the first piece.

    Raises UnsupportedDecoderError.
    """
    if config is None:
        return [_MapFirst(str, lambda piece: " " + piece, begun=begun)]
    stages: list[Stage] = []
    fused = False
    for step in _flat(config):
        if step["type"] == "Fuse":
            fused = True
        else:
            stages.append(_stage(step, fused=fused, begun=begun))
            fused = fused or step["type"] == "ByteLevel"
    return stages


def _flat(config: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    if config["type"] != "Sequence":
        return [config]
    return [step for inner in config["decoders"] for step in _flat(inner)]


def _stage(step: Mapping[str, Any], *, fused: bool, begun: bool) -> Stage:
    """`fused`: the library has one text here, and no tokens."""
    match step["type"]:
        case "Replace" if (sign := step["pattern"].get("String")) and (not fused or len(sign) == 1):
            return _Map(lambda piece: piece.replace(sign, step["content"]))
        case "Strip" if not step["stop"] and fused:
            return _StripHead(step["content"], 0 if begun else step["start"])
        case "Strip" if not step["stop"]:
            return _Map(lambda piece: _without_head(piece, step["content"], step["start"]))
        case "ByteLevel" if not fused:
            return _ByteLevel()
        case "ByteFallback" if not fused:
            return _ByteFallback()
        case "Metaspace" if not fused:
            return _metaspace(step, begun=begun)
        case "WordPiece" if not fused:
            return _word_piece(step, begun=begun)
        case "BPEDecoder" if not fused:
            return _Suffixed(step["suffix"])
        case kind:
            raise UnsupportedDecoderError(f"a tokenizer's decoder {kind} with these settings cannot be run by token")
