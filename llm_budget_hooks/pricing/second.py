"""Prices from the package genai-prices, where it is installed, for models that LiteLLM's list has no price for.

Its own search matches names by their beginnings, so that a small model could be priced as a large one; here a reading
of a name is only found as it is written there. It asks no network. A price of 0 is no price here either.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from typing import Any, Final

from llm_budget_hooks.pricing.names import Reading
from llm_budget_hooks.pricing.price import Price
from llm_budget_hooks.pricing.rates import MAX_RATE, Kind, Sheet, Units, rate_of

_PROVIDERS: Final[Mapping[str, str]] = {
    "aws": "bedrock",
    "fireworks": "fireworks_ai",
    "github-copilot": "github_copilot",
    "google": "gemini",
    "meta": "meta_llama",
    "moonshotai": "moonshot",
    "together": "together_ai",
    "voyageai": "voyage",
    "x-ai": "xai",
    "zhipuai": "zhipu",
}
"""LiteLLM's names of its providers, where they differ."""

_MAKERS: Final = (
    "openai", "anthropic", "gemini", "mistral", "deepseek", "xai", "cohere", "perplexity", "moonshot", "zai", "bedrock",
)  # fmt: skip
"""Whose model a bare name is."""

_SHARED: Final[Mapping[str, str]] = {"vertex_ai": "gemini"}
"""Providers whose models it has under another's name."""

_KINDS: Final[Mapping[str, Kind]] = {
    "input_mtok": "input",
    "output_mtok": "output",
    "cache_read_mtok": "cached",
    "cache_write_mtok": "write",
    "cache_write_1h_mtok": "write_1h",
    "output_reasoning_mtok": "reasoning",
    "input_audio_mtok": "audio_in",
    "output_audio_mtok": "audio_out",
    "input_image_mtok": "image_in",
    "output_image_mtok": "image_out",
    "cache_audio_read_mtok": "cached_audio",
    "cache_image_read_mtok": "cached_image",
}
_TIERS: Final[Mapping[str, str]] = {"batch": "batches", "flex": "flex", "priority": "priority"}
_MILLION: Final = 10**6
_HOUR_MS: Final = 3_600_000


def price_of(way: Reading, cached_share: Decimal) -> Price | None:
    """The price of a model under exactly this name, None if it has none.

    Args:
        way: what a provider calls the model; without a provider, whose make it is.
        cached_share: price of cached input where none is known, as a share of the input price.
    """
    models = _models()
    for provider in (way.provider,) if way.provider else _MAKERS:
        found = models.get((_SHARED.get(provider, provider), way.name.lower()))
        if found is not None:
            return _price(f"{provider}/{found.id}", provider, found, cached_share)
    return None


def providers() -> set[str]:
    """Whose models it has; empty without the package."""
    return {provider for provider, _ in _models()}


@cache
def _models() -> Mapping[tuple[str, str], Any]:
    """All models by provider and name; empty without the package."""
    try:
        from genai_prices.data import providers
    except ImportError:
        return {}
    return {
        (_PROVIDERS.get(provider.id, provider.id), name.lower()): model
        for provider in providers
        for model in provider.models
        for name in _names(model)
    }


def _names(model: Any) -> Iterator[str]:
    """A model's id and the other names that it is told to equal."""
    yield model.id
    for clause in (model.match, *getattr(model.match, "or_", ())):
        if isinstance(name := getattr(clause, "equals", None), str):
            yield name


def _price(name: str, provider: str, model: Any, cached_share: Decimal) -> Price | None:
    made = []
    for since, prices in _dated(model.prices):
        price = _of(name, provider, model, prices, cached_share)
        if price is None or since is None:
            return None
        made.append((since, price))
    return replace(made[0][1], changes=tuple(made[1:])) if made else None


def _dated(prices: Any) -> Iterator[tuple[int | None, Any]]:
    """Prices with the instants from which they hold; None for one that holds at certain hours only."""
    for one in prices if isinstance(prices, list) else ():
        since = getattr(one.constraint, "start_date", None)
        if since is None:
            yield (0 if one.constraint is None else None), one.prices
        else:
            yield int(datetime(since.year, since.month, since.day, tzinfo=UTC).timestamp() * 1000), one.prices
    if not isinstance(prices, list):
        yield 0, prices


def _of(name: str, provider: str, model: Any, prices: Any, cached_share: Decimal) -> Price | None:
    written = dict(_rates(prices, ""))
    units = _units(prices)
    plain = written.get(("input", 0, "")) or written.get(("audio_in", 0, "")) or 0
    if not plain and not any(unit for key, unit in units._asdict().items() if key != "search"):
        return None
    for variant in model.price_variants or ():
        asked = dict(variant.when)
        if asked.keys() == {"processing"} and asked["processing"] in _TIERS:
            written |= dict(_rates(variant.prices, _TIERS[asked["processing"]]))
    written["input", 0, ""] = plain
    written.setdefault(("output", 0, ""), plain)
    if max(written.values()) > MAX_RATE:
        return None
    return Price.of(
        name,
        Sheet(written, cached_share),
        provider=provider,
        source="genai-prices",
        units=units,
        max_input_tokens=model.context_window,
    )


def _rates(prices: Any, tier: str) -> Iterator[tuple[tuple[Kind, int, str], int]]:
    """The rates that are not 0; a rate above some size is for the whole of a longer prompt."""
    for key, kind in _KINDS.items():
        rate = getattr(prices, key, None)
        if rate is None:
            continue
        steps = [(0, getattr(rate, "base", rate)), *((step.start, step.price) for step in getattr(rate, "tiers", ()))]
        for over, dollars in steps:
            if dollars:
                yield (kind, over, tier), rate_of(Decimal(dollars) / _MILLION)


def _units(prices: Any) -> Units:
    def each(key: str, count: int) -> int:
        return -(-rate_of(Decimal(getattr(prices, key, None) or 0)) // count)

    heard = max(each("audio_hours", _HOUR_MS), each("input_audio_hours", _HOUR_MS))
    return Units(
        call=each("requests_kcount", 1000),
        search=each("web_searches_kcount", 1000),
        character=each("input_mchars", _MILLION),
        input_ms=heard,
    )
