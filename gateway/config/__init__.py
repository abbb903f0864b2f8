"""Configuration: YAML into strict, frozen models. An error names every problem at once."""

from __future__ import annotations

from gateway.config.load import config_from_flags, json_schema, load_config, parse_config
from gateway.config.problems import ConfigError, Problem
from gateway.config.schema import (
    Config,
    CostPolicy,
    Index,
    KvEvents,
    Limits,
    Listen,
    Log,
    Model,
    ResponseHeaders,
    Routing,
    Tokens,
    Upstream,
    Worker,
)

__all__ = [
    "Config",
    "ConfigError",
    "CostPolicy",
    "Index",
    "KvEvents",
    "Limits",
    "Listen",
    "Log",
    "Model",
    "Problem",
    "ResponseHeaders",
    "Routing",
    "Tokens",
    "Upstream",
    "Worker",
    "config_from_flags",
    "json_schema",
    "load_config",
    "parse_config",
]
