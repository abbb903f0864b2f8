"""Log probabilities in the shapes of OpenAI's two classic dialects. Pure."""

from __future__ import annotations

from typing import Any, Final

from backends.worker.messages import TokenLogprobs
from backends.worker.server.choice import Choice, Delta

_LEAST: Final = -9999.0
"""What vLLM writes for minus infinity, which JSON does not know."""


class ChatLogprobs:
    """`{"content": [{"token", "logprob", "bytes", "top_logprobs"}]}`."""

    def __init__(self, choice: Choice) -> None:
        self._choice = choice

    def of(self, delta: Delta) -> dict[str, Any]:
        """Of the tokens of a delta."""
        pairs = zip(delta.token_ids, delta.logprobs, strict=True)
        content = [
            self._entry(token_id, told.logprob)
            | {"top_logprobs": [self._entry(*top) for top in zip(told.top_ids, told.top_logprobs, strict=True)]}
            for token_id, told in pairs
        ]
        return {"content": content, "refusal": None}

    def _entry(self, token_id: int, logprob: float) -> dict[str, Any]:
        raw = self._choice.token_bytes(token_id)
        return {"token": raw.decode(errors="replace"), "logprob": max(logprob, _LEAST), "bytes": list(raw)}


class CompletionLogprobs:
    """`{"tokens", "token_logprobs", "top_logprobs", "text_offset"}`; offsets run on from delta to delta."""

    def __init__(self, choice: Choice) -> None:
        self._choice = choice
        self._offset = 0

    def of(self, delta: Delta) -> dict[str, Any]:
        """Of the tokens of a delta."""
        texts = [self._choice.token_text(each) for each in delta.token_ids]
        offsets = []
        for text in texts:
            offsets.append(self._offset)
            self._offset += len(text)
        return {
            "tokens": texts,
            "token_logprobs": [max(each.logprob, _LEAST) for each in delta.logprobs],
            "top_logprobs": [self._top(*pair) for pair in zip(texts, delta.logprobs, strict=True)],
            "text_offset": offsets,
        }

    def _top(self, text: str, told: TokenLogprobs) -> dict[str, float]:
        """The likeliest tokens, and the sampled one too where it is none of them."""
        top = {
            self._choice.token_text(each): max(logprob, _LEAST)
            for each, logprob in zip(told.top_ids, told.top_logprobs, strict=True)
        }
        return top | {text: max(told.logprob, _LEAST)}
