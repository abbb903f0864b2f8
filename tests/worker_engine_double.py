"""An engine's process without a model, for tests of the server: it repeats the prompt, or misbehaves as asked.

`python worker_engine_double.py [--behaviour WORD[:NUMBER]]... --channel ENDPOINT --config JSON`. Behaviours:
`silent` (never ready), `fail` (says why it cannot start), `exit` (ends at once), `hang:N` and `die:N` (after N
tokens), `wake:S` (a hung one speaks again after S seconds), `refuse`, `full`, `stubborn` (ignores SIGTERM),
`garbage:N` (after N tokens), `untold` (no log probabilities, though asked for), `pace:MS` (milliseconds a step).
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from types import FrameType

import msgspec

from backends.worker.channel import EngineEnd
from backends.worker.messages import (
    Cancel,
    Clear,
    EngineStats,
    Failed,
    FinishReason,
    Ready,
    Refused,
    StepDone,
    Submit,
    ToEngine,
    TokenLogprobs,
    TokensOut,
)
from backends.worker.options import EngineOptions
from cache.block_hash import ChainKey, extend_chain, root_hash
from cache.kv_events import AllBlocksCleared, BlockStored, EngineHash, KvEvent
from cache.token_backends import bytes_to_ids
from policies.types import TokenIds

VOCABULARY = 8192
END = 0
BLOCKS = 512


@dataclass
class Running:
    """A sequence; token i is the prompt's token i, over and over."""

    submit: Submit
    prompt: list[int]
    cached: int
    made: int = 0

    def step(self) -> TokensOut:
        params = self.submit.params
        token = self.prompt[self.made % len(self.prompt)]
        self.made += 1
        reason, stop = None, None
        if self.made > params.min_tokens and (
            token in params.stop_token_ids or (token == END and not params.ignore_eos)
        ):
            reason, stop = FinishReason.STOP, token
        elif self.made == params.max_tokens:
            reason = FinishReason.LENGTH
        logprobs = None
        if params.logprobs is not None:
            tops = tuple((token + i) % VOCABULARY for i in range(params.logprobs))
            logprobs = (TokenLogprobs(-0.5, tops, tuple(-0.5 - i for i in range(params.logprobs))),)
        return TokensOut(self.submit.id, (token,), reason, stop, self.cached, logprobs)


@dataclass
class Double:
    """The engine's loop."""

    channel: EngineEnd
    options: EngineOptions
    behaviours: dict[str, float]
    running: dict[str, Running] = field(default_factory=dict)
    held: set[int] = field(default_factory=set)
    told: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    steps: int = 0
    events: list[KvEvent] = field(default_factory=list)
    stopping: bool = False

    def run(self) -> None:
        if "silent" in self.behaviours:
            time.sleep(600)
        if "fail" in self.behaviours:
            self.channel.send(Failed("there are no weights"))
            return
        if "exit" in self.behaviours:
            sys.exit(3)
        self.channel.send(
            Ready(
                blocks=BLOCKS,
                block_size=self.options.block_size,
                max_model_len=self.options.max_model_len or 4096,
                vocab_size=VOCABULARY,
                eos_token_ids=(END,),
                device="none",
                dtype="none",
            )
        )
        alive = time.monotonic()
        while not self.stopping and os.getppid() != 1:
            messages = self.channel.receive(0.0 if self.running else 0.05)
            for message in messages:
                self.take(message)
            if self.running or self.events or messages or time.monotonic() - alive > 0.2:
                self.step()
                alive = time.monotonic()

    def take(self, message: ToEngine) -> None:
        if isinstance(message, Submit):
            self.admit(message)
        elif isinstance(message, Cancel):
            self.running.pop(message.id, None)
        elif isinstance(message, Clear):
            self.held.clear()
            self.events.append(AllBlocksCleared())

    def admit(self, submit: Submit) -> None:
        if "refuse" in self.behaviours:
            self.channel.send(Refused(submit.id, "it needs more blocks than there are", "max_tokens"))
            return
        if "full" in self.behaviours:
            self.channel.send(Refused(submit.id, "the queue is full"))
            return
        size = self.options.block_size
        prompt = bytes_to_ids(submit.token_ids)
        root = root_hash(ChainKey(self.options.name, size, salt=submit.salt))
        hashes = extend_chain(root, submit.token_ids, size)
        usable = hashes[: (len(prompt) - 1) // size]
        cached = next((i for i, each in enumerate(usable) if each not in self.held), len(usable))
        if new := hashes[cached:]:
            self.held.update(new)
            parent = EngineHash(hashes[cached - 1]) if cached else None
            ids = TokenIds(submit.token_ids[4 * size * cached : 4 * size * len(hashes)])
            names = tuple(EngineHash(each) for each in new)
            salt = submit.salt or None if parent is None else None
            self.events.append(BlockStored(names, parent, ids, size, medium="GPU", salt=salt))
        self.prompt_tokens += len(prompt)
        self.cached_tokens += cached * size
        self.running[submit.id] = Running(submit, prompt, cached * size)

    def step(self) -> None:
        outputs = tuple(each.step() for each in self.running.values())
        if "untold" in self.behaviours:
            outputs = tuple(msgspec.structs.replace(out, logprobs=None) for out in outputs)
        for out in outputs:
            if out.finish_reason is not None:
                del self.running[out.id]
        self.told += len(outputs)
        self.steps += 1
        stats = EngineStats(
            running=len(self.running),
            free_blocks=BLOCKS - len(self.running),
            cached_blocks=len(self.held),
            steps=self.steps,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            generation_tokens=self.told,
        )
        events, self.events = tuple(self.events), []
        self.channel.send(StepDone(outputs=outputs, events=events, stats=stats))
        self.misbehave()
        if self.running:
            time.sleep(self.behaviours.get("pace", 1.0) / 1000)

    def misbehave(self) -> None:
        if self.told >= self.behaviours.get("die", float("inf")):
            os.kill(os.getpid(), signal.SIGKILL)
        if self.told >= self.behaviours.get("garbage", float("inf")):
            self.channel._socket.send(b"\xc1 this is no message")
            del self.behaviours["garbage"]
        if self.told >= self.behaviours.get("hang", float("inf")):
            time.sleep(self.behaviours.get("wake", 600))
            del self.behaviours["hang"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--behaviour", action="append", default=[])
    parser.add_argument("--channel", required=True)
    parser.add_argument("--config", required=True)
    given = parser.parse_args()
    behaviours = {}
    for each in given.behaviour:
        word, _, number = each.partition(":")
        behaviours[word] = float(number or 0)
    channel = EngineEnd(given.channel)
    double = Double(channel, msgspec.json.decode(given.config, type=EngineOptions), behaviours)

    def stop(number: int, frame: FrameType | None) -> None:
        if "stubborn" not in behaviours:
            sys.exit(0)

    signal.signal(signal.SIGTERM, stop)
    double.run()
    channel.close()


if __name__ == "__main__":
    main()
