"""Words that may stand for each other in any text, questions and commands above all, as data.

A row is a set of words, any two of which may be swapped. It holds only words whose every sense is shared: "close" and
"shut" are not here, for a shop that is close is another one than a shop that is shut; nor "change" and "modify" (a
tyre), "remove" and "delete" (from a group), "film" and "movie" (to develop). What only texts about software may swap
is in `thesaurus.py`.
"""

from __future__ import annotations

from typing import Final

from policies.guards.stemming import stem

SPELLINGS: Final = """
organisation organization
organise organize
adviser advisor
color colour
favorite favourite
center centre
theater theatre
travelling traveling
jewellery jewelry
aluminium aluminum
behaviour behavior
neighbour neighbor
neighbourhood neighborhood
labour labor
honour honor
flavour flavor
humour humor
rumour rumor
harbour harbor
armour armor
vapour vapor
grey gray
math maths
tyre tire
licence license
defence defense
offence offense
analyse analyze
realise realize
recognise recognize
apologise apologize
emphasise emphasize
memorise memorize
prioritise prioritize
optimise optimize
customise customize
initialise initialize
serialise serialize
normalise normalize
summarise summarize
visualise visualize
utilise utilize
cancelled canceled
modelling modeling
labelled labeled
catalogue catalog
dialogue dialog
programme program
cosy cozy
mum mom
plough plow
sceptical skeptical
fulfil fulfill
skilful skillful
yoghurt yogurt
doughnut donut
moustache mustache
pyjamas pajamas
aeroplane airplane
litre liter
metre meter
ok okay
tv television
"""
"""One word in two spellings, a row each."""

_WORDS: Final = """
use utilize utilise
buy purchase
begin start commence
choose select
help assist
quick rapid speedy
quickly rapidly swiftly speedily
quickly fast
quicker faster
bigger larger
biggest largest
happy joyful glad
sad unhappy
angry furious
brave courageous
scared frightened afraid
thankful grateful
outspoken vocal
wealthy rich
intelligent clever
easy straightforward
crucial vital
necessary required needed
mistake error
wrong incorrect
whole entire
entirely completely wholly totally fully
kid child
goal aim objective
method technique
reply response
reply respond
obtain acquire
build construct
permit allow
need require
provide supply
attempt try
gather collect
vanish disappear
happen occur
improve enhance
modify alter
modification alteration
examine inspect
suggest recommend
advise recommend
understand comprehend
calculate compute
recompute recalculate
evaluate assess
evaluation assessment
avert prevent
depart leave
want desire
desired wanted
stop cease
suitable appropriate
pertinent relevant
specific particular
precise exact
immediately instantly
extra additional
maximum maximal
minimum minimal
mandatory obligatory compulsory
usual typical
useful helpful
beneficial advantageous
drawback disadvantage
limitation restriction
capability ability
info information
amount quantity
following subsequent
previous prior
latest newest
huge enormous
effortlessly easily
correctly properly
gradually progressively
collaborate cooperate
familiar acquainted
speak talk
inform notify
expect anticipate
infer deduce
decrease reduce
accomplish achieve attain
register enroll
automobile car
attorney lawyer
photo photograph
phone telephone
"""


def table(*rows: str) -> dict[str, frozenset[int]]:
    """Stem → numbers of its rows; two stems with a number in common stand for each other."""
    found: dict[str, set[int]] = {}
    for number, row in enumerate(line for text in rows for line in text.strip().splitlines()):
        for word in row.split():
            found.setdefault(stem(word)[0], set()).add(number)
    return {word: frozenset(numbers) for word, numbers in found.items()}


SPELLED: Final = frozenset(range(len(SPELLINGS.strip().splitlines())))
"""Numbers of the rows that are one word in two spellings."""
GENERAL: Final = table(SPELLINGS, _WORDS)
"""What `table` says of any text."""
