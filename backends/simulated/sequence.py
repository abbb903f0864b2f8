"""One request inside the engine: what was asked, and how far it is. Pure."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import NamedTuple

from backends.simulated.kv_chain import EngineHash, chain_root, extend, unique_block
from policies.types import TokenIds

_NO_IDS = TokenIds(b"")
_TOKEN_BYTES = 4


@dataclass(frozen=True, slots=True)
class SimRequest:
    """A prompt of `n_tokens`, given by the chained hashes of its full blocks, and the length of its answer.

    `hashes` may hold more blocks than are full; the rest is ignored. `token_ids` (prompt) and `output_ids`
    are only needed where KV events must tell tokens: a run in virtual time leaves both empty.
    `root` starts the chain when the prompt has no full block. `per_token` asks for an output at each advance
    of the clock; otherwise there are two, the first token and all the rest.
    """

    id: str
    hashes: Items[EngineHash]
    n_tokens: int
    max_tokens: int
    token_ids: TokenIds = _NO_IDS
    output_ids: TokenIds = _NO_IDS
    root: EngineHash = EngineHash(0)  # noqa: RUF009 - a NewType of an immutable int
    salt: str | None = None
    adapter: str = ""
    per_token: bool = False


def request_from_ids(
    request_id: str, ids: TokenIds, max_tokens: int, *, block_size: int, model: str = "", salt: str = ""
) -> SimRequest:
    """A request whose prompt is given as token ids (little-endian u32)."""
    root = chain_root(model, salt=salt)
    hashes = extend(root, ids, block_size)
    n_tokens = len(ids) // _TOKEN_BYTES
    return SimRequest(request_id, hashes, n_tokens, max_tokens, token_ids=ids, root=root, salt=salt or None)


class TokenOut(NamedTuple):
    """Tokens of one request; `times[i]` is when token i of this output was made."""

    id: str
    n_tokens: int
    times: tuple[float, ...]
    first: bool
    finished: bool
    cached_tokens: int


class Sequence:
    """A request in the engine. `SimulatedEngine` alone changes it.

    While it restores, `blocks` are those it found on the device and those it restores, `restoring` the places of the
    latter. While decoding, `output` is the count at step `joined`; one more token exists for each decode step since.
    """

    __slots__ = (
        "block_size",
        "blocks",
        "cached_tokens",
        "computed",
        "due",
        "hashes",
        "joined",
        "order",
        "output",
        "reported",
        "request",
        "restoring",
        "stored",
    )

    def __init__(self, request: SimRequest, block_size: int) -> None:
        self.request = request
        self.block_size = block_size
        self.hashes: list[EngineHash] = list(request.hashes[: request.n_tokens // block_size])
        self.blocks: list[int] = []
        self.stored = 0
        self.computed = 0
        self.output = 0
        self.cached_tokens = -1
        self.order = 0
        self.joined = 0
        self.reported = 0
        self.due = 0
        self.restoring: tuple[int, int] = (0, 0)

    @property
    def total(self) -> int:
        """Prompt tokens plus generated ones, as of `joined`."""
        return self.request.n_tokens + self.output

    def hash_up_to(self, n_blocks: int) -> None:
        """Extend `hashes` to `n_blocks`, over generated tokens too."""
        request, size = self.request, self.block_size
        width = size * _TOKEN_BYTES
        while len(self.hashes) < n_blocks:
            parent = self.hashes[-1] if self.hashes else request.root
            start = len(self.hashes) * width
            ids = block_ids(request, start, start + width)
            if len(ids) == width:
                self.hashes.extend(extend(parent, ids, size))
            else:
                self.hashes.append(unique_block(parent, request.id, len(self.hashes)))


def block_ids(request: SimRequest, start: int, end: int) -> TokenIds:
    """Bytes `start:end` of prompt ids followed by output ids; fewer where they are not known."""
    split = request.n_tokens * _TOKEN_BYTES
    if len(request.token_ids) != split:
        return _NO_IDS
    prompt = request.token_ids[start:end]
    if end <= split:
        return TokenIds(prompt)
    return TokenIds(prompt + request.output_ids[max(0, start - split) : end - split])
