"""Calls that are priced by other things than tokens: their estimate and their cost, by LiteLLM's own price list."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from decimal import ROUND_UP, Decimal
from math import ceil
from typing import Any, Final

import litellm

from llm_budget_hooks.errors import PriceUnknown
from llm_budget_hooks.litellm.requests import sent
from llm_budget_hooks.litellm.usage import field
from llm_budget_hooks.models import Call, Usage
from llm_budget_hooks.money import to_decimal
from llm_budget_hooks.pricing import PriceBook
from llm_budget_hooks.pricing.asked import number

_log = logging.getLogger("llm_budget_hooks")
_NANO: Final = Decimal("0.000000001")
_MEDIA: Final = frozenset({"image_generation", "image_edit", "speech", "transcription", "rerank"})
_IMAGES: Final = frozenset({"image_generation", "image_edit"})
_QUALITIES: Final = ("standard", "hd", "low", "medium", "high")
_RATES: Final = (
    "output_cost_per_image", "input_cost_per_image", "input_cost_per_pixel", "output_cost_per_pixel",
    "input_cost_per_second", "output_cost_per_second", "input_cost_per_character", "input_cost_per_query",
)  # fmt: skip
_PIXELS: Final = 1024 * 1024


def amount_of(kind: str, model: str, asked: Mapping[str, Any], prices: PriceBook | None = None) -> Decimal | None:
    """What a call that is not priced by tokens is expected to cost; None if it is priced by tokens.

    Args:
        kind: the sync name of the entry point.
        model: the model's name.
        asked: its arguments by name.
        prices: the engine's own, which go first.
    """
    if kind not in _MEDIA:
        return None
    units = _UNITS_OF[kind](asked)
    own = _own_cost(prices, model, units)
    if own is not None:
        return own
    return dollars(max((_listed(name, units, asked) for name in _names(kind, model, asked)), default=0))


def cost_of(kind: str, call: Call, response: Any, prices: PriceBook | None = None) -> Decimal | None:
    """What such a call cost: by the policy's own price, else as LiteLLM says; None if neither can tell.

    Speech is priced by what was sent, so its estimate is what it cost.
    """
    if kind not in _MEDIA:
        return None
    own = _own_cost(prices, call.model, _made(kind, response))
    if own is not None:
        return own
    try:
        cost = dollars(litellm.completion_cost(completion_response=response, model=call.model, call_type=kind))
    except Exception as error:  # noqa: BLE001 - LiteLLM raises what it likes for what it cannot price
        _log.debug("LiteLLM has no cost for a call of kind %s: %s", kind, type(error).__name__)
        cost = None
    if cost is None and kind == "speech" and call.amount is not None:
        return Decimal(call.amount)
    return cost


def _own_cost(prices: PriceBook | None, model: str, units: Usage) -> Decimal | None:
    """What units cost by the policy's own price of a model."""
    try:
        price = prices.price(model) if prices is not None else None
    except PriceUnknown:
        return None
    if price is None or price.source != "policy":
        return None
    return to_decimal(price.cost_nusd(units)) or None


def dollars(cost: Any) -> Decimal | None:
    """An amount that LiteLLM gives as a float, rounded up to a nano-dollar; None for nothing."""
    if not isinstance(cost, (int, float)) or not 0 < cost <= 100_000:
        return None
    return Decimal(f"{cost:.12f}").quantize(_NANO, ROUND_UP)


def cost_of_hit(kwargs: Mapping[str, Any]) -> Decimal:
    """What an answer from LiteLLM's cache cost, by its event: nothing but what LiteLLM adds for guardrails."""
    logged = kwargs.get("standard_logging_object")
    breakdown = logged.get("cost_breakdown") if isinstance(logged, Mapping) else None
    found = breakdown.get("guardrail_cost") if isinstance(breakdown, Mapping) else None
    return dollars(found) or Decimal(0)


def _names(kind: str, model: str, asked: Mapping[str, Any]) -> list[str]:
    """The names under which LiteLLM may list a model: images have one for each quality and size."""
    if kind not in _IMAGES:
        return [model]
    provider, _, bare = model.rpartition("/")
    asked_for = asked.get("quality")
    qualities = (asked_for,) if isinstance(asked_for, str) and asked_for != "auto" else _QUALITIES
    size = str(asked.get("size") or "1024x1024").replace("x", "-x-")
    sized = [f"{quality}/{size}/{bare}" for quality in qualities] + [f"{size}/{bare}"]
    return [model, *sized, *(f"{provider}/{name}" for name in sized if provider)]


def _listed(name: str, units: Usage, asked: Mapping[str, Any]) -> float:
    """What units cost by LiteLLM's list; 0 for a name that it does not have."""
    try:
        listed: Mapping[str, Any] = litellm.get_model_info(name)
    except Exception as error:  # noqa: BLE001 - LiteLLM raises a plain Exception for a model it does not know
        _log.debug("No price per unit is listed: %s", type(error).__name__)
        return 0
    rates = {key: float(listed.get(key) or 0) for key in _RATES}
    image = max(rates["output_cost_per_image"], rates["input_cost_per_image"])
    pixel = rates["input_cost_per_pixel"] + rates["output_cost_per_pixel"]
    second = max(rates["input_cost_per_second"], rates["output_cost_per_second"])
    return (
        units.images * max(image, pixel * _pixels(asked))
        + units.input_characters * rates["input_cost_per_character"]
        + units.input_ms * second / 1000
        + units.searches * rates["input_cost_per_query"]
    )


def _pixels(asked: Mapping[str, Any]) -> int:
    size = str(asked.get("size") or "").partition("x")
    return int(size[0]) * int(size[2]) if size[0].isdigit() and size[2].isdigit() else _PIXELS


def _images(asked: Mapping[str, Any]) -> Usage:
    return Usage(images=max(number(place.get("n")) for place in sent(asked)))


def _speech(asked: Mapping[str, Any]) -> Usage:
    return Usage(input_characters=len(str(asked.get("input") or "")))


def _transcription(asked: Mapping[str, Any]) -> Usage:
    """An hour where the length is not known: most providers take no longer file."""
    from litellm.litellm_core_utils.audio_utils.utils import calculate_request_duration

    try:
        found = calculate_request_duration(asked.get("file"))  # type: ignore[arg-type]  # whatever the caller gave
    except Exception as error:  # noqa: BLE001 - it is a parser of foreign files
        _log.debug("The length of an audio file is not known: %s", type(error).__name__)
        found = None
    return Usage(input_ms=ceil((found or 3600.0) * 1000))


def _rerank(asked: Mapping[str, Any]) -> Usage:
    return Usage(searches=max(1, -(-len(asked.get("documents") or ()) // 100)))


def _made(kind: str, response: Any) -> Usage:
    """The units that an answer says were used; nothing where it does not say."""
    if kind in _IMAGES:
        return Usage(images=len(field(response, "data") or ()))
    if kind == "transcription":
        length = field(response, "duration")
        return Usage(input_ms=ceil(length * 1000) if isinstance(length, (int, float)) and length > 0 else 0)
    if kind == "rerank":
        units = field(field(field(response, "meta"), "billed_units"), "search_units")
        return Usage(searches=units if type(units) is int and units > 0 else 0)
    return Usage()


_UNITS_OF: Final[Mapping[str, Callable[[Mapping[str, Any]], Usage]]] = {
    "image_generation": _images,
    "image_edit": _images,
    "speech": _speech,
    "transcription": _transcription,
    "rerank": _rerank,
}
