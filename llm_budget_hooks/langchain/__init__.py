"""LangChain and LangGraph: ``config={"callbacks": [BudgetCallbackHandler(engine)]}`` caps every model call of a run.

What is not promised: attempts that a provider's own client repeats inside one call (``max_retries``) are one hold,
since LangChain does not see them; a handler sees what LangChain's context reaches, which raw threads leave, see
`install` and `unseen_models`; a handler cannot lower ``max_tokens``, which `BudgetMiddleware` can. A retriever says
that it ran, not what it used, and a reranker says nothing: wrap the embeddings below (`BudgetedEmbeddings`), and
`BudgetEngine.charge` what else they cost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llm_budget_hooks.langchain.embeddings import BudgetedEmbeddings
from llm_budget_hooks.langchain.handler import BudgetCallbackHandler
from llm_budget_hooks.langchain.hooks import install, uninstall
from llm_budget_hooks.langchain.reach import unseen_models
from llm_budget_hooks.langchain.refusal import BudgetRefused

if TYPE_CHECKING:
    from llm_budget_hooks.langchain.middleware import BudgetMiddleware

__all__ = [
    "BudgetCallbackHandler",
    "BudgetMiddleware",
    "BudgetRefused",
    "BudgetedEmbeddings",
    "install",
    "uninstall",
    "unseen_models",
]


def __getattr__(name: str) -> Any:
    # Agents are in the extra `langchain`; all else here needs langchain-core alone.
    if name != "BudgetMiddleware":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from llm_budget_hooks.langchain.middleware import BudgetMiddleware

    return BudgetMiddleware
