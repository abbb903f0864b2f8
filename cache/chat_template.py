"""Chat requests to prompt text: Jinja templates as `transformers` renders them, fed as vLLM feeds them.

A template comes from the operator's model directory, its input from any client. The sandbox keeps both from
reading files, importing, touching Python's internals or changing the request; what a template writes is
bounded in length. Not bounded is the time of a template that loops without writing: a loop over `range` ends
at 100,000 turns (Jinja's sandbox), but loops may be nested. No client can add a loop, only its messages and
tools.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

import jinja2
from jinja2 import ext, nodes
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from cache.chat_messages import NotTextError, TemplateError, chat_variables, iterates_content

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jinja2.parser import Parser
    from jinja2.runtime import Macro

__all__ = ["ChatTemplate", "NotTextError", "TemplateError"]

MAX_RENDERED_CHARS = 64_000_000
"""The longest prompt that a template may write: twice the gateway's default limit of a body."""

_CONTINUE_TAG = "CONTINUE_FINAL_MESSAGE_TAG "


class ChatTemplate:
    """The compiled templates of one model. Thread-safe."""

    def __init__(self, templates: Mapping[str, str], special_tokens: Mapping[str, str]) -> None:
        """Compile `templates`, by name; each sees `special_tokens`. ValueError: one does not compile."""
        environment = _environment()
        self._templates: dict[str, _Compiled] = {}
        for name, source in templates.items():
            try:
                self._templates[name] = _Compiled(environment, source)
            except jinja2.TemplateSyntaxError as error:
                message = f"chat template {name!r}, line {error.lineno}: {error.message}"
                raise ValueError(message) from error
        self._special_tokens = dict(special_tokens)

    def render(self, body: Mapping[str, object]) -> str:
        """The prompt that a vLLM server makes of a chat request's parsed body.

        Raises TemplateError when the template refuses the messages or the body is not one that it can take.
        """
        chosen = self._choose(body)
        variables = {**self._special_tokens, **chat_variables(body, content_parts=chosen.content_parts)}
        messages = variables["messages"]
        continues = bool(variables.pop("continue_final_message", False))
        final = _tag_final_message(messages) if continues else ""
        try:
            prompt = _join_bounded(chosen.template.generate(variables))
        except TemplateError:
            raise
        except Exception as error:
            # Whatever a template does wrong with a client's messages is about this request alone.
            message = f"the chat template refuses the messages: {error}"
            raise TemplateError(message) from error
        return _cut_at_tag(prompt, final) if continues else prompt

    def _choose(self, body: Mapping[str, object]) -> _Compiled:
        if body.get("tools") is not None and "tool_use" in self._templates:
            return self._templates["tool_use"]
        if "default" in self._templates:
            return self._templates["default"]
        message = f"no chat template is named 'default'; there are {sorted(self._templates)}"
        raise TemplateError(message)


class _Compiled:
    """One template and what its text says of the input that it wants."""

    __slots__ = ("content_parts", "template")

    def __init__(self, environment: jinja2.Environment, source: str) -> None:
        self.template = environment.from_string(source)
        self.content_parts = iterates_content(environment.parse(source))


def _join_bounded(parts: Any) -> str:  # an iterator of str
    written: list[str] = []
    room = MAX_RENDERED_CHARS
    for part in parts:
        room -= len(part)
        if room < 0:
            message = f"the chat template writes more than {MAX_RENDERED_CHARS} characters"
            raise TemplateError(message)
        written.append(part)
    return "".join(written)


def _tag_final_message(messages: list[dict[str, Any]]) -> str:
    """Mark the end of the last message's text, and return the text. As `transformers` does."""
    final = messages[-1].get("content") if messages else None
    if isinstance(final, str):
        messages[-1]["content"] = final + _CONTINUE_TAG
        return final
    if isinstance(final, list):
        for part in reversed(final):
            if isinstance(part, dict) and isinstance(text := part.get("text"), str):
                part["text"] = text + _CONTINUE_TAG
                return text
    message = "continue_final_message needs a last message with text"
    raise TemplateError(message)


def _cut_at_tag(prompt: str, final: str) -> str:
    if final.strip() not in prompt or (position := prompt.rfind(_CONTINUE_TAG.strip())) < 0:
        message = "continue_final_message is set, but the chat template changes or drops the last message"
        raise TemplateError(message)
    if prompt.startswith(_CONTINUE_TAG, position):
        return prompt[:position]
    # The template trimmed the message, so the text before the tag is trimmed too.
    return prompt[:position].rstrip()


# The environment of `transformers.utils.chat_template_utils`, with the same names and the same output.


class _Generation(ext.Extension):
    """`{% generation %}` marks what the model wrote, for training; in a prompt it is just its contents."""

    tags = {"generation"}  # noqa: RUF012  # Jinja declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_contents"), [], [], body).set_lineno(line)

    def _contents(self, caller: Macro) -> str:
        return str(caller())


class _Dict:
    """`dict` without the class behind it, from which a template could reach Python's internals."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Namespace(Namespace):
    """A namespace that takes no name with an underscore in front."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # `self=` stays free
        attributes = dict(*args[1:], **kwargs)
        for name in attributes:
            _check_name(name)
        Namespace.__init__(args[0], attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        Namespace.__setitem__(self, name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        message = f"a namespace cannot hold {name!r}"
        raise jinja2.exceptions.SecurityError(message)


def _raise_exception(message: object) -> NoReturn:
    raise TemplateError(str(message))


def _tojson(  # the signature of transformers
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime_now(pattern: str) -> str:
    # Local time without a zone, because the engine's own template sees the same.
    return datetime.now().strftime(pattern)  # noqa: DTZ005 - templates want local time, as engines give it


_DICT_ATTRIBUTES = frozenset(dir(dict))
_LOOP_ATTRIBUTES = frozenset({"first", "last", "index", "index0", "length", "previtem", "nextitem"})


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, with a short way to what templates read most: `message.role`, a key of a plain dict.

    Jinja tries an attribute first, which costs an exception for each key. A name that is no attribute of dict
    gives the same through the short way.
    """

    def getattr(self, obj: Any, attribute: str) -> Any:
        if type(obj) is dict and attribute not in _DICT_ATTRIBUTES:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        if type(obj) is LoopContext and attribute in _LOOP_ATTRIBUTES:
            return getattr(obj, attribute)  # what the sandbox would give after asking several questions
        return super().getattr(obj, attribute)


def _environment() -> jinja2.Environment:
    environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, ext.loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals.update(
        raise_exception=_raise_exception, strftime_now=_strftime_now, dict=_Dict(), namespace=_Namespace
    )
    return environment
