"""The ledger against the provider's own books: `reconcile`, and the `Books` that it reads.

`open_books` names them by a word or a path. Not imported by the core; it needs a ledger.
"""

from llm_budget_hooks.reconcile.booking import book
from llm_budget_hooks.reconcile.books import Billed, Books, BooksUnavailable
from llm_budget_hooks.reconcile.comparison import Line, Reconciliation, reconcile
from llm_budget_hooks.reconcile.exported import ExportedBooks
from llm_budget_hooks.reconcile.sources import AnthropicBooks, LiteLLMBooks, OpenAIBooks, open_books

__all__ = [
    "AnthropicBooks",
    "Billed",
    "Books",
    "BooksUnavailable",
    "ExportedBooks",
    "Line",
    "LiteLLMBooks",
    "OpenAIBooks",
    "Reconciliation",
    "book",
    "open_books",
    "reconcile",
]
