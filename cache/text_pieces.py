"""Where a text may be cut so that its pieces, tokenized one by one, give the tokens of the whole.

Two kinds of places are safe. *Before an added token* that is matched in raw text and looks at nothing around
itself: tokenizers split there before anything else. *Between words*, in front of a space or a mark, where the
pre-tokenizer splits whatever stands around: shown on probes for the tokenizer at hand, each kind by itself, and not
used where that fails.

A cut depends on where its piece starts and on the few characters around the cut, so texts with a common
beginning have their first pieces in common. Early pieces are short, so that a short system prompt is a piece
of its own; later ones grow, so that a long prompt has few.
"""

from __future__ import annotations

import re
from itertools import pairwise
from os.path import commonprefix
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from policies.types import TokenIds

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tokenizers import AddedToken

    from cache.tokenizer import Tokenizer

SHORTEST_PIECE = 64
"""Characters; an added token nearer than this to the start of its piece is no place to cut."""

REACH_PIECES = 16
"""Pieces within which a cut must come; where none does, the text is one piece from there to its end. Text with no
place to cut (hexadecimal, one letter a million times, Thai) is so recognised by a look at its beginning."""

_LETTERS = (
    "A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u02af"  # Latin
    "\u0391-\u03a1\u03a3-\u03ce\u0400-\u0481\u048a-\u0513\u0531-\u0556\u0561-\u0587"  # Greek, Cyrillic, Armenian
    "\u05d0-\u05ea\u0621-\u063a\u0641-\u064a\u0671-\u06d3"  # Hebrew, Arabic, Persian and Urdu
    "\u0904-\u0939\u0958-\u0961\u0e01-\u0e30\u10d0-\u10f0"  # Devanagari, Thai, Georgian
    "\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fa5\uac00-\ud7a3"  # kana, Chinese characters, Hangul
)
"""Letters old enough that every library's Unicode tables have them: one that a library takes for punctuation would
not end a word."""
_WORD = f"0-9{_LETTERS}"
_NO_SPACE = f"!-~{_LETTERS}"
_VOWEL_SIGNS = "\u05b0-\u05bc\u064b-\u0652\u0900-\u0903\u093a-\u094d\u0980-\u0dff\u0e31-\u0e4e"
"""Signs (and letters) of scripts whose words seldom end in a letter; good enough in front of a space."""


class WordCut(NamedTuple):
    """A kind of place to cut: in front of a character, where others stand around it."""

    char: str
    before: str
    """Characters that may precede `char`, as inside of a regular expression's brackets."""
    after: str = ""
    """The same for what follows; empty: anything, or nothing."""

    @property
    def pattern(self) -> str:
        """Matches at the cut. It begins with the character itself, for which the search is one quick scan."""
        char = re.escape(self.char)
        return f"{char}(?<=[{self.before}]{char})" + (f"(?=[{self.after}])" if self.after else "")


MARKS = '\n\t,;:.!?()"=&/+-*#%@$\\{}' + "，。、；：！？（）「」『』" + "।،؛؟۔"
"""Line ends and punctuation with which no word goes on. Not the apostrophe ("it's"), and none of the brackets and
bars of which added tokens are made."""

WORD_CUTS: tuple[tuple[WordCut, ...], ...] = (
    (
        WordCut(" ", _NO_SPACE + _VOWEL_SIGNS, _NO_SPACE),
        WordCut(" ", _LETTERS + _VOWEL_SIGNS, _LETTERS),
        WordCut(" ", "A-Za-z", "A-Za-z"),
    ),
    *((WordCut(mark, _WORD), WordCut(mark, _LETTERS), WordCut(mark, "\u4e00-\u9fa5")) for mark in MARKS),
)
"""Kinds of places between words. Of each row, the first that is shown to be safe is used."""

_WORD_TEXTS = (
    "Hello world and some more words in a row",
    "It's said that they're here; don't you think so? I do think so",
    "x y z a b c I am A b C D",
    "camelCase words and SHOUTING words mixedUp with ordinary ones",
    "tabs\tand lines\nand  two spaces and 3 numbers 42 between words",
    "naïve café words über straße then plain ASCII words again",
    "e\u0301 accents comb\u0301 ined with words like n\u0303 this one",
    "def name(self, other) -> None: return self if other else None  # a comment here",
    '{"key": "some value here", "other": ["words in lists", 1, null]}',
    " starts with a space and ends with one ",
    "中文，句子。更多、内容；还有：字符，结束。中文字，很长的一段话。又一句",
    "混合 English words，中文。and more words here 文字，文字",
    "\u200bzero width words \ufeff and marks \u202e here again",
    "averyveryverylongwordwithoutanyspaces" * 6 + " followed by short ones",
)

# What may stand on both sides of a cut: each of the first with each of the second, where the kind of cut allows it.
_LEFTS = (
    *("word", "Two Words", "it's", "x", "WORD", "line\nline", "naïve", "e\u0301n", "straß", "if  x", "\tx"),
    *("(y", ".Net", "7", "in 1234", "3.14", "1,000", "x86", "\n\n2", "end.", "really?!", "f()", "a_", "'", "--"),
    *('{"a":', "<b>", "αβγ", "Привет", "ёж", "שלום", "مرحبا", "العدد ٣ هو", "नमस्ते", "हम", "ภาษาไทย", "ქართული"),
    *("日本語", "カタカナ", "ひらがな", "한국어", "中文，字"),
)
_RIGHTS = (
    *("", "word", "two words", "X", "s", "ll go", "'s", "_a", "e\u0301n", "ñ", "7", "1234", "3.14", ".", "..."),
    *("()", ",x", "--x", "/", "//", "://x", "!?", '"x"', "'", "<b>", "\n", "\n\nx", "\r\n", "\t", " ", " x"),
    *("  x", " \n", "αβγ", "мир", "שלום", "العربية", "दुनिया", "ไทย", "日本", "カナ", "かな", "세계", "。", "，中"),
    *("😀",),
)


class PieceCutter:
    """The rule of cutting for one tokenizer. Immutable."""

    def __init__(self, tokenizer: Tokenizer, *, piece_chars: int = 2048) -> None:
        """`piece_chars` is the length from which a piece ends at the next place between words."""
        self.piece_chars = piece_chars
        self._token_gap = max(SHORTEST_PIECE, piece_chars // 2)
        frame = _frame(tokenizer)
        self.separable = frame is not None
        """False when special tokens cannot be added after tokenizing: then a text is one piece."""
        self.prefix, self.suffix = frame or (TokenIds(b""), TokenIds(b""))
        """What a post-processor puts before and behind the ids of a text when special tokens are added."""
        words = () if frame is None else word_cuts(tokenizer)
        tokens = [] if frame is None else cut_tokens(tokenizer.added_tokens)
        if not _proves_tokens(tokenizer, tokens):
            tokens = []
        self._tokens = re.compile(trie_pattern(tokens)) if tokens else None
        patterns = _patterns(words)
        self._words = re.compile("|".join(patterns)) if words else None
        either = [*patterns, trie_pattern(tokens)] if tokens else patterns
        self._either = re.compile("|".join(either)) if either else None
        self._token_start = commonprefix(tokens)  # noqa: RUF071  # of characters, that is what is wanted
        self._longest_token = max(map(len, tokens), default=0)
        self._reach = REACH_PIECES * piece_chars
        self.word_cuts = words
        """The kinds of places between words that are used."""
        self.token_cuts = len(tokens)
        """How many added tokens are places to cut at."""

    def next_cut(self, text: str, start: int) -> int:
        """The end of the piece that starts at `start`: a cut, or the length of the text.

        Reads at most `REACH_PIECES * piece_chars` characters, with a little more around the cut.
        """
        if self._either is None:
            return len(text)
        long = start + self.piece_chars
        if self._tokens is not None:
            # Grows with the distance from the text's start: few pieces in long texts, small ones where
            # prompts part.
            first = start + min(self._token_gap, max(SHORTEST_PIECE, start >> 3))
            # Reaches over `long`, so that a token which starts before it is found whole.
            end = long + self._longest_token
            # str.find first: in text without any token it is seven times as quick as the regular expression.
            first = text.find(self._token_start, first, end)
            if first >= 0 and (found := self._tokens.search(text, first, end)) and found.start() < long:
                return found.start()
        if self._words is not None:
            # Nearly always there is a space soon, and nothing that could begin a token before it.
            near = self._words.search(text, long, long + 64)
            if near and (self._tokens is None or text.find(self._token_start, long, near.start()) < 0):
                return near.start()
        # From `long` on either kind will do, so that the search never reads far beyond the cut which it
        # finds.
        found = self._either.search(text, long, start + self._reach)
        return len(text) if found is None else found.start()

    def cuts(self, text: str, start: int = 0) -> Iterator[int]:
        """The ends of all pieces from `start` on; the last is the length of the text."""
        while start < len(text):
            start = self.next_cut(text, start)
            yield start


def cut_tokens(added: Sequence[AddedToken]) -> list[str]:
    """The added tokens in front of which a text may be cut.

    Matched in raw text (not normalized), with no rule about the characters around them; and no added token
    may hold one's beginning anywhere but at its own start, or the place in front of an occurrence could lie
    inside of a match.
    """
    contents = [token.content for token in added]
    plain = {t.content for t in added if not (t.normalized or t.lstrip or t.rstrip or t.single_word)}
    # A token that strips white space on its left reaches back over a cut; one that starts with it could be
    # reached.
    candidates = [content for content in contents if content in plain and not content[:1].isspace() and content]
    others = [content for content in contents if content not in plain]
    # Where a candidate is the beginning of a longer token with rules, it is that token which matches there.
    candidates = [c for c in candidates if not any(other.startswith(c) for other in others)]
    # Most tokens hold no such character but at their start; only the others need the full look.
    firsts = {candidate[0] for candidate in candidates}
    risky = [content for content in contents if not firsts.isdisjoint(content[1:])]
    return [c for c in candidates if not any(_may_cover(other, c) for other in risky)]


def _may_cover(token: str, candidate: str) -> bool:
    """Can a match of `token` start before an occurrence of `candidate` and reach into it?"""
    first = token.find(candidate[0], 1)
    while first >= 0:
        inner = token[first:]
        if inner.startswith(candidate) or candidate.startswith(inner):
            return True
        first = token.find(candidate[0], first + 1)
    return False


def trie_pattern(words: Sequence[str]) -> str:
    """A regular expression for any of `words`, the longest first, that reads each character once.

    An alternation of a thousand tokens would be tried one by one at every character with which they begin.
    """
    tails: dict[str, list[str]] = {}
    for word in words:
        if word:
            tails.setdefault(word[0], []).append(word[1:])
    branches = []
    for first, rest in tails.items():
        inner = trie_pattern(rest)
        branches.append(re.escape(first) + inner)
    if not branches:
        return ""
    pattern = branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"
    return f"(?:{pattern})?" if "" in words else pattern


def _frame(tokenizer: Tokenizer) -> tuple[TokenIds, TokenIds] | None:
    """The ids put around a text by the post-processor; None when it does anything but put ids around."""
    empty = tokenizer.encode("", add_special_tokens=True)
    for size in range(0, len(empty) + 1, 4):
        prefix, suffix = TokenIds(empty[:size]), TokenIds(empty[size:])
        if all(
            tokenizer.encode(text, add_special_tokens=True)
            == prefix + tokenizer.encode(text, add_special_tokens=False) + suffix
            for text in _WORD_TEXTS
        ):
            return prefix, suffix
    return None


def _encode(tokenizer: Tokenizer, text: str) -> TokenIds:
    return tokenizer.encode(text, add_special_tokens=False)


_proved: WeakKeyDictionary[Tokenizer, tuple[WordCut, ...]] = WeakKeyDictionary()


def word_cuts(tokenizer: Tokenizer) -> tuple[WordCut, ...]:
    """The kinds of places between words where this tokenizer splits whatever stands around; at most one of a row.

    Takes some tenths of a second, once for a tokenizer.
    """
    if (known := _proved.get(tokenizer)) is None:
        found = (next((cut for cut in row if _proves_cut(tokenizer, cut)), None) for row in WORD_CUTS)
        splits = tokenizer.reference.pre_tokenizer is not None
        known = _proved[tokenizer] = tuple(cut for cut in found if cut is not None) if splits else ()
    return known


def _patterns(cuts: Sequence[WordCut]) -> list[str]:
    """Patterns for the cuts, those with the same surroundings in one: a search tries them one by one."""
    chars: dict[tuple[str, str], list[str]] = {}
    for cut in cuts:
        chars.setdefault((cut.before, cut.after), []).append(re.escape(cut.char))
    return [
        f"[{''.join(group)}](?<=[{before}](?s:.))" + (f"(?=[{after}])" if after else "")
        for (before, after), group in chars.items()
    ]


def _proves_cut(tokenizer: Tokenizer, cut: WordCut) -> bool:
    """Does a cut at every match of the pattern leave the tokens as they are?"""
    if any(_in_the_way(token, cut) for token in tokenizer.added_tokens):
        return False
    pattern = re.compile(cut.pattern)
    places = {text: [match.start() for match in pattern.finditer(text)] for text in _WORD_TEXTS}
    # All pairs for white space; for each mark another quarter of them, as there are many marks of few kinds.
    step = 1 if cut.char.isspace() else _QUARTER
    rights = [cut.char + right for right in _RIGHTS]
    pairs = [
        (left, right)
        for i, left in enumerate(_LEFTS)
        for j, right in enumerate(rights)
        if (i + j) % step == ord(cut.char) % step and pattern.match(left + right, len(left))
    ]
    if len(pairs) < _FEWEST_PAIRS:
        return False  # no proof
    if not all(_splits_there(tokenizer, left + right, [len(left)]) for left, right in pairs):
        return False
    alone = [*_LEFTS, *rights]
    ids = dict(zip(alone, tokenizer.encode_many(alone), strict=True))
    wholes = tokenizer.encode_many([left + right for left, right in pairs])
    return all(ids[left] + ids[right] == whole for (left, right), whole in zip(pairs, wholes, strict=True)) and all(
        _splits_there(tokenizer, text, found) and _same_tokens(tokenizer, text, found) for text, found in places.items()
    )


_QUARTER = 4
_FEWEST_PAIRS = 10


def _in_the_way(token: AddedToken, cut: WordCut) -> bool:
    """Could a match of an added token reach over such a cut, or depend on what is behind or in front of it?"""
    char, first, last = re.escape(cut.char), token.content[:1], token.content[-1:]
    follows = f"(?:[{cut.after}]|$)" if cut.after else ""
    if re.search(f"[{cut.before}]{char}{follows}", token.content):
        return True
    if token.rstrip and cut.char.isspace() and re.match(f"[{cut.before}]", last):
        return True  # it swallows the space
    return bool(token.single_word and first == cut.char)  # behind a word it is no match, at a piece's start it is


def _same_tokens(tokenizer: Tokenizer, text: str, places: Sequence[int]) -> bool:
    whole = _encode(tokenizer, text)
    pieces = [text[start:end] for start, end in pairwise([0, *places, len(text)])]
    return b"".join(_encode(tokenizer, piece) for piece in pieces) == whole and all(
        _encode(tokenizer, text[:place]) + _encode(tokenizer, text[place:]) == whole for place in places
    )


def _splits_there(tokenizer: Tokenizer, text: str, places: Sequence[int]) -> bool:
    """Does the pre-tokenizer split at all the places by itself?

    That a vocabulary has no token over these few places proves nothing of texts to come; a split does.
    """
    pre_tokenizer, normalizer = tokenizer.reference.pre_tokenizer, tokenizer.reference.normalizer
    if pre_tokenizer is None:
        return False
    if normalizer is not None and normalizer.normalize_str(text) != text:
        return True  # other characters, other places: the equality of tokens has to do
    ends = {end for _, span in pre_tokenizer.pre_tokenize_str(text) for end in span}
    return ends.issuperset(places)


def _proves_tokens(tokenizer: Tokenizer, tokens: Sequence[str]) -> bool:
    """Does a cut before each of `tokens` leave the tokens as they are, on a sample?"""
    for token in tokens[:: max(1, len(tokens) // 32)]:
        for before, after in (
            ("word", "word"),
            ("line\n", "\nline"),
            (" ", " "),
            (token, token),
            ("中。", "中"),
        ):
            whole = before + token + after
            if _encode(tokenizer, before) + _encode(tokenizer, token + after) != _encode(tokenizer, whole):
                return False
    return True
