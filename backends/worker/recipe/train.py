"""Train the small model: `python -m backends.worker.recipe.train --minutes 60 --work DIR`.

The schedule follows the clock, not the steps: rows grow from 256 to 4,096 tokens, the learning rate is at zero when
the time is up, on a fast machine and on a busy one. A run that was stopped goes on from its last checkpoint. Rows are
made from seeds while it trains, so no text comes twice.

Each process has one thread and rows of its own; once a step they average their gradients. On a machine that is busy
with other work, that is much faster than threads which wait for each other at every product.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
import torch.distributed
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.multiprocessing.spawn import spawn
from torch.nn import functional

from backends.worker.recipe import tokenizer as text
from backends.worker.recipe.corpus import conversation, plain_text
from backends.worker.recipe.decoder import Decoder, Shape, rotary_table
from backends.worker.recipe.optimizer import Optimizer

PHASES = ((0.0, 16, 256), (0.66, 2, 2048))
"""From which share of the time on: rows per step of one process, tokens per row."""
STEADY_UNTIL = 0.35
"""The share of the time with the full learning rate; from there it falls in a line."""
WARM_UP_STEPS = 60
OTHERS_WEIGHT = 0.1
"""How much a token counts that the assistant does not write."""
CHARACTERS_PER_TOKEN = 4.0
CHECKPOINT_SECONDS = 150.0


@dataclass(frozen=True)
class Batch:
    """Tokens (rows, length + 1), the weight of each as a target, and the positions (length,) they are told to have."""

    tokens: Tensor
    weights: Tensor
    positions: Tensor


def id_of(tokenizer: Tokenizer, token: str) -> int:
    """The id of a special token."""
    found = tokenizer.token_to_id(token)
    assert found is not None
    return found


def row(seed: int, length: int, tokenizer: Tokenizer) -> tuple[list[int], list[float]]:
    """`length` tokens of conversations and stories, and the weight of each."""
    rng = Random(seed)
    ids: list[int] = []
    weights: list[float] = []
    end = id_of(tokenizer, text.END_OF_TEXT)
    while len(ids) < length:
        left = (length - len(ids)) * CHARACTERS_PER_TOKEN
        if rng.random() < 0.04:
            parts = [(plain_text(rng.getrandbits(39)), True)]
        else:
            size = rng.uniform(100, 700) if rng.random() < 0.25 and length < 4096 else left * rng.uniform(0.85, 1.1)
            parts = text.pieces(conversation(rng.getrandbits(39), characters=int(size)))
        encodings = tokenizer.encode_batch_fast([part for part, _ in parts], add_special_tokens=False)
        for encoding, (_, mine) in zip(encodings, parts, strict=True):
            ids += encoding.ids
            weights += [1.0 if mine else OTHERS_WEIGHT] * len(encoding.ids)
        ids.append(end)
        weights.append(OTHERS_WEIGHT)
    return ids[:length], weights[:length]


def average(model: Decoder, *numbers: float) -> list[float]:
    """Average the gradients over all processes, and `numbers` with them."""
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    flat = torch.cat([*(gradient.flatten() for gradient in gradients), torch.tensor(numbers)])
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(flat)
        flat /= torch.distributed.get_world_size()
    *parts, told = torch.split(flat, [*(gradient.numel() for gradient in gradients), len(numbers)])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))
    return [float(number) for number in told]


def batch(seed: int, rows: int, length: int, tokenizer: Tokenizer, max_positions: int) -> Batch:
    """The same batch for the same arguments.

    Half of the batches of longer rows are told positions with gaps, so that distances beyond a row's length are
    learned too (Zhu et al., 2023, "PoSE").
    """
    rng = Random((seed << 8) + 1)
    made = [row(rng.getrandbits(60), length + 1, tokenizer) for _ in range(rows)]
    positions = torch.arange(length)
    if length > 256 and rng.random() < 0.5:
        room = max_positions - length
        for _ in range(3):
            gap = rng.randint(0, room // 3)
            positions[rng.randrange(length) :] += gap
    return Batch(torch.tensor([ids for ids, _ in made]), torch.tensor([weights for _, weights in made]), positions)


def loss_of(model: Decoder, tokens: Tensor, weights: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Mean cross entropy of the next tokens, weighted."""
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(tokens[:, :-1], cos, sin)
    each = functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
    targets = weights[:, 1:].flatten()
    return (each * targets).sum() / targets.sum()


def rate(progress: float, step: int) -> float:
    """The learning rate's share of its maximum at `progress` 0..1 of the time."""
    falling = (1.0 - progress) / (1.0 - STEADY_UNTIL)
    return max(0.0, min(1.0, (step + 1) / WARM_UP_STEPS, falling))


def phase(progress: float) -> tuple[int, int]:
    """Rows and tokens per row at `progress`."""
    return next((rows, length) for start, rows, length in reversed(PHASES) if progress >= start)


def save(model: Decoder, tokenizer: Tokenizer, folder: Path) -> None:
    """The shipped files: weights in bfloat16, configurations, tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: value.detach().to(torch.bfloat16).contiguous() for name, value in model.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    eos, pad = id_of(tokenizer, text.TURN_END), id_of(tokenizer, text.END_OF_TEXT)
    config = model.shape.to_hf_config(eos_token_id=eos, pad_token_id=pad)
    generation = {"do_sample": False, "eos_token_id": [eos, pad], "pad_token_id": pad}
    for name, value in (("config.json", config), ("generation_config.json", generation)):
        (folder / name).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    text.write(tokenizer, folder)


class Run:
    """A training run and its checkpoints."""

    def __init__(
        self,
        shape: Shape,
        tokenizer: Tokenizer,
        work: Path,
        *,
        seconds: float,
        compiled: bool,
        rank: int = 0,
        processes: int = 1,
    ) -> None:
        self.rank = rank
        self.processes = processes
        self.tokenizer = tokenizer
        self.work = work
        self.seconds = seconds
        torch.manual_seed(0)
        self.model = Decoder(shape)
        self.optimizer = Optimizer(self.model)
        self.step = self.tokens = 0
        self.spent = 0.0
        self.compiled_lengths: set[int] = set()
        self.table = rotary_table(shape, shape.max_positions)
        self.loss: Callable[..., Tensor] = torch.compile(loss_of, dynamic=False) if compiled else loss_of

    @property
    def checkpoint(self) -> Path:
        """Where the run's state is kept."""
        return self.work / "checkpoint.pt"

    def resume(self) -> None:
        """Take up the last checkpoint, if there is one."""
        if not self.checkpoint.exists():
            return
        state = torch.load(self.checkpoint, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.tokens, self.spent = state["step"], state["tokens"], state["spent"]

    def keep(self) -> None:
        """Write a checkpoint, and the model as it would be shipped."""
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "tokens": self.tokens,
            "spent": self.spent,
        }
        torch.save(state, self.checkpoint.with_suffix(".new"))
        self.checkpoint.with_suffix(".new").replace(self.checkpoint)
        save(self.model, self.tokenizer, self.work / "model")

    def one_step(self) -> float:
        """Train on one batch; returns its loss."""
        started = time.monotonic()
        progress = min(1.0, self.spent / self.seconds)
        rows, length = phase(progress)
        seed = self.step * self.processes + self.rank
        made = batch(seed, rows, length, self.tokenizer, self.model.shape.max_positions)
        cos, sin = (table[made.positions] for table in self.table)
        fresh = length not in self.compiled_lengths and self.processes > 1
        if fresh and self.rank:
            torch.distributed.barrier()  # the first process compiles, the others find it in the cache
        loss = self.loss(self.model, made.tokens, made.weights, cos, sin)
        torch.autograd.backward(loss)
        if fresh and not self.rank:
            torch.distributed.barrier()
        self.compiled_lengths.add(length)
        mean, minutes = average(self.model, loss.item(), (self.spent + time.monotonic() - started) / 60)
        self.optimizer.step(rate(progress, self.step))
        self.spent = minutes * 60
        self.step += 1
        self.tokens += rows * length * self.processes
        return mean

    def train(self) -> None:
        """Train until the time is up; a line of log every ten steps."""
        kept = self.spent
        losses: list[float] = []
        while self.spent < self.seconds:
            losses.append(self.one_step())
            if self.rank:
                continue
            if self.step % 10 == 0:
                mean = sum(losses[-10:]) / len(losses[-10:])
                print(f"step {self.step} tokens {self.tokens} seconds {self.spent:.0f} loss {mean:.4f}", flush=True)
            if self.spent - kept > CHECKPOINT_SECONDS:
                self.keep()
                kept = self.spent
        if not self.rank:
            self.keep()


@dataclass(frozen=True)
class Plan:
    """What the processes of a run are started with."""

    work: Path
    minutes: float
    compiled: bool
    processes: int


def train_process(rank: int, plan: Plan) -> None:
    """One process of a run."""
    torch.set_num_threads(1)
    if plan.processes > 1:
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{plan.work.absolute()}/meeting", rank=rank, world_size=plan.processes
        )
    tokenizer = Tokenizer.from_file(str(text.SHIPPED / "tokenizer.json"))
    run = Run(
        Shape(vocab_size=tokenizer.get_vocab_size()),
        tokenizer,
        plan.work,
        seconds=plan.minutes * 60,
        compiled=plan.compiled,
        rank=rank,
        processes=plan.processes,
    )
    run.resume()
    run.train()


def main() -> None:
    """Train with the shipped tokenizer; the result is in `WORK/model`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--no-compile", action="store_true")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    (arguments.work / "meeting").unlink(missing_ok=True)
    plan = Plan(arguments.work, arguments.minutes, not arguments.no_compile, arguments.processes)
    spawn(train_process, args=(plan,), nprocs=plan.processes)  # type: ignore[no-untyped-call]  # torch types it not


if __name__ == "__main__":
    main()
