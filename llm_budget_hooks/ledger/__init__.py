"""The ledger: every run, refusal, event and override, in SQL, and what can be read from it.

`Ledger.open` names a database, `Drain` fills it from the outbox of a store. Neither is imported by the core.
"""

from llm_budget_hooks.ledger.drain import Batch, Drain, Outbox
from llm_budget_hooks.ledger.errors import LedgerUnavailable
from llm_budget_hooks.ledger.ledger import Ledger
from llm_budget_hooks.ledger.pages import every
from llm_budget_hooks.ledger.reading import AnswerCost, Cost, Page
from llm_budget_hooks.ledger.shares import Share

__all__ = ["AnswerCost", "Batch", "Cost", "Drain", "Ledger", "LedgerUnavailable", "Outbox", "Page", "Share", "every"]
