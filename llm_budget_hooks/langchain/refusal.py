"""The refusal as LangChain and LangGraph must see it, so that nothing retries, swallows or routes around it."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from langchain_core.exceptions import ModelError

from llm_budget_hooks.errors import BudgetExceeded, PriceUnknown, StoreUnavailable

if TYPE_CHECKING or find_spec("langgraph") is not None:
    from langgraph.errors import GraphBubbleUp
else:

    class GraphBubbleUp(Exception):
        """Stands in for langgraph's where langgraph is not installed."""


class BudgetRefused(BudgetExceeded, GraphBubbleUp, ModelError, RuntimeError):
    """A call or an answer was refused by a budget, inside LangChain.

    LangGraph lets it pass through tool nodes and lets siblings finish (`GraphBubbleUp`), the retry and fallback
    middleware do not repeat it (`ModelError` that is not retryable), and a node's ``RetryPolicy`` does not either
    (`RuntimeError`). ``with_retry`` retries every exception unless told otherwise, and ends at this one all the same,
    unless it is busy. ``with_fallbacks`` goes on to the next model, which is refused as `BudgetCallbackHandler` says.
    """


class StoreRefused(BudgetRefused, StoreUnavailable):
    """The store could not decide, and the policy refuses then."""


class PriceRefused(BudgetRefused, PriceUnknown):
    """The model has no price, and the policy refuses then."""


def refused(error: BaseException) -> BaseException:
    """The form of an error in which it may be raised through LangChain: a fresh instance each time."""
    if not isinstance(error, BudgetExceeded):
        return error
    if isinstance(error, StoreUnavailable):
        return StoreRefused.of(error)
    if isinstance(error, PriceUnknown):
        return PriceRefused.of(error)
    return BudgetRefused.of(error)


def sticks(error: BudgetExceeded) -> bool:
    """Whether what the refused root asks for next is refused without asking: see `BudgetCallbackHandler`."""
    if error.code in ("killed", "answer_estimate", "answer_actual"):
        return True
    return error.scope in ("user", "answer") and not error.busy
