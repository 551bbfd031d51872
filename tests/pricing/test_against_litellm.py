"""All combinations of cost keys in LiteLLM's list, priced by `litellm.completion_cost` and by ours.

Where the two differ, the difference has one of the causes below. Each has the rule of the provider that ours goes by,
and the page that has it; a difference without a cause fails the test, and so does a cause without a difference.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from llm_budget_hooks.models import Usage
from llm_budget_hooks.pricing import Price, source
from llm_budget_hooks.pricing.listed import listed_price

EACH = 3
SIZES = (1000, 32_000, 32_001, 100_001, 128_001, 200_000, 200_001, 256_001, 272_001, 512_001)
CLASSES = {
    "cached_input_tokens": "cache_read_input_token_cost",
    "cache_write_tokens": "cache_creation_input_token_cost",
    "cache_write_1h_tokens": "cache_creation_input_token_cost_above_1hr",
    "reasoning_tokens": "output_cost_per_reasoning_token",
    "input_audio_tokens": "input_cost_per_audio_token",
    "output_audio_tokens": "output_cost_per_audio_token",
    "input_image_tokens": "input_cost_per_image_token",
    "output_image_tokens": "output_cost_per_image_token",
    "cached_audio_tokens": "cache_read_input_audio_token_cost",
    "cached_image_tokens": "cache_read_input_image_token_cost",
}
KEPT = ("cache_read_input_audio_token_cost", "cache_read_input_image_token_cost")
SUFFIXES = {"batch": "_batches", "flex": "_flex", "priority": "_priority", None: ""}
PLAIN = ("input_cost_per_token", "output_cost_per_token")
UNITS = ("input_cost_per_request", "input_cost_per_query")

Counts = dict[str, Any]


def shapes(name: str) -> Iterator[Counts]:
    """Usages of a model; sizes between the smallest and the largest only where its entry has some."""
    tiered = any("_above_" in key or key == "tiered_pricing" for key in source.entries()[name])
    for size in SIZES if tiered else (SIZES[0], SIZES[-1]):
        plain = {"input_tokens": size, "output_tokens": 500}
        yield plain
        yield {**plain, "cached_input_tokens": 300, "cache_write_tokens": 200, "reasoning_tokens": 100}
    small = {"input_tokens": 1000, "output_tokens": 500}
    yield {**small, "cached_input_tokens": 700}
    yield {**small, "cache_write_tokens": 700}
    yield {**small, "cache_write_1h_tokens": 700}
    yield {**small, "cache_write_tokens": 300, "cache_write_1h_tokens": 300, "cached_input_tokens": 300}
    yield {**small, "reasoning_tokens": 300}
    yield {**small, "input_audio_tokens": 400, "output_audio_tokens": 300}
    yield {**small, "cached_input_tokens": 700, "cached_audio_tokens": 500, "input_audio_tokens": 100}
    yield {**small, "cached_input_tokens": 700, "cached_image_tokens": 500}
    if "input_cost_per_image_token" in source.entries()[name]:
        yield {**small, "input_image_tokens": 400}
    if "output_cost_per_image_token" in source.entries()[name]:
        yield {**small, "output_image_tokens": 400}
    # LiteLLM signs in at GitHub before it prices a batch of Copilot's.
    for tier in ("flex", "priority") if provider(name) == "github_copilot" else ("flex", "priority", "batch"):
        for size in (1000, 300_000):
            served: Counts = {"input_tokens": size, "output_tokens": 500, "service_tier": tier}
            yield served
            yield {**served, "cached_input_tokens": 400}
            yield {**served, "reasoning_tokens": 200}


@dataclass(frozen=True)
class Difference:
    """One usage that the two price differently, in nano-dollars."""

    name: str
    counts: Counts
    ours: int
    theirs: float

    @property
    def entry(self) -> source.Entry:
        return source.entries()[self.name]

    @property
    def tier(self) -> str | None:
        tier = self.counts.get("service_tier")
        return tier if isinstance(tier, str) else None

    @property
    def more(self) -> float:
        return self.ours - self.theirs

    def rate(self, key: str) -> Decimal:
        return Decimal(self.entry.get(key) or 0)

    @property
    def used(self) -> list[str]:
        """The cost keys of the classes that the usage has, without size and service tier."""
        return [key for name, key in CLASSES.items() if self.counts.get(name)]

    @property
    def above(self) -> list[str]:
        """The size part of the keys that hold for this prompt."""
        sizes = {m[0]: int(m[1]) * 1000 for key in self.entry if (m := re.search(r"_above_(\d+)k_tokens", key))}
        return [part for part, tokens in sizes.items() if self.counts["input_tokens"] >= tokens]


def close(a: float, b: float) -> bool:
    """Whether two amounts are equal but for one rounding up to a nano-dollar and a float's last digits."""
    return abs(a - b) <= 1.001 + 1e-9 * abs(b)


def is_unlisted_combination(d: Difference) -> bool:
    suffix = SUFFIXES[d.tier] if f"{PLAIN[0]}{SUFFIXES[d.tier]}" in d.entry else ""
    needed = [f"{key}{part}{suffix}" for key in (*PLAIN, *d.used) for part in d.above or [""] if key in d.entry]
    return bool(suffix or d.above) and any(key not in d.entry for key in needed)


def is_missing_output(d: Difference) -> bool:
    price = listed(d.name)
    assert price is not None
    whole = price.cost_nusd(Usage(**d.counts))
    without = price.cost_nusd(Usage(**{**d.counts, "output_tokens": 0}))
    return not d.entry.get(PLAIN[1]) and close(d.more, whole - without)


def has_namesake(name: str) -> bool:
    entries, prefix = source.entries(), f"{provider(name)}/"
    return f"{prefix}{name}" in entries or (name.startswith(prefix) and name.removeprefix(prefix) in entries)


class Cause(NamedTuple):
    """Why the two differ.

    Attributes:
        holds: whether a difference is one of these.
        rule: what the provider says, and ours goes by.
        page: where it says so.
    """

    holds: Callable[[Difference], bool]
    rule: str
    page: str


CAUSES: dict[str, Cause] = {
    "off-peak hours": Cause(
        lambda d: "off_peak_pricing" in d.entry and d.more > 0,
        "At certain hours all rates are half. A price without an instant is that of the dear hours; LiteLLM asks now.",
        "https://api-docs.deepseek.com/quick_start/pricing",
    ),
    "charged by the call": Cause(
        lambda d: close(d.more, float(sum(d.rate(key) for key in UNITS)) * 1e9),
        "Reranking is priced by the query, up to 100 documents each. LiteLLM adds it to answers of rerankers alone.",
        "https://docs.aws.amazon.com/bedrock/latest/userguide/rerank-pricing.html",
    ),
    "no output price": Cause(
        is_missing_output,
        "Embeddings are billed on input alone, so there is no output to price; if one is told, ours does not give it.",
        "https://docs.fireworks.ai/serverless/pricing",
    ),
    "a class listed at 0": Cause(
        lambda d: d.more > 0 and any(d.entry.get(key) == 0 for key in d.used),
        "Writing OpenAI's cache costs nothing on top: such tokens are input at its price. LiteLLM takes 0 as free.",
        "https://developers.openai.com/api/docs/guides/prompt-caching",
    ),
    "no batch price": Cause(
        lambda d: d.tier == "batch" and d.more > 0 and f"{PLAIN[0]}_batches" not in d.entry,
        "Batches take certain models, at prices of their own: 60 % of the standard at Moonshot. LiteLLM halves all.",
        "https://platform.kimi.ai/docs/pricing/batch",
    ),
    "left out for Perplexity": Cause(
        lambda d: (
            d.more > 0
            and provider(d.name) == "perplexity"
            and bool(d.above or any(d.counts.get(name) for name in ("cache_write_tokens", "cache_write_1h_tokens")))
        ),
        "Models of others cost what they cost there, without markup: long contexts and cache writes too.",
        "https://docs.perplexity.ai/docs/agent-api/models",
    ),
    "left out for Fireworks": Cause(
        lambda d: d.more > 0 and d.tier == "priority" and provider(d.name) == "fireworks_ai",
        "The priority tier has prices of its own.",
        "https://docs.fireworks.ai/serverless/pricing",
    ),
    "not listed in combination": Cause(
        is_unlisted_combination,
        "A tier is the standard rate and a premium or discount on it. LiteLLM takes the rate of one part alone.",
        "https://aws.amazon.com/bedrock/service-tiers",
    ),
    "an hour's write below input": Cause(
        lambda d: (
            d.more > 0
            and bool(d.counts.get("cache_write_1h_tokens"))
            and d.rate(CLASSES["cache_write_tokens"]) < d.rate(PLAIN[0])
        ),
        "A write for an hour costs twice the input, one for 5 minutes 1.25 times; none costs less than input.",
        "https://platform.claude.com/docs/en/build-with-claude/prompt-caching",
    ),
    "what is given out": Cause(
        lambda d: d.more > 0 and ("output_cost_per_image_token" in d.entry or d.entry.get("mode") == "audio_speech"),
        "What models of images and speech give out is images and sound; a usage that tells no parts has no others.",
        "https://developers.openai.com/api/docs/models/gpt-image-1-mini",
    ),
    "cached sound not listed": Cause(
        lambda d: d.more > 0 and any(key in KEPT and key not in d.entry for key in d.used),
        "Cached sound costs as much less than fresh sound as cached text does than text. LiteLLM takes it as text.",
        "https://ai.google.dev/gemini-api/docs/pricing",
    ),
    "audio is the only input": Cause(
        lambda d: d.more > 0 and PLAIN[0] not in d.entry and "input_cost_per_audio_token" in d.entry,
        "The input of transcription is sound, at the price of sound. LiteLLM takes what is not told as sound for free.",
        "https://ai.google.dev/gemini-api/docs/pricing",
    ),
    "another entry": Cause(
        lambda d: has_namesake(d.name),
        "Gemini has a free tier in AI Studio and none on Vertex. LiteLLM finds the entry of the other one.",
        "https://ai.google.dev/gemini-api/docs/pricing",
    ),
}


def provider(name: str) -> str:
    return str(source.entries()[name].get("litellm_provider") or "")


@cache
def listed(name: str) -> Price | None:
    return listed_price(name, source.entries()[name], Decimal(1))


def by_length(name: str) -> Counts:
    """A usage of a model that is charged by letters or seconds alone; empty for other models."""
    price = listed(name)
    sizes: Counts = {"input_characters": 1000, "input_ms": 12_500, "output_ms": 4000}
    if price is None:
        return {}
    nothing = price.cost_nusd(Usage())
    return next(({key: n} for key, n in sizes.items() if price.cost_nusd(Usage(**{key: n})) > nothing), {})


def chosen() -> list[str]:
    """A few models for every combination of cost keys."""
    groups: dict[Any, list[str]] = defaultdict(list)
    for name, entry in source.entries().items():
        if listed(name) is None or by_length(name):
            continue
        keys = frozenset(key for key in entry if "cost" in key or key.endswith("_pricing"))
        groups[keys, entry.get("mode")].append(name)
    return [name for names in groups.values() for name in names[:: max(1, len(names) // EACH)][:EACH]]


SEARCHED: Counts = {"input_tokens": 1000, "output_tokens": 10, "searches": 2}


def questions() -> list[tuple[str, Counts]]:
    """All that the tests ask of LiteLLM, so that it is imported once."""
    by_tokens = [(name, counts) for name in chosen() for counts in shapes(name)]
    return [*by_tokens, *measured(), *((name, SEARCHED) for name in SEARCHES)]


def measured() -> list[tuple[str, Counts]]:
    """What is charged by letters or seconds alone."""
    return [(name, counts) for name in source.entries() if (counts := by_length(name))]


@cache
def answers() -> dict[str, float | None]:
    """What LiteLLM says that usages of models cost, in dollars."""
    asked = questions()
    named = [[name, provider(name) or None, counts] for name, counts in asked]
    script = Path(__file__).with_name("litellm_costs.py")
    done = subprocess.run(
        [sys.executable, str(script)], input=json.dumps(named), capture_output=True, text=True, check=True
    )
    return dict(zip((f"{name} {counts}" for name, counts in asked), json.loads(done.stdout), strict=True))


def theirs_of(name: str, counts: Counts) -> float | None:
    return answers()[f"{name} {counts}"]


def test_every_difference_from_litellm_has_a_cause() -> None:
    names = chosen()
    tally: Counter[str] = Counter()
    examples: dict[str, list[Difference]] = defaultdict(list)
    for name in names:
        price = listed(name)
        assert price is not None
        for counts in shapes(name):
            theirs = theirs_of(name, counts)
            ours = price.cost_nusd(Usage(**counts))
            if theirs is None:
                tally["no answer"] += 1
            elif close(ours, theirs * 1e9):
                tally["equal"] += 1
            else:
                difference = Difference(name, counts, ours, theirs * 1e9)
                cause = next((name for name, cause in CAUSES.items() if cause.holds(difference)), "unexplained")
                tally[cause] += 1
                examples[cause].append(difference)
    report = "\n".join(_told(cause, count, examples[cause]) for cause, count in tally.most_common())
    print(f"{len(names)} models\n{report}")  # noqa: T201 - the table is what the test is for
    assert examples["unexplained"] == []
    assert {cause for cause in CAUSES if not examples[cause]} <= {"off-peak hours"}  # at the dear hours there is none
    assert tally["no answer"] == 0
    assert tally["equal"] > 0.75 * tally.total()


def _told(cause: str, count: int, examples: list[Difference]) -> str:
    if cause not in CAUSES:
        return f"{count:7} {cause}"
    first = examples[0]
    shown = f"e.g. {first.name} {first.counts}: {first.ours} and {first.theirs:.0f} nano-dollars"
    return f"{count:7} {cause}: {CAUSES[cause].rule} {CAUSES[cause].page}\n        {shown}"


def test_every_cause_has_a_rule_and_its_page() -> None:
    assert [name for name, cause in CAUSES.items() if not cause.rule or not cause.page.startswith("https://")] == []


def test_letters_sound_and_film_cost_what_litellm_says() -> None:
    differing = []
    for name, counts in measured():
        price, theirs = listed(name), theirs_of(name, counts)
        assert price is not None
        if theirs is None or not close(price.cost_nusd(Usage(**counts)), theirs * 1e9):
            differing.append((name, counts, price.cost_nusd(Usage(**counts)), theirs))
    assert len(measured()) > 150
    assert differing == []


SEARCHES = {
    # Two searches, each billed (Anthropic, "Web search tool").
    "claude-opus-4-6": 2,
    # One fee for a grounded prompt up to Gemini 2.5 (Gemini, "Grounding with Google Search").
    "gemini/gemini-2.5-flash": 1,
    "gemini/gemini-2.5-pro": 1,
}


def test_searches_cost_what_litellm_says() -> None:
    counts = SEARCHED
    for name, billed in SEARCHES.items():
        price, theirs = listed(name), theirs_of(name, counts)
        assert price is not None
        assert theirs is not None
        assert close(price.cost_nusd(Usage(**counts)), theirs * 1e9), name
        fee = price.cost_nusd(Usage(**counts)) - price.cost_nusd(Usage(**{**counts, "searches": 0}))
        one = price.cost_nusd(Usage(**{**counts, "searches": 1})) - price.cost_nusd(Usage(**{**counts, "searches": 0}))
        assert fee == billed * one
