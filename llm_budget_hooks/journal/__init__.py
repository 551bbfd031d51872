"""The local journal: what was let through, and what could not be sent, while the store was away."""

from __future__ import annotations

from llm_budget_hooks.journal.journal import Journal, JournalError, default_path

__all__ = ["Journal", "JournalError", "default_path"]
