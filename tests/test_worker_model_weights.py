"""Weights: whole files and shards, what does not fit is named; dummy weights; the pool's blocks; the memory bound."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from backends.worker.model import memory
from backends.worker.model.decoder import Decoder
from backends.worker.model.kv_pool import KvPool, block_bytes
from backends.worker.model.memory import MemoryBoundError, MemoryProfile, StepLimits
from backends.worker.model.model_config import ModelConfig
from backends.worker.model.runner import Chunk, ModelRunner
from backends.worker.model.weights import Weights, WeightsError
from tests.worker_model_fixtures import CPU, Variant, make, runner, saved, tokens, truth


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def load(directory: Path, dtype: torch.dtype = torch.float32) -> Weights:
    return Weights.load(directory, ModelConfig.read(directory), dtype=dtype, device=CPU)


@pytest.mark.parametrize("tied", [False, True])
def test_shards_are_read_through_their_index(tied: bool, tmp_path: Path) -> None:
    model = make(Variant("qwen2", "qwen2", {"tie_word_embeddings": tied}))
    directory = saved(model, tmp_path, max_shard_size="40KB")
    assert len(list(directory.glob("model-*.safetensors"))) > 2
    token_ids = tokens(30)
    got = runner(directory).execute([Chunk(token_ids, 0, range(2), samples=True)])
    torch.testing.assert_close(got[0], truth(model, token_ids)[-1], rtol=1e-4, atol=1e-4)


def test_tied_weights_are_kept_once_and_counted_once(tmp_path: Path) -> None:
    model = make(Variant("tied", settings={"tie_word_embeddings": True}))
    weights = load(saved(model, tmp_path))
    assert weights.lm_head is weights.embed
    assert weights.bytes == sum(parameter.nbytes for parameter in model.parameters())
    # Some exports write the tied matrix twice, and frequencies that follow from the configuration.
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)
    save_file(tensors, tmp_path / "model.safetensors")
    assert load(tmp_path).bytes == weights.bytes


def test_another_type_is_converted_while_loading(tmp_path: Path) -> None:
    directory = saved(make(Variant("llama")), tmp_path)
    wide, narrow = load(directory), load(directory, torch.bfloat16)
    assert torch.equal(wide.layers[1].qkv.to(torch.bfloat16), narrow.layers[1].qkv)


def _without(tensors: dict[str, torch.Tensor]) -> None:
    del tensors["model.layers.1.mlp.up_proj.weight"]


def _with_bias(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.layers.0.self_attn.q_proj.bias"] = torch.zeros(48)


def _too_wide(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.norm.weight"] = torch.zeros(49)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_without, "1 tensors are missing, such as model.layers.1.mlp.up_proj.weight"),
        (_with_bias, r"has model.layers.0.self_attn.q_proj.bias, which a LlamaForCausalLM has no place for"),
        (_too_wide, r"model.norm.weight has shape \[49\]; config.json says \[48\]"),
    ],
)
def test_tensors_that_do_not_fit_are_named(
    change: Callable[[dict[str, torch.Tensor]], None], message: str, tmp_path: Path
) -> None:
    path = saved(make(Variant("llama")), tmp_path) / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)
    with pytest.raises(WeightsError, match=message):
        load(tmp_path)


def test_files_that_are_missing_damaged_or_elsewhere_are_named(tmp_path: Path) -> None:
    directory = saved(make(Variant("llama")), tmp_path, max_shard_size="40KB")
    index = directory / "model.safetensors.index.json"
    told = index.read_text()
    first = min(json.loads(told)["weight_map"].values())
    content = (directory / first).read_bytes()
    (directory / first).write_bytes(content[:100])
    with pytest.raises(WeightsError, match=f"{first} cannot be read"):
        load(directory)
    (directory / first).unlink()
    with pytest.raises(WeightsError, match=f"{first} is missing"):
        load(directory)
    for broken in ("{", "[]", '{"weight_map": 1}'):
        index.write_text(broken)
        with pytest.raises(WeightsError, match="no index"):
            load(directory)
    index.write_text(told.replace(first, f"../{first}"))
    with pytest.raises(WeightsError, match="outside its directory"):
        load(directory)


def test_pickled_weights_are_never_opened(tmp_path: Path) -> None:
    directory = saved(make(Variant("llama")), tmp_path)
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")
    with pytest.raises(WeightsError, match=r"model\.safetensors is missing"):
        load(directory)
    (directory / "model.safetensors").write_bytes(pickle.dumps({"model.norm.weight": [1.0]}))
    with pytest.raises(WeightsError, match="cannot be read"):
        load(directory)


def config(**fields: Any) -> ModelConfig:
    return ModelConfig.parse(
        {
            "architectures": ["Qwen3ForCausalLM"],
            "vocab_size": 300,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "tie_word_embeddings": True,
            **fields,
        }
    )


def test_dummy_weights_have_the_real_shape_and_follow_their_seed() -> None:
    first, same, other = (Weights.dummy(config(), dtype=torch.bfloat16, device=CPU, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.layers[1].gate_up, same.layers[1].gate_up)
    assert not torch.equal(first.layers[1].gate_up, other.layers[1].gate_up)
    assert first.layers[0].qkv.shape == (8 * 32, 64)
    assert torch.equal(first.norm, torch.ones(64, dtype=torch.bfloat16))
    assert abs(first.embed.float().std().item() - 0.02) < 0.001
    per_layer = 256 * 64 + 64 * 128 + 2 * 96 * 64 + 64 * 96 + 2 * 64 + 2 * 32
    assert first.bytes == 2 * (300 * 64 + 2 * per_layer + 64)


def test_a_block_is_one_run_of_bytes_that_can_be_taken_out_and_put_back() -> None:
    decoder = Decoder(config(), Weights.dummy(config(), dtype=torch.float32, device=CPU))
    pool = KvPool(config(), n_blocks=6, block_size=16, dtype=torch.float32, device=CPU)
    engine = ModelRunner(decoder, pool)
    token_ids = tokens(40)
    engine.execute([Chunk(token_ids[:39], 0, [4, 1, 2], samples=False)])
    wanted = engine.execute([Chunk(token_ids[39:], 39, [4, 1, 2], samples=True)])
    assert pool.block_bytes == block_bytes(config(), 16, torch.float32) == 2 * 2 * 16 * 2 * 32 * 4
    assert pool.block(1).is_contiguous()
    kept = [pool.read_block(index) for index in (4, 1, 2)]
    pool.data.zero_()
    for index, content in zip((0, 5, 3), kept, strict=True):
        pool.write_block(index, content)
    assert torch.equal(engine.execute([Chunk(token_ids[39:], 39, [0, 5, 3], samples=True)]), wanted)
    with pytest.raises(ValueError, match="a block is 16384 bytes"):
        pool.write_block(0, kept[0][:-1])


def test_the_bound_less_weights_and_the_largest_step_is_the_pools() -> None:
    decoder = Decoder(config(), Weights.dummy(config(), dtype=torch.float32, device=CPU))
    small = memory.profile(decoder, StepLimits(64, 4, 128), 16)
    large = memory.profile(decoder, StepLimits(4096, 64, 8192), 16)
    assert small.block == large.block > block_bytes(config(), 16, torch.float32) + 16 * 4  # Python knows its tokens
    assert large.step > 4096 * 96 * 4 * 2  # at least gate and up of every token
    assert large.step > small.step
    assert large.used > decoder.weights.bytes
    assert memory.total_bytes(CPU) > large.used


def test_a_bound_that_leaves_no_room_says_what_needs_how_much() -> None:
    profile = MemoryProfile(used=300 * 2**20, step=100 * 2**20, block=2**20)
    assert profile.blocks(1000 * 2**20) == 600
    assert profile.blocks(401 * 2**20) == 1
    with pytest.raises(MemoryBoundError, match=r"400.0 MiB has no room for 1 KV blocks.*allow 401.0 MiB"):
        profile.blocks(400 * 2**20)
    with pytest.raises(MemoryBoundError, match="no room for 8"):
        profile.blocks(407 * 2**20, least=8)
