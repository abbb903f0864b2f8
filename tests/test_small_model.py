"""The default model of our own worker: what is shipped loads, answers, and can be made again from its recipe."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from backends.worker.recipe import skills_text
from backends.worker.recipe.corpus import HELD_OUT, SKILLS, conversation, plain_text
from backends.worker.recipe.tokenizer import SHIPPED, SPECIAL_TOKENS, pieces, texts_of, train_tokenizer
from cache.chat_template import ChatTemplate

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from backends.worker.recipe import train  # noqa: E402 - needs torch
from backends.worker.recipe.decoder import Decoder, Shape, rotary_table  # noqa: E402 - needs torch
from backends.worker.recipe.evaluate import SmallModel, has, needles  # noqa: E402 - needs torch and transformers

TOKENIZER = Tokenizer.from_file(str(SHIPPED / "tokenizer.json"))
CONFIG: dict[str, Any] = json.loads((SHIPPED / "config.json").read_text())
TOKENIZER_CONFIG: dict[str, Any] = json.loads((SHIPPED / "tokenizer_config.json").read_text())
TINY = Shape(vocab_size=4096, hidden_size=32, layers=2, heads=2, kv_heads=1, head_dim=16, intermediate_size=48)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def model() -> SmallModel:
    return SmallModel(SHIPPED)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def system(text: str) -> dict[str, str]:
    return {"role": "system", "content": text}


def test_what_is_shipped_is_small_and_its_files_agree() -> None:
    assert (SHIPPED / "model.safetensors").stat().st_size <= 16_000_000
    assert CONFIG["architectures"] == ["Qwen3ForCausalLM"]
    assert CONFIG["vocab_size"] == TOKENIZER.get_vocab_size() == len(TOKENIZER.get_vocab())
    assert CONFIG["eos_token_id"] == TOKENIZER.token_to_id("<|im_end|>")
    assert CONFIG["pad_token_id"] == TOKENIZER.token_to_id("<|endoftext|>")
    assert TOKENIZER_CONFIG["eos_token"] == "<|im_end|>"
    assert TOKENIZER_CONFIG["model_max_length"] == CONFIG["max_position_embeddings"]
    generation = json.loads((SHIPPED / "generation_config.json").read_text())
    assert generation["eos_token_id"][0] == CONFIG["eos_token_id"]


def test_transformers_takes_the_weights_in_bfloat16_and_the_recipe_has_the_same_names() -> None:
    loaded, told = transformers.AutoModelForCausalLM.from_pretrained(SHIPPED, output_loading_info=True)
    assert not told["missing_keys"]
    assert not told["unexpected_keys"]
    assert loaded.dtype == torch.bfloat16
    decoder = Decoder(Shape())
    names = {name: tuple(value.shape) for name, value in decoder.state_dict().items()}
    assert names == {k: tuple(v.shape) for k, v in loaded.state_dict().items() if k != "lm_head.weight"}


def test_the_recipes_decoder_computes_what_transformers_computes(model: SmallModel) -> None:
    decoder = Decoder(Shape())
    decoder.load_state_dict({k: v for k, v in model.model.state_dict().items() if k != "lm_head.weight"})
    tokens = torch.tensor([TOKENIZER.encode("<|im_start|>user\nHello! How are you?<|im_end|>\n").ids])
    with torch.no_grad():
        ours = decoder(tokens, *rotary_table(Shape(), tokens.shape[1]))
        theirs = model.model(tokens).logits
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("prompt", [True, False])
def test_our_sandbox_renders_the_template_as_transformers_does(model: SmallModel, prompt: bool) -> None:
    template = ChatTemplate({"default": TOKENIZER_CONFIG["chat_template"]}, {})
    for seed in range(HELD_OUT, HELD_OUT + 20):
        talk = conversation(seed, characters=500)
        messages = [system(talk.system)] if talk.system else []
        for turn in talk.turns:
            messages += [user(turn.user), assistant(turn.assistant)]
        messages += [user("Привет 😀")] if prompt else []
        theirs = model.tokenizer.apply_chat_template(messages, add_generation_prompt=prompt, tokenize=False)
        assert template.render({"messages": messages, "add_generation_prompt": prompt}) == theirs
        if not prompt:
            # What is trained on is what is served, token for token.
            assert "".join(text for text, _ in pieces(talk)) == theirs
            trained = [token for text, _ in pieces(talk) for token in TOKENIZER.encode(text).ids]
            assert trained == TOKENIZER.encode(theirs).ids


def test_other_roles_are_taken_as_the_nearest_one() -> None:
    template = ChatTemplate({"default": TOKENIZER_CONFIG["chat_template"]}, {})
    messages = [
        {"role": "developer", "content": "a"},
        {"role": "assistant", "content": None},
        {"role": "tool", "content": "b"},
    ]
    assert template.render({"messages": messages}) == (
        "<|im_start|>system\na<|im_end|>\n<|im_start|>assistant\n<|im_end|>\n<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\n"
    )


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=80))
def test_any_text_survives_the_tokenizer(text: str) -> None:
    ids = TOKENIZER.encode(text).ids
    assert all(0 <= token < CONFIG["vocab_size"] for token in ids)
    assert TOKENIZER.decode(ids, skip_special_tokens=False) == text


def test_emoji_and_scripts_survive_the_tokenizer() -> None:
    text = "Grüße, 世界 👩‍👩‍👧‍👦 \t\r\n  café ÿ 0123"
    assert TOKENIZER.decode(TOKENIZER.encode(text).ids) == text


HELD_OUT_CHATS = [
    (
        [
            user("Hello! My name is Julia and I live in Porto."),
            assistant("Hello Julia!"),
            user("What is the opposite of hot?"),
            assistant("The opposite of hot is cold."),
            user("What is my name?"),
        ],
        "Julia",
    ),
    ([user("What is the capital of France?")], "Paris"),
    (
        [
            user("What is the capital of Japan?"),
            assistant("The capital of Japan is Tokyo."),
            user("And of Egypt?"),
        ],
        "Cairo",
    ),
    ([user("What is the opposite of hot?")], "cold"),
    ([user("What is a prefix cache?")], "prompt"),
    ([system("You are Otto, a helpful assistant."), user("Who are you?")], "Otto"),
    ([user("Tell me a story about a fox.")], "fox"),
    ([user("What do you think about dinosaurs?")], "dinosaurs"),
]


@pytest.mark.parametrize(("messages", "expected"), HELD_OUT_CHATS)
def test_it_answers_simple_questions_in_words(model: SmallModel, messages: list[dict[str, str]], expected: str) -> None:
    assert has(model.answer(messages), expected)


def test_it_ends_its_turn_by_itself(model: SmallModel) -> None:
    for question in ("Hello!", "What is prefixgate?", "Tell me a story.", "What do you think about submarines?"):
        prompt = model.tokenizer.apply_chat_template(
            [user(question)], add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        output = model.model.generate(**prompt, max_new_tokens=320, do_sample=False)
        assert output[0, -1] == CONFIG["eos_token_id"]
        assert output.shape[1] < prompt["input_ids"].shape[1] + 320


def test_it_can_find_what_a_long_text_hides(model: SmallModel) -> None:
    # About every second one, as its card says; without training on long rows it is none.
    found = [has(model.answer(messages, limit=30), expected) for messages, expected in needles(11_000, 4)]
    assert any(found)


def test_the_corpus_is_the_same_for_the_same_seed_and_another_for_another() -> None:
    assert pieces(conversation(7, characters=2_000)) == pieces(conversation(7, characters=2_000))
    assert pieces(conversation(7, characters=2_000)) != pieces(conversation(8, characters=2_000))
    assert plain_text(3) == plain_text(3)


def test_every_skill_is_taught_and_no_placeholder_is_left() -> None:
    taught = set()
    for seed in range(400):
        talk = conversation(seed, characters=900)
        taught |= {turn.skill for turn in talk.turns}
        for turn in talk.turns:
            assert turn.user.strip()
            assert turn.assistant.strip()
            assert not set("[]{}|") & set(turn.user + turn.assistant)
            assert turn.expect is None or has(turn.assistant, turn.expect)
    assert set(SKILLS) <= taught


def test_a_handbook_answers_its_questions() -> None:
    for seed in range(50):
        text, questions = skills_text.handbook(Random(seed), 5)
        assert all(expect in text for _, _, expect in questions)


def test_the_tokenizer_is_the_same_on_every_run() -> None:
    texts = [text for seed in range(60) for text in texts_of(conversation(seed, characters=600))]
    first, second = train_tokenizer(texts, 600), train_tokenizer(texts, 600)
    assert first.to_str() == second.to_str()
    assert [first.id_to_token(i) for i in range(3)] == list(SPECIAL_TOKENS)


def test_the_recipe_trains_resumes_and_writes_a_model_that_loads(tmp_path: Path) -> None:
    run = train.Run(TINY, TOKENIZER, tmp_path, seconds=1e9, compiled=False)
    losses = [run.one_step() for _ in range(3)]
    assert losses[-1] < losses[0]
    run.keep()
    again = train.Run(TINY, TOKENIZER, tmp_path, seconds=1e9, compiled=False)
    again.resume()
    assert (again.step, again.tokens) == (run.step, run.tokens)
    assert again.one_step() == pytest.approx(run.one_step(), rel=1e-3)
    loaded = SmallModel(tmp_path / "model")
    assert isinstance(loaded.answer([user("Hello!")], limit=3), str)


def test_the_schedule_ends_with_the_clock() -> None:
    assert train.rate(0.0, 0) < train.rate(0.0, 30) < train.rate(0.0, 100) == 1.0
    assert train.rate(1.0, 10_000) == 0.0
    assert train.phase(0.0) == train.PHASES[0][1:]
    assert train.phase(1.0) == train.PHASES[-1][1:]


def test_gaps_in_the_positions_stay_within_what_the_model_knows() -> None:
    for seed in range(6):
        made = train.batch(seed, 1, 2048, TOKENIZER, 8192)
        assert made.tokens.shape == made.weights.shape == (1, 2049)
        assert 2047 <= int(made.positions[-1]) < 8192
        assert bool((made.positions.diff() >= 1).all())
