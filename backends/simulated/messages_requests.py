"""Anthropic message requests as the chat that vLLM makes of them. Pure.

Source: vLLM `entrypoints/anthropic/` (`protocol.py`, `serving.py`): the order of messages and how texts are
joined decide the prompt's tokens, so the same conversation has the same ones as a chat.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec
import orjson

from backends.engine_api.api_errors import ApiError

_BILLING: Final = "x-anthropic-billing-header"
"""A client's block that differs with each request; vLLM leaves it out of the prompt."""

_Block = dict[str, Any]
_Content = str | list[_Block]


class Message(msgspec.Struct):
    """One turn."""

    role: str
    content: _Content


class Tool(msgspec.Struct):
    """A tool that can be called."""

    name: str
    input_schema: dict[str, Any]
    description: str | None = None


class ToolChoice(msgspec.Struct):
    """Whether and which tool to call."""

    type: str
    name: str | None = None


class CountTokensRequest(msgspec.Struct, kw_only=True):
    """`/v1/messages/count_tokens`."""

    model: str
    messages: Annotated[list[Message], msgspec.Meta(min_length=1)]
    system: _Content | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class MessagesRequest(CountTokensRequest, kw_only=True):
    """`/v1/messages`. The last three fields are vLLM's, not Anthropic's."""

    max_tokens: Annotated[int, msgspec.Meta(ge=1)]
    stop_sequences: list[str] | None = None
    stream: bool | None = False
    cache_salt: str | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None


def as_chat(request: CountTokensRequest) -> dict[str, Any]:
    """The body of the same request to `/v1/chat/completions`. Raises ApiError."""
    chat: dict[str, Any] = {"model": request.model, "messages": _messages(request)}
    if request.chat_template_kwargs is not None:
        chat["chat_template_kwargs"] = request.chat_template_kwargs
    if request.tools is not None:
        chat["tools"] = [_tool(tool) for tool in request.tools]
    if request.tool_choice is not None:
        chat["tool_choice"] = _tool_choice(request.tool_choice)
    if isinstance(request, MessagesRequest):
        chat |= {"max_tokens": request.max_tokens, "stop": request.stop_sequences, "stream": request.stream}
        chat |= {"cache_salt": request.cache_salt, "ignore_eos": request.ignore_eos, "min_tokens": request.min_tokens}
    return chat


def _messages(request: CountTokensRequest) -> list[dict[str, Any]]:
    system = _system_text(request.system or "")
    given = list(request.messages)
    while given and given[0].role == "system":
        system = "\n\n".join(filter(None, (system, _system_text(given.pop(0).content))))
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    for message in given:
        if message.role == "system":
            if text := _system_text(message.content):
                messages.append({"role": "system", "content": text})
        elif message.role not in ("user", "assistant"):
            raise ApiError(400, f"role must be user, assistant or system, not {message.role[:40]!r}", param="messages")
        elif isinstance(message.content, str):
            messages.append({"role": message.role, "content": message.content})
        else:
            messages += _turn(message.role, message.content)
    return messages


def _system_text(content: _Content) -> str:
    if isinstance(content, str):
        return content
    texts = (_text(block) for block in content if block.get("type") == "text")
    return "".join(text for text in texts if not text.startswith(_BILLING))


def _turn(role: str, blocks: Sequence[_Block]) -> list[dict[str, Any]]:
    """Tool results first, each a message of its own, then what remains of the turn."""
    before: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    thoughts: list[str] = []
    for block in blocks:
        match block.get("type"):
            case "text":
                if text := _text(block):
                    parts.append({"type": "text", "text": text})
            case "image":
                parts.append(_image(block))
            case "thinking":
                thoughts.append(str(block.get("thinking") or ""))
            case "tool_use":
                calls.append(_call(block))
            case "tool_result" if role == "user":
                before += _results(block)
            case "redacted_thinking":
                pass  # opaque, as for vLLM
            case kind:
                raise ApiError(400, f"content blocks of type {str(kind)[:40]!r} are not served", param="messages")
    turn: dict[str, Any] = {"role": role}
    if thoughts:
        turn["reasoning"] = "".join(thoughts)
    if calls:
        turn["tool_calls"] = calls
    if parts:
        alone = len(parts) == 1 and parts[0]["type"] == "text"
        turn["content"] = parts[0]["text"] if alone else parts
    return before if role == "user" and "content" not in turn else [*before, turn]


def _text(block: _Block) -> str:
    text = block.get("text")
    if not isinstance(text, str):
        raise ApiError(400, "a text block needs a text", param="messages")
    return text


def _image(block: _Block) -> dict[str, Any]:
    source = block.get("source")
    if not isinstance(source, dict):
        raise ApiError(400, "an image block needs a source", param="messages")
    if source.get("type") == "url":
        url = str(source.get("url", ""))
    else:
        url = f"data:{source.get('media_type', 'image/jpeg')};base64,{source.get('data', '')}"
    return {"type": "image_url", "image_url": {"url": url}}


def _call(block: _Block) -> dict[str, Any]:
    arguments = orjson.dumps(block.get("input") or {}).decode()
    function = {"name": str(block.get("name") or ""), "arguments": arguments}
    return {"id": str(block.get("id") or ""), "type": "function", "function": function}


def _results(block: _Block) -> list[dict[str, Any]]:
    """A tool's result as a message; its images come in one of the user's behind it."""
    content = block.get("content")
    items = [item for item in content if isinstance(item, dict)] if isinstance(content, list) else []
    text = content if isinstance(content, str) else "\n".join(_text(i) for i in items if i.get("type") == "text")
    messages: list[dict[str, Any]] = [
        {"role": "tool", "tool_call_id": str(block.get("tool_use_id") or ""), "content": text}
    ]
    if images := [_image(item) for item in items if item.get("type") == "image"]:
        messages.append({"role": "user", "content": images})
    return messages


def _tool(tool: Tool) -> dict[str, Any]:
    parameters = tool.input_schema if "type" in tool.input_schema else {**tool.input_schema, "type": "object"}
    function = {"name": tool.name, "description": tool.description, "parameters": parameters}
    return {"type": "function", "function": function}


def _tool_choice(choice: ToolChoice) -> str | dict[str, Any]:
    if choice.type == "tool":
        return {"type": "function", "function": {"name": choice.name}}
    known = {"auto": "auto", "any": "required", "none": "none"}
    if choice.type not in known:
        raise ApiError(400, "tool_choice.type must be auto, any, tool or none", param="tool_choice")
    return known[choice.type]
