"""Does a worker's answer say the same as the one that a semantic cache would have given? Labels for what it learns.

By words where these suffice, else by vectors of the answers; for a share of them by a model that is asked.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Final

from gateway import answers
from gateway.routes import Kind
from policies.answer_agreement import Agreement, compare

if TYPE_CHECKING:
    from gateway.embedding_batcher import EmbeddingBatcher

WORDS: Final = "agreement"
"""The source of labels by words and vectors."""
VERIFIER: Final = "verifier"

_PATIENCE: Final = 10.0
"""Seconds for the vectors of answers: nobody waits for them."""


async def answers_agree(
    batcher: EmbeddingBatcher,
    executor: Executor,
    kind: Kind,
    bodies: tuple[bytes, bytes],
    *,
    scope: str,
    least: float,
) -> bool | None:
    """By words and vectors, whose cosine must be `least` or more. None where there were no vectors to be had: that is
    no label.
    """
    loop = asyncio.get_running_loop()
    told, one, other = await loop.run_in_executor(executor, _compared, kind, *bodies)
    if told is not Agreement.PERHAPS:
        return told is Agreement.SAME
    first, second = await asyncio.gather(*(batcher.embed(text, _PATIENCE, scope=scope) for text in (one, other)))
    if first is None or second is None:
        return None
    return float(first @ second) >= least


def _compared(kind: Kind, one: bytes, other: bytes) -> tuple[Agreement, str, str]:
    texts = answer_text(kind, one), answer_text(kind, other)
    if texts[0] is None or texts[1] is None:
        return Agreement.DIFFERENT, "", ""
    return compare(texts[0], texts[1]), texts[0], texts[1]


def answer_text(kind: Kind, body: bytes) -> str | None:
    """What a reader sees; None where that is not all of the answer. For a thread."""
    facts = answers.facts(kind, body, streamed=False)
    return facts.text if facts.whole and not facts.tool_calls else None
