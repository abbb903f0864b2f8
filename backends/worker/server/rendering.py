"""Answers in the bytes of OpenAI's two classic dialects, with vLLM's additions. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from backends.engine_api.sse import DONE, data_event
from backends.worker.server.choice import Choice, Delta
from backends.worker.server.logprobs import ChatLogprobs, CompletionLogprobs
from backends.worker.server.plan import Plan
from cache.token_backends import bytes_to_ids


class Rendering:
    """Renders one answer, either as one body or event by event."""

    def __init__(self, answer_id: str, created: int, plan: Plan, choices: Sequence[Choice]) -> None:
        self._plan = plan
        self._choices = choices
        kind = "chat.completion" if plan.chat else "text_completion"
        if plan.chat and plan.stream:
            kind = "chat.completion.chunk"
        self._head = {"id": answer_id, "object": kind, "created": created, "model": plan.model}
        self._opened = [False] * len(choices)
        shape = ChatLogprobs if plan.chat else CompletionLogprobs
        self._logprobs = [shape(choice) for choice in choices]

    def body(self) -> bytes:
        """The unary response; every choice has ended."""
        choices = [self._unary_choice(choice) for choice in self._choices]
        body = {**self._head, "choices": choices, "usage": self._usage()}
        if self._plan.token_ids and self._plan.chat:
            body["prompt_token_ids"] = bytes_to_ids(self._choices[0].planned.token_ids)
        return orjson.dumps(body)

    def events(self) -> bytes:
        """Events of all that is new."""
        return b"".join(self._choice_events(choice) for choice in self._choices)

    def end(self) -> bytes:
        """Usage if wanted, and `[DONE]`."""
        if not self._plan.usage:
            return DONE
        return data_event({**self._head, "choices": [], "usage": self._usage()}) + DONE

    def _choice_events(self, choice: Choice) -> bytes:
        delta = choice.drain()
        index = choice.planned.index
        if not self._opened[index] and (delta.token_ids or not delta.empty):
            self._opened[index] = True
            return self._opening(choice) + self._chunk(choice, delta)
        return b"" if delta.empty and not (self._plan.token_ids and delta.token_ids) else self._chunk(choice, delta)

    def _opening(self, choice: Choice) -> bytes:
        """The role, or the echoed prompt, and the prompt's ids where they were asked for."""
        plan = self._plan
        ids = bytes_to_ids(choice.planned.token_ids) if plan.token_ids else None
        content: dict[str, Any]
        if plan.chat:
            content = {"delta": {"role": "assistant", "content": ""}}
        elif choice.planned.echo or ids is not None:
            content = {"text": choice.planned.echo}
        else:
            return b""
        if ids is not None and not plan.chat:
            content["prompt_token_ids"] = ids
        whole = {"prompt_token_ids": ids} if ids is not None and plan.chat else {}
        return self._event({**content, "logprobs": None, "finish_reason": None}, choice, **whole)

    def _chunk(self, choice: Choice, delta: Delta) -> bytes:
        if delta.empty and not self._plan.token_ids:
            return b""
        content: dict[str, Any] = {"delta": {"content": delta.text}} if self._plan.chat else {"text": delta.text}
        content |= self._ending(choice, delta)
        return self._event(content, choice)

    def _event(self, content: dict[str, Any], choice: Choice, **whole: object) -> bytes:
        event = {**self._head, **whole, "choices": [{"index": choice.planned.index, **content}]}
        if self._plan.continuous_usage:
            event["usage"] = self._usage()
        return data_event(event)

    def _unary_choice(self, choice: Choice) -> dict[str, Any]:
        delta = choice.drain()
        text = choice.planned.echo + delta.text
        content: dict[str, Any] = {"index": choice.planned.index}
        if self._plan.chat:
            content["message"] = {"role": "assistant", "content": text, "tool_calls": []}
        else:
            content["text"] = text
            if self._plan.token_ids:
                content["prompt_token_ids"] = bytes_to_ids(choice.planned.token_ids)
        return content | self._ending(choice, delta)

    def _ending(self, choice: Choice, delta: Delta) -> dict[str, Any]:
        ending: dict[str, Any] = {
            "logprobs": None,
            "finish_reason": delta.finish_reason,
            "stop_reason": choice.stop_reason if delta.finish_reason else None,
        }
        if choice.planned.params.logprobs is not None:
            ending["logprobs"] = self._logprobs[choice.planned.index].of(delta)
        if self._plan.token_ids:
            ending["token_ids"] = delta.token_ids
        return ending

    def _usage(self) -> dict[str, Any]:
        """A prompt asked for n answers counts once, with its first one's hits."""
        plan, choices = self._plan, self._choices
        output = sum(choice.n_output for choice in choices)
        cached = sum(choice.cached_tokens for choice in choices[:: plan.sampling.n])
        return {
            "prompt_tokens": plan.prompt_tokens,
            "total_tokens": plan.prompt_tokens + output,
            "completion_tokens": output,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
