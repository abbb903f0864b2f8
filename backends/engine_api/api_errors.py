"""Refusals, in the error shape of each dialect. Pure."""

from __future__ import annotations

from typing import Final

import orjson

_ANTHROPIC_KINDS: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}


class ApiError(Exception):
    """A refusal. `kind` is vLLM's name of it; Anthropic's follows from the status."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "BadRequestError",
        param: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param
        self.retry_after = retry_after

    def body(self) -> bytes:
        """The response body in OpenAI's shape."""
        fields = {"message": str(self), "type": self.kind, "param": self.param, "code": self.status}
        return orjson.dumps({"error": fields})

    def anthropic_body(self) -> bytes:
        """The response body in Anthropic's shape."""
        return orjson.dumps({"type": "error", "error": {"type": anthropic_kind(self.status), "message": str(self)}})


def anthropic_kind(status: int) -> str:
    """Anthropic's name for an error of this status."""
    return _ANTHROPIC_KINDS.get(status, "api_error" if status >= 500 else "invalid_request_error")
