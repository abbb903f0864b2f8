"""Circuit breakers: each limit by itself, and none."""

from __future__ import annotations

import pytest

from policies.breaker import BreakerLimits, admits


@pytest.mark.parametrize(
    ("limits", "now", "admitted"),
    [
        (BreakerLimits(), (10**9, 10**9, 10**9), True),
        (BreakerLimits(max_connections=2), (1, 99, 99), True),
        (BreakerLimits(max_connections=2), (2, 0, 0), False),
        (BreakerLimits(max_pending=2), (99, 1, 99), True),
        (BreakerLimits(max_pending=2), (0, 2, 0), False),
        (BreakerLimits(max_requests=2), (99, 99, 1), True),
        (BreakerLimits(max_requests=2), (0, 0, 2), False),
        (BreakerLimits(max_requests=0), (0, 0, 0), False),
        (BreakerLimits(3, 2, 4), (2, 1, 3), True),
        (BreakerLimits(3, 2, 4), (2, 1, 4), False),
    ],
)
def test_one_more_is_admitted(limits: BreakerLimits, now: tuple[int, int, int], admitted: bool) -> None:
    connections, pending, requests = now
    assert admits(limits, connections=connections, pending=pending, requests=requests) is admitted
