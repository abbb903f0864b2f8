"""The guards of the semantic cache: nothing that means something else passes, and what means the same often does."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config.semantic_cache import SemanticGuards
from policies.guards.alignment import Pair as Aligned
from policies.guards.base import Guard, Verdict
from policies.guards.check import GUARDS, check, objections
from policies.guards.contrasts import CONTRASTS
from policies.guards.numerals import spoken_number, written_number
from policies.guards.reading import MAX_CHARACTERS, profile
from policies.guards.stemming import stem
from policies.guards.strength import LOOSE, NAMES, REWORDED, SAME_TEXT, STRICT
from tests.bench import semantic_pairs
from tests.semantic_mutations import mutate
from tests.semantic_pairs import (
    Pair,
    blind_pairs,
    checklist_pairs,
    cross_pairs,
    everyday_blind_pairs,
    everyday_pairs,
    gptcache_pairs,
    own_pairs,
    published_folder,
    unseen_pairs,
)


@pytest.fixture(scope="module")
def published() -> Path:
    folder = published_folder()
    if folder is None:
        pytest.skip(
            "the published pairs do not come with the repository; PREFIXGATE_SIMILARITY_DATA names their folder"
        )
    return folder


GPTCACHE_RECALL = {"loose": 0.5, "reworded": 0.17}
"""By strength: no changed paraphrase passes `REWORDED`, and few pass `LOOSE`."""
CHANGED_BUT_LOOSE = 0.04
"""Of paraphrases with one change of meaning, those that the loosest rules let pass, at most."""


def same(stored: str, new: str, least: int = LOOSE) -> bool:
    verdict = check(profile(stored), profile(new), least=least)
    assert verdict.same == bool(verdict.strength) == (not verdict.guard) == (not verdict.reason)
    return verdict.same


def refused_by(stored: str, new: str) -> set[str]:
    return set(objections(profile(stored), profile(new)))


@pytest.mark.parametrize(
    "pair",
    [pair for pair in (*own_pairs(), *unseen_pairs()) if not pair.same],
    ids=lambda p: f"{p.kind}: {p.new}",
)
def test_another_meaning_is_refused_in_both_directions(pair: Pair) -> None:
    assert not same(pair.stored, pair.new)
    assert not same(pair.new, pair.stored)


def test_most_of_what_means_the_same_passes() -> None:
    right = [pair for pair in own_pairs() if pair.same]
    assert sum(same(pair.stored, pair.new) for pair in right) >= 0.9 * len(right)
    statements = [pair for pair in unseen_pairs() if pair.same]
    assert sum(same(pair.stored, pair.new) for pair in statements) >= 0.65 * len(statements)


@pytest.mark.parametrize(
    ("stored", "new", "guard"),
    [
        ("How do I cook 2 eggs?", "How do I cook 3 eggs?", "number"),
        ("Is 5 kg heavy?", "Is 5 lb heavy?", "number"),
        ("Is it open on 3 May?", "Is it open on 4 May?", "date"),
        ("Is it open on Monday?", "Is it open on Friday?", "date"),
        ("Is it legal?", "Is it not legal?", "negation"),
        ("Who is Ann Lee?", "Who is Ann Day?", "name"),
        ("What is `a`?", "What is `A`?", "literal"),
        ("Are all cats grey?", "Are some cats grey?", "quantity"),
        ("Can I park here?", "Must I park here?", "modality"),
        ("Is he a cook?", "Was he a cook?", "modality"),
        ("Did Ann hire Bob?", "Did Bob hire Ann?", "order"),
        ("Is Ann ill before lunch?", "Is Ann ill after lunch?", "order"),
        ("How do I wash a cat?", "How do I wash a car?", "content"),
        ("How do I upload it?", "How do I download it?", "contrast"),
        ("Wo ist der Hund?", "Wo ist der Fund?", "language"),
    ],
)
def test_the_guard_meant_for_it_refuses(stored: str, new: str, guard: str) -> None:
    assert guard in refused_by(stored, new)


@pytest.mark.parametrize("missing", ["stored", "new", "both"])
def test_without_a_profile_nothing_passes(missing: str) -> None:
    known = profile("What is love?")
    verdict = check(None if missing != "new" else known, None if missing != "stored" else known)
    assert verdict == Verdict(same=False, guard="profile", reason="missing")


def test_without_guards_nothing_passes() -> None:
    known = profile("What is love?")
    assert not check(known, known, guards=()).same


def test_a_guard_that_fails_refuses() -> None:
    class Broken:
        name = "broken"

        def refuses(self, pair: Aligned) -> str:
            raise RuntimeError("some words of a prompt")

    broken: Guard = Broken()
    verdict = check(profile("What is love?"), profile("What's love?"), guards=(*GUARDS, broken))
    assert verdict == Verdict(same=False, guard="broken", reason="failed")


@pytest.mark.parametrize(
    ("stored", "new", "strength"),
    [
        ("Is it  legal?", "Is it legal", SAME_TEXT),
        ("Where do I buy a bike?", "Where do I purchase a bike?", STRICT),
        ("The `load` function returns a table.", "The `load` function yields a table.", REWORDED),
        ("You can load a dataset with `f`.", "`f` can be used to load a dataset.", REWORDED),
        (
            "The `f` parameter specifies the path of the file to load.",
            "The path of the file that is loaded is determined by the `f` parameter.",
            LOOSE,
        ),
        ("How do I fix a bike?", "How do I fix a boat?", 0),
    ],
)
def test_a_verdict_tells_how_much_was_left_to_judgement(stored: str, new: str, strength: int) -> None:
    one, other = profile(stored), profile(new)
    assert check(one, other).strength == check(other, one).strength == strength
    for least in (LOOSE, REWORDED, STRICT):
        assert check(one, other, least=least).strength == (strength if strength >= least else 0)


def test_settings_name_every_strength() -> None:
    assert get_args(SemanticGuards) == tuple(NAMES)


def test_nothing_means_nothing() -> None:
    assert not same("", "")
    assert not same("???", "!!!")
    assert not same("", "What is love?")


@pytest.mark.parametrize(
    ("stored", "new"),
    [
        ("Wie alt ist der Papst?", "  Wie alt ist   der Papst ?"),
        ("今天天气怎么样?", "今天天气怎么样"),
        ("x " * MAX_CHARACTERS, "x  " * MAX_CHARACTERS),
    ],
)
def test_what_is_not_understood_passes_when_it_is_the_same_text(stored: str, new: str) -> None:
    assert same(stored, new)


def test_long_texts_are_compared_as_a_whole() -> None:
    long = "Tell me about the sea. " * 120
    assert "length" in refused_by(long, long + "Please")
    assert "length" in refused_by("word " * 300, "word " * 299)
    assert not same("def f(x):\n    return x\n    pass", "def f(x):\n    return x\npass")


@pytest.mark.parametrize(
    ("one", "other"),
    [("1,000", "1000"), ("1.50", "1.5"), ("2k", "2000"), ("3rd", "3th"), ("5kg", "5KG"), ("7%", "7%")],
)
def test_numbers_have_one_spelling(one: str, other: str) -> None:
    assert written_number(one) == written_number(other)


@pytest.mark.parametrize(
    ("words", "value", "used", "ordinal"),
    [
        ("twenty one days", 21, 2, False),
        ("two hundred and five of", 205, 4, False),
        ("three million two hundred thousand", 3_200_000, 5, False),
        ("one two three", 1, 1, False),
        ("twenty first century", 21, 2, True),
        ("hundred years", None, 0, False),
    ],
)
def test_numbers_are_read_from_words(words: str, value: int | None, used: int, *, ordinal: bool) -> None:
    read = spoken_number(words.split())
    if value is None:
        assert read is None or read[1] == 1
    else:
        assert read is not None
        assert (int(read[0]), read[1], read[2]) == (value, used, ordinal)


@pytest.mark.parametrize(
    "forms",
    ["load loads loaded loading", "study studies studied studying", "run runs ran running", "child children",
    "box boxes",
     "make makes made making", "stop stops stopped stopping", "index indices indexes",
     "agree agrees agreed agreeing", "hope hopes hoped hoping", "hop hops hopped hopping",
     "change changes changed changing", "use uses used using", "create creates created creating",
     "add adds added adding",
     "specify specifies specified specifying", "control controls controlled controlling", "store stores stored storing",
     "solve solves solved solving", "open opens opened opening", "train trains trained training",
     "leave leaves left leaving",
     "release releases released releasing", "paste pastes pasted pasting", "fix fixes fixed fixing", "die dies died"],
)  # fmt: skip
def test_inflections_share_a_stem(forms: str) -> None:
    assert len({stem(form)[0] for form in forms.split()}) == 1


@pytest.mark.parametrize(
    "words",
    [
        "new news",
        "glass glasses",
        "custom customs",
        "us use",
        "hope hop",
        "bored boring",
        "plan plane",
        "planning planing",
        "car care",
        "star stare",
        "cars cares",
        "past paste",
        "moral morale",
        "add ad",
        "filing filling",
        "taped tapped",
    ],
)
def test_other_words_do_not(words: str) -> None:
    assert len({stem(word)[0] for word in words.split()}) == 2


def test_contrasts_hold_both_ways() -> None:
    assert all(word in CONTRASTS[other] for word, others in CONTRASTS.items() for other in others)


WORDS = st.lists(
    st.sampled_from(
        [
            "is",
            "the",
            "cat",
            "not",
            "on",
            "3",
            "mat",
            "`x`",
            "Ann",
            "who",
            "before",
            "all",
            "5kg",
            ".",
            ",",
            "'",
            '"',
            "can't",
            "é",
            "猫",
            "@",
            "\n",
        ]
    )
)


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.text(max_size=80), WORDS.map(" ".join)), st.one_of(st.text(max_size=80), WORDS.map(" ".join)))
def test_any_text_is_read_and_no_guard_fails(stored: str, new: str) -> None:
    one, other = profile(stored), profile(new)
    there, back = objections(one, other), objections(other, one)
    assert bool(there) == bool(back)
    assert check(one, other).same == (not there)
    assert check(one, profile(stored)).same == bool(one.exact)


def test_no_change_of_meaning_of_our_own_sentences_passes() -> None:
    chance = random.Random(7)
    texts = [pair.stored for pair in own_pairs()]
    served: Counter[str] = Counter()
    for _ in range(2_500):
        text = chance.choice(texts)
        mutation = mutate(text, chance)
        if mutation is not None and same(text, mutation.text):
            served[f"{mutation.kind}: {text} | {mutation.text}"] += 1
    assert not served


def test_no_pair_that_must_be_refused_is_served(published: Path) -> None:
    checklist = semantic_pairs.tally(checklist_pairs(published))
    assert checklist.wrong > 2_000
    assert checklist.guards["loose"].wrong == 0
    assert checklist.recall > 0.4
    gptcache = semantic_pairs.tally(gptcache_pairs(published))
    assert gptcache.right == 999
    for name, recall in GPTCACHE_RECALL.items():
        assert gptcache.guards[name].right >= recall * gptcache.right


def test_what_somebody_wrote_who_did_not_know_the_rules() -> None:
    blind = semantic_pairs.tally(blind_pairs())
    assert blind.wrong > 400
    assert blind.guards["loose"].wrong == 0


@pytest.mark.parametrize("pairs", [everyday_pairs(), everyday_blind_pairs()], ids=["development", "blind"])
def test_short_questions_about_anything(pairs: list[Pair]) -> None:
    tally = semantic_pairs.tally(pairs)
    assert tally.wrong > 800
    assert tally.guards["loose"].wrong == 0
    assert tally.recall >= 0.2


def test_it_does_not_matter_which_was_asked_first(published: Path) -> None:
    ours = (*blind_pairs(), *unseen_pairs(), *everyday_pairs(), *everyday_blind_pairs())
    for pair in (*gptcache_pairs(published), *ours):
        one, other = profile(pair.stored), profile(pair.new)
        assert check(one, other) == check(other, one)


def test_texts_of_different_rows_are_not_each_others_answers(published: Path) -> None:
    chance = random.Random(5)
    checklist = chance.sample(checklist_pairs(published), 55)
    count, served = semantic_pairs.served_across(cross_pairs(checklist, lambda one, other: one.kind != other.kind))
    assert count > 4_000
    assert not served
    # Rows of the set that mean the same, read one by one, are left out of the sample.
    gptcache = chance.sample(gptcache_pairs(published), 60)
    count, served = semantic_pairs.served_across(cross_pairs(gptcache, lambda one, other: one != other))
    assert count > 6_000
    assert not served


def test_no_change_of_meaning_passes_beside_other_words(published: Path) -> None:
    chance = random.Random(13)
    pairs = gptcache_pairs(published)
    served, loose = [], 0
    for _ in range(2_500):
        pair = chance.choice(pairs)
        mutation = mutate(pair.new, chance)
        if mutation is not None:
            strength = check(profile(pair.stored), profile(mutation.text)).strength
            loose += strength == LOOSE
            if strength > LOOSE:
                served.append((mutation.kind, pair.stored, mutation.text))
    assert not served
    assert loose < CHANGED_BUT_LOOSE * 2_500


def test_no_change_of_meaning_of_published_sentences_passes(published: Path) -> None:
    chance = random.Random(11)
    pairs = [*checklist_pairs(published), *gptcache_pairs(published)]
    served = []
    for _ in range(2_000):
        text = chance.choice(chance.choice(pairs)[1:3])
        mutation = mutate(text, chance)
        if mutation is not None and same(text, mutation.text):
            served.append((mutation.kind, text, mutation.text))
    assert not served


def test_the_benchmark_prints_its_tables(capsys: pytest.CaptureFixture[str]) -> None:
    semantic_pairs.show({"own": semantic_pairs.tally(own_pairs())}, cosine=False)
    assert semantic_pairs.show_mutations([("Is Ann ill?", "Is Ann ill?")], 20, 1) == 0
    semantic_pairs.show_costs(own_pairs()[:10])
    printed = capsys.readouterr().out
    assert "our own" not in printed
    assert all(guard.name in printed for guard in GUARDS)
