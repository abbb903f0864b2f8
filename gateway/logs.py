"""Log lines on standard error: for people, or one JSON object each. Neither ever holds a prompt or a key.

What clients and workers say can be part of a message, so nothing in one can end a line or steer a terminal: control
characters are written as escapes, and the further lines of a traceback are marked as such.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

import orjson

from gateway.config.control import Log

FIELDS: Final = "fields"
"""Key of `extra` under which a caller hands over what the line is made of: fields in JSON, left out for people."""

_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_TRACEBACK_MARK: Final = "    | "


def one_line(text: str) -> str:
    """The text with every control character, line separator and writing direction as an escape."""
    return _CONTROL.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


class TextFormatter(logging.Formatter):
    """Time, level and message in one line; a traceback below it, each of its lines marked."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """The line itself."""
        return one_line(super().formatMessage(record))

    def formatException(self, ei: object) -> str:  # noqa: N802 - logging's name
        """The traceback below it."""
        text = super().formatException(ei)  # type: ignore[arg-type]  # handed on as it came
        return "\n".join(_TRACEBACK_MARK + one_line(line) for line in text.split("\n"))


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, the caller's fields, and the traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """Render one record."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields = getattr(record, FIELDS, None)
        if isinstance(fields, Mapping):
            line = {**fields, **line}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return _CONTROL.sub(_json_escaped, _dumped(line))


def _json_escaped(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"


def _dumped(line: Mapping[str, object]) -> str:
    try:
        return orjson.dumps(line, default=str).decode()
    except TypeError:  # half a surrogate pair, or a number beyond 64 bits
        return json.dumps(line, default=str)


def set_up_logging(settings: Log) -> None:
    """Send everything of at least `settings.level` to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if settings.format == "json" else TextFormatter())
    logging.basicConfig(level=settings.level.upper(), handlers=[handler], force=True)
