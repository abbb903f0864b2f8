"""A configuration is read as `transformers` reads it, and what we cannot compute is refused by its name."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from backends.worker.model.config_fields import UnsupportedModelError
from backends.worker.model.model_config import FAMILIES, ModelConfig
from backends.worker.model.rope_config import RopeType
from tests.worker_model_fixtures import CONFIGS, VARIANTS, make

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


def qwen3(**fields: Any) -> dict[str, Any]:
    return LLAMA | {"architectures": ["Qwen3ForCausalLM"], "num_key_value_heads": 2} | fields


def mistral(**fields: Any) -> dict[str, Any]:
    return LLAMA | {"architectures": ["MistralForCausalLM"], "num_key_value_heads": 2} | fields


@pytest.mark.parametrize("architecture", FAMILIES)
def test_fields_left_out_have_the_defaults_that_transformers_gives_them(architecture: str) -> None:
    config = CONFIGS[FAMILIES[architecture].model_type]
    needed = {key: value for key, value in LLAMA.items() if key != "architectures"}
    needed |= {"num_attention_heads": 32, "hidden_size": 256, "num_hidden_layers": 40}
    given = config(**needed).to_dict() | {"architectures": [architecture]}
    ids = {"eos_token_id": given["eos_token_id"], "architectures": [architecture]}
    assert ModelConfig.parse(needed | ids) == ModelConfig.parse(given | {"dtype": None})


def test_the_models_type_stands_in_for_a_missing_architecture() -> None:
    del (given := dict(LLAMA))["architectures"]
    assert ModelConfig.parse(given | {"model_type": "llama"}) == ModelConfig.parse(LLAMA)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_every_variant_is_read_without_a_field_we_do_not_know(variant: Any) -> None:
    model = make(variant)
    given = model.config.to_dict() | {"architectures": [type(model).__name__]}
    assert ModelConfig.parse(given).ignored == ()


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    (LLAMA | {"architectures": ["GemmaForCausalLM"]}, "architectures", "LlamaForCausalLM"),
    (LLAMA | {"architectures": ["LlamaForCausalLM", "B"]}, "architectures", "one of"),
    (LLAMA | {"architectures": None, "model_type": "gpt2"}, "model_type", "llama"),
    (LLAMA | {"quantization_config": {"quant_method": "gptq"}}, "quantization_config", "null"),
    (LLAMA | {"partial_rotary_factor": 0.5}, "partial_rotary_factor", "1"),
    (LLAMA | {"rope_parameters": {"partial_rotary_factor": 0.5}}, "rope_parameters.partial_rotary_factor", "1"),
    (LLAMA | {"rope_scaling": {"type": "longrope", "factor": 2}}, "rope_scaling.rope_type", "yarn"),
    (LLAMA | {"rope_scaling": {"type": "yarn", "factor": 2, "beta_medium": 3}}, "rope_scaling.beta_medium", "no such"),
    (LLAMA | {"rope_scaling": {"type": "linear"}}, "rope_scaling.factor", "number"),
    (LLAMA | {"rope_scaling": {"type": "linear", "factor": "2"}}, "rope_scaling.factor", "number"),
    (LLAMA | {"rope_scaling": {"type": "llama3", "factor": 2}}, "rope_scaling.high_freq_factor", "low_freq_factor"),
    (LLAMA | {"rope_scaling": [1]}, "rope_scaling", "object"),
    (LLAMA | {"rope_parameters": {"full_attention": {"rope_theta": 1e6}}}, "rope_parameters.full_attention", "no such"),
    (LLAMA | {"sliding_window": 512}, "sliding_window", "null"),
    (LLAMA | {"hidden_act": "gelu_new"}, "hidden_act", "silu"),
    (LLAMA | {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping", "null"),
    (LLAMA | {"final_logit_softcapping": 30.0}, "final_logit_softcapping", "null"),
    (LLAMA | {"num_local_experts": 8}, "num_local_experts", "null"),
    (LLAMA | {"clip_qkv": 8.0}, "clip_qkv", "null"),
    (LLAMA | {"use_qk_norm": True}, "use_qk_norm", "null"),
    (LLAMA | {"logit_scale": 0.0625}, "logit_scale", "null"),
    (LLAMA | {"residual_multiplier": 0.22}, "residual_multiplier", "null"),
    (LLAMA | {"no_rope_layers": [1, 0]}, "no_rope_layers", "null"),
    (LLAMA | {"attention_chunk_size": 8192}, "attention_chunk_size", "null"),
    (LLAMA | {"hidden_size": 66}, "hidden_size", "multiple"),
    (LLAMA | {"head_dim": 15}, "head_dim", "even"),
    (LLAMA | {"num_key_value_heads": 3}, "num_key_value_heads", "divisor"),
    (LLAMA | {"num_hidden_layers": 0}, "num_hidden_layers", "from 1"),
    (LLAMA | {"num_hidden_layers": True}, "num_hidden_layers", "integer"),
    (LLAMA | {"vocab_size": None}, "vocab_size", "integer"),
    (LLAMA | {"rms_norm_eps": float("inf")}, "rms_norm_eps", "number"),
    (LLAMA | {"tie_word_embeddings": "yes"}, "tie_word_embeddings", "true or false"),
    (LLAMA | {"eos_token_id": "</s>"}, "eos_token_id", "token id"),
    (LLAMA | {"layer_types": ["full_attention"]}, "layer_types", "2 of"),
    (mistral(attention_bias=True), "attention_bias", "false"),
    (mistral(mlp_bias=True), "mlp_bias", "false"),
    (mistral(sliding_window=8, layer_types=["full_attention", "sliding_attention"]), "layer_types", "same"),
    (qwen3(mlp_bias=True), "mlp_bias", "false"),
    (qwen3(layer_types=["full_attention", "linear_attention"]), "layer_types", "sliding_attention"),
    (qwen3(layer_types=["full_attention", "sliding_attention"]), "layer_types", "no sliding window"),
]


@pytest.mark.parametrize(("given", "field", "supported"), REFUSED, ids=[field for _, field, _ in REFUSED])
def test_what_we_cannot_compute_is_refused_by_name(given: dict[str, Any], field: str, supported: str) -> None:
    with pytest.raises(UnsupportedModelError) as refusal:
        ModelConfig.parse(given)
    assert refusal.value.field == field
    assert supported in refusal.value.supported
    assert str(refusal.value).startswith(f"{field} is ")


def test_fields_that_change_nothing_are_ignored_and_named() -> None:
    plain = ModelConfig.parse(LLAMA)
    harmless = {"attention_dropout": 0.1, "pretraining_tp": 2, "initializer_range": 0.02, "bos_token_id": 1}
    neutral = {
        "quantization_config": None,
        "clip_qkv": None,
        "use_qk_norm": False,
        "logit_scale": 1.0,
        "mlp_bias": False,
    }
    assert ModelConfig.parse(LLAMA | harmless).ignored == ()
    got = ModelConfig.parse(LLAMA | harmless | neutral | {"favourite_colour": "blue"})
    assert got.ignored == ("clip_qkv", "favourite_colour", "logit_scale", "quantization_config", "use_qk_norm")
    assert got.rope == plain.rope


def test_ends_of_sequence_come_from_both_files_each_once() -> None:
    assert ModelConfig.parse(LLAMA).eos_token_ids == ()
    assert ModelConfig.parse(LLAMA | {"eos_token_id": 7}).eos_token_ids == (7,)
    both = ModelConfig.parse(LLAMA | {"eos_token_id": [7, 9]}, {"eos_token_id": [9, 3]})
    assert both.eos_token_ids == (7, 9, 3)
    assert ModelConfig.parse(LLAMA | {"eos_token_id": -1}, {"eos_token_id": None}).eos_token_ids == ()


def test_a_directory_is_read_with_its_generation_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"eos_token_id": 1, "torch_dtype": "torch.bfloat16"}))
    assert ModelConfig.read(tmp_path).eos_token_ids == (1,)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 2]}))
    got = ModelConfig.read(tmp_path)
    assert got.eos_token_ids == (1, 2)
    assert got.dtype == "bfloat16"
    for broken in "{", "[]":
        (tmp_path / "config.json").write_text(broken)
        with pytest.raises(UnsupportedModelError, match=r"config\.json"):
            ModelConfig.read(tmp_path)
    with pytest.raises(OSError, match=r"config\.json"):
        ModelConfig.read(tmp_path / "elsewhere")


def test_windows_by_layer() -> None:
    assert ModelConfig.parse(mistral(sliding_window=8)).windows == (8, 8)
    assert ModelConfig.parse(mistral(sliding_window=None)).windows == (None, None)
    assert ModelConfig.parse(qwen3(sliding_window=8)).windows == (None, None)
    using = {"sliding_window": 8, "use_sliding_window": True}
    assert ModelConfig.parse(qwen3(**using, max_window_layers=1)).windows == (None, 8)
    types = ["sliding_attention", "full_attention"]
    assert ModelConfig.parse(qwen3(**using, layer_types=types)).windows == (8, None)


def test_the_longest_sequence_follows_from_how_positions_are_stretched() -> None:
    def length(**rope: Any) -> int:
        return ModelConfig.parse(LLAMA | {"max_position_embeddings": 1000, "rope_parameters": rope}).max_length

    assert length() == 1000
    assert length(rope_type=RopeType.LINEAR, factor=2.0) == 2000
    assert length(rope_type=RopeType.DYNAMIC, factor=4.0) == 4000
    assert length(rope_type=RopeType.YARN, factor=4.0, original_max_position_embeddings=250) == 1000
    assert length(rope_type=RopeType.YARN, factor=4.0) == 4000
    assert length(rope_type=RopeType.LLAMA3, factor=8.0, low_freq_factor=1, high_freq_factor=4) == 1000


def test_reading_a_configuration_needs_no_torch() -> None:
    code = "import sys, backends.worker.model.model_config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
