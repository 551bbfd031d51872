"""The quick way of reading a usage: for the shapes that nearly all answers have, with the counts that nearly all have.

It gives exactly what the long way gives, or says that it cannot: it takes an answer only if it knows every name in it
whose value could change the result. Whoever teaches the long way a new name need not change anything here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

from pydantic import BaseModel

from llm_budget_hooks.models import Usage
from llm_budget_hooks.models.calls import MAX_TOKENS
from llm_budget_hooks.usage.fields import field, items, tier_of

_NOTHING: Final[dict[str, Any]] = {}
_SUMMABLE: Final = MAX_TOKENS // 8
"""Counts up to this add up to one that can be."""
_RESPONSE: Final = frozenset(
    {"input_tokens", "output_tokens", "total_tokens", "input_tokens_details", "output_tokens_details"}
)
_FREE: Final = frozenset({"message", "reasoning", "function_call", "custom_tool_call", "mcp_call", "mcp_list_tools"})
"""What a Responses answer may bring that is not billed beside its tokens."""
_CHAT: Final = frozenset(
    {
        "prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details", "completion_tokens_details",
        "cache_creation_input_tokens", "cache_read_input_tokens",
    }
)  # fmt: skip
_CHAT_ZEROS: Final = frozenset({"prompt_cache_hit_tokens", "server_tool_use"})
_MESSAGES: Final = frozenset(
    {
        "input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "cache_creation",
        "server_tool_use", "service_tier", "inference_geo",
    }
)  # fmt: skip
_WRITTEN: Final = ("ephemeral_5m_input_tokens", "ephemeral_1h_input_tokens")
_METADATA: Final = frozenset(
    {"input_tokens", "output_tokens", "total_tokens", "input_token_details", "output_token_details"}
)
_INPUT_ZEROS: Final = frozenset({"audio", "image", "cache_creation"})
_OUTPUT_ZEROS: Final = frozenset({"audio", "image"})
_UNREAD: Final = frozenset(
    {"text_tokens", "accepted_prediction_tokens", "rejected_prediction_tokens", "video_tokens", "initial_prompt_tokens"}
)
"""Details of OpenAI's and LiteLLM's that the long way does not read."""
_PROMPT: Final = _UNREAD | {"cached_tokens", "cache_creation_tokens", "cache_creation_token_details"}
_MORE_ZEROS: Final = frozenset(
    {"audio_tokens", "image_tokens", "cache_write_tokens", "cache_creation_tokens", "web_search_requests"}
)
_FACTS: Final = frozenset(
    {
        "finish_reason", "model_name", "model_provider", "system_fingerprint", "id", "service_tier", "logprobs",
        "token_usage", "created",
    }
)  # fmt: skip


def opened(value: Any) -> Any:
    """A pydantic object as the mapping of its fields: one that it lacks takes a microsecond to be missed."""
    kind: Any = type(value)
    if kind is dict or not _has_fields(kind):
        return value
    extra = value.__pydantic_extra__
    return {**value.__dict__, **extra} if extra else value.__dict__


@lru_cache(maxsize=1024)
def _has_fields(kind: type) -> bool:
    """Whether objects of a class are pydantic's, which it takes pydantic's own check some microseconds to tell."""
    return issubclass(kind, BaseModel)


def quick(answer: Any, provider: str | None) -> Usage | None:
    """The usage of an ordinary chat or of LangChain's ``usage_metadata``; None if only the long way can tell.

    Args:
        answer: an answer as a mapping.
        provider: who answered.
    """
    if type(answer) is not dict or answer.get("usageMetadata") is not None:
        return None
    metadata = answer.get("usage_metadata")
    if metadata is not None:
        return _langchain(metadata, answer.get("response_metadata"))
    usage = opened(answer.get("usage"))
    if type(usage) is not dict or provider is not None or answer.get("data") is not None:
        return None
    for choice in items(answer.get("choices")):
        if _cites(choice):
            return None
    if "output" in answer and not all(field(opened(item), "type") in _FREE for item in items(answer["output"])):
        return None
    if "input_tokens" not in usage:
        return _chat(usage, answer.get("service_tier"))
    return _messages(usage) if usage.keys() <= _MESSAGES else _response(usage, answer.get("service_tier"))


def _messages(usage: dict[str, Any]) -> Usage | None:
    """Anthropic's messages, told from others by the caches that they count beside the input."""
    get: Callable[[str], Any] = usage.get
    read, written, parts = get("cache_read_input_tokens"), get("cache_creation_input_tokens"), get("cache_creation")
    if read is None and written is None and parts is None:
        return None
    parts, tools = opened(parts) or _NOTHING, opened(get("server_tool_use")) or _NOTHING
    if type(parts) is not dict or type(tools) is not dict:
        return None
    found = (read, written, *[parts.get(name) for name in _WRITTEN], tools.get("web_search_requests"))
    read, written, five, hour, searches = [0 if count is None else count for count in found]
    counts = (get("input_tokens"), get("output_tokens"), read, written, five, hour, searches)
    if not all(type(count) is int and 0 <= count <= _SUMMABLE for count in counts):
        return None
    five = max(written - hour, five)
    prompt = counts[0] + read + five + hour
    if not (prompt or counts[1] or searches):
        return None
    return Usage(
        input_tokens=prompt,
        cached_input_tokens=read,
        cache_write_tokens=five,
        cache_write_1h_tokens=hour,
        output_tokens=counts[1],
        searches=searches,
        service_tier=tier_of(get("service_tier")),
    )


def _chat(usage: dict[str, Any], tier: Any) -> Usage | None:
    get, given = usage.get, opened(usage.get("prompt_tokens_details")) or _NOTHING
    if type(given) is not dict or not (_only(usage, _CHAT, _CHAT_ZEROS) and _only(given, _PROMPT, _MORE_ZEROS)):
        return None
    parts = opened(given.get("cache_creation_token_details")) or _NOTHING
    if type(parts) is not dict:
        return None
    prompt, output = get("prompt_tokens"), get("completion_tokens")
    reasoning = _detail(get("completion_tokens_details"), "reasoning_tokens", _MORE_ZEROS)
    counts: list[Any] = [
        given.get("cached_tokens"), get("cache_read_input_tokens"), get("cache_creation_input_tokens"),
        given.get("cache_creation_tokens"), parts.get(_WRITTEN[0]), parts.get(_WRITTEN[1]),
    ]  # fmt: skip
    for at, count in enumerate(counts):
        if count is None:
            counts[at] = 0
        elif type(count) is not int or not 0 <= count <= _SUMMABLE:
            return None
    cached, read, written, kept, five, hour = counts
    five = max(written - hour, kept - hour, five)
    made = _made(prompt, max(cached, read), output, reasoning, tier, five, hour)
    return None if made is not None and reasoning and get("total_tokens") != made.total_tokens else made


def _only(found: dict[str, Any], read: frozenset[str], zeros: frozenset[str]) -> bool:
    """Whether a mapping has nothing but what is read here, and zeros."""
    for name, value in found.items():
        if name not in read and not (name in zeros and (value is None or _is_nothing(value))):
            return False
    return True


def _response(usage: dict[str, Any], tier: Any) -> Usage | None:
    """OpenAI's Responses."""
    if not usage.keys() <= _RESPONSE or usage.get("input_tokens_details") is None:
        return None
    cached = _detail(usage["input_tokens_details"], "cached_tokens", _MORE_ZEROS)
    reasoning = _detail(usage.get("output_tokens_details"), "reasoning_tokens", _MORE_ZEROS)
    made = _made(usage["input_tokens"], cached, usage.get("output_tokens"), reasoning, tier)
    return None if made is not None and reasoning and usage.get("total_tokens") != made.total_tokens else made


def _langchain(metadata: Any, facts: Any) -> Usage | None:
    if type(metadata) is not dict or not metadata.keys() <= _METADATA:
        return None
    if facts and (type(facts) is not dict or not facts.keys() <= _FACTS):
        return None
    cached = _detail(metadata.get("input_token_details"), "cache_read", _INPUT_ZEROS)
    reasoning = _detail(metadata.get("output_token_details"), "reasoning", _OUTPUT_ZEROS)
    tier = facts.get("service_tier") if facts else None
    return _made(metadata.get("input_tokens"), cached, metadata.get("output_tokens"), reasoning, tier)


def _detail(details: Any, named: str, zeros: frozenset[str]) -> Any:
    """A count of the details, 0 without one; None if they say more."""
    if details is None:
        return 0
    found: Any = 0
    read = opened(details)
    if type(read) is not dict:
        return None
    for name, value in read.items():
        if name == named:
            found = 0 if value is None else value
        elif name not in _UNREAD and not (name in zeros and _is_nothing(value)):
            return None
    return found


def _is_nothing(value: Any) -> bool:
    return value is None or (type(value) is int and value == 0)


def _made(
    prompt: Any, cached: Any, output: Any, reasoning: Any, tier: Any, write: int = 0, write_1h: int = 0
) -> Usage | None:
    """The usage of counts that are all as they should be."""
    if not (type(prompt) is type(cached) is type(output) is type(reasoning) is int):
        return None
    if not (
        0 <= cached <= prompt - write - write_1h
        and prompt <= MAX_TOKENS
        and 0 <= reasoning <= output <= MAX_TOKENS
        and prompt + output
    ):
        return None
    return Usage(
        input_tokens=prompt,
        cached_input_tokens=cached,
        cache_write_tokens=write,
        cache_write_1h_tokens=write_1h,
        output_tokens=output,
        reasoning_tokens=reasoning,
        service_tier=tier_of(tier),
    )


def _cites(choice: Any) -> bool:
    """Whether the answer of a choice has marks, which may be those of a web search."""
    message = opened(field(opened(choice), "message"))
    if message is None:
        return False
    return not isinstance(message, Mapping) or message.get("annotations") is not None
