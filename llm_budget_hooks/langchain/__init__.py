"""LangChain and LangGraph: ``config={"callbacks": [BudgetCallbackHandler(engine)]}`` caps every model call of a run."""

from llm_budget_hooks.langchain.handler import BudgetCallbackHandler
from llm_budget_hooks.langchain.refusal import BudgetRefused

__all__ = ["BudgetCallbackHandler", "BudgetRefused"]
