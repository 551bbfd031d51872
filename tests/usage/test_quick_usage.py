"""The quick way of reading a usage gives what the long way gives, and is taken where it should be."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_shapes import SHAPES, as_object

from llm_budget_hooks.models import Usage
from llm_budget_hooks.usage import usage_from
from llm_budget_hooks.usage.answers import _at_length
from llm_budget_hooks.usage.quick import opened, quick

PROVIDERS = (None, "openai", "xai", "perplexity")
COMMON = (
    {"usage": {"prompt_tokens": 5, "completion_tokens": 6}},
    {
        "service_tier": "flex",
        "choices": [{"message": {"content": "hi", "annotations": None}}],
        "usage": {
            "prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 11, "cache_read_input_tokens": 0,
            "prompt_tokens_details": {"cached_tokens": 4, "audio_tokens": None, "text_tokens": 1},
            "completion_tokens_details": {"reasoning_tokens": 3, "accepted_prediction_tokens": 1},
        },
    },
    {
        "usage_metadata": {
            "input_tokens": 5, "output_tokens": 6, "total_tokens": 11,
            "input_token_details": {"cache_read": 4, "audio": 0}, "output_token_details": {"reasoning": 3},
        },
        "response_metadata": {"model_name": "gpt-4o", "service_tier": "flex"},
    },
    {
        "output": [{"type": "reasoning"}, {"type": "message"}], "service_tier": "flex",
        "usage": {
            "input_tokens": 5, "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
            "output_tokens": 6, "output_tokens_details": {"reasoning_tokens": 3}, "total_tokens": 11,
        },
    },
    {
        "usage": {
            "input_tokens": 1, "cache_read_input_tokens": 1, "cache_creation_input_tokens": 3, "output_tokens": 6,
            "cache_creation": {"ephemeral_5m_input_tokens": 1, "ephemeral_1h_input_tokens": 2},
            "server_tool_use": {"web_search_requests": 2}, "service_tier": "batch",
        },
    },
    {
        "usage": {
            "prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 11, "cache_read_input_tokens": 1,
            "cache_creation_input_tokens": 3, "prompt_tokens_details": {
                "cached_tokens": 1, "cache_creation_tokens": 3, "audio_tokens": None,
                "cache_creation_token_details": {"ephemeral_5m_input_tokens": 1, "ephemeral_1h_input_tokens": 2},
            },
        },
    },
    {"usage": {"input_tokens": 2, "cache_read_input_tokens": 3, "cache_creation": None, "output_tokens": 6}},
)  # fmt: skip


def check_both_ways(answer: Any, provider: str | None) -> None:
    for partial in (False, True):
        quickly = quick(opened(answer), provider)
        assert quickly is None or quickly == _at_length(opened(answer), provider, partial=partial)
        assert usage_from(answer, provider, partial=partial) == _at_length(opened(answer), provider, partial=partial)


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("shape", SHAPES)
def test_both_ways_give_the_same_for_every_shape(shape: str, provider: str | None) -> None:
    answer = SHAPES[shape][0]
    check_both_ways(answer, provider)
    check_both_ways(as_object(answer), provider)


@pytest.mark.parametrize("answer", COMMON)
def test_common_answers_are_read_the_quick_way(answer: dict[str, Any]) -> None:
    found = quick(answer, None)
    assert isinstance(found, Usage)
    assert (found.input_tokens, found.output_tokens) == (5, 6)
    check_both_ways(answer, None)


def test_answers_of_litellm_and_openai_are_read_the_quick_way() -> None:
    from litellm.types.utils import ModelResponse, PromptTokensDetailsWrapper
    from litellm.types.utils import Usage as LiteLLMUsage
    from openai.types.chat import ChatCompletion

    spent = LiteLLMUsage(
        prompt_tokens=9, completion_tokens=6, prompt_tokens_details=PromptTokensDetailsWrapper(cached_tokens=4)
    )
    chat = ChatCompletion.model_validate(
        {
            "id": "x", "created": 1, "model": "gpt-4o", "object": "chat.completion",
            "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hi"}}],
            "usage": {"prompt_tokens": 9, "completion_tokens": 6, "total_tokens": 15},
        }
    )  # fmt: skip
    assert quick(opened(ModelResponse(usage=spent)), None) == Usage(
        input_tokens=9, cached_input_tokens=4, output_tokens=6
    )
    assert quick(opened(chat), None) == Usage(input_tokens=9, output_tokens=6)


COUNT = st.one_of(st.none(), st.integers(-1, 12), st.sampled_from([10**13, 3.0, 2.5, "7", True, {}]))
TIER = st.sampled_from([None, "flex", "auto", "", 3])
WRITTEN = st.dictionaries(
    st.sampled_from(["ephemeral_5m_input_tokens", "ephemeral_1h_input_tokens", "anything"]), COUNT, max_size=3
)
CHAT_DETAILS = st.dictionaries(
    st.sampled_from(
        [
            "cached_tokens", "reasoning_tokens", "audio_tokens", "image_tokens", "text_tokens", "cache_write_tokens",
            "cache_creation_tokens", "web_search_requests", "video_tokens", "cached_tokens_details", "anything",
        ]
    ),
    COUNT, max_size=4,
)  # fmt: skip
GIVEN = st.builds(
    lambda details, written: details | ({} if written is None else {"cache_creation_token_details": written}),
    CHAT_DETAILS, st.one_of(st.none(), COUNT, WRITTEN),
)  # fmt: skip
CHAT = st.fixed_dictionaries(
    {"prompt_tokens": COUNT, "completion_tokens": COUNT},
    optional={
        "total_tokens": COUNT, "prompt_tokens_details": st.one_of(COUNT, GIVEN), "cached_tokens": COUNT,
        "completion_tokens_details": st.one_of(COUNT, CHAT_DETAILS), "cache_read_input_tokens": COUNT,
        "cache_creation_input_tokens": COUNT, "search_context_size": COUNT, "citation_tokens": COUNT,
        "service_tier": TIER, "billed_units": COUNT, "reasoning_tokens": COUNT, "prompt_audio_seconds": COUNT,
    },
)  # fmt: skip
MESSAGES = st.fixed_dictionaries(
    {"input_tokens": COUNT, "output_tokens": COUNT},
    optional={
        "cache_read_input_tokens": COUNT, "cache_creation_input_tokens": COUNT, "service_tier": TIER,
        "cache_creation": st.one_of(COUNT, WRITTEN), "inference_geo": st.just("us"), "search_context_size": COUNT,
        "server_tool_use": st.one_of(COUNT, st.dictionaries(st.just("web_search_requests"), COUNT)),
        "output_tokens_details": st.just({"thinking_tokens": 1}),
    },
)  # fmt: skip
RESPONSE = st.fixed_dictionaries(
    {"input_tokens": COUNT, "output_tokens": COUNT, "input_tokens_details": st.one_of(COUNT, CHAT_DETAILS)},
    optional={"total_tokens": COUNT, "output_tokens_details": st.one_of(COUNT, CHAT_DETAILS)},
)
LANGCHAIN_DETAILS = st.dictionaries(
    st.sampled_from(
        [
            "cache_read", "reasoning", "audio", "image", "cache_creation", "priority", "flex_cache_read",
            "ephemeral_1h_input_tokens", "anything",
        ]
    ),
    COUNT, max_size=4,
)  # fmt: skip
METADATA = st.fixed_dictionaries(
    {"input_tokens": COUNT, "output_tokens": COUNT},
    optional={
        "total_tokens": COUNT, "input_token_details": st.one_of(COUNT, LANGCHAIN_DETAILS),
        "output_token_details": st.one_of(COUNT, LANGCHAIN_DETAILS), "prompt_token_count": COUNT,
    },
)  # fmt: skip
CITED = {"message": {"annotations": [{"type": "url_citation"}]}}
ANSWERS = st.fixed_dictionaries(
    {},
    optional={
        "usage": st.one_of(CHAT, MESSAGES, RESPONSE), "usage_metadata": METADATA, "service_tier": TIER,
        "usageMetadata": st.just({"promptTokenCount": 1}),
        "response_metadata": st.fixed_dictionaries(
            {}, optional={"service_tier": TIER, "usage": CHAT, "model_name": st.just("m"), "candidates": st.just([])}
        ),
        "choices": st.sampled_from([[], [CITED], [{"message": {"content": "x"}}], "x"]),
        "data": st.just([{"url": "x"}]),
        "output": st.sampled_from([[{"type": "web_search_call"}], [{"type": "message"}], [], "x"]),
    },
)  # fmt: skip


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(ANSWERS, st.sampled_from(PROVIDERS))
def test_both_ways_give_the_same_for_any_answer(answer: dict[str, Any], provider: str | None) -> None:
    check_both_ways(answer, provider)
    check_both_ways(as_object(answer), provider)
