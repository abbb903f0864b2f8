"""Where a request came from: `X-Forwarded-For`, `-Proto` and `-Host`, believed from trusted proxies only. Pure.

Anybody can write these fields. From a peer that is not trusted they end here. From one that is, they go on with the
peer's own address behind those that it names, as every hop does it. Nothing is added where there were none: workers
have no use for their users' addresses, and whoever wants them there has a proxy that tells them. `Forwarded` (RFC 7239)
and `X-Real-IP` never go on, since two histories of one request may differ.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

from backends.http1 import ForwardedFields, RequestHead

_MOST_HOPS: Final = 32
_PROTO: Final = re.compile(rb"(?i:https?)").fullmatch
_HOST: Final = re.compile(rb"(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?").fullmatch
# An address as proxies write it: some add the port.
_HOP: Final = re.compile(
    rb"(?:([0-9.]{7,15})|\[([0-9A-Fa-f:.]{2,45})\])(?::[0-9]{1,5})?|([0-9A-Fa-f:.]{2,45})"
).fullmatch

Address = IPv4Address | IPv6Address


class Forwarding:
    """Which peers are believed, and what of their word goes on."""

    def __init__(self, trusted: Iterable[str] = ()) -> None:
        """`trusted` are addresses or networks. Raises ValueError where one is neither."""
        self._networks: list[IPv4Network | IPv6Network] = [ip_network(text, strict=False) for text in trusted]

    def trusts(self, peer: str) -> bool:
        """Is this the address of a trusted proxy? An IPv4 address within IPv6 counts as what it is."""
        if not self._networks:
            return False
        try:
            address = _plain(ip_address(peer.partition("%")[0]))
        except ValueError:
            return False
        return self._trusts(address)

    def fields(self, peer: str, head: RequestHead) -> bytes:
        """Header lines for the worker, each led by CRLF. What is malformed is left out, never passed on."""
        told = head.forwarded
        if told is None or not self.trusts(peer):
            return b""
        return _lines(peer, told)

    def client_address(self, peer: str, head: RequestHead) -> str:
        """The address of whoever made the request, as far as those who tell it are trusted."""
        told = head.forwarded
        if told is None or told.addresses is None or not self.trusts(peer):
            return peer
        hops = _hops(told.addresses)
        if hops is None:
            return peer
        for hop in reversed(hops):
            if not self._trusts(hop):
                return str(hop)
        return str(hops[0])

    def _trusts(self, address: Address) -> bool:
        return any(address.version == network.version and address in network for network in self._networks)


def _lines(peer: str, told: ForwardedFields) -> bytes:
    lines = b""
    hops = None if told.addresses is None else _hops(told.addresses)
    if hops is not None:
        path = [*hops, _plain(ip_address(peer.partition("%")[0]))]
        lines += b"\r\nx-forwarded-for: " + ", ".join(str(hop) for hop in path).encode()
    if told.proto is not None and _PROTO(told.proto):
        lines += b"\r\nx-forwarded-proto: " + told.proto.lower()
    if told.host is not None and _HOST(told.host):
        lines += b"\r\nx-forwarded-host: " + told.host
    return lines


def _hops(value: bytes) -> list[Address] | None:
    """The addresses of a list, the first hop first; None where one of them is none, or where they are too many."""
    if value.count(b",") >= _MOST_HOPS:
        return None
    hops = []
    for part in value.split(b","):
        found = _HOP(part.strip(b" \t"))
        if found is None:
            return None
        try:
            hops.append(_plain(ip_address((found[1] or found[2] or found[3]).decode())))
        except ValueError:
            return None
    return hops


def _plain(address: Address) -> Address:
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped
