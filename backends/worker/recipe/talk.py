"""A conversation while it is being written: its turns, what its user has told, and how its assistant must answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from backends.worker.recipe.phrases import say

BRIEFLY = "[Answer in one word.|One word only.|Answer with one word, please.|Just the answer.|Only the answer, please.|Be brief.]"


@dataclass
class Style:
    """What the system prompt asks of every answer."""

    one_word: bool = False
    opening: str = ""
    closing: str = ""


@dataclass
class Turn:
    """A question and its answer. `expect` is a word that a right answer must have, for the evaluation."""

    user: str
    assistant: str
    skill: str
    expect: str | None = None


@dataclass
class Talk:
    """One conversation. Skills add turns to it; `facts` is what its user has told about itself."""

    rng: Random
    system: str | None = None
    style: Style = field(default_factory=Style)
    bot: str | None = None
    facts: dict[str, str] = field(default_factory=dict)
    turns: list[Turn] = field(default_factory=list)
    skill: str = ""

    def say(self, template: str, **slots: object) -> str:
        """`template` in one of its wordings."""
        return say(self.rng, template, **slots)

    def add(
        self, user: str, assistant: str, *, short: str | None = None, expect: str | None = None, exact: bool = False
    ) -> None:
        """Add a turn. `short` is the answer in a word; `exact` keeps the user's text as it is."""
        answer = assistant
        asked_briefly = short is not None and not self.style.one_word and self.rng.random() < 0.06
        if asked_briefly:
            user = f"{user} {say(self.rng, BRIEFLY)}"
        if short is not None and (asked_briefly or self.style.one_word):
            answer, expect = short, short.rstrip(".")
        if self.style.opening:
            answer = f"{self.style.opening} {answer}"
        if self.style.closing:
            answer = f"{answer} {self.style.closing}"
        self.turns.append(Turn(user if exact else self._worded(user), answer, self.skill, expect))

    def _worded(self, text: str) -> str:
        """The user's text as people type: sometimes without capitals, without a full stop, or with a word before."""
        rng, draw = self.rng, self.rng.random()
        if draw < 0.08 and len(text) < 200 and text[-1] in "?." and text[0].isupper():
            openings = ["Hi, ", "Hey, ", "Ok. ", "So, ", "Hello! "]
            if text[-1] == "?":
                openings += [
                    "Please tell me: ",
                    "Can you tell me: ",
                    "I have a question. ",
                    "And now: ",
                    "Next question: ",
                    "Quick question: ",
                ]
            text = rng.choice(openings) + text
        elif draw < 0.12:
            text = f"{text} {rng.choice(('Please.', 'Thanks.', 'Thank you.', 'Do you know?') if text[-1] == '?' else ('Thanks.', 'Ok?'))}"
        draw = rng.random()
        if draw < 0.12 and len(text) < 200:
            text = text.lower()
        if rng.random() < 0.15 and text[-1] in ".?!":
            text = text[:-1]
        return text
