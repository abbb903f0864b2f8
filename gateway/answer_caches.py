"""The caches that answers come from: opened when a configuration first wants them, and open from then on.

Another configuration changes how they are used, or that they are; never their stores.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from gateway import response_assembly, semantic_assembly
from gateway.background import BackgroundTasks
from gateway.config import Config
from gateway.forgetting import KeepsAnswers
from gateway.pipeline import RequestPipeline
from gateway.response_assembly import KeptResponses
from gateway.response_caching import ResponseCaching
from gateway.semantic_assembly import OpenedSemantic
from gateway.semantic_caching import SemanticCaching

_SWEEP_SELDOM = 3600.0
"""Seconds between two looks for answers that are of no use any more, at most; less where they are of use for less."""
_SWEEP_OFTEN = 1.0
_SWEEP_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Opened:
    """What a configuration wants and was not open yet."""

    responses: KeptResponses | None
    semantic: OpenedSemantic | None

    def close(self) -> None:
        """Give it back: nobody keeps it. Blocks."""
        if self.semantic is not None:
            self.semantic.close()
        if self.responses is not None:
            self.responses.close()


def _open(config: Config, *, responses: bool, semantic: bool) -> Opened:
    """Of these, what the configuration wants; all of it or nothing. Blocks. Raises ConfigError."""
    opened = Opened(response_assembly.open_responses(config) if responses else None, None)
    try:
        return replace(opened, semantic=semantic_assembly.open_semantic(config) if semantic else None)
    except BaseException:
        opened.close()
        raise


class AnswerCaches:
    """Whether, and how, the pipeline answers from them."""

    def __init__(self, config: Config, pipeline: RequestPipeline, background: BackgroundTasks) -> None:
        """Blocks on disk. Raises ConfigError where a store cannot be used."""
        self.responses: KeptResponses | None = None
        self.semantic: SemanticCaching | None = None
        self._config = config
        self._opened_for: dict[str, Config] = {}
        """By section, the configuration that the stores are of."""
        self._pipeline = pipeline
        self._background = background
        self._loop = asyncio.get_running_loop()
        self.keep(_open(config, responses=True, semantic=True), config)
        self.configure(config)

    async def open(self, config: Config) -> Opened:
        """Open what is wanted for the first time, for whoever keeps or closes it. Raises ConfigError."""
        opening = partial(_open, config, responses=self.responses is None, semantic=self.semantic is None)
        return await self._loop.run_in_executor(None, opening)

    def keep(self, opened: Opened, config: Config) -> None:
        """Have it from now on; `configure` puts it to use."""
        if opened.responses is not None:
            self.responses = opened.responses
            self._opened_for["response_cache"] = config
            self._background.start(self._sweep(opened.responses), "removing answers that are out of date")
        if opened.semantic is not None:
            self._opened_for["semantic_cache"] = config
            semantic = self.semantic = semantic_assembly.semantic_caching(config, opened.semantic)
            saving = semantic.keep_saving(lambda: semantic_assembly.save_interval(self._config))
            self._background.start(saving, "the semantic cache's evidence")

    def configure(self, config: Config) -> None:
        """Answer from the caches, or do so no longer."""
        self._config = config
        pipeline, kept, semantic = self._pipeline, self.responses, self.semantic
        if kept is None or not response_assembly.is_wanted(config):
            pipeline.responses = None
        elif pipeline.responses is not None:
            pipeline.responses.settings = response_assembly.caching_settings(config)
        else:
            pipeline.responses = ResponseCaching(
                kept.cache,
                response_assembly.caching_settings(config),
                loop=self._loop,
                executor=kept.executor,
                proceed=pipeline.proceed,
                attempt=pipeline.attempt,
            )
        if semantic is not None:
            semantic_assembly.configure(semantic, config)
        if pipeline.responses is not None:
            pipeline.responses.semantic = semantic if semantic_assembly.is_wanted(config) else None

    def out_of_date(self, config: Config) -> list[str]:
        """Settings of this configuration that only a restart takes up: those of stores that are open already."""
        return [
            f"{section}.{name}"
            for section, part in (("response_cache", response_assembly), ("semantic_cache", semantic_assembly))
            if (opened := self._opened_for.get(section)) is not None and part.is_wanted(config)
            for name in part.out_of_date(opened, config)
        ]

    def semantic_in_force(self) -> SemanticCaching | None:
        """None where nothing is served by meaning, nor found out what would be."""
        responses = self._pipeline.responses
        return None if responses is None else responses.semantic

    def keepers(self) -> Mapping[str, KeepsAnswers]:
        """All that keep answers, for whoever has them forget: by what that is called."""
        kept: dict[str, KeepsAnswers] = {} if self.responses is None else {"responses": self.responses.cache}
        if self.semantic is not None:
            kept["semantic"] = self.semantic
        return kept

    async def _sweep(self, kept: KeptResponses) -> None:
        """Until it is cancelled, remove what nobody may be answered with any more: whoever limits how long answers are
        kept does not want to find them on disk.
        """
        while True:
            useful = response_assembly.longest_use(self._config)
            await asyncio.sleep(min(max(useful, _SWEEP_OFTEN), _SWEEP_SELDOM))
            await self._loop.run_in_executor(kept.executor, partial(kept.cache.sweep, useful, seconds=_SWEEP_SECONDS))
