"""Words that stand against each other: where one text has one and the other text the other, they differ.

The content guard refuses most of these already. This table is for what it lets pass in statements, and says why.
"""

from __future__ import annotations

from itertools import combinations
from typing import Final

from policies.guards.alignment import Pair
from policies.guards.stemming import stem

# Each word of the left side against each of the right one.
_OPPOSITES = """
upload push | download pull fetch
load read import open retrieve | save write export close store dump
add insert append attach include incorporate | remove delete drop erase detach exclude omit discard subtract skip
create build construct generate make | destroy delete remove drop
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
beginning start | end
union | intersection
mean average | median
numerator | denominator
request | response reply
source origin | destination target
sender | receiver recipient
author writer | reader
owner admin administrator | guest visitor
producer | consumer
publisher | subscriber
primary master leader | replica secondary follower standby
width | height depth
host | port
prefix | suffix
head header | tail footer
leading | trailing
ascending | descending
increment | decrement
major | minor
inner | outer
commit | rollback revert
mount | unmount
acquire | release
allocate | free deallocate
grant | revoke
online | offline
synchronous sync | asynchronous async
mutable | immutable
signed | unsigned
supervised | unsupervised
batch | stream streaming
lazy lazily | eager eagerly
hard | soft
positive | negative
cpu | gpu
memory ram | disk
frontend | backend
compile | interpret
debug | release
past | future
inbound incoming ingress | outbound outgoing egress
upstream | downstream
depth | breadth
shared | exclusive
optimistic | pessimistic
ordered | unordered
visible | hidden
raise throw | catch handle
encoder | decoder
numerator dividend | denominator divisor
prepend | append
odd | even
gross | net
vertex node | edge
singular | plural
creation | deletion removal modification
read reading | write writing
read | convert transform
weekly | daily monthly yearly hourly
daily | monthly yearly hourly
monthly | yearly hourly
"""


# Not each other's opposites, but no more the same.
_OTHERS = """\
create build construct generate make | load read open
key | value
name | value
image picture vision visual | audio sound text textual speech video
audio sound | text textual video
string text | number integer boolean
list | dictionary
file | folder directory
function method | class module
function method class | parameter argument
name title label | size length number count
question | answer
problem | solution
example item row record entry element | batch shard
require need demand | return yield emit give provide supply
throughput | latency
accuracy precision | speed latency throughput
general common usual normal typical | specific particular special rare unusual
"""


def _table(rows: str) -> dict[str, frozenset[str]]:
    table: dict[str, set[str]] = {}
    for row in rows.strip().splitlines():
        left, right = ([f"w:{stem(word)[0]}" for word in side.split()] for side in row.split("|"))
        for one in left:
            table.setdefault(one, set()).update(right)
        for one in right:
            table.setdefault(one, set()).update(left)
    return {word: frozenset(others - {word}) for word, others in table.items()}


_OPPOSED: Final = _table(_OPPOSITES)
CONTRASTS: Final = _table(_OPPOSITES + _OTHERS)
_NONE: Final[frozenset[str]] = frozenset()


class ContrastGuard:
    """Refuses "upload" against "download", "first" against "last"; and, of statements, both words of such a pair where
    they have changed places.
    """

    name = "contrast"

    def refuses(self, pair: Pair) -> str:
        """See `Guard`."""
        stored, new = pair.stored.items, pair.new.items
        pairs = pair.alignment
        fresh = {new[at].key for at in pairs.new_only}
        for at in pairs.stored_only if fresh else ():
            if not CONTRASTS.get(stored[at].key, _NONE).isdisjoint(fresh):
                return "contrast"
        for at, place in pairs.order:
            if new[at].key in CONTRASTS.get(stored[place].key, _NONE):
                return "contrast"
        return "exchanged" if pair.loose and _exchanged(pair) else ""


def _exchanged(pair: Pair) -> bool:
    """Whether two words that stand against each other come in another order: what is told of the one may be told of
    the other.
    """
    stored = pair.stored.items
    kept = [place for _, place in pair.alignment.order if stored[place].key in _OPPOSED]
    return any(
        later < earlier and stored[later].key in _OPPOSED[stored[earlier].key]
        for earlier, later in combinations(kept, 2)
    )
