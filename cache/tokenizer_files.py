"""Reads a Hugging Face tokenizer directory as `transformers` does: which files, which wins, what is added."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import tokenizers
from tokenizers import AddedToken

if TYPE_CHECKING:
    from pathlib import Path

TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
SPECIAL_TOKENS_FILE = "special_tokens_map.json"
TEMPLATE_FILE = "chat_template.jinja"
TEMPLATE_JSON_FILE = "chat_template.json"
TEMPLATE_FOLDER = "additional_chat_templates"

_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_TOKEN_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


class TokenizerError(Exception):
    """A tokenizer directory cannot be used; the message has the path and the reason."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """What a tokenizer directory says."""

    tokenizer: tokenizers.Tokenizer
    """tokenizer.json with the tokens of the configuration added; no truncation, no padding. Its
    post-processor alone says which BOS and EOS are added: `add_bos_token` beside it does nothing, as in
    transformers 5."""
    special_tokens: Mapping[str, str]
    """`bos_token` and so on: the variables which a chat template finds."""
    templates: Mapping[str, str]
    """Chat templates by name; the usual one is `default`. Empty when there is none."""


def read_tokenizer_files(directory: Path) -> TokenizerFiles:
    """Read `directory`; only tokenizer.json must be there. Raises TokenizerError."""
    path = directory / TOKENIZER_FILE
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TokenizerError(path, f"cannot be read: {error}") from error
    try:
        tokenizer = tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises bare Exception on every fault of the file
        raise TokenizerError(path, f"not a tokenizer that the tokenizers library reads: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    config = _read_json(directory / CONFIG_FILE)
    if "added_tokens_decoder" not in config:
        # A folder of the older layout: the names of special tokens may stand in a file of their own.
        config = {**config, **_read_json(directory / SPECIAL_TOKENS_FILE)}
    special_tokens = _named_tokens(config)
    _add_tokens(tokenizer, config, special_tokens)
    return TokenizerFiles(tokenizer, special_tokens, _read_templates(directory, config))


def _read_json(path: Path) -> dict[str, object]:
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise TokenizerError(path, f"cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise TokenizerError(path, "not a JSON object")
    return content


def _content(token: object) -> str | None:
    """The text of a token written as a string or as an object with its flags."""
    if isinstance(token, str):
        return token
    if isinstance(token, Mapping) and isinstance(content := token.get("content"), str):
        return content
    return None


def _named_tokens(config: Mapping[str, object]) -> dict[str, str]:
    contents = {name: _content(config.get(name)) for name in _NAMED_TOKENS}
    return {name: content for name, content in contents.items() if content is not None}


def _added_token(token: object, *, special: bool) -> AddedToken:
    if isinstance(token, Mapping):
        flags = {flag: bool(token[flag]) for flag in _TOKEN_FLAGS if flag in token}
        return AddedToken(str(token["content"]), **{"special": special, **flags})
    return AddedToken(str(token), special=special)


def _add_tokens(tokenizer: tokenizers.Tokenizer, config: Mapping[str, object], named: Mapping[str, str]) -> None:
    """Add the tokens which the configuration names and tokenizer.json lacks, in the order of their ids."""
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    decoder = config.get("added_tokens_decoder")
    by_id = sorted(decoder.items(), key=lambda item: int(item[0])) if isinstance(decoder, dict) else []
    extra = config.get("extra_special_tokens", config.get("additional_special_tokens"))
    candidates = [_added_token(token, special=False) for _, token in by_id]
    candidates += [_added_token(config[name], special=True) for name in named]
    candidates += [_added_token(token, special=True) for token in extra] if isinstance(extra, list) else []
    for token in candidates:
        if token.content not in known:
            known.add(token.content)
            tokenizer.add_tokens([token])


def read_text(path: Path) -> str:
    """A text file's contents. Raises TokenizerError."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TokenizerError(path, f"cannot be read: {error}") from error


def _read_templates(directory: Path, config: Mapping[str, object]) -> dict[str, str]:
    """Template files win over the configuration, as a whole."""
    templates: dict[str, str] = {}
    if (path := directory / TEMPLATE_FILE).is_file():
        templates["default"] = read_text(path)
    for path in sorted((directory / TEMPLATE_FOLDER).glob("*.jinja")):
        templates[path.stem] = read_text(path)
    if templates:
        return templates
    # Older multimodal models keep it in a JSON file of its own.
    written = config.get("chat_template") or _read_json(directory / TEMPLATE_JSON_FILE).get("chat_template")
    if isinstance(written, str):
        return {"default": written}
    if isinstance(written, list):
        try:
            return {str(entry["name"]): str(entry["template"]) for entry in written}
        except (TypeError, KeyError) as error:
            reason = 'chat_template must be a string or a list of {"name", "template"}'
            raise TokenizerError(directory / CONFIG_FILE, reason) from error
    if isinstance(written, dict):
        return {str(name): str(template) for name, template in written.items()}
    return {}
