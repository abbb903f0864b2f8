"""What the semantic cache is told of one request, and what it knows of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from cache.response_key import ResponseKey
from gateway.api_error import ApiError
from gateway.header_finder import header_finder
from policies.guards.strength import LOOSE
from policies.semantic_request import Allowed

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from policies.semantic import Candidate, Decision

    Vector = NDArray[np.float32]

DEFAULT_CATEGORY: Final = "default"
_MIN_SIMILARITY: Final = "x-prefixgate-min-similarity"
_MAX_ERROR: Final = "x-prefixgate-max-error"
_min_similarity: Final = header_finder(_MIN_SIMILARITY)
_max_error: Final = header_finder(_MAX_ERROR)


class Learner(NamedTuple):
    """Whose evidence it is: a tenant's, or that of one of its models which has settings of its own."""

    tenant: str
    model: str = ""
    tag: bytes = b""
    """Of the scope that its answers are in: with another salt all is learnt anew."""

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.tenant}:{self.model}" if self.model else self.tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class SemanticRequestSettings:
    """How requests are served; taken up anew when the configuration changes."""

    mode: str = "off"
    """For whom nothing else is said."""
    deadline: float = 0.15
    guards: int = LOOSE
    """The weakest strength that counts, of `policies.guards.strength`."""
    floor: float = 0.7
    agreement: float = 0.9
    """Cosine of two answers that say the same."""
    category: Callable[[bytes], bytes | None] = field(default=header_finder("x-prefixgate-category"))
    categories: frozenset[str] = frozenset()
    allowed: Allowed = field(default_factory=Allowed)
    verifier: VerifierSettings | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierSettings:
    """A model that compares answers."""

    model: str
    share: float
    timeout: float


class Wishes(NamedTuple):
    """What a client says in headers."""

    min_similarity: float | None = None
    max_error: float | None = None
    category: str = DEFAULT_CATEGORY
    asks: bool = False
    """It asks for stored answers."""


class Similar(NamedTuple):
    """A known question that no guard holds to be another one."""

    id: bytes
    key: ResponseKey
    stored_at: float
    """Of the answer that it led to; another answer since then is another entry."""
    similarity: float
    guard: int
    """How much they found alike, see `policies.guards.strength`."""


class Judged(NamedTuple):
    """A candidate, and what was decided. Its answer is fetched where it is needed, lest it be held, or forgotten."""

    similar: Similar
    candidate: Candidate
    decision: Decision


@dataclass(slots=True, eq=False)
class Meaning:
    """Of one request that may be answered by meaning."""

    text: str
    partition: bytes
    learner: Learner
    wishes: Wishes
    epoch: int
    """When it came, as forgetting counts time."""
    shadow: bool
    vector: Vector | None = None
    look: asyncio.Task[Judged | None] | None = None
    judged: Judged | None = None


def wishes_of(fields: bytes, settings: SemanticRequestSettings, *, asks: bool) -> Wishes:
    """Raises ApiError, 400, that names the header which cannot be meant."""
    told = settings.category(fields)
    category = DEFAULT_CATEGORY if told is None else told.decode("latin-1")
    return Wishes(
        _share(_MIN_SIMILARITY, _min_similarity(fields)),
        _share(_MAX_ERROR, _max_error(fields)),
        category if category in settings.categories else DEFAULT_CATEGORY,
        asks,
    )


def _share(name: str, value: bytes | None) -> float | None:
    if value is None:
        return None
    try:
        share = float(value) if len(value) <= 32 and value.replace(b".", b"", 1).isdigit() else -1.0
    except ValueError:
        share = -1.0
    if not 0.0 <= share <= 1.0:
        raise ApiError(400, f"`{name}` must be a number from 0 to 1.", param=name, code="invalid_header")
    return share


def entry_name(entry_id: bytes) -> str:
    """What policies know an entry by."""
    return entry_id.hex()
