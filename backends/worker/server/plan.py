"""From a request's body to the sequences that the engine has to complete. Pure; safe in any thread."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from backends.engine_api.api_errors import ApiError
from backends.engine_api.bodies import TokenizeRequest, prompts_of, read_body
from backends.engine_api.lengths import room_for_output
from backends.worker.messages import Ready, SamplingParams
from backends.worker.server.request_fields import ChatFields, CompletionFields, check_chat, check_completion
from backends.worker.text.sampling_request import SamplingError, SamplingRequest, read_sampling
from cache.chat_template import TemplateError
from cache.token_backends import bytes_to_ids, ids_to_bytes
from cache.tokenizer import Tokenizer
from policies.types import TokenIds

_TOKEN_BYTES: Final = 4
_MOST_CHOICES: Final = 512


@dataclass(frozen=True, slots=True)
class PlannedChoice:
    """One sequence of a request. `index` is that of its choice in the answer."""

    index: int
    token_ids: TokenIds
    params: SamplingParams
    echo: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All that one request asked for."""

    chat: bool
    model: str
    sampling: SamplingRequest
    """Its `params` are those of the first prompt; every choice has its own."""
    prompt_tokens: int
    stream: bool
    usage: bool
    """Whether a stream ends with a usage chunk."""
    continuous_usage: bool
    token_ids: bool
    """Whether ids are returned beside the text."""
    salt: str
    priority: int
    wanted: bool = False
    """The client says that it will come back with this prompt."""
    choices: list[PlannedChoice] = field(default_factory=list)


class Planner:
    """Plans for one model. Immutable."""

    def __init__(self, model: str, tokenizer: Tokenizer, ready: Ready, draw_seed: Callable[[], int]) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._ready = ready
        self._draw_seed = draw_seed

    def check_model(self, model: str | None) -> None:
        """Raise ApiError 404 for another model."""
        if model not in (None, self._model):
            raise ApiError(404, f"The model `{model}` does not exist.", kind="NotFoundError", param="model")

    def chat(self, body: bytes) -> Plan:
        """The plan of a chat completion. Raises ApiError."""
        fields, raw = read_body(body, ChatFields)
        self.check_model(fields.model)
        check_chat(fields, raw)
        ids = self._chat_ids(raw, add_special_tokens=raw.get("add_special_tokens") is True)
        return self._plan(fields, raw, [("", ids)], chat=True)

    def completion(self, body: bytes) -> Plan:
        """The plan of a completion, `n` choices for each prompt in order. Raises ApiError."""
        fields, raw = read_body(body, CompletionFields)
        self.check_model(fields.model)
        check_completion(fields, raw)
        prompts = prompts_of(fields.prompt)
        if len(prompts) > _MOST_CHOICES:
            raise ApiError(400, f"at most {_MOST_CHOICES} prompts at a time", param="prompt")
        encoded = []
        for prompt in prompts:
            ids = self._ids(prompt, add_special_tokens=raw.get("add_special_tokens") is not False)
            encoded.append((self._echo(prompt) if fields.echo else "", ids))
        return self._plan(fields, raw, encoded, chat=False)

    def tokenize(self, body: bytes) -> dict[str, object]:
        """The answer of `/tokenize`. Raises ApiError."""
        request, raw = read_body(body, TokenizeRequest)
        self.check_model(request.model)
        if request.messages is not None:
            ids = self._chat_ids(raw, add_special_tokens=bool(request.add_special_tokens))
        elif request.prompt is not None:
            ids = self._ids(request.prompt, add_special_tokens=request.add_special_tokens is not False)
        else:
            raise ApiError(400, "Either `prompt` or `messages` must be given", param="prompt")
        tokens = bytes_to_ids(ids)
        strings = (
            [self._tokenizer.reference.id_to_token(each) for each in tokens] if request.return_token_strs else None
        )
        limit = self._ready.max_model_len
        return {"count": len(tokens), "max_model_len": limit, "tokens": tokens, "token_strs": strings}

    def _plan(
        self,
        fields: ChatFields | CompletionFields,
        raw: Mapping[str, object],
        prompts: list[tuple[str, TokenIds]],
        *,
        chat: bool,
    ) -> Plan:
        samplings = [self._sampling(raw, ids, chat=chat) for _, ids in prompts]
        if samplings[0].n * len(prompts) > _MOST_CHOICES:
            raise ApiError(400, f"at most {_MOST_CHOICES} choices at a time", param="n")
        options = fields.stream_options
        plan = Plan(
            chat=chat,
            model=fields.model or self._model,
            sampling=samplings[0],
            prompt_tokens=sum(len(ids) for _, ids in prompts) // _TOKEN_BYTES,
            stream=bool(fields.stream),
            usage=bool(options and options.include_usage),
            continuous_usage=bool(options and options.include_usage and options.continuous_usage_stats),
            token_ids=bool(fields.return_token_ids),
            salt=fields.cache_salt or "",
            priority=fields.priority or 0,
            wanted=raw.get("prompt_cache_retention") == "24h",
        )
        for (echo, ids), sampling in zip(prompts, samplings, strict=True):
            for number in range(sampling.n):
                plan.choices.append(PlannedChoice(len(plan.choices), ids, sampling.choice(number), echo))
        return plan

    def _sampling(self, raw: Mapping[str, object], ids: TokenIds, *, chat: bool) -> SamplingRequest:
        left = room_for_output(len(ids) // _TOKEN_BYTES, self._ready.max_model_len)
        if max(array("I", ids)) >= self._ready.vocab_size:
            message = f"a token id is beyond the model's vocabulary of {self._ready.vocab_size}"
            raise ApiError(400, message, param="messages" if chat else "prompt")
        try:
            return read_sampling(
                raw, chat=chat, vocab_size=self._ready.vocab_size, max_tokens_left=left, draw_seed=self._draw_seed
            )
        except SamplingError as error:
            raise ApiError(400, str(error), param=error.param) from None

    def _chat_ids(self, raw: Mapping[str, object], *, add_special_tokens: bool) -> TokenIds:
        try:
            text = self._tokenizer.render_chat(raw)
        except TemplateError as error:
            raise ApiError(400, str(error), param="messages") from None
        return self._encode(text, "messages", add_special_tokens=add_special_tokens)

    def _ids(self, prompt: str | list[int], *, add_special_tokens: bool) -> TokenIds:
        if isinstance(prompt, str):
            return self._encode(prompt, "prompt", add_special_tokens=add_special_tokens)
        return ids_to_bytes(prompt)

    def _encode(self, text: str, param: str, *, add_special_tokens: bool) -> TokenIds:
        try:
            return self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        except ValueError as error:
            raise ApiError(400, str(error), param=param) from None

    def _echo(self, prompt: str | list[int]) -> str:
        return prompt if isinstance(prompt, str) else self._tokenizer.decode(prompt)
