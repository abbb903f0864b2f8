"""Errors of our own, before a dialect gives them their shape."""

from __future__ import annotations


class ApiError(Exception):
    """An answer of our own that is not what the client hoped for."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        kind: str | None = None,
        fields: bytes = b"",
    ) -> None:
        """`kind` is OpenAI's `type` where the status does not tell it; `fields` are header lines that belong to the
        status, each one led by CRLF.
        """
        super().__init__(message)
        self.fields = fields
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.kind = kind
