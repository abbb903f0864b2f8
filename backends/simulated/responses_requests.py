"""Requests to `/v1/responses` as the chat that vLLM makes of them. Pure.

Source: vLLM `entrypoints/openai/responses/utils.py`: instructions lead, those of earlier responses are left
out, an assistant's calls join the message before them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec

from backends.engine_api.api_errors import ApiError

_Item = dict[str, Any]
ChatMessage = dict[str, Any]

_ECHOED: Final = ("instructions", "max_output_tokens", "metadata", "previous_response_id", "temperature", "top_p")


class ResponsesRequest(msgspec.Struct, kw_only=True):
    """The fields that decide something here. The last three are vLLM's, not OpenAI's."""

    model: str | None = None
    input: str | Annotated[list[_Item], msgspec.Meta(min_length=1)]
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = True
    stream: bool | None = False
    background: bool | None = False
    max_output_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    tools: list[_Item] | None = None
    tool_choice: str | dict[str, Any] | None = None
    cache_salt: str | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None


def echoed(request: ResponsesRequest, raw: dict[str, Any]) -> dict[str, Any]:
    """What a response object repeats of its request."""
    return {name: raw.get(name) for name in _ECHOED} | {
        "metadata": raw.get("metadata") or {},
        "parallel_tool_calls": raw.get("parallel_tool_calls") is not False,
        "tool_choice": request.tool_choice or "auto",
        "tools": request.tools or [],
        "background": bool(request.background),
        "store": request.store is not False,
    }


def as_chat(request: ResponsesRequest, history: Sequence[ChatMessage]) -> dict[str, Any]:
    """The body of the same request to `/v1/chat/completions`. Raises ApiError."""
    lead = [{"role": "system", "content": request.instructions}] if request.instructions else []
    chat: dict[str, Any] = {
        "model": request.model,
        "messages": [*lead, *history, *input_messages(request.input)],
        "max_completion_tokens": request.max_output_tokens,
        "stream": request.stream,
        "cache_salt": request.cache_salt,
        "ignore_eos": request.ignore_eos,
        "min_tokens": request.min_tokens,
    }
    tools = [_tool(tool) for tool in request.tools or () if tool.get("type") == "function"]
    if tools:
        chat["tools"] = tools
    if request.tool_choice is not None:
        chat["tool_choice"] = _tool_choice(request.tool_choice)
    return chat


def input_messages(given: str | Sequence[_Item]) -> list[ChatMessage]:
    """Messages of a text or of items, a response's own output among them. Raises ApiError."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    messages: list[ChatMessage] = []
    for item in given:
        message = _message(item)
        last = messages[-1] if messages else None
        if last is None or last["role"] != "assistant" or message["role"] != "assistant":
            messages.append(message)
        elif "tool_calls" in message:
            last["tool_calls"] = [*last.get("tool_calls", ()), *message["tool_calls"]]
        elif "content" not in last and "content" in message:
            last["content"] = message["content"]
        elif "reasoning" in message and "reasoning" not in last:
            last["reasoning"] = message["reasoning"]
        else:
            messages.append(message)
    return messages


def _message(item: _Item) -> ChatMessage:
    kind = item.get("type", "message")
    if kind == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        return {"role": "assistant", "tool_calls": [call]}
    if kind == "function_call_output":
        return {"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")}
    if kind == "reasoning":
        return {"role": "assistant", "reasoning": _first_text(item.get("content") or item.get("summary"))}
    if kind != "message" or not isinstance(item.get("role"), str):
        raise ApiError(400, f"input items of type {str(kind)[:40]!r} are not served", param="input")
    if item["role"] == "assistant":
        return {"role": "assistant", "content": _first_text(item.get("content"))}
    return {"role": item["role"], "content": item.get("content")}


def _first_text(content: object) -> str:
    """As vLLM, which reads no more than the first part."""
    if isinstance(content, str):
        return content
    first = content[0] if isinstance(content, list) and content else ""
    return str(first.get("text") or "") if isinstance(first, dict) else str(first)


def _tool(tool: _Item) -> dict[str, Any]:
    return {"type": "function", "function": {key: value for key, value in tool.items() if key != "type"}}


def _tool_choice(choice: str | dict[str, Any]) -> str | dict[str, Any]:
    if isinstance(choice, dict) and choice.get("type") == "function":
        return {"type": "function", "function": {"name": choice.get("name")}}
    return choice
