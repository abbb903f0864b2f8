"""Configuration: YAML into strict, frozen models. An error names every problem at once."""

from __future__ import annotations

from gateway.config.control import Admin, Log, Telemetry
from gateway.config.health import Health
from gateway.config.load import config_from_flags, json_schema, load_config, parse_config
from gateway.config.problems import ConfigError, Problem
from gateway.config.schema import Config, Index, Limits, ListenTls, Model, Tokens, Upstream
from gateway.config.tenants import JwtIssuer, SharedLimits, Tenant, TenantModel, Tenants
from gateway.config.workers import DnsDiscovery, KvEvents, UpstreamTls, Worker, WorkerSettings

__all__ = [
    "Admin",
    "Config",
    "ConfigError",
    "DnsDiscovery",
    "Health",
    "Index",
    "JwtIssuer",
    "KvEvents",
    "Limits",
    "ListenTls",
    "Log",
    "Model",
    "Problem",
    "SharedLimits",
    "Telemetry",
    "Tenant",
    "TenantModel",
    "Tenants",
    "Tokens",
    "Upstream",
    "UpstreamTls",
    "Worker",
    "WorkerSettings",
    "config_from_flags",
    "json_schema",
    "load_config",
    "parse_config",
]
