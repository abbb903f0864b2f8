"""Prompts and events that never repeat: memory stays where it was, and the gauges tell the true size."""

from __future__ import annotations

import tracemalloc

from tests.bench.churn import EVENTS_PER_PROMPT, Churn, Reading


def test_memory_stays_flat_and_the_gauges_true() -> None:
    churn = Churn(max_blocks=1_000, cache_bytes=1 << 15)
    traced: list[int] = []
    readings: list[Reading] = []
    tracemalloc.start()
    for reading in churn.run(1_500, n_readings=6):
        readings.append(reading)
        traced.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert [reading.prompts for reading in readings] == [250, 500, 750, 1_000, 1_250, 1_500]
    assert readings[-1].events == 1_500 * EVENTS_PER_PROMPT
    for reading in readings[1:]:
        assert reading.entries == reading.recounted <= 1_000
        assert reading.cache_bytes <= 1 << 15
        assert reading.entries > 750
    # Everything has been full since the third reading, and as much as all of it holds has passed through since.
    assert max(traced[3:]) < 1.1 * traced[2]
