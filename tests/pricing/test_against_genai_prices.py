"""The package genai-prices as a second opinion: on its own models, and on those that LiteLLM's list has too.

Both lists are kept by people who read the providers' pages. Where they differ, the difference has one of the causes
below, and the printed table counts them; a difference without a cause fails the test.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import genai_prices
from genai_prices.data import providers

from llm_budget_hooks.models import Usage
from llm_budget_hooks.pricing import Price, second
from llm_budget_hooks.pricing.names import Reading

NOW = datetime.now(UTC)
SIZES = (1000, 300_000)


def models() -> Iterator[tuple[Any, Any, Price]]:
    """Their models that have a price of ours made from theirs."""
    for provider in providers:
        name = second._PROVIDERS.get(provider.id, provider.id)
        for model in provider.models:
            price = second.price_of(Reading(name, model.id), Decimal(1))
            if price is not None and second._models()[name, model.id.lower()] is model:
                yield provider, model, price.at(int(NOW.timestamp() * 1000))


def theirs(provider: Any, model: Any, **counts: int) -> Decimal:
    """What their calculator says, in nano-dollars."""
    usage = genai_prices.Usage(**counts)
    found = model.calc_price(usage, provider, genai_request_timestamp=NOW, auto_update_timestamp=None)
    return Decimal(found.total_price) * 10**9


def test_their_models_cost_what_their_calculator_says() -> None:
    differing, compared = [], 0
    for provider, model, price in models():
        prices = model.get_prices(NOW)
        for size in SIZES:
            written = prices.output_mtok is not None
            counts = {"input_tokens": size, "output_tokens": 100 if written else 0}
            cached = {"cached_input_tokens": 400} if prices.cache_read_mtok else {}
            more = {"cache_read_tokens": 400} if cached else {}
            cost = price.cost_nusd(Usage(**counts, **cached))
            said = theirs(provider, model, **counts, **more)
            compared += 1
            # Where only fresh input is listed above some size, ours keeps the share that cached input has below it.
            unlisted = cached and hasattr(prices.input_mtok, "tiers") and not hasattr(prices.cache_read_mtok, "tiers")
            if abs(cost - said) > 1 and not (unlisted and cost > said):
                differing.append((provider.id, model.id, size, cost, said))
    assert compared > 4000
    assert differing == []
