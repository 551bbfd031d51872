"""The package genai-prices as a second opinion: on its own models, and on those that LiteLLM's list has too.

Both lists are kept by people who read the providers' pages. Where they differ by more than the rounding of one call,
the difference has one of the causes below, each with the provider's rule and its page; a difference without a cause
fails the test, and so does a cause without a difference.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, NamedTuple

import genai_prices
from genai_prices.data import providers

from llm_budget_hooks.models import Usage
from llm_budget_hooks.pricing import Price, second, source
from llm_budget_hooks.pricing.listed import listed_price
from llm_budget_hooks.pricing.names import Reading, provider_of
from llm_budget_hooks.pricing.rates import Kind

NOW = datetime(2026, 11, 29, tzinfo=UTC)  # their changes to come are in one list, and in the other when they have come
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


class Cause(NamedTuple):
    """Why the lists differ.

    Attributes:
        holds: whether a difference is one of these.
        rule: what the provider says; whoever pays for such a model writes its price in the policy, before both lists.
        page: where it says so.
    """

    holds: Callable[[Difference], bool]
    rule: str
    page: str


def _of(provider: str, *models: str) -> Callable[[Difference], bool]:
    return lambda d: d.provider == provider and (not models or d.model in models)


CAUSES: dict[str, Cause] = {
    "image tokens": Cause(
        lambda d: d.what == "output" and d.ours > d.theirs and bool(d.entry.get("output_cost_per_image_token")),
        "Image models have a rate for words and one for images, and give out images; theirs takes them as words.",
        "https://developers.openai.com/api/docs/models/gpt-image-1-mini",
    ),
    "a fee for each request": Cause(
        lambda d: d.provider == "perplexity" and d.theirs > d.ours,
        "Each request is billed for its search; ours books it where the usage shows one, which every answer's does.",
        "https://docs.perplexity.ai/docs/getting-started/pricing",
    ),
    "a long context in one list": Cause(
        lambda d: d.what == "long" and 1.9 < max(d.ours, d.theirs) / min(d.ours, d.theirs) < 2.1,
        "Long prompts cost double where a model takes them; Sonnet 4 and 4.5 took them in a beta that has ended.",
        "https://platform.claude.com/docs/en/about-claude/pricing",
    ),
    "a data zone": Cause(
        lambda d: d.provider == "azure" and d.ours * 10 == d.theirs * 11,
        "Data zones cost a tenth more than global deployments; LiteLLM's list has that one.",
        "https://azure.microsoft.com/en-us/pricing/details/azure-openai/",
    ),
    "Cloudflare": Cause(
        _of("cloudflare"),
        "Neurons are billed; dollars per token follow from them, and some were changed.",
        "https://developers.cloudflare.com/workers-ai/platform/pricing/",
    ),
    "OVHcloud": Cause(
        _of("ovhcloud"), "Prices are in euros.", "https://www.ovhcloud.com/en/public-cloud/ai-endpoints/catalog/"
    ),
    "Novita": Cause(
        _of("novita", "mistralai/mistral-nemo"), "A model's price was changed.", "https://novita.ai/pricing"
    ),
    "Together": Cause(_of("together"), "Prices were changed.", "https://www.together.ai/pricing"),
    "Databricks": Cause(
        lambda d: d.provider == "databricks" and abs(d.ours - d.theirs) * 900 < d.theirs,
        "DBUs are billed, at $0.07 each; LiteLLM's list has their product, theirs the dollars rounded.",
        "https://www.databricks.com/product/pricing/foundation-model-serving",
    ),
    "Groq": Cause(
        _of("groq", "openai/gpt-oss-safeguard-20b"),
        "Cached input is half of input, $0.0375; LiteLLM's list has $0.037.",
        "https://console.groq.com/docs/prompt-caching",
    ),
    "DeepSeek": Cause(
        _of("deepseek", "deepseek-v3.2"),
        "The model is no longer listed; the lists have different last prices.",
        "https://api-docs.deepseek.com/quick_start/pricing",
    ),
    "xAI": Cause(
        _of("x-ai", "grok-code-fast-1"),
        "The model is no longer listed; LiteLLM's list has the price of its successor, grok-build-0.1.",
        "https://docs.x.ai/developers/pricing",
    ),
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


def _told(name: str, count: int, examples: list[Difference]) -> str:
    shown = ", ".join(f"{d.model} {d.what} {d.ours} and {d.theirs}" for d in examples[:1])
    cause = CAUSES.get(name)
    return f"{count:6} {name}" + (f": {cause.rule} {cause.page} ({shown})" if cause else "")


def test_every_cause_has_a_rule_and_its_page() -> None:
    assert [name for name, cause in CAUSES.items() if not cause.rule or not cause.page.startswith("https://")] == []


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
            if abs(difference.ours - difference.theirs) <= 1:
                tally["equal"] += 1
                continue
            cause = next((name for name, cause in CAUSES.items() if cause.holds(difference)), "unexplained")
            tally[cause] += 1
            examples[cause].append(difference)
    print("\n".join(_told(cause, count, examples[cause]) for cause, count in tally.most_common()))  # noqa: T201 - the table
    assert [(d.model, d.what, d.ours, d.theirs) for d in examples["unexplained"]] == []
    assert [cause for cause in CAUSES if not examples[cause]] == []
    assert tally["equal"] > 0.9 * (tally.total() - tally["not in both"])
    assert tally["equal"] > 1000
