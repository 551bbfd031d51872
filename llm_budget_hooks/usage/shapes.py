"""The shapes of usage, one reader each. Each takes the usage itself and the answer that it stands in.

Sources: the API references of the providers named at each reader, as of 2026.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from llm_budget_hooks.models import Usage
from llm_budget_hooks.usage.fields import Counts, field, first, items, made, tier_of

_TIERS: Final = ("priority", "flex")
_INPUT_DETAILS: Final = ("prompt_tokens_details", "input_tokens_details", "input_token_details")
_OUTPUT_DETAILS: Final = ("completion_tokens_details", "output_tokens_details", "output_token_details")
_REASONS_BESIDE: Final = ("xai", "perplexity")
"""Providers that count reasoning beside the output. xAI: the total is prompt, completion and reasoning together.
Perplexity: its deep research bills reasoning tokens as a line of their own, beside the completion."""


@dataclass(frozen=True, slots=True)
class Said:
    """A usage, and what is needed to read it.

    Attributes:
        usage: the usage itself.
        answer: the answer that it stands in, None if it stands alone.
        provider: who answered, if that is known.
        counts: reads the counts.
    """

    usage: Any
    answer: Any
    provider: str | None
    counts: Counts


def openai(said: Said) -> Usage | None:
    """OpenAI's chat, and all that follow it: Azure, Mistral, DeepSeek, xAI, Groq, Perplexity, LiteLLM.

    The prompt includes what was cached (OpenAI, "Prompt caching"). DeepSeek names the parts by
    ``prompt_cache_hit_tokens``, Moonshot by ``cached_tokens``, LiteLLM keeps Anthropic's names beside.
    """
    usage, answer, counts = said.usage, said.answer, said.counts
    given, spent = first(usage, *_INPUT_DETAILS), first(usage, *_OUTPUT_DETAILS)
    kept = field(given, "cached_tokens_details")
    prompt = counts.needed(usage, "prompt_tokens", "input_tokens")
    prompt = (prompt or _hit_and_missed(usage, counts)) + counts.of(usage, "citation_tokens")
    output = counts.needed(usage, "completion_tokens", "output_tokens", may_lack=True)
    reasoning = counts.whole(first(spent, "reasoning_tokens") or field(usage, "reasoning_tokens"))
    if reasoning:
        output += _beside(usage, said.provider, prompt, output, reasoning, counts)
    cached = max(
        counts.of(given, "cached_tokens"),
        counts.of(usage, "cache_read_input_tokens", "prompt_cache_hit_tokens", "cached_tokens"),
    )
    return made(
        counts,
        first(answer, "service_tier") or field(usage, "service_tier"),
        input_tokens=prompt,
        cached_input_tokens=cached,
        **_written(usage, given, counts),
        output_tokens=output,
        reasoning_tokens=reasoning,
        **_sensed(
            heard=(counts.of(given, "audio_tokens"), counts.of(kept, "audio_tokens")),
            seen=(counts.of(given, "image_tokens"), counts.of(kept, "image_tokens")),
        ),
        output_audio_tokens=counts.of(spent, "audio_tokens"),
        output_image_tokens=counts.of(spent, "image_tokens"),
        input_ms=_seconds(usage, counts),
        images=pictures(answer),
        searches=_searches(usage, given, answer, counts),
        **_tools(answer, counts),
    )


def _hit_and_missed(usage: Any, counts: Counts) -> int:
    """The prompt as the sum of its parts (DeepSeek, "Context Caching"), where it is not said itself."""
    return counts.of(usage, "prompt_cache_hit_tokens") + counts.of(usage, "prompt_cache_miss_tokens")


def anthropic(said: Said) -> Usage | None:
    """Anthropic's messages: ``input_tokens`` is what no cache had or got ("Prompt caching")."""
    usage, answer, counts = said.usage, said.answer, said.counts
    read = counts.of(usage, "cache_read_input_tokens")
    written = _written(usage, None, counts)
    return made(
        counts,
        field(usage, "service_tier"),
        input_tokens=counts.needed(usage, "input_tokens") + read + sum(written.values()),
        cached_input_tokens=read,
        **written,
        output_tokens=counts.needed(usage, "output_tokens"),
        reasoning_tokens=counts.of(first(usage, *_OUTPUT_DETAILS), "thinking_tokens", "reasoning_tokens"),
        searches=_searches(usage, None, answer, counts),
    )


def gemini(said: Said) -> Usage | None:
    """Gemini on AI Studio and Vertex, in camel and snake case ("UsageMetadata").

    The prompt includes what was cached, but not what its tools read for it; thoughts stand beside the candidates,
    unless the total says that they are in them.
    """
    usage, answer, counts = said.usage, said.answer, said.counts

    def get(*names: str) -> Any:
        return first(usage, *names)

    tools = counts.whole(get("toolUsePromptTokenCount", "tool_use_prompt_token_count"))
    prompt = counts.whole(get("promptTokenCount", "prompt_token_count"))
    words = get("candidatesTokenCount", "candidates_token_count", "responseTokenCount", "response_token_count")
    output, thoughts = counts.whole(words), counts.whole(get("thoughtsTokenCount", "thoughts_token_count"))
    total = counts.whole(get("totalTokenCount", "total_token_count"))
    if not (total and thoughts and total == prompt + tools + output and thoughts <= output):
        output += thoughts
    given = get("promptTokensDetails", "prompt_tokens_details")
    kept = get("cacheTokensDetails", "cache_tokens_details")
    spoken = get("candidatesTokensDetails", "candidates_tokens_details", "responseTokensDetails")
    return made(
        counts,
        _text(get("trafficType", "traffic_type")) or field(answer, "service_tier"),
        input_tokens=prompt + tools,
        cached_input_tokens=counts.whole(get("cachedContentTokenCount", "cached_content_token_count")),
        output_tokens=output,
        reasoning_tokens=thoughts,
        **_sensed(
            heard=(_modality(given, "AUDIO", counts), _modality(kept, "AUDIO", counts)),
            seen=(_modality(given, "IMAGE", counts), _modality(kept, "IMAGE", counts)),
        ),
        output_audio_tokens=_modality(spoken, "AUDIO", counts),
        output_image_tokens=_modality(spoken, "IMAGE", counts),
        searches=_groundings(answer),
    )


def bedrock(said: Said) -> Usage | None:
    """Bedrock's Converse, and the metrics beside InvokeModel's streams: cached tokens stand beside the input."""
    usage, answer, counts = said.usage, said.answer, said.counts
    read = counts.of(usage, "cacheReadInputTokens", "cacheReadInputTokenCount")
    written = counts.of(usage, "cacheWriteInputTokens", "cacheWriteInputTokenCount")
    details = counts.listed(field(usage, "cacheDetails"))
    hour = sum(counts.of(part, "inputTokens") for part in details if field(part, "ttl") == "1h")
    return made(
        counts,
        field(field(answer, "serviceTier"), "type"),
        input_tokens=counts.needed(usage, "inputTokens", "inputTokenCount", "inputTextTokenCount") + read + written,
        cached_input_tokens=read,
        cache_write_tokens=max(written - hour, 0),
        cache_write_1h_tokens=hour,
        output_tokens=counts.of(usage, "outputTokens", "outputTokenCount"),
    )


def langchain(said: Said) -> Usage | None:
    """LangChain's ``usage_metadata``, with ``response_metadata`` as the answer.

    The input includes what was cached and written, the output includes reasoning. langchain-openai puts the service
    tier before the names of the details (``priority_cache_read``), langchain-anthropic moves what was written to
    ``ephemeral_5m_input_tokens`` and ``ephemeral_1h_input_tokens``.
    """
    usage, answer, counts = said.usage, said.answer, said.counts
    given, spent = field(usage, "input_token_details") or {}, field(usage, "output_token_details") or {}
    if not given and not spent and not answer:
        whole = {"input_tokens": counts.of(usage, "input_tokens"), "output_tokens": counts.of(usage, "output_tokens")}
        return made(counts, **whole)
    named = _named_tier(given, spent)
    hour = counts.of(given, "ephemeral_1h_input_tokens")
    written = max(_tiered(given, "cache_creation", named, counts) - hour, counts.of(given, "ephemeral_5m_input_tokens"))
    reported = field(answer, "usage")
    return made(
        counts,
        named or tier_of(field(answer, "service_tier"), field(reported, "service_tier")),
        input_tokens=counts.of(usage, "input_tokens"),
        cached_input_tokens=_tiered(given, "cache_read", named, counts),
        cache_write_tokens=written,
        cache_write_1h_tokens=hour,
        output_tokens=counts.of(usage, "output_tokens"),
        reasoning_tokens=_tiered(spent, "reasoning", named, counts),
        input_audio_tokens=counts.of(given, "audio"),
        output_audio_tokens=counts.of(spent, "audio"),
        input_image_tokens=counts.of(given, "image"),
        output_image_tokens=counts.of(spent, "image"),
        searches=_searches(reported, None, answer, counts) or _groundings(answer),
    )


def plain(said: Said) -> Usage | None:
    """Ollama's counts on the answer itself, and Cohere's billed units."""
    usage, counts = said.usage, said.counts
    return made(
        counts,
        input_tokens=counts.of(usage, "prompt_eval_count", "input_tokens"),
        output_tokens=counts.of(usage, "eval_count", "output_tokens"),
    )


def timed(said: Said) -> Usage | None:
    """OpenAI's transcriptions that are billed by their length."""
    usage, counts = said.usage, said.counts
    return made(counts, input_ms=_seconds(usage, counts))


def pictured(said: Said) -> Usage | None:
    """Answers that bring images and no counts."""
    return made(said.counts, images=said.usage)


def pictures(answer: Any) -> int:
    """How many images an answer brings."""
    return sum(first(item, "url", "b64_json") is not None for item in items(field(answer, "data")))


def _beside(usage: Any, provider: str | None, prompt: int, output: int, reasoning: int, counts: Counts) -> int:
    """Reasoning tokens that are not in the output yet."""
    total = field(usage, "total_tokens")
    known = provider in _REASONS_BESIDE
    if provider == "perplexity" or field(usage, "citation_tokens") is not None:
        return reasoning
    if type(total) is int and total == prompt + output + reasoning:
        counts.exact = counts.exact and known
        return reasoning
    return reasoning if known and reasoning > output and not total else 0


def _written(usage: Any, given: Any, counts: Counts) -> dict[str, int]:
    """What was written to a cache, for 5 minutes and for an hour."""
    written = max(
        counts.of(usage, "cache_creation_input_tokens"),
        counts.of(given, "cache_creation_tokens", "cache_creation_input_tokens", "cache_write_tokens"),
    )
    parts = first(usage, "cache_creation") or field(given, "cache_creation_token_details")
    hour = counts.of(parts, "ephemeral_1h_input_tokens")
    five = max(written - hour, counts.of(parts, "ephemeral_5m_input_tokens"))
    return {"cache_write_tokens": five, "cache_write_1h_tokens": hour}


def _sensed(heard: tuple[int, int], seen: tuple[int, int]) -> dict[str, int]:
    """Sound and images in the prompt, and how much of them was read from a cache."""
    return {
        "input_audio_tokens": max(heard[0] - heard[1], 0),
        "cached_audio_tokens": heard[1],
        "input_image_tokens": max(seen[0] - seen[1], 0),
        "cached_image_tokens": seen[1],
    }


def _seconds(usage: Any, counts: Counts) -> int:
    seconds = first(usage, "prompt_audio_seconds", "seconds")
    if isinstance(seconds, float) and 0 <= seconds < 10**9:
        return -(-int(seconds * 1_000_000) // 1000)
    return counts.whole(seconds) * 1000 if isinstance(seconds, int) else 0


def _searches(usage: Any, given: Any, answer: Any, counts: Counts) -> int:
    """Web searches: those reported, else those that the answer shows."""
    reported = max(
        counts.of(field(usage, "server_tool_use"), "web_search_requests"),
        counts.of(given, "web_search_requests"),
        counts.of(usage, "num_search_queries", "num_sources_used"),
    )
    if not reported and field(usage, "search_context_size") is not None:
        return 1  # Perplexity bills each request for its search (Perplexity, "Pricing")
    return reported or _shown_searches(answer)


def _shown_searches(answer: Any) -> int:
    """The search calls of a Responses answer, or one for a chat that cites the web."""
    if not answer:
        return 0
    calls = [item for item in items(field(answer, "output")) if field(item, "type") == "web_search_call"]
    if calls:
        return sum(field(field(call, "action"), "type") in (None, "search") for call in calls)
    return int(
        any(
            field(mark, "type") == "url_citation"
            for choice in items(field(answer, "choices"))
            for mark in items(field(field(choice, "message"), "annotations"))
        )
    )


def _tools(answer: Any, counts: Counts) -> dict[str, int]:
    """Searches of vector stores, and containers, in a Responses answer.

    A container that an earlier answer began is billed once, and no answer says which it is: the count is not exact.
    """
    found = items(field(answer, "output")) if answer else ()
    if not found:
        return {}
    ran = {str(field(item, "container_id")) for item in found if field(item, "type") == "code_interpreter_call"}
    counts.exact = counts.exact and not ran
    return {"file_searches": sum(field(item, "type") == "file_search_call" for item in found), "containers": len(ran)}


def _groundings(answer: Any) -> int:
    """Google searches: Gemini 3 and later bill each query, earlier ones each grounded answer ("Grounding")."""
    if not answer:
        return 0
    found = [
        len(items(first(place, "webSearchQueries", "web_search_queries")))
        for candidate in (*items(field(answer, "candidates")), answer)
        if (place := first(candidate, "groundingMetadata", "grounding_metadata")) is not None
    ]
    model = str(first(answer, "modelVersion", "model_version", "model_name") or "")
    by_answer = model.startswith(("gemini-1", "gemini-2"))
    return sum(min(n, 1) for n in found) if by_answer else sum(found)


def _modality(details: Any, name: str, counts: Counts) -> int:
    if details is None:
        return 0
    found = [part for part in counts.listed(details) if str(field(part, "modality")).rpartition(".")[2].upper() == name]
    return sum(counts.of(part, "tokenCount", "token_count") for part in found)


def _tiered(details: Any, name: str, tier: str | None, counts: Counts) -> int:
    return counts.of(details, name) + (counts.of(details, f"{tier}_{name}") if tier else 0)


def _named_tier(*details: Any) -> str | None:
    """The service tier that the names of the details begin with."""
    for tier in _TIERS:
        for detail in details:
            if isinstance(detail, Mapping) and any(isinstance(key, str) and key.startswith(tier) for key in detail):
                return tier
    return None


def _text(value: Any) -> str | None:
    """Text, also of an enum."""
    found = getattr(value, "value", value)
    return found if isinstance(found, str) else None
