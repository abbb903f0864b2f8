"""Reading the fields of a model's configuration one by one, and judging those that nobody read."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final


class UnsupportedModelError(ValueError):
    """A model that we cannot compute exactly. Names the field, its value and what is supported."""

    def __init__(self, field: str, value: object, supported: str) -> None:
        super().__init__(f"{field} is {_short(value)}; supported: {supported}")
        self.field = field
        self.supported = supported


_HARMLESS: Final = frozenset(
    {
        "architectures",
        "model_type",
        "dtype",
        "torch_dtype",
        "transformers_version",
        "transformers.js_config",
        "_name_or_path",
        "name_or_path",
        "_attn_implementation",
        "_attn_implementation_autoset",
        "attn_implementation",
        "_commit_hash",
        # Token ids and what a generation does with them.
        "eos_token_id",
        "bos_token_id",
        "pad_token_id",
        "sep_token_id",
        "decoder_start_token_id",
        "forced_bos_token_id",
        "forced_eos_token_id",
        # Training: dropout and initial values play no part in inference.
        "attention_dropout",
        "hidden_dropout",
        "resid_pdrop",
        "embd_pdrop",
        "attn_pdrop",
        "initializer_range",
        "gradient_checkpointing",
        # How results are returned, or summed on several devices.
        "use_cache",
        "return_dict",
        "output_attentions",
        "output_hidden_states",
        "chunk_size_feed_forward",
        "pretraining_tp",
        "is_decoder",
        "is_encoder_decoder",  # no encoder-decoder has one of our architectures
        "id2label",
        "label2id",
        "num_labels",
        "problem_type",
        "max_length",
        "min_length",
        "use_bfloat16",
        "unsloth_version",
        "unsloth_fixed",
        "use_mrope",  # of Qwen2.5's first exports; text alone is not affected
    }
)
"""Fields that change nothing of what is computed here."""

_COMPUTES: Final = re.compile(
    r"attn|attention|rope|rotary|position|alibi|norm|scal|cap|clip|expert|moe|quant|window|bias|multiplier|logit|act"
    r"|layer|head|mlp|embed|hidden|residual|sink|chunk|sparse|compress|encoder|vision|audio|lora|auto_map|mask|latent"
)
"""A field with such a word in its name is taken to change the computation."""


def _is_neutral(value: object) -> bool:
    """A feature that is off, a factor of 1, or nothing."""
    return value is None or value is False or (value is not True and value in (1, [], {}, ""))


def check_rest(fields: Fields) -> tuple[str, ...]:
    """The unread fields that are ignored. Raises `UnsupportedModelError` where one would change the computation."""
    rest = sorted(set(fields.given) - fields.read - _HARMLESS)
    for name in rest:
        value = fields.given[name]
        if _COMPUTES.search(name) and not _is_neutral(value):
            raise UnsupportedModelError(name, value, "null (no such feature)")
    return tuple(rest)


class Fields:
    """The fields of one object of a configuration, each read with its type; remembers which were read.

    A missing field or a null has its default of `defaults` (the family's) or, failing that, the caller's.
    """

    def __init__(
        self, given: Mapping[str, Any], defaults: Mapping[str, Any] | None = None, *, prefix: str = ""
    ) -> None:
        self.given = given
        self.read: set[str] = set()
        self._defaults = defaults or {}
        self._prefix = prefix

    def raw(self, name: str, default: Any = None) -> Any:
        """The value as it is; a missing field is its default, a null stays null."""
        self.read.add(name)
        if name in self.given:
            return self.given[name]
        return self._defaults.get(name, default)

    def size(self, name: str, default: int | None = None) -> int:
        """An integer, from 1."""
        value = self.optional_size(name)
        if value is None:
            value = default
        if value is None:
            raise self.unsupported(name, None, "an integer, from 1")
        return value

    def optional_size(self, name: str) -> int | None:
        """An integer from 1, or None."""
        value = self.raw(name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise self.unsupported(name, value, "an integer, from 1")
        return value

    def count(self, name: str, default: int) -> int:
        """An integer, from 0."""
        value = self.raw(name)
        if value is None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise self.unsupported(name, value, "an integer, from 0")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A number above 0."""
        value = self.optional_number(name)
        if value is None:
            value = default
        if value is None:
            raise self.unsupported(name, None, "a number above 0")
        return value

    def optional_number(self, name: str) -> float | None:
        """A number above 0, or None."""
        value = self.raw(name)
        if value is None:
            return None
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < float("inf"):
            raise self.unsupported(name, value, "a number above 0")
        return float(value)

    def flag(self, name: str, *, default: bool) -> bool:
        """True or false."""
        value = self.raw(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.unsupported(name, value, "true or false")
        return value

    def one_of(self, name: str, known: Sequence[str], default: str) -> str:
        """One of a few words."""
        value = self.raw(name)
        if value is None:
            return default
        if value not in known:
            raise self.unsupported(name, value, ", ".join(known))
        return str(value)

    def unsupported(self, name: str, value: object, supported: str) -> UnsupportedModelError:
        """The error to raise for one of these fields."""
        return UnsupportedModelError(self._prefix + name, value, supported)


def _short(value: object) -> str:
    text = "missing" if value is None else repr(value)
    return text if len(text) <= 200 else text[:200] + "…"
