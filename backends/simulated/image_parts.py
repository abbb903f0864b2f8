"""Images in a chat, for an engine that has only a text model: a stand-in text for each. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson
from xxhash import xxh3_64_hexdigest

_IMAGE_KINDS: Final = frozenset({"image_url", "input_image"})


def images_as_text(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """The chat with a text part for each image, the same for the same image. Nothing of `body` is changed."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not any(_has_image(message) for message in messages):
        return body
    return {**body, "messages": [_shown(message) if _has_image(message) else message for message in messages]}


def _has_image(message: object) -> bool:
    content = message.get("content") if isinstance(message, Mapping) else None
    return isinstance(content, list) and any(_is_image(part) for part in content)


def _is_image(part: object) -> bool:
    return isinstance(part, Mapping) and part.get("type") in _IMAGE_KINDS


def _shown(message: Mapping[str, Any]) -> dict[str, Any]:
    parts = [_stand_in(part) if _is_image(part) else part for part in message["content"]]
    return {**message, "content": parts}


def _stand_in(part: Mapping[str, Any]) -> dict[str, str]:
    image = part.get("image_url")
    url = image.get("url") if isinstance(image, Mapping) else image
    return {"type": "text", "text": f"<image {xxh3_64_hexdigest(orjson.dumps(url))}>"}
