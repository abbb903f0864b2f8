"""Writes golden.json: one batch in each wire form, by an encoder (msgpack) that the program does not use.

Run from anywhere: `python make_golden.py`. The forms are spelled out field by field; expectations live in the
test.
"""

from __future__ import annotations

import json
from pathlib import Path

import msgpack

TOKENS = list(range(100, 108))
DIGEST = bytes(range(1, 33))
"""A SHA-256 as vLLM sends it when hashes are bytes; its low 64 bits are 0x191a1b1c1d1e1f20."""
BIG = 0xF000_0000_0000_0001
"""Above 2**63: unsigned for one engine, negative for another."""

FORMS = {
    "vllm_0_10_array": [1.5, [["BlockStored", [BIG, 2], None, TOKENS, 4, None], ["BlockRemoved", [BIG]]]],
    "vllm_array_medium_and_rank": [
        1.5,
        [
            ["BlockStored", [BIG, 2], 7, TOKENS, 4, None, "GPU"],
            ["BlockRemoved", [2], "CPU"],
            ["AllBlocksCleared"],
        ],
        3,
    ],
    "vllm_array_full": [
        1.5,
        [
            [
                "BlockStored",
                [BIG, 2],
                None,
                TOKENS,
                4,
                5,
                "GPU",
                "alice",
                [["alice", "s1"], ["alice"]],
                0,
                "full_attention",
                None,
            ],
            ["BlockRemoved", [2], "GPU", 1],
        ],
        None,
    ],
    "vllm_array_signed": [1, [["BlockStored", [BIG - 2**64, 2], None, TOKENS, 4, None, None, None]]],
    "vllm_array_bytes": [1.5, [["BlockStored", [DIGEST, b"\x02"], DIGEST, TOKENS, 4, None, "GPU", None]]],
    "vllm_array_fields_to_come": [
        1.5,
        [
            [
                "BlockStored",
                [BIG, 2],
                None,
                TOKENS,
                4,
                None,
                "GPU",
                None,
                None,
                None,
                None,
                None,
                "LOCAL",
                {"x": [1]},
            ],
            ["BlockRemoved", [2], None, None, "LOCAL", "x"],
            ["AllBlocksCleared", "GPU"],
        ],
        None,
        "more",
    ],
    "vllm_map_events": [
        1.5,
        [
            {
                "type": "BlockStored",
                "block_hashes": [BIG, 2],
                "parent_block_hash": None,
                "token_ids": TOKENS,
                "block_size": 4,
                "lora_id": None,
                "medium": "GPU",
                "lora_name": None,
            },
            {"type": "BlockRemoved", "block_hashes": [2], "medium": "GPU"},
            {"type": "AllBlocksCleared"},
        ],
        0,
    ],
    "vllm_all_map": {
        "type": "KVEventBatch",
        "ts": 1.5,
        "events": [
            {
                "block_hashes": [DIGEST, BIG],
                "parent_block_hash": 7,
                "token_ids": TOKENS,
                "block_size": 4,
                "lora_id": 5,
                "medium": "CPU",
                "lora_name": None,
                "extra_keys": [["alice"], ["alice"]],
                "group_idx": 2,
                "kv_cache_spec_kind": "sliding_window",
                "kv_cache_spec_sliding_window": 128,
                "locality": "LOCAL",
                "type": "BlockStored",
            },
        ],
        "data_parallel_rank": 1,
    },
    "sglang_pages": [
        1.5,
        [
            ["BlockStored", [-5], None, TOKENS[:4], 4, None],
            ["BlockStored", [6], -5, TOKENS[4:], 4, None],
        ],
        0,
    ],
    "sglang_cache_salt": [
        1.5,
        [["BlockStored", [-5], None, TOKENS[:4], 4, None, "GPU", None, {"cache_salt": "s1"}]],
    ],
    # Maps and arrays in one batch, all that may be missing left out.
    "vllm_map_in_map_signed": {
        "ts": 1.5,
        "events": [
            {"type": "BlockStored", "block_hashes": [BIG - 2**64], "token_ids": TOKENS[:4], "block_size": 4},
            ["BlockStored", [2], BIG, TOKENS[4:], 4, None],
            ["BlockRemoved", [DIGEST]],
        ],
    },
    "vllm_map_salt": [
        1.5,
        [
            {
                "type": "BlockStored",
                "block_hashes": [DIGEST, b"\x02"],
                "parent_block_hash": None,
                "token_ids": TOKENS,
                "block_size": 4,
                "lora_id": 5,
                "medium": "GPU",
                "lora_name": "alice",
                "extra_keys": [["alice", "s1"], ["alice"]],
                "group_idx": 0,
                "kv_cache_spec_kind": "full_attention",
            },
        ],
        0,
    ],
    "vllm_map_copies_and_locality": [
        1.5,
        [
            {
                "type": "BlockStored",
                "block_hashes": [7],
                "parent_block_hash": None,
                "token_ids": TOKENS[:4],
                "block_size": 4,
                "lora_id": None,
                "medium": "GPU",
                "lora_name": None,
                "locality": "REMOTE",
            },
            {
                "type": "BlockRemoved",
                "block_hashes": [1, 2, DIGEST],
                "medium": "GPU",
                "remaining_copy_counts": [2, 0, 1],
                "locality": "LOCAL",
            },
            {"type": "BlockRemoved", "block_hashes": [1, 2], "medium": "GPU", "remaining_copy_counts": [2]},
        ],
    ],
    "sglang_maps": [
        1.5,
        [
            {
                "type": "BlockStored",
                "block_hashes": [-5],
                "parent_block_hash": None,
                "token_ids": TOKENS[:4],
                "block_size": 4,
                "lora_id": None,
                "medium": "GPU",
                "cache_salt": "s1",
                "session_id": "x",
            },
            {
                "type": "BlockStored",
                "block_hashes": [6],
                "parent_block_hash": -5,
                "token_ids": TOKENS[4:],
                "block_size": 4,
                "lora_id": None,
                "medium": "CPU_PINNED",
                "cache_salt": "s1",
            },
            {"type": "BlockRemoved", "block_hashes": [-5], "medium": "GPU"},
            {"type": "AllBlocksCleared"},
        ],
        2,
    ],
    # Pages of two tokens each, as bigrams for speculative decoding: no token ids that a prompt could be matched with.
    "sglang_bigrams": [
        1.5,
        [["BlockStored", [5], None, [[100, 101], [101, 102]], 2, None, "GPU"], ["AllBlocksCleared"]],
    ],
    "trtllm": [
        1.5,
        [
            {
                "type": "BlockStored",
                "block_hashes": [BIG - 2**64, 2],
                "token_ids": TOKENS,
                "block_size": 4,
            },
            {
                "type": "BlockStored",
                "block_hashes": [3],
                "token_ids": TOKENS[:4],
                "block_size": 4,
                "parent_block_hash": 2,
                "lora_id": 5,
            },
            {"type": "BlockRemoved", "block_hashes": [BIG - 2**64]},
        ],
        0,
    ],
    "trtllm_images": [
        1.5,
        [
            {
                "type": "BlockStored",
                "block_hashes": [1, 2],
                "token_ids": TOKENS,
                "block_size": 4,
                "parent_block_hash": None,
                "block_mm_infos": [None, {"mm_objects": [{"mm_hash": BIG, "offsets": [[0, 4]]}]}],
            },
        ],
        0,
    ],
    "vllm_images": [
        1.5,
        [["BlockStored", [BIG, 2], None, TOKENS, 4, None, "GPU", None, [None, [["image-digest", 3]]]]],
    ],
    "one_bad_event": [
        1.5,
        [
            ["BlockStored", [1], None, TOKENS[:4], 4, None],
            ["BlockStored", ["text"], None, TOKENS[:4], 4, None],
            ["BlockStored", [1, 2], None, TOKENS[:4], 4, None],
            ["BlockStored", [1], None, [2**32, 1, 1, 1], 4, None],
            ["BlockStored", [1], None, [-1, 1, 1, 1], 4, None],
            ["BlockMoved", [1]],
            {"type": 5},
            7,
            [],
            ["BlockStored", [2], 1, TOKENS[4:], 4, None],
        ],
    ],
    "one_bad_removal": [1.5, [["BlockRemoved", None], ["BlockStored", [1], None, TOKENS[:4], 4, None]]],
}

if __name__ == "__main__":
    golden = {name: msgpack.packb(form).hex() for name, form in FORMS.items()}
    Path(__file__).with_name("golden.json").write_text(json.dumps(golden, indent=1) + "\n", encoding="utf-8")
