"""From a request to a LiteLLM proxy to the `Call` that is held for it before it is routed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from llm_budget_hooks.engine import BudgetEngine
from llm_budget_hooks.litellm.calls import BOUNDS, call_of
from llm_budget_hooks.models import Call
from llm_budget_hooks.pricing.asked import deployed, sample_nusd

_PASSED: Final = frozenset({"pass_through_endpoint", "allm_passthrough_route"})
_SYNONYMS: Final = {"embeddings": "embedding", "audio_transcription": "transcription"}
_IN_PATH: Final = re.compile(r"/(?:models?|deployments)/([^/:]+)[/:]")
_FORMS: Final = re.compile(r"/(?:transcriptions|translations|edits|variations)/?$")
_OWN: Final = frozenset({"litellm_logging_obj", "metadata", "litellm_metadata", "proxy_server_request"})


def call_before_routing(engine: BudgetEngine, call_type: str, data: Mapping[str, Any], path: str) -> Call | None:
    """The dearest of the calls that routing may make of a request; None where that is not known, or it makes none.

    Args:
        engine: knows the prices.
        call_type: what the proxy calls the request.
        data: its body.
        path: the route that was asked for.
    """
    entry = _SYNONYMS.get(call_type, call_type)
    if call_type in _PASSED:
        model = _passed_model(data, path)
        return None if model is None else call_of(engine, entry, {**data, "model": model})
    calls = [call_of(engine, entry, asked) for asked in _deployed(data)]
    if not calls and (isinstance(data.get("model"), str) or entry == "moderation"):
        call = call_of(engine, entry, data)
        calls = [] if _rate(engine, call) is None else [call]
    return max(calls, key=lambda call: _rate(engine, call) or 0, default=None)


def covers(engine: BudgetEngine, held: Call, call: Call) -> bool:
    """Whether what is held for one call pays for another of the same request, on the same accounts.

    Args:
        engine: knows the prices and the budgets.
        held: the call that was held.
        call: the call that is made.
    """
    if held.model == call.model:
        return True
    held_rate, rate = _rate(engine, held), _rate(engine, call)
    if held_rate is None or rate is None or rate > held_rate:
        return False
    budgets = engine.policy.budgets_of(call.tenant or "default")
    return not any(budget.models for budget in budgets)


def _rate(engine: BudgetEngine, call: Call) -> int | None:
    """What tells a dear call from a cheap one; None if it has no price."""
    if call.amount_nusd is not None:
        return call.amount_nusd
    return sample_nusd(engine.prices, call.model)


def _deployed(data: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """What the request is with the names and the bounds of each deployment that may serve it."""
    from litellm.proxy import proxy_server

    router, model = getattr(proxy_server, "llm_router", None), data.get("model")
    if router is None or not isinstance(model, str):
        return
    for name in dict.fromkeys((model, *(part.strip() for part in model.split(",")))):
        for found in router.get_model_list(model_name=name) or ():
            yield deployed(found, data, BOUNDS)


def _passed_model(data: Mapping[str, Any], path: str) -> str | None:
    """The model of a request that is passed through: in its body or its path, else the path itself; None for none."""
    model = data.get("model")
    if isinstance(model, str) and model:
        return model
    found = _IN_PATH.search(path)
    if found is not None:
        return found.group(1)
    return path if set(data) - _OWN or _FORMS.search(path) else None
