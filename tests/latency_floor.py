"""How well a first token's time could be known at all: what a copy of the engine says that is run on from the moment of
sending, without what comes later. It knows the engine's state and speed to the last digit, and either each answer's
length or only how long the trace's answers are. It does not know who will be sent next and share its steps.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from statistics import median
from typing import NamedTuple

from backends.simulated.block_pool import BlockPool
from backends.simulated.engine import SimulatedEngine
from backends.simulated.sequence import Sequence as Running

DRAWS = 5


class Floor(NamedTuple):
    """Seconds to one request's first token if nothing else comes."""

    lengths_known: float
    lengths_drawn: float
    """The median of some, each with lengths drawn anew: those of the trace that are longer than what is there."""


class Floors:
    """Of every so many-th request, by its index; `lengths` are those of the trace's answers, in tokens."""

    def __init__(self, every: int, lengths: Sequence[int]) -> None:
        self.found: dict[int, Floor] = {}
        self._every = every
        self._lengths = sorted(lengths)
        self._sample = random.Random(0)
        self._seen = 0

    def submitted(self, index: int, engine: SimulatedEngine, now: float) -> None:
        """That request has just been given to this engine, which is left as it is."""
        self._seen += 1
        if self._seen % self._every:
            return
        name = str(index)
        known = first_token(copied(engine), name) - now
        drawn = []
        for _ in range(DRAWS):
            other = copied(engine)
            answers_end_elsewhere(other, self._draw)
            drawn.append(first_token(other, name) - now)
        self.found[index] = Floor(known, median(drawn))

    def _draw(self, made: int) -> int:
        longer = bisect_right(self._lengths, made)
        if longer == len(self._lengths):
            return made + 1
        return self._lengths[self._sample.randrange(longer, len(self._lengths))]


def first_token(engine: SimulatedEngine, name: str) -> float:
    """When that request's comes, if nothing else does; the engine lives until then."""
    while (moment := engine.next_event_at()) is not None:
        for output in engine.advance(moment):
            if output.id == name and output.first:
                return output.times[0]
        engine.take_kv_events()
    raise AssertionError(f"no first token of {name}")


def copied(engine: SimulatedEngine) -> SimulatedEngine:
    """One that goes on as this one would, and leaves it alone. Not of an engine with slower tiers."""
    assert not engine.tiers.tiers, "they may be others' too"
    copies = {each: _copied_sequence(each) for each in [*engine._waiting, *engine._running.values()]}

    def by_step(due: dict[int, list[Running]]) -> dict[int, list[Running]]:
        return {step: [copies[each] for each in some] for step, some in due.items()}

    other = copy(engine)
    other.pool = _copied_pool(engine.pool)
    other._waiting = type(engine._waiting)(copies[each] for each in engine._waiting)
    other._running = {name: copies[each] for name, each in engine._running.items()}
    other._decoding = {copies[each] for each in engine._decoding}
    other._streaming = {copies[each]: None for each in engine._streaming}
    other._partial = None if engine._partial is None else copies[engine._partial]
    other._blocked = None
    other._grow_due, other._finish_due = by_step(engine._grow_due), by_step(engine._finish_due)
    other._times = [*engine._times]
    other._outputs, other._batches, other._restoring = [], [], []
    if engine._run is not None:
        other._run = copy(engine._run)
        other._run.prefilling = [(copies[each], count) for each, count in engine._run.prefilling]
    return other


def _copied_sequence(sequence: Running) -> Running:
    other = copy(sequence)
    other.blocks, other.hashes = [*sequence.blocks], [*sequence.hashes]
    return other


def _copied_pool(pool: BlockPool) -> BlockPool:
    other = BlockPool(pool.capacity)
    other.releases, other._fresh, other._free = pool.releases, pool._fresh, pool._free.copy()
    other._references, other._hash_of = [*pool._references], [*pool._hash_of]
    other._copies = {content: [*blocks] for content, blocks in pool._copies.items()}
    return other


def answers_end_elsewhere(engine: SimulatedEngine, draw: Callable[[int], int]) -> None:
    """Give each answer another length, drawn by how many tokens there are already, and always longer."""
    for sequence in [*engine._running.values(), *engine._waiting]:
        decodes = sequence in engine._decoding
        made = sequence.output + (engine._step - sequence.joined if decodes else 0)
        if decodes:
            for due in (engine._grow_due, engine._finish_due):
                if sequence in due.get(sequence.due, ()):
                    due[sequence.due].remove(sequence)
                    if not due[sequence.due]:
                        del due[sequence.due]
        sequence.request = replace(sequence.request, max_tokens=max(draw(made), made + 1))
        if decodes:
            engine._set_due(sequence)
    engine._stop_after_current_step()
