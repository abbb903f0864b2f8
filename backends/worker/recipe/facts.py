"""What the small model is taught about the world: tables of plain facts, all written for this corpus.

A table is a block of lines, its columns parted by `:`; `rows` reads it.
"""

from __future__ import annotations

from random import Random


def rows(table: str) -> list[tuple[str, ...]]:
    """The lines of a table as tuples of stripped columns."""
    return [tuple(cell.strip() for cell in line.split(":")) for line in table.strip().splitlines()]


def words(text: str) -> list[str]:
    """The comma-parted words of a text over several lines."""
    return [word.strip() for word in text.replace("\n", " ").split(",") if word.strip()]


COUNTRIES = rows("""
France: Paris: Europe: French
Germany: Berlin: Europe: German
Italy: Rome: Europe: Italian
Spain: Madrid: Europe: Spanish
Portugal: Lisbon: Europe: Portuguese
England: London: Europe: English
Ireland: Dublin: Europe: English
Scotland: Edinburgh: Europe: English
Austria: Vienna: Europe: German
Belgium: Brussels: Europe: Dutch and French
the Netherlands: Amsterdam: Europe: Dutch
Denmark: Copenhagen: Europe: Danish
Sweden: Stockholm: Europe: Swedish
Norway: Oslo: Europe: Norwegian
Finland: Helsinki: Europe: Finnish
Iceland: Reykjavik: Europe: Icelandic
Poland: Warsaw: Europe: Polish
Greece: Athens: Europe: Greek
Hungary: Budapest: Europe: Hungarian
Romania: Bucharest: Europe: Romanian
Bulgaria: Sofia: Europe: Bulgarian
Ukraine: Kyiv: Europe: Ukrainian
Russia: Moscow: Europe and Asia: Russian
Turkey: Ankara: Asia and Europe: Turkish
Croatia: Zagreb: Europe: Croatian
Serbia: Belgrade: Europe: Serbian
the Czech Republic: Prague: Europe: Czech
Switzerland: Bern: Europe: German, French and Italian
Japan: Tokyo: Asia: Japanese
China: Beijing: Asia: Chinese
South Korea: Seoul: Asia: Korean
India: New Delhi: Asia: Hindi and English
Thailand: Bangkok: Asia: Thai
Vietnam: Hanoi: Asia: Vietnamese
Indonesia: Jakarta: Asia: Indonesian
the Philippines: Manila: Asia: Filipino and English
Nepal: Kathmandu: Asia: Nepali
Iran: Tehran: Asia: Persian
Iraq: Baghdad: Asia: Arabic
Egypt: Cairo: Africa: Arabic
Morocco: Rabat: Africa: Arabic
Kenya: Nairobi: Africa: Swahili and English
Nigeria: Abuja: Africa: English
Ghana: Accra: Africa: English
Ethiopia: Addis Ababa: Africa: Amharic
Tunisia: Tunis: Africa: Arabic
the United States: Washington: North America: English
Canada: Ottawa: North America: English and French
Mexico: Mexico City: North America: Spanish
Cuba: Havana: North America: Spanish
Brazil: Brasilia: South America: Portuguese
Argentina: Buenos Aires: South America: Spanish
Chile: Santiago: South America: Spanish
Peru: Lima: South America: Spanish
Colombia: Bogota: South America: Spanish
Uruguay: Montevideo: South America: Spanish
Australia: Canberra: Oceania: English
New Zealand: Wellington: Oceania: English
""")

# animal: kind: legs: baby: home: food: sound (or -): a thing worth telling
ANIMALS = rows("""
dog: mammal: four: puppy: a house with people: meat and dog food: bark: Dogs are loyal and like to play.
cat: mammal: four: kitten: a house with people: fish and meat: meow: Cats sleep for many hours every day.
cow: mammal: four: calf: a farm: grass: moo: Cows give us milk.
horse: mammal: four: foal: a farm: grass and hay: neigh: Horses can run very fast.
pig: mammal: four: piglet: a farm: roots and vegetables: oink: Pigs are clever animals.
sheep: mammal: four: lamb: a farm: grass: baa: Sheep give us wool.
goat: mammal: four: kid: a farm: grass and leaves: bleat: Goats are good at climbing.
rabbit: mammal: four: bunny: a hole in the ground: grass and carrots: -: Rabbits have long ears.
mouse: mammal: four: pup: a small hole: seeds and cheese: squeak: Mice are very small.
lion: mammal: four: cub: the grasslands of Africa: meat: roar: Lions live in groups called prides.
tiger: mammal: four: cub: the forests of Asia: meat: roar: Tigers have orange fur with black stripes.
bear: mammal: four: cub: the forest: berries, fish and honey: growl: Many bears sleep through the winter.
wolf: mammal: four: pup: the forest: meat: howl: Wolves live in packs.
fox: mammal: four: cub: the forest: mice and berries: bark: Foxes have red fur and a bushy tail.
elephant: mammal: four: calf: Africa and Asia: grass and leaves: trumpet: The elephant is the largest land animal.
giraffe: mammal: four: calf: Africa: leaves: -: The giraffe is the tallest animal.
monkey: mammal: two: infant: trees in warm forests: fruit and nuts: chatter: Monkeys are good at climbing.
kangaroo: mammal: two: joey: Australia: grass: -: Kangaroos carry their babies in a pouch.
koala: mammal: four: joey: Australia: eucalyptus leaves: -: Koalas sleep most of the day.
zebra: mammal: four: foal: Africa: grass: -: Zebras have black and white stripes.
camel: mammal: four: calf: the desert: dry grass: -: Camels can live for days without water.
deer: mammal: four: fawn: the forest: grass and leaves: -: Male deer have antlers.
squirrel: mammal: four: kit: trees: nuts and seeds: chatter: Squirrels hide nuts for the winter.
hedgehog: mammal: four: hoglet: gardens and forests: insects: -: Hedgehogs have sharp spines.
bat: mammal: two: pup: caves and old houses: insects and fruit: squeak: Bats sleep upside down.
whale: mammal: no: calf: the ocean: fish and tiny animals: sing: The blue whale is the largest animal in the world.
dolphin: mammal: no: calf: the ocean: fish: click: Dolphins are clever and friendly.
seal: mammal: no: pup: cold seas: fish: bark: Seals have thick fat that keeps them warm.
chicken: bird: two: chick: a farm: seeds: cluck: Chickens give us eggs.
duck: bird: two: duckling: ponds and lakes: plants and insects: quack: Ducks can swim and fly.
goose: bird: two: gosling: ponds and lakes: grass: honk: Geese fly in the shape of a V.
owl: bird: two: owlet: trees in the forest: mice: hoot: Owls hunt at night.
eagle: bird: two: eaglet: high mountains: fish and small animals: scream: Eagles can see very far.
penguin: bird: two: chick: the cold south: fish: -: Penguins cannot fly, but they swim very well.
parrot: bird: two: chick: warm forests: seeds and fruit: squawk: Some parrots can say words.
swan: bird: two: cygnet: lakes and rivers: water plants: hiss: Swans are large white birds.
crow: bird: two: chick: trees and fields: almost anything: caw: Crows are very clever birds.
ostrich: bird: two: chick: Africa: plants and seeds: -: The ostrich is the largest bird, and it cannot fly.
frog: amphibian: four: tadpole: ponds: insects: croak: Frogs can jump far.
snake: reptile: no: hatchling: forests and deserts: mice and eggs: hiss: Snakes have no legs.
turtle: reptile: four: hatchling: the sea and ponds: plants and small fish: -: Turtles carry a hard shell.
crocodile: reptile: four: hatchling: warm rivers: meat: growl: Crocodiles have very strong jaws.
lizard: reptile: four: hatchling: warm places: insects: -: Lizards like to lie in the sun.
shark: fish: no: pup: the ocean: fish: -: Sharks have many sharp teeth.
salmon: fish: no: fry: rivers and the sea: insects and small fish: -: Salmon swim up rivers to lay their eggs.
goldfish: fish: no: fry: a fish tank: fish food: -: Goldfish are often kept as pets.
bee: insect: six: larva: a hive: nectar: buzz: Bees make honey.
ant: insect: six: larva: a nest in the ground: seeds and sugar: -: Ants are small, but they are very strong.
butterfly: insect: six: caterpillar: gardens and fields: nectar: -: A butterfly begins its life as a caterpillar.
spider: arachnid: eight: spiderling: a web: insects: -: Spiders spin webs to catch their food.
octopus: mollusc: no: larva: the ocean: crabs: -: An octopus has eight arms.
snail: mollusc: no: hatchling: gardens: leaves: -: A snail carries its house on its back.
""")

# food: kind: colour: taste
FOODS = rows("""
apple: fruit: red or green: sweet
banana: fruit: yellow: sweet
lemon: fruit: yellow: sour
lime: fruit: green: sour
orange: fruit: orange: sweet
strawberry: fruit: red: sweet
cherry: fruit: red: sweet
grape: fruit: green or purple: sweet
pear: fruit: green: sweet
peach: fruit: orange and pink: sweet
plum: fruit: purple: sweet
pineapple: fruit: yellow: sweet
mango: fruit: orange: sweet
blueberry: fruit: blue: sweet
raspberry: fruit: red: sweet
watermelon: fruit: green outside and red inside: sweet
kiwi: fruit: brown outside and green inside: sweet
carrot: vegetable: orange: mild
potato: vegetable: brown: mild
onion: vegetable: white or brown: sharp
cucumber: vegetable: green: fresh
cabbage: vegetable: green: mild
spinach: vegetable: green: mild
broccoli: vegetable: green: mild
pumpkin: vegetable: orange: mild
radish: vegetable: red: sharp
pea: vegetable: green: sweet
chili: vegetable: red: hot
chocolate: sweet: brown: sweet
honey: sweet: golden: sweet
cheese: dairy food: yellow: salty
butter: dairy food: yellow: mild
yogurt: dairy food: white: a little sour
milk: drink: white: mild
coffee: drink: black: bitter
bread: food made from grain: brown: mild
rice: grain: white: mild
""")

# thing: made of: used to: where it is found
THINGS = rows("""
table: wood: eat and work on: the kitchen
chair: wood: sit on: the kitchen
knife: metal: cut food: the kitchen
spoon: metal: eat soup: the kitchen
fork: metal: pick up food: the kitchen
cup: clay: drink tea or coffee: the kitchen
plate: clay: hold food: the kitchen
bottle: glass: hold water: the kitchen
window: glass: let in light: the wall of a house
mirror: glass: see yourself: the bathroom
door: wood: close a room: the house
book: paper: read: the library
newspaper: paper: read the news: a shop
pencil: wood: write and draw: the school bag
pen: plastic: write: the desk
shirt: cotton: wear on your body: the wardrobe
sweater: wool: keep warm: the wardrobe
scarf: wool: keep your neck warm: the wardrobe
shoe: leather: protect your feet: the hall
boot: leather: walk in mud and snow: the hall
key: metal: open a lock: your pocket
coin: metal: pay for things: your purse
hammer: metal and wood: hit nails: the toolbox
saw: metal: cut wood: the toolbox
nail: metal: join pieces of wood: the toolbox
ladder: wood or metal: reach high places: the garage
bicycle: metal: ride: the street
car: metal: drive: the street
boat: wood: travel on water: the harbour
train: metal: travel on rails: the station
umbrella: cloth: stay dry in the rain: the hall
blanket: wool: keep warm in bed: the bedroom
pillow: cloth and feathers: rest your head: the bedroom
bed: wood: sleep in: the bedroom
lamp: metal and glass: give light: the living room
clock: metal and plastic: tell the time: the wall
candle: wax: give light: the table
towel: cotton: dry yourself: the bathroom
soap: oil and ash: wash your hands: the bathroom
toothbrush: plastic: clean your teeth: the bathroom
broom: wood and straw: sweep the floor: the cupboard
bucket: plastic: carry water: the garden
rope: fibre: tie things: the boat
tent: cloth: sleep outdoors: the campsite
map: paper: find the way: the car
phone: plastic, glass and metal: talk to people far away: your pocket
computer: plastic and metal: write, read and calculate: the desk
camera: plastic, glass and metal: take pictures: the bag
telescope: metal and glass: look at the stars: the roof
thermometer: glass: measure how warm it is: the wall
scissors: metal: cut paper: the drawer
needle: metal: sew clothes: the sewing box
pot: metal: cook soup: the kitchen
oven: metal: bake bread and cakes: the kitchen
fridge: metal and plastic: keep food cold: the kitchen
piano: wood and metal: make music: the living room
guitar: wood: make music: the living room
drum: wood and skin: make music: the music room
ball: rubber: play games: the garden
kite: paper or cloth: fly in the wind: the field
""")

# job: place: what they do
JOBS = rows("""
teacher: a school: helps children learn
doctor: a hospital: helps sick people get well
nurse: a hospital: takes care of sick people
farmer: a farm: grows food and keeps animals
baker: a bakery: bakes bread and cakes
cook: a kitchen: makes meals
waiter: a restaurant: brings food to the guests
pilot: an airport: flies planes
sailor: a ship: works on a ship at sea
firefighter: a fire station: puts out fires
police officer: a police station: keeps people safe
dentist: a dental office: takes care of teeth
vet: an animal clinic: helps sick animals
librarian: a library: takes care of books
gardener: a garden: takes care of plants
carpenter: a workshop: makes things from wood
tailor: a shop: makes and mends clothes
painter: a studio: paints pictures
musician: a concert hall: plays music
writer: a quiet room: writes books
scientist: a laboratory: studies how the world works
engineer: an office: designs machines and buildings
programmer: an office: writes programs for computers
mechanic: a garage: repairs cars
driver: the road: drives a bus or a truck
fisherman: the sea: catches fish
miner: a mine: digs coal and metal out of the ground
shopkeeper: a shop: sells things
judge: a court: decides what is right by law
astronaut: a space station: travels to space
builder: a building site: builds houses
hairdresser: a salon: cuts hair
plumber: many houses: repairs water pipes
butcher: a shop: sells meat
postman: the streets: brings letters and parcels
""")

OPPOSITES = rows("""
hot: cold
big: small
tall: short
fast: slow
happy: sad
up: down
left: right
day: night
open: closed
full: empty
hard: soft
heavy: light
high: low
old: young
new: old
early: late
loud: quiet
clean: dirty
dry: wet
rich: poor
strong: weak
thick: thin
wide: narrow
deep: shallow
bright: dark
easy: difficult
good: bad
long: short
near: far
true: false
right: wrong
first: last
inside: outside
above: below
begin: end
start: stop
push: pull
give: take
buy: sell
win: lose
love: hate
laugh: cry
come: go
remember: forget
sleep: wake
ask: answer
always: never
everything: nothing
many: few
more: less
safe: dangerous
brave: afraid
kind: cruel
sharp: blunt
smooth: rough
sweet: sour
beautiful: ugly
same: different
possible: impossible
polite: rude
alive: dead
black: white
summer: winter
north: south
east: west
""")

PLURALS = rows("""
cat: cats
dog: dogs
house: houses
tree: trees
book: books
box: boxes
bus: buses
fox: foxes
church: churches
brush: brushes
baby: babies
city: cities
story: stories
berry: berries
party: parties
leaf: leaves
wolf: wolves
knife: knives
life: lives
shelf: shelves
child: children
man: men
woman: women
foot: feet
tooth: teeth
goose: geese
mouse: mice
person: people
sheep: sheep
fish: fish
deer: deer
ox: oxen
potato: potatoes
tomato: tomatoes
hero: heroes
key: keys
toy: toys
day: days
boy: boys
girl: girls
flower: flowers
friend: friends
""")

PAST = rows("""
go: went
eat: ate
see: saw
run: ran
come: came
make: made
take: took
give: gave
find: found
tell: told
write: wrote
read: read
speak: spoke
sing: sang
swim: swam
drink: drank
begin: began
bring: brought
buy: bought
catch: caught
think: thought
teach: taught
sleep: slept
keep: kept
feel: felt
leave: left
lose: lost
meet: met
sit: sat
stand: stood
know: knew
grow: grew
fly: flew
fall: fell
drive: drove
break: broke
choose: chose
forget: forgot
hear: heard
hold: held
play: played
walk: walked
look: looked
jump: jumped
help: helped
work: worked
ask: asked
laugh: laughed
open: opened
dance: danced
""")

# word: what it means
MEANINGS = rows("""
happy: feeling good and glad
sad: feeling unhappy
brave: not afraid of danger
angry: feeling strong displeasure
hungry: wanting to eat
thirsty: wanting to drink
tired: needing rest or sleep
lonely: sad because you are alone
curious: wanting to know more
patient: able to wait without getting angry
honest: telling the truth
generous: glad to give to others
lazy: not wanting to work
polite: having good manners
clever: quick to learn and understand
shy: afraid to talk to people
proud: pleased with what you did
enormous: very, very big
tiny: very, very small
ancient: very old
rapid: very fast
silent: making no sound
fragile: easy to break
empty: with nothing inside
rare: not seen often
journey: a long trip
island: land with water all around it
desert: a dry place with little rain
forest: a place with many trees
river: a long stream of water that flows to the sea
mountain: a very high hill
volcano: a mountain that can throw out hot rock
village: a small group of houses
harbour: a place where ships are safe
library: a place where you can read and borrow books
museum: a place where you can see old and interesting things
hospital: a place where sick people are helped
recipe: a text that says how to cook something
secret: something that only a few people know
friend: a person you like and trust
neighbour: a person who lives near you
stranger: a person you do not know
promise: words that say you will surely do something
dream: pictures and stories in your mind while you sleep
shadow: the dark shape behind a thing in the light
echo: a sound that comes back to you
rainbow: an arc of colours in the sky
storm: bad weather with strong wind
breakfast: the first meal of the day
lunch: the meal in the middle of the day
dinner: the meal in the evening
holiday: days when you do not have to work
birthday: the day of the year when you were born
language: the words that people use to talk with each other
question: words that ask for an answer
gift: something that you give to someone
memory: something that you remember
mistake: something done wrong
""")

DAYS = words("Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday")
MONTHS = words(
    "January, February, March, April, May, June, July, August, September, October, November, December",
)
MONTH_DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
SEASONS = words("spring, summer, autumn, winter")
PLANETS = words("Mercury, Venus, Earth, Mars, Jupiter, Saturn, Uranus, Neptune")
NUMBERS = words("""zero, one, two, three, four, five, six, seven, eight, nine, ten, eleven, twelve, thirteen, fourteen,
fifteen, sixteen, seventeen, eighteen, nineteen, twenty""")
ORDINALS = words("first, second, third, fourth, fifth, sixth, seventh, eighth, ninth, tenth, eleventh, twelfth")
MIXES = rows("""
blue: yellow: green
red: yellow: orange
red: blue: purple
white: red: pink
black: white: grey
red: green: brown
""")
COLOURS = words("red, blue, green, yellow, orange, purple, pink, brown, black, white, grey, gold, silver, turquoise")
COLOURED = rows("""
the sky: blue
grass: green
the sun: yellow
snow: white
blood: red
coal: black
milk: white
a tomato: red
a leaf: green
a crow: black
chocolate: brown
an elephant: grey
a frog: green
a swan: white
the sea: blue
a flamingo: pink
gold: yellow
the night sky: black
a carrot: orange
a banana: yellow
""")

NAMES = words("""Anna, Ben, Clara, David, Emma, Felix, Grace, Henry, Ivy, Jack, Kate, Leo, Mia, Noah, Olivia, Paul, Quinn,
Rosa, Sam, Tina, Uma, Victor, Wendy, Xavier, Yara, Zoe, Alice, Bob, Carol, Daniel, Eva, Frank, Gina, Hugo, Iris, James,
Karen, Liam, Maria, Nina, Oscar, Peter, Rachel, Simon, Tom, Ursula, Vera, Will, Amir, Bella, Carlos, Diana, Elias, Fatima,
George, Hannah, Ian, Julia, Kofi, Lena, Max, Nora, Omar, Priya, Raj, Sara, Theo, Wei, Yuki, Zara, Adam, Bruno, Chloe, Dora,
Ella, Fred, Greta, Hans, Ines, Jonas, Kim, Lucy, Marco, Nadia, Otto, Pia, Ruth, Sven, Tara, Vikram, Ada, Alan, Lily, Lucas,
Sophie, Martin, John, Mary, Linda, Robert, Susan, Michael, Laura, Kevin, Amy, Eric, Jane, Mark, Helen, Luke, Ahmed, Aisha,
Chen, Mei, Hiro, Sofia, Mateo, Pablo, Ingrid, Lars, Olga, Ivan, Dmitri, Elena, Kwame, Zuri, Tariq, Leila, Joe, Dave, Steve""")

SHE = frozenset(
    words("""Anna, Clara, Emma, Grace, Ivy, Kate, Mia, Olivia, Rosa, Tina, Uma, Wendy, Yara, Zoe, Alice, Carol, Eva,
Gina, Iris, Karen, Maria, Nina, Rachel, Ursula, Vera, Bella, Diana, Fatima, Hannah, Julia, Lena, Nora, Priya, Sara, Yuki, Zara,
Chloe, Dora, Ella, Greta, Ines, Lucy, Nadia, Pia, Ruth, Tara, Ada, Lily, Sophie, Mary, Linda, Susan, Laura, Amy, Jane, Helen,
Aisha, Mei, Sofia, Ingrid, Olga, Elena, Zuri, Leila""")
)
"""Those of the names that are told as `she`."""

CITIES = words("""Paris, London, Berlin, Rome, Madrid, Lisbon, Vienna, Prague, Dublin, Oslo, Warsaw, Athens, Tokyo, Cairo,
Boston, Chicago, Seattle, Denver, Austin, Toronto, Sydney, Mumbai, Nairobi, Lima, Seoul, Hamburg, Munich, Milan, Naples,
Porto, Seville, Lyon, Geneva, Zurich, Bristol, Leeds, Glasgow, Kyoto, Istanbul, Montreal""")

HOBBIES = words("""painting, reading, swimming, running, cooking, baking, dancing, singing, gardening, fishing, hiking,
cycling, drawing, chess, football, tennis, basketball, photography, playing the guitar, playing the piano, knitting,
climbing, sailing, skating, writing stories, watching birds, playing video games, yoga, camping, programming""")

PET_NAMES = words("""Rex, Bella, Max, Luna, Coco, Milo, Daisy, Rocky, Molly, Simba, Nala, Oscar, Ginger, Shadow, Snowy, Tiger,
Pepper, Biscuit, Cookie, Ziggy, Whiskers, Bruno, Lucky, Sunny, Spot, Felix, Poppy, Bubbles, Hazel, Otto""")

DISHES = words("""pizza, pasta, soup, salad, rice, pancakes, curry, sushi, tacos, noodles, apple pie, ice cream, chocolate
cake, fish and chips, lasagna, dumplings, roast chicken, omelette, sandwiches, tomato soup""")

# question(s) with | between : answer in a sentence : answer in few words
SCIENCE = rows("""
Why is the sky blue?|What makes the sky blue?: The sky is blue because the air scatters blue light from the sun more than the other colours.: Air scatters blue light.
What is the sun?|Tell me about the sun.: The sun is a star. It is a huge ball of hot gas that gives us light and warmth.: A star.
What is the moon?|Tell me about the moon.: The moon is a ball of rock that travels around the Earth. It shines because it reflects the light of the sun.: A ball of rock.
Why does it rain?|Where does rain come from?|What is rain?: Water rises into the air as vapour, cools and makes clouds. When the drops are heavy enough, they fall as rain.: Drops fall from clouds.
What is snow?|Why does it snow?: Snow is made of small crystals of ice. It falls from clouds when the air is very cold.: Frozen water.
What is ice?: Ice is water that is frozen. Water freezes at zero degrees Celsius.: Frozen water.
What is steam?: Steam is water that has become a gas because it is very hot.: Water as a gas.
At what temperature does water boil?|When does water boil?|How hot is boiling water?: Water boils at one hundred degrees Celsius.: One hundred degrees.
At what temperature does water freeze?|When does water freeze?: Water freezes at zero degrees Celsius.: Zero degrees.
What do plants need to grow?|What does a plant need?: Plants need light, water, air and soil to grow.: Light and water.
Why do leaves fall in autumn?|Why do trees lose their leaves?: Trees drop their leaves in autumn to save water and energy for the winter.: To save water.
Why do we sleep?|Why do people need sleep?: We sleep so that our body and our mind can rest and grow strong again.: To rest.
Why do we eat?|Why do people need food?: We eat because food gives our body energy and what it needs to grow.: For energy.
What is the heart for?|What does the heart do?: The heart pumps blood through the body.: It pumps blood.
What do lungs do?|What are lungs for?: The lungs take in air, so that the body gets oxygen.: They breathe.
What does the brain do?|What is the brain for?: The brain thinks, remembers and controls the body.: It thinks.
How many legs does a person have?: A person has two legs.: Two.
How many fingers does a hand have?|How many fingers are on one hand?: A hand has five fingers.: Five.
How many days are in a week?|How long is a week?: A week has seven days.: Seven.
How many months are in a year?|How long is a year in months?: A year has twelve months.: Twelve.
How many hours are in a day?|How long is a day?: A day has twenty-four hours.: Twenty-four.
How many minutes are in an hour?|How long is an hour?: An hour has sixty minutes.: Sixty.
How many seconds are in a minute?|How long is a minute?: A minute has sixty seconds.: Sixty.
How many days are in a year?|How long is a year?: A year has three hundred and sixty-five days. A leap year has one day more.: Three hundred and sixty-five.
How many planets are there?|How many planets go around the sun?: Eight planets go around the sun.: Eight.
What is the largest planet?|Which planet is the biggest?: Jupiter is the largest planet.: Jupiter.
What is the smallest planet?|Which planet is the smallest?: Mercury is the smallest planet.: Mercury.
Which planet do we live on?|What planet are we on?: We live on planet Earth.: Earth.
Which planet is closest to the sun?: Mercury is the planet closest to the sun.: Mercury.
Which planet is called the red planet?|What is the red planet?: Mars is called the red planet.: Mars.
Which planet has rings?: Saturn is known for its bright rings.: Saturn.
What is the largest ocean?|Which ocean is the biggest?: The Pacific Ocean is the largest ocean.: The Pacific.
What is the highest mountain?|What is the tallest mountain in the world?: Mount Everest is the highest mountain in the world.: Mount Everest.
What is the longest river?|Which river is the longest?: The Nile in Africa is often called the longest river in the world.: The Nile.
What is the largest animal?|What is the biggest animal in the world?: The blue whale is the largest animal in the world.: The blue whale.
What is the tallest animal?: The giraffe is the tallest animal.: The giraffe.
What is the fastest land animal?|Which animal runs the fastest?: The cheetah is the fastest land animal.: The cheetah.
What is the largest continent?|Which continent is the biggest?: Asia is the largest continent.: Asia.
How many continents are there?: There are seven continents.: Seven.
What is gravity?|Why do things fall down?: Gravity is the force that pulls things towards the ground. It makes things fall.: A force that pulls things down.
What is a magnet?|What does a magnet do?: A magnet is a piece of metal that pulls iron towards it.: It pulls iron.
What is electricity?: Electricity is energy that flows through wires. It makes lamps and machines work.: Energy in wires.
What is a rainbow?|How does a rainbow appear?: A rainbow is an arc of colours. It appears when the sun shines through drops of rain.: Light through rain.
What is wind?|Why does the wind blow?: Wind is moving air. It blows because warm air rises and cool air takes its place.: Moving air.
What is a cloud?|What are clouds made of?: A cloud is made of very many tiny drops of water in the air.: Tiny drops of water.
What is thunder?|Why does it thunder?: Thunder is the sound of lightning. Lightning heats the air so fast that it bangs.: The sound of lightning.
What is a volcano?: A volcano is a mountain with an opening. Hot melted rock can come out of it.: A fire mountain.
What is an island?: An island is a piece of land with water all around it.: Land in water.
What is a desert?: A desert is a very dry place where it almost never rains.: A dry place.
Where does the sun rise?|In which direction does the sun come up?: The sun rises in the east.: In the east.
Where does the sun set?|In which direction does the sun go down?: The sun sets in the west.: In the west.
Why is there day and night?|What makes day and night?: The Earth turns around once a day. It is day on the side that faces the sun.: The Earth turns.
Who makes honey?|Which insect makes honey?|Where does honey come from?: Bees make honey from the nectar of flowers.: Bees.
Where does milk come from?: Milk comes from cows and other mammals.: Cows.
Where do eggs come from?: Most of the eggs that we eat come from chickens.: Chickens.
Where does wool come from?: Wool comes from sheep.: Sheep.
What is bread made of?|What is in bread?: Bread is made of flour, water, yeast and a little salt.: Flour and water.
What is cheese made of?: Cheese is made from milk.: Milk.
What is paper made of?|Where does paper come from?: Paper is made from wood.: Wood.
What is glass made of?: Glass is made from sand that was melted.: Sand.
What is wine made of?: Wine is made from grapes.: Grapes.
What is chocolate made of?: Chocolate is made from cocoa beans, sugar and often milk.: Cocoa beans.
What is a computer?|What does a computer do?: A computer is a machine that follows instructions. It can calculate, store texts and pictures, and talk to other computers.: A machine.
What is the internet?: The internet connects computers all over the world, so that they can send each other data.: A net of computers.
What is a robot?: A robot is a machine that can move and do work by itself.: A machine.
What is a dictionary?: A dictionary is a book that tells you what words mean.: A book of words.
How many letters are in the alphabet?|How many letters does the alphabet have?: The English alphabet has twenty-six letters.: Twenty-six.
What are the vowels?|Which letters are vowels?: The vowels are A, E, I, O and U.: A, E, I, O, U.
How many sides does a triangle have?: A triangle has three sides.: Three.
How many sides does a square have?: A square has four equal sides.: Four.
What shape is a ball?|What shape is the Earth?: It is round, like a sphere.: Round.
How many wheels does a car have?: A car has four wheels.: Four.
How many wheels does a bicycle have?: A bicycle has two wheels.: Two.
What is the coldest season?|Which season is the coldest?: Winter is the coldest season.: Winter.
What is the warmest season?|Which season is the hottest?: Summer is the warmest season.: Summer.
Who was Albert Einstein?: Albert Einstein was a physicist. He is known for his theory of relativity.: A physicist.
Who was William Shakespeare?|Who wrote Romeo and Juliet?: William Shakespeare was an English writer. He wrote plays such as Romeo and Juliet.: An English writer.
Who was Mozart?: Mozart was a composer from Austria. He wrote very many pieces of music.: A composer.
Who was Leonardo da Vinci?|Who painted the Mona Lisa?: Leonardo da Vinci was an Italian artist. He painted the Mona Lisa.: An Italian artist.
Where is the Eiffel Tower?: The Eiffel Tower is in Paris.: In Paris.
Where are the pyramids?: The famous pyramids are in Egypt.: In Egypt.
Where do fish live?: Fish live in water, in rivers, lakes and seas.: In water.
Do fish breathe air?|How do fish breathe?: Fish breathe in the water with their gills.: With gills.
Can penguins fly?: No, penguins cannot fly, but they are very good swimmers.: No.
Is a whale a fish?: No, a whale is a mammal that lives in the sea.: No.
Is a tomato a fruit?: Yes. A tomato is a fruit, but in the kitchen it is used as a vegetable.: Yes.
Is the Earth flat?: No, the Earth is round, like a ball.: No.
Is the sun a planet?: No, the sun is a star.: No.
Does the moon make its own light?: No, the moon reflects the light of the sun.: No.
""")

ACTS = rows("""
walk to: walked to: school, the park, the market, the river, the station
look at: looked at: the stars, the picture, the sea, the clock
play in: played in: the garden, the yard, the snow, the park
clean: cleaned: the kitchen, the table, the car, the window
cook: cooked: soup, dinner, rice, vegetables
open: opened: the door, the box, the window, the letter
visit: visited: a friend, the museum, grandmother, the farm
paint: painted: a house, a flower, the wall, a picture
help: helped: the teacher, a neighbour, the old man, the children
see: saw: a bird, the moon, a fox, a ship
eat: ate: an apple, lunch, some bread, a cake
buy: bought: a book, some milk, flowers, a hat
find: found: a key, a coin, the map, a stone
read: read: a story, the newspaper, a letter, a poem
write: wrote: a letter, a song, a list, a poem
drink: drank: tea, water, a cup of coffee, milk
""")


def act(rng: Random) -> tuple[str, str, str]:
    """Something that people do: the verb, its past, and to what."""
    present, past, things = rng.choice(ACTS)
    return present, past, rng.choice(words(things))
