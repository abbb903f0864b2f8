"""Prompts and events that never repeat: memory stays where it was, and the gauges tell the true size."""

from __future__ import annotations

import tracemalloc

from tests.bench.churn import EVENTS_PER_PROMPT, Churn, Reading


def test_memory_stays_flat_and_the_gauges_true() -> None:
    churn = Churn(max_blocks=2_000, cache_bytes=1 << 16)
    traced: list[int] = []
    readings: list[Reading] = []
    tracemalloc.start()
    for reading in churn.run(3_000, n_readings=6):
        readings.append(reading)
        traced.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert [reading.prompts for reading in readings] == [500, 1_000, 1_500, 2_000, 2_500, 3_000]
    assert readings[-1].events == 3_000 * EVENTS_PER_PROMPT
    for reading in readings[1:]:
        assert reading.entries == reading.recounted <= 2_000
        assert reading.cache_bytes <= 1 << 16
        assert reading.entries > 1_500
    # Everything has been full since the third reading, and as much as all of it holds has passed through since.
    assert max(traced[3:]) < 1.1 * traced[2]
