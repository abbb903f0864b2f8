"""What the small model can do: `python -m backends.worker.recipe.evaluate [FOLDER]`, with `transformers`.

Conversations come from seeds that no training run uses. An answer counts as right when it has the word that the
grammar expects; `HAND_WRITTEN` asks in wordings that the grammar does not have.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from backends.worker.recipe import skills_text
from backends.worker.recipe.corpus import HELD_OUT, conversation
from backends.worker.recipe.talk import Talk
from backends.worker.recipe.tokenizer import SHIPPED, pieces

Message = dict[str, str]

HAND_WRITTEN = (
    ("Which city is France's capital?", "Paris"),
    ("What would be two plus three?", "5"),
    ("I'd like to know the capital of Norway.", "Oslo"),
    ("What noise do cows make?", "moo"),
    ("Could you give me the opposite of hot, please?", "cold"),
    ("After Tuesday comes which day?", "Wednesday"),
    ("What's the color of a banana?", "yellow"),
    ("How many legs would a spider have?", "eight"),
    ("Which insect gives us honey?", "bee"),
    ("Could you count up to five for me?", "1, 2, 3, 4, 5"),
    ("My name's Sofia. Nice to meet you.", "Sofia"),
    ("Explain to me what a KV cache is.", "keys and values"),
    ("Could you explain what prefixgate is?", "gateway"),
    ("What is a hammer good for?", "nail"),
    ("What do you say about a knife's material?", "metal"),
    ("Tell me a tale about a fox.", "fox"),
    ("Give me a list of three fruits.", "and"),
    ("In what place does a teacher work?", "school"),
    ("What do we call a young dog?", "puppy"),
    ("What is seven minus four?", "3"),
)


class SmallModel:
    """A model folder with its tokenizer; answers greedily."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        model: Any = AutoModelForCausalLM
        self.model: Any = model.from_pretrained(folder, dtype=torch.float32).eval()

    @torch.no_grad()
    def answer(self, messages: list[Message], *, limit: int = 200) -> str:
        """The answer to a conversation, without its end-of-turn token."""
        prompt = self.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        length = prompt["input_ids"].shape[1]
        output = self.model.generate(**prompt, max_new_tokens=limit, do_sample=False)
        text: str = self.tokenizer.decode(output[0, length:], skip_special_tokens=True)
        return text

    @torch.no_grad()
    def losses(self, talk: Talk) -> tuple[float, int]:
        """The summed loss of what the assistant writes in a conversation, and its number of tokens."""
        ids: list[int] = []
        mine: list[bool] = []
        for part, of_assistant in pieces(talk):
            encoded = self.tokenizer.encode(part, add_special_tokens=False)
            ids += encoded
            mine += [of_assistant] * len(encoded)
        tokens = torch.tensor([ids])
        logits = self.model(tokens).logits[0, :-1].float()
        each = torch.nn.functional.cross_entropy(logits, tokens[0, 1:], reduction="none")
        chosen = torch.tensor(mine[1:])
        return float(each[chosen].sum()), int(chosen.sum())


def messages_before(talk: Talk, turn: int) -> list[Message]:
    """The conversation up to the question of `turn`, earlier answers as the grammar has them."""
    messages = [{"role": "system", "content": talk.system}] if talk.system is not None else []
    for earlier in talk.turns[:turn]:
        messages += [{"role": "user", "content": earlier.user}, {"role": "assistant", "content": earlier.assistant}]
    return [*messages, {"role": "user", "content": talk.turns[turn].user}]


def questions(per_skill: int) -> Iterator[tuple[str, list[Message], str]]:
    """Skill, conversation and expected word, `per_skill` of each skill at most."""
    asked: dict[str, int] = defaultdict(int)
    for seed in range(HELD_OUT, HELD_OUT + 40 * per_skill):
        talk = conversation(seed, characters=700)
        turn = Random(seed).randrange(len(talk.turns))
        skill, expect = talk.turns[turn].skill, talk.turns[turn].expect
        if expect is not None and asked[skill] < per_skill:
            asked[skill] += 1
            yield skill, messages_before(talk, turn), expect


def needles(characters: int, count: int) -> Iterator[tuple[list[Message], str]]:
    """Long passages, a question at the end of each, and the word that answers it."""
    for seed in range(HELD_OUT, HELD_OUT + count):
        rng = Random(seed)
        passage, hidden = skills_text.passage(rng, characters)
        question, _, expect = rng.choice(hidden)
        yield [{"role": "user", "content": f"Read this text:\n\n{passage}\n\n{question}"}], expect


def has(answer: str, expected: str) -> bool:
    """Whether the answer has the expected word."""
    return expected.lower() in answer.lower()


def perplexity(model: SmallModel, *, count: int, characters: int) -> float:
    """Of the assistant's tokens in held-out conversations."""
    total, tokens = 0.0, 0
    for seed in range(HELD_OUT, HELD_OUT + count):
        loss, length = model.losses(conversation(seed, characters=characters))
        total, tokens = total + loss, tokens + length
    return math.exp(total / tokens)


def main() -> None:
    """Print all figures of the model card."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=SHIPPED)
    parser.add_argument("--per-skill", type=int, default=20)
    parser.add_argument("--wrong", action="store_true", help="show the wrong answers")
    arguments = parser.parse_args()
    model = SmallModel(arguments.folder)
    print(f"perplexity, short conversations: {perplexity(model, count=150, characters=900):.3f}")
    print(f"perplexity, long conversations: {perplexity(model, count=8, characters=14_000):.3f}")
    right: dict[str, list[bool]] = defaultdict(list)
    for skill, messages, expect in questions(arguments.per_skill):
        answer = model.answer(messages)
        right[skill].append(has(answer, expect))
        if arguments.wrong and not right[skill][-1]:
            print(f"  {skill}: {messages[-1]['content'][-160:]!r} -> {answer[:160]!r}, expected {expect!r}")
    for question, expect in HAND_WRITTEN:
        answer = model.answer([{"role": "user", "content": question}])
        right["(other wordings)"].append(has(answer, expect))
        if arguments.wrong and not right["(other wordings)"][-1]:
            print(f"  {question!r} -> {answer[:160]!r}, expected {expect!r}")
    for characters in (2_000, 5_500, 11_000, 22_000):
        for messages, expect in needles(characters, arguments.per_skill // 2):
            right[f"(hidden in about {characters // 3.9:.0f} tokens)"].append(
                has(model.answer(messages, limit=40), expect)
            )
    for skill, answers in sorted(right.items()):
        print(f"| {skill} | {sum(answers)} / {len(answers)} |")


if __name__ == "__main__":
    main()
