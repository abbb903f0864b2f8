"""TLS contexts made from files, and made anew when the files change: all or nothing.

A context that is in force is never altered. A changed certificate, key or authority makes another context, which new
connections use; those that are open keep theirs. What cannot be made into a context leaves the old one in force.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_ALPN: Final = ["http/1.1"]


class TlsError(Exception):
    """Files that make no context; the message says which and why, and nothing of what is in them."""


@dataclass(frozen=True, slots=True)
class UpstreamTlsSpec:
    """How the gateway speaks TLS to one worker. All files are PEM."""

    ca: Path | None = None
    """Whom the worker's certificate must be signed by; None means the system's authorities."""
    certificate: Path | None = None
    key: Path | None = None
    server_name: str | None = None
    """Name in the worker's certificate; None means the host that is connected to."""
    verify: bool = True


class TlsFiles:
    """A context, and the files that it was made from."""

    def __init__(self, build: Callable[[], ssl.SSLContext], files: Sequence[Path | None]) -> None:
        """Raises TlsError where no context can be made."""
        self._build = build
        self._files = [file for file in files if file is not None]
        self._seen = self._state()
        self._context = self._made()

    def __str__(self) -> str:
        return ", ".join(map(str, self._files)) or "the system's authorities"

    @property
    def context(self) -> ssl.SSLContext:
        """What new connections are to use: ask for it each time."""
        return self._context

    def reload(self) -> bool:
        """Look at the files; True where they had changed and a new context is in force.

        Raises:
            TlsError: They have changed and make no context. The old one stays in force; until they change again,
                further calls return False.
        """
        state = self._state()
        if state == self._seen:
            return False
        self._seen = state
        self._context = self._made()
        return True

    def _made(self) -> ssl.SSLContext:
        try:
            return self._build()
        except ssl.SSLError as error:
            raise TlsError(f"{self}: {problem_of(error)}") from None
        except OSError as error:
            unread = [str(file) for file in self._files if not file.is_file()]
            raise TlsError(f"{', '.join(unread) or self}: {error.strerror or error}") from None

    def _state(self) -> list[tuple[int, int, int] | None]:
        states: list[tuple[int, int, int] | None] = []
        for file in self._files:
            state = None
            with contextlib.suppress(OSError):
                found = file.stat()
                state = (found.st_mtime_ns, found.st_size, found.st_ino)
            states.append(state)
        return states


class UpstreamTls(TlsFiles):
    """The context for connections to one worker."""

    def __init__(self, spec: UpstreamTlsSpec) -> None:
        """Raises TlsError where no context can be made."""
        self.spec = spec
        super().__init__(lambda: _upstream_context(spec), [spec.ca, spec.certificate, spec.key])


def _upstream_context(spec: UpstreamTlsSpec) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(_ALPN)
    if not spec.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif spec.ca is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        context.load_verify_locations(spec.ca)
    if spec.certificate is not None:
        context.load_cert_chain(spec.certificate, spec.key, password=_no_password)
    return context


def server_context(certificate: Path, key: Path, client_ca: Path | None) -> ssl.SSLContext:
    """A context that serves; with `client_ca` clients must show a certificate. Raises OSError, ssl.SSLError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.set_alpn_protocols(_ALPN)
    context.load_cert_chain(certificate, key, password=_no_password)
    if client_ca is not None:
        context.load_verify_locations(client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _no_password() -> str:
    """An encrypted key is an error here; OpenSSL would ask for its password on the terminal."""
    return ""


def problem_of(error: ssl.SSLError) -> str:
    """What went wrong, in a few words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate not accepted: {error.verify_message}"
    return (error.reason or error.strerror or type(error).__name__).replace("_", " ").lower()
