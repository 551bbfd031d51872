"""LiteLLM: ``litellm.callbacks = [BudgetCallback(engine)]`` caps the SDK and the Router.

What is not promised: attempts that the provider's own client repeats inside one call (``max_retries``) are one
hold, since LiteLLM does not see them either; LiteLLM's OCR, video, search, realtime, batch, file and fine-tuning
interfaces are not capped, and the kill switch does not stop them.
"""

from llm_budget_hooks.litellm.budgeted import Budgeted, budgeted
from llm_budget_hooks.litellm.callback import BudgetCallback
from llm_budget_hooks.litellm.refusal import BudgetRefused

__all__ = ["BudgetCallback", "BudgetRefused", "Budgeted", "budgeted"]
