"""How the texts of a request's prompt begin, as far as answers are forgotten by it. Pure.

Of a chat: its instructions (a system prompt), its first message and the first one of a user. Of a completion or an
embedding: each text of the batch. Attachments are no text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cache.response_openings import Openings, openings_of

_INSTRUCTIONS = ("system", "instructions")


def openings_in(fields: Mapping[str, object]) -> Openings:
    """From a request's body; None where a prompt is token ids, or has more texts than are kept."""
    texts: list[str] = [_text(fields[name]) for name in _INSTRUCTIONS if name in fields]
    for name in ("prompt", "input"):
        given = fields.get(name)
        if type(given) is str:
            texts.append(given)
        elif type(given) is list and given:
            if type(given[0]) is dict:
                texts += _messages(given)
            elif all(type(one) is str for one in given):
                texts += given
            else:
                return None
    messages = fields.get("messages")
    if type(messages) is list:
        texts += _messages(messages)
    return openings_of(texts)


def _messages(messages: list[object]) -> Iterator[str]:
    """The first message, and the first one of a user."""
    first = next((one for one in messages if type(one) is dict), None)
    user = next((one for one in messages if type(one) is dict and one.get("role") == "user"), None)
    for message in (first, user):
        if message is not None:
            yield _text(message.get("content"))


def _text(content: object) -> str:
    """Of a text, or of parts, one after the other."""
    if type(content) is str:
        return content
    if type(content) is not list:
        return ""
    parts = [part.get("text") if type(part) is dict else part for part in content]
    return "".join([part for part in parts if type(part) is str])
