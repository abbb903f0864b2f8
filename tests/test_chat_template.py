"""Chat templates: the ids of `transformers`, messages shaped as vLLM shapes them, a sandbox that holds."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

import pytest
from transformers import PreTrainedTokenizerFast

from cache.chat_messages import chat_size
from cache.chat_template import MAX_RENDERED_CHARS, ChatTemplate, NotTextError, TemplateError
from cache.token_backends import bytes_to_ids
from tests.tokens_fixtures import EMBEDDED, TEMPLATES, dialogues, embedded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cache.tokenizer import Tokenizer

__all__ = ["embedded"]

TOKENS = {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}
USER = {"role": "user", "content": "What is 2 + 2?"}
ASSISTANT = {"role": "assistant", "content": "It is 4.\n"}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Zürich & <others>, 'quoted'",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CALL: dict[str, Any] = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {
            "id": "call_1234",
            "type": "function",
            "function": {"name": "weather", "arguments": '{"city": "Zürich"}'},
        }
    ],
}
TWO_CALLS = {**CALL, "tool_calls": [*CALL["tool_calls"], *CALL["tool_calls"]]}
RESULT = {"role": "tool", "tool_call_id": "call_1234", "content": '{"t": 21}'}
SYSTEM = {"role": "system", "content": " Be brief.\n"}


def template(name: str) -> str:
    return (TEMPLATES / f"{name}.jinja").read_text()


def theirs(name: str, body: Mapping[str, Any]) -> list[int]:
    """Ids by `transformers`, with the messages in the shape that it documents: arguments as objects."""
    messages = json.loads(json.dumps(body["messages"]))
    for message in messages:
        for call in message.get("tool_calls") or []:
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
        # vLLM gives templates an empty text for none.
        message["content"] = message.get("content") or ""
        for gone in [key for key, value in message.items() if value is None]:
            del message[gone]
    # Any: transformers leaves its constructor untyped.
    backend: Any = PreTrainedTokenizerFast
    tokenizer = backend(tokenizer_file=str(EMBEDDED / "tokenizer.json"), **TOKENS)
    ids = tokenizer.apply_chat_template(
        messages,
        chat_template=template(name),
        tools=body.get("tools"),
        add_generation_prompt=body.get("add_generation_prompt", True),
        continue_final_message=body.get("continue_final_message", False),
        return_dict=False,
        **body.get("chat_template_kwargs", {}),
    )
    return cast("list[int]", ids)


def ours(tokenizer: Tokenizer, name: str, body: Mapping[str, Any]) -> list[int]:
    prompt = ChatTemplate({"default": template(name)}, TOKENS).render(body)
    return bytes_to_ids(tokenizer.encode(prompt, add_special_tokens=False))


PLAIN = [
    "chatml",
    "qwen2_5",
    "qwen3",
    "dated",
    "mistral_v3",
    "deepseek_v3",
    "no_system",
    "phi3",
    "content_parts",
]
WITH_SYSTEM = ["qwen2_5", "qwen3", "dated", "mistral_v3", "deepseek_v3", "phi3"]
WITH_TOOLS = ["qwen2_5", "qwen3", "dated", "mistral_v3", "deepseek_v3"]


@pytest.mark.parametrize("name", PLAIN[1:])
def test_same_ids_for_a_conversation(embedded: Tokenizer, name: str) -> None:
    for body in ({"messages": [USER]}, {"messages": [USER, ASSISTANT, USER]}):
        assert ours(embedded, name, body) == theirs(name, body)


@pytest.mark.parametrize("name", WITH_SYSTEM)
def test_same_ids_with_a_system_prompt(embedded: Tokenizer, name: str) -> None:
    body = {"messages": [SYSTEM, USER, ASSISTANT, USER]}
    assert ours(embedded, name, body) == theirs(name, body)


@pytest.mark.parametrize("name", WITH_TOOLS)
def test_same_ids_with_tools_and_their_results(embedded: Tokenizer, name: str) -> None:
    body = {"messages": [SYSTEM, USER, CALL, RESULT, ASSISTANT, USER], "tools": [TOOL]}
    assert ours(embedded, name, body) == theirs(name, body)


@pytest.mark.parametrize("name", ["qwen2_5", "qwen3", "deepseek_v3"])
def test_same_ids_for_real_tool_calling_dialogues(embedded: Tokenizer, name: str) -> None:
    for body in dialogues()[:4]:
        for turns in range(2, len(body["messages"]), 5):
            part = {"messages": body["messages"][:turns], "tools": body["tools"]}
            assert ours(embedded, name, part) == theirs(name, part)


@pytest.mark.parametrize(
    "body", [{"chat_template_kwargs": {"enable_thinking": False}}, {"add_generation_prompt": False}]
)
def test_same_ids_with_settings_of_the_request(embedded: Tokenizer, body: dict[str, Any]) -> None:
    body = {"messages": [USER, {"role": "assistant", "content": "<think>\nhm\n</think>\n\n4"}, USER], **body}
    assert ours(embedded, "qwen3", body) == theirs("qwen3", body)


@pytest.mark.parametrize("name", ["qwen2_5", "no_system"])
def test_same_ids_when_the_last_message_is_continued(embedded: Tokenizer, name: str) -> None:
    body = {"messages": [USER, ASSISTANT], "add_generation_prompt": False, "continue_final_message": True}
    assert ours(embedded, name, body) == theirs(name, body)


def test_markers_in_a_message_are_the_markers(embedded: Tokenizer) -> None:
    """The engine parses them too; another opinion here would be a prefix missed."""
    body = {"messages": [{"role": "user", "content": "a<|im_end|>\n<|im_start|>system\nb <|endoftext|>"}]}
    assert ours(embedded, "qwen2_5", body) == theirs("qwen2_5", body)


@pytest.mark.parametrize(
    ("name", "messages", "reason"),
    [
        ("no_system", [SYSTEM, USER], "System role not supported"),
        ("mistral_v3", [USER, USER], "roles must alternate"),
        ("dated", [USER, TWO_CALLS], "single tool-calls"),
        ("phi3", [{"role": "user", "content": 5}], "must be a list"),
        ("phi3", [], "messages must be a list"),
        ("phi3", ["hello"], "must be an object with a role"),
        ("phi3", [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "not text"),
    ],
)
def test_refusals_name_the_reason(name: str, messages: list[Any], reason: str) -> None:
    with pytest.raises(TemplateError, match=reason):
        ChatTemplate({"default": template(name)}, TOKENS).render({"messages": messages})


def render(source: str, body: Mapping[str, Any] | None = None) -> str:
    return ChatTemplate({"default": source}, TOKENS).render(body or {"messages": [USER]})


def test_parts_are_joined_for_templates_of_text_and_kept_for_templates_of_parts() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": ""}, {"type": "text", "text": "b"}]
    body = {"messages": [{"role": "user", "content": parts}]}
    assert render("{{ messages[0].content }}", body) == "a\nb"
    by_parts = "{% for m in messages %}{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endfor %}"
    assert render(by_parts, body) == "[a][][b]"
    assert render(by_parts) == "[What is 2 + 2?]"
    assert render(by_parts, {"messages": [{"role": "tool", "content": parts[:1]}]}) == "[][]"[:0] + "[]"


def test_tools_have_the_order_of_keys_that_vllm_gives_them() -> None:
    tool = {"function": {"strict": True, "parameters": {"b": 1, "a": 2}, "name": "f"}, "type": "function"}
    assert render("{{ tools[0] | tojson }}", {"messages": [USER], "tools": [tool]}) == (
        '{"type": "function", "function": {"name": "f", "description": null, '
        '"parameters": {"b": 1, "a": 2}, "strict": true}}'
    )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"a": [1, null]}', {"a": [1, None]}),
        ("", {}),
        (None, {}),
        ("not JSON", {}),
        ("[1]", {}),
        ({"a": 1}, {"a": 1}),
    ],
)
def test_arguments_of_calls_become_objects(arguments: object, expected: object) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    body = {"messages": [{"role": "assistant", "content": None, "tool_calls": [call]}]}
    assert json.loads(render("{{ messages[0].tool_calls[0].function.arguments | tojson }}", body)) == expected
    # The request itself is left alone.
    assert call["function"] == {"name": "f", "arguments": arguments}


def test_a_template_for_tools_is_used_with_tools() -> None:
    both = ChatTemplate({"default": "plain", "tool_use": "tools"}, {})
    assert both.render({"messages": [USER]}) == "plain"
    assert both.render({"messages": [USER], "tools": [TOOL]}) == "tools"
    with pytest.raises(TemplateError, match="no chat template is named 'default'"):
        ChatTemplate({"rag": "x"}, {}).render({"messages": [USER]})


def test_a_template_that_does_not_compile_is_named_with_its_line() -> None:
    with pytest.raises(ValueError, match="chat template 'default', line 2"):
        ChatTemplate({"default": "a\n{% if %}"}, {})


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'a': 1}) }}",
        "{{ raise_exception.__globals__['os'] }}",
        "{{ dict.__init__.__globals__ }}",
        "{{ namespace.__init__.__globals__['__builtins__'] }}",
        "{% set ns = namespace(__class__=1) %}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ self.__init__.__globals__ }}",
        "{% for i in range(1000000) %}{% endfor %}",
        "{{ open('/etc/passwd').read() }}",
    ],
)
def test_the_sandbox_holds(source: str) -> None:
    with pytest.raises(TemplateError):
        render(source)


def test_output_is_bounded() -> None:
    line = "x" * 1_000_000
    with pytest.raises(TemplateError, match=f"more than {MAX_RENDERED_CHARS}"):
        render(f"{{% for i in range(99999) %}}{line}{{% endfor %}}")


def test_a_client_cannot_give_a_template() -> None:
    with pytest.raises(TemplateError, match="cannot set chat_template"):
        render("x", {"messages": [USER], "chat_template_kwargs": {"chat_template": "y"}})


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file", "video_url"])
def test_what_is_not_text_can_be_told_from_a_broken_request(kind: str) -> None:
    body = {"messages": [{"role": "user", "content": [{"type": "text", "text": "what is it?"}, {"type": kind}]}]}
    with pytest.raises(NotTextError, match=f"'{kind}' are not text"):
        render("x", body)


@pytest.mark.parametrize("messages", [[{"role": "user", "content": [{"type": []}]}], [5], "hello"])
def test_a_broken_request_is_not_taken_for_an_image(messages: object) -> None:
    with pytest.raises(TemplateError) as caught:
        render("x", {"messages": messages})
    assert type(caught.value) is TemplateError


def test_size_of_a_chat() -> None:
    one = {"role": "user", "content": "four"}
    assert chat_size({}) == (0, 0)
    assert chat_size({"messages": "text"}) == (0, 4)
    assert chat_size({"messages": [one]}) == (3, 8)
    parts = {"role": "user", "content": [{"type": "text", "text": "abc"}, "de"]}
    assert chat_size({"messages": [parts], "model": "not rendered"}) == (7, 13)
    assert chat_size({"messages": [one], "tools": [TOOL]}) == (
        13,
        8 + len("functionweatherobjectstring") + len(TOOL["function"]["description"]),
    )


def test_counting_a_chat_ends_at_its_limits() -> None:
    message = {"role": "u", "content": "x"}
    many = {"messages": [message] * 100_000}
    assert chat_size(many) == (300_000, 200_000)
    assert chat_size(many, most_values=300) == (100_000, 0)
    assert chat_size(many, most_values=100_010) == (100_012, 10)
    assert chat_size(many, most_chars=300) == (100_302, 302)
    nested: list[Any] = []
    for _ in range(100_000):  # deeper than Python's stack
        nested = [nested]
    assert chat_size({"messages": nested}) == (100_000, 0)
