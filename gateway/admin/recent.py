"""The most recent requests, kept with what was known when each was routed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.request_record import RequestRecord


class RecentRequests:
    """Remembers the last so many requests; an observer that costs one append."""

    def __init__(self, kept: int) -> None:
        self._records: deque[RequestRecord] = deque(maxlen=kept)

    def finished(self, record: RequestRecord) -> None:
        """Remember the request."""
        self._records.append(record)

    def __len__(self) -> int:
        return len(self._records)

    def keep(self, kept: int) -> None:
        """Keep another number from now on; the newest stay."""
        if kept != self._records.maxlen:
            self._records = deque(self._records, maxlen=kept)

    def find(self, request_id: str) -> RequestRecord | None:
        """The newest request of that id (a client may choose the same one again), or None."""
        wanted = request_id.encode("utf-8", "surrogateescape")
        return next((record for record in reversed(self._records) if record.request_id == wanted), None)

    def newest(
        self,
        limit: int,
        *,
        worker: str | None = None,
        outcome: str | None = None,
        model: str | None = None,
        tenant: str | None = None,
    ) -> list[RequestRecord]:
        """At most `limit`, newest first. A request belongs to every worker that it was tried on."""
        return list(islice(self._matching(worker, outcome, model, tenant), limit))

    def _matching(
        self, worker: str | None, outcome: str | None, model: str | None, tenant: str | None
    ) -> Iterator[RequestRecord]:
        for record in reversed(self._records):
            if tenant is not None and record.tenant != tenant:
                continue
            if outcome is not None and record.outcome.value != outcome:
                continue
            if model is not None and record.model != model:
                continue
            if worker is not None and all(attempt.worker != worker for attempt in record.attempts):
                continue
            yield record
