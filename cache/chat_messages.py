"""A chat request's body as the variables of a chat template, shaped as vLLM shapes them before it renders.

Source: vLLM `renderers/chat_utils/parse_chat_message*.py`, `renderers/hf.py` (content format), and the
pydantic models of its chat API, whose field order decides the order of keys in tools that a template writes
as JSON. A difference here of one space is a prefix that routing misses.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from sys import maxsize
from typing import Any

from jinja2 import nodes


class TemplateError(Exception):
    """A chat request that cannot be rendered; the message is for the client."""


class NotTextError(TemplateError):
    """A message holds an image, audio, a file: parts that an engine takes and makes tokens of which text does not tell.

    The request may be in order, and so is the template.
    """


_RENDERED = ("messages", "tools", "documents", "chat_template_kwargs")


def chat_size(body: Mapping[str, object], *, most_values: int = maxsize, most_chars: int = maxsize) -> tuple[int, int]:
    """How much there is to render in a chat request: JSON values at any depth, and characters of the strings.

    A message with a role and a text counts as three values. Rendering takes 0.5 to 2 microseconds for each value,
    counting a tenth of that, and it ends once a limit is passed: a result beyond a limit says no more than that.
    Never raises.
    """
    values, chars = -len(_RENDERED), 0
    # Not by recursion: a body may be nested deeper than Python's stack.
    containers: list[Any] = [[body.get(name) for name in _RENDERED]]
    while containers and chars <= most_chars:
        container = containers.pop()
        values += len(container)
        if values > most_values:
            break
        for value in container.values() if type(container) is dict else container:
            if type(value) is str:
                chars += len(value)
            elif type(value) is dict or type(value) is list:
                containers.append(value)
    return values, chars


_TEXT_PARTS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
_PART_FIELDS = frozenset({"type", "uuid", *_TEXT_PARTS.values()})


def chat_variables(body: Mapping[str, object], *, content_parts: bool) -> dict[str, Any]:
    """The variables for one request. Nothing in it is shared with `body` that a template or we would change.

    `content_parts` says that the template wants a message's content as a list of parts, not as one string.
    Raises TemplateError on a body which is not a chat request with text.
    """
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        message = "messages must be a list that is not empty"
        raise TemplateError(message)
    extra = body.get("chat_template_kwargs")
    variables: dict[str, Any] = dict(extra) if isinstance(extra, Mapping) else {}
    if "chat_template" in variables or "tokenize" in variables:
        message = "chat_template_kwargs cannot set chat_template or tokenize"
        raise TemplateError(message)
    for name in ("documents", "reasoning_effort"):
        if body.get(name) is not None:
            variables[name] = body[name]
    for name, default in (("add_generation_prompt", True), ("continue_final_message", False)):
        given = body.get(name)
        variables[name] = bool(variables.get(name, default) if given is None else given)
    if variables["add_generation_prompt"] and variables["continue_final_message"]:
        message = "continue_final_message and add_generation_prompt cannot both be set"
        raise TemplateError(message)
    variables.setdefault("documents", None)
    tools = body.get("tools")
    variables["tools"] = None if tools is None else [_tool(tool) for tool in _list(tools, "tools")]
    variables["messages"] = [_message(message, content_parts=content_parts) for message in messages]
    return variables


def _list(value: object, name: str) -> list[object]:
    if not isinstance(value, list):
        message = f"{name} must be a list"
        raise TemplateError(message)
    return value


def _tool(tool: object) -> dict[str, Any]:
    """A tool with the fields of vLLM's models in their order, absent ones as None, others behind them."""
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(tool, Mapping) or not isinstance(function, Mapping):
        message = "each of tools must be an object with a function"
        raise TemplateError(message)
    ordered = {"name": function.get("name"), "description": None, "parameters": None, **function}
    return {
        "type": "function",
        "function": ordered,
        **{k: v for k, v in tool.items() if k not in ("type", "function")},
    }


def _message(message: object, *, content_parts: bool) -> dict[str, Any]:
    if type(message) is dict and len(message) == 2 and not content_parts:
        role, content = message.get("role"), message.get("content")
        if type(role) is str and type(content) is str:
            return {"role": role, "content": content}  # most messages are just that
    role = message.get("role") if isinstance(message, Mapping) else None
    if not isinstance(message, Mapping) or not isinstance(role, str):
        reason = "each of messages must be an object with a role"
        raise TemplateError(reason)
    shaped: dict[str, Any] = {
        "role": role,
        "content": _content(message.get("content"), role, parts=content_parts),
    }
    if role == "assistant":
        if calls := message.get("tool_calls"):
            shaped["tool_calls"] = [_tool_call(call) for call in _list(calls, "tool_calls")]
        reasoning = message.get("reasoning")
        if reasoning is None:
            reasoning = message.get("reasoning_content")
        if reasoning is not None:
            # The older name too, and gpt-oss's; vLLM gives the first two and transformers adds the third.
            shaped |= {"reasoning": reasoning, "reasoning_content": reasoning, "thinking": reasoning}
    elif role == "tool" and "tool_call_id" in message:
        shaped["tool_call_id"] = message["tool_call_id"]
    elif role == "developer" and message.get("tools") is not None:
        shaped["tools"] = message["tools"]
    if isinstance(name := message.get("name"), str):
        shaped["name"] = name
    return {key: value for key, value in shaped.items() if value is not None}


def _content(content: object, role: str, *, parts: bool) -> str | list[dict[str, Any]]:
    """Text parts joined by line ends, or a list of parts for the templates which go through them."""
    given = [content] if isinstance(content, str) else [] if content is None else _list(content, "a message's content")
    shaped = [part for entry in given if (part := _part(entry)) is not None]
    if parts and role != "tool":
        return shaped
    # vLLM leaves out empty strings, but not empty parts.
    return "\n".join(part["text"] for part in shaped if part["text"] or parts)


def _part(entry: object) -> dict[str, Any] | None:
    """One content part as `{"type": "text", "text": …}`; None when its text is null."""
    if isinstance(entry, str):
        return {"type": "text", "text": entry}
    if not isinstance(entry, Mapping):
        message = "each part of a message's content must be an object or a string"
        raise TemplateError(message)
    kind = entry.get("type", "text")
    if not isinstance(kind, str):
        message = "the type of a content part must be a string"
        raise TemplateError(message)
    if kind not in _TEXT_PARTS:
        message = f"content parts of type {kind[:40]!r} are not text"
        raise NotTextError(message)
    text = entry.get(_TEXT_PARTS[kind])
    if text is None:
        return None
    if not isinstance(text, str):
        message = f"the {_TEXT_PARTS[kind]} of a content part must be a string"
        raise TemplateError(message)
    return {"type": "text", "text": text, **{k: v for k, v in entry.items() if k not in _PART_FIELDS}}


def _tool_call(call: object) -> dict[str, Any]:
    """A tool call whose arguments are an object: clients send a string of JSON, templates want a mapping."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping):
        message = "each of tool_calls must be an object with a function"
        raise TemplateError(message)
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            # The fault is in the history and would fail every later turn too; vLLM goes on with no arguments.
            arguments = {}
        except RecursionError as error:
            message = "the arguments of a tool call are nested too deep"
            raise TemplateError(message) from error
    return {
        **call,
        "function": {**function, "arguments": arguments if isinstance(arguments, Mapping) else {}},
    }


# Does a template want content as a list of parts? As vLLM does, ask whether it loops over a message's
# content, where a message is what a loop over `messages` (or over a variable made of it) gives.


def iterates_content(template: nodes.Template) -> bool:
    """Does the parsed template go through the parts of a message's content?"""
    sources = ["messages"]
    for source in sources:  # grows while it is walked
        for assign in template.find_all(nodes.Assign):
            target = assign.target
            if isinstance(target, nodes.Name) and target.name not in sources and _reads(assign.node, source):
                sources.append(target.name)
    items = {
        loop.target.name
        for loop in template.find_all(nodes.For)
        if isinstance(loop.target, nodes.Name) and any(_reads(loop.iter, source) for source in sources)
    }
    return any(_reads(loop.iter, item, "content") for loop in template.find_all(nodes.For) for item in items)


def _reads(node: nodes.Node, name: str, key: str | None = None) -> bool:
    """Is the expression the variable (or its item `key`), perhaps filtered, tested or sliced?"""
    node = _unwrap(node)
    if key is not None:
        if isinstance(node, nodes.Getitem):
            matches = isinstance(node.arg, nodes.Const) and node.arg.value == key
        else:
            matches = isinstance(node, nodes.Getattr) and node.attr == key
        if not matches:
            return False
        node = node.node  # type: ignore[attr-defined]  # both kinds have it
    return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name


def _unwrap(node: nodes.Node) -> nodes.Node:
    for inner in _wrappers(node):
        node = inner
    return node


def _wrappers(node: nodes.Node) -> Iterator[nodes.Node]:
    while True:
        sliced = isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
        if not (sliced or (isinstance(node, (nodes.Filter, nodes.Test)) and node.node is not None)):
            return
        node = node.node  # type: ignore[attr-defined]  # all three kinds have it
        yield node
