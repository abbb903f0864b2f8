"""Whether a stored answer may be served: every boundary, what headers say, and what no client can ask for."""

from __future__ import annotations

from math import inf, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.response_freshness import (
    MOST_SECONDS,
    MOST_SKEW,
    NOTHING_SAID,
    CacheDirectives,
    Freshness,
    FreshnessRules,
    judge,
    parse_cache_control,
)

RULES = FreshnessRules(ttl=60, stale_while_revalidate=10, stale_if_error=100)
FRESH, STALE, ERROR, EXPIRED, BYPASS = Freshness


@pytest.mark.parametrize(
    ("age", "said", "freshness"),
    [
        (0, "", FRESH), (60, "", FRESH), (60.5, "", STALE), (70, "", STALE), (70.5, "", ERROR), (160, "", ERROR),
        (160.5, "", EXPIRED), (1e12, "", EXPIRED), (-1, "", FRESH), (-60, "", FRESH), (-60.5, "", EXPIRED),
        (5, "max-age=5", FRESH), (5.5, "max-age=5", EXPIRED), (65, "max-age=100", EXPIRED), (65, "max-age=5", EXPIRED),
        (5, "max-age=0", EXPIRED), (0, "max-age=0", FRESH), (40, "min-fresh=20", FRESH), (41, "min-fresh=20", EXPIRED),
        (65, "min-fresh=1", EXPIRED), (65, "min-fresh=0", STALE), (65, "max-stale=5", STALE),
        (65.5, "max-stale=5", EXPIRED),
        (100, "max-stale", STALE), (100, "max-stale=40", STALE), (100, "max-stale=39", EXPIRED),
        (161, "max-stale", EXPIRED),
        (65, "max-age=100, max-stale=5", STALE), (66, "max-age=100, max-stale=5", EXPIRED),
        (5, "no-cache", BYPASS), (5, "no-store", BYPASS), (500, "no-store", BYPASS), (5, "only-if-cached", FRESH),
        (65, "only-if-cached", STALE), (101, "only-if-cached", ERROR), (5, "no-cache, only-if-cached", BYPASS),
    ],
)  # fmt: skip
def test_what_an_answer_is_good_for(age: float, said: str, freshness: Freshness) -> None:
    verdict = judge(1_000_000.0, 1_000_000.0 + age, RULES, parse_cache_control(said))
    assert verdict.freshness is freshness
    assert verdict.age == max(0, int(min(age, MOST_SECONDS)))
    assert verdict.useless is (age > 160 or age < -MOST_SKEW), "for this request, or for any"


def test_rules_without_stale_answers() -> None:
    rules = FreshnessRules(ttl=60)
    assert judge(0, 60, rules) == (FRESH, 60, False)
    assert judge(0, 60.5, rules, parse_cache_control("max-stale")) == (EXPIRED, 60, True)
    never = FreshnessRules(ttl=0, stale_while_revalidate=100)
    assert judge(0, 0, never) == (EXPIRED, 0, True)


@pytest.mark.parametrize("wrong", [{"ttl": -1}, {"ttl": 1, "stale_if_error": -1}, {"ttl": nan}])
def test_rules_that_mean_nothing(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="not below 0"):
        FreshnessRules(**wrong)


SECONDS = st.floats(0, 300) | st.integers(0, 300)
SAID = st.builds(
    CacheDirectives,
    no_store=st.booleans(),
    no_cache=st.booleans(),
    only_if_cached=st.booleans(),
    max_age=st.none() | SECONDS,
    min_fresh=st.none() | SECONDS,
    max_stale=st.none() | SECONDS | st.just(inf),
)
ANY_RULES = st.builds(FreshnessRules, ttl=SECONDS, stale_while_revalidate=SECONDS, stale_if_error=SECONDS)
BEST_FIRST = [FRESH, STALE, ERROR, EXPIRED, BYPASS]


@settings(deadline=None)
@given(st.floats(-200, 1_000) | st.floats(), ANY_RULES, SAID)
def test_no_client_gets_what_the_operator_does_not_allow(
    age: float, rules: FreshnessRules, said: CacheDirectives
) -> None:
    verdict = judge(0.0, age, rules, said)
    if not 0 <= age <= rules.useful and not -MOST_SKEW <= age <= 0:
        assert verdict.freshness in {EXPIRED, BYPASS}
        assert verdict.useless
    if verdict.freshness is FRESH:
        assert age <= rules.ttl
        assert said.max_age is None or age <= said.max_age
    if verdict.freshness is STALE:
        assert rules.ttl < age <= rules.useful or said.min_fresh
        assert said.max_stale is not None or age <= rules.ttl + rules.stale_while_revalidate
    if verdict.freshness is ERROR:
        assert rules.ttl < age <= rules.ttl + rules.stale_if_error
    # Whoever says nothing gets nothing worse, but for stale answers that somebody asked for.
    plain = judge(0.0, age, rules)
    if said.max_stale is None:
        assert BEST_FIRST.index(plain.freshness) <= BEST_FIRST.index(verdict.freshness)
    assert plain.useless == verdict.useless
    assert plain.age == verdict.age >= 0


@settings(deadline=None)
@given(SECONDS, SECONDS, ANY_RULES)
def test_an_answer_only_ever_gets_worse(one: float, more: float, rules: FreshnessRules) -> None:
    grades = [BEST_FIRST.index(judge(0.0, age, rules).freshness) for age in (one, one + more)]
    assert grades == sorted(grades)


@pytest.mark.parametrize(
    ("text", "directives"),
    [
        ("", NOTHING_SAID),
        ("no-store", CacheDirectives(no_store=True)),
        ("No-Cache ,ONLY-IF-CACHED", CacheDirectives(no_cache=True, only_if_cached=True)),
        ("max-age=60", CacheDirectives(max_age=60)),
        ('max-age="60", min-fresh = 5 , max-stale=\t7', CacheDirectives(max_age=60, min_fresh=5, max_stale=7)),
        ("max-stale", CacheDirectives(max_stale=inf)),
        ("max-stale=", CacheDirectives(max_stale=inf)),
        ("max-age=60, max-age=5, max-age=90", CacheDirectives(max_age=5)),
        ("min-fresh=6, min-fresh=9", CacheDirectives(min_fresh=9)),
        ("max-stale, max-stale=3", CacheDirectives(max_stale=3)),
        ("max-age=abc", CacheDirectives(max_age=0)),
        ("max-age", CacheDirectives(max_age=0)),
        ("max-age=-5", CacheDirectives(max_age=0)),
        ("min-fresh=x", CacheDirectives(min_fresh=MOST_SECONDS)),
        ("max-stale=x", CacheDirectives(max_stale=0)),
        ("max-age=" + "9" * 400, CacheDirectives(max_age=MOST_SECONDS)),
        ("max-age=1.5", CacheDirectives(max_age=1.5)),
        ("max-age=\u0661", CacheDirectives(max_age=0)),
        ('private="no-store, x", extension', NOTHING_SAID),
        ('x="a\\", no-store"', NOTHING_SAID),
        ('max-age="60, no-store', CacheDirectives(no_store=True, max_age=60.0)),
        ('x="5\\", no-store', CacheDirectives(no_store=True)),
        (";;no-store", CacheDirectives(no_store=True)),
        (",,, ,no-store,,", CacheDirectives(no_store=True)),
        ("no-store" * 2_000, CacheDirectives(no_store=True)),
        ("a, " * 5_000, CacheDirectives(no_store=True)),
        ("not-no-store, no-storex", NOTHING_SAID),
        ("public max-age=3", CacheDirectives(max_age=3)),
    ],
)
def test_what_a_header_says(text: str, directives: CacheDirectives) -> None:
    assert parse_cache_control(text) == directives


@given(st.text() | st.text('no-stremaxgcudfh=,"\\ 0123456789;') | st.lists(
    st.sampled_from(["no-store", "max-age", "=", "5", ",", '"', " ", "\\", "max-stale", "x"])
).map("".join))  # fmt: skip
def test_no_header_does_harm(text: str) -> None:
    found = parse_cache_control(text)
    assert all(value is None or value >= 0 for value in (found.max_age, found.min_fresh, found.max_stale))
    assert judge(0.0, 5.0, RULES, found).freshness in Freshness
    assert parse_cache_control(text + ", no-store").no_store


@pytest.mark.parametrize(
    ("text", "asks"),
    [
        ("", False), ("max-age=60", True), ("max-age=0", False), ("only-if-cached", True), ("max-stale", True),
        ("max-stale=0", False), ("min-fresh=5", False), ("max-age=60, no-cache", False), ("no-store", False),
    ],
)  # fmt: skip
def test_who_asks_for_a_stored_answer(text: str, asks: bool) -> None:
    assert parse_cache_control(text).asks is asks
