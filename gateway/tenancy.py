"""Tenants at run time: who is asking, what they may do, how much of it is left."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from backends.http1 import RequestHead
from cache.tenant_salt import group_salt, tenant_salt
from gateway.api_error import ApiError
from gateway.api_keys import KeyDigest, KeyRing, presented_key
from gateway.jwt_tenants import JwtVerifier
from gateway.rate_fields import retry_fields
from policies.rate_limit import Limited, RateLimiter, Refusal
from policies.shared_limits import Limiters, limiter_id
from policies.tenant import NO_RATES, Rates, TenantPolicy

_HEADS: Final = 256
_CHALLENGE: Final = b"\r\nwww-authenticate: Bearer"


@dataclass(frozen=True, slots=True)
class TenantRules:
    """What the configuration says of one tenant."""

    policy: TenantPolicy
    by_model: Mapping[str, TenantPolicy] = field(default_factory=dict)
    """For models that have one of their own."""
    rates: Rates = NO_RATES
    rates_by_model: Mapping[str, Rates] = field(default_factory=dict)
    """Of single models, beside those of the tenant."""
    models: frozenset[str] | None = None
    """None: all."""
    paths: tuple[bytes, ...] | None = None
    """Paths, `*` at the end for all that begin so; None: all."""
    group: str | None = None
    """With whom it shares what is cached."""


class Ticket:
    """A request that was let in: what it counts as until it is over."""

    __slots__ = ("limiters", "tokens")

    def __init__(self, limiters: Sequence[RateLimiter], tokens: int) -> None:
        """`tokens` have been taken of all limiters."""
        self.limiters = limiters
        self.tokens = tokens

    def end(self, tokens: int, now: float) -> None:
        """The request is over and has used so many tokens in all. Once only."""
        further = tokens - self.tokens
        for limiter in self.limiters:
            limiter.end(further, now)


class Limits:
    """All that limits how much a tenant may ask of one model: its own rates, and those of the model."""

    __slots__ = ("limiters", "metered", "unlimited")

    def __init__(self, *limiters: RateLimiter) -> None:
        """For as long as the limiters are not configured anew."""
        self.limiters = limiters
        self.metered = any(limiter.tokens is not None for limiter in limiters)
        """Does it matter how many tokens a request has?"""
        self.unlimited = not self.metered and all(
            limiter.requests is None and limiter.concurrent is None for limiter in limiters
        )

    def admit(self, tokens: int, now: float) -> Ticket:
        """Let a request in that is about so many tokens long.

        Raises:
            ApiError: 429 where a rate is used up. Nothing was counted.
        """
        limiters = self.limiters
        if not self.unlimited:
            refused: Refusal | None = None
            for limiter in limiters:
                refusal = limiter.refusal(tokens, now)
                if refusal is not None and (refused is None or (refusal.wait_s or 0) > (refused.wait_s or 0)):
                    refused = refusal
            if refused is not None:
                raise _too_many(refused)
        for limiter in limiters:
            limiter.take(tokens, now)
        return Ticket(limiters, tokens)


class Tenant:
    """One tenant, as long as the configuration stays as it is; what it has used outlives that."""

    def __init__(self, rules: TenantRules, salt_key: bytes, now: float, before: Tenant | None = None) -> None:
        """`before` is the same tenant under the configuration before."""
        self.name = rules.policy.name
        self.rules = rules
        self.scope = self.name.encode() + b"\0"
        """Before the names of what belongs to it alone: no header and no name has that byte."""
        self.answers_scope = tenant_salt(salt_key, self.name).encode()
        """Whose answers it may meet: its own, whatever group its prompts are in."""
        self._salt_key = salt_key
        self._salt = tenant_salt(salt_key, self.name) if rules.group is None else group_salt(salt_key, rules.group)
        self.salt_field = b'"cache_salt":"%b",' % self._salt.encode()
        """At the beginning of a JSON object that has other fields."""
        self.limiter: RateLimiter = _configured(None if before is None else before.limiter, rules.rates, now)
        known: Mapping[str, RateLimiter] = {} if before is None else before.by_model
        self.by_model: Mapping[str, RateLimiter] = {
            model: _configured(known.get(model), rates, now) for model, rates in rules.rates_by_model.items()
        }
        self._limits = Limits(self.limiter)
        self._limits_of = {model: Limits(self.limiter, limiter) for model, limiter in self.by_model.items()}

    # -- what it may do

    def policy(self, model: str | None) -> TenantPolicy:
        """What holds for its requests to a model, by the name that workers serve."""
        rules = self.rules
        return rules.by_model.get(model, rules.policy) if model is not None else rules.policy

    def check_path(self, path: bytes) -> None:
        """Raises ApiError, 403, for a path that it may not use."""
        paths = self.rules.paths
        if paths is None or path in paths:
            return
        if not any(pattern.endswith(b"*") and path.startswith(pattern[:-1]) for pattern in paths):
            raise ApiError(403, "This key may not use this path.", code="path_not_allowed")

    def may_use(self, model: str) -> bool:
        """May it use a model of that name, be it an alias or not?"""
        return self.rules.models is None or model in self.rules.models

    def salt(self, own: str) -> str:
        """The salt of a request that brings one of its `own`, or none (an empty one)."""
        return tenant_salt(self._salt_key, self.name, own) if own else self._salt

    # -- how much of it

    def limits(self, model: str | None) -> Limits:
        """Of its requests to a model."""
        return self._limits_of.get(model, self._limits) if model is not None else self._limits


class Tenancy:
    """All tenants of a configuration, at least one."""

    tenants: Mapping[str, Tenant]

    def __init__(
        self,
        rules: Iterable[TenantRules],
        keys: Mapping[KeyDigest, str],
        *,
        salt_key: bytes,
        now: float,
        before: Tenancy | None = None,
        issuer: JwtVerifier | None = None,
    ) -> None:
        """`keys` are names of tenants by their keys' digests; a name that is none of a tenant is passed over."""
        known: Mapping[str, Tenant] = {} if before is None else before.tenants
        self.tenants = {each.policy.name: Tenant(each, salt_key, now, known.get(each.policy.name)) for each in rules}
        self.limiters: Limiters = {
            limiter_id(name, model): limiter
            for name, tenant in self.tenants.items()
            for model, limiter in ((None, tenant.limiter), *tenant.by_model.items())
            if not limiter.unlimited
        }
        """Those that limit anything."""
        self.issuer = issuer
        self._recognised: dict[int, tuple[RequestHead, Tenant]] = {}
        """By the identity of a head, which lives as long as it is in here."""
        self.keys = KeyRing({digest: self.tenants[name] for digest, name in keys.items() if name in self.tenants})

    def authenticate(self, head: RequestHead, *, anthropic: bool) -> Tenant:
        """The tenant whose key, or token, a client shows.

        Raises:
            ApiError: 401 where it is nobody's; 503 while tokens cannot be checked.
        """
        # A client repeats its head, and the reader of heads then gives the same object: no key need be compared, not
        # even its digest. With other keys in force there is another tenancy.
        recognised = self._recognised.get(id(head))
        if recognised is not None and recognised[0] is head:
            return recognised[1]
        key = presented_key(head.credentials, anthropic=anthropic)
        if key is None:
            way = "x-api-key: KEY" if anthropic else "Authorization: Bearer KEY"
            message = f"This gateway needs an API key; send it as one header, `{way}`."
            raise ApiError(401, message, code="invalid_api_key", fields=_CHALLENGE)
        tenant = self.keys.owner(key)
        if tenant is not None:
            if len(self._recognised) >= _HEADS:
                self._recognised.clear()
            self._recognised[id(head)] = head, tenant
            return tenant
        if self.issuer is not None and (name := self.issuer.tenant(key)) is not None and name in self.tenants:
            return self.tenants[name]
        raise ApiError(401, "Incorrect API key provided.", code="invalid_api_key", fields=_CHALLENGE)


def _configured(limiter: RateLimiter | None, rates: Rates, now: float) -> RateLimiter:
    if limiter is None:
        return RateLimiter(rates, now)
    limiter.configure(rates, now)
    return limiter


def _too_many(refusal: Refusal) -> ApiError:
    limit = f"{refusal.limit:.0f}"
    if refusal.wait_s is None:
        message = f"This key may have {limit} requests at a time, and has them; try again when one is over."
    else:
        what = refusal.limited.value
        message = f"This key may use {limit} {what} a minute; try again in {refusal.wait_s:.3g} s."
    kind = "tokens" if refusal.limited is Limited.TOKENS else "requests"
    return ApiError(429, message, code="rate_limit_exceeded", kind=kind, fields=retry_fields(refusal))
