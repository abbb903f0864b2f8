"""The configuration as it may be shown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from gateway.config import Config

_CREDENTIALS: Final = re.compile(r"//[^/\s]*@")


def masked(config: Config) -> dict[str, object]:
    """Every setting as JSON data. Secrets are stars: their type sees to that, and here credentials in URLs."""
    data = config.model_dump(mode="json")
    return {name: _without_credentials(value) for name, value in data.items()}


def _without_credentials(value: object) -> object:
    if isinstance(value, str):
        return _CREDENTIALS.sub("//***@", value)
    if isinstance(value, Mapping):
        return {name: _without_credentials(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_without_credentials(one) for one in value]
    return value
