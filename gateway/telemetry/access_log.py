"""A line for each request: where it went, what it took, how it ended. No prompt and no key is in its record."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from gateway.logs import FIELDS
from gateway.telemetry.shown import LONGEST, shown

if TYPE_CHECKING:
    from gateway.request_record import RequestRecord

log = logging.getLogger("gateway.access")

_REQUEST: Final = ("method", "path", "status")


class AccessLog:
    """Writes the lines. An observer only where `log.access` is set."""

    def finished(self, record: RequestRecord) -> None:
        """Write the line of one request."""
        if not log.isEnabledFor(logging.INFO):
            return
        fields = access_fields(record)
        log.info("%s", _Line(fields), extra={FIELDS: fields})


def access_fields(record: RequestRecord) -> dict[str, object]:
    """What is told of a request; None where there is nothing to tell."""
    first = record.first_byte_at
    usage = record.usage
    return {
        "method": shown(record.method),
        "path": shown(record.path),
        "status": record.status,
        "outcome": record.outcome.value,
        "tenant": record.tenant or None,
        "class": record.service_class or None,
        "queued_s": round(record.queued_s, 6) if record.service_class else None,
        "cache": record.cache or None,
        "cache_refusal": record.cache_refusal or None,
        "worker": record.worker,
        "attempts": len(record.attempts),
        "model": record.model,
        "tokens": record.prompt_tokens,
        "cached": record.cached_tokens,
        "completion_tokens": usage.completion,
        "reported_cached": usage.cached,
        "ttft_ms": round((first - record.arrived) * 1e3, 1) if first else None,
        "ms": round((record.finished_at - record.arrived) * 1e3, 1),
        "bytes": record.response_bytes,
        "request_id": shown(record.request_id),
        "trace_id": record.trace.trace_id.decode() if record.trace is not None else None,
        "error": record.error[:LONGEST] or None,
    }


class _Line:
    """The fields as a line for people: the request first, then `name=value`."""

    def __init__(self, fields: Mapping[str, object]) -> None:
        self._fields = fields

    def __str__(self) -> str:
        request = " ".join(str(self._fields[name]) for name in _REQUEST)
        return " ".join(
            [
                request,
                *(
                    f"{name}={_value(value)}"
                    for name, value in self._fields.items()
                    if value is not None and name not in _REQUEST
                ),
            ]
        )


def _value(value: object) -> str:
    text = str(value)
    return f'"{text}"' if " " in text or '"' in text or not text else text
