"""The semantic cache that a configuration asks for."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from cache.embedding import Embedder, EmbeddingError
from cache.local_embedding import load_minilm
from gateway.answer_comparison import VERIFIER, WORDS
from gateway.config import Config, ConfigError, Problem
from gateway.header_finder import header_finder
from gateway.minilm_download import minilm_folder
from gateway.semantic_caching import SemanticCaching
from gateway.semantic_call import Learner, SemanticRequestSettings, VerifierSettings
from gateway.semantic_learners import EvidenceFile, Learners
from policies.answer_agreement import AGREEMENT_NOISE
from policies.guards.strength import NAMES
from policies.semantic import SemanticSettings
from policies.semantic_bounds import Noise
from policies.semantic_request import Allowed
from policies.tenant import TenantPolicy

if TYPE_CHECKING:
    from gateway.config.semantic_cache import SemanticEmbedding
    from gateway.similar_questions import SimilarQuestions

_SECTION = "semantic_cache"
_STORES = ("embedding", "entries", "memory", "path")
"""Settings that stay as they were opened."""
_MISSING = "needs libraries that are not installed: pip install 'prefixgate[semantic]'"
_VECTORS = "questions"
_ENTRIES_LEARNT = 20_000
"""Whose evidence is kept, of one tenant: a snapshot of them holds up the loop for a few milliseconds."""
_TENANT_SHARE = 0.5
"""Of the index, where there are tenants."""


class OpenedSemantic:
    """What takes a while to open: the embedder, the index and what was learnt."""

    def __init__(self, embedder: Embedder, questions: SimilarQuestions, evidence: EvidenceFile | None) -> None:
        self.embedder = embedder
        self.questions = questions
        self.evidence = evidence
        self.learnt = {} if evidence is None else evidence.read()

    def close(self) -> None:
        """It is not used after all."""
        self.questions.close()
        self.embedder.close()


def is_wanted(config: Config) -> bool:
    """Is anything served by meaning to anybody, or is it found out what would be?"""
    members = config.tenants.members
    modes = [tenant.cache.semantic.mode for tenant in members]
    modes += [model.cache.semantic.mode for tenant in members for model in tenant.per_model]
    return any(mode not in {None, "off"} for mode in (config.semantic_cache.mode, *modes))


def out_of_date(opened: Config, config: Config) -> list[str]:
    """Settings of stores that were opened for another configuration than this one."""
    before, after = opened.semantic_cache, config.semantic_cache
    names = [name for name in _STORES if getattr(before, name) != getattr(after, name)]
    if "entries" not in names and bool(opened.tenants.members) != bool(config.tenants.members):
        names.append("entries")  # of which a tenant has a share
    return names


def open_semantic(config: Config, environment: Mapping[str, str] = os.environ) -> OpenedSemantic | None:
    """None where it is off. Blocks on disk. Raises ConfigError where something is missing."""
    if not is_wanted(config):
        return None
    settings = config.semantic_cache
    if (lacking := lacks_model(config, environment)) is not None:
        raise ConfigError("configuration", [lacking])
    embedder = _embedder(settings.embedding, environment)
    try:
        from cache.similarity import Limits, SimilarityIndex  # noqa: PLC0415 - needs numpy, which not everybody has
        from gateway.similar_questions import open_questions  # noqa: PLC0415 - the same
    except ImportError:
        raise _problem("", _MISSING) from None
    share = _TENANT_SHARE if config.tenants.members else 1.0
    limits = Limits(
        entries=settings.entries,
        bytes=settings.memory,
        scope_entries=max(round(share * settings.entries), 1),
        scope_bytes=max(round(share * settings.memory), 1),
    )
    index = SimilarityIndex(embedder.dim, limits, scope_size=8)
    folder = settings.path
    questions = open_questions(index, None if folder is None else folder / _VECTORS, embedder.name)
    return OpenedSemantic(embedder, questions, None if folder is None else EvidenceFile(folder, embedder.name))


def lacks_model(config: Config, environment: Mapping[str, str] = os.environ) -> Problem | None:
    """Is the local model wanted, and not there?"""
    settings = config.semantic_cache.embedding
    if settings.kind != "minilm" or not is_wanted(config):
        return None
    folder = settings.folder or minilm_folder(environment)
    if Path(folder).is_dir():
        return None
    text = f"there is no model in {folder}; `prefixgate fetch minilm` gets it"
    return Problem(f"{_SECTION}.embedding.folder", text)


def _embedder(settings: SemanticEmbedding, environment: Mapping[str, str]) -> Embedder:
    if settings.kind == "minilm":
        folder = settings.folder or minilm_folder(environment)
        try:
            return load_minilm(folder, settings.engine)
        except EmbeddingError as error:
            raise _problem("embedding", _MISSING if "missing" in str(error) else str(error)) from None
    try:
        from cache.http_embedding import HttpEmbedder  # noqa: PLC0415 - needs numpy, which not everybody has
    except ImportError:
        raise _problem("", _MISSING) from None
    assert settings.url is not None, "checked with the configuration"
    assert settings.model is not None, "checked with the configuration"
    assert settings.dimensions is not None, "checked with the configuration"
    key = settings.api_key
    try:
        return HttpEmbedder(
            settings.url,
            settings.model,
            settings.dimensions,
            api_key=None if key is None else key.get_secret_value(),
            timeout_s=settings.timeout,
        )
    except ValueError as error:
        raise _problem("embedding.url", str(error)) from None


def _problem(path: str, text: str) -> ConfigError:
    return ConfigError("configuration", [Problem(f"{_SECTION}.{path}" if path else _SECTION, text)])


def semantic_caching(config: Config, opened: OpenedSemantic) -> SemanticCaching:
    """Within a running loop."""
    from gateway.embedding_batcher import EmbeddingBatcher  # noqa: PLC0415 - what is off is not loaded

    learners = Learners(policy_settings(config), config.semantic_cache.mode)
    learners.take_up(opened.learnt)
    learners.forget(_has_left(config))
    return SemanticCaching(
        opened.questions,
        EmbeddingBatcher(opened.embedder),
        learners,
        request_settings(config),
        loop=asyncio.get_running_loop(),
        evidence=opened.evidence,
    )


def configure(semantic: SemanticCaching, config: Config) -> None:
    """Another configuration is in force."""
    semantic.settings = request_settings(config)
    semantic.learners.configure(policy_settings(config), config.semantic_cache.mode)
    semantic.learners.forget(_has_left(config))


def _has_left(config: Config) -> Callable[[Learner], bool]:
    """Is it one of a tenant that there is no more?"""
    names = {tenant.name for tenant in config.tenants.members} or {TenantPolicy().name}
    return lambda learner: learner.tenant not in names


def request_settings(config: Config) -> SemanticRequestSettings:
    """How requests are served."""
    settings, verifier = config.semantic_cache, config.semantic_cache.verifier
    allow = settings.allow
    return SemanticRequestSettings(
        mode=settings.mode,
        deadline=settings.deadline,
        guards=NAMES[settings.guards],
        floor=settings.floor,
        agreement=settings.agreement,
        category=header_finder(settings.category_header),
        categories=frozenset(category.name for category in settings.categories),
        allowed=Allowed(multi_turn=allow.multi_turn, tools=allow.tools, temperature=allow.temperature),
        verifier=None
        if verifier is None
        else VerifierSettings(model=verifier.model, share=verifier.share, timeout=verifier.timeout),
    )


def policy_settings(config: Config) -> SemanticSettings:
    """What decides for a tenant of whom nothing else is said."""
    settings = config.semantic_cache
    sources, judged_by = {WORDS: AGREEMENT_NOISE}, f"{settings.agreement}"
    if settings.verifier is not None:
        sources[VERIFIER] = Noise(false_wrong=0.0, false_correct=settings.verifier.misses)
        judged_by += f" {settings.verifier.model}"
    return SemanticSettings(
        delta=settings.delta,
        confidence=settings.confidence,
        floor=settings.floor,
        learn_rate=settings.learn_rate,
        audit_rate=settings.audit_rate,
        ttl=settings.ttl,
        category_ttl={category.name: category.ttl for category in settings.categories if category.ttl is not None},
        sources=sources,
        judged_by=judged_by,
        max_entries=_ENTRIES_LEARNT,
    )


def save_interval(config: Config) -> float:
    """Seconds between two times that what was learnt is written."""
    return config.semantic_cache.save_interval
