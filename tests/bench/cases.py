"""Anthropic's three cases of prompt caching, shorter: `python -m tests.bench cases [--shape tiny] [--tokens 16000]`.

They published times to the first token without and with a cached prompt for up to 100,000 tokens
(https://www.anthropic.com/news/prompt-caching). Here a hundred of theirs are sixteen of ours, random ones, and the
model is of Qwen3-0.6B's shape with random weights in bfloat16, on this machine's CPU. First tokens must be the computed
ones.

- *book*: a question about a text of all the tokens
- *many-shot*: a question behind examples of a tenth of them
- *ten turns*: the sum over ten turns behind a system prompt of half of them, that has been seen before; question and
  answer are a twentieth each time, a quarter of it the question. Each turn finds everything up to its question, for the
  answer before it has left its KV.

`computed`: nothing is found, an engine without prefix cache. `pool`: the KV is still there. The others: the pool has
lost everything, before each turn anew, and a store has it; as in `restore`, whose stores they are.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from backends.worker.engine.engine import Engine
from tests.bench.disk_store import forget
from tests.bench.restore import First, close, engine_of, first_token, kept, model, restored, room, same, warm
from tests.bench.worker import SHAPES, prompts
from tests.redis_fixtures import redis_server

QUESTION: Final = 32
"""Tokens of a short question."""
TURNS: Final = 10
PUBLISHED: Final = {"book": -0.79, "many-shot": -0.31, "ten turns": -0.75}

Ask = Callable[[Engine, Sequence[int]], First]


@dataclass(frozen=True, slots=True)
class Question:
    """`seen` has been answered to its end when `asked`, which begins with it, comes."""

    seen: list[int]
    asked: list[int]


@dataclass(slots=True)
class Case:
    """Its questions, and what came of them."""

    name: str
    questions: list[Question]
    computed: list[First] = field(default_factory=list)

    @property
    def n_tokens(self) -> int:
        """Of its prompts in all."""
        return sum(len(question.asked) for question in self.questions)


def cases(n_tokens: int, vocabulary: int) -> Iterator[Case]:
    """All three."""
    book, shots, chat = (prompts(1, n_tokens + QUESTION, vocabulary, seed)[0] for seed in (1, 2, 3))
    yield Case("book", [Question(book[:n_tokens], book)])
    shots = shots[: n_tokens // 10 + QUESTION]
    yield Case("many-shot", [Question(shots[:-QUESTION], shots)])
    turn, question = n_tokens // 2 // TURNS, n_tokens // 2 // TURNS // 4
    starts = [n_tokens // 2 + turn * number for number in range(TURNS)]
    yield Case("ten turns", [Question(chat[:start], chat[: start + question]) for start in starts])


def ask_all(engine: Engine, case: Case, places: dict[str, Ask]) -> dict[str, list[First]]:
    """Each question from each place, after what is seen of it was computed and, where there are stores, kept."""
    answers: dict[str, list[First]] = {where: [] for where in places}
    for computed, question in zip(case.computed, case.questions, strict=True):
        first_token(engine, question.seen)
        kept(engine)
        for where, ask in places.items():
            answers[where].append(same(computed, ask(engine, question.asked), f"{case.name}, {where}"))
    return answers


def line(case: Case, where: str, answers: Sequence[First]) -> None:
    """One of the table."""
    seconds, found = sum(first.seconds for first in answers), sum(first.found for first in answers)
    computed = sum(first.seconds for first in case.computed)
    change = "" if where == "computed" else f"{seconds / computed - 1:+.1%}"
    theirs = f"{PUBLISHED[case.name]:+.0%}" if where == "pool" else ""
    print(
        f"{case.name:<12}{case.n_tokens:>9,}  {where:<20}{seconds:>10.3f}{found:>10,}{change:>10}{theirs:>12}",
        flush=True,
    )


def stores(folder: Path, size: int, running: ExitStack) -> Iterator[tuple[dict[str, Any], dict[str, Ask]]]:
    """Options of an engine, and what is asked of it from where."""
    disk = folder / "kv"
    yield {"kv_host": size}, {"pool": partial(first_token, keep=False), "host memory": restored}
    cold = partial(restored, before=lambda: forget(disk))
    yield {"kv_disk": str(disk), "kv_disk_bytes": 2 * size}, {"disk, page cache": restored, "disk, cold": cold}
    server = running.enter_context(redis_server("--maxmemory", str(2 * size)))
    yield {"kv_redis": server.unix_url}, {"Redis, Unix socket": restored}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=list(SHAPES), default="qwen3-0.6b")
    parser.add_argument("--tokens", type=int, default=16_000)
    parser.add_argument("--cases", nargs="+", choices=list(PUBLISHED), default=list(PUBLISHED))
    arguments = parser.parse_args()
    start = time.perf_counter()
    longest = arguments.tokens + QUESTION
    with model(arguments.shape) as (folder, shape), ExitStack() as running:
        vocabulary = shape["vocab_size"]
        asked = [case for case in cases(arguments.tokens, vocabulary) if case.name in arguments.cases]
        print(
            f"{arguments.shape}, {torch.get_num_threads()} threads; seconds to the first token, of ten turns their sum"
        )
        print(f"{'':<12}{'prompts':>9}  {'from':<20}{'seconds':>10}{'found':>10}{'':>10}{'Anthropic':>12}")
        engine = engine_of(folder, longest, enable_prefix_caching=False)
        warm(engine, vocabulary)
        for case in asked:
            case.computed = [first_token(engine, question.asked) for question in case.questions]
            line(case, "computed", case.computed)
        del engine
        for fields, places in stores(folder, room(shape, 3 * longest), running):
            engine = engine_of(folder, longest, **fields)
            warm(engine, vocabulary)
            for case in asked:
                for where, answers in ask_all(engine, case, places).items():
                    line(case, where, answers)
            close(engine)
            del engine
    print(f"{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
