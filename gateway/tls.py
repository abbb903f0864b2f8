"""TLS for clients: the gateway's own certificate, taken up anew when its files change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.tls import TlsFiles, server_context

if TYPE_CHECKING:
    from gateway.config.schema import ListenTls


class ServerTls(TlsFiles):
    """The context for clients' connections. `reload` takes up changed files: connections that are open go on."""

    def __init__(self, settings: ListenTls) -> None:
        """Raises TlsError where the files make no context."""
        super().__init__(
            lambda: server_context(settings.certificate, settings.key, settings.client_ca),
            [settings.certificate, settings.key, settings.client_ca],
        )
