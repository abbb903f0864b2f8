"""Little stories from a grammar: a hero, a place, a wish, a trouble, help, an end and what was learned.

A story is told in whole sentences, so that its summary and the questions about it can be told from the same plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from backends.worker.recipe.facts import NAMES, SHE, words
from backends.worker.recipe.phrases import article, say

HEROES = words("""boy, girl, dog, cat, rabbit, mouse, fox, bear, owl, duck, frog, pig, horse, squirrel, hedgehog, turtle,
penguin, elephant, lion, robot, dragon, farmer, baker, sailor, wizard, princess, prince, king, queen, fisherman, painter,
gardener, giant, fairy, teacher, pirate, knight, snail, bee, sheep""")
GENDERED = {
    "boy": False,
    "girl": True,
    "wizard": False,
    "princess": True,
    "prince": False,
    "king": False,
    "queen": True,
    "fisherman": False,
    "knight": False,
}
"""Heroes whose name tells: whether they are `she`."""
TRAITS = words("""kind, brave, shy, curious, clever, happy, lonely, quiet, cheerful, lazy, patient, proud, gentle, funny,
hungry, sleepy, small, old, young, friendly, careful, stubborn, honest, busy""")
PLACES = words("""in a small village, in a big city, in a dark forest, in a sunny valley, in an old castle, in a little house by
the sea, on a farm near a river, in a tall tower, on a quiet island, in a house on a hill, in a cave in the mountains, in a
garden full of flowers, in a town by a lake, in a cottage in the woods, on a boat, in a village in the snow""")
OBJECTS = words("""red ball, golden key, old book, silver ring, blue kite, magic stone, warm scarf, wooden boat, little bell,
shiny coin, green hat, big drum, soft blanket, old map, small lamp, glass bottle, toy train, music box, pair of boots,
basket of apples, letter, pumpkin, seed, honey pot, violin, telescope, white feather, paper crown""")
WANTS = words("""learn to swim, learn to fly, find a friend, see the sea, bake the best cake, build a house, climb the
highest mountain, sing a beautiful song, plant a garden, paint a picture, win the race, learn to read, ride a horse,
catch a star, cross the river, make a boat, see the snow, dance at the party, tell good stories, find a treasure""")
SCENES = words("""in the garden, by the river, under a big tree, near the bridge, on the beach, at the market, in the forest,
behind the house, on the hill, next to the well, at the edge of the wood, in the old barn""")
WEATHER = words("sunny, rainy, cold, warm, windy, snowy, foggy, bright, cloudy, hot")
LESSONS = {
    "share": "[it is good to share|sharing makes everyone happy|a thing that is shared is twice as good]",
    "help": "[friends help each other|it is good to ask for help|even a small friend can be a big help]",
    "try": "[you must never give up|if you try again and again, you will learn|practice makes you better]",
    "truth": "[it is best to tell the truth|honest words are better than gold|the truth makes friends]",
    "kind": "[it is good to be kind to everyone|kindness always comes back|a kind word costs nothing]",
    "brave": "[being brave means going on although you are afraid|even the small can be brave|fear becomes small when you face it]",
}


@dataclass(frozen=True)
class Story:
    """A told story and what can be asked about it."""

    text: str
    summary: str
    hero: str
    kind: str
    place: str
    thing: str
    helper: str
    lesson: str

    def title(self) -> str:
        """A title for it."""
        return f"{self.hero} and the {self.thing}"


def _pronouns(hero: str) -> tuple[str, str, str]:
    return ("she", "her", "her") if hero in SHE else ("he", "him", "his")


def _cap(text: str) -> str:
    return text[0].upper() + text[1:]


def tell(rng: Random, *, about: str | None = None, name: str | None = None, thing: str | None = None) -> Story:
    """One story; `about` fixes what kind of hero, `name` its name, `thing` the thing it is about."""
    about = about or rng.choice(HEROES)
    fitting = [one for one in NAMES if about not in GENDERED or (one in SHE) == GENDERED[about]]
    hero = name or rng.choice(fitting)
    helper = rng.choice([other for other in NAMES if other != hero])
    kind = about
    helper_kind = rng.choice([one for one in HEROES if GENDERED.get(one, helper in SHE) == (helper in SHE)])
    he, him, his = _pronouns(hero)
    trait, place, thing = rng.choice(TRAITS), rng.choice(PLACES), thing or rng.choice(OBJECTS)
    scene, want, weather = rng.choice(SCENES), rng.choice(WANTS), rng.choice(WEATHER)
    lesson, body, gist = _plot(rng)
    slots = {
        "hero": hero,
        "helper": helper,
        "kind": kind,
        "a_kind": article(kind),
        "helper_kind": helper_kind,
        "a_helper_kind": article(helper_kind),
        "he": he,
        "him": him,
        "his": his,
        "He": _cap(he),
        "His": _cap(his),
        "trait": trait,
        "a_trait": article(trait),
        "place": place,
        "thing": thing,
        "a_thing": thing if thing.endswith("boots") and not thing.startswith("pair") else article(thing),
        "scene": scene,
        "want": want,
        "weather": weather,
        "a_weather": article(weather),
    }
    moral = say(rng, LESSONS[lesson])
    opening = say(
        rng,
        "[Once upon a time|Long ago|Once|A long time ago], there was {a_trait} {kind} named {hero}. "
        "{hero} lived {place}. [{He} liked to play {scene}. |{He} had {a_thing} that {he} loved very much. |]"
        if body.startswith("#")
        else "[Once upon a time|Long ago|Once|A long time ago], there was {a_trait} {kind} named {hero}. "
        "[{hero} lived {place}.|{He} lived {place}.] [{His} best friend was {a_helper_kind} named {helper}. |]",
        **slots,
    )
    ending = say(
        rng,
        "[From that day on, {hero} knew that {moral}.|{hero} learned that {moral}.|And so {hero} learned that {moral}.]"
        "[ They were friends for the rest of their lives.| Everyone was happy.| That night, {hero} slept very well.|]",
        moral=moral,
        **slots,
    )
    text = " ".join((opening.strip(), say(rng, body.lstrip("#"), **slots), ending))
    return Story(text, say(rng, gist, **slots), hero, kind, place, thing, helper, moral)


def _plot(rng: Random) -> tuple[str, str, str]:
    """Lesson, body and summary of one of the plots."""
    return rng.choice(PLOTS)


DAY = "[One {weather} day|One {weather} morning|One day|One morning|One {weather} afternoon]"
PLOTS = (
    (
        "help",
        "#"
        + DAY
        + ", {hero} lost the {thing}. {He} looked {scene}, but it was not there. [{He} looked under the bed. |"
        "{He} looked behind the door. |]{hero} was [very sad|so sad that {he} began to cry]. Then {helper} the {helper_kind} "
        'came by. "[Why are you sad|What is wrong]?" asked {helper}. "I lost my {thing}," said {hero}. "[Do not worry|Do not cry]," '
        'said {helper}. "[I will help you|Let us look together]." They looked for [a long time|many hours]. At last, '
        '{helper} found the {thing} [under a leaf|behind a stone|in the tall grass|near the fence]. "[Thank you|Thank you so much]!" '
        "said {hero}. {He} was very happy.",
        "{hero} the {kind} lost the {thing}. {helper} the {helper_kind} helped to find it.",
    ),
    (
        "share",
        DAY + ", {hero} found {a_thing} {scene}. {He} was [very happy|so glad] and wanted to keep it for {him}self"
        '. Then {helper} the {helper_kind} came and asked, "[May I see it|Can I play too|May I hold it]?" '
        '"No," said {hero}, "it is mine." {helper} went away and was sad. Soon {hero} felt [lonely|bored|alone]. It was no fun to be '
        'alone with the {thing}. So {he} went to {helper} and said, "[I am sorry|Please forgive me]. Let us share it." '
        "{helper} smiled, and they played together until the sun went down.",
        "{hero} the {kind} found {a_thing} and did not want to share it. In the end, {hero} shared it with {helper}.",
    ),
    (
        "try",
        "{hero} wanted to {want}. "
        + DAY
        + ", {he} tried for the first time, but it did not work. [The others laughed. |"
        '"It is too hard," {he} said. |]{He} went home and was [sad|tired|angry]. {helper} the {helper_kind} said, '
        '"[Do not give up|Try again|You can do it]. [I will show you how|Nobody can do everything at once|It takes time]." So {hero} tried again the next day, and '
        "the day after. [Every day it went a little better. |Step by step, {he} got better. ]After [a week|a month|many days], {he} did it! "
        "{hero} was [very proud|so happy that {he} danced|as happy as could be], and {helper} was proud too.",
        "{hero} the {kind} wanted to {want}. It was hard, but {hero} did not give up, and in the end it worked.",
    ),
    (
        "truth",
        DAY
        + ", {hero} was playing in the house of {helper} the {helper_kind}. There was {a_thing} on the table. {hero} wanted to look at "
        "it, but it fell down and broke. {hero} was [afraid|very afraid] and ran away. [That night {he} could not sleep. |All day {he} felt bad. ]The next morning, "
        '{he} went to {helper} and said, "[I am sorry|I must tell you something]. I broke the {thing}." {helper} was quiet for a moment. '
        'Then {helper} said, "[Thank you for telling me|I am glad that you told me the truth]. [We can mend it together|It was only a thing|I am not angry]." {hero} felt '
        "[much better|light and happy] again.",
        "{hero} the {kind} broke the {thing} of {helper} and was afraid. {hero} told the truth, and {helper} was not angry.",
    ),
    (
        "kind",
        DAY
        + ", {hero} was walking {scene}. There {he} saw {a_helper_kind} named {helper} who was [cold|hungry|sad|tired]. [The others just walked by. |Nobody "
        'helped. |]"[You look unhappy|Are you all right]," said {hero}. "[Come with me|Come to my house]. I have [warm soup|bread and honey|hot tea and cake] for you." {helper} ate and felt '
        "much better. Some days later, {hero} lost {his} way in [a storm|the fog|the dark]. [{He} called for help. |]Who came? It was {helper}! "
        '"You helped me," said {helper}, "and now I help you." {helper} gave {him} {a_thing} and brought {him} home.',
        "{hero} the {kind} was kind to {helper} the {helper_kind}. Later, {helper} helped {hero} to find the way home.",
    ),
    (
        "brave",
        "Everyone was afraid of the [dark cave|old tower|deep forest|strange house on the hill]. "
        + DAY
        + ", {helper} the {helper_kind} did not come home. "
        '"[Somebody must go and look|We must do something]," said {hero}. {He} was [afraid too|small, and {his} knees were shaking], but {he} took {a_thing} and went. '
        "It was dark and [cold|quiet|still]. Then {he} heard a [soft voice|small cry]. It was {helper}, who had [hurt a foot|fallen into a hole|lost the way]. "
        '"[I am here|Do not be afraid]," said {hero}. {He} helped {helper} up, and slowly they walked home. [Everyone cheered.|There was a big party that night.|'
        "All their friends were waiting for them.]",
        "{helper} the {helper_kind} was lost in a dark place. {hero} the {kind} was brave and brought {helper} home.",
    ),
    (
        "kind",
        DAY
        + ", {hero} went to the market to buy [bread|apples|a cake|some milk]. On the way, {he} met {helper} the {helper_kind}, who had no [money|food|coat]. "
        '"[I have not eaten all day|I am so hungry|I am cold]," said {helper}. {hero} thought for a moment. Then {he} gave {helper} everything {he} had [bought|in the bag]. '
        '"[You are very kind|Thank you with all my heart]," said {helper}. "Please take this {thing}. It was my grandmother\'s." '
        "{hero} took the {thing} home and put it [by the window|next to the bed|on the shelf]. [Every evening it reminded {him} of {helper}.|And every time {he} saw it, {he} smiled.]",
        "{hero} the {kind} gave food to {helper}, who was poor. {helper} thanked {hero} with {a_thing}.",
    ),
    (
        "help",
        "{hero} had a dream: {he} wanted to {want}. But {he} did not know how. "
        + DAY
        + ", {he} asked {helper} the {helper_kind}. "
        '"[I know how|That is easy]," said {helper}, "but first I need your help. I lost my {thing}." So {hero} looked {scene}, and there it was. '
        '{helper} was [glad|very happy]. "Now it is my turn," said {helper}, and showed {hero} everything. [They worked all day.|It took three days.|They laughed a lot.] '
        "In the end, the dream of {hero} came true.",
        "{hero} the {kind} wanted to {want}. {hero} found the {thing} of {helper}, and {helper} helped {hero}.",
    ),
    (
        "brave",
        DAY
        + ", a big storm came. The wind blew, and the rain fell [on the roofs|all night]. {hero} hid [under the bed|in a corner|under a blanket]. Then {he} heard a knock. It was "
        '{helper} the {helper_kind}. "[The water took my {thing}|My {thing} flew away in the wind]," said {helper}, and began to cry. {hero} did not like the storm, but {he} said, "[We will find it together|I will go with you]." '
        "They went out into the rain, hand in hand. They found the {thing} [in a tree|on the bridge|by the fence]. When they came home, they were wet, but they [laughed|were happy], "
        "and they drank hot tea by the fire.",
        "In a storm, {helper} lost the {thing}. {hero} the {kind} was afraid, but went out to help, and they found it.",
    ),
    (
        "truth",
        DAY
        + ', {hero} ate the whole [cake|pot of honey|basket of cherries] that {helper} the {helper_kind} had made for a party. "[Who did this|Where is it]?" asked {helper}. '
        '{hero} wanted to say that it was the wind. But {hero} saw how sad {helper} was. "[It was me|I did it]," said {hero}. "[I am so sorry|I was hungry]. I will make a new one." They went to the kitchen and worked together. '
        "The new one was [even better|twice as big], and {hero} gave {helper} {a_thing} as well.",
        "{hero} the {kind} ate what {helper} had made for a party. {hero} told the truth and made a new one.",
    ),
    (
        "brave",
        DAY
        + ", {hero} had to cross [a deep river|a narrow bridge|a field of snow] to bring {a_thing} to {helper} the {helper_kind}, who was [ill|waiting on the other side|all alone]. "
        '"[I cannot do this|It is too far|I am too small]," thought {hero}. {He} took one step, and then another. [The wind was strong. |It was getting dark. |]{He} did not look back. At last {he} stood at the door of {helper}. '
        '"[You came|You are here]!" cried {helper}. "[I knew that you would|Nobody else dared to come]." They drank warm milk and talked [all night|until morning].',
        "{hero} the {kind} was afraid of the way to {helper}. {hero} went step by step and brought {a_thing}.",
    ),
    (
        "try",
        "Every year there was a [big race|contest|great feast with games] in the land. "
        + DAY
        + ', {hero} said, "This year I want to win it." {helper} the {helper_kind} said, "[Then we must practice|I will help you to train]." '
        "[They got up early every day.|They ran up the hill and down again.|They practiced in sun and rain.] On the day of the contest, {hero} fell down [once|right at the start|two times]. But {he} got up and went on. {He} was not the first, but {he} "
        "[came third|came second|did better than ever], and {he} won {a_thing}. [Everyone clapped.|{helper} was so proud.]",
        "{hero} the {kind} trained for a contest with {helper}. {hero} fell down but went on, and won {a_thing}.",
    ),
    (
        "share",
        "It was winter, and [there was not much to eat|the snow was deep|food was hard to find]. "
        + DAY
        + ", {hero} had only [one piece of bread|three nuts|a small bowl of soup] left. There was a knock at the door. It was {helper} the {helper_kind}. "
        '"[I have nothing to eat|I am so hungry]," said {helper}. {hero} [thought for a moment|smiled] and cut the food in two. "[Half for you, half for me|Come in and eat with me]," said {hero}. They sat by the fire and ate. '
        "In spring, {helper} came back with {a_thing} [and a big basket of food|as a gift] for {hero}.",
        "In winter, {hero} the {kind} shared the last food with {helper}. In spring, {helper} came back with a gift.",
    ),
    (
        "help",
        DAY
        + ', {hero} found an old map. It showed a [treasure|secret garden|golden cave]. But {hero} could not read the words on it. So {he} went to {helper} the {helper_kind}, who could read. "[It is behind the waterfall|It is under the big oak|It is on the small island]," read {helper}. '
        "They walked [all day|for three days] and [sang songs|told each other stories]. When one of them was tired, the other one carried the bag. At last they found it! There was no gold, only {a_thing}. [But they laughed, because the way had been so nice.|But they did not mind.|They were happy all the same.]",
        "{hero} the {kind} and {helper} followed an old map together. They found {a_thing}.",
    ),
)
