"""Two ways from text to ids: `tokenizers`, the reference, and `fastokens` where it proves the same.

`fastokens` is ten times as fast and refuses some tokenizers; equality is not assumed but shown, on the probes
below, each time a tokenizer is loaded. All that is untyped in either library stays inside this module.
"""

from __future__ import annotations

import logging
from array import array
from itertools import pairwise
from sys import byteorder
from typing import TYPE_CHECKING, Any, Protocol

import fastokens

from policies.types import TokenIds

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import tokenizers

log = logging.getLogger(__name__)

_FAST_BATCH_CHARS = 16_000
LONG_TEXT_CHARS = 2_000
"""From here on `tokenizers` encodes as a batch, which lets the GIL go (and costs 30 microseconds more)."""


class TokenBackend(Protocol):
    """Text to ids, by one library. Thread-safe."""

    name: str

    def encode(self, text: str, *, add_special_tokens: bool) -> TokenIds:
        """Ids of one text. Raises UnicodeEncodeError or TypeError on text with a lone surrogate."""

    def encode_many(self, texts: Sequence[str]) -> list[TokenIds]:
        """Ids of each text, without the tokens that a post-processor adds."""


def ids_to_bytes(ids: Iterable[int]) -> TokenIds:
    """Ids as little-endian u32. Raises OverflowError when one does not fit."""
    packed = array("I", ids)
    if byteorder == "big":
        packed.byteswap()
    return TokenIds(packed.tobytes())


def bytes_to_ids(ids: TokenIds) -> list[int]:
    """The ids as integers."""
    unpacked = array("I", ids)
    if byteorder == "big":
        unpacked.byteswap()
    return unpacked.tolist()


class ReferenceBackend:
    """The `tokenizers` library."""

    name = "tokenizers"

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str, *, add_special_tokens: bool) -> TokenIds:
        """See `TokenBackend`."""
        if len(text) < LONG_TEXT_CHARS:
            return ids_to_bytes(self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)
        (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return ids_to_bytes(encoding.ids)

    def encode_many(self, texts: Sequence[str]) -> list[TokenIds]:
        """See `TokenBackend`."""
        if sum(map(len, texts)) < LONG_TEXT_CHARS:
            return [self.encode(text, add_special_tokens=False) for text in texts]
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [ids_to_bytes(encoding.ids) for encoding in encodings]


class FastBackend:
    """The `fastokens` library, with the reference behind it for a text on which it fails.

    `encode_batch_flat` returns the ids as bytes in the form of `TokenIds`, with no Python object for each
    token. Its cache of words grows with the text seen, by about 8 MB for each MB of wholly new words, and
    cannot be bounded from outside; figures in `tests/bench/tokens.py`.
    """

    name = "fastokens"

    def __init__(self, tokenizer_json: str, fallback: TokenBackend) -> None:
        # Any: the library ships no py.typed marker.
        self._tokenizer: Any = fastokens.Tokenizer.from_json_str(tokenizer_json)
        self._fallback = fallback
        self.failures = 0
        """Texts which the library failed on, and the reference encoded."""

    def encode(self, text: str, *, add_special_tokens: bool) -> TokenIds:
        """See `TokenBackend`."""
        try:
            flat: tuple[bytes, bytes] = self._tokenizer.encode_batch_flat([text], add_special_tokens=add_special_tokens)
        except BaseException as error:  # noqa: BLE001  # a Rust panic is one; others are raised again
            self._count(error)
            return self._fallback.encode(text, add_special_tokens=add_special_tokens)
        return TokenIds(flat[0])

    def encode_many(self, texts: Sequence[str]) -> list[TokenIds]:
        """See `TokenBackend`."""
        if sum(map(len, texts)) < _FAST_BATCH_CHARS:
            # The library hands a batch to its threads, which costs more than a few short texts do.
            return [self.encode(text, add_special_tokens=False) for text in texts]
        try:
            flat: tuple[bytes, bytes] = self._tokenizer.encode_batch_flat(list(texts), add_special_tokens=False)
        except BaseException as error:  # noqa: BLE001  # a Rust panic is one; others are raised again
            self._count(error)
            return self._fallback.encode_many(texts)
        ids, offsets = flat
        bounds = [4 * offset for offset in memoryview(offsets).cast("Q")]
        return [TokenIds(ids[start:end]) for start, end in pairwise(bounds)]

    def _count(self, error: BaseException) -> None:
        if not is_library_failure(error):
            raise error
        if self.failures == 0:
            log.warning("fastokens failed on a text, tokenizers takes over for it: %s", type(error).__name__)
        self.failures += 1


def is_library_failure(error: BaseException) -> bool:
    """Did the library fail, rather than someone interrupt it? A Rust panic comes as a bare BaseException."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def choose_backend(tokenizer_json: str, reference: ReferenceBackend, tokens: Sequence[str]) -> tuple[TokenBackend, str]:
    """The backend to use and why, in words for the log; `tokens` are added tokens to put into the probes."""
    try:
        fast = FastBackend(tokenizer_json, reference)
    except BaseException as error:
        if not is_library_failure(error):
            raise
        return reference, f"fastokens refuses this tokenizer: {error}"
    texts = probe_texts(tokens)
    for text in texts:
        for add_special_tokens in (True, False):
            expected = reference.encode(text, add_special_tokens=add_special_tokens)
            if fast.encode(text, add_special_tokens=add_special_tokens) != expected:
                return reference, f"fastokens gives other ids for {text[:40]!r}"
    if fast.encode_many(texts) != reference.encode_many(texts):
        return reference, "fastokens gives other ids for a batch"
    if fast.failures:
        return reference, f"fastokens failed on {fast.failures} of the probes"
    return fast, f"fastokens gives the ids of tokenizers on {len(texts)} probes"


_PROBES = (
    "",
    " ",
    "a",
    "Hello, world!",
    " leading and trailing ",
    "don't we'll I'M THEY'RE it's o'clock 'tis",
    "antidisestablishmentarianism" * 8,
    "a" * 300,
    "The quick brown fox jumps over the lazy dog. " * 20,
    ("tabs\tand\t\ttabs, spaces   and      spaces \n\n\n lines\r\n\r\nof \n \n  text\u00a0\u2003\u3000wide\u200bzero"),
    "1 12 123 1234 12345 3.14159 1,000,000 0x7fff 1e-9 ² ½ Ⅳ ٣٤٥ १२३",
    "!?!... ;;; --- *** /// \\\\ <<>> {{}} [[]] (()) @#$%^&*_+=|~`",
    "def f(x: int) -> str:\n    '''doc'''\n    return f\"{x!r}\"  # comment\n\n\nclass A(B):\n\tpass\n",
    '{"name": "get_weather", "arguments": {"city": "Zürich", "days": [1, 2, null], "ok": true}}\n',
    "<html>\n<body class='x'>&amp; <br/>\n\n<!-- c --></body>\n</html>",
    "SELECT * FROM t WHERE a>=10 AND b<>'x';\n-- comment\n",
    "https://example.com/a/b?c=d&e=%20f#g user.name+tag@example.co.uk C:\\Users\\x /usr/local/lib",
    "naïve café Ångström straße İstanbul ΑΒΓ αβγ ς Привет мир ёж",
    "e\u0301 n\u0303 a\u030a\u0323 o\u0302\u0301 \u1e9b\u0323 ﬁ ﬃ Å \u212b ① ㍿ ｆｕｌｌ ｗｉｄｔｈ",
    "你好，世界。这是一个测试！中文和English混排，第123章。",
    "こんにちは世界。カタカナ ｶﾀｶﾅ ひらがな 안녕하세요 세계 한국어 텍스트",
    "مرحبا بالعالم العربية שלום עולם नमस्ते दुनिया สวัสดีชาวโลก ខ្មែរ ქართული հայերեն",
    "😀😃 👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪🇫🇷 👍🏽 ❤️ \u2764 𝕏 𝒜𝓑 🀄 \U0001f9d1\U0001f3ff\u200d\U0001f680",
    "\u0000\u0001\u007f\u0085\ufeff\ufffd\ufffe\u202e\u2028\u2029\ue000\U0010ffff",
    "mixedCASEWords snake_case_words kebab-case-words SCREAMING_SNAKE XMLHttpRequest iPhone15Pro",
    "a.b.c,d;e:f!g?h(i)j[k]l{m}n<o>p/q\\r|s't\"u`v~w@x#y$z%a^b&c*d-e+f=g_h",
    "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVphYmNkZWZnaGlqa2xtbm9w" * 4,
    "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
)


def probe_texts(tokens: Sequence[str]) -> list[str]:
    """Texts of many kinds, and the given added tokens in every position that has rules of its own."""
    texts = list(_PROBES)
    for token in tokens:
        texts += [
            token,
            token * 3,
            f"before{token}after",
            f"before {token} after",
            f" \n{token}\n\n{token} x{token}{token[:-1]}{token}1",
        ]
    texts.append("\n".join(texts))
    return texts
