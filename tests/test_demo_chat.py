"""The demo's chat by itself: held once more with the same prompts, and both set beside each other."""

from __future__ import annotations

import io
from dataclasses import dataclass

import msgspec
from rich.console import Console

from backends.simulated.engine import EngineConfig
from backends.simulated.fleet import FleetConfig, SimulatedFleet
from gateway.cli.demo_chat import Turn, again, chat, report
from gateway.cli.demo_words import TURNS
from tests.gateway_fixtures import MODEL, model_text

FAST = EngineConfig(speed=1000.0)


@dataclass
class Screen:
    """What was printed, 80 columns wide."""

    console: Console
    file: io.StringIO

    @classmethod
    def new(cls) -> Screen:
        file = io.StringIO()
        return cls(Console(file=file, width=80), file)

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self.file.getvalue().splitlines()]


async def test_each_prompt_is_what_it_was_whatever_was_answered() -> None:
    screen = Screen.new()
    async with SimulatedFleet(1, FleetConfig(model=MODEL, engine=FAST), text=model_text()) as fleet:
        url = fleet.urls[0]
        before = await chat(url, screen.console)
        # As if something else had been answered: what is asked the second time goes by what is written down.
        other = [msgspec.structs.replace(turn, answer="Yes. " * number) for number, turn in enumerate(before)]
        after = await again(url, other)
        same = await again(url, before)
    assert [turn.question for turn in before] == [turn.question for turn in after] == list(TURNS)
    assert [turn.prompt_tokens for turn in same] == [turn.prompt_tokens for turn in before]
    assert [turn.prompt_tokens for turn in after] != [turn.prompt_tokens for turn in before]
    assert all(turn.cached_tokens >= turn.prompt_tokens - 16 for turn in same), "all was said before"
    assert all(len(line) <= 80 for line in screen.lines)


def test_both_stand_beside_each_other() -> None:
    before = [Turn("a", "A.", "w-0", 600, 0, 0.075), Turn("b", "B.", "w-0", 1400, 1200, 0.025)]
    after = [Turn("a", "A.", "w-0", 600, 576, 0.02), Turn("b", "B.", "w-0", 1400, 1200, 0.015)]
    screen = Screen.new()
    report(before, after, screen.console)
    assert screen.lines == [
        "       Prompt   Cached              TTFT",
        "Turn   tokens   before    after   before    after",
        "   1      600        0      576    75 ms    20 ms",
        "   2     1400     1200     1200    25 ms    15 ms",
        "",
        "Prompt tokens found in a cache       60%      89%",
        "TTFT, mean                         50 ms    18 ms",
        "TTFT, first turn                   75 ms    20 ms",
        "",
        "Answered by w-0; all 2 texts are the same before and after.",
    ]


def test_texts_that_differ_are_told() -> None:
    before = [Turn("a", answer, "w-0", 600, 0, 0.1) for answer in ("A.", "B.", "C.")]
    after = [Turn("a", answer, "w-1", 600, 0, 0.1) for answer in ("A.", "b.", "c.")]
    screen = Screen.new()
    report(before, after, screen.console)
    assert screen.lines[-1] == "Answered by w-0, w-1; the texts differ in turn 2, 3."
