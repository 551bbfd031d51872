"""What the page shows, read from an engine and its ledger; what could not be read is None."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from llm_budget_hooks.admin.overview import Overview, overview, unless_away
from llm_budget_hooks.dashboard.spend import Spend, SpendReader
from llm_budget_hooks.engine import BudgetEngine
from llm_budget_hooks.ledger import Ledger
from llm_budget_hooks.models.trail import Event, Refusal

_ROWS: Final = 20


@dataclass(frozen=True)
class Seen:
    """Everything on the page.

    Attributes:
        board: rules, balances, switches and the month.
        user: whose balances are shown beside the tenant's.
        spend: what was spent, and on which answers; None without a ledger.
        refusals, events: the latest.
    """

    board: Overview
    user: str | None
    spend: Spend | None = None
    refusals: list[Refusal] | None = None
    events: list[Event] | None = None

    @property
    def most(self) -> Decimal:
        """The most expensive day."""
        days = self.spend.days if self.spend is not None else None
        return max((day.cost for day in days or ()), default=Decimal(0))


def seen(engine: BudgetEngine, tenant: str | None, user: str | None, spends: SpendReader) -> Seen:
    """Read the page's numbers.

    Args:
        engine: whose.
        tenant: None: everybody together.
        user: of the tenant.
        spends: reads what was spent.
    """
    board = overview(engine, tenant, user, spent=False)
    ledger: Ledger | None = engine.ledger
    if ledger is None:
        return Seen(board, user)
    spend = spends.of(ledger, board.tenant, user, board.now)
    who: dict[str, Any] = {"tenant": board.tenant, "user": user}
    return Seen(
        board.model_copy(update=dict(spend.month)),
        user,
        spend,
        unless_away(lambda: [*ledger.refusals(limit=_ROWS, **who).items]),
        unless_away(lambda: [*ledger.events(tenant=board.tenant, limit=_ROWS).items]),
    )
