"""docs/configuration.md, made from the models: every setting with its type, default and meaning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, Literal, get_args, get_origin

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from gateway.config.problems import is_list, section_in
from gateway.config.schema import Config
from gateway.config.units import Unit, format_duration, format_size

_INTRODUCTION: Final = """\
# Configuration

prefixgate reads one YAML file, `prefixgate serve -c FILE`. This is a whole one:

```yaml
workers:
  - url: http://127.0.0.1:8001
  - url: http://127.0.0.1:8002
```

With the model's tokenizer the gateway sees which prompts share a prefix; with KV events it knows exactly what
each worker holds:

```yaml
listen:
  host: 0.0.0.0
  port: 8000
models:
  - name: Qwen/Qwen3-8B
    tokenizer: ./Qwen3-8B # a directory with tokenizer.json and tokenizer_config.json
workers:
  - url: http://10.0.0.1:8000
    api_key: ${WORKER_KEY}
    kv_events:
      endpoint: tcp://10.0.0.1:5557
      replay_endpoint: tcp://10.0.0.1:5558
  - url: http://10.0.0.2:8000
    api_key: ${WORKER_KEY}
    kv_events:
      endpoint: tcp://10.0.0.2:5557
      replay_endpoint: tcp://10.0.0.2:5558
limits:
  body_bytes: 8MiB
  body_timeout: 30s
```

- `prefixgate check -c FILE` validates a file without starting anything and lists every problem with its line.
  An unknown key, a value of another type, or settings that contradict each other stop the start. It loads the
  tokenizers too, as a start does; `--no-tokenizers` skips that.
- `prefixgate check --schema` prints the JSON Schema, for editors that complete YAML.
- **Sizes** are bytes, or text such as `64KiB`, `32MB`, `1GiB`. **Durations** are seconds, or text such as
  `500ms`, `10s`, `5m`, `1h`.
- `${NAME}` in a value is replaced by that environment variable, `${NAME:-text}` by `text` where the variable
  is unset or empty; `$${` stands for `${` itself. A missing variable without such a default stops the start.
  What came from a variable is never printed. Quote the value (`"${NAME}"`) to keep digits from becoming a
  number.
- Relative paths start at the file's own folder.

This page is made from the program (`prefixgate check --docs`), so it is complete.
"""

_WORDS: Final[Mapping[object, str]] = {
    bool: "true or false",
    int: "whole number",
    float: "number",
    str: "text",
    Path: "path",
    SecretStr: "secret text",
}


def reference() -> str:
    """The whole page, in Markdown."""
    return _INTRODUCTION + "".join(
        f"\n## `{path}`\n\n{description}\n\n{_table(section)}" for path, description, section in _sections(Config)
    )


def _sections(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str, type[BaseModel]]]:
    for name, info in model.model_fields.items():
        section = section_in(info.annotation)
        if section is not None:
            path = f"{prefix}{name}{'[]' if is_list(info.annotation) else ''}"
            yield path, _one_line(info), section
            yield from _sections(section, f"{path}.")


def _table(section: type[BaseModel]) -> str:
    rows = ["| Setting | Type | Default | Meaning |", "|---|---|---|---|"]
    rows += [
        f"| `{name}` | {_type_of(info)} | {_default_of(info)} | {_one_line(info)} |"
        for name, info in section.model_fields.items()
    ]
    return "\n".join(rows) + "\n"


def _one_line(info: FieldInfo) -> str:
    return " ".join((info.description or "").split()).replace("|", "\\|")


def _unit(info: FieldInfo) -> Unit | None:
    """Of `Size` and `Duration`, and of `Size | None`, whose marks are one level further down."""
    marks = (*info.metadata, *(mark for part in get_args(info.annotation) for mark in get_args(part)))
    return next((mark for mark in marks if isinstance(mark, Unit)), None)


def _type_of(info: FieldInfo) -> str:
    unit = _unit(info)
    if unit:
        return "size" if unit.name == "bytes" else "duration"
    section = section_in(info.annotation)
    if section is not None:
        return "list of sections" if is_list(info.annotation) else "section"
    if get_origin(info.annotation) is dict:
        return "lists of text by name" if is_list(info.annotation) else "text by name"
    if is_list(info.annotation):
        return "list of " + ", ".join(dict.fromkeys(word for word in _words(info.annotation)))
    return ", ".join(dict.fromkeys(_words(info.annotation)))


def _words(annotation: object) -> Iterator[str]:
    if get_origin(annotation) is Literal:
        yield from (f"`{choice}`" for choice in get_args(annotation))
    elif annotation in _WORDS:
        yield _WORDS[annotation]
    elif hasattr(annotation, "__supertype__"):
        yield from _words(annotation.__supertype__)
    else:
        for part in get_args(annotation):
            yield from _words(part)


def _default_of(info: FieldInfo) -> str:
    if info.default_factory is dict:
        return "empty"
    if info.default_factory is not None:
        return "`host:port`"
    if info.default is PydanticUndefined:
        return "required"
    unit = _unit(info)
    if unit and info.default is not None:
        return f"`{format_size(info.default) if unit.name == 'bytes' else format_duration(info.default)}`"
    return _plain(info.default)


def _plain(default: object) -> str:
    if default is None or isinstance(default, BaseModel):
        return "–"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if default in ("", (), {}):
        return "empty"
    if isinstance(default, tuple):
        return ", ".join(f"`{value}`" for value in default)
    return f"`{default}`"
