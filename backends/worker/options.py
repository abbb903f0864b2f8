"""What an engine and its server are told when they start."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from cache.kv_events import Encoding

ENGINE_COMMAND = (sys.executable, "-m", "backends.worker.engine.engine_process")
"""Starts an engine; `--channel ENDPOINT --config JSON` is added, the JSON that of `EngineOptions`."""


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The engine's part, which goes to its process as JSON."""

    model: str
    """A directory, or the id of a model to fetch."""
    served_model_name: str | None = None
    """How clients name it, and the model of the KV hashes; None: as `name` says."""
    device: str = "auto"
    dtype: str = "auto"
    load_format: Literal["auto", "dummy"] = "auto"
    block_size: int = 16
    max_model_len: int | None = None
    """Longest prompt plus answer; None: as long as model and memory allow."""
    max_num_seqs: int = 64
    """Sequences that run at once."""
    max_num_batched_tokens: int = 2048
    """Tokens computed in one step."""
    max_waiting: int | None = None
    """Sequences that may wait; one more is refused. None: no limit of the engine's."""
    memory: int | None = None
    """Bytes that weights, KV and activations may take together."""
    kv_blocks: int | None = None
    """Blocks of the KV pool; None: as many as fit into `memory`."""
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    compile: bool = False
    threads: int | None = None
    """Of torch on a CPU; None: torch decides."""
    seed: int = 0
    """Of dummy weights."""
    kv_host: int = 0
    """Bytes of host memory for KV that outlives the pool; 0: none. On top of `memory`."""
    kv_disk: str | None = None
    """A directory for it; of one worker at a time."""
    kv_disk_bytes: int = 10 << 30
    kv_redis: str | None = None
    """URL of a Redis server for it, which several workers may share."""
    kv_eviction: str = "lru"
    """What leaves host memory and disk first: a policy's name."""
    kv_redis_cluster: bool = False
    kv_redis_ca: str | None = None
    """PEM file: whom the server's certificate must be signed by."""
    kv_redis_certificate: str | None = None
    """PEM file of the worker's own certificate; with `kv_redis_key`."""
    kv_redis_key: str | None = None
    kv_tenant_share: float = 1.0
    """Of host memory and of disk, what one cache salt may take at most."""
    kv_uses: int = 2
    """A chunk goes to the slower stores when it was used so often; before that while nothing is computed."""
    kv_int8: bool = False
    """KV is stored as bytes with a scale for each vector: half as many, and text may differ."""
    kv_key_file: str | None = None
    """Frames are encrypted under the key in this file."""
    kv_patience: float = 2.0
    """Seconds that a sequence waits, at most, for KV to be restored."""
    kv_flush: float = 5.0
    """Seconds for the slower stores to catch up when the engine ends."""

    @property
    def name(self) -> str:
        """The model as clients name it: by its id, or by the last part of its directory."""
        if self.served_model_name is not None:
            return self.served_model_name
        directory = Path(self.model)
        return directory.resolve().name if directory.is_dir() else self.model


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """One worker: an engine and the server in front of it. Port 0 takes a free one. Times are seconds."""

    engine: EngineOptions
    tokenizer: Path | None = None
    """The tokenizer's directory; None: the model's own."""
    chat_template: Path | None = None
    """A file in the place of the tokenizer's own templates."""
    name: str = "worker-0"
    """Told as `x-worker-id`."""
    host: str = "127.0.0.1"
    port: int = 0
    kv_events: bool = True
    kv_port: int = 0
    """Events are published here."""
    kv_replay_port: int | None = None
    """Replays are answered here; None: on the port after the events', or a free one as they are."""
    kv_topic: str = ""
    kv_encoding: Encoding = Encoding.ARRAY
    api_key: str | None = field(default=None, repr=False)
    """The bearer token that every route under `/v1` wants."""
    kv_policy: bool = True
    """What a gateway says of a tenant's KV, in a header of each request, is believed."""
    max_body_bytes: int = 32 << 20
    max_open_requests: int = 2048
    """Requests with a body that are under way at once; one beyond is answered 503 unread."""
    body_within: float = 60.0
    """A body has to be there after so long."""
    max_open_sequences: int = 4096
    """Sequences that clients may have open at once; a request beyond is answered 503."""
    ready_within: float = 600.0
    """From the start of the engine to its being ready."""
    hung_after: float = 60.0
    """Without a word of the engine it counts as hung. One step on a CPU may take long."""
    stall_after: float = 60.0
    """A client that takes nothing of its stream for so long is cut off."""
    drain_within: float = 5.0
    """What requests get to finish when the worker stops."""
    stop_within: float = 10.0
    """What the engine gets to end by itself before it is killed."""
    engine_command: tuple[str, ...] = ENGINE_COMMAND
