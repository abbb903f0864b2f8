"""English closed-class words and what each says about meaning, as data.

A word that stands in none of these tables is a content word: it must be found again in the other text.
"""

from __future__ import annotations

from typing import Final

from policies.guards.word_lists import words


def _classes(text: str) -> dict[str, str]:
    """Lines of "mark: word word" → word to mark."""
    table: dict[str, str] = {}
    for line in text.strip().splitlines():
        mark, words = line.split(":")
        table.update(dict.fromkeys(words.split(), mark.strip()))
    return table


SILENT: Final = words("a an the that which there")
"""Say nothing that the other words do not say, but where a question opens with them."""

PRESENT_BE: Final = words("is are am be been being")
PAST_AUXILIARY: Final = words("was were did had")
PRESENT_AUXILIARY: Final = words("do does have has having")
AUXILIARY: Final = PRESENT_BE | PAST_AUXILIARY | PRESENT_AUXILIARY

NEGATION: Final = words(
    "not no never none nobody nothing nowhere neither nor without cannot hardly scarcely barely lack lacks "
    "lacking except "
    ""
    "excluding unless non avoid avoids avoided avoiding instead"
)
"""A mark each; all of one effect are told apart below."""

MODAL: Final = _classes("""
can: can could @can
may: may might
must: must @must
should: should ought
will: will
shall: shall
would: would
""")

QUANTIFIER: Final = _classes("""
all: all
everybody: everyone everybody
everything: everything
each: each every
any: any
anybody: anyone anybody
anything: anything
some: some
somebody: someone somebody
something: something
most: most
mostly: mostly
many: many much
several: several multiple numerous
few: few little
both: both
either: either
half: half
other: other another others else
only: only solely merely exclusively
just: just
even: even
also: too
again: again
still: still
already: already
yet: yet
enough: enough
almost: almost nearly
about: approximately roughly
same: same
such: such
very: very extremely highly
always: always
often: often frequently
sometimes: sometimes occasionally
usually: usually typically generally normally
rarely: rarely seldom
maybe: maybe perhaps possibly
more: more
less: less fewer
least: least
too: too
""")

QUESTION: Final = _classes("""
what: what
which: which
who: who whom
whose: whose
where: where
when: when
why: why
how: how
""")

PREPOSITION: Final = _classes("""
of: of
in: in inside
within: within
on: on upon
at: at
to: to
for: for
by: by
@by: @by
with: with
from: from
into: into
onto: onto
about: about regarding concerning
as: as
like: like
than: than
before: before
after: after
since: since
until: until till
during: during
over: over
under: under underneath beneath
above: above
below: below
between: between
among: among amongst amid
against: against
through: through
throughout: throughout
toward: toward towards
across: across
along: along
around: around
near: near
behind: behind
beside: beside
besides: besides
beyond: beyond
per: per
despite: despite
out: out
off: off
up: up
down: down
back: back
away: away
outside: outside
""")
DIRECTION: Final = words(
    "before after since until under above below against toward across near behind beside beyond despite "
    "off down outside than onto away"
)
"""No other wording changes these."""
CONJUNCTION: Final = _classes("""
and: and
or: or
but: but though although however nevertheless nonetheless
if: if whether
once: once
when: whenever
while: while whilst
whereas: whereas
because: because
so: so
then: then afterwards afterward
""")
AGENT: Final = frozenset({"by", "@by"})
MODALS: Final = words("@can can @must must @how how will may should @should @purpose")
SOFT_MARKS: Final = (MODALS - {"@how", "how"}) | words("either such also both @usedto @as @you what which")
"""Modals and the like that come and go where a statement is put in other words; other guards weigh them as a whole."""

PRONOUN: Final = words(
    "i me my mine myself you your yours yourself we us our ours ourselves he him his himself she her hers herself "
    "this these those here it its itself they them their theirs themselves"
)
"""Content words of a kind: never another pronoun in their place."""

POLITE: Final = words("please kindly hi hello hey thanks")
"""Said to whoever answers, where they are not what is asked about."""
ASSURING: Final = words("actually really truly indeed")
"""Change nothing of a question whose answer is yes or no; what really happened is not what happened."""
DISCOURSE: Final = (
    POLITE
    | ASSURING
    | words("also additionally moreover furthermore therefore thus hence thereby namely simply easily")
)
"""May come or go in a statement."""

LANGUAGE_NAMES: Final = words(
    "english french german spanish italian portuguese dutch russian chinese japanese korean arabic hindi polish "
    "turkish "
    ""
    "swedish danish norwegian finnish greek hebrew latin czech hungarian romanian ukrainian vietnamese thai indonesian"
)

ENGLISH: Final = (
    SILENT | AUXILIARY | NEGATION | PRONOUN | DISCOURSE | frozenset(MODAL) | frozenset(QUESTION) | frozenset(QUANTIFIER)
    | frozenset(PREPOSITION) | frozenset(CONJUNCTION)
)  # fmt: skip

FOREIGN: Final = words(
    # Function words that are no English words, of languages in Latin letters.
    "der das und ist ein eine einen nicht ich du wir ihr sie mit für auf wie kann dem den des zu von im wo wer "
    "warum welche können sind haben habe el la los las un una y que es en por para con como qué cómo dónde cuál quién "
    "está son mi su del al le les et est une des du dans pour avec sur quel quelle comment où je tu il elle nous vous "
    "pourquoi combien qui ne pas ce cette mon il lo gli che di e è per come cosa dove perché quando sono della dei "
    "o os as um uma não como onde qual quem seu sua em no na het een van ik je niet wat hoe waar dat zijn met voor "
    "och att det som är jag hur vad inte på med för av til er jeg hvordan hva ikke og på w z się nie jest jak co czy "
    "gdzie do na ve bir bu ne nasıl için mi de da yang dan di ini itu apa bagaimana untuk dari tidak saya "
)  # fmt: skip
