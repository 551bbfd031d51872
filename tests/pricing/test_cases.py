"""The rows of kinds I, J and K: cached prompts, the classes of tokens, and the names of models."""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_budget_hooks.errors import ConfigurationError, PriceUnknown
from llm_budget_hooks.models import Usage
from llm_budget_hooks.money import parse_nusd, to_decimal
from llm_budget_hooks.pricing import Price, PriceBook, masked


@dataclass(kw_only=True)
class Counts:
    """What `Usage` would refuse to be."""

    input_tokens: int = 0
    cached_input_tokens: int = 0
    cache_write_tokens: int = 0
    cache_write_1h_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    input_audio_tokens: int = 0
    output_audio_tokens: int = 0
    input_image_tokens: int = 0
    output_image_tokens: int = 0
    cached_audio_tokens: int = 0
    cached_image_tokens: int = 0
    images: int = 0
    searches: int = 0
    file_searches: int = 0
    containers: int = 0
    input_characters: int = 0
    input_ms: int = 0
    output_ms: int = 0
    service_tier: str | None = None


def price(**table: Any) -> Price:
    return PriceBook({"x": table}).price("x")


def dollars(at: Price, asked_tier: str | None = None, **counts: Any) -> Decimal:
    return to_decimal(at.cost_nusd(Usage(**counts), asked_tier=asked_tier))


def test_b067_cache_writes_are_paid_once() -> None:
    sonnet = price(input="3", cache_write="3.75", cached_input="0.30", output="15")
    assert dollars(sonnet, input_tokens=12_307, cache_write_tokens=12_304, output_tokens=550) == Decimal("0.054399")


def test_b068_cache_reads_inside_the_prompt_never_make_credit() -> None:
    opus = price(input="5", cache_write="6.25", cached_input="0.50", output="25")
    prompt = 1 + 225 + 965_602
    cost = dollars(
        opus, input_tokens=prompt, cache_write_tokens=225, cached_input_tokens=965_602, output_tokens=82
    )  # fmt: skip
    assert cost == Decimal("0.48626225")
    uncached_count = Counts(input_tokens=226, cached_input_tokens=965_602, output_tokens=82)
    assert opus.cost_nusd(uncached_count) >= 0


def test_b069_the_whole_prompt_is_priced() -> None:
    gpt = price(input="1.25", cached_input="0.125", output="10")
    assert dollars(gpt, input_tokens=100_000, cached_input_tokens=80_000) == Decimal("0.035")
    sonnet = price(input="3", cached_input="0.30", output="15")
    assert dollars(sonnet, input_tokens=100_000, cached_input_tokens=80_000) == Decimal("0.084")


def test_b071_the_cached_part_is_not_billed_twice() -> None:
    gpt = price(input="2.50", cached_input="1.25", output="10")
    assert dollars(gpt, input_tokens=2006, cached_input_tokens=1920, output_tokens=300) == Decimal("0.005615")


def test_b072_cache_classes_are_priced() -> None:
    sonnet = price(input="3.30", cache_write="4.125", cached_input="0.33", output="16.50")
    prompt = 1 + 1190 + 32_634
    cost = dollars(
        sonnet, input_tokens=prompt, cache_write_tokens=1190, cached_input_tokens=32_634, output_tokens=672
    )  # fmt: skip
    assert cost == Decimal("0.02676927")


def test_b072_a_class_without_a_price_is_charged_at_the_plain_rate_and_remarked() -> None:
    plain = price(input="3", output="15")
    usage = Usage(
        input_tokens=1000, cached_input_tokens=100, cache_write_tokens=100, cache_write_1h_tokens=100,
        input_audio_tokens=100, output_tokens=500, reasoning_tokens=100, output_audio_tokens=100,
    )  # fmt: skip
    assert to_decimal(plain.cost_nusd(usage)) == Decimal("0.0105")
    assert len(plain.remarks(usage)) == 5  # reasoning without a rate of its own is output
    assert plain.remarks(Usage(input_tokens=1000, output_tokens=500)) == ()


@pytest.mark.parametrize(("cached", "charged"), [(120, "0.00003"), (100, "0.00003"), (-5, "0.0003")])
def test_b073_impossible_cached_counts_are_cut_and_remarked(cached: int, charged: str) -> None:
    sonnet = price(input="3", cached_input="0.30", output="15")
    usage = Counts(input_tokens=100, cached_input_tokens=cached)
    assert to_decimal(sonnet.cost_nusd(usage)) == Decimal(charged)
    assert bool(sonnet.remarks(usage)) == (cached != 100)


COUNT = st.integers(-(10**6), 10**6)


@given(st.builds(Counts, **{name: COUNT for name in Counts.__dataclass_fields__ if name != "service_tier"}))
def test_b073_no_counts_make_a_negative_cost(usage: Counts) -> None:
    everything = price(
        input="3", cached_input="0.30", cache_write="3.75", cache_write_1h="6", output="15", reasoning="20",
        input_audio="10", output_audio="80", per_call="0.001", per_image="0.04", per_search="0.01",
    )  # fmt: skip
    assert everything.cost_nusd(usage) >= 1_000_000
    whole = Counts(input_tokens=max(usage.input_tokens, 0), output_tokens=max(usage.output_tokens, 0))
    assert everything.cost_nusd(usage) >= everything.cost_nusd(whole) // 11


def test_b075_the_cached_discount_is_the_model_s() -> None:
    glm = price(input="1.40", cached_input="0.26", output="0")
    assert dollars(glm, input_tokens=44_341, cached_input_tokens=41_518) == Decimal("0.01474688")


def test_b075_without_a_cached_price_the_policy_s_share_counts() -> None:
    usage = Usage(input_tokens=1000, cached_input_tokens=1000)
    table = {"x": {"input": "3", "output": "15"}}
    assert to_decimal(PriceBook(table).price("x").cost_nusd(usage)) == Decimal("0.003")
    assert to_decimal(PriceBook(table, cached_discount=Decimal("0.1")).price("x").cost_nusd(usage)) == Decimal("0.0003")
    own = {"x": {"input": "3", "output": "15", "cached_input": "0"}}
    assert PriceBook(own, cached_discount=Decimal("0.1")).price("x").cost_nusd(usage) == 0


def test_b076_zero_cached_tokens_are_a_count_like_any_other() -> None:
    sonnet = price(input="3", cache_write="3.75", cached_input="0.30", output="15")
    cost = dollars(sonnet, input_tokens=1000, cached_input_tokens=0, cache_write_tokens=900)
    assert cost == Decimal("0.003675") == (100 * Decimal(3) + 900 * Decimal("3.75")) / 10**6


def test_b077_the_visible_output_is_priced_too() -> None:
    nano = price(input="0.05", output="0.40")
    assert dollars(nano, input_tokens=17, output_tokens=482, reasoning_tokens=448) == Decimal("0.00019365")


def test_b078_reasoning_is_inside_the_output() -> None:
    pro = price(input="30", output="180")
    cost = dollars(pro, input_tokens=14_746, output_tokens=1944, reasoning_tokens=1360)
    assert cost == Decimal("0.79230")


def test_b079_reasoning_above_the_output_is_cut_and_remarked() -> None:
    pro = price(input="30", output="180", reasoning="200")
    usage = Counts(output_tokens=100, reasoning_tokens=500)
    assert to_decimal(pro.cost_nusd(usage)) == Decimal("0.02")
    assert pro.remarks(usage)


LONG = {"input": "3", "output": "15", "above": [{"tokens": 200_000, "input": "6", "output": "22.50"}]}


@pytest.mark.parametrize(
    ("prompt", "output", "cost"),
    [(300_000, 1000, "1.8225"), (200_000, 1000, "0.615"), (200_001, 1000, "1.222506")],
)
def test_b081_a_long_context_prices_the_whole_prompt(prompt: int, output: int, cost: str) -> None:
    assert dollars(price(**LONG), input_tokens=prompt, output_tokens=output) == Decimal(cost)


def test_b081_xai_counts_from_the_threshold_on() -> None:
    grok = PriceBook().price("xai/grok-4.7")
    below, at = (to_decimal(grok.estimate_nusd(tokens, 0)) / tokens for tokens in (199_999, 200_000))
    assert at == 2 * below


def test_b018_a_hold_knows_the_size_of_the_prompt() -> None:
    assert price(**LONG).bound_nusd(300_000, 0) == parse_nusd("1.80")


def test_b082_audio_has_a_rate_of_its_own() -> None:
    audio = price(input="2.50", output="10", output_audio="80")
    assert dollars(audio, output_tokens=110 + 482, output_audio_tokens=482) == Decimal("0.03966")


def test_b082_sound_that_a_cache_had_has_a_rate_of_its_own() -> None:
    flash = PriceBook().price("gemini/gemini-2.5-flash")
    counts = {"input_tokens": 10**6, "cached_input_tokens": 800_000, "cached_audio_tokens": 800_000}
    assert dollars(flash, **counts) == Decimal("0.14")
    assert dollars(flash, **{**counts, "cached_audio_tokens": 0}) == Decimal("0.084")


def test_b082_cached_sound_without_a_rate_is_as_much_dearer_as_fresh_sound_is() -> None:
    spoken = price(input="0.10", cached_input="0.025", input_audio="0.70", output="0.40")
    counts = {"input_tokens": 10**6, "cached_input_tokens": 10**6, "cached_audio_tokens": 10**6}
    assert dollars(spoken, **counts) == Decimal("0.175")
    assert spoken.remarks(Counts(**counts)) == ("cached_audio_tokens at the plain rate",)


def test_b083_a_search_is_charged_when_it_was_made() -> None:
    searching = price(input="3", output="15", per_search="0.01")
    assert dollars(searching, input_tokens=9548, output_tokens=528, searches=2) == Decimal("0.056564")
    assert dollars(searching, input_tokens=9548, output_tokens=528) == Decimal("0.036564")


FLEX = {
    "input": "0.25", "cached_input": "0.025", "output": "2",
    "flex": {"input": "0.125", "cached_input": "0.0125", "output": "1"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "served", "cost"),
    [
        ("flex", "default", "0.001275"),
        ("flex", "flex", "0.0006375"),
        ("flex", None, "0.0006375"),
        (None, None, "0.001275"),
        (None, "FLEX", "0.0006375"),
        (None, "something-new", "0.001275"),
    ],
)
def test_b084_the_tier_that_served_is_billed(asked: str | None, served: str | None, cost: str) -> None:
    counts: dict[str, Any] = {"input_tokens": 2000, "cached_input_tokens": 1000, "output_tokens": 500}
    assert dollars(price(**FLEX), asked, **counts, service_tier=served) == Decimal(cost)


def test_b086_embeddings_cost_their_input() -> None:
    assert dollars(PriceBook().price("text-embedding-3-small"), input_tokens=8000) == Decimal("0.00016")


def test_b088_an_unmapped_model_is_unknown_and_never_free() -> None:
    with pytest.raises(PriceUnknown, match=r'"Qwen3-4B".*\[prices\."Qwen3-4B"\].*\[aliases\]'):
        PriceBook().price("Qwen3-4B")


@pytest.mark.parametrize("model", ["ollama/llama3", "gemini/gemma-3-27b-it"])
def test_b088_a_zero_in_the_list_is_no_price(model: str) -> None:
    with pytest.raises(PriceUnknown, match="0 only if it is free"):
        PriceBook().price(model)


def test_b088_a_zero_of_the_owner_is_a_price() -> None:
    free = PriceBook({"ollama/llama3": {"input": 0, "output": "0"}}).price("ollama/llama3")
    assert free.is_free
    assert free.cost_nusd(Usage(input_tokens=10**6, output_tokens=10**6)) == 0


@pytest.mark.parametrize("prefix", ["", "openai/", "openrouter/openai/"])
def test_b089_a_tuned_model_has_its_own_rate(prefix: str) -> None:
    tuned = PriceBook().price(f"{prefix}ft:gpt-4o-mini-2024-07-18:org::id")
    base = PriceBook().price("gpt-4o-mini-2024-07-18")
    assert tuned.model == "ft:gpt-4o-mini-2024-07-18"
    assert tuned.input_nusd(10**6) == 2 * base.input_nusd(10**6)


@pytest.mark.parametrize("model", ["ft:gpt-5:org::id", "openai/ft:gpt-5-mini:org::id", "ft:gpt-5-2025-08-07:org::id"])
def test_b089_a_tuned_model_without_a_rate_is_unknown(model: str) -> None:
    with pytest.raises(PriceUnknown):
        PriceBook().price(model)


ARN = "arn:aws:bedrock:eu-west-1:123456789012:application-inference-profile/abc"


@pytest.mark.parametrize("model", [f"bedrock/converse/{ARN}", f"bedrock/{ARN}", ARN])
def test_b090_an_opaque_profile_needs_an_alias(model: str) -> None:
    with pytest.raises(PriceUnknown) as refusal:
        PriceBook().price(model)
    assert "123456789012" not in str(refusal.value)
    book = PriceBook(aliases={ARN: "eu.anthropic.claude-sonnet-4-5-20250929-v1:0"})
    assert book.price(model).model == "eu.anthropic.claude-sonnet-4-5-20250929-v1:0"


def test_b090_an_account_number_is_not_shown() -> None:
    assert masked(ARN) == "arn:aws:bedrock:eu-west-1:************:application-inference-profile/abc"


@pytest.mark.parametrize("model", ["prod-chat", "azure/prod-chat", "AZURE/Prod-Chat"])
def test_b091_a_deployment_is_priced_by_its_alias(model: str) -> None:
    book = PriceBook(aliases={"prod-chat": "azure/gpt-4o-2024-05-13"})
    held = book.price(model)
    assert held.model == "azure/gpt-4o-2024-05-13"
    assert book.served(held, "gpt-4o") is held


def test_b091_an_alias_of_an_unknown_model_is_refused_at_once() -> None:
    with pytest.raises(ConfigurationError, match=r'aliases\."prod-chat".*"gpt-4o-maxi"'):
        PriceBook(aliases={"prod-chat": "gpt-4o-maxi"})


def test_b091_aliases_that_go_in_circles_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="aliases"):
        PriceBook(aliases={"a": "b", "b": "a"})
    with pytest.raises(ConfigurationError, match="aliases"):
        PriceBook(aliases={"a": "a"})


def test_b092_a_dated_snapshot_is_priced_as_its_model_and_says_so() -> None:
    book = PriceBook({"x-5.6": {"input": "1", "output": "2"}})
    dated = book.price("x-5.6-2026-07-09")
    assert (dated.model, dated.priced_as) == ("x-5.6", "x-5.6")
    assert dated.remarks(Usage()) == ("priced as x-5.6",)
    assert book.price("x-5.6").priced_as is None


@pytest.mark.parametrize(
    "model", ["x-5.6-mini", "x-5.6-pro", "x-5.6-pro-2026-07-09", "x-5.6-2026-13-09", "x-5.6-2026", "x-5.6-20260799"]
)
def test_b092_what_is_no_date_is_never_dropped(model: str) -> None:
    with pytest.raises(PriceUnknown):
        PriceBook({"x-5.6": {"input": "1", "output": "2"}}).price(model)


def test_b094_the_model_that_served_is_priced() -> None:
    book = PriceBook()
    held = book.price("gpt-4o")
    assert book.served(held, "gpt-4o-mini-2024-07-18").model == "gpt-4o-mini-2024-07-18"
    assert book.served(held, "gpt-4o-2024-05-13").model == "gpt-4o-2024-05-13"
    assert book.served(held, "no-such-model") is held


def test_b096_a_free_model_behind_an_alias_is_free() -> None:
    book = PriceBook({"local": {"input": 0, "output": 0}}, aliases={"cheap": "local"})
    assert book.price("cheap").is_free
    assert not book.price("gpt-4o").is_free


def test_b097_a_price_per_token_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r'prices\."x"\.input.*per million tokens, not per token'):
        PriceBook({"x": {"input": "1000.01", "output": "15"}})
    with pytest.raises(ConfigurationError, match=r'prices\."x"\.flex\.output'):
        PriceBook({"x": {"input": 3, "output": 15, "flex": {"output": 3_000_000}}})


@pytest.mark.parametrize("model", ["claude-haiku-4-5", "claude-opus-4-6", "gpt-4o"])
def test_b083_a_search_is_never_free_because_the_list_leaves_it_out(model: str) -> None:
    at = PriceBook().price(model)
    asked = at.cost_nusd(Usage(input_tokens=10, searches=2)) - at.cost_nusd(Usage(input_tokens=10))
    assert asked >= 2 * parse_nusd("0.01")


def test_batches_are_half_where_a_provider_halves_them_all() -> None:
    price = PriceBook().price("fireworks_ai/accounts/fireworks/models/deepseek-v3")
    usage = Usage(input_tokens=1000, output_tokens=100, service_tier="batch")
    assert 2 * price.cost_nusd(usage) == price.cost_nusd(replace(usage, service_tier=None))
    kimi = PriceBook().price("moonshot/kimi-k2.5")
    assert kimi.cost_nusd(usage) == kimi.cost_nusd(replace(usage, service_tier=None))


def test_speech_is_sound_whether_its_usage_says_so_or_not() -> None:
    price = PriceBook().price("gpt-4o-mini-tts")
    told = Usage(input_tokens=10, output_tokens=1000, output_audio_tokens=1000)
    assert price.cost_nusd(told) == price.cost_nusd(replace(told, output_audio_tokens=0)) == 6_000 + 12_000_000


def test_file_searches_and_containers_are_billed_beside_tokens() -> None:
    used = Usage(input_tokens=1000, output_tokens=100, file_searches=2, containers=1)
    for model, fee in (
        ("gpt-4o", "0.035"),
        ("azure/gpt-4o", "0.033"),
        ("xai/grok-4.3", "0.005"),
        ("claude-opus-4-6", "0"),
    ):
        price = PriceBook().price(model)
        bare = replace(used, file_searches=0, containers=0)
        assert to_decimal(price.cost_nusd(used) - price.cost_nusd(bare)) == Decimal(fee), model
    own = PriceBook({"m": {"input": 1, "output": 1, "per_file_search": "0.01", "per_container": "$0.05"}}).price("m")
    assert to_decimal(own.cost_nusd(Usage(file_searches=1, containers=2))) == Decimal("0.11")
