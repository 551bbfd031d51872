"""``with_retry`` ends at a refusal instead of sleeping and asking for the same again.

Its default retries every exception, with seconds of backoff. No kind of exception that `except BudgetExceeded`
catches can opt out of that, so the conditions for stopping and waiting are narrowed where `RunnableRetry` makes them.
Nothing else changes: other exceptions are retried as before, and so is a refusal that is merely busy.

Batches with retries repeat the refused inputs without a pause, and are refused again: if they stopped early,
LangChain would give an input that was refused the answer of another one.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from langchain_core.runnables import retry
from tenacity import RetryCallState, stop_any, stop_never, wait_none
from tenacity.stop import stop_base
from tenacity.wait import wait_base
from typing_extensions import override

from llm_budget_hooks.langchain.refusal import BudgetRefused

_MADE_IN = "_kwargs_retrying"
_NARROWED = "_llm_budget_hooks_narrowed"


def _refused_for_good(state: RetryCallState) -> bool:
    """Whether an attempt ended with a refusal that the next one would meet again."""
    outcome = state.outcome
    error = outcome.exception() if outcome is not None and outcome.failed else None
    return isinstance(error, BudgetRefused) and not error.busy


class StopWhenRefused(stop_base):
    """Stops the retries of a single input at a refusal. Only those raise what the last attempt raised."""

    @override
    def __call__(self, retry_state: RetryCallState) -> bool:
        return bool(retry_state.retry_object.reraise) and _refused_for_good(retry_state)


class WaitUnlessRefused(wait_base):
    """Waits as it was told to, but for nothing after a refusal.

    Args:
        otherwise: how to wait after all else.
    """

    def __init__(self, otherwise: Any) -> None:
        self._otherwise = otherwise

    @override
    def __call__(self, retry_state: RetryCallState) -> float:
        return 0.0 if _refused_for_good(retry_state) else float(self._otherwise(retry_state))


def stop_retries() -> None:
    """Let every `with_retry` of this process end at a refusal; once is enough.

    Where this version of LangChain has no place for it, refusals are retried, and refused each time.
    """
    made = vars(retry.RunnableRetry).get(_MADE_IN)
    if not isinstance(made, property) or made.fget is None or hasattr(made.fget, _NARROWED):
        return
    inner = made.fget

    @wraps(inner)
    def narrowed(runnable: Any) -> dict[str, Any]:
        given: dict[str, Any] = inner(runnable)
        stop = stop_any(given.get("stop", stop_never), StopWhenRefused())
        return {**given, "stop": stop, "wait": WaitUnlessRefused(given.get("wait", wait_none()))}

    setattr(narrowed, _NARROWED, True)
    setattr(retry.RunnableRetry, _MADE_IN, property(narrowed))
