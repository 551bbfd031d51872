"""`usage_from`: where the usage stands in an answer, and which shape it has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from pydantic import BaseModel

from llm_budget_hooks.models import Usage
from llm_budget_hooks.usage import shapes
from llm_budget_hooks.usage.fields import Counts, field, first
from llm_budget_hooks.usage.quick import opened, quick
from llm_budget_hooks.usage.shapes import Said

Reader = Callable[[Said], Usage | None]

_PROVIDERS: Final = {"x-ai": "xai", "x_ai": "xai"}
_INSIDE: Final = ("message", "response", "x_groq", "chunk")
_ANSWERS: Final = ("message", "response")
_DETAILS: Final = ("prompt_tokens_details", "input_tokens_details", "input_token_details")
_GEMINI: Final = ("promptTokenCount", "prompt_token_count", "totalTokenCount", "total_token_count")
_BEDROCK: Final = ("inputTokens", "inputTokenCount", "outputTokens", "outputTokenCount", "inputTextTokenCount")
_LANGCHAIN: Final = frozenset(
    {"cache_read", "cache_creation", "audio", "priority", "flex", "priority_cache_read", "flex_cache_read"}
)
_CACHES: Final = ("cache_read_input_tokens", "cache_creation_input_tokens", "cache_creation")


def usage_from(answer: Any, provider: str | None = None, *, partial: bool = False) -> Usage | None:
    """What an answer says was used; None if it says nothing, or nothing but zeros. Never raises.

    Args:
        answer: an answer, an event of a stream or a usage itself, as an object or a mapping.
        provider: who answered, as LiteLLM or LangChain calls it, where the caller knows it.
        partial: the answer is an event of a stream, in which counts may be missing.
    """
    if answer is None or isinstance(answer, str | bytes | int):
        return None
    try:
        answer = opened(answer)
        return quick(answer, provider) or _at_length(answer, provider, partial=partial)
    except Exception:  # noqa: BLE001 - somebody else's object can raise anything, and the call is paid for
        return None


def _at_length(answer: Any, provider: str | None, *, partial: bool) -> Usage | None:
    """Same as `usage_from`, by all that is known of all shapes."""
    found = _found(answer, 0)
    if found is None:
        return None
    usage, place, read = found
    return read(Said(_all_opened(usage), place, _PROVIDERS.get(provider or "", provider), Counts(partial=partial)))


def _all_opened(usage: Any) -> Any:
    """A usage and its details as mappings."""
    if not isinstance(usage, BaseModel):
        return usage
    return {name: opened(value) for name, value in opened(usage).items()}


def _found(answer: Any, depth: int) -> tuple[Any, Any, Reader] | None:
    """The usage in an answer, the answer that is about it, and the reader of its shape."""
    metadata = first(answer, "usage_metadata", "usageMetadata")
    if metadata is not None:
        if first(metadata, *_GEMINI) is not None:
            return metadata, answer, shapes.gemini
        return metadata, field(answer, "response_metadata"), shapes.langchain
    usage = opened(first(answer, "usage", "amazon-bedrock-invocationMetrics"))
    if usage is not None and not isinstance(usage, str | int):
        billed = field(usage, "billed_units")
        return (usage if billed is None else billed), answer, _shape(usage) or shapes.plain
    read_here = _shape(answer)
    if read_here is not None:
        return answer, None, read_here
    if pictures := shapes.pictures(answer):
        return pictures, answer, shapes.pictured
    return _inside(answer, depth)


def _inside(answer: Any, depth: int) -> tuple[Any, Any, Reader] | None:
    """What stands one level deeper: the first event of Anthropic, a Responses event, Bedrock's and Cohere's ends."""
    if depth > 1:
        return None
    for name in (*_INSIDE, "metadata", "meta"):
        inner = field(answer, name)
        if inner is not None and not isinstance(inner, str | int | list):
            found = _found(inner, depth + 1)
            if found is not None:
                return found
    billed = field(answer, "billed_units")
    return None if billed is None else (billed, answer, shapes.plain)


def _shape(usage: Any) -> Reader | None:
    """The reader for a usage, None if it is none."""
    if field(usage, "prompt_tokens") is not None or field(usage, "completion_tokens") is not None:
        return shapes.openai
    if first(usage, *_GEMINI) is not None:
        return shapes.gemini
    if field(usage, "input_tokens") is not None or field(usage, "output_tokens") is not None:
        return _of_inputs(usage)
    if first(usage, *_BEDROCK) is not None:
        return shapes.bedrock
    if first(usage, "prompt_eval_count", "eval_count") is not None:
        return shapes.plain
    if field(usage, "type") == "duration" or field(usage, "prompt_audio_seconds") is not None:
        return shapes.timed
    return None


def _of_inputs(usage: Any) -> Reader:
    """``input_tokens`` is OpenAI's whole prompt, LangChain's whole prompt, or Anthropic's fresh part."""
    details = first(usage, *_DETAILS)
    if isinstance(details, Mapping) and not _LANGCHAIN.isdisjoint(details):
        return shapes.langchain
    if details is None and any(field(usage, name) is not None for name in _CACHES):
        return shapes.anthropic
    return shapes.openai


def served_model(answer: Any) -> str | None:
    """The model that an answer says has served; None if it says none. Never raises."""
    try:
        return _served(opened(answer))
    except Exception:  # noqa: BLE001 - somebody else's object can raise anything, and the call is paid for
        return None


def _served(answer: Any) -> str | None:
    found = _name(first(answer, "model", "modelVersion", "model_version"))
    if found is None:
        found = _name(field(opened(field(answer, "response_metadata")), "model_name"))
    for place in _ANSWERS:
        if found is None:
            found = _name(field(opened(field(answer, place)), "model"))
    return found


def _name(value: Any) -> str | None:
    return value if isinstance(value, str) and value.strip() else None
