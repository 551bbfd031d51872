"""Prices against a second calculation in fractions, and bounds against all that a call can cost."""

from __future__ import annotations

import itertools
from decimal import Decimal
from fractions import Fraction
from math import ceil
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from llm_budget_hooks.models import Usage
from llm_budget_hooks.pricing import Price, PriceBook, source
from llm_budget_hooks.pricing.listed import listed_price

PLAIN = ("input", "output")
CLASSES = ("cached_input", "cache_write", "cache_write_1h", "reasoning", "input_audio", "output_audio")
RATE = st.integers(0, 10**12).map(lambda n: f"{n // 10**9}.{n % 10**9:09d}")


def tables(rates: st.SearchStrategy[str], classes: list[str]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(dict.fromkeys((*PLAIN, *classes), rates))


@st.composite
def policies(draw: st.DrawFn) -> dict[str, Any]:
    """A price with all of its rates written at each size and in each service tier."""
    classes = [*draw(st.lists(st.sampled_from(CLASSES), unique=True)), "cached_audio"]
    table = draw(tables(RATE, classes))
    for tier in draw(st.lists(st.sampled_from(["flex", "priority"]), unique=True)):
        table[tier] = draw(tables(RATE, classes))
    overs = draw(st.lists(st.integers(1, 2000), unique=True, max_size=3))
    for place in (table, *(table[tier] for tier in ("flex", "priority") if tier in table)):
        place["above"] = [{"tokens": over, **draw(tables(RATE, classes))} for over in overs]
    table["per_call"] = draw(RATE)
    return table


@st.composite
def usages(draw: st.DrawFn, most: int = 3000) -> Usage:
    """A usage whose parts are inside their wholes."""
    cuts = sorted(draw(st.lists(st.integers(0, most), min_size=5, max_size=5)))
    cached, write, write_1h, heard = (b - a for a, b in itertools.pairwise(cuts))
    spoken, reasoning, output = sorted(draw(st.lists(st.integers(0, most), min_size=3, max_size=3)))
    return Usage(
        input_tokens=cuts[-1], cached_input_tokens=cached, cached_audio_tokens=draw(st.integers(0, cached)),
        cache_write_tokens=write, cache_write_1h_tokens=write_1h, input_audio_tokens=heard,
        output_tokens=output, output_audio_tokens=spoken,
        reasoning_tokens=reasoning - spoken, service_tier=draw(st.sampled_from([None, "default", "flex", "priority"])),
    )  # fmt: skip


def by_fractions(table: dict[str, Any], usage: Usage) -> Fraction:
    """The cost in nano-dollars, from the words of the price table alone."""
    place = table.get(usage.service_tier or "", table)
    for above in sorted(place["above"], key=lambda a: -a["tokens"]):
        if usage.input_tokens > above["tokens"]:
            place = above
            break

    def rate(name: str, otherwise: str) -> Fraction:
        return Fraction(place.get(name, place[otherwise])) / 10**6

    counted = {
        "cached_input": usage.cached_input_tokens,
        "cache_write": usage.cache_write_tokens,
        "input_audio": usage.input_audio_tokens,
        "cache_write_1h": usage.cache_write_1h_tokens,
    }
    kept_sound = usage.cached_audio_tokens * (rate("cached_audio", "input") - rate("cached_input", "input"))
    total = Fraction(table["per_call"]) + kept_sound
    total += (usage.input_tokens - sum(counted.values())) * rate("input", "input")
    for name, count in counted.items():
        total += count * rate(name, "input")
    if "cache_write_1h" not in place and "cache_write" in place:
        dearer = max(rate("cache_write", "input"), rate("input", "input"))
        total += usage.cache_write_1h_tokens * (dearer - rate("input", "input"))
    rest = usage.output_tokens - usage.reasoning_tokens - usage.output_audio_tokens
    total += rest * rate("output", "output") + usage.reasoning_tokens * rate("reasoning", "output")
    return (total + usage.output_audio_tokens * rate("output_audio", "output")) * 10**9


@given(policies(), usages())
def test_a_cost_is_the_exact_sum_rounded_up_once(table: dict[str, Any], usage: Usage) -> None:
    assert PriceBook({"x": table}).price("x").cost_nusd(usage) == ceil(by_fractions(table, usage))


def within_bound(at: Price, usage: Usage) -> bool:
    writes = bool(usage.cache_write_tokens or usage.cache_write_1h_tokens)
    audio = bool(usage.input_audio_tokens or usage.output_audio_tokens or usage.cached_audio_tokens)
    bound = at.bound_nusd(
        usage.input_tokens, usage.output_tokens, writes_cache=writes, service_tier=usage.service_tier, audio=audio
    )
    return at.cost_nusd(usage) <= bound


@given(policies(), usages(), st.integers(0, 3000), st.integers(0, 3000))
def test_no_usage_within_the_bound_costs_more(table: dict[str, Any], usage: Usage, more: int, longer: int) -> None:
    at = PriceBook({"x": table}).price("x")
    assert within_bound(at, usage)
    assert at.bound_nusd(usage.input_tokens, usage.output_tokens) <= at.bound_nusd(
        usage.input_tokens + more, usage.output_tokens + longer
    )


def listed() -> list[Price]:
    """All prices of the list that are known."""
    found = (listed_price(name, entry, Decimal(1)) for name, entry in source.entries().items())
    return [at for at in found if at is not None]


LISTED = listed()


def test_most_of_the_list_is_priced() -> None:
    texts = [name for name, e in source.entries().items() if e.get("mode") in ("chat", "responses", "embedding")]
    known = {at.model for at in LISTED}
    assert len([name for name in texts if name in known]) > 0.9 * len(texts)
    assert not [at.model for at in LISTED if at.is_free]


def test_every_priced_name_of_the_list_finds_itself() -> None:
    book = PriceBook()
    assert [at.model for at in LISTED if book.price(at.model).model != at.model] == []


@given(st.sampled_from(LISTED), usages(10**6))
def test_no_usage_of_a_listed_model_costs_more_than_its_bound(at: Price, usage: Usage) -> None:
    assert within_bound(at, usage)


@given(st.sampled_from(LISTED), usages(10**6))
def test_one_token_more_never_costs_less(at: Price, usage: Usage) -> None:
    assert at.estimate_nusd(usage.input_tokens, usage.output_tokens) <= at.estimate_nusd(
        usage.input_tokens, usage.output_tokens + 1
    )
    assert at.input_nusd(usage.input_tokens) <= at.input_nusd(usage.input_tokens, writes_cache=True)


def test_a_flex_call_is_bounded_by_what_the_standard_tier_would_cost() -> None:
    flex = PriceBook({"x": {"input": 2, "output": 4, "flex": {"input": 1, "output": 2}}}).price("x")
    assert flex.bound_nusd(1000, 0, service_tier="flex") == flex.bound_nusd(1000, 0)
    assert flex.input_nusd(1000, service_tier="flex") == flex.input_nusd(1000) // 2


def test_a_priority_call_is_bounded_by_the_priority_rate_only_if_it_asks() -> None:
    tiered = PriceBook({"x": {"input": 2, "output": 4, "priority": {"input": 4, "output": 8}}}).price("x")
    assert tiered.bound_nusd(1000, 10, service_tier="priority") == 2 * tiered.bound_nusd(1000, 10)
    assert tiered.bound_nusd(1000, 10, service_tier="flex") == tiered.bound_nusd(1000, 10)


def test_cache_writes_are_in_the_bound_only_if_the_call_writes() -> None:
    writing = PriceBook({"x": {"input": 4, "output": 0, "cache_write": 5, "cache_write_1h": 8}}).price("x")
    assert writing.bound_nusd(1000, 0, writes_cache=True) == 2 * writing.bound_nusd(1000, 0)
    assert writing.input_nusd(1000, writes_cache=True) == 2 * writing.input_nusd(1000)


TIERS = {
    "input": 2, "cached_input": 1, "input_audio": 10, "output": 4, "reasoning": 6,
    "above": [{"tokens": 100, "input": 4, "output": 6}],
    "priority": {"input": 3, "output": 8},
}  # fmt: skip


def test_what_a_tier_leaves_out_is_in_proportion_to_what_it_says() -> None:
    at = PriceBook({"x": TIERS}).price("x")

    def per_token(tier: str | None, prompt: int, **counts: Any) -> Fraction:
        whole = Usage(input_tokens=prompt, service_tier=tier)
        part = Usage(input_tokens=prompt, service_tier=tier, **counts)
        return Fraction(at.cost_nusd(part) - at.cost_nusd(whole), 1000 * sum(counts.values()))

    assert per_token("priority", 50, cached_input_tokens=50) == Fraction(3, 2) - 3
    assert per_token("priority", 50, input_audio_tokens=50) == 15 - 3
    assert per_token(None, 200, cached_input_tokens=200) == 2 - 4
    assert per_token("priority", 200, output_tokens=1) == 12
    assert at.input_nusd(200, service_tier="priority") == 200 * 6 * 1000
