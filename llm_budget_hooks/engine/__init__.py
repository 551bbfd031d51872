"""The engine: planner, store and observers together."""

from llm_budget_hooks.engine.engine import BudgetEngine
from llm_budget_hooks.engine.reservation import Reservation
from llm_budget_hooks.engine.utterance import Utterance

__all__ = ["BudgetEngine", "Reservation", "Utterance"]
