from policies.guards.content import ContentGuard
from policies.guards.contrasts import ContrastGuard
from policies.guards.negation import NegationGuard
from policies.guards.order import OrderGuard
GUARDS=(ContentGuard(),ContrastGuard(),NegationGuard(),OrderGuard())
