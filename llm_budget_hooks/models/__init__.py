"""What people write and what they get back."""

from llm_budget_hooks.models.calls import Call, Usage
from llm_budget_hooks.models.policy import Budget, EstimateMode, Policy
from llm_budget_hooks.models.results import Basis, BudgetStatus, Orphan, Outcome, Settlement, SettlementStatus, instant

__all__ = [
    "Basis",
    "Budget",
    "BudgetStatus",
    "Call",
    "EstimateMode",
    "Orphan",
    "Outcome",
    "Policy",
    "Settlement",
    "SettlementStatus",
    "Usage",
    "instant",
]
