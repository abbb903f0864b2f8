"""A text read once for the guards: `profile(text)`."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import Final

from policies.guards.addressed import READER, is_anybody, is_last, is_said_to_reader
from policies.guards.closed_words import (
    ASSURING,
    AUXILIARY,
    CONJUNCTION,
    DIRECTION,
    DISCOURSE,
    ENGLISH,
    FOREIGN,
    MODAL,
    NEGATION,
    PAST_AUXILIARY,
    POLITE,
    PREPOSITION,
    PRESENT_BE,
    PRONOUN,
    QUANTIFIER,
    QUESTION,
    SILENT,
)  # fmt: skip
from policies.guards.numerals import CARDINALS, MONTHS, ORDINALS, SCALES, plain, spoken_number, unit_of, written_number
from policies.guards.profile import NO_MARKS, NOTHING, Item, Profile
from policies.guards.software import tells_of_software
from policies.guards.stemming import BASE, ED, ING, root, stem
from policies.guards.synonyms import GENERAL
from policies.guards.thesaurus import STATEMENT
from policies.guards.tokens import COMMA, LITERAL, NUMBER, STOP, WORD, Token, fold, spaced_evenly, tokenize
from policies.guards.word_lists import listed, words

MAX_CHARACTERS: Final = 2_000
MAX_WORDS: Final = 256

_DATE_WORDS = frozenset(MONTHS) - {"may", "march", "mar"} | words(
    "monday tuesday wednesday thursday friday saturday sunday today tomorrow yesterday tonight morning afternoon "
    "evening night noon midnight weekend weekday spring summer autumn fall winter christmas easter"
)
_EDGES = ",.;:!?()"
_ARTICLES = frozenset({"a", "an", "the"})
_COMPARING = frozenset({"than", "instead", "before", "after", "unlike", "until"})
_CLAUSES = frozenset({"when", "where"})
_END = Token(STOP, "")
_STRICT_ORDER = frozenset(stem(word)[0] for word in listed("respectively former latter vice versa"))


def profile(text: str) -> Profile:
    """Everything guards need of `text`. Never raises; what is too long is only compared as a whole."""
    raw = fold(text).strip()
    exact = spaced_evenly(raw)
    bare = exact.rstrip(" .?!") or exact
    if (bare[-1:].isdigit() or bare[-2:-1] == " ") and exact[len(bare) : len(bare) + 1] == "!":  # a factorial
        bare += "!"
    end = exact[len(bare) :].strip()
    made = Profile(exact=bare, folded=bare.casefold(), end="?" if "?" in end else end[:1] and ".")
    if len(raw) > MAX_CHARACTERS or raw.count(" ") > MAX_WORDS:
        made.too_long = True
        return made
    tokens = tokenize(raw)
    if len(tokens) > 2 * MAX_WORDS:
        made.too_long = True
        return made
    made.english = _is_english(tokens)
    made.bag = tuple(sorted(word.strip(_EDGES) for word in made.folded.split()))
    _Reader(made, tokens, raw).read()
    return made


def _is_english(tokens: list[Token]) -> bool:
    words = [token.text for token in tokens if token.kind == WORD]
    if not words:
        return True
    own = sum(word in ENGLISH or word[0] == "@" for word in words)
    foreign = sum(word in FOREIGN and word not in ENGLISH for word in words)
    strange = sum(not word.isascii() for word in words)
    other_script = any(ord(letter) > 0x24F for word in words for letter in word if not letter.isascii())
    return not other_script and foreign <= own // 3 and strange * 4 <= len(words) and (own > 0 or len(words) < 3)


def _is_noun(token: Token) -> bool:
    """As far as the word itself tells: "what books" asks which books."""
    if token.kind != WORD:
        return False
    return token.text not in ENGLISH and token.text not in _ARTICLES and not token.text.startswith("@")


def _is_letter(token: Token) -> bool:
    """Vitamin A, plan A, 5 M: a single capital within a sentence stands for itself."""
    return token.capital and not token.first and len(token.text) == 1


def _unit(token: Token) -> str:
    return unit_of(token.text, capital=token.capital and not token.upper) if token.kind == WORD else ""


@lru_cache(maxsize=20_000)
def _lexical(word: str) -> tuple[str, str, frozenset[int], frozenset[int | str]]:
    """Stem, ending, and what may stand for the word: in any text, and where one tells of software."""
    base, ending = stem(word)
    return base, ending, GENERAL.get(base, NOTHING), frozenset({*STATEMENT.get(base, ()), root(base)})


class _Reader:
    """Walks over the tokens once, gathering marks until an item takes them."""

    def __init__(self, made: Profile, tokens: list[Token], raw: str) -> None:
        self.made = made
        self.tokens = tokens
        self.hard: list[str] = []
        self.marks: list[str] = []
        self.links: list[str] = []
        self.aux = ""
        self.tense: list[str] = []
        self.negations: list[str] = []
        self.asides: list[str] = []
        self.auxiliaries: list[str] = []
        self.sentence = 0
        self.comma = False
        self.article = self.definite = False
        self.opens = True
        self.auxiliary = False
        self.raw = raw
        self.question = raw.rstrip().endswith("?")

    def read(self) -> None:
        made, tokens = self.made, self.tokens
        made.software = tells_of_software(tokens)
        made.opening = self._opening()
        made.answer = tokens[0].text if tokens and tokens[0].text in {"yes", "no"} and tokens[1:2] else ""
        made.question = self.question or bool(made.opening)
        at = 0
        while at < len(tokens):
            at += self._step(at)
        items = made.items
        if is_anybody([item.key for item in items]):
            for item in items:
                item.hard -= READER
            self.marks = [mark for mark in self.marks if mark not in READER]
        made.tail, made.tail_links = frozenset(self.hard), tuple(self.links)
        made.keys = frozenset(item.key for item in items)
        made.numbers = tuple(sorted(item.key for item in items if item.key[0] in "nd"))
        made.literals = tuple(sorted(item.key for item in items if item.key[0] == "l"))
        made.dates = tuple(sorted(item.key for item in items if item.key[0] == "d" or item.key[2:] in _DATE_WORDS))
        made.lower = self.raw == self.raw.lower()
        words = [token for token in tokens if token.kind == WORD]
        if any(token.upper for token in words) and not all(token.upper for token in words):
            made.acronyms = frozenset("w:" + stem(token.text)[0] for token in words if token.upper)
        made.names = frozenset(item.key for item in items if item.capital)
        made.marks = (*self.marks, *self.hard)
        made.auxiliaries = tuple(sorted(self.auxiliaries))
        made.quoted = made.exact.partition(": ")[2].strip()
        made.asides = tuple(sorted(self.asides))
        made.negations, made.tense = tuple(sorted(self.negations)), tuple(sorted(self.tense))
        made.hard = tuple(sorted(mark for mark in made.marks if mark not in NEGATION))
        links = [link for item in items for link in item.links] + self.links
        made.directions = tuple(sorted(link for link in links if link in DIRECTION or link == "or"))
        made.strict_order = (
            not _COMPARING.isdisjoint(links)
            or not _COMPARING.isdisjoint(made.negations)
            or bool(_STRICT_ORDER & {item.key[2:] for item in items})
        )

    def _opening(self) -> str:
        for token, following in pairwise([*self.tokens, _END]):
            if token.kind == WORD:
                if token.text == "@ask" or token.text in DISCOURSE:
                    continue
                if token.text == "@how":
                    return "@how"
                if token.text in QUESTION:
                    if token.text == "what" and _is_noun(following):
                        return "which"
                    asks = self.question or following.text in AUXILIARY or following.text in MODAL
                    return QUESTION[token.text] if asks or token.text not in _CLAUSES else ""
                if token.text in AUXILIARY or (token.text in MODAL and token.text[0] != "@"):
                    return "yes/no" if self.question else ""
            break
        return ""

    def _step(self, at: int) -> int:
        token = self.tokens[at]
        if token.kind in {STOP, COMMA}:
            if token.kind == STOP:
                self.sentence += 1
                self.opens = True
            self.comma = True
            self.aux = ""
            return 1
        if token.kind == LITERAL:
            self._item(Item("l:" + token.text, possessive=token.possessive))
            return 1
        if token.kind == NUMBER or token.text in CARDINALS or token.text in SCALES or token.text in ORDINALS:
            taken = self._number(at)
            if taken:
                return taken
        return self._word(at, token)

    def _word(self, at: int, token: Token) -> int:
        word = token.text
        if word in MONTHS and (taken := self._day(at)):
            return taken
        if word in PRONOUN:
            self._item(Item("p:" + word))
        elif word in SILENT and is_last(self.tokens, at) and not _is_letter(token):
            # "When do I use a", "is that that": spoken of, or a pronoun.
            self._item(Item("w:" + word))
        elif word in _ARTICLES and not _is_letter(token):
            self.article = True
            self.definite = word == "the"
        elif word in NEGATION:
            self._negation(word, at)
        elif word in AUXILIARY:
            self._auxiliary(word, at)
        elif word in MODAL:
            self.hard.append(MODAL[word])
            self.aux = ""
            self.auxiliary = True
        elif word in DISCOURSE and not (word in POLITE and not is_said_to_reader(self.tokens, at)):
            if word not in POLITE and not (word in ASSURING and self.made.opening == "yes/no"):
                self.asides.append(word)
        elif not self._marked(token):
            self._content(token)
        return 1

    def _marked(self, token: Token) -> bool:
        """Whether the word only marks what follows; if so, the mark is taken down."""
        word = token.text
        link = PREPOSITION.get(word) or CONJUNCTION.get(word)
        asks = token.first and self.made.opening == word
        if link or (word in _CLAUSES and not asks):
            self.links.append(link or word)
        elif word in QUESTION and (token.first or word not in SILENT):
            self.hard.append("which" if token.first and self.made.opening == "which" else QUESTION[word])
        elif word in QUANTIFIER:
            self.hard.append(QUANTIFIER[word])
        elif word[0] == "@":
            self.hard.extend([word] if word != "@ask" else [])
        else:
            silent = word in SILENT and not _is_letter(token)
            if silent:
                self.asides.append("that" if word == "which" else word)
            return silent or (word == "yes" and token.first)
        return True

    def _negation(self, word: str, at: int) -> None:
        answers = word == "no" and self.tokens[at].first and self.tokens[at + 1 : at + 2]
        if not (answers and answers[0].kind == COMMA):
            self.hard.append(word)
            self.negations.append(word)

    def _auxiliary(self, word: str, at: int) -> None:
        self.auxiliary = True
        if word in PAST_AUXILIARY or (word == "used" and self.aux == "past"):
            self.tense.append("past")
        if word == "been":
            self.tense.append("perfect")
        if word in {"has", "have", "had", "having"}:
            following = self.tokens[at + 1] if at + 1 < len(self.tokens) else None
            if (
                following is None
                or following.kind != WORD
                or not (stem(following.text)[1] == ED or following.text in {"been", "not", "ever", "never", "already"})
            ):
                if not (self.made.question and following and following.text in PRONOUN):
                    self._item(Item("w:have", NOTHING, STATEMENT.get("have", NOTHING)))
                return
            self.aux = "have"
            self.auxiliaries.append("have")
            self.tense.append("perfect")
        elif word in PRESENT_BE or word in {"was", "were"}:
            self.aux = "be"
            self.auxiliaries.append("be")
        else:
            self.aux = "do"

    def _content(self, token: Token) -> None:
        base, ending, general, statement = _lexical(token.text)
        form = ""
        if ending == ED:
            form = {"be": "passive", "have": "perfect"}.get(self.aux, "ed")
        elif ending == ING and self.aux == "be":
            form = "prog"
        capital = token.capital and not token.first
        self._item(
            Item(
                "w:" + base,
                NOTHING if capital else general,
                NOTHING if capital else statement,
                ending,
                form,
                capital,
                token.possessive,
                first=token.first,
                written=token.text,
            )
        )
        if ending == BASE or form:
            self.aux = self.aux if ending == BASE and not form else ""

    def _number(self, at: int) -> int:
        tokens = self.tokens
        token = tokens[at]
        if token.kind == NUMBER:
            read = written_number(token.text)
            if read is None:
                return 0
            (value, unit), used = read, 1
            if not unit and token.text[-1] == "0" and "." in token.text:
                # Python 3.1 is not Python 3.10.
                self._item(Item("l:" + token.text))
                return 1
            scale = tokens[at + 1].text if at + 1 < len(tokens) and tokens[at + 1].kind == WORD else ""
            if scale in SCALES:
                value, used = value * SCALES[scale], 2
        else:
            words = [t.text for t in tokens[at : at + 12]]
            spoken = spoken_number(words)
            if spoken is None:
                return 0
            value, used, ordinal = spoken
            unit = "th" if ordinal else ""
        if not unit or unit == "th":
            after = at + used
            if after < len(tokens) and tokens[after].kind == WORD and tokens[after].text == "of":
                after += unit == "th"
            if after < len(tokens) and tokens[after].text in MONTHS and 1 <= value <= 31 and value == int(value):
                self._item(Item(f"d:{MONTHS[tokens[after].text]}-{int(value)}"))
                return after + 1 - at
        if not unit and at + used < len(tokens) and (name := _unit(tokens[at + used])):
            unit, used = name, used + 1
        key = f"n:{plain(value)}{':' + unit if unit else ''}"
        # "One" and "single": in a statement the number is the word's neighbour.
        self._item(Item(key, NOTHING, STATEMENT.get("one", NOTHING) if key == "n:1" else NOTHING))
        return used

    def _day(self, at: int) -> int:
        """A month and a day of it, in this order."""
        tokens = self.tokens
        if at + 1 < len(tokens) and tokens[at + 1].kind == NUMBER:
            read = written_number(tokens[at + 1].text)
            if read and read[1] in {"", "th"} and read[0] == int(read[0]) and 1 <= read[0] <= 31:
                self._item(Item(f"d:{MONTHS[tokens[at].text]}-{int(read[0])}"))
                return 2
        return 0

    def _item(self, item: Item) -> None:
        item.hard, item.links = frozenset(self.hard) if self.hard else NO_MARKS, tuple(self.links)
        item.sentence, item.after_comma, item.article, item.opens = self.sentence, self.comma, self.article, self.opens
        item.definite = self.definite
        item.aux = self.auxiliary
        if self.hard:
            self.marks += self.hard
            self.hard = []
        if self.links:
            self.links = []
        self.comma = self.article = self.definite = self.opens = self.auxiliary = False
        self.made.items.append(item)
