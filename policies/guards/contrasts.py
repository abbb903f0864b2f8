"""Words that stand against each other: where one text has one and the other text the other, they differ.

The content guard refuses most of these already. This table is for what it lets pass in statements, and says why.
"""

from __future__ import annotations

from typing import Final

from policies.guards.alignment import Pair
from policies.guards.stemming import stem

# Each word of the left side against each of the right one.
_ROWS = """
upload push | download pull fetch
load read import open retrieve | save write export close store dump
add insert append attach include incorporate | remove delete drop erase detach exclude omit discard subtract skip
create build construct generate make | destroy delete remove drop
create build construct generate make | load read open
enable activate allow permit support facilitate | disable deactivate forbid prohibit prevent block deny reject
start begin launch initiate open enter | stop end finish terminate close halt exit pause
increase raise grow expand enlarge extend boost | decrease reduce lower shrink cut lessen minimize diminish
accelerate hasten | slow delay
improve enhance better | worsen degrade harm damage
merge combine join unite concatenate | split divide separate partition
encode encrypt compress pack zip | decode decrypt decompress unpack unzip extract
install register subscribe | uninstall unregister unsubscribe
connect link | disconnect unlink
lock | unlock
push | pull pop
send give provide supply | receive take get obtain accept
ask | answer
buy purchase | sell
borrow | lend
win gain | lose
pass succeed | fail
accept | reject refuse decline
love like | hate dislike
import | export
input | output
flatten | nest
shuffle randomize | sort order arrange
show display reveal | hide conceal
remember | forget
arrive come enter | leave depart go
rise | fall
train training | test testing validation evaluation
first initial | last final
previous prior former earlier | next following subsequent later latter
early earlier | late later
old ancient outdated | new recent modern young fresh
oldest | newest latest
maximum max maximal most highest largest | minimum min minimal least lowest smallest
large big huge vast great | small little tiny minor
high | low
long | short
wide broad | narrow
thick | thin
deep | shallow
heavy | light
fast quick rapid swift | slow
quickly rapidly fast swiftly | slowly
good beneficial helpful positive | bad harmful negative poor
best | worst
better | worse
safe secure | unsafe dangerous insecure risky
legal | illegal
possible | impossible
available present existing | unavailable missing absent
valid correct right true | invalid incorrect wrong false
optional voluntary | mandatory required necessary obligatory compulsory
local internal | remote external global
public | private
automatic automated automatically | manual manually
static constant fixed | dynamic variable changing
temporary transient temporarily | permanent permanently persistent
same identical equal similar | different distinct unequal dissimilar
single one individual | multiple several many various
whole entire full complete entirely fully completely wholly | partial half partially incomplete partly
empty | full nonempty
simple easy | complex difficult hard complicated
easily | hardly
strong powerful | weak
rich wealthy | poor
hot warm | cold cool
wet | dry
open | closed
general common usual normal typical | specific particular special rare unusual
general | particular
random arbitrary | sequential ordered sorted
horizontal | vertical
left | right
top upper | bottom lower
front | rear
north | south
east | west
inside internal | outside external
row record | column
custom customized tailored | default standard builtin
key | value
name | value
client | server
parent | child
teacher | student
employer | employee
buyer | seller
male man boy father son husband brother uncle king | female woman girl mother daughter wife sister aunt queen
day | night
morning | evening afternoon
summer | winter
always | never
advantage benefit strength | disadvantage drawback weakness
success | failure
cause | effect
question | answer
problem | solution
beginning start | end
union | intersection
mean average | median
numerator | denominator
image picture vision visual | audio sound text textual speech video
audio sound | text textual video
string text | number integer boolean
list | dictionary
file | folder directory
function method | class module
function method class | parameter argument
"""


def _table() -> dict[str, frozenset[str]]:
    table: dict[str, set[str]] = {}
    for row in _ROWS.strip().splitlines():
        left, right = ([f"w:{stem(word)[0]}" for word in side.split()] for side in row.split("|"))
        for one in left:
            table.setdefault(one, set()).update(right)
        for one in right:
            table.setdefault(one, set()).update(left)
    return {word: frozenset(others - {word}) for word, others in table.items()}


CONTRASTS: Final = _table()


class ContrastGuard:
    """Refuses "upload" against "download", "first" against "last"."""

    name = "contrast"

    def refuses(self, pair: Pair) -> str:
        """See `Guard`."""
        stored, new = pair.stored, pair.new
        pairs = pair.alignment
        fresh = {new.items[at].key for at in pairs.new_only}
        for at in pairs.stored_only if fresh else ():
            against = CONTRASTS.get(stored.items[at].key)
            if against and not against.isdisjoint(fresh):
                return "contrast"
        return ""
