"""A request to `/v1/messages` as the chat that vLLM makes of it: its prompt has the tokens the engine sees. Pure.

Source: vLLM `entrypoints/anthropic/` (`serving.py`, `inline_system.py`). One of Anthropic's turns can be several
messages of a chat: results of tools come first, each by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from cache.chat_messages import TemplateError

_Message = dict[str, Any]

_BILLING: Final = "x-anthropic-billing-header"
"""A block that some clients send, different each time; vLLM keeps it out of the prompt."""


def anthropic_chat(fields: Mapping[str, object]) -> dict[str, object]:
    """The fields of the same request to chat completions that a chat template reads.

    Raises:
        TemplateError: A message or a block has a shape that vLLM refuses.
    """
    given = fields.get("messages")
    if type(given) is not list or not given:
        message = "messages must be a list that is not empty"
        raise TemplateError(message)
    turns = [_checked(turn) for turn in given]
    chat: dict[str, object] = {"messages": _messages(_top_system(fields.get("system")), turns)}
    if "chat_template_kwargs" in fields:
        chat["chat_template_kwargs"] = fields["chat_template_kwargs"]
    config = fields.get("output_config")
    if type(config) is dict and config.get("effort") is not None:
        chat["reasoning_effort"] = config["effort"]
    tools = fields.get("tools")
    if type(tools) is list:
        chat["tools"] = [_tool(tool) for tool in tools]
    return chat


def _messages(system: str, turns: list[_Message]) -> list[_Message]:
    leading = 0
    while leading < len(turns) and turns[leading]["role"] == "system":
        leading += 1
    texts = (system, *(_system_text(turn["content"]) for turn in turns[:leading]))
    messages: list[_Message] = []
    if system := "\n\n".join(text for text in texts if text):
        messages.append({"role": "system", "content": system})
    for turn in _without_interrupted_calls(turns[leading:]):
        role, content = turn["role"], turn["content"]
        if role == "system":
            if text := _system_text(content):
                messages.append({"role": role, "content": text})
        elif type(content) is str:
            messages.append({"role": role, "content": content})
        else:
            _add_turn(messages, role, _blocks(content))
    return messages


def _checked(turn: object) -> _Message:
    if type(turn) is not dict or type(turn.get("role")) is not str or "content" not in turn:
        message = "each of messages must be an object with a role and a content"
        raise TemplateError(message)
    return turn


def _without_interrupted_calls(turns: list[_Message]) -> Iterable[_Message]:
    """The turns with no instruction between a call and its result: it comes behind them."""
    held: list[_Message] = []
    calling = False
    for turn in turns:
        role = turn["role"]
        if role == "system":
            if calling:
                held.append(turn)
            else:
                yield turn
            continue
        if role == "assistant":
            yield from held
            held = []
        yield turn
        if role == "user":
            yield from held
            held = []
        content = turn["content"]
        calling = role == "assistant" and type(content) is list and any(map(_is_call, content))
    yield from held


def _is_call(block: object) -> bool:
    return type(block) is dict and block.get("type") == "tool_use"


def _blocks(content: object) -> list[dict[str, Any]]:
    if type(content) is not list or not all(type(block) is dict for block in content):
        message = "the content of a message must be a string or a list of objects"
        raise TemplateError(message)
    return content


def _top_system(system: object) -> str:
    if type(system) is str:
        return system
    return "" if system is None else _system_text(system)


def _system_text(content: object) -> str:
    if type(content) is str:
        return "" if content.startswith(_BILLING) else content
    texts = [_text(block) for block in _blocks(content) if block.get("type") == "text"]
    return "".join(text for text in texts if not text.startswith(_BILLING))


def _text(block: Mapping[str, object]) -> str:
    text = block.get("text", "")
    if type(text) is not str:
        message = "the text of a block must be a string"
        raise TemplateError(message)
    return text


def _add_turn(messages: list[_Message], role: str, blocks: list[dict[str, Any]]) -> None:
    """Add a turn of blocks: results of tools, then what remains of it, if anything does."""
    parts: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    thoughts: list[str] = []
    for block in blocks:
        kind = block.get("type")
        if kind == "tool_result" and role == "user":
            _add_result(messages, block)
        elif kind == "tool_use":
            calls.append(_call(block))
        elif kind == "thinking":
            thoughts.append(str(block.get("thinking") or ""))
        elif (part := _part(block)) is not None:
            parts.append(part)
    turn: _Message = {"role": role}
    if thoughts:
        turn["reasoning"] = "".join(thoughts)
    if calls:
        turn["tool_calls"] = calls
    if parts:
        alone = len(parts) == 1 and parts[0]["type"] == "text"
        turn["content"] = parts[0]["text"] if alone else parts
    if role != "user" or parts:
        messages.append(turn)


def _part(block: Mapping[str, Any]) -> dict[str, Any] | None:
    """A part of a chat message; None for what the model is not shown, such as redacted thoughts and empty texts."""
    kind = block.get("type")
    if kind == "image":
        return _image(block)
    if kind == "tool_result":
        return {"type": "text", "text": f"Tool result: {block.get('content') or ''}"}
    text = _text(block) if kind == "text" else ""
    return {"type": "text", "text": text} if text else None


def _image(block: Mapping[str, Any]) -> dict[str, Any]:
    source = block.get("source")
    if type(source) is not dict:
        message = "an image has no source"
        raise TemplateError(message)
    if source.get("type") == "url":
        url = source.get("url", "")
    else:
        url = f"data:{source.get('media_type', 'image/jpeg')};base64,{source.get('data', '')}"
    return {"type": "image_url", "image_url": {"url": url}}


def _call(block: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": block.get("name") or "", "arguments": block.get("input") or {}}
    return {"id": block.get("id") or "", "type": "function", "function": function}


def _add_result(messages: list[_Message], block: Mapping[str, Any]) -> None:
    """Add a tool's result; its images follow in a message of the user's."""
    content = block.get("content")
    given = content if type(content) is list else []
    items = [item for item in given if type(item) is dict]
    text = content if type(content) is str else "\n".join(_text(item) for item in items if item.get("type") == "text")
    tool_call_id = block.get("tool_use_id") or ""
    messages.append({"role": "tool", "tool_call_id": tool_call_id, "content": text})
    if images := [_image(item) for item in items if item.get("type") == "image"]:
        messages.append({"role": "user", "content": images})
    names = [item.get("tool_name") or item.get("name") for item in items if item.get("type") == "tool_reference"]
    if references := [{"type": "tool_reference", "name": name} for name in names if name]:
        messages.append({"role": "tool", "tool_call_id": tool_call_id, "content": references})


def _tool(tool: object) -> dict[str, Any]:
    schema = tool.get("input_schema") if type(tool) is dict else None
    if type(tool) is not dict or type(schema) is not dict:
        message = "each of tools must be an object with an input_schema"
        raise TemplateError(message)
    parameters = schema if "type" in schema else {**schema, "type": "object"}
    function = {"name": tool.get("name"), "description": tool.get("description"), "parameters": parameters}
    if tool.get("defer_loading") is not None:
        function["defer_loading"] = tool["defer_loading"]
    return {"type": "function", "function": function}
