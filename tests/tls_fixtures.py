"""Certificates as a test needs them, made on the spot and signed by an authority of its own."""

from __future__ import annotations

import datetime as dt
import functools
import ssl
import tempfile
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAY = dt.timedelta(days=1)


@dataclass(frozen=True)
class Pair:
    """A certificate, with its authority behind it, and its key; PEM files."""

    certificate: Path
    key: Path

    def copy_to(self, other: Pair) -> None:
        """Put these in the other's place, as whoever renews a certificate does."""
        other.key.write_bytes(self.key.read_bytes())
        other.certificate.write_bytes(self.certificate.read_bytes())


class Authority:
    """Signs certificates for tests."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._own = self._certificate(self._name, self._key.public_key(), [], -1, 365, ca=True)
        self.ca = folder / "ca.pem"
        """The authority's own certificate."""
        self.ca.write_bytes(self._own.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, *hosts: str, begins: int = -1, ends: int = 30) -> Pair:
        """A certificate for hosts; by default for 127.0.0.1. `begins` and `ends` in days from now."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self._certificate(subject, key.public_key(), list(hosts) or ["127.0.0.1"], begins, ends)
        pem = serialization.Encoding.PEM
        pair = Pair(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        pair.certificate.write_bytes(certificate.public_bytes(pem) + self._own.public_bytes(pem))
        pair.key.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
        return pair

    def client_context(self, pair: Pair | None = None) -> ssl.SSLContext:
        """For a client that trusts this authority, and shows `pair`."""
        context = ssl.create_default_context(cafile=str(self.ca))
        if pair is not None:
            context.load_cert_chain(pair.certificate, pair.key)
        return context

    def server_context(self, pair: Pair, *, asks_clients: bool = False) -> ssl.SSLContext:
        """For a server that shows `pair`."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.certificate, pair.key)
        if asks_clients:
            context.load_verify_locations(self.ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _certificate(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, hosts: list[str], begins: int, ends: int,
        *, ca: bool = False,
    ) -> x509.Certificate:  # fmt: skip
        now = dt.datetime.now(dt.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + begins * _DAY)
            .not_valid_after(now + ends * _DAY)
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        )
        if hosts:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_name(host) for host in hosts]), critical=False
            )
        return builder.sign(self._key, hashes.SHA256())


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()


@functools.cache
def authority() -> Authority:
    """One that all tests may share."""
    return Authority(Path(_folder().name))


@functools.cache
def server_pair() -> Pair:
    """A certificate for 127.0.0.1 that no test changes."""
    return authority().issue("server")


def listen_tls(pair: Pair | None = None, *, client_ca: Path | None = None) -> str:
    """What `listen` says in a configuration, besides its port."""
    pair = pair or server_pair()
    asks = "" if client_ca is None else f", client_ca: {client_ca}"
    return f", tls: {{certificate: {pair.certificate}, key: {pair.key}{asks}}}"
