"""Does a prompt fit into the model's context, and how much room does it leave? Pure."""

from __future__ import annotations

from backends.engine_api.api_errors import ApiError


def room_for_output(n_tokens: int, limit: int) -> int:
    """Tokens that may be generated after `n_tokens` of prompt. Raises ApiError in vLLM's words when none may."""
    if n_tokens == 0:
        raise ApiError(400, "The decoder prompt cannot be empty", param="prompt")
    left = limit - n_tokens
    if left <= 0:
        message = (
            f"This model's maximum context length is {limit} tokens. However, your request "
            f"has {n_tokens} input tokens. Please reduce the length of the input messages."
        )
        raise ApiError(400, message, param="input_tokens")
    return left


def output_tokens(n_tokens: int, limit: int, most: int | None) -> int:
    """How many tokens may be generated where `most` were asked for. Raises ApiError if it is too long."""
    left = room_for_output(n_tokens, limit)
    if most is not None and most > left:
        message = (
            f"'max_tokens' or 'max_completion_tokens' is too large: {most}. This model's maximum "
            f"context length is {limit} tokens and your request has {n_tokens} input tokens "
            f"({most} > {limit} - {n_tokens})."
        )
        raise ApiError(400, message, param="max_tokens")
    return left if most is None else most
