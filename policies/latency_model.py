"""Time to first token and time per output token of one worker, predicted when a request is to be sent to it.

What is learnt of the worker stands in `latency_path` (TTFT) and `latency_decode` (TPOT); here predictions are corrected
by how far off they were and given an upper quantile, and workers of one class lend each other what they know.
Pure: `now` is an argument, times are seconds of one clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite
from typing import Final, NamedTuple

from policies.latency_calibration import Correction, Errors, Margin
from policies.latency_decode import LEAST_TPOT_S, DecodePace, Recent
from policies.latency_fit import SharedFit
from policies.latency_load import Load, WorkerLoad
from policies.latency_path import LEAST_S, MOST_S, Estimate, Judges, PrefillPath, Situation
from policies.latency_room import RoomWaits
from policies.latency_steps import Fills, Prompt, Served, Speed

__all__ = ["FleetLatency", "LatencyModel", "LatencyPrior", "Load", "Prediction", "Situation", "WorkerLatency"]

_MOST_TOKENS: Final = 1e9
_LEAST_OUTPUT: Final = 2


@dataclass(frozen=True, slots=True)
class LatencyPrior:
    """What is believed of a class of workers before any was seen at work. Raises ValueError for what cannot be."""

    tokens_per_second: float = 8_000.0
    """Of prefill."""
    step_s: float = 0.015
    """What an engine step takes beside its tokens."""
    tpot_s: float = 0.015
    """Per output token of a request that is alone."""
    step_tokens: int = 8_192
    """Tokens that a step computes at most: vLLM's `max_num_batched_tokens`."""

    def __post_init__(self) -> None:
        """Check what types cannot."""
        for value in (self.tokens_per_second, self.step_s, self.tpot_s, self.step_tokens):
            if not (isfinite(value) and value > 0):
                raise ValueError(f"a worker's speed must be above 0 and finite, got {value!r}")


class FleetLatency:
    """What the workers of one class (a model on one kind of machine) know together; each new one begins with it."""

    __slots__ = ("correction", "fills", "judges", "margins", "path", "prior", "recent", "tpot", "tpot_correction",
                 "tpot_margin", "waits")  # fmt: skip

    def __init__(self, prior: LatencyPrior | None = None) -> None:
        self.prior = prior = prior or LatencyPrior()
        self.path = SharedFit((prior.step_s, 1.0 / prior.tokens_per_second, 0.0, prior.tpot_s, 0.0))
        self.tpot = SharedFit((prior.tpot_s, 0.0, 0.0))
        self.fills = Fills()
        self.waits = RoomWaits()
        self.judges = Judges()
        self.recent = Recent()
        self.correction = Correction()
        self.tpot_correction = Correction()
        self.margins = tuple(Margin() for _ in Situation)
        self.tpot_margin = Margin()


class Prediction(NamedTuple):
    """Of one request on one worker, in seconds. Half of all are below `…_s`, nine in ten below `…_p90_s`."""

    ttft_s: float
    ttft_p90_s: float
    tpot_s: float
    tpot_p90_s: float
    situation: Situation
    load: Load
    """What it was made from, with what follows."""
    uncached: float
    context: float
    restore_s: float
    estimate: Estimate


class LatencyModel:
    """One worker's. No method keeps what it is given."""

    __slots__ = ("_correction", "_decode", "_margins", "_path", "_tpot_correction", "_tpot_margin",
                 "tpot_errors", "ttft_errors")  # fmt: skip

    def __init__(self, fleet: FleetLatency | None = None) -> None:
        fleet = fleet or FleetLatency()
        budget = float(fleet.prior.step_tokens)
        self._path = PrefillPath(fleet.path, fleet.fills, fleet.waits, budget)
        self._decode = DecodePace(fleet.tpot, fleet.judges, fleet.recent, self._path, budget)
        self._correction = Correction(fleet.correction)
        self._tpot_correction = Correction(fleet.tpot_correction)
        self._margins = [Margin(margin) for margin in fleet.margins]
        self._tpot_margin = Margin(fleet.tpot_margin)
        self.ttft_errors = Errors()
        self.tpot_errors = Errors()

    @property
    def recent_tpot_s(self) -> float:
        """What an output token took of late; 0 while nobody knows."""
        return self._decode.recent_s or 0.0

    @property
    def speed(self) -> Speed:
        """How fast it prefills just now."""
        return self._path.speed

    def predict(self, load: Load, uncached: float, context: float = 0.0, restore_s: float = 0.0) -> Prediction:
        """For a prompt of `uncached` tokens to compute after `context` that are there, of which some take `restore_s`
        seconds to be brought back.
        """
        uncached = min(max(uncached, 1.0), _MOST_TOKENS)
        context = min(max(context, 0.0), _MOST_TOKENS)
        estimate = self._path.estimate(load, uncached, context)
        ttft = estimate.seconds
        if estimate.situation is not Situation.ROOM:
            ttft *= self._correction.factor
        tpot = self._decode.estimate(load, uncached + context) * self._tpot_correction.factor
        return Prediction(
            _bounded(ttft + restore_s),
            _bounded(ttft * self._margins[estimate.situation].factor + restore_s),
            _bounded(tpot),
            _bounded(tpot * self._tpot_margin.factor),
            estimate.situation,
            load,
            uncached,
            context,
            restore_s,
            estimate,
        )

    def observe_ttft(self, predicted: Prediction, ttft_s: float) -> None:
        """The first token of a stream came. What cannot be is ignored."""
        if not (isfinite(ttft_s) and ttft_s >= 0.0):
            return
        self.ttft_errors.observe(predicted.ttft_s, predicted.ttft_p90_s, max(ttft_s, LEAST_S))
        took = max(ttft_s - predicted.restore_s, LEAST_S)
        said = max(predicted.ttft_s - predicted.restore_s, LEAST_S)
        self._margins[predicted.situation].observe(took / said, missed=ttft_s > predicted.ttft_p90_s)
        estimate = predicted.estimate
        if estimate.situation is Situation.ROOM:
            self._path.observe(estimate, took)
        else:
            self._correction.observe(took / estimate.seconds)

    def observe_tpot(self, predicted: Prediction, output_tokens: int, decode_s: float) -> None:
        """It made so many tokens, from the first to the last in so many seconds. What cannot be is ignored."""
        if output_tokens < _LEAST_OUTPUT or not (isfinite(decode_s) and decode_s > 0.0):
            return
        tpot_s = max(decode_s / (output_tokens - 1), LEAST_TPOT_S)
        self.tpot_errors.observe(predicted.tpot_s, predicted.tpot_p90_s, tpot_s)
        self._tpot_margin.observe(tpot_s / predicted.tpot_s, missed=tpot_s > predicted.tpot_p90_s)
        tokens = predicted.uncached + predicted.context
        self._tpot_correction.observe(tpot_s / self._decode.estimate(predicted.load, tokens))
        self._decode.observe(predicted.load, tokens, tpot_s)

    def observe_served(self, served: Served) -> None:
        """What it got done in a stretch of time."""
        self._path.served(served)


def _bounded(seconds: float) -> float:
    return max(seconds, LEAST_TPOT_S) if seconds < MOST_S else MOST_S  # also for what is no number


class WorkerLatency:
    """A worker's load and its model, kept in step: tell it what is sent and what comes, ask it what to expect.

    Tickets are integers that only grow. Whatever is told of one that is not known (any more) changes nothing.
    """

    __slots__ = ("_firsts", "_load", "_predictions", "_sent", "model")

    def __init__(self, fleet: FleetLatency | None = None, *, kv_tokens: float = inf) -> None:
        """`fleet` is shared by the workers of one class; `kv_tokens`: how many the KV cache holds, if that is known."""
        fleet = fleet or FleetLatency()
        self.model = LatencyModel(fleet)
        self._load = WorkerLoad(fleet.prior.step_tokens, fleet.fills)
        self.hold(kv_tokens)
        self._predictions: dict[int, tuple[Prediction, float, bool]] = {}  # ticket -> what was said, when, streams
        self._firsts: dict[int, float] = {}  # ticket -> first token

    def __len__(self) -> int:
        return len(self._predictions)

    def hold(self, kv_tokens: float) -> None:
        """Its KV cache holds so many tokens; infinite where that is not known."""
        self._load.room = kv_tokens

    def told_used(self, share: float, at_work: int | None, now: float) -> None:
        """It says that this share of its KV cache is in use, by so many requests that it computes or decodes."""
        if self._load.room < inf:
            self._load.told_used(share * self._load.room, at_work, now, self.model.speed, self.model.recent_tpot_s)

    def kv_share(self, now: float) -> float:
        """Of its KV cache, used and needed by those that wait; 0 where nobody knows how much it holds."""
        load = self.load(now)
        return (load.used_tokens + load.needed_tokens + load.reused_tokens) / load.room_tokens

    def load(self, now: float) -> Load:
        """What it has to do."""
        return self._load.load(now, self.model.speed, self.model.recent_tpot_s)

    def predict(self, now: float, uncached: float, context: float = 0.0, restore_s: float = 0.0) -> Prediction:
        """For one more request now; as `LatencyModel.predict`."""
        return self.model.predict(self.load(now), uncached, context, restore_s)

    def sent(self, ticket: int, predicted: Prediction, now: float, *, streams: bool = True) -> None:
        """The request for which that was predicted went to it. Without a stream its first byte is also its last."""
        self._predictions[ticket] = (predicted, now, streams)
        model = self.model
        prompt = Prompt(
            ticket,
            predicted.uncached,
            predicted.context,
            now,
            streams=streams,
            restore_s=predicted.restore_s,
            bucket=predicted.estimate.bucket,
        )
        self._load.sent(prompt, model.speed, model.recent_tpot_s)

    def first_token(self, ticket: int, now: float) -> None:
        """The first byte of an answer that is no error came."""
        known = self._predictions.get(ticket)
        if known is None or ticket in self._firsts:
            return
        predicted, sent, streams = known
        if not streams:
            return
        self._firsts[ticket] = now
        served = self._load.first_token(ticket, now, self.model.speed, self.model.recent_tpot_s)
        if served is not None:
            self.model.observe_served(served)
        self.model.observe_ttft(predicted, now - sent)

    def ended(self, ticket: int, now: float, output_tokens: int = 0) -> None:
        """It is over: finished with so many tokens, or with 0 failed, cancelled or sent elsewhere."""
        known = self._predictions.pop(ticket, None)
        if known is None:
            return
        first = self._firsts.pop(ticket, None)
        self._load.ended(ticket, output_tokens, now, self.model.speed, self.model.recent_tpot_s)
        if first is not None:
            self.model.observe_tpot(known[0], output_tokens, now - first)
