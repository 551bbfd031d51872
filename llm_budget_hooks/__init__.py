"""Decides before a model provider is called whether the call may be paid for, and books the true cost after."""

from llm_budget_hooks.engine import BudgetEngine, Reservation, Utterance
from llm_budget_hooks.errors import (
    AlreadyResolved,
    BudgetError,
    BudgetExceeded,
    ConfigurationError,
    PriceUnknown,
    ReservationConflict,
    StoreUnavailable,
)
from llm_budget_hooks.models import Budget, BudgetStatus, Call, Orphan, Outcome, Policy, Settlement, Usage

__version__ = "0.1.0"

__all__ = [
    "AlreadyResolved",
    "Budget",
    "BudgetEngine",
    "BudgetError",
    "BudgetExceeded",
    "BudgetStatus",
    "Call",
    "ConfigurationError",
    "Orphan",
    "Outcome",
    "Policy",
    "PriceUnknown",
    "Reservation",
    "ReservationConflict",
    "Settlement",
    "StoreUnavailable",
    "Usage",
    "Utterance",
]


def load_ipython_extension(shell: object) -> None:
    """For Jupyter's ``%load_ext llm_budget_hooks``, see `llm_budget_hooks.notebook`."""
    from llm_budget_hooks.notebook import load

    load(shell)  # type: ignore[arg-type]  # a shell, whose type is in a package that is optional
