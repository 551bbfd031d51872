"""Usage from every shape that providers and frameworks say it in."""

from __future__ import annotations

from typing import Any

import pytest

from llm_budget_hooks.models import Usage
from llm_budget_hooks.usage import served_model, usage_from

COUNTS = tuple(name for name in Usage.__slots__ if name not in ("service_tier", "exact"))

SHAPES: dict[str, tuple[Any, str | None, dict[str, Any]]] = {
    "OpenAI chat": (
        {
            "model": "gpt-4o", "service_tier": "default",
            "usage": {
                "prompt_tokens": 2006, "completion_tokens": 300, "total_tokens": 2306,
                "prompt_tokens_details": {"cached_tokens": 1920, "audio_tokens": 10},
                "completion_tokens_details": {
                    "reasoning_tokens": 20, "audio_tokens": 5, "accepted_prediction_tokens": 0,
                    "rejected_prediction_tokens": 0,
                },
            },
        },
        None,
        {"input_tokens": 2006, "cached_input_tokens": 1920, "input_audio_tokens": 10, "output_tokens": 300,
         "reasoning_tokens": 20, "output_audio_tokens": 5, "service_tier": "default"},
    ),
    "OpenAI chat without details": (
        {"usage": {"prompt_tokens": 3, "completion_tokens": 4, "prompt_tokens_details": None}}, "openai",
        {"input_tokens": 3, "output_tokens": 4},
    ),
    "OpenAI chat that cites the web": (
        {
            "usage": {"prompt_tokens": 3, "completion_tokens": 4},
            "choices": [{"message": {"annotations": [{"type": "url_citation"}, {"type": "url_citation"}]}}],
        },
        None,
        {"input_tokens": 3, "output_tokens": 4, "searches": 1},
    ),
    "OpenAI responses": (
        {
            "object": "response", "service_tier": "flex",
            "output": [
                {"type": "web_search_call", "action": {"type": "search"}}, {"type": "web_search_call"},
                {"type": "web_search_call", "action": {"type": "open_page"}}, {"type": "message"},
            ],
            "usage": {
                "input_tokens": 1000, "input_tokens_details": {"cached_tokens": 800, "cache_write_tokens": 100},
                "output_tokens": 50, "output_tokens_details": {"reasoning_tokens": 30}, "total_tokens": 1050,
            },
        },
        None,
        {"input_tokens": 1000, "cached_input_tokens": 800, "cache_write_tokens": 100, "output_tokens": 50,
         "reasoning_tokens": 30, "searches": 2, "service_tier": "flex"},
    ),
    "OpenAI responses with tools": (
        {
            "output": [
                {"type": "file_search_call", "status": "completed"}, {"type": "file_search_call"},
                {"type": "code_interpreter_call", "container_id": "cntr_1"},
                {"type": "code_interpreter_call", "container_id": "cntr_1"}, {"type": "function_call"},
            ],
            "usage": {"input_tokens": 10, "output_tokens": 5, "input_tokens_details": {"cached_tokens": 0}},
        },
        None,
        {"input_tokens": 10, "output_tokens": 5, "file_searches": 2, "containers": 1},
    ),
    "OpenAI responses, last event": (
        {"type": "response.completed", "response": {"usage": {"input_tokens": 7, "output_tokens": 9}}},
        None, {"input_tokens": 7, "output_tokens": 9},
    ),
    "OpenAI realtime": (
        {"type": "response.done", "response": {"usage": {
            "total_tokens": 350, "input_tokens": 250, "output_tokens": 100,
            "input_token_details": {"cached_tokens": 128, "text_tokens": 50, "audio_tokens": 200,
                                    "cached_tokens_details": {"text_tokens": 28, "audio_tokens": 100}},
            "output_token_details": {"text_tokens": 20, "audio_tokens": 80},
        }}},
        None,
        {"input_tokens": 250, "cached_input_tokens": 128, "cached_audio_tokens": 100, "input_audio_tokens": 100,
         "output_tokens": 100, "output_audio_tokens": 80},
    ),
    "OpenAI images": (
        {
            "data": [{"b64_json": "x"}, {"b64_json": "y"}],
            "usage": {"input_tokens": 50, "input_tokens_details": {"text_tokens": 10, "image_tokens": 40},
                      "output_tokens": 4160, "output_tokens_details": {"image_tokens": 4160}},
        },
        None,
        {"input_tokens": 50, "input_image_tokens": 40, "output_tokens": 4160, "output_image_tokens": 4160, "images": 2},
    ),
    "images without usage": ({"data": [{"url": "https://x"}], "usage": None}, None, {"images": 1}),
    "OpenAI transcription by length": (
        {"text": "hello", "usage": {"type": "duration", "seconds": 12.5}}, None, {"input_ms": 12_500},
    ),
    "OpenAI transcription by tokens": (
        {"usage": {"type": "tokens", "input_tokens": 14, "input_token_details": {"text_tokens": 4, "audio_tokens": 10},
                   "output_tokens": 45, "total_tokens": 59}},
        None, {"input_tokens": 14, "input_audio_tokens": 10, "output_tokens": 45},
    ),
    "OpenAI embeddings": (
        {"data": [{"embedding": [0.1]}], "usage": {"prompt_tokens": 8, "total_tokens": 8}}, None, {"input_tokens": 8},
    ),
    "Azure chat": (
        {"model": "gpt-4o", "prompt_filter_results": [], "usage": {
            "prompt_tokens": 15, "completion_tokens": 2, "total_tokens": 17,
            "completion_tokens_details": {"reasoning_tokens": 0}, "prompt_tokens_details": {"cached_tokens": 0}}},
        "azure", {"input_tokens": 15, "output_tokens": 2},
    ),
    "Anthropic (B068)": (
        {"model": "claude-opus-4-6", "usage": {
            "input_tokens": 1, "cache_creation_input_tokens": 225, "cache_read_input_tokens": 965_602,
            "output_tokens": 82, "service_tier": "standard"}},
        "anthropic",
        {"input_tokens": 965_828, "cached_input_tokens": 965_602, "cache_write_tokens": 225, "output_tokens": 82,
         "service_tier": "standard"},
    ),
    "Anthropic with an hour's writes and searches": (
        {"usage": {
            "input_tokens": 10, "cache_creation_input_tokens": 300, "cache_read_input_tokens": 0, "output_tokens": 5,
            "cache_creation": {"ephemeral_5m_input_tokens": 100, "ephemeral_1h_input_tokens": 200},
            "server_tool_use": {"web_search_requests": 2}}},
        None,
        {"input_tokens": 310, "cache_write_tokens": 100, "cache_write_1h_tokens": 200, "output_tokens": 5,
         "searches": 2},
    ),
    "Anthropic without caches": (
        {"usage": {"input_tokens": 10, "output_tokens": 5}}, "anthropic", {"input_tokens": 10, "output_tokens": 5},
    ),
    "Anthropic, first event": (
        {"type": "message_start", "message": {"model": "claude", "usage": {
            "input_tokens": 25, "cache_read_input_tokens": 5, "output_tokens": 1}}},
        None, {"input_tokens": 30, "cached_input_tokens": 5, "output_tokens": 1},
    ),
    "Gemini": (
        {"modelVersion": "gemini-2.5-pro", "usageMetadata": {
            "promptTokenCount": 100, "cachedContentTokenCount": 60, "candidatesTokenCount": 20,
            "thoughtsTokenCount": 30, "toolUsePromptTokenCount": 7, "totalTokenCount": 157,
            "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 68}, {"modality": "AUDIO", "tokenCount": 22},
                                    {"modality": "IMAGE", "tokenCount": 10}],
            "candidatesTokensDetails": [{"modality": "IMAGE", "tokenCount": 15}],
            "trafficType": "ON_DEMAND_PRIORITY"}},
        "gemini",
        {"input_tokens": 107, "cached_input_tokens": 60, "output_tokens": 50, "reasoning_tokens": 30,
         "input_audio_tokens": 22, "input_image_tokens": 10, "output_image_tokens": 15,
         "service_tier": "ON_DEMAND_PRIORITY"},
    ),
    "Gemini with sound and images in its cache": (
        {"usageMetadata": {
            "promptTokenCount": 1000, "cachedContentTokenCount": 800, "totalTokenCount": 1000,
            "promptTokensDetails": [{"modality": "AUDIO", "tokenCount": 700}, {"modality": "IMAGE", "tokenCount": 120},
                                    {"modality": "TEXT", "tokenCount": 180}],
            "cacheTokensDetails": [{"modality": "AUDIO", "tokenCount": 600}, {"modality": "IMAGE", "tokenCount": 20},
                                   {"modality": "TEXT", "tokenCount": 180}]}},
        "gemini",
        {"input_tokens": 1000, "cached_input_tokens": 800, "input_audio_tokens": 100, "cached_audio_tokens": 600,
         "input_image_tokens": 100, "cached_image_tokens": 20},
    ),
    "LiteLLM from Gemini, with sound and images in its cache": (
        {"usage": {"prompt_tokens": 1000, "completion_tokens": 5, "prompt_tokens_details": {
            "cached_tokens": 800, "audio_tokens": 700, "image_tokens": 120, "text_tokens": 180,
            "cached_tokens_details": {"audio_tokens": 600, "image_tokens": 20, "text_tokens": 180}}}},
        "gemini",
        {"input_tokens": 1000, "cached_input_tokens": 800, "input_audio_tokens": 100, "cached_audio_tokens": 600,
         "input_image_tokens": 100, "cached_image_tokens": 20, "output_tokens": 5},
    ),
    "Gemini with thoughts in the candidates": (
        {"usageMetadata": {"promptTokenCount": 100, "candidatesTokenCount": 50, "thoughtsTokenCount": 30,
                           "totalTokenCount": 150}},
        None, {"input_tokens": 100, "output_tokens": 50, "reasoning_tokens": 30},
    ),
    "Gemini in snake case, without an answer": (
        {"usage_metadata": {"prompt_token_count": 100, "candidates_token_count": None, "total_token_count": 100}},
        None, {"input_tokens": 100},
    ),
    "Gemini 2.5, grounded by two queries": (
        {"modelVersion": "gemini-2.5-flash", "usageMetadata": {"promptTokenCount": 1},
         "candidates": [{"groundingMetadata": {"webSearchQueries": ["a", "b"]}}]},
        None, {"input_tokens": 1, "searches": 1},
    ),
    "Gemini 3, grounded by two queries": (
        {"modelVersion": "gemini-3-pro", "usageMetadata": {"promptTokenCount": 1},
         "candidates": [{"groundingMetadata": {"webSearchQueries": ["a", "b"]}}]},
        None, {"input_tokens": 1, "searches": 2},
    ),
    "Bedrock Converse": (
        {"serviceTier": {"type": "flex"}, "usage": {
            "inputTokens": 30, "outputTokens": 628, "totalTokens": 758, "cacheReadInputTokens": 70,
            "cacheWriteInputTokens": 30,
            "cacheDetails": [{"ttl": "5m", "inputTokens": 10}, {"ttl": "1h", "inputTokens": 20}]}},
        "bedrock",
        {"input_tokens": 130, "cached_input_tokens": 70, "cache_write_tokens": 10, "cache_write_1h_tokens": 20,
         "output_tokens": 628, "service_tier": "flex"},
    ),
    "Bedrock Converse, last event": (
        {"metadata": {"usage": {"inputTokens": 3, "outputTokens": 4, "totalTokens": 7}}}, None,
        {"input_tokens": 3, "output_tokens": 4},
    ),
    "Bedrock InvokeModel, last event": (
        {"type": "message_stop", "amazon-bedrock-invocationMetrics": {
            "inputTokenCount": 9, "outputTokenCount": 5, "cacheReadInputTokenCount": 1}},
        None, {"input_tokens": 10, "cached_input_tokens": 1, "output_tokens": 5},
    ),
    "Mistral with sound": (
        {"usage": {"prompt_tokens": 33, "completion_tokens": 4, "total_tokens": 37, "prompt_audio_seconds": 3}},
        "mistral", {"input_tokens": 33, "output_tokens": 4, "input_ms": 3000},
    ),
    "Mistral without sound": (
        {"usage": {"prompt_tokens": 33, "completion_tokens": 4, "total_tokens": 37, "prompt_audio_seconds": {}}},
        "mistral", {"input_tokens": 33, "output_tokens": 4},
    ),
    "DeepSeek": (
        {"usage": {"prompt_tokens": 100, "prompt_cache_hit_tokens": 64, "prompt_cache_miss_tokens": 36,
                   "completion_tokens": 8, "total_tokens": 108,
                   "completion_tokens_details": {"reasoning_tokens": 5}}},
        "deepseek",
        {"input_tokens": 100, "cached_input_tokens": 64, "output_tokens": 8, "reasoning_tokens": 5},
    ),
    "Moonshot": (
        {"usage": {"prompt_tokens": 100, "completion_tokens": 8, "cached_tokens": 10}}, "moonshot",
        {"input_tokens": 100, "cached_input_tokens": 10, "output_tokens": 8},
    ),
    "xAI, with reasoning beside the completion (B079)": (
        {"usage": {"prompt_tokens": 32, "completion_tokens": 9, "total_tokens": 135, "num_sources_used": 3,
                   "prompt_tokens_details": {"cached_tokens": 6},
                   "completion_tokens_details": {"reasoning_tokens": 94}}},
        "xai",
        {"input_tokens": 32, "cached_input_tokens": 6, "output_tokens": 103, "reasoning_tokens": 94, "searches": 3},
    ),
    "Perplexity's deep research": (
        {"usage": {"prompt_tokens": 10, "completion_tokens": 100, "total_tokens": 110, "citation_tokens": 40,
                   "num_search_queries": 5, "reasoning_tokens": 200}},
        "perplexity",
        {"input_tokens": 50, "output_tokens": 300, "reasoning_tokens": 200, "searches": 5},
    ),
    "Perplexity's Sonar": (
        {"usage": {"prompt_tokens": 10, "completion_tokens": 100, "total_tokens": 110, "search_context_size": "low"}},
        "perplexity", {"input_tokens": 10, "output_tokens": 100, "searches": 1},
    ),
    "Groq, last chunk": (
        {"x_groq": {"usage": {"prompt_tokens": 5, "completion_tokens": 6, "queue_time": 0.1}}, "choices": []}, "groq",
        {"input_tokens": 5, "output_tokens": 6},
    ),
    "Cohere v1": ({"meta": {"billed_units": {"input_tokens": 5.0, "output_tokens": 6.0}}}, None,
                  {"input_tokens": 5, "output_tokens": 6}),
    "Cohere v2": ({"usage": {"billed_units": {"input_tokens": 5}, "tokens": {"input_tokens": 70}}}, None,
                  {"input_tokens": 5}),
    "Ollama": ({"model": "llama3", "prompt_eval_count": 26, "eval_count": 298}, None,
               {"input_tokens": 26, "output_tokens": 298}),
    "LangChain": (
        {"usage_metadata": {"input_tokens": 100, "output_tokens": 40, "total_tokens": 140,
                            "input_token_details": {"cache_read": 30, "audio": 4},
                            "output_token_details": {"reasoning": 10, "audio": 3}},
         "response_metadata": {"model_name": "gpt-4o", "service_tier": "default"}},
        None,
        {"input_tokens": 100, "cached_input_tokens": 30, "input_audio_tokens": 4, "output_tokens": 40,
         "reasoning_tokens": 10, "output_audio_tokens": 3, "service_tier": "default"},
    ),
    "LangChain with a tier": (
        {"usage_metadata": {"input_tokens": 100, "output_tokens": 40,
                            "input_token_details": {"priority_cache_read": 30, "priority": 70},
                            "output_token_details": {"priority_reasoning": 10, "priority": 30}}},
        None,
        {"input_tokens": 100, "cached_input_tokens": 30, "output_tokens": 40, "reasoning_tokens": 10,
         "service_tier": "priority"},
    ),
    "LangChain from Anthropic": (
        {"usage_metadata": {"input_tokens": 100, "output_tokens": 1,
                            "input_token_details": {"cache_creation": 0, "ephemeral_5m_input_tokens": 40,
                                                    "ephemeral_1h_input_tokens": 20, "cache_read": 10}},
         "response_metadata": {"usage": {"server_tool_use": {"web_search_requests": 2}, "service_tier": "batch"}}},
        None,
        {"input_tokens": 100, "cached_input_tokens": 10, "cache_write_tokens": 40, "cache_write_1h_tokens": 20,
         "output_tokens": 1, "searches": 2, "service_tier": "batch"},
    ),
    "LiteLLM (B076)": (
        {"usage": {"prompt_tokens": 1000, "completion_tokens": 1, "cache_read_input_tokens": 0,
                   "cache_creation_input_tokens": 900}},
        None, {"input_tokens": 1000, "cache_write_tokens": 900, "output_tokens": 1},
    ),
    "LiteLLM from Anthropic": (
        {"usage": {
            "prompt_tokens": 1000, "completion_tokens": 10, "cache_read_input_tokens": 300,
            "cache_creation_input_tokens": 500, "server_tool_use": {"web_search_requests": 1},
            "prompt_tokens_details": {
                "cached_tokens": 300, "cache_creation_tokens": 500,
                "cache_creation_token_details": {"ephemeral_5m_input_tokens": 100, "ephemeral_1h_input_tokens": 400}},
            "completion_tokens_details": {"reasoning_tokens": 4, "image_tokens": 2}}},
        None,
        {"input_tokens": 1000, "cached_input_tokens": 300, "cache_write_tokens": 100, "cache_write_1h_tokens": 400,
         "output_tokens": 10, "reasoning_tokens": 4, "output_image_tokens": 2, "searches": 1},
    ),
    "the usage itself": ({"prompt_tokens": 1, "completion_tokens": 2}, None, {"input_tokens": 1, "output_tokens": 2}),
    "a tier that the provider may choose": (
        {"service_tier": "auto", "usage": {"prompt_tokens": 1, "completion_tokens": 2}}, None,
        {"input_tokens": 1, "output_tokens": 2},
    ),
}  # fmt: skip


def said(usage: Usage) -> dict[str, Any]:
    """What a usage has that is not 0."""
    found = {name: getattr(usage, name) for name in (*COUNTS, "service_tier")}
    return {name: value for name, value in found.items() if value}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_is_read(shape: str) -> None:
    answer, provider, expected = SHAPES[shape]
    usage = usage_from(answer, provider)
    assert usage is not None
    assert (said(usage), usage.exact) == (expected, not usage.containers)


@pytest.mark.parametrize("shape", SHAPES)
def test_objects_are_read_as_mappings_are(shape: str) -> None:
    answer, provider, _ = SHAPES[shape]
    assert usage_from(as_object(answer), provider) == usage_from(answer, provider)


class Thing:
    """An object with the fields of a mapping."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.__dict__.update({name: as_object(value) for name, value in fields.items()})


def as_object(value: Any) -> Any:
    """Mappings as objects, all the way down, but for the details that LangChain keeps as mappings."""
    if isinstance(value, list):
        return [as_object(item) for item in value]
    from_langchain = isinstance(value, dict) and "input_tokens" in value.get("usage_metadata", {})
    return value if from_langchain or not isinstance(value, dict) else Thing(value)


def test_the_objects_of_the_real_packages_are_read() -> None:
    from langchain_core.messages import AIMessage
    from litellm.types.utils import ModelResponse, PromptTokensDetailsWrapper
    from litellm.types.utils import Usage as LiteLLMUsage
    from openai.types.chat import ChatCompletion
    from openai.types.responses import ResponseUsage

    chat = ChatCompletion.model_construct(
        model="gpt-4o", usage={"prompt_tokens": 5, "completion_tokens": 6}, service_tier="priority"
    )
    spent = LiteLLMUsage(
        prompt_tokens=100, completion_tokens=6, prompt_tokens_details=PromptTokensDetailsWrapper(cached_tokens=60)
    )
    message = AIMessage("hi", usage_metadata={"input_tokens": 5, "output_tokens": 6, "total_tokens": 11})
    respond = ResponseUsage.model_validate(
        {
            "input_tokens": 9, "output_tokens": 8, "total_tokens": 17, "output_tokens_details": {"reasoning_tokens": 3},
            "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        }
    )  # fmt: skip
    assert usage_from(chat) == Usage(input_tokens=5, output_tokens=6, service_tier="priority")
    assert usage_from(ModelResponse(usage=spent)) == Usage(input_tokens=100, cached_input_tokens=60, output_tokens=6)
    assert usage_from(message) == Usage(input_tokens=5, output_tokens=6)
    assert usage_from(respond) == Usage(input_tokens=9, cached_input_tokens=4, output_tokens=8, reasoning_tokens=3)


@pytest.mark.parametrize(
    "answer",
    [
        None, "", "text", b"bytes", 3, [], {}, {"usage": None}, {"usage": {}}, {"usage": "none"}, object(),
        {"usage": {"prompt_tokens": 0, "completion_tokens": 0}}, {"message": {"message": {"message": {"usage": 1}}}},
        {"data": []}, {"usage_metadata": None}, {"choices": [{"delta": {"content": "x"}}]},
    ],
    ids=repr,
)  # fmt: skip
def test_what_says_nothing_is_none(answer: Any) -> None:
    assert usage_from(answer) is None


@pytest.mark.parametrize(
    ("answer", "model"),
    [
        ({"model": "gpt-4o"}, "gpt-4o"),
        ({"modelVersion": "gemini-2.5-pro"}, "gemini-2.5-pro"),
        ({"message": {"model": "claude"}}, "claude"),
        ({"response": {"model": "gpt-5"}}, "gpt-5"),
        ({"response_metadata": {"model_name": "gpt-4o-2024-08-06"}}, "gpt-4o-2024-08-06"),
        ({"model": ""}, None),
        ({"model": 3}, None),
        (None, None),
    ],
)
def test_the_model_that_served_is_found(answer: Any, model: str | None) -> None:
    assert served_model(answer) == model
