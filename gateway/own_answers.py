"""What the gateway answers itself: which models there are, and whether anybody serves them. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Final
from urllib.parse import unquote_to_bytes

import orjson

from backends.fleet_state import FleetState
from gateway.api_error import ApiError
from gateway.model_choice import unknown_model
from gateway.routes import Kind

_ASKED_BY_ANTHROPIC: Final = re.compile(rb"\r\n(?i:anthropic-version):").search
_MODEL_PREFIX: Final = len(b"/v1/models/")

Card = Mapping[str, object]


def speaks_anthropic(fields: bytes) -> bool:
    """Do a request's header lines, each led by CRLF, come from a client of Anthropic's API?"""
    return _ASKED_BY_ANTHROPIC(fields) is not None


def own_answer(
    kind: Kind,
    path: bytes,
    fleet: FleetState,
    *,
    anthropic: bool,
    aliases: Mapping[str, str] = MappingProxyType({}),
    may_use: Callable[[str], bool] | None = None,
) -> bytes:
    """The JSON body of a 200 to a GET. `aliases` are further names of models; those of models that are served are
    listed too. A model is told to those only of whom `may_use` says that they may use it, by one of its names.

    Raises:
        ApiError: 404 for a model that nobody serves, 503 from `/health` while no worker has told its models.
    """
    if kind is Kind.HEALTH:
        if not fleet.models:
            raise ApiError(503, "No worker of this fleet has told its models yet.", code="no_worker")
        return b"{}"
    cards = _with_aliases(fleet.merged_cards(), aliases)
    if may_use is not None:
        cards = [card for card in cards if may_use(str(card["id"])) or may_use(aliases.get(str(card["id"]), ""))]
    if kind is Kind.MODELS:
        return _anthropic_list(cards) if anthropic else orjson.dumps({"object": "list", "data": cards})
    name = unquote_to_bytes(path[_MODEL_PREFIX:]).decode("utf-8", "replace")
    for card in cards:
        if card["id"] == name:
            return orjson.dumps(_anthropic_card(card) if anthropic else card)
    raise unknown_model(fleet, name, may_use)


def _with_aliases(cards: Sequence[Card], aliases: Mapping[str, str]) -> Sequence[Card]:
    """An alias has the card of its model, under its own name and with the model as its `root`."""
    if not aliases:
        return cards
    by_id = {card["id"]: card for card in cards}
    further = {
        alias: {**by_id[model], "id": alias, "root": model} for alias, model in aliases.items() if model in by_id
    }
    return [*(card for card in cards if card["id"] not in further), *further.values()]


def _anthropic_list(cards: Sequence[Card]) -> bytes:
    shaped = [_anthropic_card(card) for card in cards]
    ids = [card["id"] for card in shaped] or [None]
    return orjson.dumps({"data": shaped, "has_more": False, "first_id": ids[0], "last_id": ids[-1]})


def _anthropic_card(card: Card) -> dict[str, object]:
    created, length = card.get("created"), card.get("max_model_len")
    seconds = created if type(created) is int and 0 <= created < 1 << 35 else 0
    shaped: dict[str, object] = {
        "type": "model",
        "id": card["id"],
        "display_name": card["id"],
        "created_at": datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
    }
    return shaped | {"max_input_tokens": length} if type(length) is int else shaped
