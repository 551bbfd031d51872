"""Counts that cannot be: changed by the rule of the package, marked, and never an exception or a negative cost."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llm_budget_hooks import BudgetEngine, Call, Usage
from llm_budget_hooks.pricing import PriceBook
from llm_budget_hooks.usage import StreamUsage, served_model, usage_from

SONNET = PriceBook(
    {
        "x": {
            "input": "3", "cached_input": "0.30", "cache_write": "3.75", "cache_write_1h": "6", "output": "15",
            "reasoning": "20", "input_audio": "10", "output_audio": "80", "per_search": "0.01", "per_image": "0.04",
        }
    }
).price("x")  # fmt: skip


def chat(prompt: Any = 100, output: Any = 10, *, cached: Any = None, reasoning: Any = None, **more: Any) -> Any:
    return usage_from(
        {
            "prompt_tokens": prompt, "completion_tokens": output, **more,
            "prompt_tokens_details": {"cached_tokens": cached},
            "completion_tokens_details": {"reasoning_tokens": reasoning},
        }
    )  # fmt: skip


@pytest.mark.parametrize(("cached", "counted", "exact"), [(120, 100, False), (100, 100, True), (-5, 0, False)])
def test_b073_cached_tokens_are_cut_to_the_prompt(cached: int, counted: int, exact: bool) -> None:
    usage = chat(cached=cached)
    assert (usage.input_tokens, usage.cached_input_tokens, usage.exact) == (100, counted, exact)


def test_what_was_written_to_a_cache_goes_before_what_was_read() -> None:
    written = {"ephemeral_1h_input_tokens": 30, "ephemeral_5m_input_tokens": 30}
    usage = chat(cached=80, cache_creation=written)
    assert usage is not None
    assert (usage.cache_write_1h_tokens, usage.cache_write_tokens, usage.cached_input_tokens) == (30, 30, 40)
    assert not usage.exact


@pytest.mark.parametrize("prompt", [{}, {"prompt_tokens": None}])
def test_a_prompt_that_is_only_told_by_its_hits_and_misses_is_not_free(prompt: dict[str, None]) -> None:
    said = {**prompt, "prompt_cache_hit_tokens": 60, "prompt_cache_miss_tokens": 40, "completion_tokens": 20}
    usage = usage_from({"usage": said}, "deepseek")
    assert usage == Usage(input_tokens=100, cached_input_tokens=60, output_tokens=20, exact=False)


@pytest.mark.parametrize(
    ("reasoning", "total", "output", "exact"),
    [(500, 110, 10, False), (500, 610, 510, False), (5, 110, 10, True), (10, None, 10, True), (500, None, 10, False)],
)
def test_b079_reasoning_above_the_output_is_cut_unless_the_total_has_it(
    reasoning: int, total: int | None, output: int, exact: bool
) -> None:
    usage = chat(reasoning=reasoning, total_tokens=total)
    assert (usage.output_tokens, usage.reasoning_tokens, usage.exact) == (output, min(reasoning, output), exact)


def test_b079_reasoning_of_xai_is_beside_the_output_without_a_total_too() -> None:
    said = {"prompt_tokens": 1, "completion_tokens": 10, "completion_tokens_details": {"reasoning_tokens": 500}}
    assert usage_from(said, "xai") == Usage(input_tokens=1, output_tokens=510, reasoning_tokens=500)


@pytest.mark.parametrize(
    ("value", "counted", "exact"),
    [
        (7, 7, True), (7.0, 7, True), ("7", 7, False), (" 7 ", 7, False), (7.2, 8, False), (Decimal(7), 7, True),
        (None, 0, False), (-1, 0, False), (-0.5, 0, False), (math.nan, 0, False), (math.inf, 0, False),
        ("seven", 0, False), ("", 0, False), ("9" * 99, 0, False), (True, 0, False), ([7], 0, False), ({}, 0, False),
        (10**30, 10**12, False), (1e300, 0, False), ("1e999999999", 0, False),
    ],
)  # fmt: skip
def test_a_count_is_read_as_what_it_can_be(value: Any, counted: int, exact: bool) -> None:
    usage = chat(output=value)
    assert (usage.output_tokens, usage.exact) == (counted, exact)


@pytest.mark.parametrize(
    ("counts", "kept"),
    [
        ({"input_tokens": 100, "cached_input_tokens": 120}, {"cached_input_tokens": 100}),
        ({"input_tokens": 100, "cache_write_1h_tokens": 30, "cache_write_tokens": 30, "cached_input_tokens": 80},
         {"cached_input_tokens": 40}),
        ({"input_tokens": 9, "cached_input_tokens": 5, "cached_audio_tokens": 4, "cached_image_tokens": 3},
         {"cached_image_tokens": 1}),
        ({"input_tokens": 9, "input_audio_tokens": 10, "input_image_tokens": 11},
         {"input_audio_tokens": 9, "input_image_tokens": 9}),
        ({"output_tokens": 9, "reasoning_tokens": 500}, {"reasoning_tokens": 9}),
        ({"output_tokens": 9, "output_audio_tokens": 10, "output_image_tokens": 11},
         {"output_audio_tokens": 9, "output_image_tokens": 9}),
    ],
)  # fmt: skip
def test_b073_a_usage_made_by_hand_is_cut_by_the_same_rule_and_marked(
    counts: dict[str, int], kept: dict[str, int]
) -> None:
    assert Usage(**counts) == Usage(**(counts | kept), exact=False)


def test_b073_a_usage_made_by_hand_that_cannot_be_settles_as_not_exact() -> None:
    policy = {"budgets": [{"scope": "global", "limit": "$10", "window": "day"}]}
    with BudgetEngine.open("memory://", policy) as engine:
        held = engine.reserve(Call(model="gpt-4o-mini", input_tokens=100, max_output_tokens=10))
        booked = engine.settle(held, usage=Usage(input_tokens=100, cached_input_tokens=120, output_tokens=10))
    assert (booked.exact, booked.cost) == (False, Decimal("0.0000135"))


@pytest.mark.parametrize(
    "answer",
    [
        {"usage": {"prompt_tokens": 9, "completion_tokens": 1, "prompt_tokens_details": "all cached"}},
        {"usage": {"prompt_tokens": 9, "completion_tokens": 1, "completion_tokens_details": [3]}},
        {"usage": {"prompt_tokens": 9, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens_details": 5}}},
        {"usage": {"input_tokens": 9, "output_tokens": 1, "cache_creation": "1h", "cache_read_input_tokens": 0}},
        {"usage_metadata": {"input_tokens": 9, "output_tokens": 1, "input_token_details": [4]}},
        {"usageMetadata": {"promptTokenCount": 9, "promptTokensDetails": {"modality": "AUDIO"}}},
        {"usageMetadata": {"promptTokenCount": 9, "cacheTokensDetails": ["AUDIO"]}},
        {"usage": {"inputTokens": 9, "outputTokens": 1, "cacheDetails": "1h"}},
    ],
)
def test_details_that_are_no_table_make_a_usage_inexact(answer: Any) -> None:
    usage = usage_from(answer)
    assert usage is not None
    assert (usage.input_tokens, usage.exact) == (9, False)


class Broken:
    """An object of which some fields cannot be read."""

    def __init__(self, *broken: str, **fields: Any) -> None:
        self.__dict__.update({"broken": broken, "fields": fields})

    def __getattr__(self, name: str) -> Any:
        if name in self.broken:
            raise RuntimeError("the connection is closed")
        if name not in self.fields:
            raise AttributeError(name)
        return self.fields[name]


class BrokenMapping(dict[str, Any]):
    """A mapping that cannot be looked into."""

    def get(self, *_: Any) -> Any:
        raise RuntimeError("the connection is closed")

    __iter__ = keys = items = __contains__ = __getitem__ = get


def test_what_an_object_cannot_say_is_not_said() -> None:
    spent = Broken("completion_tokens", "service_tier", prompt_tokens=9)
    answer = Broken("usage_metadata", "usageMetadata", "data", "choices", usage=spent, model="gpt-4o")
    assert usage_from(answer) == Usage(input_tokens=9, exact=False)
    assert served_model(answer) == "gpt-4o"


@pytest.mark.parametrize("answer", [Broken("usage", "model", "response_metadata"), BrokenMapping(usage=1)], ids=repr)
def test_an_object_that_cannot_be_read_says_nothing(answer: Any) -> None:
    events = StreamUsage()
    events.add(answer)
    assert (usage_from(answer), served_model(answer), events.usage) == (None, None, None)


def test_a_detail_of_none_is_not_said_and_changes_nothing() -> None:
    assert chat() == Usage(input_tokens=100, output_tokens=10)


ODD = st.one_of(
    st.none(), st.integers(-(10**6), 10**6), st.integers(), st.floats(), st.text(max_size=5), st.booleans(),
    st.sampled_from(["12", "-3", "1e5", "nan"]), st.lists(st.integers(), max_size=2),
)  # fmt: skip
NAMES = st.sampled_from(
    [
        "prompt_tokens", "completion_tokens", "total_tokens", "input_tokens", "output_tokens", "cached_tokens",
        "reasoning_tokens", "audio_tokens", "image_tokens", "cache_read_input_tokens", "cache_creation_input_tokens",
        "cache_creation_tokens", "promptTokenCount", "candidatesTokenCount", "thoughtsTokenCount", "totalTokenCount",
        "cachedContentTokenCount", "inputTokens", "cacheReadInputTokens", "prompt_cache_hit_tokens", "citation_tokens",
        "cache_read", "cache_creation", "reasoning", "web_search_requests", "ephemeral_1h_input_tokens", "seconds",
        "prompt_audio_seconds", "type", "modality", "tokenCount", "service_tier", "cachedContentTokenCount",
    ]
)  # fmt: skip
PLACES = st.sampled_from(
    [
        "usage", "usage_metadata", "usageMetadata", "prompt_tokens_details", "input_token_details", "message", "data",
        "completion_tokens_details", "cache_creation", "cache_creation_token_details", "response", "cacheDetails",
        "promptTokensDetails", "cacheTokensDetails", "cached_tokens_details",
        "output", "choices", "candidates", "response_metadata", "server_tool_use",
    ]
)  # fmt: skip
ANSWERS = st.recursive(
    st.dictionaries(NAMES, ODD, max_size=6),
    lambda inner: st.dictionaries(
        st.one_of(NAMES, PLACES), st.one_of(ODD, inner, st.lists(inner, max_size=2)), max_size=6
    ),
    max_leaves=8,
)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(ANSWERS, st.sampled_from([None, "xai", "perplexity", "anthropic"]))
def test_no_answer_makes_an_exception_or_a_negative_cost(answer: Any, provider: str | None) -> None:
    usage = usage_from(answer, provider)
    if usage is not None:
        assert SONNET.cost_nusd(usage) >= 0
        assert usage.cached_input_tokens + usage.cache_write_tokens + usage.cache_write_1h_tokens <= usage.input_tokens
        assert usage.cached_audio_tokens + usage.cached_image_tokens <= usage.cached_input_tokens
        assert max(usage.reasoning_tokens, usage.output_audio_tokens) <= usage.output_tokens


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(-(10**6), 10**6), st.integers(-(10**6), 10**6), st.integers(-(10**6), 10**6))
def test_b073_no_count_of_cached_tokens_makes_credit(prompt: int, cached: int, output: int) -> None:
    usage = chat(prompt, output, cached=cached) or Usage()
    assert SONNET.cost_nusd(usage) >= SONNET.cost_nusd(Usage(output_tokens=max(output, 0)))
    assert usage.exact == (0 <= cached <= prompt and output >= 0) or usage == Usage()
