"""What was learnt, by whose answers: a policy for each tenant, and for each of its models with settings of its own.

Kept in a file, without any text of a question. Evidence of other vectors tells nothing, and is not taken up.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec

from gateway.private_file import replace_file
from gateway.semantic_call import Learner
from policies.semantic import SemanticPolicy, SemanticSettings
from policies.tenant import SemanticRules

log = logging.getLogger(__name__)

FILE: Final = "evidence.msgpack"
_FORMAT: Final = 1


class Learners:
    """All policies. They are made when they are first needed."""

    def __init__(self, settings: SemanticSettings, mode: str) -> None:
        """`settings` and `mode` are those for whom nothing else is said."""
        self._settings = settings
        self._mode = mode
        self._policies: dict[Learner, SemanticPolicy] = {}
        self._kept: dict[Learner, Mapping[str, Any]] = {}
        """Read from the file, for those who were not needed yet."""

    def __iter__(self) -> Iterator[tuple[Learner, SemanticPolicy]]:
        return iter([*self._policies.items()])

    def configure(self, settings: SemanticSettings, mode: str) -> None:
        """Other settings; what was learnt stays, unless other sources label."""
        self._settings, self._mode = settings, mode

    def mode(self, rules: SemanticRules) -> str:
        """Of a request."""
        return self._mode if rules.mode is None else rules.mode

    def policy(self, learner: Learner, rules: SemanticRules) -> SemanticPolicy:
        """The policy of whoever asks, under the settings in force."""
        wanted = self._settings_of(rules)
        policy = self._policies.get(learner)
        if policy is None:
            policy = self._policies[learner] = SemanticPolicy(wanted)
            _restore(policy, self._kept.pop(learner, None))
        elif policy.settings != wanted:
            before, policy = policy, SemanticPolicy(wanted)
            self._policies[learner] = policy
            _restore(policy, before.snapshot())
        return policy

    def known(self, tenant: str) -> list[SemanticPolicy]:
        """Of a tenant and its models."""
        return [policy for learner, policy in self if learner.tenant == tenant]

    def forget(self, chosen: Callable[[Learner], bool]) -> None:
        """What was learnt of them is gone."""
        for table in (self._policies, self._kept):
            for learner in [each for each in table if chosen(each)]:
                del table[learner]

    def snapshots(self) -> Iterator[tuple[Learner, Mapping[str, Any]]]:
        """One after the other, as each takes some milliseconds."""
        for learner in [*self._policies]:
            policy = self._policies.get(learner)
            if policy is not None:
                yield learner, policy.snapshot()
        yield from [*self._kept.items()]

    def take_up(self, kept: Mapping[Learner, Mapping[str, Any]]) -> None:
        """What was read from the file."""
        self._kept = dict(kept)

    def _settings_of(self, rules: SemanticRules) -> SemanticSettings:
        shared = self._settings
        return replace(
            shared,
            delta=shared.delta if rules.delta is None else rules.delta,
            ttl=shared.ttl if rules.ttl_s is None else rules.ttl_s,
            shadow=self.mode(rules) != "on",
        )


def _restore(policy: SemanticPolicy, told: Mapping[str, Any] | None) -> None:
    if told is not None:
        try:
            policy.restore(told)
        except ValueError as error:
            log.warning("what a semantic cache had learnt cannot be used any more: %s", error)


class EvidenceFile:
    """Where it outlives a restart. Blocks; for a thread."""

    def __init__(self, folder: Path, embedder: str) -> None:
        self._path = folder / FILE
        self._embedder = embedder
        self._writing = threading.Lock()

    def read(self) -> dict[Learner, Mapping[str, Any]]:
        """Nothing where there is none, or none that can be used: then all is learnt anew."""
        try:
            told = msgspec.msgpack.decode(self._path.read_bytes())
            if told["format"] != _FORMAT or told["embedder"] != self._embedder:
                return {}
            return {Learner(str(tenant), str(model), bytes(tag)): data for tenant, model, tag, data in told["learners"]}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, msgspec.MsgspecError) as error:
            log.warning("%s cannot be read, all is learnt anew: %s", self._path, type(error).__name__)
            return {}

    def write(self, learnt: list[tuple[Learner, Mapping[str, Any]]]) -> None:
        """Whole, or not at all. Raises OSError."""
        data = {
            "format": _FORMAT,
            "embedder": self._embedder,
            "learners": [[*learner, told] for learner, told in learnt],
        }
        with self._writing:
            replace_file(self._path, msgspec.msgpack.encode(data))
