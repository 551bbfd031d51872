"""The package genai-prices as a second opinion: on its own models, and on those that LiteLLM's list has too.

Both lists are kept by people who read the providers' pages. Where they differ, the difference has one of the causes
below, and the printed table counts them; a difference without a cause fails the test.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import genai_prices
from genai_prices.data import providers

from llm_budget_hooks.models import Usage
from llm_budget_hooks.pricing import Price, second, source
from llm_budget_hooks.pricing.listed import listed_price
from llm_budget_hooks.pricing.names import Reading, provider_of
from llm_budget_hooks.pricing.rates import Kind

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


@dataclass(frozen=True)
class Difference:
    """One usage that the two lists price differently, in nano-dollars."""

    provider: str
    model: str
    what: str
    ours: int
    theirs: int
    entry: source.Entry


USAGES: dict[str, tuple[Usage, Kind | None]] = {
    "input": (Usage(input_tokens=1000), None),
    "output": (Usage(output_tokens=1000), None),
    "long": (Usage(input_tokens=300_000), None),
    "cached": (Usage(input_tokens=1000, cached_input_tokens=1000), "cached"),
    "write": (Usage(input_tokens=1000, cache_write_tokens=1000), "write"),
    "write_1h": (Usage(input_tokens=1000, cache_write_1h_tokens=1000), "write_1h"),
}
# The lists simply have other prices here. No provider's page settles it: whoever pays for one of these writes its price
# in the policy, which goes before both lists.
OTHER_PRICES = {("deepseek", "deepseek-v3.2"), ("openai", "gpt-4o-mini-tts"), ("x-ai", "grok-code-fast-1")}
CAUSES: dict[str, Callable[[Difference], bool]] = {
    # Image models list a rate for words and one for images; ours takes the dearer where the usage tells no parts.
    "image tokens": lambda d: (
        d.what == "output" and d.ours > d.theirs and bool(d.entry.get("output_cost_per_image_token"))
    ),
    # Perplexity bills each request for its search ("Pricing"): theirs adds it to each call, ours to the search that
    # the usage shows.
    "a fee for each request": lambda d: d.provider == "perplexity" and d.theirs > d.ours,
    # A premium for long prompts that one of the lists leaves out. Anthropic's Sonnet 4 and 4.5 take more than 200,000
    # tokens in a beta only ("Long context pricing"); ours has what LiteLLM's list has.
    "a long context in one list": lambda d: (
        d.what == "long" and 1.9 < max(d.ours, d.theirs) / min(d.ours, d.theirs) < 2.1
    ),
    # Azure's data zones cost a tenth more than its global deployments ("Pricing"); LiteLLM's list has that one.
    "a data zone": lambda d: d.provider == "azure" and d.ours * 10 == d.theirs * 11,
    # Hosts of open models change their prices, and OVHcloud's page has them in euros.
    "a host's other price": lambda d: d.provider in ("cloudflare", "novita", "ovhcloud", "together"),
    # Rounded by one of the lists.
    "rounded": lambda d: abs(d.ours - d.theirs) * 50 < d.theirs,
    "a model's other price": lambda d: (d.provider, d.model) in OTHER_PRICES,
}


def shared() -> Iterator[tuple[str, str, Price, Price, source.Entry]]:
    """The models that both lists have from the same provider: ours by LiteLLM's list, and by theirs."""
    for provider, model, by_theirs in models():
        name = second._PROVIDERS.get(provider.id, provider.id)
        found = source.find(f"{name}/{model.id}") or source.find(model.id)
        if found is None or provider_of(str(found[1].get("litellm_provider"))).replace("vertex_ai", "gemini") != name:
            continue
        by_list = listed_price(*found, Decimal(1))
        if by_list is not None:
            yield provider.id, model.id, by_list.at(int(NOW.timestamp() * 1000)), by_theirs, found[1]


def test_every_difference_between_the_lists_has_a_cause() -> None:
    tally: Counter[str] = Counter()
    examples: dict[str, list[Difference]] = defaultdict(list)
    for provider, model, by_list, by_theirs, entry in shared():
        for what, (usage, kind) in USAGES.items():
            if kind in by_list.unpriced | by_theirs.unpriced or (
                what == "output" and not entry.get("output_cost_per_token")
            ):
                tally["not in both"] += 1
                continue
            difference = Difference(
                provider, model, what, by_list.cost_nusd(usage), by_theirs.cost_nusd(usage), entry
            )  # fmt: skip
            if abs(difference.ours - difference.theirs) <= 2 + difference.theirs // 1000:
                tally["equal"] += 1
                continue
            cause = next((cause for cause, holds in CAUSES.items() if holds(difference)), "unexplained")
            tally[cause] += 1
            examples[cause].append(difference)
    for cause, count in tally.most_common():
        print(f"{count:6} {cause:28} {[(d.model, d.what, d.ours, d.theirs) for d in examples[cause][:2]]}")  # noqa: T201 - the table is what the test is for
    assert [(d.model, d.what, d.ours, d.theirs) for d in examples["unexplained"]] == []
    assert tally["equal"] > 0.9 * (tally.total() - tally["not in both"])
    assert tally["equal"] > 1000
