"""What requests say of the KV of their tenant, and whether that is believed. No I/O but a line in the log."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from policies.kv_policy import KEEP_NOTHING, KV_POLICY_FIELD, NO_KV_POLICY, KvPolicy, read_kv_policy

log = logging.getLogger(__name__)


class ToldPolicy:
    """Of one worker."""

    def __init__(self, *, believed: bool) -> None:
        self._believed = believed
        self._misread = False

    def read(self, told: Sequence[str]) -> KvPolicy:
        """From the values of the header `KV_POLICY_FIELD`. Of what cannot be read nothing is kept: it might have been a
        limit.
        """
        if not told or not self._believed:
            return NO_KV_POLICY
        policy = read_kv_policy(told[0]) if len(told) == 1 else None
        if policy is None and not self._misread:
            self._misread = True
            log.warning("requests come with a header %s that cannot be read: their KV is not kept", KV_POLICY_FIELD)
        return KEEP_NOTHING if policy is None else policy
