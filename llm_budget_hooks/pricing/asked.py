"""What a request is priced as, from the names and numbers that it is asked with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any, Final

from llm_budget_hooks.errors import PriceUnknown
from llm_budget_hooks.models import Usage
from llm_budget_hooks.pricing.book import PriceBook

_ENDLESS: Final = 10**12
_NAMES: Final = ("model", "custom_llm_provider", "base_model")
_SAMPLE: Final = Usage(input_tokens=1000, output_tokens=1000)


def priced_name(prices: PriceBook, asked: Mapping[str, Any]) -> str:
    """The model's name as the price book knows it: as asked for, with its provider, else the deployment's base.

    Of a name that is asked for and one that is put into the body as it is, the dearer one: not every provider's
    request takes the second.
    """
    named, extra = _named(prices, asked), asked.get("extra_body")
    other = extra.get("model") if isinstance(extra, Mapping) else None
    if not isinstance(other, str) or not other:
        return named
    return max(named, _named(prices, {**asked, "model": other}), key=lambda name: sample_nusd(prices, name) or 0)


def _named(prices: PriceBook, asked: Mapping[str, Any]) -> str:
    model = str(asked.get("model") or "")
    provider = asked.get("custom_llm_provider")
    named = f"{provider}/{model}" if isinstance(provider, str) and not model.startswith(f"{provider}/") else model
    facts = asked.get("model_info")
    base = asked.get("base_model") or (facts.get("base_model") if isinstance(facts, Mapping) else None)
    if not isinstance(base, str) or sample_nusd(prices, named) is not None:
        return named or "unknown"
    return base if sample_nusd(prices, base) is not None else named


def deployed(deployment: Mapping[str, Any], asked: Mapping[str, Any], bounds: Sequence[str]) -> dict[str, Any]:
    """A request as a deployment of a LiteLLM Router makes it: with its names, and its bounds where none is asked for.

    Args:
        deployment: an entry of the Router's list of models.
        asked: the request.
        bounds: the names of the output's bounds.
    """
    params = deployment["litellm_params"]
    names = {name: params.get(name) or None for name in _NAMES}
    given = {name: params[name] for name in bounds if params.get(name)}
    return {**given, **asked, **names, "model_info": deployment.get("model_info") or {}}


def sample_nusd(prices: PriceBook, model: str) -> int | None:
    """What tells a dear model from a cheap one: the price of a call of a thousand tokens each way; None for none."""
    try:
        return prices.price(model).cost_nusd(_SAMPLE)
    except PriceUnknown:
        return None


def number(count: Any) -> int:
    """How many a request asks for; one where that is no number. Servers read digits and whole fractions as well."""
    if type(count) is int:
        return max(count, 1)
    try:
        return max(ceil(float(count)), 1)
    except OverflowError:
        return _ENDLESS
    except (TypeError, ValueError):
        return 1
