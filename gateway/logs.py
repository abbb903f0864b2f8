"""Log lines on standard error: for people, or one JSON object each. Neither ever holds a prompt or a key."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime

import orjson

from gateway.config.control import Log


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and the traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """Render one record."""
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(fields).decode()


def set_up_logging(settings: Log) -> None:
    """Send everything of at least `settings.level` to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    if settings.format == "json":
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S"))
    logging.basicConfig(level=settings.level.upper(), handlers=[handler], force=True)
