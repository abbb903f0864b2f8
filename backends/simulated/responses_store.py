"""Responses that were asked to be kept, bounded in number: the oldest go first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from backends.engine_api.api_errors import ApiError
from backends.simulated.responses_requests import ChatMessage, input_messages


@dataclass(slots=True)
class StoredResponse:
    """A response object as it is now, and the conversation up to it without instructions."""

    response: dict[str, Any]
    asked: Sequence[ChatMessage]

    def history(self) -> list[ChatMessage]:
        """The conversation, this response's output included."""
        return [*self.asked, *input_messages(self.response["output"])]


class ResponseStore:
    """Response id → what is known of it. Lost with its worker."""

    def __init__(self, most: int = 1024) -> None:
        self._most = most
        self._kept: OrderedDict[str, StoredResponse] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, stored: StoredResponse) -> None:
        """Add or replace one."""
        self._kept[stored.response["id"]] = stored
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)

    def get(self, response_id: str, *, param: str = "response_id") -> StoredResponse:
        """The response of this id. Raises ApiError 404, naming `param`."""
        found = self._kept.get(response_id)
        if found is None:
            message = f"Response with id '{response_id[:200]}' not found."
            raise ApiError(404, message, kind="invalid_request_error", param=param)
        return found

    def forget(self, response_id: str) -> None:
        """Delete one. Raises ApiError 404."""
        self.get(response_id)
        del self._kept[response_id]
