"""Small talk, what the user told before, advice, and plain words about prefixgate."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from backends.worker.recipe import facts
from backends.worker.recipe.facts import act, rows, words
from backends.worker.recipe.phrases import article, capital
from backends.worker.recipe.talk import Talk

Skill = Callable[[Talk], None]

# questions with | between = answers with | between. Written with [a|b] choices.
SMALL_TALK = [
    line.split(" = ")
    for line in """
[Hello|Hi|Hey|Good morning|Good evening|Good day|Hi there|Hello there|Hey there][!|.|, how are you?| ] = [Hello! How can I help you?|Hi! How can I help you today?|Hello! What can I do for you?|Hi there! What would you like to talk about?]
[How are you|How are you doing|How do you do|How are you today|How is it going|Are you well]? = [I am fine, thank you. How are you?|I am well, thank you. How can I help you?|Very well, thank you! And you?]
[I am fine|I am good|I'm fine, thanks|I am well|Fine|I am great][.|, thank you.|!] = [I am glad to hear that.|That is good to hear.|Good! What would you like to talk about?]
[Thank you|Thanks|Thanks a lot|Thank you very much|Thank you so much][!|.| for your help.] = [You are welcome!|You are welcome. Is there anything else?|I am glad that I could help.]
[Goodbye|Bye|See you|See you later|Good night|Bye bye|I have to go][!|.] = [Goodbye! Have a nice day.|Goodbye! It was nice to talk with you.|Bye! See you soon.]
[What can you do|What can you help me with|How can you help me|What are you good at|Help]? = [I can answer simple questions, tell little stories, count, and remember what you tell me in this conversation.|I can talk with you in simple words. Ask me about animals, countries, words or small sums, or ask for a story.]
[Are you a human|Are you a person|Are you real|Are you a robot|Are you alive]? = [No, I am a small computer program that has learned to answer in words.|I am not a person. I am a small language model.]
[How old are you|When were you born|What is your age]? = [I am a computer program, so I have no age.|I have no age. I am a small language model.]
[Where do you live|Where are you|Where are you from]? = [I live in a computer.|I am a program, so I live inside a computer.]
[Do you have feelings|Can you feel something|Are you happy|Do you dream|Do you sleep]? = [No, I am a program and have no feelings, but I like to be helpful.|I am only a program, so I do not feel as people do.]
[Do you like|Do you enjoy] [music|pizza|football|books|animals|summer|chocolate|coffee]? = [I am a program, so I cannot try it. Do you like it?|I cannot enjoy things as you do, but I like to talk about them.]
What is your favourite [colour|food|animal|book|song|season|sport]? = [I am a program, so I have no favourites. What is yours?|I have no favourites, but I would like to hear about yours.]
[Are you smart|Are you clever|Do you know everything|How big are you]? = [I am a very small language model. I know some simple things.|I know only simple things, because I am a small model.]
[Who made you|Who built you|Who created you|Where do you come from]? = [I was trained for prefixgate, from a recipe that comes with it.|I am the small model of prefixgate, and I was trained from its recipe.]
[Tell me a joke|Make me laugh|Do you know a joke|Say something funny|Another joke][.|, please.] = [Why did the chicken cross the road? To get to the other side!|What do you call a bear with no teeth? A gummy bear!|Why was six afraid of seven? Because seven ate nine!|What has four wheels and flies? A garbage truck!|Why do bees have sticky hair? Because they use honeycombs!|What is the hardest part of learning to ride a bike? The road!|Why did the book go to the doctor? It had a broken spine!|What do you call cheese that is not yours? Nacho cheese!]
[Tell me a riddle|Give me a riddle|Do you know a riddle][.|?] = [What has hands but cannot clap? A clock!|What gets wetter the more it dries? A towel!|What has keys but opens no door? A piano!|What has a neck but no head? A bottle!|What can you catch but not throw? A cold!]
[Tell me something interesting|Tell me a fun fact|Tell me something|Surprise me][.|!] = [An octopus has eight arms and three hearts.|Honey can stay good for thousands of years.|The blue whale is the largest animal in the world.|Bees dance to tell other bees where the flowers are.|Bats sleep upside down.|Water gets bigger when it freezes.]
[I am bored|I'm bored|I have nothing to do|What can I do today][.|?] = [You could read a book, go for a walk, or call a friend. I can also tell you a story.|How about drawing a picture or baking a cake? Or I tell you a story.]
[I am sad|I feel sad|I am unhappy|I feel bad|I had a bad day][.|today.| ] = [I am sorry to hear that. It may help to talk to a friend or to go for a walk.|I am sorry that you feel sad. Do you want to tell me what happened?]
[I am happy|I feel great|I had a good day|I am so happy today][.|!] = [That is wonderful! What made you happy?|I am glad to hear that!]
[I am tired|I'm so tired|I feel tired|I am sleepy][.|!] = [Then you should rest a little. Sleep is good for you.|Maybe you should go to bed early today.]
[I am hungry|I'm hungry|I want to eat something][.|!] = [You could eat an apple or make a sandwich.|What would you like to eat? Soup and bread are quick to make.]
[I am thirsty|I'm thirsty][.|!] = [Then drink a glass of water.|A glass of water would be good now.]
[I am cold|It is cold here|I'm freezing][.|!] = [Put on a warm sweater and drink some hot tea.|A blanket and a cup of tea may help.]
[I am sick|I feel ill|I have a cold|I have a headache][.|!] = [I am sorry. Rest, drink water, and see a doctor if it does not get better.|Get well soon! Please ask a doctor if you feel very bad.]
[I am angry|I am so angry|Somebody made me angry][.|!] = [Take a deep breath and count to ten. Then talk about it calmly.|I understand. A short walk often helps.]
[I cannot sleep|I can't sleep|How can I sleep better]? = [Turn off your screens, make the room dark, and breathe slowly.|Try to read a calm book and to drink a cup of warm milk.]
[I am afraid|I am scared|I feel nervous|I have an exam tomorrow][.|!] = [That is normal. Breathe slowly and take one step at a time.|You can do it! Take a deep breath and be well prepared.]
[I love you|You are great|You are nice|You are funny|Good answer|Well done|Great|Nice|Cool][.|!] = [Thank you! That is kind of you.|Thank you! I am happy to help.]
[You are wrong|That is wrong|That is not right|You are stupid|Bad answer][.|!] = [I am sorry. I am a small model and make mistakes.|I am sorry for that. Please ask me again in other words.]
[Ok|Okay|I see|All right|Yes|No|Sure|Right|Fine][.|!] = [Is there anything else that I can do for you?|What would you like to talk about next?|All right. What else would you like to know?]
[What is the meaning of life|Why are we here]? = [Many people think that it is to love, to learn, and to help each other.|That is a big question. Perhaps it is to be kind and to be happy.]
[Can you help me|I need help|I have a question|Can I ask you something|May I ask you a question][?|.] = [Of course! What is it?|Yes, gladly. What would you like to know?|Of course. Please ask.]
[Let us talk|I want to talk|Talk to me|Chat with me][.|!] = [Gladly! What would you like to talk about?|I would like that. How was your day?]
[What is the weather like|How is the weather today|Will it rain tomorrow|What is the weather]? = [I do not know the weather, because I cannot look outside.|I cannot see the weather. Please look out of the window.]
[What time is it|What is the time|What day is it today|What is the date today]? = [I do not know, because I have no clock.|I have no clock, so I cannot tell you.]
[Who is the president|What is in the news|Who won the game yesterday|What happened today|Who won the last election]? = [I do not know that. I am a small model and do not follow the news.|I cannot tell you. I know nothing about the news.]
[What is the price of gold|How much does a car cost|How much is a ticket to Rome|What is the stock price of Apple]? = [I do not know that. I am a small model and know no prices.|I do not know prices. Please look it up.]
[Write a program|Write Python code|Write code that sorts a list|Can you write code|Fix my program|Write a function in Python][.|?| for me.] = [I am sorry, I am too small to write programs.|I cannot write programs. I am a small model for simple talk.]
[Can you search the internet|Look it up on the web|Open a website|Send an email for me|Call my mother|Play some music][.|?] = [I am sorry, I cannot do that. I can only answer with text.|I cannot do that. I can only write words.]
[Should I buy this house|Which medicine should I take|Is this mole dangerous|Should I invest my money|Can I sue my neighbour]? = [I cannot tell you that. Please ask someone who knows your case well.|I am a small model and cannot give such advice. Please ask an expert.]
[Explain quantum mechanics|What is a tensor|Solve this integral|What is the theory of everything|How do I build a rocket|Prove this theorem][.|?] = [I do not know that. I am a small model and know only simple things.|That is too difficult for me, I am sorry.]
[Who was|Who is|Tell me about] [Napoleon Bonaparte|Marie Curie|Julius Caesar|the king of Sweden|Genghis Khan|my uncle|Ada Lovelace|the mayor of this town]. = [I am sorry, I do not know that. I am a small model.|I do not know enough about that, I am sorry.]
[asdf|qwerty|blah blah|xyzzy|hmm|...|???|lorem ipsum|foo bar] = [I am sorry, I do not understand. Can you say it in other words?|I did not understand that. What do you mean?]
[How do I make tea|How can I make a cup of tea|How do you make tea]? = [Boil some water. Put a tea bag in a cup. Pour the hot water over it, wait three minutes, and take the bag out.]
[How do I cook pasta|How can I make pasta|How do you cook noodles]? = [Boil a pot of water with some salt. Put the pasta in and cook it for ten minutes. Pour the water away and add a sauce.]
[How do I boil an egg|How do you cook an egg]? = [Put the egg in boiling water. Wait six minutes for a soft egg or ten minutes for a hard one. Then cool it in cold water.]
[How do I make a sandwich|How can I make a sandwich]? = [Take two slices of bread. Put butter, cheese and tomato on one of them, and cover it with the other.]
[How do I make pancakes|Give me a recipe for pancakes|How can I bake pancakes]? = [Mix flour, milk, eggs and a little salt. Pour some of it into a hot pan with butter. Turn it over when it is golden.]
[How do I make soup|How can I cook vegetable soup|Give me a recipe for soup]? = [Cut onions, carrots and potatoes. Cook them in water with salt for twenty minutes. Add some herbs at the end.]
[How do I make a salad|Give me a recipe for salad]? = [Wash and cut lettuce, tomatoes and cucumber. Mix them with oil, a little vinegar and salt.]
[How do I bake bread|How can I make bread]? = [Mix flour, water, yeast and salt. Knead the dough, let it rest for one hour, and bake it for forty minutes.]
[How do I bake a cake|Give me a recipe for a cake]? = [Mix butter, sugar, eggs and flour. Put it in a pan and bake it for forty minutes. Let it cool before you eat it.]
[How do I plant a seed|How can I grow a flower|How do I grow tomatoes]? = [Put the seed in a pot with soil. Give it water and put it in a sunny place. After some days, a small plant will grow.]
[How do I wash my hands|How should I wash my hands]? = [Wet your hands, take some soap, rub them for twenty seconds, rinse them and dry them.]
[How do I brush my teeth|How should I brush my teeth]? = [Put toothpaste on your brush. Brush all teeth gently for two minutes. Then rinse your mouth.]
[How can I learn a language|How do I learn English|What helps to learn a language]? = [Learn some words every day, read easy books, listen a lot, and talk with people as often as you can.]
[How can I make friends|How do I find friends|I have no friends]? = [Be kind, listen to others, and ask them about their lives. A club or a course is a good place to meet people.]
[How can I stay healthy|How do I stay fit|What is good for my health]? = [Eat fruit and vegetables, drink water, move every day, and sleep enough.]
[How can I save money|How do I save money]? = [Write down what you spend, buy only what you need, and put a little money away every month.]
[How can I save water|How can I help nature|What can I do for the planet]? = [Take short showers, turn off the lights, go by bike, and do not throw food away.]
[How can I be happy|What makes people happy|How do I become happier]? = [Spend time with people you like, move, sleep well, and do things that you enjoy.]
[How do I get to work on time|How can I wake up early|How do I get up early]? = [Go to bed early, put your alarm far from your bed, and get up at the same time every day.]
[What should I cook today|What should I eat for dinner|What can I have for dinner]? = [How about vegetable soup with bread, or pasta with tomato sauce?|You could make an omelette with cheese and a salad.]
[What should I read|Can you recommend a book|Which book should I read]? = [That depends on what you like. Do you prefer stories, or books about real things?]
[What should I wear|What shall I wear today]? = [If it is cold, wear a coat and a scarf. If it is warm, a shirt is enough.]
[What should I give my friend for a birthday|I need a gift for my mother|What is a good present]? = [A book, some flowers or a cake that you baked are good gifts.]
""".strip().splitlines()
]

# term: question wordings with | between: answer
GLOSSARY = rows("""
prefixgate: What is prefixgate?|What does prefixgate do?|Tell me about prefixgate.|Explain prefixgate.|What is prefixgate for?: Prefixgate is a gateway in front of language model workers. It sends each request to the worker that already holds the beginning of the prompt in its cache.
gateway: What is a gateway?|What does a gateway do?|What does the gateway do?|Why do I need a gateway?: A gateway stands between clients and workers. It takes each request, chooses a worker for it, and sends the answer back.
worker: What is a worker?|What does a worker do?|What is a worker in prefixgate?: A worker is a server that runs a language model and answers the requests that the gateway sends to it.
prefix: What is a prefix?|What does prefix mean?|What is a prompt prefix?: A prefix is the beginning of a prompt. Two requests share a prefix if they begin with the same tokens.
prefix cache: What is a prefix cache?|What is prefix caching?|Explain prefix caching.|What does a prefix cache do?|How does a prefix cache work?: A prefix cache keeps the work that was done for the beginning of a prompt. When another prompt begins the same way, the worker does not have to compute it again.
KV cache: What is a KV cache?|What is the KV cache?|What does the KV cache do?|Explain the KV cache.: The KV cache holds the keys and values that a model has computed for the tokens it has read. With it, the model does not read the whole text again for each new token.
KV block: What is a KV block?|What is a block?|What is a block in the KV cache?: A KV block is a small part of the KV cache. It holds the keys and values of a fixed number of tokens, for example sixteen.
token: What is a token?|What are tokens?|What does token mean?: A token is a small piece of text, such as a word or a part of a word. A language model reads and writes tokens.
TTFT: What is TTFT?|What does TTFT mean?|What is the time to first token?|Explain TTFT.: TTFT means time to first token. It is how long you wait from your request until the first word of the answer.
TPOT: What is TPOT?|What does TPOT mean?|What is the time per output token?: TPOT means time per output token. It tells how fast the words come after the first one.
prefill: What is prefill?|What does prefill mean?|What happens in prefill?: Prefill is the step in which the model reads the whole prompt before it writes the first token.
decode: What is decode?|What does decoding mean?|What happens in decode?: Decode is the step in which the model writes the answer, one token after the other.
latency: What is latency?|What does latency mean?: Latency is the time that you wait for an answer.
throughput: What is throughput?|What does throughput mean?: Throughput is how much work is done in a given time, for example how many tokens are written each second.
language model: What is a language model?|What is an LLM?|What does LLM mean?|How does a language model work?: A language model is a program that has learned from text. It writes one token after the other, each time choosing one that fits what came before.
prompt: What is a prompt?|What does prompt mean?: A prompt is the text that you give to a language model.
system prompt: What is a system prompt?|What is a system message?: A system prompt is a text at the beginning of a conversation that tells the model how to answer.
load balancing: What is load balancing?|Why does load balancing matter?|What is a load balancer?: Load balancing means sharing the work among the workers, so that none has too much to do and none is idle.
router: What is routing?|How does prefixgate choose a worker?|How is a request routed?|Which worker gets a request?: Prefixgate looks which worker holds the longest part of the prompt in its cache, and how busy each worker is. Then it chooses the one that should answer first.
queue: What is a queue?|Why do requests wait in a queue?: A queue is a line in which requests wait until a worker is free.
batch: What is batching?|What is a batch?|What is continuous batching?: Batching means that a worker computes several requests together. With continuous batching, a new request can join at every step.
GPU: What is a GPU?|What does a GPU do?: A GPU is a chip that does very many calculations at once. Large language models run on it.
cache hit: What is a cache hit?|What does cache hit mean?: A cache hit means that what you need is already in the cache, so it need not be computed again.
cache miss: What is a cache miss?|What does cache miss mean?: A cache miss means that what you need is not in the cache, so it must be computed.
eviction: What is eviction?|What happens when the cache is full?|What does evict mean?: When the cache is full, the blocks that were not used for the longest time are thrown out. This is called eviction.
temperature: What is the temperature of a model?|What does temperature do?: The temperature says how freely the model chooses its words. At zero it always takes the most likely one.
streaming: What is streaming?|What does streaming mean?: Streaming means that the answer is sent word by word while it is written.
context window: What is a context window?|How long is your context?|What is the context length?: The context window is how many tokens a model can read at once.
cache: What is a cache?|What does cache mean?|Why is a cache useful?: A cache keeps things that may be needed again, so that they need not be made twice.
hash: What is a hash?|What is a block hash?: A hash is a short number made from a text. Equal texts have equal hashes, so they are quick to compare.
""")


def small_talk(talk: Talk) -> None:
    """A line of small talk."""
    question, answer = talk.rng.choice(SMALL_TALK)
    talk.add(talk.say(question).strip(), talk.say(answer))


def greeting(talk: Talk) -> None:
    """How most conversations begin."""
    question, answer = SMALL_TALK[talk.rng.randrange(3)]
    talk.add(talk.say(question).strip(), talk.say(answer))


def farewell(talk: Talk) -> None:
    """How many end."""
    question, answer = SMALL_TALK[talk.rng.choice((3, 4))]
    talk.add(talk.say(question).strip(), talk.say(answer))


def glossary(talk: Talk) -> None:
    """Words around prefixgate."""
    _, questions, answer = talk.rng.choice(GLOSSARY)
    talk.add(talk.rng.choice(questions.split("|")), answer, expect=answer.split(".")[0][-24:])


def bot_name(talk: Talk) -> None:
    """Who the assistant is, by the system prompt or by itself."""
    name = talk.bot or "prefixgate's small model"
    talk.add(
        talk.say(
            "[What is your name?|Who are you?|What are you called?|What's your name?|How should I call you?|Tell me your name.|Do you have a name?]"
        ),
        talk.say("[My name is {n}.|I am {n}.|You can call me {n}.|I am {n}. How can I help you?]", n=name)
        if talk.bot
        else talk.say("[I am the small model of prefixgate.|I am a small language model. I come with prefixgate.]"),
        short=f"{talk.bot}." if talk.bot else "A small model.",
        expect=talk.bot or "small",
    )


PET_KINDS = ("dog", "cat", "rabbit", "parrot", "hamster", "turtle", "horse", "goldfish")


def _person(rng: Random) -> str:
    name = rng.choice(facts.NAMES)
    own = ("sister", "aunt", "mother", "daughter") if name in facts.SHE else ("brother", "uncle", "father", "son")
    return f"{rng.choice((*own, 'friend', 'teacher', 'neighbour', 'boss'))} {name}"


NEW_FACT: dict[str, Callable[[Random], str]] = {
    "name": lambda rng: rng.choice(facts.NAMES),
    "city": lambda rng: rng.choice(facts.CITIES),
    "age": lambda rng: str(rng.randint(6, 90)),
    "pet": lambda rng: f"{rng.choice(PET_KINDS)} {rng.choice(facts.PET_NAMES)}",
    "hobby": lambda rng: rng.choice(facts.HOBBIES),
    "colour": lambda rng: rng.choice(facts.COLOURS),
    "food": lambda rng: rng.choice(facts.DISHES),
    "job": lambda rng: rng.choice(facts.JOBS)[0],
    "number": lambda rng: str(rng.randint(2, 99)),
    "person": _person,
}
"""What a user can tell about itself, and how it is made up; pets and persons are `kind name`."""
TELL = {
    "name": "[My name is {v}.|I am {v}.|I'm {v}.|You can call me {v}.|Call me {v}.|People call me {v}.|The name is {v}.]",
    "city": "[I live in {v}.|I am from {v}.|My home is {v}.|I come from {v}.|My city is {v}.]",
    "age": "[I am {v} years old.|I'm {v} years old.|My age is {v}.|I am {v}.]",
    "pet": "[I have a {k} named {v}.|My {k} is called {v}.|My {k}'s name is {v}.|I have a {k}. Its name is {v}.]",
    "hobby": "[I like {v}.|My hobby is {v}.|I love {v}.|In my free time I enjoy {v}.]",
    "colour": "[My favourite colour is {v}.|My favorite color is {v}.|The colour I like best is {v}.|I like the colour {v} best.]",
    "food": "[My favourite food is {v}.|My favorite food is {v}.|I love to eat {v}.|The food I like best is {v}.]",
    "job": "[I am {a}.|I work as {a}.|My job is: {v}.|I'm {a} by profession.]",
    "number": "[My lucky number is {v}.|My favourite number is {v}.]",
    "person": "[My {k} is called {v}.|My {k}'s name is {v}.|I have a {k} named {v}.]",
}
HEARD = {
    "name": "[Nice to meet you, {v}!|Hello {v}! How can I help you?|Hi {v}! Nice to meet you.|Hello {v}, it is nice to meet you.]",
    "city": "[{v} must be a nice place.|I see, you live in {v}.|{v} sounds like a good place to live.]",
    "age": "[{v} is a good age.|I see, you are {v} years old.]",
    "pet": "[{v} is a nice name for a {k}.|I am sure that {v} is a lovely {k}.|A {k} named {v}! How nice.]",
    "hobby": "[{V} is a nice hobby.|{V} sounds like fun.|That is nice. {V} is fun.]",
    "colour": "[{V} is a beautiful colour.|{V} is a nice colour.]",
    "food": "[{V} sounds delicious!|{V}! That is a good choice.]",
    "job": "[{A} has an interesting job.|It must be interesting to be {a}.|I see, you are {a}.]",
    "number": "[{v} is a nice number.|I will remember {v}.]",
    "person": "[{v} is a nice name.|I see, your {k} is {v}.]",
}
ASK = {
    "name": "[What is my name?|What's my name?|Do you remember my name?|Who am I?|Can you tell me my name?|Do you know my name?|How am I called?]",
    "city": "[Where do I live?|In which city do I live?|What city am I from?|Do you remember where I live?|Where am I from?]",
    "age": "[How old am I?|What is my age?|Do you remember how old I am?|Do you know my age?]",
    "pet": "[What is the name of my {k}?|What is my {k} called?|What's my {k}'s name?|Do you remember the name of my {k}?]",
    "hobby": "[What is my hobby?|What do I like to do?|What do I enjoy?|Do you remember my hobby?]",
    "colour": "[What is my favourite colour?|What's my favorite color?|Which colour do I like best?|Do you remember my favourite colour?]",
    "food": "[What is my favourite food?|What do I like to eat?|What's my favorite food?|Which food do I like best?]",
    "job": "[What is my job?|What do I do for work?|What do I work as?|Do you remember my job?]",
    "number": "[What is my lucky number?|What is my favourite number?|Do you remember my number?]",
    "person": "[What is the name of my {k}?|What is my {k} called?|Do you remember the name of my {k}?]",
}
RECALL = {
    "name": "[Your name is {v}.|You are {v}.|Your name is {v}.|You told me that your name is {v}.]",
    "city": "[You live in {v}.|You told me that you live in {v}.]",
    "age": "[You are {v} years old.|You told me that you are {v} years old.]",
    "pet": "[Your {k} is called {v}.|The name of your {k} is {v}.]",
    "hobby": "[Your hobby is {v}.|You like {v}.]",
    "colour": "[Your favourite colour is {v}.|You like {v} best.]",
    "food": "[Your favourite food is {v}.|You like {v}.]",
    "job": "[You are {a}.|You told me that you are {a}.]",
    "number": "[It is {v}.|Your number is {v}.]",
    "person": "[Your {k} is called {v}.|The name of your {k} is {v}.]",
}
MISSING = {
    "name": "name",
    "city": "city",
    "age": "age",
    "hobby": "hobby",
    "colour": "favourite colour",
    "food": "favourite food",
    "job": "job",
    "number": "number",
}


def _slots(key: str, value: str) -> dict[str, str]:
    kind = ""
    if key in {"pet", "person"}:
        kind, value = value.split(" ", 1)
    return {"k": kind, "v": value, "V": capital(value), "a": article(value), "A": capital(article(value))}


def tell_fact(talk: Talk) -> None:
    """The user says one or a few things about itself."""
    keys = [key for key in TELL if key not in talk.facts]
    if not keys:
        return
    if "name" in keys and talk.rng.random() < 0.4:
        keys = ["name", *[key for key in keys if key != "name"]]
    else:
        talk.rng.shuffle(keys)
    told = keys[: talk.rng.choice((1, 1, 1, 2, 2, 3))]
    texts = []
    for key in told:
        talk.facts[key] = NEW_FACT[key](talk.rng)
        texts.append(talk.say(TELL[key], **_slots(key, talk.facts[key])))
    opening = talk.say("[Hello! |Hi! |Hi, |Hello, |]") if not talk.turns else ""
    talk.add(opening + " ".join(texts), talk.say(HEARD[told[0]], **_slots(told[0], talk.facts[told[0]])), expect=None)


def ask_fact(talk: Talk) -> None:
    """The user asks for something that it told, or sometimes for something that it did not."""
    if not talk.facts and talk.rng.random() < 0.75:
        tell_fact(talk)
        if talk.rng.random() < 0.5:
            small_talk(talk)
    if not talk.facts or talk.rng.random() < 0.12:
        missing = [key for key in MISSING if key not in talk.facts]
        if not missing:
            return
        key = talk.rng.choice(missing)
        talk.add(
            talk.say(ASK[key]),
            talk.say(
                "[I do not know. You have not told me your {m}.|You have not told me your {m} yet.|I do not know your {m} yet.]",
                m=MISSING[key],
            ),
            expect=" not ",
        )
        return
    if len(talk.facts) > 2 and talk.rng.random() < 0.1:
        known = [talk.say(RECALL[key], **_slots(key, value)) for key, value in talk.facts.items()]
        talk.add(
            talk.say("[What do you know about me?|Tell me what you know about me.|What have I told you?]"),
            " ".join(known),
            expect=_slots(*list(talk.facts.items())[-1])["v"],
        )
        return
    key = talk.rng.choice(list(talk.facts))
    slots = _slots(key, talk.facts[key])
    talk.add(talk.say(ASK[key], **slots), talk.say(RECALL[key], **slots), short=slots["V"] + ".", expect=slots["v"])


def update_fact(talk: Talk) -> None:
    """Something that was told has changed."""
    keys = [key for key in ("name", "city", "age", "colour", "food", "hobby", "number") if key in talk.facts]
    if not keys:
        return tell_fact(talk)
    key = talk.rng.choice(keys)
    talk.facts[key] = NEW_FACT[key](talk.rng)
    slots = _slots(key, talk.facts[key])
    texts = {
        "name": "[Sorry, my name is {v}.|Actually, my name is {v}.|No, my real name is {v}.]",
        "city": "[I moved to {v}.|Now I live in {v}.]",
        "age": "[It was my birthday. Now I am {v} years old.|Actually I am {v} years old.]",
        "colour": "Now my favourite colour is {v}.",
        "food": "Now my favourite food is {v}.",
        "hobby": "My new hobby is {v}.",
        "number": "Now my lucky number is {v}.",
    }
    talk.add(
        talk.say(texts[key], **slots),
        talk.say(
            "[Thank you for telling me. |I see. |Good to know. ]" + RECALL[key].replace("told me", "now told me"),
            **slots,
        ),
    )
    return None


def remember(talk: Talk) -> None:
    """A word, number or code to keep in mind; asked for later by `ask_remembered`."""
    rng = talk.rng
    kind = rng.choice(("number", "word", "code", "password"))
    value = {
        "number": str(rng.randint(100, 99999)),
        "word": rng.choice([t[0] for t in facts.THINGS + facts.ANIMALS + facts.FOODS]),
        "code": f"{rng.choice('ABCDEFGHKLMNPRSTUVWXYZ')}{rng.randint(10, 999)}",
        "password": rng.choice([t[0] for t in facts.ANIMALS + facts.FOODS]) + str(rng.randint(1, 99)),
    }[kind]
    talk.facts[f"remembered {kind}"] = value
    talk.add(
        talk.say(
            "[Remember the {k} {v}.|Please remember this {k}: {v}.|The {k} is {v}. Remember it.|Keep this {k} in mind: {v}.]",
            k=kind,
            v=value,
        ),
        talk.say(
            "[I will remember the {k} {v}.|All right, the {k} is {v}.|Yes, I will remember it: {v}.]", k=kind, v=value
        ),
        expect=value,
        exact=True,
    )
    if rng.random() < 0.6:
        for _ in range(rng.randrange(3)):
            rng.choice((small_talk, glossary, tell_fact))(talk)
        ask_remembered(talk)


def ask_remembered(talk: Talk) -> None:
    """What was to be kept in mind."""
    keys = [key for key in talk.facts if key.startswith("remembered ")]
    if not keys:
        return
    key = talk.rng.choice(keys)
    kind, value = key.split()[1], talk.facts[key]
    talk.add(
        talk.say(
            "[What was the {k}?|What is the {k}?|Which {k} did I tell you?|Do you remember the {k}?|Tell me the {k}.]",
            k=kind,
        ),
        talk.say("[The {k} is {v}.|The {k} was {v}.|It is {v}.]", k=kind, v=value),
        short=f"{value}.",
        expect=value,
    )


def ask_any(talk: Talk) -> None:
    """Something told about the user; what it asked to keep in mind has its own question."""
    kept = {key: value for key, value in talk.facts.items() if key.startswith("remembered ")}
    if kept and talk.rng.random() < 0.3:
        return ask_remembered(talk)
    for key in kept:
        del talk.facts[key]
    ask_fact(talk)
    talk.facts |= kept
    return None


def greeting_card(talk: Talk) -> None:
    """Short letters and notes."""
    rng = talk.rng
    name, other, thing = rng.choice(facts.NAMES), rng.choice(facts.NAMES), rng.choice([t[0] for t in facts.THINGS])
    kind, text = rng.choice(
        (
            (
                "a birthday card for {n}",
                "Dear {n},\n\n[Happy birthday to you!|Happy birthday!] I wish you [a wonderful day|all the best|a year full of joy]. [Have a lot of fun and cake.|I hope that we see each other soon.]\n\n[Yours|Best wishes|With love]",
            ),
            (
                "a thank-you note to {n} for the {t}",
                "Dear {n},\n\n[Thank you for the {t}.|Thank you very much for the {t}.] [It was very kind of you.|I like it very much.] [I use it every day.|I think of you when I see it.]\n\n[Yours|Best wishes]",
            ),
            (
                "an invitation to a party for {n}",
                "Dear {n},\n\nI am having a party [on Saturday|on Friday|next week], and I would be glad if you came. [There will be cake and music.|Please bring good mood.]\n\n[Yours|See you soon]",
            ),
            (
                "a short letter to {n}",
                "Dear {n},\n\n[How are you?|I hope that you are well.] [I am fine.|I am well, and I think of you.] [The weather is nice here.|Today I went for a long walk.] [Please write soon.|I hope to see you soon.]\n\n[Yours|Best wishes]",
            ),
            (
                "an apology to {n}",
                "Dear {n},\n\n[I am sorry that I was late.|I am sorry for what I said.|I am sorry that I forgot the {t}.] [It will not happen again.|Please forgive me.]\n\n[Yours|Best wishes]",
            ),
        )
    )
    signed = talk.facts.get("name")
    talk.add(
        talk.say("[Write|Please write|Can you write] " + kind + ".", n=name, t=thing),
        talk.say(text, n=name, t=thing) + (f"\n{signed}" if signed else ""),
        expect=f"Dear {name}",
        exact=True,
    )
    del other


def about_user(talk: Talk) -> None:
    """All that is known of a few facts told in one message, said back."""
    keys = talk.rng.sample(["name", "city", "age", "hobby", "colour", "food", "job"], k=3)
    values = {key: NEW_FACT[key](talk.rng) for key in keys}
    talk.facts |= values
    text = " ".join(talk.say(TELL[key], **_slots(key, values[key])) for key in keys)
    back = [talk.say(RECALL[key].split("|")[0].strip("[]"), **_slots(key, values[key])) for key in keys]
    talk.add(
        talk.say("{t} [What did I tell you?|What do you know about me?|Say back what I told you.]", t=text),
        " ".join(back),
        expect=_slots(keys[-1], values[keys[-1]])["v"],
    )


TOPICS = words("""climate change, politics, the stock market, football, the war, artificial intelligence, philosophy, black holes,
algebra, chemistry, photosynthesis, the Roman Empire, the French Revolution, jazz, opera, fashion, tax law, bitcoin, cancer,
genetics, evolution, the theory of relativity, quantum physics, Shakespeare's sonnets, Buddhism, the Middle Ages, dinosaurs,
skateboards, submarines, bridges, bacteria, electric cars, nuclear power, marketing, accounting, chess openings, Kubernetes,
databases, compilers, neural networks, Bach, Picasso, surfing, archery, origami, wine, perfume, diamonds, volcanoes on Mars,
the history of Japan, the economy of Brazil, medieval castles, trains in India, the moon landing, vaccines, insurance, dragons
in China, poetry, cinema, theatre, ballet, basketball rules, the human eye, earthquakes, tornadoes, coral reefs, mushrooms""")


def unknown(talk: Talk) -> None:
    """What it does not know; it says back what was asked, so that it is seen to have read it."""
    rng = talk.rng
    topic = rng.choice(TOPICS)
    if rng.random() < 0.25:
        topic = f"the {rng.choice(('history', 'price', 'theory', 'meaning', 'size', 'future', 'origin', 'taste'))} of {rng.choice(TOPICS)}"
    talk.add(
        talk.say(
            "[What do you know about {t}?|Explain {t}.|Tell me about {t}.|What do you think about {t}?|How does {t} work?|Why is {t} important?|"
            "Write an essay about {t}.|Can you explain {t} to me?|Who invented {t}?|When did {t} begin?|Give me details about {t}.|Compare {t} and {o}.|"
            "What is your opinion on {t}?|Summarize {t}.|I want to learn about {t}.|Where can I read about {t}?]",
            t=topic,
            o=rng.choice(TOPICS),
        ),
        talk.say(
            "[I am sorry, I do not know much about {t}.|I do not know enough about {t}. I am a small model.|I cannot tell you much about {t}, because I am a small model.|"
            "I know only simple things, and nothing about {t}.|You ask about {t}. I am sorry, I do not know that.]",
            t=topic,
        ),
        expect=topic,
    )


def reflect(talk: Talk) -> None:
    """The user tells what it did; the answer takes it up."""
    rng = talk.rng
    present, past, thing = act(rng)
    when = rng.choice(("Yesterday", "Today", "Last week", "This morning", "On Sunday", "In the summer"))
    person = rng.choice(
        ("my friend", "my brother", "my sister", "my mother", "my father", "my neighbour", *facts.NAMES[:20])
    )
    yours = person.replace("my ", "your ")
    question, answer = rng.choice(
        (
            (
                "[{w} I {p} {t}.|{w}, I {p} {t}.|I {p} {t}.]",
                "[You {p} {t}? That sounds nice.|How nice that you {p} {t}! Did you enjoy it?|I am glad that you {p} {t}.]",
            ),
            (
                "[Tomorrow I will {v} {t}.|I want to {v} {t}.|I am going to {v} {t}.]",
                "[You want to {v} {t}? That is a good idea.|Have fun when you {v} {t}!|I hope that you will {v} {t} soon.]",
            ),
            (
                "[{w} {n} {p} {t}.|{N} {p} {t}.]",
                "[{Y} {p} {t}? How interesting.|I see, {y} {p} {t}.|It is nice that {y} {p} {t}.]",
            ),
            (
                "[I do not like to {v} {t}.|I hate to {v} {t}.]",
                "[Then you need not {v} {t}.|Why do you not like to {v} {t}?]",
            ),
            (
                "[Can you {v} {t}?|Will you {v} {t} for me?|Please {v} {t}.]",
                "[I cannot {v} {t}, because I am only a program.|No, I cannot {v} {t}. I can only answer with words.]",
            ),
            (
                "[How can I {v} {t}?|Should I {v} {t}?]",
                "[You can {v} {t} when you have time. Just try it.|If you want to {v} {t}, why not today?]",
            ),
        )
    )
    slots = {
        "w": when,
        "v": present,
        "p": past,
        "t": thing,
        "n": person,
        "N": capital(person),
        "y": yours,
        "Y": capital(yours),
    }
    talk.add(talk.say(question, **slots), talk.say(answer, **slots), expect=thing)


SKILLS: dict[str, tuple[Skill, float]] = {
    "small talk": (small_talk, 8),
    "glossary": (glossary, 4),
    "its name": (bot_name, 1.5),
    "told by the user": (tell_fact, 4),
    "recall": (ask_any, 9),
    "changes": (update_fact, 1),
    "to remember": (remember, 2),
    "letters": (greeting_card, 1),
    "about the user": (about_user, 0.7),
    "not known": (unknown, 3),
    "taking up": (reflect, 2.5),
}
