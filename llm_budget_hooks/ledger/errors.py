"""What a ledger raises."""

from __future__ import annotations

from llm_budget_hooks.errors import BudgetError


class LedgerUnavailable(BudgetError, ConnectionError):
    """The ledger could not be read or written. Nothing is lost: what was to be written is still in the outbox."""
