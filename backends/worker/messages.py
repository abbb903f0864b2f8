"""What the server's process and the engine's process tell each other: msgpack, one message a frame.

The server tokenizes, detokenizes and speaks HTTP; the engine schedules, computes and samples. Between them go
token ids only. The server sends `Submit`, `Cancel` and `Clear`; the engine answers with one `Ready`, then with
a `StepDone` for each step that had something to tell (at least one a second, as a sign of life), and with a
`Refused` for a request that it cannot take.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from cache.kv_events import KvEvent
from policies.kv_policy import NO_KV_POLICY, KvPolicy
from policies.types import TokenIds


class FinishReason(StrEnum):
    """Why a sequence ended, in OpenAI's words; an `ABORT` is told to nobody."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the tokens of one sequence are drawn. The server has checked every range."""

    max_tokens: int
    """At most so many output tokens, from 1."""
    min_tokens: int = 0
    """No end-of-sequence or stop token before so many."""
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0: all."""
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    """Both over output tokens alone, as OpenAI defines them."""
    repetition_penalty: float = 1.0
    """Over prompt and output tokens, as `transformers` defines it."""
    seed: int = 0
    """64 bits, drawn by the server where the client gave none. Token i depends on it, on i and on the logits alone."""
    logit_bias: dict[int, float] = {}
    logprobs: int | None = None
    """Log probabilities of the sampled token and of so many likeliest ones (0: of the sampled one alone)."""
    stop_token_ids: tuple[int, ...] = ()
    """Ids that end the sequence, beyond the model's end-of-sequence ids."""
    ignore_eos: bool = False
    """The model's end-of-sequence ids are tokens like any others."""


class Submit(msgspec.Struct, frozen=True, kw_only=True, tag="submit"):
    """One sequence to complete. A request for several choices is several of these."""

    id: str
    token_ids: TokenIds
    """The prompt, at least one token."""
    params: SamplingParams
    salt: str = ""
    """Cache salt: sequences under different salts share no KV."""
    priority: int = 0
    """Lower goes first, as in vLLM."""
    wanted: bool = False
    """Somebody is expected to come back for its KV."""
    kv: KvPolicy = NO_KV_POLICY
    """What its tenant's KV may take beyond the pool, and how long it is kept."""


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """Forget a sequence and free its blocks at once. An unknown id is no error: it may have just ended."""

    id: str


class Clear(msgspec.Struct, frozen=True, tag="clear"):
    """Forget the prefix cache. Blocks in use stay in use, and are found no more."""


class ForgetKv(msgspec.Struct, frozen=True, kw_only=True, tag="forget_kv"):
    """Remove what stores have under these salts, or count it, and keep nothing under them any more. Answered by a
    `KvForgotten`.
    """

    id: str
    salts: tuple[str, ...]
    owners: tuple[str, ...] = ()
    """Whose KV goes too, under whatever salts, where requests have told whose it is."""
    dry_run: bool = False
    within: float = 30.0
    """Seconds."""


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log probabilities (natural) of one output token, before temperature and filters, after penalties and bias."""

    logprob: float
    """Of the sampled token."""
    top_ids: tuple[int, ...] = ()
    """The likeliest tokens, likeliest first."""
    top_logprobs: tuple[float, ...] = ()


class TokensOut(msgspec.Struct, frozen=True, array_like=True):
    """What one step brought one sequence."""

    id: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    stop_token: int | None = None
    """The id that ended it, which is the last of `token_ids`: end of sequence, or one of `stop_token_ids`."""
    cached_tokens: int = 0
    """Prompt tokens whose KV was found when it was first admitted."""
    logprobs: tuple[TokenLogprobs, ...] | None = None
    """One for each of `token_ids`, where they were asked for."""


class TierStats(msgspec.Struct, frozen=True, array_like=True):
    """One store of KV beyond the pool."""

    tier: str
    store: str
    """What others call it that share it; empty where it is this worker's alone."""
    round_trip: float
    """Seconds that a read takes beside its bytes."""
    seconds_per_token: float
    entries: int = 0
    bytes: int = 0
    capacity: int = 0
    expired: int = 0
    """Frames whose time was over, since the engine started."""


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """The engine's load and its counters since it started."""

    running: int = 0
    waiting: int = 0
    free_blocks: int = 0
    """Blocks that nothing refers to, those with cached KV included."""
    cached_blocks: int = 0
    """Blocks that can be found by their hash, in use or not."""
    steps: int = 0
    prompt_tokens: int = 0
    """Of prompts that were admitted."""
    cached_tokens: int = 0
    """Of those, found in the prefix cache."""
    generation_tokens: int = 0
    preemptions: int = 0
    restored_tokens: int = 0
    """Tokens whose KV came from a store."""
    kept_tokens: int = 0
    """Tokens whose KV was written to a store."""
    tiers: tuple[TierStats, ...] = ()
    """Stores beyond the pool, the fastest first."""
    kv_counts: dict[str, int] = {}
    """What became of frames, by a short name: late, gone, refused for a reason, failed."""


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """The model is loaded and the pool allocated."""

    blocks: int
    block_size: int
    max_model_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    device: str
    dtype: str


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The engine could not start, or cannot go on; it ends after this."""

    reason: str


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """A sequence that can never fit, or that came when the queue was full."""

    id: str
    reason: str
    param: str | None = None
    """The request's field at fault; None where the engine is (a full queue)."""


class StepDone(msgspec.Struct, frozen=True, kw_only=True, tag="step"):
    """What came of one step, or, with nothing in it but `stats`, a sign of life."""

    outputs: tuple[TokensOut, ...] = ()
    events: tuple[KvEvent, ...] = ()
    """Changes of the prefix cache, in order."""
    stats: EngineStats = EngineStats()


class KvForgotten(msgspec.Struct, frozen=True, kw_only=True, tag="kv_forgotten"):
    """What became of a `ForgetKv`."""

    id: str
    found: dict[str, int]
    """Frames by tier."""
    left: tuple[str, ...] = ()
    """Tiers that cannot tell whose a frame is: what is there is not found any more, and goes in its time."""
    complete: bool = True


ToEngine = Submit | Cancel | Clear | ForgetKv
ToServer = Ready | Failed | Refused | StepDone | KvForgotten
