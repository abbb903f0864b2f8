"""How a host is written beside a port: an IPv6 address in brackets (RFC 3986 §3.2.2)."""

from __future__ import annotations


def bracketed(host: str) -> str:
    """For a URL."""
    return f"[{host}]" if ":" in host else host


def place(host: str, port: int) -> str:
    """`host:port`."""
    return f"{bracketed(host)}:{port}"
