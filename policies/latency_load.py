"""What of a worker's load decides how long the next request waits, as a gateway sees it from first and last bytes."""

from __future__ import annotations

from collections.abc import Iterable
from math import exp, inf
from typing import Final, NamedTuple

from policies.latency_steps import EngineSteps, Fills, Prompt, Served, Speed

_LATE_S: Final = 20.0
"""Time constant of what was prefilled and given back "of late"."""
_LEAST_SPAN: Final = 0.05
"""Share of it that a rate is taken over at least."""


class Load(NamedTuple):
    """A worker at the moment of a decision, without the request that is to be decided."""

    rest_s: float = 0.0
    """Until the step under way should end; negative where it should have."""
    join_tokens: float = 0.0
    """That a prompt which comes now can still have of that step."""
    behind_tokens: float = 0.0
    """Uncached tokens for which there was no place in it, of prompts that wait."""
    behind_pairs: float = 0.0
    """Their `attended` pairs."""
    budget: float = 8_192.0
    """Prompt tokens that a step computes at most."""
    waiting: int = 0
    """Requests without a first byte."""
    running: int = 0
    """Requests with one, not finished."""
    running_tokens: float = 0.0
    """Their prompts and what they have generated so far."""
    waiting_tokens: float = 0.0
    """The whole prompts of those that wait, cached or not."""
    release_rate: float = 0.0
    """Tokens per second that finished requests gave back of late."""
    prefill_rate: float = 0.0
    """Uncached tokens per second that it prefilled of late."""
    step_rate: float = 0.0
    """Steps per second, of late, that prefilled something."""
    used_tokens: float = 0.0
    """Of its KV cache. Prefixes that several share count once, where it tells how full it is."""
    needed_tokens: float = 0.0
    """More, for what those that wait have to compute."""
    reused_tokens: float = 0.0
    """Cached ones that they will use and that nobody does now, each by itself."""
    room_tokens: float = inf
    """That its KV cache holds."""


class WorkerLoad:
    """The requests that one worker has. Times are seconds of one clock; tickets are integers that only grow.

    Whatever is told of a ticket that is not known (any more) changes nothing.
    """

    __slots__ = (
        "_answered_sum",
        "_begun",
        "_budget",
        "_held_running",
        "_held_waiting",
        "_late_at",
        "_late_from",
        "_need_waiting",
        "_prefilled",
        "_released",
        "_reuse_waiting",
        "_running",
        "_steps",
        "_steps_done",
        "_unary",
        "_unique",
        "_used",
        "_waiting",
        "room",
    )  # fmt: skip

    def __init__(self, budget: float = 8_192.0, fills: Fills | None = None) -> None:
        """`budget`: tokens that one of its steps computes at most."""
        self.room = inf
        """Tokens that its KV cache holds."""
        self._used = self._need_waiting = self._reuse_waiting = 0.0
        self._unique = 1.0
        """Used tokens over those that all hold by themselves."""
        self._begun: Iterable[Prompt] = ()
        self._budget = budget
        self._steps = EngineSteps(budget, fills)
        self._waiting: dict[int, Prompt] = {}  # oldest first
        self._running: dict[int, Prompt] = {}
        self._unary: set[int] = set()  # of the waiting
        self._held_waiting = self._held_running = self._answered_sum = 0.0
        self._late_at = self._prefilled = self._steps_done = self._released = 0.0
        self._late_from = -inf  # when anything was first told

    def __len__(self) -> int:
        return len(self._waiting) + len(self._running)

    def load(self, now: float, speed: Speed, tpot_s: float) -> Load:
        """As of `now`, each running request having made a token every `tpot_s` seconds."""
        steps = self._advance(now, speed, tpot_s)
        faded = exp(min(self._late_at - now, 0.0) / _LATE_S)
        per_second = faded / (_LATE_S * max(1.0 - exp(min(self._late_from - now, 0.0) / _LATE_S), _LEAST_SPAN))
        at_work = steps.step is not None
        return Load(
            steps.end(speed) - now if at_work else steps.residual(now, speed),
            steps.joinable(now) if at_work else 0.0,
            steps.left_tokens,
            steps.left_pairs,
            steps.budget,
            len(self._waiting),
            len(self._running),
            steps.held,
            self._held_waiting,
            self._released * per_second,
            self._prefilled * per_second,
            self._steps_done * per_second,
            self._used,
            self._need_waiting,
            self._reuse_waiting,
            self.room,
        )

    def told_used(self, tokens: float, at_work: int | None, now: float, speed: Speed, tpot_s: float) -> None:
        """So many tokens of its KV cache are in use, by so many requests that it computes or decodes."""
        steps = self._advance(now, speed, tpot_s)
        self._used, held = tokens, steps.held
        begun = () if at_work is not None and at_work <= len(self._running) else steps.begun()
        for prompt in self._begun:
            prompt.need, prompt.reuse = prompt.tokens, self._reuse(prompt.held - prompt.tokens)
        for prompt in begun:
            prompt.need, prompt.reuse = prompt.left, 0.0
            held += prompt.context
        self._begun = begun
        self._need_waiting = sum([prompt.need for prompt in self._waiting.values()])
        self._reuse_waiting = sum([prompt.reuse for prompt in self._waiting.values()])
        self._unique = min(max(tokens / held, 0.05), 1.0) if held > 0.0 else 1.0

    def _reuse(self, context: float) -> float:
        """What of it takes up free room. Cached blocks that nobody uses are part of what is free: if it is more than
        that, somebody does.
        """
        return context if context <= self.room - self._used else 0.0

    def sent(self, prompt: Prompt, speed: Speed, tpot_s: float) -> None:
        """A request went to it just now."""
        now, ticket = prompt.sent, prompt.ticket
        steps = self._advance(now, speed, tpot_s)
        self._waiting[ticket] = prompt
        self._held_waiting += prompt.held
        prompt.need, prompt.reuse = prompt.tokens, self._reuse(prompt.context)
        self._need_waiting += prompt.need
        self._reuse_waiting += prompt.reuse
        if not prompt.streams:
            self._unary.add(ticket)
        steps.add(prompt, now, speed)

    def first_token(self, ticket: int, now: float, speed: Speed, tpot_s: float) -> Served | None:
        """Its prefill is over, and so is that of every unary request before it. Returned is what was done until now
        since a step was last seen to end; None where this was seen before.
        """
        if ticket not in self._waiting or ticket in self._unary:
            self.ended(ticket, 0.0, now, speed, tpot_s)
            return None
        steps = self._advance(now, speed, tpot_s)
        prompt = self._waiting[ticket]
        self._answered(prompt, now, tpot_s)
        served = steps.answered(prompt, now)
        if self._unary:
            for earlier in [unary for unary in self._unary if unary < ticket]:
                unary = self._waiting[earlier]
                self._answered(unary, now, tpot_s)
                steps.gone(unary)
        self._fade(now)
        self._prefilled += prompt.tokens
        if served is None:
            return None
        self._steps_done += served.terms[0]
        return served._replace(
            running=len(self._running),
            running_tokens=self._used,
            waiting_tokens=self._need_waiting + self._reuse_waiting + prompt.need + prompt.reuse,
            room=self.room,
        )

    def ended(self, ticket: int, output_tokens: float, now: float, speed: Speed, tpot_s: float) -> None:
        """It is over, with so many tokens generated: finished, failed, cancelled or sent elsewhere."""
        steps = self._advance(now, speed, tpot_s)
        if ticket in self._waiting:
            prompt = self._waiting.pop(ticket)
            self._unary.discard(ticket)
            self._no_longer_waits(prompt)
            steps.gone(prompt)
        elif ticket in self._running:
            prompt = self._running.pop(ticket)
            self._held_running -= prompt.held
            self._answered_sum -= prompt.answered
            self._used = max(self._used - self._unique * (prompt.held + output_tokens), 0.0)
            if not self._running:
                self._held_running = self._answered_sum = self._used = 0.0
            self._fade(now)
            self._released += prompt.held + output_tokens
            if output_tokens > 0:
                steps.step_ended(now, speed)

    def _advance(self, now: float, speed: Speed, tpot_s: float) -> EngineSteps:
        steps = self._steps
        steps.running, steps.held = len(self._running), self._held(now, tpot_s)
        over = steps.advance(now, speed)
        if over:
            for prompt in over:
                self._answered(prompt, now, tpot_s)
        return steps

    def _answered(self, prompt: Prompt, now: float, tpot_s: float) -> None:
        del self._waiting[prompt.ticket]
        self._unary.discard(prompt.ticket)
        self._no_longer_waits(prompt)
        self._used = min(self._used + prompt.need + prompt.reuse, self.room)
        prompt.answered = now
        self._running[prompt.ticket] = prompt
        self._held_running += prompt.held
        self._answered_sum += now
        self._steps.running, self._steps.held = len(self._running), self._held(now, tpot_s)

    def _no_longer_waits(self, prompt: Prompt) -> None:
        if self._waiting:
            self._held_waiting -= prompt.held
            self._need_waiting -= prompt.need
            self._reuse_waiting -= prompt.reuse
        else:
            self._held_waiting = self._need_waiting = self._reuse_waiting = 0.0

    def _held(self, now: float, tpot_s: float) -> float:
        if not self._running:
            return 0.0
        decoding = max(len(self._running) * now - self._answered_sum, 0.0)
        return self._held_running + (decoding / tpot_s if tpot_s > 0 else 0.0)

    def _fade(self, now: float) -> None:
        faded = exp(min(self._late_at - now, 0.0) / _LATE_S)
        self._prefilled *= faded
        self._steps_done *= faded
        self._released *= faded
        if self._late_from == -inf:
            self._late_from = now
        self._late_at = now
