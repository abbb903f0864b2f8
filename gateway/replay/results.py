"""The replay as JSON: settings, summary and every request's row (documented in docs/replay.md)."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import orjson

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gateway.replay.records import RequestRecord
    from gateway.replay.stats import Hits, Summary

SCHEMA: Final = "prefixgate.replay/2"

_MICRO: Final = 6  # digits of a second that are kept


def to_json(
    *,
    settings: Mapping[str, object],
    summary: Summary,
    records: Sequence[RequestRecord],
    interrupted: bool,
) -> bytes:
    """The whole document, indented, ended by a newline."""
    document = {
        "schema": SCHEMA,
        "settings": settings,
        "interrupted": interrupted,
        "summary": summary_fields(summary),
        "requests": [row(record) for record in records if record.sent is not None],
    }
    return orjson.dumps(_rounded(document), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def summary_fields(summary: Summary) -> dict[str, object]:
    """``summary`` with its derived shares written out."""
    fields = asdict(summary)
    fields["failed"] = summary.failed
    fields["hits"] = _hits(summary.hits)
    fields["slices"] = [_hits(hits) for hits in summary.slices]
    for load, written in zip(summary.workers, fields["workers"], strict=True):
        written["hits"] = _hits(load.hits)
    return fields


def row(record: RequestRecord) -> dict[str, object]:
    """One request; every time in seconds since the replay began, every length of time in seconds."""
    return {
        "index": record.index,
        "session": record.session,
        "worker": record.worker,
        "status": record.status,
        "error": record.error,
        "error_detail": record.error_detail,
        "scheduled": record.scheduled,
        "sent": record.sent,
        "first_token": record.first_token,
        "last_token": record.last_token,
        "finished": record.finished,
        "ttft": record.ttft,
        "latency": record.latency,
        "tpot": record.tpot,
        "itl_count": record.gaps.count,
        "itl_mean": record.gaps.mean,
        "itl_max": record.gaps.longest if record.gaps.count else None,
        "input_tokens": record.input_tokens,
        "output_tokens": record.output_tokens,
        "limit_tokens": record.limit_tokens,
        "prompt_tokens": record.prompt_tokens,
        "cached_tokens": record.cached_tokens,
        "completion_tokens": record.completion_tokens,
        "token_events": record.token_events,
        "warm_up": record.warm_up,
    }


def _hits(hits: Hits) -> dict[str, object]:
    return asdict(hits) | {"share": hits.share, "limit": hits.limit, "of_limit": hits.of_limit}


def _rounded(value: object) -> object:
    match value:
        case float():
            return round(value, _MICRO)
        case dict():
            return {key: _rounded(item) for key, item in value.items()}
        case list() | tuple():
            return [_rounded(item) for item in value]
        case _:
            return value
