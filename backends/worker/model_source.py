"""Where a model comes from: a directory, or an id that is fetched from the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path
from typing import Final

SMALL_MODEL: Final = Path(__file__).parent / "small_model"
"""The model that comes with the package."""

DEFAULT_MODEL: Final = "small"
"""What it is called where a directory or an id is expected."""

_TEXT_FILES: Final = ("*.json", "*.txt", "*.jinja", "tokenizer.model")
_WEIGHT_FILES: Final = ("*.safetensors",)
"""Never `*.bin` or `*.pt`: those are pickles, and reading one runs what is in it."""


class ModelSourceError(ValueError):
    """The model is neither a directory nor to be had from the hub."""


def model_directory(model: str, *, weights: bool = True) -> Path:
    """The directory with the model's files, fetched first where `model` is an id; may take as long as a download.

    Without `weights` (`load_format` dummy) only configuration and tokenizer are fetched. Raises ModelSourceError.
    """
    if model == DEFAULT_MODEL:
        return SMALL_MODEL
    directory = Path(model).expanduser()
    if directory.is_dir():
        if not (directory / "config.json").is_file():
            raise ModelSourceError(f"model: {directory} has no config.json")
        return directory
    if directory.is_absolute() or model.startswith((".", "~")):
        raise ModelSourceError(f"model: there is no directory {directory}")
    return _fetched(model, [*_TEXT_FILES, *(_WEIGHT_FILES if weights else ())])


def _fetched(model: str, patterns: list[str]) -> Path:
    # Not at the top: it is needed for ids only, and takes a third of a second.
    import huggingface_hub  # noqa: PLC0415 - see above

    try:
        return Path(huggingface_hub.snapshot_download(model, allow_patterns=patterns))
    except Exception as error:  # the hub's client raises a dozen unrelated kinds
        first = str(error).strip().partition("\n")[0]
        raise ModelSourceError(
            f"model: {model!r} is no directory here, and could not be fetched from the hub: {first}"
        ) from error
