"""The steps of a worker's engine, as they must be from what a gateway sees: who is computed in which, and until when.

It is taken to work as vLLM does: in steps, each of which computes one token for every running request and as much of
the waiting prompts, in the order of arrival, as its budget allows. What comes while a step is under way joins the next
one. A first token shows when a step ended, and so does the end of an answer; between these, steps take what is believed
of the worker's speed. A step that must answer somebody is not over before the answer is there.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import Final, NamedTuple

from policies.restore_speed import attended

SAME_STEP_S: Final = 1e-3
"""What comes so soon after each other is of one step."""
_JITTER_S: Final = 5e-3
"""What one step answers may be read so long after each other where many streams are read."""
_FILL_AT: Final = (0.01, 0.5, 1.0, 2.0, 4.0)
_FILL_STEP: Final = 0.02

Terms = tuple[float, float, float, float, float]
"""Steps, tokens, attended pairs, steps that also decode, and the same times the tokens of context they decode with."""


class Speed(NamedTuple):
    """Seconds a step takes just now."""

    step: float
    """By itself."""
    token: float
    """For each prompt token."""
    pair: float
    """For each pair that attention looks at."""
    decode: float = 0.0
    """For decoding beside it."""
    context: float = 0.0
    """And for each token of context of those that decode."""

    def seconds(self, terms: Terms) -> float:
        """What so much takes."""
        a, b, c, d, e = self
        steps, tokens, pairs, decoding, held = terms
        return a * steps + b * tokens + c * pairs + d * decoding + e * held


class Prompt:
    """One that waits for its first token."""

    __slots__ = ("answered", "bucket", "chunk", "context", "gone", "held", "left", "need", "place", "ready_at", "reuse",
                 "sent", "streams", "ticket", "tokens")  # fmt: skip

    def __init__(
        self,
        ticket: int,
        tokens: float,
        context: float,
        sent: float,
        *,
        streams: bool = True,
        restore_s: float = 0.0,
        bucket: int = -1,
    ) -> None:
        """So many `tokens` to compute after so many cached ones, once others are restored."""
        self.ticket = ticket
        self.tokens = self.left = max(tokens, 1.0)
        """`left`: to be computed in steps that have not begun."""
        self.context = max(context, 0.0)
        """Cached, or computed by the end of the step under way."""
        self.held = self.tokens + self.context
        self.sent = self.answered = sent
        self.ready_at = sent + restore_s
        self.streams = streams
        self.gone = False
        self.need = 0.0
        """Tokens that it has to compute and that are not yet counted as used, of the KV cache."""
        self.reuse = 0.0
        """Cached ones that nobody else uses, likewise."""
        self.chunk = 0.0
        """What the last step computed of it."""
        self.place = 0.0
        """Tokens of that step, up to and with its own."""
        self.bucket = bucket
        """What was expected to fill its last step; see `Fills`."""


class Served(NamedTuple):
    """A stretch of time in which a worker computed prompts, from one moment at which a step was seen to end, or work
    to come, to another.
    """

    seconds: float
    terms: Terms
    running: int = 0
    """Who ran at its end, and what they held."""
    running_tokens: float = 0.0
    waiting_tokens: float = 0.0
    room: float = inf
    """Tokens that its KV cache holds."""


class Fills:
    """How much of what is left of its budget a prompt's last step is given to prompts that come later, by how many full
    steps from now that one begins. Often it is nothing or all; these are medians, as no step is filled to the mean.
    """

    __slots__ = ("shares",)

    def __init__(self) -> None:
        self.shares = [0.0] * (len(_FILL_AT) + 1)

    @staticmethod
    def bucket(steps: float) -> int:
        """Which share it is."""
        for bucket, bound in enumerate(_FILL_AT):
            if steps < bound:
                return bucket
        return len(_FILL_AT)

    def observe(self, bucket: int, share: float) -> None:
        """So much it was."""
        old = self.shares[bucket]
        self.shares[bucket] = min(old + _FILL_STEP, share) if share > old else max(old - _FILL_STEP, share)


class EngineSteps:
    """Of one worker. Whoever calls tells prompts in the order of time, and how many run and what they hold."""

    __slots__ = ("_boundary", "_budget", "_closed_at", "_confirmed_at", "_fills", "_finishing", "_late",
                 "_open_until", "_queue", "_restoring", "_terms", "began", "held", "left_pairs", "left_tokens",
                 "running", "step")  # fmt: skip

    def __init__(self, budget: float, fills: Fills | None = None) -> None:
        """`budget`: tokens that a step computes at most."""
        self._budget = budget
        self._fills = fills or Fills()
        self._queue: deque[Prompt] = deque()  # not wholly given to steps; some are gone
        self._finishing: dict[int, Prompt] = {}  # answered at the end of the step under way
        self._late: dict[int, Prompt] = {}  # should have been answered with the last one
        self._restoring: list[Prompt] = []
        self.left_tokens = self.left_pairs = 0.0
        self.running = 0
        self.held = 0.0
        self.began = -inf
        self.step: Terms | None = None
        """Under way, or about to begin."""
        self._open_until = -inf
        """Until then the step under way takes what comes: it has not begun, or only just, for want of work."""
        self._closed_at = self._confirmed_at = self._boundary = -inf
        self._terms: Terms = (0.0,) * 5

    @property
    def budget(self) -> float:
        """Prompt tokens that a step computes at most, beside those who run."""
        return max(self._budget - self.running, 1.0)

    @property
    def overdue(self) -> bool:
        """Does the step under way answer somebody?"""
        return bool(self._finishing)

    def end(self, speed: Speed) -> float:
        """When the step under way should end; there is one."""
        assert self.step is not None, "nothing under way"
        return self.began + speed.seconds(self.step)

    def residual(self, now: float, speed: Speed) -> float:
        """Seconds until a step that only decodes is over."""
        if not self.running:
            return 0.0
        whole = speed.decode + speed.context * self.held
        since = now - max(self._boundary, self._closed_at)
        return whole - since if 0.0 <= since < whole else 0.5 * whole

    def joinable(self, now: float) -> float:
        """Tokens that a prompt which comes now can still have in the step under way; there is one."""
        if self.step is None or self._queue or now > self._open_until:
            return 0.0
        return max(self.budget - self.step[1], 0.0)

    def begun(self) -> list[Prompt]:
        """Prompts of which something is computed."""
        begun = [*self._finishing.values()]
        if self._waits() and self._queue[0].chunk:
            begun.append(self._queue[0])
        return begun

    # -- what happens

    def add(self, prompt: Prompt, now: float, speed: Speed) -> None:
        """It came; `advance` was called."""
        if prompt.ready_at > now:
            self._restoring.append(prompt)
            return
        self._push(prompt, now, speed)

    def _push(self, prompt: Prompt, now: float, speed: Speed) -> None:
        join = self.joinable(now)
        self._queue.append(prompt)
        self.left_tokens += prompt.left
        self.left_pairs += attended(prompt.left, prompt.context)
        if self.step is None:
            wait_s = self.residual(now, speed)
            whole = speed.decode + speed.context * self.held
            phase = wait_s / whole if self.running and whole > 0.0 else 0.0
            self._confirmed_at = now
            self._terms = (0.0, 0.0, 0.0, phase, phase * self.held)
            self._begin(now + wait_s)
            self._open_until = now + max(wait_s, SAME_STEP_S)
        elif join > 0.0:
            self._fill(join)

    def advance(self, now: float, speed: Speed) -> list[Prompt]:
        """Live until then; returns prompts that do not stream and must be over."""
        over: list[Prompt] = []
        if self._late and now - self._closed_at > _JITTER_S:
            over += self._requeue().values()
        if self._boundary > self.began and self._finishing and now - self._boundary > SAME_STEP_S:
            self.began = self._boundary  # what ended then was the step before
        for prompt in [each for each in self._restoring if each.ready_at <= now]:
            self._restoring.remove(prompt)
            if not prompt.gone:
                self._push(prompt, now, speed)
        while self.step is not None:
            end = self.end(speed)
            if end > now or any(prompt.streams for prompt in self._finishing.values()):
                break
            over += self._finishing.values()
            self._finishing.clear()
            self._begin(end)
        return over

    def answered(self, prompt: Prompt, now: float) -> Served | None:
        """Its first token came. What was done until then since a step was last seen to end, if this shows such an end;
        None of the same step's others.
        """
        if prompt.ticket in self._late:
            del self._late[prompt.ticket]
            return None
        if prompt in self._restoring:
            self._restoring.remove(prompt)
            return None
        while self.step is not None and not self._finishing and prompt.left > 0.0:
            self._begin(now)  # it has done more than was believed
        if prompt.ticket not in self._finishing:  # it has overtaken others
            self.gone(prompt)
            return None
        del self._finishing[prompt.ticket]
        self._learn_fill(prompt)
        return self._close(now)

    def step_ended(self, now: float, speed: Speed) -> None:
        """An answer ended, and with it a step."""
        if self.step is None:
            pass
        elif now <= self.began + SAME_STEP_S:
            self.began = now
            self._open_until = -inf
        elif not self._finishing:
            if now - self.began > self.end(speed) - now:
                self._begin(now)
            else:
                self.began = now
        self._boundary = now

    def gone(self, prompt: Prompt) -> None:
        """It waits no longer, unanswered."""
        prompt.gone = True
        self._late.pop(prompt.ticket, None)
        if prompt in self._restoring:
            self._restoring.remove(prompt)
        elif self._finishing.pop(prompt.ticket, None) is None:
            self._leave(prompt, prompt.left)
            prompt.left = 0.0
        if self.step is not None and not self._finishing and not self._waits():
            self._none()

    # -- parts

    def _waits(self) -> bool:
        while self._queue and self._queue[0].gone:
            self._queue.popleft()
        return bool(self._queue)

    def _none(self) -> None:
        self.step = None
        self._queue.clear()
        self.left_tokens = self.left_pairs = 0.0

    def _leave(self, prompt: Prompt, tokens: float) -> None:
        pairs = attended(tokens, prompt.context)
        self.left_tokens = max(self.left_tokens - tokens, 0.0)
        self.left_pairs = max(self.left_pairs - pairs, 0.0)

    def _begin(self, at: float) -> None:
        """The next step, of what waits."""
        if not self._waits():
            self._none()
            return
        self.began = at
        self._open_until = -inf
        decoding = 1.0 if self.running else 0.0
        self.step = (1.0, 0.0, 0.0, decoding, decoding * self.held)
        self._count(self.step)
        self._fill(self.budget)

    def _fill(self, budget: float) -> None:
        """Give so many tokens more to the step under way."""
        step = self.step
        assert step is not None, "begun before"
        tokens = pairs = 0.0
        while budget > 0.0 and self._waits():
            prompt = self._queue[0]
            part = min(prompt.left, budget)
            budget -= part
            tokens += part
            pairs += attended(part, prompt.context)
            self._leave(prompt, part)
            prompt.left -= part
            prompt.context += part
            prompt.chunk = part
            if prompt.left <= 0.0:
                prompt.place = step[1] + tokens
                self._queue.popleft()
                self._finishing[prompt.ticket] = prompt
        more = (0.0, tokens, pairs, 0.0, 0.0)
        self.step = (step[0], step[1] + tokens, step[2] + pairs, step[3], step[4])
        self._count(more)

    def _count(self, more: Terms) -> None:
        a, b, c, d, e = self._terms
        f, g, h, i, j = more
        self._terms = (a + f, b + g, c + h, d + i, e + j)

    def _learn_fill(self, prompt: Prompt) -> None:
        step = self.step
        assert step is not None, "it was in it"
        space = self.budget - prompt.place
        if prompt.bucket >= 0 and space > 0.0:
            self._fills.observe(prompt.bucket, min(max((step[1] - prompt.place) / space, 0.0), 1.0))

    def _close(self, now: float) -> Served:
        served = Served(now - self._confirmed_at, self._terms)
        late = self._finishing
        self._finishing = {}
        late.update(self._requeue())
        self._late = late
        self._closed_at = self._confirmed_at = now
        self._terms = (0.0,) * 5
        self._begin(now)
        return served

    def _requeue(self) -> dict[int, Prompt]:
        """Who is late was not computed then, after all. Returns those that do not stream, of whom nobody knows."""
        unary = {}
        for prompt in reversed(self._late.values()):
            if not prompt.streams:
                unary[prompt.ticket] = prompt
                continue
            prompt.context -= prompt.chunk
            prompt.left = prompt.chunk
            self._queue.appendleft(prompt)
            self.left_tokens += prompt.left
            self.left_pairs += attended(prompt.left, prompt.context)
        self._late = {}
        return unary
