"""A request to `/v1/responses` as the chat that vLLM makes of it: its prompt has the tokens the engine sees. Pure.

Source: vLLM `entrypoints/openai/responses/utils.py` and `protocol.py`. Several items can become one message of the
assistant: its thoughts, its text and its calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cache.chat_messages import TemplateError

_Message = dict[str, Any]

_UNFINISHED: Final = ("in_progress", "incomplete")
_CALLS: Final = ("function_call", "custom_tool_call")
_OUTPUTS: Final = ("function_call_output", "custom_tool_call_output")


def responses_chat(fields: Mapping[str, object]) -> dict[str, object]:
    """The fields of the same request to chat completions that a chat template reads.

    Raises:
        TemplateError: An item has a shape, or is of a type, that vLLM refuses or would not show to the model as text.
    """
    given = fields.get("input")
    instructions = fields.get("instructions")
    messages: list[_Message] = []
    if instructions:
        messages.append({"role": "system", "content": instructions})
    if type(given) is str:
        messages.append({"role": "user", "content": given})
    elif type(given) is list and given:
        _add_items(messages, given)
    else:
        message = "input must be a string or a list that is not empty"
        raise TemplateError(message)
    chat: dict[str, object] = {"messages": messages}
    for name in ("chat_template_kwargs", "add_special_tokens"):
        if name in fields:
            chat[name] = fields[name]
    tools = [shaped for tool in _list(fields.get("tools")) if (shaped := _tool(tool)) is not None]
    if tools:
        chat["tools"] = tools
    reasoning = fields.get("reasoning")
    if type(reasoning) is dict and reasoning.get("effort") is not None:
        chat["reasoning_effort"] = reasoning["effort"]
    if type(given) is list and _is_unfinished(given[-1]):
        chat["continue_final_message"] = True
        chat["add_generation_prompt"] = False
    return chat


def _list(value: object) -> list[object]:
    return value if type(value) is list else []


def _add_items(messages: list[_Message], items: list[object]) -> None:
    first = len(messages)
    for item in items:
        if type(item) is not dict:
            reason = "each item of input must be an object"
            raise TemplateError(reason)
        message = _message(item)
        if len(messages) == first or not _joined(messages[-1], message):
            messages.append(message)


def _joined(last: _Message, message: _Message) -> bool:
    """Add what the assistant goes on with to its last message; False where it is a message of its own."""
    if last.get("role") != "assistant" or message["role"] != "assistant":
        return False
    if "tool_calls" in message:
        # Added to in place: thousands of calls may follow one another. The list is nobody else's (see `_message`).
        last.setdefault("tool_calls", []).extend(message["tool_calls"])
        return True
    for name in ("reasoning", "content"):
        if name in message and last.get(name) is None:
            last[name] = message[name]
            return True
    return False


def _message(item: dict[str, Any]) -> _Message:
    """One item as a message that shares no changeable part with it."""
    kind = item.get("type")
    if kind in _CALLS:
        return {"role": "assistant", "tool_calls": [_call(item, custom=kind == "custom_tool_call")]}
    if kind in _OUTPUTS:
        return {"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")}
    if kind == "reasoning":
        if item.get("encrypted_content"):
            message = "a reasoning item is encrypted"
            raise TemplateError(message)
        return {"role": "assistant", "reasoning": _first_text(item.get("content") or item.get("summary")) or ""}
    if item.get("role") == "assistant" and (text := _first_text(item.get("content"))) is not None:
        return {"role": "assistant", "content": text}
    if "role" not in item:
        message = "an item of input is of a type that has no place in a chat"
        raise TemplateError(message)
    if "tool_calls" in item:
        return {**item, "tool_calls": list(_list(item["tool_calls"]))}
    return dict(item)


def _call(item: dict[str, Any], *, custom: bool) -> dict[str, Any]:
    arguments = {"input": item.get("input")} if custom else item.get("arguments")
    name, namespace = item.get("name"), item.get("namespace")
    if namespace:
        name = f"{namespace}__{name}"
    return {"id": item.get("call_id"), "type": "function", "function": {"name": name, "arguments": arguments}}


def _first_text(content: object) -> str | None:
    """As vLLM, which reads no further than the first part."""
    if type(content) is str:
        return content
    first = content[0] if type(content) is list and content else None
    text = first.get("text") if type(first) is dict else None
    return text if type(text) is str else None


def _tool(tool: object) -> dict[str, Any] | None:
    """A function as chat completions have it; None for a tool that is none, which no template shows."""
    if type(tool) is not dict:
        message = "each of tools must be an object"
        raise TemplateError(message)
    if tool.get("type") != "function":
        return None
    return {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}


def _is_unfinished(item: object) -> bool:
    """Shall the model go on with this item, where it stopped?"""
    return (
        type(item) is dict
        and item.get("type", "message") in ("message", "reasoning")
        and item.get("status") in _UNFINISHED
    )
