"""Hung or busy: each way in which a worker can be silent, and the second at which it counts as hung, if ever."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.progress import Flight, ProgressRules, ProgressWatch

RULES = ProgressRules(hung_after=60.0, patience=4.0)


@dataclass
class Story:
    """One worker from second 0 to 1,000, looked at each second; its counters are read each fifth."""

    watch: ProgressWatch = field(default_factory=lambda: ProgressWatch(RULES))
    flights: dict[str, Flight] = field(default_factory=dict)
    events: list[tuple[float, Callable[[float], object]]] = field(default_factory=list)
    expected: Callable[[float], float] = lambda now: 0.0
    counted: Callable[[float], float | None] = lambda now: None
    read_until: float = 1_000.0

    def sent(self, at: float, name: str = "r", *, streams: bool = True) -> Story:
        def send(now: float) -> None:
            self.flights[name] = self.watch.sent(now, streams=streams)

        return self.then(at, send)

    def streaming(self, at: float, name: str = "r") -> Story:
        return self.then(at, lambda now: self.watch.streaming(now, self.flights[name]))

    def paused(self, at: float, name: str = "r") -> Story:
        return self.then(at, lambda now: self.watch.paused(now, self.flights[name]))

    def resumed(self, at: float, name: str = "r") -> Story:
        return self.then(at, lambda now: self.watch.resumed(now, self.flights[name]))

    def ended(self, at: float, name: str = "r") -> Story:
        return self.then(at, lambda now: self.watch.ended(now, self.flights[name]))

    def bytes(self, *times: float) -> Story:
        for at in times:
            self.then(at, self.watch.progressed)
        return self

    def expects(self, expected: Callable[[float], float]) -> Story:
        self.expected = expected
        return self

    def counts(self, counted: Callable[[float], float | None], *, until: float = 1_000.0) -> Story:
        self.counted = counted
        self.read_until = until
        return self

    def then(self, at: float, event: Callable[[float], object]) -> Story:
        self.events.append((at, event))
        return self

    def hung_at(self) -> int | None:
        for second in range(1_001):
            while self.events and self.events[0][0] <= second:
                at, event = self.events.pop(0)
                event(at)
            if second % 5 == 0 and second <= self.read_until:
                self.watch.counters(self.counted(second), second)
            if self.watch.is_hung(second, self.expected(second)):
                return second
        return None


def still(now: float) -> float:
    return 7.0


def moving(now: float) -> float:
    return now


def remaining(total: float) -> Callable[[float], float]:
    """What a queue that started at 0 predicts: less and less."""
    return lambda now: max(total - now, 0.0)


STORIES: dict[str, tuple[Story, int | None]] = {
    # Nothing is due
    "idle": (Story(), None),
    "idle, and its counters stand still": (Story().counts(still), None),
    "all done": (Story().sent(0).streaming(1).ended(2).counts(still), None),
    "all clients paused": (Story().sent(0).streaming(1).paused(2), None),
    "all clients paused, and it has generated all": (Story().sent(0).streaming(1).paused(2).counts(still), None),
    "paused, then its client left": (Story().sent(0).streaming(1).paused(2).ended(3), None),
    # It has begun to answer: tokens are due
    "a stream stops": (Story().sent(0).streaming(10), 70),
    "a stream goes on a while, then stops": (Story().sent(0).streaming(10).bytes(*range(11, 101)), 160),
    "a stream with gaps": (Story().sent(0).streaming(10).bytes(*range(60, 1_000, 59)), None),
    "one of two is paused, the other stops": (
        Story().sent(0, "a").sent(0, "b").streaming(1, "a").streaming(2, "b").paused(5, "a"),
        62,
    ),
    "its client reads again, and nothing comes": (Story().sent(0).streaming(1).paused(2).resumed(500), 560),
    "it stops while it should be prefilling others": (
        Story().sent(0, "a").streaming(10, "a").sent(11, "b").expects(lambda now: 100.0),
        110,
    ),
    "an idle worker gets work and stops": (Story().sent(0).streaming(1).ended(2).sent(500).streaming(501), 561),
    "what was expected in an earlier silence is over": (
        Story().sent(0, "a").expects(lambda now: 100.0 if now < 50 else 0.5)
        .streaming(50, "a").ended(51, "a").sent(51, "b"),
        111,
    ),
    "nothing was due of those whose clients paused": (
        Story().sent(0, "a").streaming(1, "a").paused(2, "a").sent(500, "b", streams=False).counts(still),
        560,
    ),
    "clients leave a worker that hangs, others come": (
        Story().sent(0, "a").streaming(1, "a").sent(20, "b").ended(30, "a").sent(40, "c").streaming(41, "c"),
        101,
    ),
    # It can only be prefilling
    "a long prompt, told as what remains": (Story().sent(0).expects(remaining(100)).streaming(390).ended(391), None),
    "a long prompt that never ends, told as what remains": (Story().sent(0).expects(remaining(100)), 400),
    "a long prompt that never ends, told whole": (Story().sent(0).expects(lambda now: 100.0), 400),
    "a short prompt that never ends": (Story().sent(0).expects(lambda now: 0.5), 60),
    "a prompt at a speed nobody knows": (Story().sent(0), None),
    "a queue that moves": (
        Story().sent(0, "a").sent(0, "b").sent(0, "c").expects(lambda now: 50.0)
        .streaming(150, "a").ended(151, "a").streaming(300, "b").ended(301, "b").streaming(450, "c").ended(451, "c"),
        None,
    ),
    # Answers that are not streamed show nothing before their end
    "unary only": (Story().sent(0, streams=False).expects(lambda now: 1.0), None),
    "a stream behind unary ones": (
        Story().sent(0, "a", streams=False).sent(1, "b").expects(lambda now: 1.0),
        None,
    ),
    "a stream behind one whose client is paused": (
        Story().sent(0, "a").streaming(1, "a").paused(2, "a").sent(3, "b").expects(lambda now: 1.0),
        None,
    ),
    "a unary answer that stops in its midst": (Story().sent(0, streams=False).streaming(30), 90),
    # The engine's own counters tell more
    "unary only, counters move": (Story().sent(0, streams=False).counts(moving), None),
    "unary only, counters stand still": (Story().sent(0, streams=False).counts(still), 60),
    "unary only, counters stop": (Story().sent(0, streams=False).counts(lambda now: min(now, 200.0)), 260),
    "a stream is silent but counters move": (Story().sent(0).streaming(10).counts(moving), None),
    "a stream and the counters stop": (Story().sent(0).streaming(10).counts(still), 70),
    "its counters stood still while it was idle": (Story().sent(500).streaming(501).counts(still), 565),
    "counters that count a prompt at its end": (
        Story().sent(0).expects(remaining(100)).counts(still).streaming(380).ended(381),
        None,
    ),
    "a prompt at a speed nobody knows, counters stand still": (Story().sent(0).counts(still), 240),
    "the counters cannot be read any more": (Story().sent(0).streaming(10).counts(moving, until=50), 110),
    "the counters cannot be read any more, unary only": (
        Story().sent(0, streams=False).counts(moving, until=50),
        None,
    ),
    "a restart is a movement": (
        Story().sent(0, streams=False).counts(lambda now: 500.0 if now < 50 else 3.0).ended(100),
        None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STORIES)
def test_hung_or_busy(name: str) -> None:
    story, hung_at = STORIES[name]
    story.events.sort(key=lambda event: event[0])
    assert story.hung_at() == hung_at


def test_what_is_told_twice_or_too_late_changes_nothing() -> None:
    watch = ProgressWatch(RULES)
    flight = watch.sent(0.0, streams=True)
    watch.resumed(0.0, flight)
    watch.streaming(1.0, flight)
    watch.streaming(1.0, flight)
    watch.paused(2.0, flight)
    watch.paused(2.0, flight)
    for _ in range(2):
        watch.ended(3.0, flight)
    for late in (watch.streaming, watch.paused, watch.resumed):
        late(4.0, flight)
    assert (watch._in_flight, watch._due, watch._awaited, watch._flowing) == (0, 0, 0, 0)


@given(
    st.lists(
        st.tuples(st.sampled_from(["sent", "unary", "streaming", "paused", "resumed", "ended"]), st.integers(0, 5))
    )
)
def test_its_counts_are_those_of_its_requests(steps: list[tuple[str, int]]) -> None:
    watch = ProgressWatch(RULES)
    flights: list[Flight] = []
    for now, (what, which) in enumerate(steps):
        if what in {"sent", "unary"}:
            flights.append(watch.sent(now, streams=what == "sent"))
        elif flights:
            getattr(watch, what)(now, flights[which % len(flights)])
        left = [flight for flight in flights if not flight.over]
        due = [flight for flight in left if not flight.paused]
        assert watch._in_flight == len(left)
        assert watch._due == len(due)
        assert watch._flowing == sum(flight.begun for flight in due)
        assert watch._awaited == sum(flight.streams and not flight.begun for flight in due)
        if not due:
            assert not watch.is_hung(now + 1e9, 1.0)


@pytest.mark.parametrize(("hung_after", "patience"), [(0.0, 4.0), (-1.0, 4.0), (60.0, 0.5)])
def test_rules_that_make_no_sense_are_refused(hung_after: float, patience: float) -> None:
    with pytest.raises(ValueError, match="hung_after must"):
        ProgressRules(hung_after, patience)
