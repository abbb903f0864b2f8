"""Whether there is room in the queue for one more request: for anybody, and for its tenant."""

from __future__ import annotations

from typing import Final

from policies.admission_types import AdmissionSettings, Reason
from policies.fair_queue import Account, Waiting

_CROWDING: Final = 8
"""How many times what is left free one tenant may hold in one class, after Choudhury and Hahne's dynamic thresholds
(IEEE/ACM Transactions on Networking, 1998)."""


class Limits:
    """Those of the settings; without `by_tenant` only those of the whole queue, and nobody leaves room for others."""

    __slots__ = ("_bounds_tenants", "_by_tenant", "_settings")

    def __init__(self, settings: AdmissionSettings, *, by_tenant: bool) -> None:
        self._settings = settings
        self._by_tenant = by_tenant
        self._bounds_tenants = settings.tenant_max_waiting is not None or settings.tenant_max_bytes is not None

    def refusal(self, account: Account | None, rank: int, size: int, n_waiting: int, n_bytes: int) -> Reason | None:
        """Why one of `size` bytes may not wait in that class, with so many requests and bytes that do; None if it may.
        `account` is its tenant's, if that has anything here.
        """
        settings = self._settings
        count = held = 0
        if account and self._by_tenant:
            count, held = account.counts[rank], account.bytes[rank]
        if self._by_tenant and self._bounds_tenants and (reason := self._of_tenant(count, held + size)):
            return reason
        free, free_bytes = settings.max_waiting - n_waiting - 1, settings.max_bytes - n_bytes - size
        if count > _CROWDING * free:
            return Reason.QUEUE_FULL if free < 0 else Reason.TENANT_FULL
        if held > _CROWDING * free_bytes:
            return Reason.QUEUE_BYTES if free_bytes < 0 else Reason.TENANT_BYTES
        return None

    def fits_below(self, waiting: Waiting) -> bool:
        """Whether its tenant may have it wait in the next lower class; the queue as a whole holds it already."""
        account, lower = waiting.account, waiting.rank + 1
        return self._of_tenant(account.counts[lower], account.bytes[lower] + waiting.request.size) is None

    def _of_tenant(self, before: int, n_bytes: int) -> Reason | None:
        """What a tenant exceeds that had so many requests in a class, and would have so many bytes."""
        settings = self._settings
        if settings.tenant_max_waiting is not None and before >= settings.tenant_max_waiting:
            return Reason.TENANT_FULL
        if settings.tenant_max_bytes is not None and n_bytes > settings.tenant_max_bytes:
            return Reason.TENANT_BYTES
        return None
