"""A ledger with calls in it, and books as a list."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from llm_budget_hooks import BudgetEngine, Call, Usage
from llm_budget_hooks.reconcile import Billed, Reconciliation, reconcile

DAY, NEXT = date(2026, 11, 1), date(2026, 11, 2)
NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)


class Kept:
    """A ledger, and calls into it."""

    def __init__(self, folder: Path) -> None:
        self.now = NOON
        self.engine = BudgetEngine.open(
            "memory://", {}, clock=lambda: self.now, ledger=f"sqlite:///{folder / 'ledger.db'}"
        )

    def call(self, model: str, cost: str | None, inputs: int = 1000, outputs: int = 100, cached: int = 0) -> None:
        held = self.engine.reserve(Call(model=model, tenant="acme", amount=cost or "0.50"))
        used = Usage(input_tokens=inputs, output_tokens=outputs, cached_input_tokens=cached)
        self.engine.settle(held, **({"cost": cost, "usage": used} if cost else {}))

    def against(self, books: Any, **more: Any) -> Reconciliation:
        self.engine.flush()
        more.setdefault("now", NOON + timedelta(days=10))
        return reconcile(self.engine.ledger, books, more.pop("since", DAY), more.pop("until", NEXT), **more)


class Written:
    """Books as a list of lines."""

    def __init__(self, *lines: Billed, provider: str | None = None) -> None:
        self.provider = provider
        self._lines = lines

    def lines(self, since: date, until: date) -> Iterable[Billed]:
        return [line for line in self._lines if since <= line.day < until]


def found(result: Reconciliation) -> list[tuple[Any, ...]]:
    return [(line.model, line.ledger, line.billed, line.flagged) for line in result.lines]
