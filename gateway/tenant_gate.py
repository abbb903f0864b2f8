"""What becomes of a request because of whose it is: let in or refused, salted, counted, and counted out again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.api_error import ApiError
from gateway.dialects.anthropic import ANTHROPIC
from gateway.dialects.openai import OPENAI
from gateway.model_rewrite import Splice, splice_of
from gateway.own_answers import speaks_anthropic
from gateway.prompt_text import amount
from gateway.rate_fields import rate_fields
from gateway.request_caps import check_caps
from gateway.routes import dialect_of

if TYPE_CHECKING:
    from backends.http1 import RequestHead
    from gateway.calls import Call
    from gateway.dialects.base import Dialect
    from gateway.exchange import Exchange
    from gateway.tenancy import Tenancy, Tenant
    from policies.tenant import Caps

_OPEN_PATH: Final = b"/health"
"""Asked by load balancers, who have no key; it tells nothing of any tenant."""
_MODELS: Final = b"/v1/models"
"""Which clients of both dialects ask."""
_CHARS_PER_TOKEN: Final = 4
_FIRST_ERROR_STATUS: Final = 400
_SALT: Final = "cache_salt"


def unwelcome(head: RequestHead, tenancy: Tenancy) -> bool:
    """Will `identify` refuse a request of which only the head has come? Nobody without a key shall make us hold a
    body.
    """
    try:
        if head.path != _OPEN_PATH:
            tenancy.authenticate(head, anthropic=_dialect(head) is ANTHROPIC).check_path(head.path)
    except ApiError:
        return True
    return False


def identify(exchange: Exchange, tenancy: Tenancy) -> Tenant | None:
    """Find out whose request it is; None for the one path that anybody may ask.

    Raises:
        ApiError: 401 without the key of a tenant, 403 for a path that it may not use.
    """
    head = exchange.head
    if head.path == _OPEN_PATH:
        return None
    dialect = exchange.dialect = _dialect(head)
    tenant = exchange.tenant = tenancy.authenticate(head, anthropic=dialect is ANTHROPIC)
    exchange.policy = tenant.rules.policy
    exchange.record.tenant = tenant.name
    tenant.check_path(head.path)
    return tenant


def check_model(exchange: Exchange, call: Call, tenant: Tenant, named: str | None) -> None:
    """Raises ApiError, 403, for a model that the tenant may not use: `named` by the client, `call.model` as the workers
    know it.
    """
    if named is None or call.model is None:
        if call.may_go_anywhere and exchange.body and tenant.rules.models is not None:
            # Of what is passed through a worker may read more than is read here.
            message = "This request names no model that is seen here, and this key may use some models only."
            raise ApiError(403, message, code="model_not_allowed")
    elif not (tenant.may_use(named) or tenant.may_use(call.model)):
        message = f"This key may not use the model `{named[:200]}`."
        raise ApiError(403, message, param="model", code="model_not_allowed")


def admit(exchange: Exchange, call: Call, tenant: Tenant, now: float) -> None:
    """Hold a request whose model is known to its tenant's caps and rates, and give it the tenant's salt.

    Raises:
        ApiError: 400 for what asks for more than it may, 429 where a rate is used up. Nothing was counted.
    """
    policy = exchange.policy = tenant.policy(call.model)
    limits = tenant.limits(call.model)
    tokens = 0
    if call.has_prompt:
        if call.generates:
            _cap(exchange, call, policy.caps)
        give_salt(exchange, call, tenant)
        if limits.metered:
            tokens = amount(call.fields).chars // _CHARS_PER_TOKEN or 1
            exchange.counts_events = call.streams
    if limits.unlimited:
        exchange.ticket = limits.admit(tokens, now)
        return
    try:
        exchange.ticket = limits.admit(tokens, now)
    finally:
        exchange.own_fields += rate_fields(limits.limiters, now)


def release(exchange: Exchange, now: float) -> None:
    """The request is over: whatever it held is free again, and what it used is charged."""
    ticket = exchange.ticket
    if ticket is None:
        return
    exchange.ticket = None
    used = exchange.record.charged_tokens = _used(exchange, ticket.tokens)
    ticket.end(used, now)


def _dialect(head: RequestHead) -> Dialect:
    """In which its client shows a key."""
    dialect = dialect_of(head.path)
    if dialect is OPENAI and head.path.startswith(_MODELS) and speaks_anthropic(head.fields):
        return ANTHROPIC
    return dialect


def _used(exchange: Exchange, estimate: int) -> int:
    """Tokens of a request that is over: as the worker told them, else as they were counted here. What was refused,
    failed before anything came of it, or came from the cache in the end, has used none.
    """
    record = exchange.record
    if exchange.worker is None or record.status >= _FIRST_ERROR_STATUS:
        return 0
    usage = record.usage
    prompt = (record.prompt_tokens or estimate) if usage.prompt is None else usage.prompt
    return prompt + (exchange.n_events if usage.completion is None else usage.completion)


def _cap(exchange: Exchange, call: Call, caps: Caps) -> None:
    if caps.max_tokens is None and caps.n is None:
        return
    unbounded = check_caps(call.kind, call.fields, caps)
    if unbounded is not None:
        value = str(caps.max_tokens).encode()
        exchange.body = splice_of(exchange.body, call.fields, unbounded, value).into(exchange.body)
        call.fields[unbounded] = caps.max_tokens


def give_salt(exchange: Exchange, call: Call, tenant: Tenant) -> None:
    """Into the fields that are read here, and, for workers that take it, into the body."""
    fields = call.fields
    own = fields.get(_SALT)
    if own is None and fields and _SALT not in fields:  # as nearly all requests are
        at = exchange.body.index(b"{") + 1
        exchange.salting = Splice(at, at, tenant.salt_field)
        fields[_SALT] = tenant.salt("")
        return
    if own is not None and type(own) is not str:
        raise ApiError(400, f"`{_SALT}` must be a string.", param=_SALT, code="invalid_type")
    salt = tenant.salt(own or "")
    exchange.salting = splice_of(exchange.body, fields, _SALT, b'"%b"' % salt.encode())
    fields[_SALT] = salt
