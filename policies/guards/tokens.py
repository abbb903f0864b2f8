"""Text → tokens: words, numbers, ends of clauses, and literals, which are compared as they are written."""

from __future__ import annotations

import re
import unicodedata
from itertools import pairwise
from typing import Final, NamedTuple

from policies.guards.phrases import PHRASES, Row
from policies.guards.word_lists import listed

WORD: Final = "w"
NUMBER: Final = "n"
LITERAL: Final = "l"
STOP: Final = "."
COMMA: Final = ","


class Token(NamedTuple):
    """A word, a number, a literal, or the end of a clause or sentence."""

    kind: str
    text: str
    """A word in lower case; a number or a literal as written; "" where a clause or a sentence ends."""
    capital: bool = False
    """A word written with a capital; `first` tells whether a sentence begins there, which explains it."""
    first: bool = False
    possessive: bool = False
    upper: bool = False
    """A word of at least two letters, all of them capitals."""


_CURLY = str.maketrans({0x2018: "'", 0x2019: "'", 0x201C: '"', 0x201D: '"', 0xA0: " ", 0x2013: "-", 0x2014: " - "})
_SPAN: Final = re.compile(
    r"```.*?```|`[^`\n]+`|\"[^\"\n]+\"|(?<![\w'])'[^'\n]{1,60}'(?!\w)|[«„][^»“\n]+[»“]", re.DOTALL
)
_SPACE: Final = re.compile(r"\s+")
_PLAIN: Final = re.compile(r"[^\W\d_]+(?:'[^\W\d_]{1,2})?\Z")
_HYPHENED: Final = re.compile(r"(?:[^\W_]+[-/])+[^\W_]+\Z")
_NUMBER: Final = re.compile(
    r"[-+]?[$€£¥]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:%|°?[A-Za-zµ]{1,5}|°)?\Z|[-+]?\.\d+\Z",
)
_INNER_CAPITAL: Final = re.compile(r"[a-z][A-Z]|[A-Z]{2,}[a-z]{2}")
_OPENING = "([{\"'¿¡"
_CLOSING = ")]},.;:!?\"'"
_EMPHASIS: Final = re.compile(r"(\*{1,3})([^*]+)\1\Z")
_AFTER_DIGITS = frozenset("\"'!")
"""Inches, feet, a factorial: no ends of anything."""
_SAYING = frozenset("%‰&#@*/\\§¶·")
"""Punctuation by Unicode's classes that says something by itself."""
_MERE = frozenset({"Pd", "Ps", "Pe", "Pi", "Pf", "Po"})
# Capitals tell these units apart.
_CASED = {"Kb": "kilobit", "Mb": "megabit", "Gb": "gigabit", "Tb": "terabit", "MW": "megawatt", "mW": "milliwatt"}
# Written small, these are no names.
_ACRONYMS = frozenset({"IT", "US", "WHO", "AIDS"})
_RAISED: Final = re.compile("([⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ⁿⁱ]+)|[¼-¾⅐-⅞↉]")
_ASK: Final = ("@ask",)
_ASKING: Final = frozenset(listed("what which who whom whose where when why how if whether @how"))
_SHORT = {"'m": "am", "'re": "are", "'ve": "have", "'ll": "will", "'d": "would"}


def fold(text: str) -> str:
    """The same characters for the same text: compatibility forms, curly quotes and dashes."""
    return unicodedata.normalize("NFKC", _RAISED.sub(_set_apart, text)).translate(_CURLY)


def _set_apart(found: re.Match[str]) -> str:
    """What a compatibility form would run together with its neighbours: 2² is no 22, and 1½ no 11/2."""
    return f"^({found[0]})" if found[1] else f" {found[0]} "


def spaced_evenly(text: str) -> str:
    """The text without white space that says nothing: that in quotes and in code stays as it is."""
    if "\n" in text:
        return text
    pieces: list[str] = []
    at = 0
    for span in _SPAN.finditer(text):
        pieces += (_SPACE.sub(" ", text[at : span.start()]), span.group())
        at = span.end()
    return "".join((*pieces, _SPACE.sub(" ", text[at:])))


def tokenize(text: str) -> list[Token]:
    """Tokens of folded `text`, phrases put in their place."""
    tokens: list[Token] = []
    at = 0
    for span in _SPAN.finditer(text):
        _add_chunks(text[at : span.start()], tokens)
        inner = span.group().strip("`\"'«»„“")
        # A single character in quotes is code: there 'a' is not "a".
        tokens.append(Token(LITERAL, inner if len(inner) != 1 else span.group()))
        at = span.end()
    _add_chunks(text[at:], tokens)
    return _with_phrases(tokens)


def _add_chunks(text: str, tokens: list[Token]) -> None:
    for chunk, following in pairwise([*text.split(), ""]):
        core = chunk.lstrip(_OPENING)
        stripped = core.rstrip(_CLOSING)
        tail = core[len(stripped) :]
        counts = stripped[-1:].isdigit() or (len(stripped) == 1 and stripped.isalpha())
        if counts and tail[:1] in _AFTER_DIGITS and tail[0] not in chunk[: -len(core)]:
            stripped, tail = stripped + tail[0], tail[1:]
        if tail.startswith(")") and stripped.count("(") > stripped.count(")"):
            stripped, tail = stripped + ")", tail[1:]
        if tail.startswith("]") and stripped.count("[") > stripped.count("]"):
            stripped, tail = stripped + "]", tail[1:]
        spoken_of = chunk[0] in "([{" if chunk[1:] else chunk in ".?!;:" and following[:1].islower()
        if not stripped and spoken_of:
            tokens.append(Token(LITERAL, chunk))
            continue
        if chunk[0] in "([{" and len(core) < len(chunk):
            # What is in square brackets, or in curly ones, is code more often than said aside.
            prose = chunk[0] == "(" and not stripped[:1].isdigit()
            tokens.append(Token(COMMA, "") if prose else Token(LITERAL, chunk[0]))
        if stripped in {"e.g", "i.e"}:
            tokens.append(Token(WORD, "suchlike" if stripped == "e.g" else "namely"))
            continue
        if stripped:
            _add_core(_EMPHASIS.sub(r"\2", stripped), tokens)
        tokens += [Token(LITERAL, mark) for mark in tail if mark in "]}" or (mark == ")" and stripped[-1:].isdigit())]
        if tail:
            stops = any(mark in tail for mark in ".?!;")
            tokens.append(Token(STOP, "") if stops else Token(COMMA, ""))


def _add_core(core: str, tokens: list[Token]) -> None:
    first = not tokens or tokens[-1].kind == STOP
    if core in _CASED:
        tokens.append(Token(WORD, _CASED[core]))
    elif core in _ACRONYMS or (core == "None" and not first):
        tokens.append(Token(LITERAL, core))
    elif _PLAIN.match(core):
        if _INNER_CAPITAL.search(core) and not core.endswith("'s"):
            tokens.append(Token(LITERAL, core))
        else:
            _add_word(core, tokens, first)
    elif core[-1].isalnum() is False and core in {"&", "+", "-"}:
        subtracts = core == "-" and bool(tokens) and (tokens[-1].kind == NUMBER or len(tokens[-1].text) == 1)
        tokens.append(
            Token(WORD, "and") if core == "&" else Token(LITERAL if core == "+" or subtracts else COMMA, core)
        )
    elif _NUMBER.match(core):
        tokens.append(Token(NUMBER, core))
    elif _HYPHENED.match(core) and not _INNER_CAPITAL.search(core):
        _add_hyphened(core, tokens)
    elif core.endswith("'s") and len(core) > 2:
        _add_core(core[:-2], tokens)
        tokens[-1] = tokens[-1]._replace(possessive=True)
    elif core == "%":
        tokens.append(Token(WORD, core))
    elif any(letter in _SAYING or unicodedata.category(letter) not in _MERE for letter in core):
        tokens.append(Token(LITERAL, core))


def _add_word(core: str, tokens: list[Token], first: bool) -> None:
    lower = core.lower()
    capital = core[0].isupper()
    if lower.endswith("n't"):
        stem = {"can't": "can", "won't": "will", "shan't": "shall", "ain't": "is"}.get(lower, lower[:-3])
        tokens.extend((Token(WORD, stem, capital, first), Token(WORD, "not")))
        return
    base, mark, end = lower.partition("'")
    if not mark:
        tokens.append(Token(WORD, lower, capital, first, upper=len(core) > 1 and core.isupper()))
    elif mark + end in _SHORT:
        tokens.extend((Token(WORD, base, capital, first), Token(WORD, _SHORT[mark + end])))
    elif end == "s" and base in {"what", "who", "where", "when", "how", "that", "there", "it", "he", "she", "here"}:
        tokens.extend((Token(WORD, base, capital, first), Token(WORD, "is")))
    elif end in {"s", ""}:
        tokens.append(Token(WORD, base, capital, first, possessive=True))
    elif lower == "let's":
        tokens.extend((Token(WORD, "let", capital, first), Token(WORD, "us")))
    else:
        tokens.append(Token(LITERAL, core))


def _add_hyphened(core: str, tokens: list[Token]) -> None:
    if core.lower() in {"state-of-the-art", "cutting-edge"}:
        tokens.append(Token(WORD, "state-of-the-art"))
        return
    pieces = re.split(r"([-/])", core)
    if all(piece.isdigit() for piece in pieces[::2]):
        tokens.append(Token(LITERAL, core))
        return
    if pieces[-1].endswith("ing") and "/" not in pieces:
        # A man-eating shark is no man eating shark.
        tokens.append(Token(WORD, core.lower(), capital=core[0].isupper(), first=not tokens or tokens[-1].kind == STOP))
        return
    for piece in pieces:
        if piece == "/":
            tokens.append(Token(WORD, "or"))
        elif piece != "-":
            _add_core(piece, tokens)


def _with_phrases(tokens: list[Token]) -> list[Token]:
    result: list[Token] = []
    at = 0
    count = len(tokens)
    while at < count:
        token = tokens[at]
        rows = PHRASES.get(token.text) if token.kind == WORD else None
        row = None if rows is None else _row(rows, tokens, at)
        if row is None:
            result.append(token)
            at += 1
            continue
        words, becomes = row
        result.extend(Token(WORD, word, first=token.first and not n) for n, word in enumerate(becomes))
        at += len(words)
    return result


def _asks(tokens: list[Token], at: int) -> bool:
    """Whether a question begins there: "tell me what a joke is", and not "tell me a joke"."""
    return at < len(tokens) and tokens[at].text in _ASKING


def _row(rows: dict[str, list[Row]], tokens: list[Token], at: int) -> Row | None:
    """The longest row that begins here."""
    following = tokens[at + 1] if at + 1 < len(tokens) else None
    if following is not None and following.kind == WORD:
        for words, becomes in rows.get(following.text, ()):
            if all(
                token.text == word and token.kind == WORD
                for token, word in zip(tokens[at : at + len(words)], words, strict=False)
            ) and at + len(words) <= len(tokens):
                if becomes == _ASK and not _asks(tokens, at + len(words)):
                    continue
                return words, becomes
    alone = rows.get("")
    return alone[0] if alone else None
