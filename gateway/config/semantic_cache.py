"""Settings of the semantic cache: which answers are served to questions that only mean the same."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gateway.config.base import Strict
from gateway.config.fields import ApiKey, CollectorUrl, HeaderName, Name, NewPath
from gateway.config.units import Duration, Size

SemanticMode = Literal["off", "shadow", "on"]
SemanticGuards = Literal["loose", "reworded", "strict", "same_text"]
Rate = Annotated[float, Field(gt=0, lt=1)]
Share = Annotated[float, Field(ge=0, le=1)]


class SemanticEmbedding(Strict):
    """Who makes vectors of questions; see [embeddings.md](embeddings.md). A change needs a restart."""

    kind: Literal["none", "minilm", "http"] = "none"
    """`minilm`: a local model, as `prefixgate fetch minilm` gets it. `http`: an endpoint, which is given the questions.
    """
    folder: NewPath | None = None
    """Of `minilm`: where the model is; by default where it is fetched to."""
    engine: Literal["auto", "numpy", "torch"] = "auto"
    """Of `minilm`: what computes it; `auto` is torch where it is installed."""
    url: CollectorUrl | None = None
    """Of `http`: what `/embeddings` is added to, for example `http://127.0.0.1:8100/v1`."""
    model: Name | None = None
    """Of `http`: the model's name there."""
    dimensions: int | None = Field(default=None, ge=1, le=16_384)
    """Of `http`: numbers in its vectors."""
    api_key: ApiKey | None = None
    """Of `http`: sent as a bearer token. Write it as `${NAME}`."""
    timeout: Duration = Field(default=5.0, ge=0.05, le=60)
    """Of `http`: for one call, connecting included."""


class SemanticAllow(Strict):
    """What else is served by meaning. By default nothing but single questions in text at temperature 0."""

    multi_turn: bool = False
    """The last question of a conversation, where all before it is the same to the letter."""
    tools: bool = False
    """Requests with tools, where these are the same."""
    temperature: bool = False
    """Requests at any temperature, where that is the same. Only those that the response cache looks up at all."""


class SemanticCategory(Strict):
    """Questions whose answers are alike in risk and in how soon they change."""

    name: Name
    """What a client writes into the header."""
    ttl: Duration | None = Field(default=None, gt=0)
    """In place of `ttl`."""


class SemanticVerifier(Strict):
    """A model that judges whether two answers say the same."""

    model: Name
    """As the workers serve it."""
    share: Share = 0.1
    """Share of the comparisons that it makes, drawn at random, in place of words and vectors."""
    misses: float = Field(default=0.1, ge=0, le=0.5)
    """Share of wrong answers that it is believed to call right, at most. Too small a number breaks the bound."""
    timeout: Duration = Field(default=60.0, gt=0, le=600)
    """For one judgement."""


class SemanticCache(Strict):
    """Answers to questions that only mean the same as one that was asked before. Needs `response_cache`, whose
    answers it serves, and `pip install 'prefixgate[semantic]'`.
    """

    mode: SemanticMode = "off"
    """`shadow`: nothing is served; what would be is counted and compared with what the workers say. `on`: served is
    what that has proved to be right."""
    embedding: SemanticEmbedding = SemanticEmbedding()
    """Who makes vectors of questions."""
    deadline: Duration = Field(default=0.15, gt=0, le=10)
    """How long a request waits for a vector, the search and the guards; then it goes to a worker."""
    guards: SemanticGuards = "loose"
    """What guards let pass. `same_text`: other white space alone. `strict`: synonyms and moves that grammar accounts
    for. `reworded`: statements about software in other words, each accounted for. `loose`: such statements told freely.
    Each has to prove itself apart."""
    floor: Share = 0.7
    """Cosine below which no question is considered."""
    delta: Rate = 0.02
    """Share of the answers served by meaning that may be wrong."""
    agreement: Share = 0.9
    """Cosine from which on two answers with the same numbers, names and negations say the same. Embedders differ in
    what is much; too low a number breaks the bound."""
    confidence: Rate = 0.95
    """Of the bound on that share."""
    ttl: Duration = Field(default=86_400.0, gt=0)
    """Age beyond which an answer is not served by meaning. It must be fresh by `response_cache` as well."""
    audit_rate: Share | None = None
    """Share of what could be served that is compared instead; by default as much as `delta` needs, less with time."""
    learn_rate: Share = 1.0
    """Share of what may not be served, but was found, that is compared."""
    category_header: HeaderName = "x-prefixgate-category"
    """Header by which a client tells the category of a question."""
    categories: Annotated[tuple[SemanticCategory, ...], Field(strict=False, max_length=30)] = ()
    """Categories that are told apart. Whatever else the header says is the category `default`."""
    entries: int = Field(default=100_000, ge=1)
    """Questions that are kept; the least recently used go first."""
    memory: Size = Field(default=512 << 20, ge=1 << 20)
    """Bytes that they may take."""
    path: NewPath | None = None
    """Folder where questions, in clear, and what was learnt of their answers outlive a restart; for this gateway alone.
    By default they do not."""
    save_interval: Duration = Field(default=300.0, ge=1)
    """How often what was learnt is written there."""
    allow: SemanticAllow = SemanticAllow()
    """What else is served by meaning."""
    verifier: SemanticVerifier | None = None
    """A model that judges whether two answers say the same, for a share of the comparisons."""


class TenantSemantic(Strict):
    """What of the semantic cache differs for it. What is learnt of its answers counts for it alone."""

    mode: SemanticMode | None = None
    """In place of `semantic_cache.mode`."""
    delta: Rate | None = None
    """In place of `semantic_cache.delta`."""
    ttl: Duration | None = Field(default=None, gt=0)
    """In place of `semantic_cache.ttl`; categories with one of their own keep that."""
