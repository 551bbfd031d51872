"""Calls that are priced by other things than tokens: their estimate and their cost, by LiteLLM's own price list."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from decimal import ROUND_UP, Decimal
from typing import Any, Final

import litellm

_log = logging.getLogger("llm_budget_hooks")
_NANO: Final = Decimal("0.000000001")
_MEDIA: Final = frozenset({"image_generation", "image_edit", "speech", "transcription", "rerank"})
_PIXELS: Final = 1024 * 1024


def amount_of(kind: str, model: str, asked: Mapping[str, Any]) -> Decimal | None:
    """What a call that is not priced by tokens is expected to cost; None if it is priced by tokens.

    Args:
        kind: the sync name of the entry point.
        model: the model's name.
        asked: its arguments by name.
    """
    if kind not in _MEDIA:
        return None
    try:
        listed: Mapping[str, Any] = litellm.get_model_info(model)
    except Exception as error:  # noqa: BLE001 - LiteLLM raises a plain Exception for a model it does not know
        _log.debug("No price per unit is listed: %s", type(error).__name__)
        return None
    return dollars(_UNITS[kind](listed, asked))


def cost_of(kind: str, model: str, response: Any) -> Decimal | None:
    """What such a call cost; None if LiteLLM cannot tell or says 0."""
    if kind not in _MEDIA:
        return None
    try:
        cost = litellm.completion_cost(completion_response=response, model=model, call_type=kind)
    except Exception as error:  # noqa: BLE001 - LiteLLM raises what it likes for what it cannot price
        _log.debug("LiteLLM has no cost for a call of kind %s: %s", kind, type(error).__name__)
        return None
    return dollars(cost)


def dollars(cost: Any) -> Decimal | None:
    """An amount that LiteLLM gives as a float, rounded up to a nano-dollar; None for nothing."""
    if not isinstance(cost, (int, float)) or not 0 < cost <= 100_000:
        return None
    return Decimal(f"{cost:.12f}").quantize(_NANO, ROUND_UP)


def _images(listed: Mapping[str, Any], asked: Mapping[str, Any]) -> float:
    count = asked.get("n") if isinstance(asked.get("n"), int) else 1
    size = str(asked.get("size") or "").partition("x")
    pixels = int(size[0]) * int(size[2]) if size[0].isdigit() and size[2].isdigit() else _PIXELS
    each = listed.get("output_cost_per_image") or listed.get("input_cost_per_image") or 0
    by_pixel = (listed.get("input_cost_per_pixel") or 0) + (listed.get("output_cost_per_pixel") or 0)
    return float(max(each, by_pixel * pixels)) * (count or 1)


def _speech(listed: Mapping[str, Any], asked: Mapping[str, Any]) -> float:
    return float(listed.get("input_cost_per_character") or 0) * len(str(asked.get("input") or ""))


def _transcription(listed: Mapping[str, Any], asked: Mapping[str, Any]) -> float:
    """An hour is held where the length is not known: most providers take no longer file."""
    rate = max(listed.get("input_cost_per_second") or 0, listed.get("output_cost_per_second") or 0)
    return float(rate) * _seconds(asked.get("file"))


def _seconds(file: Any) -> float:
    from litellm.litellm_core_utils.audio_utils.utils import calculate_request_duration

    try:
        found = calculate_request_duration(file)
    except Exception as error:  # noqa: BLE001 - it is a parser of foreign files
        _log.debug("The length of an audio file is not known: %s", type(error).__name__)
        found = None
    return float(found or 3600.0)


def _rerank(listed: Mapping[str, Any], asked: Mapping[str, Any]) -> float:
    documents = len(asked.get("documents") or ())
    return float(listed.get("input_cost_per_query") or 0) * max(1, -(-documents // 100))


_UNITS: Final = {
    "image_generation": _images,
    "image_edit": _images,
    "speech": _speech,
    "transcription": _transcription,
    "rerank": _rerank,
}
