"""The refusal as LiteLLM must see it, so that it is neither retried nor cools a deployment down."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Self

from litellm.exceptions import BudgetExceededError

from llm_budget_hooks.errors import BudgetExceeded, ConfigurationError, PriceUnknown, StoreUnavailable


class BudgetRefused(BudgetExceeded, BudgetExceededError, ImportError):
    """A refusal below LiteLLM: both a `BudgetExceeded` and a `litellm.BudgetExceededError`.

    LiteLLM retries everything but an `ImportError`, which is why it is one. Its status is 422 whatever
    ``litellm.budget_exceeded_status_code`` says: a 429 below the Router cools deployments down for everybody.

    Attributes:
        status_code: 422.
        current_cost: what is spent, for code that knows LiteLLM's error.
        max_budget: the limit, likewise.
    """

    @classmethod
    def _rebuild(cls, message: str, facts: Mapping[str, Any]) -> Self:
        made = super()._rebuild(message, facts)
        made.status_code = 422
        made.current_cost = float(made.spent or 0)
        made.max_budget = float(made.limit or 0)
        made.message = message
        made.llm_provider = ""
        made.entity_type = made.scope
        made.entity_id = None
        made.category = "litellm_rate_limit"
        made.rate_limit_type = "budget"
        return made

    def __str__(self) -> str:
        return str(self.args[0])


class StoreRefused(BudgetRefused, StoreUnavailable):
    """`StoreUnavailable` below LiteLLM."""


class PriceRefused(BudgetRefused, PriceUnknown):
    """`PriceUnknown` below LiteLLM."""


class TwoEngines(ConfigurationError, ImportError):
    """Two callbacks with two engines were registered when a call began, so nobody knows whose budgets count.

    Attributes:
        status_code: 422, so that LiteLLM's Router does not retry it.
    """

    status_code = 422


def refused(refusal: BudgetExceeded) -> BudgetRefused:
    """A refusal of the engine, made into the class that survives LiteLLM."""
    if isinstance(refusal, StoreUnavailable):
        return StoreRefused.of(refusal)
    if isinstance(refusal, PriceUnknown):
        return PriceRefused.of(refusal)
    return BudgetRefused.of(refusal)


class _NoTraceback(logging.Filter):
    """A refusal is an answer: LiteLLM's line about it stays, and its traceback does not."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
        if isinstance(error, BudgetExceeded) or isinstance(getattr(error, "refusal", None), BudgetExceeded):
            record.exc_info = record.exc_text = None
        return True


def log_without_tracebacks() -> None:
    """Keep tracebacks of refusals, and of nothing else, out of LiteLLM's own logs."""
    for name in ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy"):
        logging.getLogger(name).addFilter(_NoTraceback())
