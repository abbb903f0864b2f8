"""The corpus: conversations without end, each made from a seed. `python -m backends.worker.recipe.corpus` shows some.

Nothing is read: every text comes from the tables and grammars beside this file. The same seed gives the same
conversation, so a training run can go on where it stopped.
"""

from __future__ import annotations

import sys
from random import Random

from backends.worker.recipe import skills_chat, skills_facts, skills_text, stories
from backends.worker.recipe.facts import NAMES
from backends.worker.recipe.phrases import say
from backends.worker.recipe.talk import Style, Talk

SKILLS = {**skills_facts.SKILLS, **skills_chat.SKILLS, **skills_text.SKILLS}
HELD_OUT = 1 << 40
"""Seeds from here on are for the evaluation, never trained on."""

PLAIN_SYSTEM = (
    "You are a [helpful|friendly|kind|small|polite] assistant.",
    "You are a helpful assistant. [Answer in simple words.|Be friendly.|Be short.|Answer the questions of the user.|Be honest.]",
    "[Be helpful.|Answer in simple words.|You help people with their questions.|You are a chat assistant.|Be kind and helpful.]",
)
STYLES = (
    (
        "Answer [in|with] one word.|Use only one word.|Answer in as few words as you can.|Give one-word answers.",
        Style(one_word=True),
    ),
    ('[Begin|Start] every answer with [the words |]"{o}"', None),
    ('[End|Finish] every answer with [the words |]"{c}"', None),
    ("You are a pirate.|Talk like a pirate.|Answer like a pirate.", Style(opening="Arr!", closing="")),
    ("Be very polite.|You are a very polite butler.", Style(opening="Certainly!")),
    ("Be very cheerful.|You are always happy and cheerful.", Style(opening="Hooray!")),
)
OPENINGS = (
    "Sure!",
    "Of course!",
    "Well,",
    "Dear friend,",
    "Oh!",
    "Listen:",
    "Here you are:",
    "Good question!",
    "Yes:",
    "Gladly!",
)
CLOSINGS = (
    "Have a nice day!",
    "Bye!",
    "I hope this helps.",
    "Anything else?",
    "Thank you!",
    "Beep!",
    "Take care!",
    "All the best!",
    "Ahoy!",
)


def conversation(seed: int, *, characters: int) -> Talk:
    """A conversation of about `characters` characters, or of fewer when it ends by itself."""
    rng = Random(seed)
    talk = Talk(rng)
    questions = _begin(talk, characters)
    if not talk.turns and rng.random() < 0.25:
        talk.skill = "small talk"
        skills_chat.greeting(talk)
    mood = _mood(rng)
    while sum(len(turn.user) + len(turn.assistant) + 40 for turn in talk.turns) < characters:
        if questions and rng.random() < 0.7:
            talk.skill = "system prompt"
            skills_text.ask_handbook(talk, questions)
        elif talk.facts and rng.random() < 0.12:
            talk.skill = "recall"
            skills_chat.ask_any(talk)
        else:
            talk.skill = rng.choices(list(mood), weights=list(mood.values()))[0]
            SKILLS[talk.skill][0](talk)
        if rng.random() < 0.02 and talk.turns:
            talk.skill = "small talk"
            skills_chat.farewell(talk)
            break
    return talk


def _mood(rng: Random) -> dict[str, float]:
    """Weights of the skills in one conversation: some talk about everything, some about a few things."""
    weights = {name: weight for name, (_, weight) in SKILLS.items()}
    if rng.random() < 0.5:
        favoured = rng.sample(list(weights), k=4)
        weights = {name: weight * (6 if name in favoured else 1) for name, weight in weights.items()}
    return weights


def _begin(talk: Talk, characters: int) -> list[tuple[str, str, str]]:
    """The system prompt, or a long text to talk about; returns the questions that a handbook answers."""
    rng = talk.rng
    draw = rng.random()
    if draw < 0.42:
        pass
    elif draw < 0.60:
        talk.system = say(rng, rng.choice(PLAIN_SYSTEM))
    elif draw < 0.70:
        talk.bot = rng.choice(NAMES)
        talk.system = say(
            rng,
            "[Your name is {n}.|You are {n}.|You are {n}, a [helpful|friendly|small] assistant.|You are an assistant named {n}.]",
            n=talk.bot,
        )
        if rng.random() < 0.4:
            talk.system += " " + say(rng, "[Answer in simple words.|Be friendly.|Be short.]")
    elif draw < 0.80:
        _styled(talk)
    elif draw < 0.92:
        items = rng.randint(0, 8) if characters < 3000 else rng.randint(4, min(80, characters // 60))
        talk.system, questions = skills_text.handbook(rng, items)
        if characters >= 4000 and rng.random() < 0.4:
            text, more = skills_text.passage(rng, characters // 2)
            talk.system, questions = f"{talk.system}\n\n{text}", questions + more
        return questions
    elif characters >= 1500:
        talk.skill = "long texts"
        skills_text.long_text(talk, int(characters * rng.uniform(0.4, 0.85)))
    return []


def _styled(talk: Talk) -> None:
    wording, style = talk.rng.choice(STYLES)
    if style is None:
        opening, closing = talk.rng.choice(OPENINGS), talk.rng.choice(CLOSINGS)
        style = Style(opening=opening) if "{o}" in wording else Style(closing=closing)
        talk.system = say(talk.rng, wording, o=opening, c=closing) + "."
    else:
        talk.system = talk.say(f"[{wording}]")
    talk.style = Style(one_word=style.one_word, opening=style.opening, closing=style.closing)


def plain_text(seed: int) -> str:
    """A story without a conversation, for `/v1/completions`."""
    return stories.tell(Random(seed)).text


def main() -> None:
    """Print a few conversations."""
    start = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    for seed in range(start, start + 5):
        talk = conversation(seed, characters=900)
        print(f"=== {seed}\n[system] {talk.system}")
        for turn in talk.turns:
            print(f"[user] {turn.user}\n[assistant] {turn.assistant}    ({turn.skill}; {turn.expect})")


if __name__ == "__main__":
    main()
