"""From a parsed request to what the engine has to do: prompts, lengths, texts. Pure."""

from __future__ import annotations

from xxhash import xxh3_64_intdigest

from backends.engine_api.api_errors import ApiError
from backends.engine_api.lengths import output_tokens
from backends.simulated.answers import Answers, Choice
from backends.simulated.engine import EngineConfig
from backends.simulated.image_parts import images_as_text
from backends.simulated.kv_chain import EngineHash, chain_root, extend
from backends.simulated.model_text import ModelText
from backends.simulated.openai_requests import ChatRequest, CompletionRequest
from backends.simulated.sequence import SimRequest
from backends.simulated.tool_calls import forced_call
from cache.chat_template import TemplateError
from policies.types import TokenIds

_TOKEN_BYTES = 4
_COMPLETION_TOKENS = 16  # OpenAI's default, which vLLM keeps
_MOST_CHOICES = 128


class Planner:
    """Plans for one worker. Stateless."""

    def __init__(self, text: ModelText, config: EngineConfig) -> None:
        self._text = text
        self._config = config

    def chat(self, request_id: str, created: int, request: ChatRequest, raw: dict[str, object]) -> Answers:
        """The plan of a chat completion. Raises ApiError."""
        ids = self.chat_ids(raw)
        count = self._count(request.n)
        answers = Answers(request_id, created, request.model or self._text.model, len(ids) // _TOKEN_BYTES, count)
        answers.choices = self._choices(request, request_id, ids, most=request.most_tokens, first_index=0, count=count)
        call = forced_call(request, xxh3_64_intdigest(ids))
        if call is not None:
            answers.choices = [self._tool_choice(request, choice, *call) for choice in answers.choices]
        return answers

    def completion(self, request_id: str, created: int, request: CompletionRequest) -> Answers:
        """The plan of a completion, `n` choices for each prompt in order. Raises ApiError."""
        count = self._count(request.n)
        prompts = request.prompts
        encoded = [self.ids(prompt) for prompt in prompts]
        total = sum(len(ids) for ids in encoded) // _TOKEN_BYTES
        answers = Answers(request_id, created, request.model or self._text.model, total, count)
        most = _COMPLETION_TOKENS if request.max_tokens is None else request.max_tokens
        for prompt, ids in zip(prompts, encoded, strict=True):
            choices = self._choices(request, request_id, ids, most=most, first_index=len(answers.choices), count=count)
            if request.echo:
                echo = prompt if isinstance(prompt, str) else self._text.tokenizer.decode(prompt)
                for choice in choices:
                    choice.echo = echo
            answers.choices += choices
        return answers

    def chat_ids(self, raw: dict[str, object]) -> TokenIds:
        """Ids of a chat's rendered prompt. Raises ApiError when the template refuses."""
        try:
            text = self._text.tokenizer.render_chat(images_as_text(raw))
        except TemplateError as error:
            raise ApiError(400, str(error), param="messages") from None
        return self.ids(text, add_special_tokens=False)

    def ids(self, prompt: str | list[int], *, add_special_tokens: bool = True) -> TokenIds:
        """Ids of one prompt. Raises ApiError for a text that is no Unicode text."""
        try:
            return self._text.encode(prompt, add_special_tokens=add_special_tokens)
        except ValueError as error:
            raise ApiError(400, str(error), param="prompt") from None

    def adapter(self, model: str | None) -> str:
        """The LoRA adapter that a model's name means; empty for the base model."""
        return "" if model in (None, self._text.model) else str(model)

    def prefill_only(self, request_id: str, ids: TokenIds, salt: str, model: str | None = None) -> SimRequest:
        """A request that computes a prompt and nothing else: an embedding."""
        self._check_length(len(ids) // _TOKEN_BYTES, 1)
        adapter = self.adapter(model)
        root = chain_root(self._text.model, adapter, salt)
        hashes = extend(root, ids, self._config.block_size)
        return SimRequest(
            request_id,
            hashes,
            len(ids) // _TOKEN_BYTES,
            1,
            token_ids=ids,
            root=root,
            salt=salt or None,
            adapter=adapter,
        )

    def _count(self, n: int | None) -> int:
        count = 1 if n is None else n
        if count > _MOST_CHOICES:
            raise ApiError(400, f"n must be at most {_MOST_CHOICES}, got {count}.", param="n")
        return count

    def _choices(
        self,
        request: ChatRequest | CompletionRequest,
        request_id: str,
        ids: TokenIds,
        *,
        most: int | None,
        first_index: int,
        count: int,
    ) -> list[Choice]:
        """The choices for one prompt, which share its hashes."""
        n_tokens = len(ids) // _TOKEN_BYTES
        most = self._check_length(n_tokens, most)
        least = most if request.ignore_eos else request.min_tokens or 0
        salt = request.cache_salt or ""
        root = chain_root(self._text.model, self.adapter(request.model), salt)
        hashes = extend(root, ids, self._config.block_size)
        choices = []
        for index in range(first_index, first_index + count):
            answer = self._text.answers.answer(
                ids, choice=index - first_index, least=least, most=most, stops=request.stops
            )
            sim = self._sim_request(
                request, f"{request_id}-{index}", ids, hashes=hashes, root=root, output_ids=answer.ids
            )
            reason = "stop" if answer.stopped else "length"
            choices.append(Choice(index, sim, answer.pieces, reason, answer.stop_reason))
        return choices

    def _sim_request(
        self,
        request: ChatRequest | CompletionRequest,
        choice_id: str,
        ids: TokenIds,
        *,
        hashes: list[EngineHash],
        root: EngineHash,
        output_ids: TokenIds,
    ) -> SimRequest:
        return SimRequest(
            choice_id,
            hashes,
            len(ids) // _TOKEN_BYTES,
            len(output_ids) // _TOKEN_BYTES,
            token_ids=ids,
            output_ids=output_ids,
            root=root,
            salt=request.cache_salt or None,
            adapter=self.adapter(request.model),
            per_token=bool(request.stream),
        )

    def _tool_choice(self, request: ChatRequest, choice: Choice, name: str, arguments: str) -> Choice:
        """The same choice with a call for words; its arguments are never cut, unlike a real engine's."""
        ids = self._text.encode(arguments, add_special_tokens=False)
        self._check_length(choice.request.n_tokens, len(ids) // _TOKEN_BYTES)
        prompt = choice.request
        sim = self._sim_request(
            request,
            prompt.id,
            prompt.token_ids,
            hashes=list(prompt.hashes),
            root=prompt.root,
            output_ids=ids,
        )
        reason = "tool_calls" if request.tool_choice == "required" else "stop"
        return Choice(choice.index, sim, self._text.pieces(ids), reason, tool=name)

    def _check_length(self, n_tokens: int, most: int | None) -> int:
        return output_tokens(n_tokens, self._config.context_tokens, most)
