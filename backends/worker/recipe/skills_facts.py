"""Questions about the tables of facts, in many wordings."""

from __future__ import annotations

from collections.abc import Callable

from backends.worker.recipe import facts
from backends.worker.recipe.phrases import article, capital, listed, plural
from backends.worker.recipe.talk import Talk

Skill = Callable[[Talk], None]


def capitals(talk: Talk) -> None:
    """Capitals, and sometimes `And of Italy?` after one."""
    country, city, _, _ = talk.rng.choice(facts.COUNTRIES)
    talk.add(
        talk.say("[What is|What's|Tell me|Do you know|Name] the capital [city of|of] {c}?", c=country),
        talk.say(
            "[The capital of {c} is {x}.|{x} is the capital of {c}.|It is {x}.|The capital of {c} is {x}.]",
            c=country,
            x=city,
        ),
        short=city,
        expect=city,
    )
    while talk.rng.random() < 0.3:
        country, city, _, _ = talk.rng.choice(facts.COUNTRIES)
        talk.add(
            talk.say("[And of|And|What about|How about] {c}?", c=country),
            talk.say("[The capital of {c} is {x}.|That is {x}.]", c=country, x=city),
            short=city,
            expect=city,
        )


def countries(talk: Talk) -> None:
    """Where a country or a city is, and what is spoken there."""
    country, city, continent, language = talk.rng.choice(facts.COUNTRIES)
    big = capital(country)
    question, answer, short = talk.rng.choice(
        (
            (
                "[Which country is {x} the capital of?|{x} is the capital of which country?]",
                "{x} is the capital of {c}.",
                country,
            ),
            (
                "[In which country is {x}?|Where is {x}?|Where is the city of {x}?|What country is {x} in?]",
                "{x} is in {c}.",
                country,
            ),
            ("[Where is {c}?|On which continent is {c}?|What continent is {c} in?]", "{b} is in {k}.", continent),
            (
                "[What language do people speak in {c}?|Which language is spoken in {c}?|What do they speak in {c}?]",
                "[In {c}, people speak {l}.|People in {c} speak {l}.]",
                language,
            ),
            (
                "[Tell me about {c}.|What do you know about {c}?|Describe {c}.]",
                "{b} is a country in {k}. Its capital is {x}. The people there speak {l}.",
                None,
            ),
            (
                "[Tell me about {x}.|What do you know about {x}?|What is {x}?]",
                "{x} is the capital of {c}, a country in {k}.",
                country,
            ),
        )
    )
    slots = {"c": country, "b": big, "x": city, "k": continent, "l": language}
    talk.add(
        talk.say(question, **slots), talk.say(answer, **slots), short=short and capital(short), expect=short or city
    )


def animals(talk: Talk) -> None:
    """One thing about an animal."""
    name, kind, legs, baby, home, food, sound, fact = talk.rng.choice(facts.ANIMALS)
    slots = {
        "a": article(name),
        "A": capital(article(name)),
        "n": name,
        "k": article(kind),
        "legs": legs,
        "baby": article(baby),
        "home": home,
        "food": food,
        "sound": sound,
        "fact": fact,
        "s": plural(name)
        if name not in ("sheep", "deer", "mouse", "goose", "wolf", "salmon", "goldfish")
        else {"mouse": "mice", "goose": "geese", "wolf": "wolves"}.get(name, name),
    }
    choices = [
        (
            "[How many legs does {a} have?|How many legs has {a}?|How many legs do {s} have?]",
            "{A} has {legs} legs.",
            legs,
        ),
        (
            "[What is a baby {n} called?|What do you call a baby {n}?|What is the name for a young {n}?]",
            "A baby {n} is called {baby}.",
            baby,
        ),
        ("[Where does {a} live?|Where do {s} live?|What is the home of {a}?]", "{A} lives in {home}.", home),
        ("[What does {a} eat?|What do {s} eat?|What is the food of {a}?]", "{A} eats {food}.", food),
        ("[What kind of animal is {a}?|What type of animal is {a}?|What is {a}?]", "{A} is {k}.", kind),
        (
            "[Tell me something about {s}.|Tell me a fact about {s}.|What do you know about {s}?|Give me a fact about {s}.]",
            "{fact}",
            None,
        ),
        (
            "[Tell me about {s}.|Describe {a}.|Tell me about the {n}.|Write a few sentences about {s}.]",
            "{A} is {k}. It lives in {home} and eats {food}. {fact} A baby {n} is called {baby}.",
            None,
        ),
    ]
    if sound != "-":
        choices += [
            (
                "[What sound does {a} make?|What noise does {a} make?|What do {s} do: bark, moo or something else?|Which sound does {a} make?]",
                "[{A} can {sound}.|{A} makes this sound: {sound}.|{s_} {sound}.]",
                sound,
            ),
        ] * 2
    slots["s_"] = capital(slots["s"])
    question, answer, short = talk.rng.choice(choices)
    talk.add(
        talk.say(question, **slots),
        talk.say(answer, **slots),
        short=short and capital(short) + ".",
        expect=short.split()[-1] if short else fact,
    )


def foods(talk: Talk) -> None:
    """Colour, kind and taste of foods."""
    name, kind, colour, taste = talk.rng.choice(facts.FOODS)
    countless = kind in ("drink", "dairy food", "grain", "sweet", "food made from grain") or name == "broccoli"
    thing = name if countless or name == "spinach" else article(name)
    slots = {"f": thing, "F": capital(thing), "k": article(kind), "c": colour, "t": taste}
    question, answer, short = talk.rng.choice(
        (
            (
                "[What colour is {f}?|What color is {f}?|Which colour does {f} have?|What is the colour of {f}?]",
                "{F} is {c}.",
                colour,
            ),
            ("[How does {f} taste?|What does {f} taste like?]", "{F} tastes {t}.", taste),
            ("[What is {f}?|What kind of food is {f}?|Is {f} a fruit or something else?]", "{F} is {k}.", kind),
            ("[Tell me about {f}.|Describe {f}.]", "{F} is {k}. It is {c} and tastes {t}.", None),
        )
    )
    talk.add(
        talk.say(question, **slots),
        talk.say(answer, **slots),
        short=short and capital(short) + ".",
        expect=short or colour,
    )


def things(talk: Talk) -> None:
    """What things are made of and used for."""
    name, made, use, place = talk.rng.choice(facts.THINGS)
    many = name == "scissors"
    slots = {
        "t": name if many or name == "soap" else article(name),
        "is": "are" if many else "is",
        "m": made,
        "u": use,
        "p": place,
    }
    slots["T"] = capital(slots["t"])
    question, answer, expect = talk.rng.choice(
        (
            (
                "[What {is} {t} made of?|Which material {is} {t} made of?|From what {is} {t} made?]",
                "{T} {is} made of {m}.",
                made,
            ),
            (
                "[What {is} {t} for?|What {is} {t} used for?|What can you do with {t}?|Why do people use {t}?|What do you do with {t}?]",
                "[You use {t} to {u}.|{T} {is} used to {u}.|With {t} you can {u}.]",
                use,
            ),
            ("[Where do you find {t}?|Where can I find {t}?]", "[You can find {t} here: {p}.|Look here: {p}.]", place),
            (
                "[What {is} {t}?|Tell me about {t}.]",
                "{T} {is} made of {m}. You use it to {u}." if not many else "{T} are made of {m}. You use them to {u}.",
                use,
            ),
        )
    )
    talk.add(talk.say(question, **slots), talk.say(answer, **slots), short=capital(expect) + ".", expect=expect)


def jobs(talk: Talk) -> None:
    """What people do at work and where."""
    job, place, does = talk.rng.choice(facts.JOBS)
    slots = {"j": article(job), "J": capital(article(job)), "p": place, "d": does}
    question, answer, expect = talk.rng.choice(
        (
            (
                "[What does {j} do?|What is the job of {j}?|What is {j}?|What do you call the work of {j}?]",
                "{J} {d}.",
                does,
            ),
            ("[Who {d}?|Which person {d}?|What is the name of a person who {d}?]", "{J} {d}.", job),
            (
                "[Where does {j} work?|Where do you find {j}?]",
                "[{J} works here: {p}.|The place of work is {p}.]",
                place,
            ),
        )
    )
    talk.add(talk.say(question, **slots), talk.say(answer, **slots), short=capital(expect) + ".", expect=expect)


def language(talk: Talk) -> None:
    """Opposites, plurals, past tense, meanings, rhymes of grammar."""
    which = talk.rng.randrange(5)
    if which <= 1:
        one, other = talk.rng.choice(facts.OPPOSITES)
        if talk.rng.random() < 0.4 and one not in ("right", "old", "light", "short"):
            one, other = other, one
        if one in ("right", "old", "light", "short"):
            return opposite_follow_up(talk)
        talk.add(
            talk.say(
                "[What is the opposite of {q}{o}{q}?|What's the opposite of {o}?|Tell me the opposite of {q}{o}{q}.|The opposite of {o}?|"
                "Which word means the opposite of {o}?|Give me the opposite of the word {o}.]",
                o=one,
                q=talk.rng.choice(("", '"')),
            ),
            talk.say("[The opposite of {o} is {x}.|It is {x}.|The opposite of {o} is {x}.]", o=one, x=other),
            short=capital(other) + ".",
            expect=other,
        )
        return None
    if which == 2:
        one, many = talk.rng.choice(facts.PLURALS)
        talk.add(
            talk.say(
                "[What is the plural of {q}{o}{q}?|What's the plural of {o}?|One {o}, two ...?|How do you say more than one {o}?|Give me the plural of {o}.]",
                o=one,
                q=talk.rng.choice(("", '"')),
            ),
            talk.say("[The plural of {o} is {x}.|One {o}, two {x}.|It is {x}.]", o=one, x=many),
            short=capital(many) + ".",
            expect=many,
        )
        return None
    if which == 3:
        verb, past = talk.rng.choice(facts.PAST)
        talk.add(
            talk.say(
                "[What is the past tense of {q}{o}{q}?|What is the past of {o}?|Today I {o}, yesterday I ...?|Give me the past tense of {o}.]",
                o=verb,
                q=talk.rng.choice(("", '"')),
            ),
            talk.say("[The past tense of {o} is {x}.|Today I {o}, yesterday I {x}.]", o=verb, x=past),
            short=capital(past) + ".",
            expect=past,
        )
        return None
    word, meaning = talk.rng.choice(facts.MEANINGS)
    talk.add(
        talk.say(
            "[What does {q}{w}{q} mean?|What is the meaning of {q}{w}{q}?|Explain the word {q}{w}{q}.|What does the word {w} mean?|Define {w}.]",
            w=word,
            q=talk.rng.choice(("", '"')),
        ),
        talk.say('["{w}" means {m}.|The word "{w}" means: {m}.|"{W}" means {m}.]', w=word, W=capital(word), m=meaning),
        expect=meaning,
    )
    return None


def opposite_follow_up(talk: Talk) -> None:
    """Two opposites in a row."""
    pairs = [pair for pair in facts.OPPOSITES if pair[0] not in ("right", "old", "light", "short")]
    (one, other), (two, another) = talk.rng.sample(pairs, 2)
    talk.add(
        talk.say("What is the opposite of {o}?", o=one),
        f"The opposite of {one} is {other}.",
        short=capital(other) + ".",
        expect=other,
    )
    talk.add(
        talk.say("[And of {o}?|And the opposite of {o}?|And {o}?]", o=two),
        f"The opposite of {two} is {another}.",
        short=capital(another) + ".",
        expect=another,
    )


def calendar(talk: Talk) -> None:
    """Days, months and seasons."""
    rng = talk.rng
    which = rng.randrange(5)
    if which == 0:
        i, step = rng.randrange(7), rng.choice((1, -1))
        day, other = facts.DAYS[i], facts.DAYS[(i + step) % 7]
        question = (
            "[What day comes after {d}?|Which day is after {d}?|What is the day after {d}?|Today is {d}. What day is tomorrow?]"
            if step == 1
            else "[What day comes before {d}?|Which day is before {d}?|What is the day before {d}?|Today is {d}. What day was yesterday?]"
        )
        word = "after" if step == 1 else "before"
        talk.add(
            talk.say(question, d=day),
            talk.say("[{x} comes {w} {d}.|The day {w} {d} is {x}.]", x=other, w=word, d=day),
            short=other + ".",
            expect=other,
        )
    elif which == 1:
        i, step = rng.randrange(12), rng.choice((1, -1))
        month, other = facts.MONTHS[i], facts.MONTHS[(i + step) % 12]
        word = "after" if step == 1 else "before"
        talk.add(
            talk.say("[What month comes {w} {m}?|Which month is {w} {m}?|What is the month {w} {m}?]", w=word, m=month),
            talk.say("[{x} comes {w} {m}.|The month {w} {m} is {x}.]", x=other, w=word, m=month),
            short=other + ".",
            expect=other,
        )
    elif which == 2:
        i = rng.randrange(12)
        talk.add(
            talk.say("[How many days does {m} have?|How many days are in {m}?|How long is {m}?]", m=facts.MONTHS[i]),
            f"{facts.MONTHS[i]} has {facts.MONTH_DAYS[i]} days.",
            short=f"{facts.MONTH_DAYS[i]}.",
            expect=str(facts.MONTH_DAYS[i]),
        )
    elif which == 3:
        i = rng.randrange(12)
        kind, of, all_of = rng.choice((("month", "year", facts.MONTHS), ("day", "week", facts.DAYS)))
        i %= len(all_of)
        talk.add(
            talk.say("[What is|Which is|Name] the {o} {k} of the {f}?", o=facts.ORDINALS[i], k=kind, f=of),
            f"The {facts.ORDINALS[i]} {kind} of the {of} is {all_of[i]}.",
            short=all_of[i] + ".",
            expect=all_of[i],
        )
    else:
        name, items = rng.choice(
            (
                ("days of the week", facts.DAYS),
                ("months of the year", facts.MONTHS),
                ("seasons", facts.SEASONS),
                ("planets", facts.PLANETS),
            )
        )
        talk.add(
            talk.say("[What are the {n}?|List the {n}.|Name the {n}.|Tell me the {n}.|Can you name all {n}?]", n=name),
            f"The {name} are {listed(items)}.",
            expect=items[-1],
        )


def arithmetic(talk: Talk) -> None:
    """Small sums; most below twenty."""
    rng = talk.rng
    kind = rng.randrange(8)
    top = 10 if rng.random() < 0.7 else 20
    if kind <= 2:
        a, b, sign, spoken = rng.randint(0, top), rng.randint(0, top), "+", "[plus|and]"
        result = a + b
    elif kind <= 4:
        a = rng.randint(0, top)
        b = rng.randint(0, a)
        result, sign, spoken = a - b, "-", "[minus|take away]"
    elif kind <= 6:
        a, b, sign, spoken = rng.randint(0, 10), rng.randint(0, 10), "*", "times"
        result = a * b
    else:
        a, b = rng.randint(0, 30), rng.randint(0, 30)
        word, result = rng.choice((("larger", max(a, b)), ("smaller", min(a, b))))
        if a != b:
            talk.add(
                talk.say(
                    "[Which number is {w}, {a} or {b}?|Which is {w}: {a} or {b}?|What is the {w} number, {a} or {b}?]",
                    w=word,
                    a=a,
                    b=b,
                ),
                f"{result} is {word}.",
                short=f"{result}.",
                expect=str(result),
            )
        return
    if rng.random() < 0.2:
        name, thing = (
            rng.choice(facts.NAMES),
            rng.choice(("apples", "books", "coins", "balls", "eggs", "cakes", "pens", "stones")),
        )
        if sign == "+":
            talk.add(
                talk.say(
                    "{n} has {a} {t} and [gets|finds|buys] {b} more. How many {t} does {n} have[ now|]?",
                    n=name,
                    a=a,
                    b=b,
                    t=thing,
                ),
                f"{name} has {a} + {b} = {result} {thing}.",
                short=f"{result}.",
                expect=str(result),
            )
            return
        if sign == "-":
            talk.add(
                talk.say(
                    "{n} has {a} {t} and [gives away|loses|sells] {b}. How many {t} does {n} have [now|left]?",
                    n=name,
                    a=a,
                    b=b,
                    t=thing,
                ),
                f"{name} has {a} - {b} = {result} {thing}.",
                short=f"{result}.",
                expect=str(result),
            )
            return
    style = rng.random()
    if style < 0.6:
        question = talk.say("[What is|What's|How much is|Calculate|Compute|] {a} {s} {b}?", a=a, s=sign, b=b).strip()
    elif style < 0.8 or max(a, b) > 20:
        question = talk.say("[What is|How much is] {a} " + spoken + " {b}?", a=a, b=b)
    else:
        question = talk.say("[What is|How much is] {a} " + spoken + " {b}?", a=facts.NUMBERS[a], b=facts.NUMBERS[b])
    talk.add(question, f"{a} {sign} {b} = {result}" + rng.choice((".", "")), short=f"{result}.", expect=str(result))


def counting(talk: Talk) -> None:
    """Counting, the alphabet, first letters and spelling."""
    rng = talk.rng
    kind = rng.randrange(7)
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    if kind == 0:
        last = rng.randint(3, 20)
        talk.add(
            talk.say("[Count to {n}.|Count from 1 to {n}.|Can you count to {n}?|Please count up to {n}.]", n=last),
            ", ".join(map(str, range(1, last + 1))) + ".",
            expect=str(last),
        )
    elif kind == 1:
        first = rng.randint(3, 12)
        talk.add(
            talk.say("[Count down from {n}.|Count backwards from {n}.]", n=first),
            ", ".join(map(str, range(first, 0, -1))) + ".",
            expect="2, 1",
        )
    elif kind == 2:
        i, step = rng.randrange(1, 25), rng.choice((1, -1))
        word = "after" if step == 1 else "before"
        talk.add(
            talk.say("[What letter comes {w} {l}?|Which letter is {w} {l} in the alphabet?]", w=word, l=letters[i]),
            f"The letter {letters[i + step]} comes {word} {letters[i]}.",
            short=letters[i + step] + ".",
            expect=letters[i + step],
            exact=True,
        )
    elif kind == 3:
        talk.add(talk.say("[Say|Tell me|Write|What is] the alphabet."), " ".join(letters), expect="X Y Z")
    elif kind == 4:
        word = rng.choice([name for name, *_ in facts.ANIMALS + facts.THINGS + facts.FOODS])
        which, letter = rng.choice((("first", word[0]), ("last", word[-1])))
        talk.add(
            talk.say(
                '[What is the {w} letter of "{x}"?|What is the {w} letter of the word {x}?|Which letter is the {w} one in {x}?]',
                w=which,
                x=word,
            ),
            f'The {which} letter of "{word}" is {letter.upper()}.',
            short=letter.upper() + ".",
            expect=f"{letter.upper()}",
        )
    elif kind == 5:
        word = rng.choice([name for name, *_ in facts.ANIMALS + facts.THINGS + facts.FOODS])
        talk.add(
            talk.say('[How do you spell "{x}"?|Spell the word {x}.|Spell {x}.]', x=word),
            "-".join(word.upper().replace(" ", "")) + ".",
            expect="-".join(word.upper().replace(" ", "")),
        )
    else:
        number, step = rng.randint(1, 99), rng.choice((1, -1))
        word = "after" if step == 1 else "before"
        talk.add(
            talk.say("[What number comes {w} {n}?|Which number is {w} {n}?]", w=word, n=number),
            f"{number + step} comes {word} {number}.",
            short=f"{number + step}.",
            expect=str(number + step),
        )


def colours(talk: Talk) -> None:
    """Colours of things and what comes of mixing."""
    if talk.rng.random() < 0.4:
        one, other, result = talk.rng.choice(facts.MIXES)
        if talk.rng.random() < 0.5:
            one, other = other, one
        talk.add(
            talk.say(
                "[What do you get when you mix {a} and {b}?|Which colour do {a} and {b} make?|What colour do you get from {a} and {b}?|Mix {a} and {b}. What colour is it?]",
                a=one,
                b=other,
            ),
            talk.say(
                "[{A} and {b} make {r}.|You get {r}.|If you mix {a} and {b}, you get {r}.]",
                A=capital(one),
                a=one,
                b=other,
                r=result,
            ),
            short=capital(result) + ".",
            expect=result,
        )
        return
    thing, colour = talk.rng.choice(facts.COLOURED)
    talk.add(
        talk.say("[What colour is {t}?|What color is {t}?|Which colour has {t}?|What is the colour of {t}?]", t=thing),
        f"{capital(thing)} is {colour}.",
        short=capital(colour) + ".",
        expect=colour,
    )


def science(talk: Talk) -> None:
    """The table of questions about the world."""
    questions, answer, short = talk.rng.choice(facts.SCIENCE)
    question = talk.rng.choice(questions.split("|"))
    if talk.rng.random() < 0.1:
        question = talk.say("[Can you explain this: |I want to know: |My child asks: ]{q}", q=question)
    talk.add(question, answer, short=short, expect=answer.split(".")[0][-20:])


def yes_or_no(talk: Talk) -> None:
    """Questions whose answer begins with yes or no."""
    rng = talk.rng
    truth = rng.random() < 0.5
    kind = rng.randrange(4)
    if kind == 0:
        country, city, _, _ = rng.choice(facts.COUNTRIES)
        other = city if truth else rng.choice([row[1] for row in facts.COUNTRIES if row[1] != city])
        question = f"Is {other} the capital of {country}?"
        answer = f"Yes, {city} is the capital of {country}." if truth else f"No, the capital of {country} is {city}."
    elif kind == 1:
        name, animal_kind, *_ = rng.choice(facts.ANIMALS)
        other = (
            animal_kind
            if truth
            else rng.choice([k for k in ("mammal", "bird", "fish", "insect", "reptile") if k != animal_kind])
        )
        question = f"Is {article(name)} {article(other)}?"
        answer = (
            f"Yes, {article(name)} is {article(animal_kind)}."
            if truth
            else f"No, {article(name)} is {article(animal_kind)}."
        )
    elif kind == 2:
        name, made, *_ = rng.choice(
            [row for row in facts.THINGS if row[0] != "scissors" and "and" not in row[1] and "or" not in row[1].split()]
        )
        other = (
            made
            if truth
            else rng.choice([m for m in ("wood", "glass", "paper", "metal", "wool", "stone") if m != made])
        )
        question = f"Is {article(name)} made of {other}?"
        answer = f"Yes, {article(name)} is made of {made}." if truth else f"No, {article(name)} is made of {made}."
    else:
        a, b = rng.randint(0, 20), rng.randint(0, 20)
        truth = a > b
        question = talk.say("Is {a} [larger|bigger|more] than {b}?", a=a, b=b)
        answer = (
            f"Yes, {a} is larger than {b}."
            if truth
            else (f"No, {a} is smaller than {b}." if a < b else "No, they are the same.")
        )
    talk.add(question, answer, short="Yes." if truth else "No.", expect="Yes" if truth else "No")


SKILLS: dict[str, tuple[Skill, float]] = {
    "capitals": (capitals, 3),
    "countries": (countries, 2),
    "animals": (animals, 4),
    "foods": (foods, 2),
    "things": (things, 3),
    "jobs": (jobs, 2),
    "language": (language, 4),
    "calendar": (calendar, 2.5),
    "arithmetic": (arithmetic, 5),
    "counting": (counting, 2),
    "colours": (colours, 1.5),
    "science": (science, 4),
    "yes or no": (yes_or_no, 2),
}
