"""All rows of a reading, page after page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

from llm_budget_hooks.ledger.reading import Page

T = TypeVar("T")
_AT_ONCE: Final = 5000


def every(read: Callable[..., Page[T]], **wanted: Any) -> Iterator[T]:
    """All rows that a method such as `Ledger.runs` finds, the newest first."""
    page = read(**wanted, limit=_AT_ONCE)
    yield from page.items
    while page.after is not None:
        page = read(**wanted, limit=_AT_ONCE, after=page.after)
        yield from page.items
