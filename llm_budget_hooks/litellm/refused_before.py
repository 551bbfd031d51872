"""A refusal stays one: what LiteLLM tries after it, on other models too, is refused without asking again."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from llm_budget_hooks.engine import BudgetEngine
from llm_budget_hooks.litellm.calls import priced_name
from llm_budget_hooks.litellm.refusal import BudgetRefused

_REFUSED: Final = "_llm_budget_refused"
_FURTHER: Final = ("fallback_depth", "attempted_fallbacks", "attempted_retries")
_REMEMBERED: Final = 1024
_by_trace: OrderedDict[str, BudgetRefused] = OrderedDict()
_lock = threading.Lock()


@contextmanager
def remembered(asked: Mapping[str, Any]) -> Iterator[None]:
    """Keep a refusal that is raised inside for the further attempts of the same request."""
    try:
        yield
    except BudgetRefused as refusal:
        logged, trace = asked.get("litellm_logging_obj"), asked.get("litellm_trace_id")
        # A new one has no traceback, and so keeps none of the request's frames with its prompt alive.
        kept = type(refusal).of(refusal)
        if logged is not None:
            setattr(logged, _REFUSED, kept)
        if isinstance(trace, str):
            with _lock:
                _by_trace[trace] = kept
                while len(_by_trace) > _REMEMBERED:
                    _by_trace.popitem(last=False)
        raise


@contextmanager
def unchanged(asked: Mapping[str, Any]) -> Iterator[None]:
    """Raise the refusal itself where LiteLLM makes a plain Exception of it, as after ``fallbacks=``."""
    try:
        yield
    except Exception as error:
        refusal = getattr(asked.get("litellm_logging_obj"), _REFUSED, None)
        if refusal is None or isinstance(error, BudgetRefused):
            raise
        raise type(refusal).of(refusal) from None


def refuse_again(engine: BudgetEngine, asked: Mapping[str, Any]) -> None:
    """Refuse an attempt that follows on a refused one, unless the policy lets its cheaper model pass.

    Raises:
        BudgetRefused: with the facts of the first refusal.
    """
    refusal = getattr(asked.get("litellm_logging_obj"), _REFUSED, None) or _of_trace(asked)
    if refusal is not None and not (_lets_cheaper_pass(engine) and engine.is_cheap(priced_name(engine, asked))):
        raise type(refusal).of(refusal)


def _of_trace(asked: Mapping[str, Any]) -> BudgetRefused | None:
    trace = asked.get("litellm_trace_id")
    if not isinstance(trace, str) or not _by_trace:
        return None
    metadata = asked.get("metadata") or asked.get("litellm_metadata") or {}
    further = any(asked.get(name) or metadata.get(name) for name in _FURTHER)
    return _by_trace.get(trace) if further else None


def _lets_cheaper_pass(engine: BudgetEngine) -> bool:
    policy = engine.policy
    return policy.cutoff == "soft" or any(tenant.cutoff == "soft" for tenant in policy.tenants.values())
