"""Work on texts: stories, summaries, facts hidden in long passages, lists, repeating, a shop's handbook."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from backends.worker.recipe import facts, stories
from backends.worker.recipe.phrases import article, capital, listed, plural
from backends.worker.recipe.talk import Talk

Skill = Callable[[Talk], None]

GREETINGS = {
    "hello": ("bonjour", "hola", "hallo", "ciao"),
    "goodbye": ("au revoir", "adios", "auf Wiedersehen", "arrivederci"),
    "thank you": ("merci", "gracias", "danke", "grazie"),
    "please": ("s'il vous plait", "por favor", "bitte", "per favore"),
    "yes": ("oui", "si", "ja", "si"),
    "no": ("non", "no", "nein", "no"),
    "water": ("eau", "agua", "Wasser", "acqua"),
    "bread": ("pain", "pan", "Brot", "pane"),
    "dog": ("chien", "perro", "Hund", "cane"),
    "cat": ("chat", "gato", "Katze", "gatto"),
    "house": ("maison", "casa", "Haus", "casa"),
    "book": ("livre", "libro", "Buch", "libro"),
    "sun": ("soleil", "sol", "Sonne", "sole"),
    "moon": ("lune", "luna", "Mond", "luna"),
    "tree": ("arbre", "arbol", "Baum", "albero"),
    "friend": ("ami", "amigo", "Freund", "amico"),
    "milk": ("lait", "leche", "Milch", "latte"),
    "red": ("rouge", "rojo", "rot", "rosso"),
    "one": ("un", "uno", "eins", "uno"),
    "good morning": ("bonjour", "buenos dias", "guten Morgen", "buongiorno"),
}
TONGUES = ("French", "Spanish", "German", "Italian")


def story(talk: Talk) -> None:
    """A story on request, and questions about it."""
    rng = talk.rng
    about, name, thing = None, None, None
    draw = rng.random()
    if draw < 0.3:
        ask = talk.say(
            "[Tell me a story.|Please tell me a story.|Can you tell me a short story?|Write a short story.|Tell me a bedtime story.|I want to hear a story.|Write a story for my child.|Tell me another story.]"
        )
    elif draw < 0.7:
        about = rng.choice(stories.HEROES)
        ask = talk.say(
            "[Tell me a story about {a}.|Write a short story about {a}.|Can you tell me a story about {a}?|A story about {a}, please.|Make up a story about {a}.]",
            a=article(about),
        )
    elif draw < 0.85:
        about, name = rng.choice(stories.HEROES), rng.choice(facts.NAMES)
        ask = talk.say(
            "[Tell me a story about {a} named {n}.|Write a story about {a} called {n}.]", a=article(about), n=name
        )
    else:
        about, thing = rng.choice(stories.HEROES), rng.choice(stories.OBJECTS)
        ask = talk.say(
            "[Tell me a story about {a} and {t}.|Write a story with {a} and {t}.]", a=article(about), t=article(thing)
        )
    told = stories.tell(rng, about=about, name=name, thing=thing)
    one_word, talk.style.one_word = talk.style.one_word, False
    talk.add(ask, told.text, expect=name or about)
    talk.style.one_word = one_word
    while rng.random() < 0.45:
        _story_question(talk, told)


def _story_question(talk: Talk, told: stories.Story, text: str = "") -> None:
    question, answer, short = talk.rng.choice(
        (
            (
                "[What is the name of the {k}?|Who is the story about?|What is the {k} called?|Who is the hero of the story?]",
                "The {k} is called {h}.",
                told.hero,
            ),
            ("[Where does {h} live?|Where did {h} live?]", "{h} lives {p}.", told.place),
            (
                "[Can you sum up the story?|Summarize the story.|What is the story about?|Tell me the story in short.|Give me a summary.]",
                "{s}",
                None,
            ),
            (
                "[What did {h} learn?|What is the lesson of the story?|What can we learn from the story?]",
                "{h} learned that {l}.",
                None,
            ),
            (
                "[Give the story a title.|What is a good title for the story?|What could be the title?]",
                '"{t}"',
                told.title(),
            ),
            ("[What kind of animal or person is {h}?|Who is {h}?|What is {h}?]", "{h} is {a}.", told.kind),
            ("[Who is the other one in the story?|Who did {h} meet?|Name the friend of {h}.]", "{o}.", told.helper),
        )
    )
    slots = {
        "k": told.kind,
        "h": told.hero,
        "p": told.place,
        "s": told.summary,
        "l": told.lesson,
        "t": told.title(),
        "a": article(told.kind),
        "o": told.helper,
    }
    ask = talk.say(question, **slots)
    talk.add(
        f"{text}\n\n{ask}" if text else ask,
        talk.say(answer, **slots),
        short=short and short + ".",
        expect=short or told.hero,
        exact=bool(text),
    )


def given_story(talk: Talk) -> None:
    """A story that the user gives, and a question about it."""
    told = stories.tell(talk.rng)
    _story_question(
        talk,
        told,
        talk.say("[Read this story:|Here is a story:|This is a text:|Text:|Please read this.]\n\n") + told.text,
    )
    while talk.rng.random() < 0.5:
        _story_question(talk, told)


def notes(rng: Random, count: int) -> tuple[list[str], list[tuple[str, str, str]]]:
    """`count` sentences that each hide a fact, and for each a question, its answer and the word it must have."""
    names = rng.sample(facts.NAMES, k=min(count, len(facts.NAMES)))
    sentences, questions = [], []
    for name in names:
        kind = rng.randrange(7)
        number = str(rng.randint(100, 9999))
        thing, city, place = rng.choice(facts.THINGS)[0], rng.choice(facts.CITIES), rng.choice(stories.SCENES)
        colour, day, job, food = (
            rng.choice(facts.COLOURS),
            rng.choice(facts.DAYS),
            rng.choice(facts.JOBS)[0],
            rng.choice(facts.DISHES),
        )
        sentence, question, answer, expect = (
            (
                f"The secret number of {name} is {number}.",
                f"What is the secret number of {name}?",
                f"The secret number of {name} is {number}.",
                number,
            ),
            (f"{name} lives in {city}.", f"Where does {name} live?", f"{name} lives in {city}.", city),
            (
                f"{name} hid the {thing} {place}.",
                f"Where did {name} hide the {thing}?",
                f"{name} hid the {thing} {place}.",
                place,
            ),
            (
                f"The favourite colour of {name} is {colour}.",
                f"What is the favourite colour of {name}?",
                f"The favourite colour of {name} is {colour}.",
                colour,
            ),
            (
                f"{name} works as {article(job)}.",
                f"What is the job of {name}?",
                f"{name} works as {article(job)}.",
                job,
            ),
            (f"{name} likes to eat {food}.", f"What does {name} like to eat?", f"{name} likes to eat {food}.", food),
            (f"{name} will come on {day}.", f"When will {name} come?", f"{name} will come on {day}.", day),
        )[kind]
        sentences.append(sentence)
        questions.append((question, answer, expect))
    return sentences, questions


def notes_question(talk: Talk) -> None:
    """Some notes and questions about them."""
    rng = talk.rng
    sentences, questions = notes(rng, rng.randint(2, 6))
    question, answer, expect = rng.choice(questions)
    talk.add(
        talk.say(
            "[Here are some notes:|Read this:|Notes:|This is what I know.|Remember this:] {s}\n[|\n]{q}",
            s=" ".join(sentences),
            q=question,
        ),
        answer,
        short=capital(expect) + ".",
        expect=expect,
        exact=True,
    )
    while rng.random() < 0.5:
        question, answer, expect = rng.choice(questions)
        talk.add(question, answer, short=capital(expect) + ".", expect=expect, exact=True)


def passage(rng: Random, characters: int) -> tuple[str, list[tuple[str, str, str]]]:
    """A long text of stories and facts with notes hidden in it; questions, answers and words as `notes` gives them."""
    sentences, questions = notes(rng, max(2, min(characters // 500, 16)))
    parts: list[str] = []
    length = 0
    while length < characters:
        draw = rng.random()
        if draw < 0.6:
            part = stories.tell(rng).text
        elif draw < 0.8:
            part = " ".join(rng.choice(facts.SCIENCE)[1] for _ in range(3))
        else:
            part = " ".join(rng.choice(facts.ANIMALS)[7] for _ in range(4))
        parts.append(part)
        length += len(part)
    places = sorted(rng.randint(0, len(parts)) for _ in sentences)
    for place, sentence in sorted(zip(places, sentences, strict=True), reverse=True):
        parts.insert(place, sentence)
    return rng.choice(("\n\n", "\n", " ")).join(parts), questions


def long_text(talk: Talk, characters: int) -> None:
    """A long passage, and questions about what is hidden in it."""
    rng = talk.rng
    text, questions = passage(rng, characters)
    question, answer, expect = rng.choice(questions)
    talk.add(
        talk.say("[Read this text:|Here is a long text.|Text:|Please read:]\n\n") + text + "\n\n" + question,
        answer,
        short=capital(expect) + ".",
        expect=expect,
        exact=True,
    )
    while rng.random() < 0.75:
        question, answer, expect = rng.choice(questions)
        talk.add(question, answer, short=capital(expect) + ".", expect=expect, exact=True)


def handbook(rng: Random, items: int) -> tuple[str, list[tuple[str, str, str]]]:
    """The system prompt of a shop's assistant, and questions that it answers."""
    shop = f"{rng.choice(('Blue', 'Golden', 'Green', 'Happy', 'Little', 'Old', 'Sunny', 'Silver', 'Red', 'White'))} {rng.choice(('Lion', 'Star', 'Garden', 'Corner', 'Moon', 'Bridge', 'Apple', 'Owl', 'Rose', 'Boat'))}"
    kind = rng.choice(
        (
            "bakery",
            "bookshop",
            "restaurant",
            "toy shop",
            "flower shop",
            "hotel",
            "garage",
            "library",
            "museum",
            "tea house",
        )
    )
    owner, city, bot = rng.choice(facts.NAMES), rng.choice(facts.CITIES), rng.choice(facts.NAMES)
    opens, closes, closed = rng.randint(6, 11), rng.randint(16, 22), rng.choice(facts.DAYS)
    phone, days = f"{rng.randint(100, 999)} {rng.randint(1000, 9999)}", rng.choice((7, 10, 14, 20, 30))
    prices = {thing[0]: rng.randint(1, 99) for thing in rng.sample(facts.THINGS + facts.FOODS, k=items)}
    lines = [
        (
            f"We are open from {opens} to {closes} o'clock.",
            [
                (
                    "[When do you open?|When are you open?|What are your opening hours?|At what time do you open?]",
                    f"We are open from {opens} to {closes} o'clock.",
                    str(opens),
                ),
                ("[When do you close?|Until when are you open?]", f"We close at {closes} o'clock.", str(closes)),
            ],
        ),
        (
            f"We are closed on {closed}.",
            [
                (
                    "[On which day are you closed?|When are you closed?|Which day is your day off?]",
                    f"We are closed on {closed}.",
                    closed,
                )
            ],
        ),
        (
            f"The owner is {owner}.",
            [
                (
                    "[Who is the owner?|Who owns the {k}?|What is the name of the owner?]".replace("{k}", kind),
                    f"The owner is {owner}.",
                    owner,
                )
            ],
        ),
        (
            f"The {kind} is in {city}.",
            [
                (
                    "[Where are you?|Where is the {k}?|In which city are you?]".replace("{k}", kind),
                    f"The {kind} is in {city}.",
                    city,
                )
            ],
        ),
        (
            f"The phone number is {phone}.",
            [
                (
                    "[What is your phone number?|How can I call you?|Which number can I call?]",
                    f"The phone number is {phone}.",
                    phone,
                )
            ],
        ),
        (
            f"Things can be brought back within {days} days.",
            [
                (
                    "[Can I bring things back?|How long can I bring something back?|What is the return policy?]",
                    f"Yes, things can be brought back within {days} days.",
                    str(days),
                )
            ],
        ),
    ]
    rng.shuffle(lines)
    lines = lines[: rng.randint(3, 6)]
    questions = [entry for _, entries in lines for entry in entries]
    questions += [
        (
            f"[How much is the {t}?|What does the {t} cost?|What is the price of the {t}?|How much does the {t} cost?]",
            f"The {t} costs {p} euros.",
            str(p),
        )
        for t, p in prices.items()
    ]
    questions.append(("[What is your name?|Who are you?]", f"I am {bot}, the assistant of the {kind} {shop}.", bot))
    questions.append(
        (
            "[What is the name of the {k}?|What is this place called?]".replace("{k}", kind),
            f"The {kind} is called {shop}.",
            shop,
        )
    )
    price_list = "\n".join(f"- {t}: {p} euros" for t, p in prices.items())
    text = f"You are {bot}, the assistant of the {kind} {shop}. {' '.join(line for line, _ in lines)}"
    if prices:
        text += f"\n\n{rng.choice(('Prices:', 'Our prices:', 'Price list:'))}\n{price_list}"
    if rng.random() < 0.5:
        text += "\n\nAnswer in a friendly way and in short sentences."
    return text, questions


def ask_handbook(talk: Talk, questions: list[tuple[str, str, str]]) -> None:
    """A question that the system prompt answers."""
    question, answer, expect = talk.rng.choice(questions)
    talk.add(talk.say(question), answer, short=capital(expect) + ".", expect=expect)


def lists(talk: Talk) -> None:
    """Name three of a kind; questions about a list that the user gives."""
    rng = talk.rng
    if rng.random() < 0.45:
        pools = {
            "animals": [r[0] for r in facts.ANIMALS],
            "fruits": [r[0] for r in facts.FOODS if r[1] == "fruit"],
            "vegetables": [r[0] for r in facts.FOODS if r[1] == "vegetable"],
            "colours": facts.COLOURS,
            "jobs": [r[0] for r in facts.JOBS],
            "countries": [r[0] for r in facts.COUNTRIES],
            "cities": facts.CITIES,
            "birds": [r[0] for r in facts.ANIMALS if r[1] == "bird"],
            "insects": ["bee", "ant", "butterfly", "fly", "beetle"],
            "names": facts.NAMES,
            "hobbies": facts.HOBBIES,
            "things in a kitchen": [r[0] for r in facts.THINGS if r[3] == "the kitchen"],
            "farm animals": [r[0] for r in facts.ANIMALS if r[4] == "a farm"],
            "planets": facts.PLANETS,
            "dishes": facts.DISHES,
            "wild animals": ["lion", "tiger", "bear", "wolf", "fox", "elephant", "zebra"],
            "European countries": [r[0] for r in facts.COUNTRIES if r[2] == "Europe"],
            "Asian countries": [r[0] for r in facts.COUNTRIES if r[2] == "Asia"],
        }
        kind = rng.choice(list(pools))
        count = rng.randint(2, 5)
        items = rng.sample(pools[kind], k=count)
        form = rng.randrange(4)
        ask = talk.say(
            "[Name|List|Tell me|Give me|Can you name|Write down] {c} {k}.",
            c=rng.choice((str(count), facts.NUMBERS[count])),
            k=kind,
        )
        if form == 0:
            ask, answer = ask[:-1] + " as a list.", "\n".join(f"- {item}" for item in items)
        elif form == 1:
            ask, answer = (
                ask[:-1] + rng.choice((" as a numbered list.", " with numbers.")),
                "\n".join(f"{i}. {item}" for i, item in enumerate(items, 1)),
            )
        else:
            answer = capital(listed(items)) + "."
        talk.add(ask, answer)  # many answers are right
        return
    items = rng.sample([r[0] for r in facts.THINGS + facts.FOODS + facts.ANIMALS], k=rng.randint(3, 7))
    text = ", ".join(items)
    i = rng.randrange(min(len(items), 5))
    options = [
        (
            f"What is the {facts.ORDINALS[i]} [word|thing|item] [in|on] this list: {text}?",
            f"The {facts.ORDINALS[i]} one is {items[i]}.",
            items[i],
        ),
        (f"What is the last [word|thing|item] in this list: {text}?", f"The last one is {items[-1]}.", items[-1]),
        (
            f"How many [words|things|items] are in this list: {text}?",
            f"There are {facts.NUMBERS[len(items)]}.",
            facts.NUMBERS[len(items)],
        ),
        (
            f"[Write this list backwards|Turn this list around|Reverse this list]: {text}.",
            ", ".join(reversed(items)) + ".",
            items[0] + ".",
        ),
        (
            f"[Write this as a list with dashes|Make a list of this|Turn this into a list]: {text}.",
            "\n".join(f"- {item}" for item in items),
            items[-1],
        ),
        (f"[Repeat this list|Copy this list|Say this list again]: {text}.", text + ".", text),
    ]
    question, answer, expect = rng.choice(options)
    talk.add(
        talk.say(question),
        capital(answer) if answer[0] != "-" else answer,
        short=capital(expect.rstrip(".")) + "." if len(expect) < 20 else None,
        expect=expect.rstrip("."),
        exact=True,
    )


def repeat(talk: Talk) -> None:
    """Say something again, exactly."""
    rng = talk.rng
    kind = rng.randrange(6)
    if kind == 0:
        text = capital(" ".join(rng.choice(stories.tell(rng).text.split(". ")).split()[:14])).rstrip(".,\"'!?") + "."
    elif kind == 1:
        text = " ".join(str(rng.randint(0, 99)) for _ in range(rng.randint(2, 8)))
    elif kind == 2:
        text = rng.choice(facts.SCIENCE)[1]
    elif kind == 3:
        text = "".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(rng.randint(3, 9)))
    elif kind == 5:
        # Long ones teach to copy; all that is recalled later rests on it.
        pool = (
            [r[0] for r in facts.THINGS + facts.ANIMALS] + facts.NAMES + facts.CITIES + stories.TRAITS + facts.COLOURS
        )
        text = " ".join(rng.sample(pool, k=rng.randint(8, 28)))
    else:
        text = " ".join(
            rng.choice([r[0] for r in facts.THINGS + facts.ANIMALS + facts.FOODS + facts.MEANINGS])
            for _ in range(rng.randint(2, 8))
        )
    talk.add(
        talk.say(
            "[Repeat after me|Repeat this|Say this|Please repeat|Say|Copy this text|Write exactly this]: {t}", t=text
        ),
        text,
        expect=text,
        exact=True,
    )


def grammar(talk: Talk) -> None:
    """A sentence turned into the past, into a question, into its opposite, or said more politely."""
    rng = talk.rng
    present, past, thing = facts.act(rng)
    name = rng.choice(facts.NAMES)
    kind = rng.randrange(6)
    if kind == 0:
        talk.add(
            talk.say(
                '[Put this in the past tense|Write this in the past tense|Change to past tense]: "I {v} {t}."',
                v=present,
                t=thing,
            ),
            f"I {past} {thing}.",
            expect=past,
            exact=True,
        )
    elif kind == 1:
        talk.add(
            talk.say(
                '[Make this a question|Turn this into a question|Write this as a question]: "You {v} {t}."',
                v=present,
                t=thing,
            ),
            f"Do you {present} {thing}?",
            expect="Do you",
            exact=True,
        )
    elif kind == 2:
        talk.add(
            talk.say('[Make this negative|Say the opposite|Write this with "not"]: "I {v} {t}."', v=present, t=thing),
            f"I do not {present} {thing}.",
            expect="not",
            exact=True,
        )
    elif kind == 3:
        talk.add(
            talk.say(
                '[Make this polite|Say this politely|Make this sentence more polite]: "{V} {t}!"',
                V=capital(present),
                t=thing,
            ),
            f"Could you please {present} {thing}?",
            expect="please",
            exact=True,
        )
    elif kind == 4:
        talk.add(
            talk.say(
                '[Who did it|Who is the sentence about|Find the name]: "Yesterday, {n} {p} {t}."',
                n=name,
                p=past,
                t=thing,
            ),
            f"{name}.",
            expect=name,
            exact=True,
        )
    else:
        talk.add(
            talk.say('[Put {n} in place of "I"|Say this about {n}]: "I {p} {t}."', n=name, p=past, t=thing),
            f"{name} {past} {thing}.",
            expect=f"{name} {past}",
            exact=True,
        )


def sentence(talk: Talk) -> None:
    """A sentence with a given word, a description, a small poem."""
    rng = talk.rng
    kind = rng.randrange(4)
    if kind == 0:
        animal = rng.choice(facts.ANIMALS)
        name = rng.choice(facts.NAMES)
        trait, scene = rng.choice(stories.TRAITS), rng.choice(stories.SCENES)
        talk.add(
            talk.say('[Write|Make|Give me] a sentence with [the word |]"{w}".', w=animal[0]),
            talk.say(
                "[{n} saw a {t} {w} {s}.|The {t} {w} sat {s}.|Yesterday, a {t} {w} was {s}.]",
                n=name,
                t=trait,
                w=animal[0],
                s=scene,
            ),
            expect=animal[0],
        )
    elif kind == 1:
        thing = rng.choice(facts.THINGS)[0]
        talk.add(
            talk.say('[Write|Make|Give me] a sentence with [the word |]"{w}".', w=thing),
            talk.say(
                "[{n} put the {w} {s}.|I found the {w} {s}.|The {w} of {n} is {c}.]",
                n=rng.choice(facts.NAMES),
                w=thing,
                s=rng.choice(stories.SCENES),
                c=rng.choice(facts.COLOURS),
            ),
            expect=thing,
        )
    elif kind == 2:
        tongue = rng.randrange(4)
        word = rng.choice(list(GREETINGS))
        talk.add(
            talk.say(
                "[How do you say {q}{w}{q} in {t}?|What is {q}{w}{q} in {t}?|Translate {q}{w}{q} into {t}.|Say {q}{w}{q} in {t}.]",
                w=word,
                t=TONGUES[tongue],
                q='"',
            ),
            f'"{capital(word)}" in {TONGUES[tongue]} is "{GREETINGS[word][tongue]}".',
            short=capital(GREETINGS[word][tongue]) + ".",
            expect=GREETINGS[word][tongue],
        )
    else:
        subject, poem = rng.choice(
            (
                (
                    "the sea",
                    "The sea is wide, the sea is blue,\nit sings a quiet song to you.\nThe waves come in, the waves go out,\nand little fishes swim about.",
                ),
                (
                    "the night",
                    "The moon is up, the day is gone,\nthe stars come out now one by one.\nThe town is still, the wind is low,\nand off to sleep we gently go.",
                ),
                (
                    "spring",
                    "The snow is gone, the grass is green,\nthe finest flowers can be seen.\nThe birds are back, they sing all day,\nand children run outside to play.",
                ),
                (
                    "a cat",
                    "My little cat lies in the sun,\nshe does not walk, she does not run.\nShe dreams of mice and milk and cream,\nand softly purrs within her dream.",
                ),
                (
                    "rain",
                    "The rain falls down on roof and tree,\nit falls on you, it falls on me.\nIt fills the river and the lake,\nand keeps the sleepy frogs awake.",
                ),
                (
                    "a friend",
                    "A friend is someone who is near\nwhen you have trouble, pain or fear.\nA friend will laugh, a friend will stay,\nand make a light of every day.",
                ),
            )
        )
        talk.add(
            talk.say(
                "[Write a poem about {s}.|Tell me a poem about {s}.|Can you write a short poem about {s}?]", s=subject
            )
            if rng.random() < 0.7
            else talk.say("[Write a poem.|Tell me a poem.|Can you write a short poem?]"),
            poem,
            expect=poem.split("\n")[0],
        )


def classify(talk: Talk) -> None:
    """Which does not belong; which class a thing is in; is a text happy or sad."""
    rng = talk.rng
    animals, foods, jobs = ([r[0] for r in table] for table in (facts.ANIMALS, facts.FOODS, facts.JOBS))
    groups = {
        "animal": animals,
        "food": foods,
        "job": jobs,
        "colour": facts.COLOURS[:10],
        "country": [r[0] for r in facts.COUNTRIES],
    }
    kind, other = rng.sample(list(groups), k=2)
    if rng.random() < 0.4:
        items = rng.sample(groups[kind], k=3)
        odd = rng.choice([item for item in groups[other] if item != "orange"])
        items.insert(rng.randrange(4), odd)
        talk.add(
            talk.say(
                "[Which one does not belong|Which word does not fit|Find the odd one out]: {l}?", l=", ".join(items)
            ),
            f"{capital(odd)} does not belong, because the others are {plural(kind)}.",
            short=capital(odd) + ".",
            expect=odd,
        )
    elif rng.random() < 0.6:
        item = rng.choice([item for item in groups[kind] if item != "orange"])
        a, b = rng.sample((kind, other), k=2)
        talk.add(
            talk.say(
                "[Is {i} {a} or {b}?|What is {i}: {a} or {b}?]",
                i=item if kind in ("country", "colour") else article(item),
                a=article(a),
                b=article(b),
            ),
            f"{capital(item) if kind in ('country', 'colour') else capital(article(item))} is {article(kind)}.",
            short=capital(kind) + ".",
            expect=kind,
        )
    else:
        mood, text = rng.choice(
            (
                (
                    "happy",
                    "[I love this place.|What a wonderful day!|The food was great, and the people were kind.|I got a gift from my friend.|We won the game!|My best friend came to visit me.]",
                ),
                (
                    "sad",
                    "[I lost my dog.|Nobody came to my party.|The food was cold and bad.|It rained all day, and I was alone.|I broke my favourite cup.|My friend moved away.]",
                ),
            )
        )
        talk.add(
            talk.say(
                '[Is this text happy or sad|Is this happy or sad|Tell me the mood, happy or sad]: "{t}"',
                t=talk.say(text),
            ),
            talk.say("[The text is {m}.|It is {m}.|This is {m}.]", m=mood),
            short=capital(mood) + ".",
            expect=mood,
        )


SKILLS: dict[str, tuple[Skill, float]] = {
    "stories": (story, 5),
    "given stories": (given_story, 2.5),
    "notes": (notes_question, 5),
    "lists": (lists, 5),
    "repeating": (repeat, 7),
    "grammar": (grammar, 2),
    "sentences": (sentence, 2.5),
    "classes": (classify, 2),
}
