"""What has been forgotten stays forgotten: against a naive model, over restarts, damage and full disks."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from math import inf, nan
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache.epoch_log import MOST_BYTES, EpochLog, FileEpochLog, MemoryEpochLog
from cache.epochs import Epochs
from cache.response_entry import Stamp
from cache.response_epochs import (
    ITEM_BYTES,
    MOST_ITEMS,
    MOST_PREFIXES,
    EpochTable,
    ForgetRule,
    decode_header,
    decode_rule,
    encode_header,
    encode_rule,
)
from cache.response_key import ModelTag, ScopeTag, model_tag, scope_tag
from cache.response_openings import prefix_digest
from cache.store import StoreError
from tests.gateway_fixtures import eventually

SCOPES = [scope_tag(name) for name in (b"a", b"b", b"c")]
MODELS = [model_tag(name) for name in ("x", "y")]
ALL = ForgetRule(None, None, inf)
GENERATION = b"sixteen bytes..."


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


RULES = st.builds(
    ForgetRule,
    st.sampled_from([None, *SCOPES]),
    st.sampled_from([None, *MODELS]),
    st.sampled_from([inf, 10.0, 20.0]),
    st.sampled_from([None, prefix_digest("He", bytes(16)), prefix_digest("Hello", b"s" * 16)]),
)


@settings(deadline=None)
@given(st.lists(RULES, max_size=12), st.integers(0, 12), st.sampled_from([9.5, 10.0, 19.5, 20.0]))
def test_an_answer_is_readable_if_no_later_record_is_about_it(rules: list[ForgetRule], begun: int, when: float) -> None:
    table = EpochTable(GENERATION)
    table.apply(rules[:begun])
    stamp = table.stamp()
    table.apply(rules[begun:])
    for scope, model in itertools.product(SCOPES, MODELS):
        later = [rule for rule in rules[begun:] if rule.before == inf]
        # What was stored before a time is forgotten whenever it was begun; by prefix only if it was begun before.
        aged = [rule for at, rule in enumerate(rules) if rule.before < inf and (rule.prefix is None or at >= begun)]
        for openings in (None, (), ("Hello there",), ("Hi", "Hel")):
            forgotten = any(rule.covers(scope, model, when, openings) for rule in [*later, *aged])
            assert table.readable(scope, model, stamp, when, openings) is not forgotten
    assert not table.readable(SCOPES[0], MODELS[0], Stamp(b"another", stamp.position), when)


@given(RULES, st.binary(min_size=16, max_size=16))
def test_items(rule: ForgetRule, nonce: bytes) -> None:
    item = encode_rule(GENERATION, rule, nonce)
    assert len(item) == ITEM_BYTES
    if rule.prefix is not None:
        assert rule.prefix.salt in item
        assert b"Hello" not in item
    assert decode_rule(GENERATION, item) == rule
    assert decode_rule(b"another sixteen.", item) is None
    assert decode_header(item) is None
    for at in range(ITEM_BYTES):
        altered = item[:at] + bytes([item[at] ^ 1]) + item[at + 1 :]
        assert decode_rule(GENERATION, altered) is None
        assert decode_rule(GENERATION, item[:at]) is None


def test_headers() -> None:
    header = encode_header(GENERATION)
    assert (len(header), decode_header(header)) == (ITEM_BYTES, GENERATION)
    for at in range(ITEM_BYTES):
        assert decode_header(header[:at] + bytes([header[at] ^ 1]) + header[at + 1 :]) is None
    second = decode_rule(GENERATION, encode_header(b"of another one.."))
    assert second is not None, "of one who began at the same time"
    assert not any(second.covers(scope, model, when) for scope in SCOPES for model in MODELS for when in (0.0, 1e12))
    assert decode_rule(GENERATION, encode_rule(GENERATION, ForgetRule(None, None, nan), bytes(16))) is None


def test_too_many_prefixes_forget_all_of_their_scope() -> None:
    table = EpochTable(GENERATION)
    begun = table.stamp()
    rules = [ForgetRule(SCOPES[0], None, inf, prefix_digest(f"{number} ", bytes(16))) for number in range(100)]
    table.apply(rules[:MOST_PREFIXES])
    assert not table.readable(SCOPES[0], MODELS[0], begun, 1.0, ("31 bottles",))
    assert table.readable(SCOPES[0], MODELS[0], begun, 1.0, ("99 bottles",))
    table.apply(rules[MOST_PREFIXES:])
    assert not table.readable(SCOPES[0], MODELS[0], begun, 1.0, ("no bottles",))
    assert table.readable(SCOPES[1], MODELS[0], begun, 1.0, ("99 bottles",))
    assert table.readable(SCOPES[0], MODELS[0], table.stamp(), 1.0, ("99 bottles",))
    assert len(table._prefixed.get((SCOPES[0], None), ())) <= MOST_PREFIXES


# --- logs -----------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> EpochLog:
    return MemoryEpochLog() if request.param == "memory" else FileEpochLog(tmp_path / "forgotten")


@pytest.fixture
def opened() -> Iterator[list[Epochs]]:
    ready: list[Epochs] = []
    yield ready
    for epochs in ready:
        epochs.close()


def readable(epochs: Epochs, stamp: Stamp | None, scope: ScopeTag = SCOPES[0], model: ModelTag = MODELS[0]) -> bool:
    return stamp is not None and epochs.readable(scope, model, stamp, 100.0)


def test_a_log_outlives_its_reader(store: EpochLog) -> None:
    first = Epochs(store)
    before = first.stamp()
    assert readable(first, before)
    assert first.forget(ForgetRule(SCOPES[0], None, inf)) is True
    after = first.stamp()
    first.close()
    second = Epochs(store)
    for epochs in (first, second):
        assert not readable(epochs, before)
        assert readable(epochs, after)
        assert readable(epochs, before, SCOPES[1])
    assert second.stamp() == after


@pytest.mark.parametrize("damage", ["cut", "longer", "flipped", "empty", "gone", "another"])
def test_of_a_damaged_log_nothing_older_is_read(tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "forgotten"
    epochs = Epochs(FileEpochLog(path))
    epochs.forget(ForgetRule(SCOPES[0], None, inf))
    epochs.forget(ForgetRule(SCOPES[1], None, inf))
    stamp = epochs.stamp()
    data = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(
            {
                "cut": data[:-1],
                "longer": data + b"x",
                "flipped": data[:60] + bytes([data[60] ^ 4]) + data[61:],
                "empty": b"",
                "another": encode_header(GENERATION),
            }[damage]
        )
    again = Epochs(FileEpochLog(path))
    assert not readable(again, stamp)
    assert readable(again, again.stamp())
    assert len(caplog.records) == (damage in {"cut", "longer", "flipped"})
    # One that is open notices at its next look, and agrees with the others then.
    assert epochs.refresh() is True
    assert epochs.stamp() == again.stamp()


def test_a_log_that_becomes_too_long_gives_way_to_another(tmp_path: Path) -> None:
    store = FileEpochLog(tmp_path / "forgotten")
    epochs = Epochs(store)
    begun = epochs.stamp()
    assert begun is not None
    nonce = random.Random(1)
    rule = ForgetRule(SCOPES[2], None, inf)
    with (tmp_path / "forgotten").open("ab") as file:
        file.writelines(encode_rule(begun.generation, rule, nonce.randbytes(16)) for _ in range(MOST_ITEMS - 1))
    assert epochs.refresh() is True
    assert readable(epochs, begun)
    assert epochs.forget(rule) is True
    assert readable(epochs, begun), "it is full and whole"
    assert (tmp_path / "forgotten").stat().st_size == MOST_BYTES
    assert epochs.forget(rule) is True
    assert not readable(epochs, begun)
    assert readable(epochs, epochs.stamp())
    assert (tmp_path / "forgotten").stat().st_size == ITEM_BYTES


class Failing(MemoryEpochLog):
    """One that does as it is told."""

    def __init__(self, *, shared: bool) -> None:
        super().__init__()
        self.shared = shared  # type: ignore[misc]  # final in what it stands for
        self.fails = ""

    def read(self, first: int) -> bytes:
        self._check("read")
        return super().read(first)

    def append(self, item: bytes) -> None:
        self._check("append")
        super().append(item)

    def _check(self, what: str) -> None:
        if what in self.fails:
            raise StoreError("as told")


@pytest.mark.parametrize("what", ["append", "read append"])
async def test_what_cannot_be_written_down_holds_all_the_same(what: str, caplog: pytest.LogCaptureFixture) -> None:
    store = Failing(shared=False)
    epochs = Epochs(store, refresh_s=0.01)
    before = epochs.stamp()
    store.fails = what
    assert epochs.forget(ForgetRule(SCOPES[0], None, inf)) is False
    assert not readable(epochs, before)
    assert not readable(epochs, epochs.stamp()), "until it is written down nobody knows what came after"
    assert readable(epochs, before, SCOPES[1])
    assert epochs.forget(ForgetRule(SCOPES[0], MODELS[0], inf)) is False
    assert len(caplog.records) == 1
    store.fails = ""
    await eventually(lambda: readable(epochs, epochs.stamp()))
    assert not readable(epochs, before)
    epochs.close()
    assert not readable(Epochs(store), before)


def test_too_much_that_cannot_be_written_down_forgets_all() -> None:
    store = Failing(shared=False)
    epochs = Epochs(store, refresh_s=9.0)
    stamp = epochs.stamp()
    store.fails = "append"
    for number in range(300):
        epochs.forget(ForgetRule(scope_tag(b"%d" % number), None, inf))
    assert len(epochs._pending) <= 256
    assert not readable(epochs, stamp)
    store.fails = ""
    epochs.close()
    assert epochs.refresh() is True
    assert not readable(epochs, stamp)


async def test_what_is_shared_is_trusted_for_a_while(opened: list[Epochs]) -> None:
    store, clock = Failing(shared=True), Clock()
    store.fails = "read"
    epochs = Epochs(store, refresh_s=0.005, trusted_s=10.0, clock=clock)
    opened.append(epochs)
    assert epochs.stamp() is None, "nothing is known yet"
    store.fails = ""
    await eventually(lambda: epochs.stamp() is not None)
    stamp = epochs.stamp()
    store.fails = "read"
    await eventually(lambda: epochs.refresh() is False)
    clock.now = 10.0
    assert readable(epochs, stamp)
    clock.now = 10.5
    assert not readable(epochs, stamp)
    assert epochs.stamp() is None
    store.fails = ""
    await eventually(lambda: readable(epochs, stamp))
    assert epochs.stamp() == stamp


async def test_two_that_share_a_log(opened: list[Epochs]) -> None:
    store = Failing(shared=True)
    one, other = (Epochs(store, refresh_s=0.005) for _ in range(2))
    opened += [one, other]
    await eventually(lambda: one.stamp() is not None and one.stamp() == other.stamp())
    before = other.stamp()
    assert one.forget(ForgetRule(SCOPES[0], None, inf)) is True
    await eventually(lambda: not readable(other, before))
    assert readable(other, before, SCOPES[1])
    await eventually(lambda: one.stamp() == other.stamp())
    store.clear()
    await eventually(lambda: not readable(one, before, SCOPES[1]) and one.stamp() == other.stamp())


async def test_a_shared_log_that_has_lost_its_end_forgets_all(opened: list[Epochs]) -> None:
    """As a Redis does that falls back to what it had a while ago; with it come back answers that were removed since."""
    store = Failing(shared=True)
    epochs = Epochs(store, refresh_s=0.005)
    opened.append(epochs)
    await eventually(lambda: epochs.stamp() is not None)
    assert epochs.forget(ForgetRule(SCOPES[1], None, inf)) is True
    before, had = epochs.stamp(), store.read(0)
    assert epochs.forget(ForgetRule(SCOPES[0], None, inf)) is True
    assert not readable(epochs, before)
    store.clear()
    store.append(had)
    await eventually(lambda: epochs.stamp() is not None and store.read(0) != had)
    assert not readable(epochs, before)
    assert not readable(epochs, before, SCOPES[1])
    assert readable(epochs, epochs.stamp())


def test_times_that_mean_nothing() -> None:
    with pytest.raises(ValueError, match="trusted"):
        Epochs(MemoryEpochLog(), refresh_s=1.0, trusted_s=1.0)


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "forgotten").mkdir()
    epochs = Epochs(FileEpochLog(tmp_path / "forgotten"), refresh_s=9.0)
    assert epochs.stamp() is None
    assert epochs.forget(ALL) is False
    assert not readable(epochs, Stamp(GENERATION, 0))
    epochs.close()
