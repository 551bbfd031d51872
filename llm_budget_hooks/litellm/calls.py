"""From the arguments of a LiteLLM entry point to a `Call`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import litellm

from llm_budget_hooks.engine import BudgetEngine
from llm_budget_hooks.litellm.media import amount_of
from llm_budget_hooks.litellm.requests import PROXY_REQUEST, Request, sent, stated
from llm_budget_hooks.litellm.tokens import input_bound
from llm_budget_hooks.models import Call
from llm_budget_hooks.models.calls import SERVICE_TIERS
from llm_budget_hooks.pricing.asked import number, priced_name
from llm_budget_hooks.tokens import has_sound

_KEYS: Final = ("tenant", "user", "feature", "step", "utterance")
_NOTHING: Final[Mapping[str, Any]] = {}
_CHOICES: Final = ("best_of", "n")
_MARKED: Final = ("messages", "system", "tools")
BOUNDS: Final = ("max_completion_tokens", "max_tokens", "max_output_tokens")
_ALIASED: Final = frozenset({"completion", "acompletion"})  # where LiteLLM looks into its model_alias_map
_NO_OUTPUT: Final = frozenset({"embedding", "rerank", "moderation"})


def call_of(engine: BudgetEngine, entry: str, asked: Mapping[str, Any], request: Request | None = None) -> Call:
    """The call that a request makes.

    Args:
        engine: whose price book knows the model's names.
        entry: the entry point's name, such as ``acompletion``.
        asked: its arguments by name.
        request: what the attempts of the request share, if there are several.

    Raises:
        ConfigurationError: the identity in the metadata is no text.
    """
    if litellm.model_alias_map and entry in _ALIASED:
        asked = {**asked, "model": litellm.model_alias_map.get(str(asked.get("model")), asked.get("model"))}
    model = priced_name(engine.prices, asked)
    kind = entry.removeprefix("a") if entry not in ("anthropic_messages", "agenerate_content") else entry
    tiers = [tier.lower() for place in reversed(sent(asked)) if isinstance(tier := place.get("service_tier"), str)]
    return Call(
        model=model,
        input_tokens=input_bound(model, asked),
        max_output_tokens=0 if kind in _NO_OUTPUT else _output_bound(asked),
        amount=0 if kind == "moderation" and _is_free(asked) else amount_of(kind, model, asked, engine.prices),
        service_tier=next((tier for tier in tiers if tier in SERVICE_TIERS), None),
        writes_cache=writes_cache(asked),
        audio=_hears_or_speaks(asked),
        **identity_of(asked, request),
    )


def identity_of(asked: Mapping[str, Any], request: Request | None) -> dict[str, Any]:
    """Whose request it is: what a proxy authenticated, else the request's own metadata, else ``user=``."""
    proxied = PROXY_REQUEST.get()
    if proxied is not None:
        return {name: getattr(proxied, name) for name in _KEYS}
    metadata = stated(asked)
    named = {name: metadata.get(name) for name in _KEYS}
    if named["user"] is None and isinstance(asked.get("user"), str):
        named["user"] = asked["user"]
    if named["utterance"] is None and request is not None:
        named["utterance"] = request.utterance
    return named


def _output_bound(asked: Mapping[str, Any]) -> int | None:
    most = -1
    for place in sent(asked):
        for name in BOUNDS:
            bound = place.get(name)
            if type(bound) is int and bound > most:
                most = bound
    return None if most < 0 else most * answers_of(asked)


def answers_of(asked: Mapping[str, Any]) -> int:
    """How many answers a request asks for, each of which can be as long as its bound."""
    choices = 1
    for place in sent(asked):
        for name in _CHOICES:
            if place.get(name) is not None:
                choices = max(choices, number(place[name]))
    prompts = asked.get("prompt")
    several = len(prompts) if isinstance(prompts, list) and prompts and not isinstance(prompts[0], int) else 1
    return choices * several


def writes_cache(asked: Mapping[str, Any]) -> bool:
    """Whether a request marks a part of its prompt to be cached."""
    if asked.get("cache_control_injection_points") or asked.get("cache_control"):
        return True
    for name in _MARKED:
        place = asked.get(name)
        if isinstance(place, list):
            for item in place:
                if _marks(item):
                    return True
    return False


def _is_free(asked: Mapping[str, Any]) -> bool:
    """OpenAI bills nothing for its moderation models, of which it takes one where none is named."""
    return str(asked.get("model") or "omni-moderation").removeprefix("openai/").startswith(("omni-mod", "text-mod"))


def _hears_or_speaks(asked: Mapping[str, Any]) -> bool:
    """Whether a request has sound in it, or asks for some."""
    if asked.get("audio") or "audio" in (asked.get("modalities") or ()):
        return True
    messages = asked.get("messages") or asked.get("input")
    return isinstance(messages, list) and has_sound([_mapping(message).get("content") for message in messages])


def _marks(item: Any) -> bool:
    found = _mapping(item)
    parts = found.get("content")
    if isinstance(parts, list) and any("cache_control" in _mapping(part) for part in parts):
        return True
    return "cache_control" in found or "cache_control" in _mapping(found.get("function"))


def _mapping(value: Any) -> Mapping[str, Any]:
    if type(value) is dict:
        return value
    return value if value is not None and isinstance(value, Mapping) else _NOTHING


@lru_cache(maxsize=1024)
def streams_usage(model: str, provider: str | None) -> bool:
    """Whether the usage of a stream can be asked for."""
    try:
        known = litellm.get_supported_openai_params(model=model, custom_llm_provider=provider)
    except Exception:  # noqa: BLE001 - LiteLLM raises what it likes for names it does not know; then it is not asked for
        return False
    return "stream_options" in (known or ())
