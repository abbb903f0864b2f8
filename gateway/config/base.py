"""What all sections of the configuration share."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class Strict(BaseModel):
    """Base of all sections: frozen, no unknown keys, no conversions, no infinities."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


Port = Annotated[int, Field(ge=0, le=65535)]
