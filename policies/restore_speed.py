"""What restoring and recomputing take, learnt from how long they took: the two sides of the price of a restore."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice
from math import ceil, inf, isfinite
from typing import Final

_KEPT: Final = 16
_MEMORY: Final = 0.85
"""Weight of a transfer beside the next newer one."""
_SURPRISE: Final = 1.5
"""By this factor a transfer must differ from what was expected to say that something has changed."""
_ROUNDS: Final = 5
_USUAL: Final = 0.2
"""By this share a transfer may be off and still counts in full."""
_STIFFNESS: Final = 0.05
"""How much the belief in a round trip weighs, where a transfer that consists of nothing else weighs 1."""
_LEAST_SHARE: Final = 0.01
_WORST_SURPRISE: Final = 4.0
_LEAST_SECONDS: Final = 1e-9
_UNMEASURED_MARGIN: Final = 0.5


class TierSpeed:
    """How long a tier takes to deliver: round trip + bytes ÷ bandwidth, as of the last transfers.

    Both are weighted medians over the last `_KEPT` transfers, newer ones counting more: of what is left of small
    transfers without their bytes, and of what is left of large ones without the round trip. So one stray transfer moves
    nothing, and a tier that was throttled is known after three. Until sizes differ, the round trip is what it was
    believed to be.
    """

    __slots__ = ("_rtt", "_second_per_byte", "_seen", "doubt", "margin", "measured_at")

    def __init__(self, rtt: float, bandwidth: float) -> None:
        """What is believed at first: seconds, bytes/s. Raises ValueError for what is not above 0 and finite."""
        if not (isfinite(rtt) and isfinite(bandwidth) and rtt > 0 and bandwidth > 0):
            raise ValueError(f"a tier with a round trip of {rtt!r} s and {bandwidth!r} bytes/s")
        self._rtt = rtt
        self._second_per_byte = 1.0 / bandwidth
        self._seen: deque[tuple[float, float]] = deque(maxlen=_KEPT)  # bytes, seconds; newest first
        self.margin = _UNMEASURED_MARGIN
        """How much longer, as a share, it must be expected to take for being on the safe side: the mean of what
        transfers took too long of late. One bad transfer raises it at once."""
        self.doubt = _UNMEASURED_MARGIN
        """The same for what they took too long or too short: whether it should be measured once more."""
        self.measured_at = -inf
        """`now` of the last transfer."""

    @property
    def rtt(self) -> float:
        """Seconds that a transfer of nothing takes."""
        return self._rtt

    @property
    def bandwidth(self) -> float:
        """Bytes per second."""
        return 1.0 / self._second_per_byte

    def seconds(self, n_bytes: float) -> float:
        """Expected for one transfer."""
        return self._rtt + n_bytes * self._second_per_byte

    def observe(self, n_bytes: int, seconds: float, now: float) -> None:
        """One transfer of so many bytes, however many chunks they were, took so long. What cannot be is ignored."""
        if n_bytes < 0 or not isfinite(seconds) or seconds < 0:
            return
        self._seen.appendleft((float(n_bytes), max(seconds, _LEAST_SECONDS)))
        self.measured_at = now
        self._forget_the_past_if_it_is_over()
        believed_rtt = self._rtt
        for _ in range(_ROUNDS):
            self._fit(believed_rtt)
        ages = [_MEMORY**age for age in range(len(self._seen))]
        ratios = [took / self.seconds(size) for size, took in self._seen]
        late = [min(max(ratio - 1.0, 0.0), _WORST_SURPRISE) for ratio in ratios]
        early = [min(max(1.0 / ratio - 1.0, 0.0), _WORST_SURPRISE) for ratio in ratios]
        self.margin = _dot(ages, late) / sum(ages)
        self.doubt = self.margin + _dot(ages, early) / sum(ages)

    def _forget_the_past_if_it_is_over(self) -> None:
        newest = [took / self.seconds(size) for size, took in islice(self._seen, 2)]
        if len(newest) == 2 and (min(newest) > _SURPRISE or max(newest) < 1 / _SURPRISE):
            while len(self._seen) > 2:
                self._seen.pop()

    def _fit(self, believed_rtt: float) -> None:
        """One round of least squares of the relative error, in which what is far off weighs less."""
        w1 = w_size = w_size2 = w_took = w_both = 0.0
        memory = 1.0
        for size, took in self._seen:
            expected = self.seconds(size)
            off = max(took / expected, expected / took) - 1.0
            weight = memory * min(1.0, _USUAL / off if off else 1.0) / expected**2
            w1 += weight
            w_size += weight * size
            w_size2 += weight * size * size
            w_took += weight * took
            w_both += weight * size * took
            memory *= _MEMORY
        held = _STIFFNESS / believed_rtt**2
        w1 += held
        w_took += held * believed_rtt
        quickest, *others = sorted(took for _, took in self._seen)
        determinant = w1 * w_size2 - w_size**2  # above 0 by what is held, unless all were empty
        rtt = (w_took * w_size2 - w_size * w_both) / determinant if w_size2 else w_took / w1
        # No transfer is quicker than the round trip; a single one may be a stray.
        longest = _SURPRISE * (others[0] if others else believed_rtt)
        self._rtt = max(min(rtt, longest), _LEAST_SHARE * quickest)
        if w_size2:
            slope = (w_both - w_size * self._rtt) / w_size2
            self._second_per_byte = max(slope, _LEAST_SHARE * min(took / size for size, took in self._seen if size))


def _dot(left: Iterable[float], right: Iterable[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))


def attended(n_tokens: float, context: float) -> float:
    """Pairs of a token and one that it attends to, for `n_tokens` new ones after `context` that are there."""
    return n_tokens * (context + n_tokens / 2)


class PrefillModel:
    """Seconds of a step: a + b × tokens + c × tokens × context, by least squares of the relative error.

    The last hundred steps or so count. A coefficient that would be negative is 0; what the steps of late do not tell
    apart stays as it was.
    """

    __slots__ = ("_coefficients", "_moments", "_products", "_stale", "_step_tokens")

    _MEMORY: Final = 0.99
    _STIFFNESS: Final = 1e-7
    _SCALE: Final = (1.0, 1e-3, 1e-6)

    def __init__(self, tokens_per_second: float, *, step_tokens: int | None = None) -> None:
        """`tokens_per_second` is believed at first. `step_tokens`: a prefill longer than that takes several steps, each
        with its `a`. Raises ValueError for what is not above 0.
        """
        if not (isfinite(tokens_per_second) and tokens_per_second > 0) or (step_tokens is not None and step_tokens < 1):
            raise ValueError(f"{tokens_per_second!r} tokens/s in steps of {step_tokens!r} tokens")
        self._step_tokens = step_tokens or inf
        self._coefficients = [0.0, 1e3 / tokens_per_second, 0.0]
        self._products = [[0.0] * 3 for _ in range(3)]
        self._moments = [0.0] * 3
        self._stale = False

    def seconds(self, n_tokens: float, context: float = 0.0) -> float:
        """To compute `n_tokens` after `context` that are there; 0 for none."""
        if n_tokens <= 0:
            return 0.0
        a, b, c = self.coefficients
        return a * max(1, ceil(n_tokens / self._step_tokens)) + b * n_tokens + c * attended(n_tokens, context)

    @property
    def coefficients(self) -> tuple[float, float, float]:
        """(a, b, c) in seconds, as of now."""
        if self._stale:
            self._solve()
        a, b, c = self._coefficients
        return a, b * self._SCALE[1], c * self._SCALE[2]

    def observe(self, n_tokens: float, pairs: float, seconds: float) -> None:
        """A step computed so many tokens, of all its sequences, with so many `attended` pairs, in so many seconds."""
        if not (n_tokens > 0 and pairs >= 0 and isfinite(pairs) and isfinite(seconds) and seconds > 0):
            return
        row = [value * scale / seconds for value, scale in zip((1.0, n_tokens, pairs), self._SCALE, strict=True)]
        for i in range(3):
            self._moments[i] = self._moments[i] * self._MEMORY + row[i]
            for j in range(3):
                self._products[i][j] = self._products[i][j] * self._MEMORY + row[i] * row[j]
        self._stale = True

    def _solve(self) -> None:
        self._stale = False
        free = [0, 1, 2]
        while free:
            found = self._least_squares(free)
            if min(found) >= 0:
                self._coefficients = [found[free.index(i)] if i in free else 0.0 for i in range(3)]
                return
            free.remove(free[found.index(min(found))])

    def _least_squares(self, free: list[int]) -> list[float]:
        """Of the `free` coefficients, held to where they are by a little of their own weight."""
        rows = []
        for i in free:
            held = self._STIFFNESS * (self._products[i][i] or 1.0)
            row = [self._products[i][j] + (held if i == j else 0.0) for j in free]
            rows.append([*row, self._moments[i] + held * self._coefficients[i]])
        return _eliminate(rows)


def _eliminate(rows: list[list[float]]) -> list[float]:
    """The solution of a small system that is symmetric and positive definite: no pivoting needed."""
    n = len(rows)
    for i in range(n):
        for below in range(i + 1, n):
            factor = rows[below][i] / rows[i][i]
            rows[below] = [value - factor * above for value, above in zip(rows[below], rows[i], strict=True)]
    solution = [0.0] * n
    for i in reversed(range(n)):
        known = sum(rows[i][j] * solution[j] for j in range(i + 1, n))
        solution[i] = (rows[i][n] - known) / rows[i][i]
    return solution
