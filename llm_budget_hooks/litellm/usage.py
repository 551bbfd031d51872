"""From the answers that LiteLLM gives to a `Usage`: one function for all their shapes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from llm_budget_hooks.models import Usage

_INPUT: Final = ("prompt_tokens", "input_tokens", "promptTokenCount")
_OUTPUT: Final = ("completion_tokens", "output_tokens", "candidatesTokenCount")
_INPUT_DETAILS: Final = ("prompt_tokens_details", "input_tokens_details", "input_token_details")
_OUTPUT_DETAILS: Final = ("completion_tokens_details", "output_tokens_details", "output_token_details")


def usage_of(response: Any) -> Usage | None:
    """What an answer says was used; None if it says nothing, or nothing but zeros.

    Args:
        response: an answer, or a final event, of any LiteLLM entry point.
    """
    usage = field(response, "usage") or field(response, "usageMetadata")
    if usage is None:
        return None
    return read_usage(usage, tier=field(response, "service_tier"))


def read_usage(usage: Any, *, tier: Any = None, exact: bool = True) -> Usage | None:
    """Same as `usage_of`, for the usage itself.

    Anthropic's own shape counts cached parts beside ``input_tokens``; all others count them in the prompt.
    """
    prompt, output = _first(usage, _INPUT), _first(usage, _OUTPUT)
    given, made = _first_object(usage, _INPUT_DETAILS), _first_object(usage, _OUTPUT_DETAILS)
    cached = max(_count(given, "cached_tokens"), _count(usage, "cache_read_input_tokens"))
    written = max(_count(usage, "cache_creation_input_tokens"), _count(given, "cache_creation_tokens"))
    hour = _hour_writes(usage, given)
    if field(usage, "prompt_tokens") is None and field(usage, "cache_read_input_tokens") is not None and given is None:
        prompt += cached + written
    counts = {
        "input_tokens": prompt,
        "cached_input_tokens": min(cached, prompt),
        "cache_write_tokens": max(written - hour, 0),
        "cache_write_1h_tokens": hour,
        "output_tokens": output,
        "reasoning_tokens": min(_count(made, "reasoning_tokens"), output),
        "input_audio_tokens": _count(given, "audio_tokens"),
        "output_audio_tokens": _count(made, "audio_tokens"),
        "searches": _searches(usage, given),
    }
    if not any(counts.values()):
        return None
    named = tier if isinstance(tier, str) and tier not in ("default", "auto") else None
    return Usage(**counts, service_tier=named, exact=exact)


def served_model(response: Any) -> str | None:
    """The model that an answer says has served."""
    model = field(response, "model")
    return model if isinstance(model, str) and model.strip() else None


def field(value: Any, name: str) -> Any:
    """A field of an answer that may be an object or a mapping."""
    if isinstance(value, Mapping):
        return value.get(name)
    return getattr(value, name, None)


def _count(value: Any, name: str) -> int:
    found = field(value, name)
    return found if isinstance(found, int) and not isinstance(found, bool) and found > 0 else 0


def _first(value: Any, names: tuple[str, ...]) -> int:
    return next((count for name in names if (count := _count(value, name))), 0)


def _first_object(value: Any, names: tuple[str, ...]) -> Any:
    return next((found for name in names if (found := field(value, name)) is not None), None)


def _hour_writes(usage: Any, given: Any) -> int:
    for place in (field(usage, "cache_creation"), field(given, "cache_creation_token_details")):
        if place is not None:
            return _count(place, "ephemeral_1h_input_tokens")
    return 0


def _searches(usage: Any, given: Any) -> int:
    return max(_count(field(usage, "server_tool_use"), "web_search_requests"), _count(given, "web_search_requests"))
