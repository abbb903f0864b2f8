"""Several words that together say what one word says, or nothing: question framings, instruments, purposes.

Each row is "words → words". `@can`, `@by` and `@must` are words of their own, so that what was put there by a row is
known from what was written. Rows are tried at each word, longest first; what a row yields is not looked at again.
"""

from __future__ import annotations

from itertools import product
from typing import Final

# (a|b) in a row stands for either, (a|) for an optional word.
_ROWS = """
(can not|cannot) → not can
can't → not can
(can|could|would|will) you (please|kindly|) (tell|explain to|show) me → @ask
(can|could|would|will) you (please|kindly|) (explain|describe) → @ask
(please|kindly|) (tell|show) me → @ask
do you know → @ask
i (want|need|wish) to know → @ask
i would like to know → @ask
i'd like to know → @ask
i am wondering → @ask
i was wondering → @ask
i wonder → @ask
how (do|can|could|does) (i|we|one|someone|somebody|a person) → @how
how (do|can|could) you → @how @you
how should (i|we|one|someone|somebody|a person) → @how should
how should you → @how should @you
how would (i|you|we|one) go about → @how
what is the way to → @how
what's the way to → @how
what is a way to → @how
what's a way to → @how
what are (the|some|) ways to → @how
(is there|are there) (a|any|some) (way|ways) to → @how
is there any way (i|we|you|one) can → @how
what can (i|we|one) do to → @how
what can you do to → @how @you
what should (i|we|one) do to → @how should
what should you do to → @how should @you
what must (i|we|one) do to → @how must
what do (i|we) (need|have) to do to → @how must
(how|ways|the way) to → @how
in which (way|manner) (do|can|could) (i|we|you|one) → @how
what (is|are) the (step|steps) to → @how
in fact →
as a matter of fact →
of course →
by the way →
at all →
used to be → @usedto be
use to be → @usedto be
(used to|use to) → @usedto
don't need to → not need to
in order to → to
so as to → to
with the (aim|goal|purpose) of → to
for the purpose of → to
(it is|it's) (possible|feasible) to → @can
(is|are|be) (able|possible) to → @can
(has|have) the (ability|capability|capacity|option|possibility) to → @can
(is|are) capable of → @can
(make|makes) it (possible|easy|feasible) to → @can
(you|one) (can|could) → @can
(you|one) (are|is) able to → @can
(you|one) (need|needs|have|has) to → @must
(you|one) must → @must
(you|one) should → @should
you'll (need|have) to → @must
you will (need|have) to → @must
(you are|one is|it is) (required|necessary|essential) to → @must
it is necessary to → @must
(is|are|be) required to → @must
(need|needs|have|has) to → @must
(allow|allows|enable|enables|permit|permits) (you|one|users|us|) to → @can
(let|lets) (you|one|users) → @can
(allow|allows|allowing|enable|enables) for → @can
(allowing|enabling|permitting) (you|one|users|us|) to → @can
(gives|provides|offers|has|with) the (ability|capability|capacity|possibility|option) (to|of) → @can
by (using|utilizing|utilising|employing) → @by
(through|via|by|with|by making) (the|) (use|usage|utilization|help|aid|means|application) of → @by
(using|utilizing|utilising|employing|via) → @by
by way of → @by
making use of → @by
(is|are|be) (used|employed|utilized|utilised) (to|for) → to
(is|are|be) (used|employed|utilized|utilised) as → as
(can|may) be (used|employed|utilized|utilised) to → @can to
(serve|serves) to → to
(serve|serves) as → @as is
(act|acts) as → @as is
(is|are) (intended|designed|meant) (to|for) → to
(is|are) referred to as → is
(is|are) known as → is
(is|are) called → is
make use of → use
makes use of → use
such as → suchlike
like: → suchlike
for (example|instance) → suchlike
e.g → suchlike
including → suchlike
as well as → and
in addition to → besides
apart from → besides
along with → and
together with → and
(prior|previous) to → before
in the event that → if
provided that → if
even though → although
(rather than|in place of|as opposed to|instead of) → instead
a (number|variety|range) of → several
a lot of → many
a few → some
a little → some
quite a few → many
lots of → many
plenty of → many
(a|the|) (great|large) (number|amount) of → many
the number of → number of
the (amount|quantity) of → amount of
(the|) (purpose|goal|aim|objective|intention) of → @purpose
by default → default
as default → default
carry out → perform
carries out → performs
carried out → performed
carrying out → performing
set up → setup
sets up → setup
setting up → setup
find out → learn
look for → seek
get rid of → remove
take a look at → see
have a look at → see
(according to|in accordance with) → according-to
based on → according-to
on the basis of → according-to
depending on → depending-on
depends on → depending-on
with regard to → about
with respect to → about
in terms of → about
due to → because
because of → because
as a result of → because
owing to → because
no longer → not still
not only → even
at least → at-least
at most → at-most
more than → more than
less than → less than
up to → up-to
as soon as → once
as long as → as-long-as
so that → so
in contrast → but
on the other hand → but
(on|in) the contrary → but
state of the art → state-of-the-art
cutting edge → cutting-edge
cutting-edge → state-of-the-art
the united states of america → usa
the united states → usa
the u.s. → usa
united states → usa
u.s. → usa
u.s.a. → usa
the uk → uk
the united kingdom → uk
united kingdom → uk
make sure → ensure
makes sure → ensure
making sure → ensure
(take|takes|taking) advantage of → use
get started → start
getting started → start
(work|works|working) together → collaborate
(become|becoming|get|getting) familiar with → know
(familiarize|familiarise) yourself with → know
get to know → know
(take|takes|taking) into account → consider
(check|checking) out → see
refer to → see
refers to → see
(take|takes) place → happen
(consists|consist) of → comprise
(is|are) (comprised|composed) of → comprise
(is|are) made up of → comprise
(is|are) (compatible|interoperable) with → support
comes with → include
(is|are) equipped with → include
(is|are) (related|devoted|dedicated) to → is about
(related|relating|pertaining|devoted|dedicated) to → about
(provides|provide|offers|offer|gives|give|furnishes|furnish) (information|guidance|details) (on|about|for) → explain
(provides|provide|offers|offer|gives|give|furnishes|furnish) (instructions|instruction) (on|about|for) → explain
(providing|offering|giving) (information|guidance|details|instructions) (on|about|for) → explain
(is|are) responsible for → to
in the form of → as
on the fly → dynamically
in real time → dynamically
speed up → accelerate
speeds up → accelerate
speeding up → accelerate
clean up → clean
clear out → clean
give back → return
gives back → return
work out → compute
works out → compute
(sign|signing) up → register
won't → will not
shan't → shall not
ain't → is not
"""


def _choices(part: str) -> list[str]:
    return part[1:-1].split("|") if part.startswith("(") else [part]


def _split(left: str) -> list[str]:
    """Words and bracketed choices, which may hold spaces."""
    parts: list[str] = []
    for piece in left.split():
        if parts and parts[-1].startswith("(") and not parts[-1].endswith(")"):
            parts[-1] += " " + piece
        else:
            parts.append(piece)
    return parts


Row = tuple[tuple[str, ...], tuple[str, ...]]
"""Words, and what they become."""


def _table() -> dict[str, dict[str, list[Row]]]:
    table: dict[str, dict[tuple[str, ...], tuple[str, ...]]] = {}
    for row in _ROWS.strip().splitlines():
        left, _, right = row.partition("→")
        for chosen in product(*map(_choices, _split(left))):
            words = tuple(" ".join(chosen).split())
            table.setdefault(words[0], {}).setdefault(words, tuple(right.split()))
    return {first: _by_second(rows) for first, rows in table.items()}


def _by_second(rows: dict[tuple[str, ...], tuple[str, ...]]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for words, becomes in sorted(rows.items(), key=lambda row: -len(row[0])):
        found.setdefault(words[1] if len(words) > 1 else "", []).append((words, becomes))
    return found


PHRASES: Final = _table()
"""First word → second word, or "" for rows of one word → rows, the longest first."""
