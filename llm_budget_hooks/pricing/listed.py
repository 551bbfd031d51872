"""Prices from LiteLLM's list.

A price of 0 in the list is no price: a class of tokens that is listed at 0 is charged at the plain rate, and a model
that costs nothing at all by the list is unknown. Only the owner of the policy can say that a model is free.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from decimal import Decimal
from functools import cache
from typing import Any, Final

from llm_budget_hooks.pricing.hours import hours_of
from llm_budget_hooks.pricing.price import Price
from llm_budget_hooks.pricing.rates import MAX_RATE, Kind, Sheet, Units, rate_of
from llm_budget_hooks.pricing.source import Entry, find

_KINDS: Final[Mapping[str, Kind]] = {
    "input_cost_per_token": "input",
    "output_cost_per_token": "output",
    "cache_read_input_token_cost": "cached",
    "cache_creation_input_token_cost": "write",
    "cache_creation_input_token_cost_above_1hr": "write_1h",
    "output_cost_per_reasoning_token": "reasoning",
    "input_cost_per_audio_token": "audio_in",
    "output_cost_per_audio_token": "audio_out",
    "input_cost_per_image_token": "image_in",
    "output_cost_per_image_token": "image_out",
    "cache_read_input_audio_token_cost": "cached_audio",
    "cache_read_input_image_token_cost": "cached_image",
}
_KEY: Final = re.compile(
    rf"({'|'.join(sorted(_KINDS, key=len, reverse=True))})"
    r"(?:_above_([0-9]+)(k?)_tokens)?(?:_(flex|priority|batches|balanced|ultrafast))?"
)
_IMAGE_MODES: Final = ("image_generation", "image_edit")
_MADE_OF: Final = {
    "image_generation": "output_cost_per_image_token",
    "image_edit": "output_cost_per_image_token",
    "audio_speech": "output_cost_per_audio_token",
}
"""What the output of these is made of, whether a usage says so or not."""
_LENGTH_MODES: Final = ("audio_transcription", "audio_speech", "video_generation")
_TOKEN_KEYS: Final = ("input_cost_per_token", "input_cost_per_audio_token")
_MADE: Final = ("output_cost_per_second", "output_cost_per_video_per_second")
_TEXT_MODES: Final = ("chat", "responses", "completion")
_ROUTERS: Final = ("model-router", "model_router")
_SECOND_CACHED: Final = "input_cost_per_token_cache_hit"

_CACHED_SHARES: Final[Mapping[str, Decimal]] = {"fireworks_ai": Decimal("0.5")}
"""Providers whose terms price all cached input as a share of input, where the list has no rate."""

_HALF_IN_BATCHES: Final = ("fireworks_ai", "groq")
"""Providers whose terms halve input and output of every model in batches, where the list has no such rate (Fireworks,
"Serverless pricing"; Groq, "Batch API"). Where others list no batch price, a model is none of those they batch."""

_SEARCHES: Final[Mapping[str, Decimal]] = {
    "anthropic": Decimal("0.01"),
    "azure": Decimal("0.01"),
    "gemini": Decimal("0.035"),
    "openai": Decimal("0.01"),
    "xai": Decimal("0.005"),
}
"""Dollars for a web search where the list has none for the model: the providers' pages have one price for all of
theirs (Anthropic and OpenAI $10, xAI $5, Gemini up to version 2.5 $35 a thousand)."""

_FILE_SEARCHES: Final[Mapping[str, Decimal]] = {"openai": Decimal("0.0025"), "xai": Decimal("0.0025")}
"""Dollars for a search of a vector store, which no list has (OpenAI, "Pricing", "Built-in tools"; xAI, "Tools pricing":
$2.50 a thousand)."""

_BY_USE: Final = ("search", "file_search", "container")
"""What is charged beside tokens, and makes no price of its own."""

_INCLUSIVE: Final = ("xai",)
"""Providers whose long-context rates hold from the threshold on, not above it."""


def listed_price(name: str, entry: Entry, cached_share: Decimal) -> Price | None:
    """The price of a listed model, or None where the list has none for its tokens, images or calls."""
    price = _priced(name, entry, cached_share)
    if price is not None and entry.get("web_search_billing_unit") != "per_query" and _is_google(entry):
        price = replace(price, searches_once=True)
    table = entry.get("off_peak_pricing")
    if price is None or not isinstance(table, Mapping):
        return price
    hours, cheaper = hours_of(table), _priced(name, {**entry, **table}, cached_share)
    return price if hours is None or cheaper is None else replace(price, off_peak=(hours, cheaper))


def _priced(name: str, entry: Entry, cached_share: Decimal) -> Price | None:
    written, units = _written(entry), _units(entry)
    by_unit = any(unit for key, unit in units._asdict().items() if key not in _BY_USE)
    if name.rpartition("/")[2] in _ROUTERS or not _complete(written, entry, by_unit):
        return None
    if max(written.values(), default=0) > MAX_RATE:
        return None
    provider = str(entry.get("litellm_provider") or "")
    share = _CACHED_SHARES.get(provider, cached_share) if cached_share == 1 else cached_share
    return Price.of(
        name,
        Sheet(written, share),
        provider=provider,
        source="litellm",
        units=units,
        max_input_tokens=_tokens(entry, "max_input_tokens"),
        max_output_tokens=_tokens(entry, "max_output_tokens"),
    )


def _is_google(entry: Entry) -> bool:
    """Whether grounding is billed by the prompt unless the list says by the query (Gemini, "Grounding")."""
    return str(entry.get("litellm_provider")).startswith(("gemini", "vertex_ai"))


def limits_of(entry: Entry) -> tuple[int | None, int | None]:
    """The largest input and output of a listed model, in tokens."""
    return _tokens(entry, "max_input_tokens"), _tokens(entry, "max_output_tokens")


def _written(entry: Entry) -> dict[tuple[Kind, int, str], int]:
    written = dict(_ranges(entry))
    for key, value in entry.items():
        place = _place(key)
        dollars = _dollars(value) if place else None
        if place is None or dollars is None or (not dollars and place[0] not in ("input", "output")):
            continue
        kind, over, tier = place
        if over and entry.get("litellm_provider") in _INCLUSIVE:
            over -= 1
        written.setdefault((kind, over, tier), rate_of(dollars))
    if entry.get("litellm_provider") in _HALF_IN_BATCHES:
        for kind, over, _ in [place for place in written if place[0] in ("input", "output") and not place[2]]:
            written.setdefault((kind, over, "batches"), -(-written[kind, over, ""] // 2))
    if ("cached", 0, "") not in written and (hit := _dollars(entry.get(_SECOND_CACHED))):
        written["cached", 0, ""] = rate_of(hit)
    return written


@cache
def _place(key: str) -> tuple[Kind, int, str] | None:
    match = _KEY.fullmatch(key)
    if match is None:
        return None
    return _KINDS[match[1]], int(match[2] or 0) * (1000 if match[3] else 1), match[4] or ""


def _ranges(entry: Entry) -> Iterator[tuple[tuple[Kind, int, str], int]]:
    for tier in entry.get("tiered_pricing") or ():
        bounds = tier.get("range")
        if not isinstance(bounds, list) or not bounds:
            continue
        for key, kind in _KINDS.items():
            if dollars := _dollars(tier.get(key)):
                yield (kind, int(bounds[0]), ""), rate_of(dollars)


def _complete(written: dict[tuple[Kind, int, str], int], entry: Entry, per_unit: bool) -> bool:
    """Fill in the plain rates that the list leaves out; False if there is no price to start from."""
    made_rate = _dollars(entry.get(_MADE_OF.get(str(entry.get("mode")), "")))
    plain_in = written.get(("input", 0, "")) or written.get(("audio_in", 0, "")) or 0
    plain_out = max(written.get(("output", 0, "")) or 0, rate_of(made_rate or 0))
    if not plain_in and not per_unit:
        return False
    if not plain_out and (("output", 0, "") not in written or entry.get("mode") in _TEXT_MODES):
        plain_out = plain_in
    written["input", 0, ""] = plain_in
    written["output", 0, ""] = plain_out
    return True


def _units(entry: Entry) -> Units:
    provider = str(entry.get("litellm_provider"))
    tools = (0, 0)
    if entry.get("mode") in _TEXT_MODES:
        tools = rate_of(_FILE_SEARCHES.get(provider, 0)), _per_container(provider)
    return Units(_per_call(entry), _per_image(entry), _per_search(entry), *_by_length(entry), *tools)


@cache
def _per_container(provider: str) -> int:
    """What the list has, under a name of its own, for a container that runs code at a provider."""
    found = find(f"{provider}/container")
    return rate_of(_dollars(found[1].get("code_interpreter_cost_per_session")) or 0) if found else 0


def _by_length(entry: Entry) -> tuple[int, int, int]:
    """What a letter, a millisecond sent and a millisecond made cost, for models that are charged by these alone."""
    mode = entry.get("mode")
    if mode not in _LENGTH_MODES or any(_dollars(entry.get(key)) for key in _TOKEN_KEYS):
        return 0, 0, 0
    heard, made = _second(entry, "input_cost_per_second"), _second(entry, *_MADE)
    if mode == "audio_transcription":
        return 0, max(heard, made), 0
    letter = rate_of(_dollars(entry.get("input_cost_per_character")) or 0)
    return (letter, 0, 0) if letter else (0, heard, made)


def _second(entry: Entry, *keys: str) -> int:
    return max(-(-rate_of(_dollars(entry.get(key)) or 0) // 1000) for key in keys)


def _per_call(entry: Entry) -> int:
    return sum(rate_of(_dollars(entry.get(key)) or 0) for key in ("input_cost_per_request", "input_cost_per_query"))


def _per_image(entry: Entry) -> int:
    by_token = "output_cost_per_image_token" in entry and entry.get("mode") in _IMAGE_MODES
    return 0 if by_token else rate_of(_dollars(entry.get("output_cost_per_image")) or 0)


def _per_search(entry: Entry) -> int:
    sizes = entry.get("search_context_cost_per_query")
    listed = _dollars(sizes.get("search_context_size_medium")) if isinstance(sizes, Mapping) else None
    if listed:
        return rate_of(listed)
    return rate_of(_SEARCHES.get(str(entry.get("litellm_provider")), 0)) if entry.get("mode") in _TEXT_MODES else 0


def _tokens(entry: Entry, key: str) -> int | None:
    value = entry.get(key, entry.get("max_tokens"))
    return int(value) if isinstance(value, int | Decimal) and value > 0 else None


def _dollars(value: Any) -> Decimal | int | None:
    if isinstance(value, bool) or not isinstance(value, int | Decimal) or value < 0:
        return None
    return value
