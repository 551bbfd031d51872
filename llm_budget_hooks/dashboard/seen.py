"""What the page shows, read from an engine and its ledger; what could not be read is None."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from functools import partial
from typing import Any, Final

from llm_budget_hooks.admin.overview import Overview, overview, unless_away
from llm_budget_hooks.engine import BudgetEngine
from llm_budget_hooks.ledger import AnswerCost, Cost, Ledger
from llm_budget_hooks.ledger.reading import Dimension
from llm_budget_hooks.models.trail import Event, Refusal

DIMENSIONS: Final[tuple[Dimension, ...]] = ("feature", "step", "model", "user", "tenant")
_DAYS: Final = 30
_ROWS: Final = 20
_ANSWERS: Final = 8


@dataclass(frozen=True)
class Seen:
    """Everything on the page.

    Attributes:
        board: rules, balances, switches and the month.
        user: whose balances are shown beside the tenant's.
        ledger: whether there is one.
        tenants: those that have spent, to choose from.
        days: spend of the last 30 days.
        costs: spend of the same time by feature, step, model, user and tenant.
        refusals, answers, events: the latest.
    """

    board: Overview
    user: str | None
    ledger: bool
    tenants: list[str] = field(default_factory=list)
    days: list[Cost] | None = None
    costs: Mapping[str, list[Cost] | None] = field(default_factory=dict)
    refusals: list[Refusal] | None = None
    answers: list[AnswerCost] | None = None
    events: list[Event] | None = None

    @property
    def most(self) -> Decimal:
        """The most expensive day."""
        return max((day.cost for day in self.days or ()), default=Decimal(0))


def seen(engine: BudgetEngine, tenant: str | None, user: str | None) -> Seen:
    """Read the page's numbers.

    Args:
        engine: whose.
        tenant: None: everybody together.
        user: of the tenant.
    """
    board = overview(engine, tenant, user)
    ledger: Ledger | None = engine.ledger
    if ledger is None:
        return Seen(board, user, False)
    since = board.now - timedelta(days=_DAYS)
    who: dict[str, Any] = {"tenant": board.tenant, "user": user}
    read = unless_away
    costs: dict[str, list[Cost] | None] = {
        name: read(partial(ledger.cost_by, name, since=since, **who)) for name in DIMENSIONS
    }
    everybody = read(lambda: ledger.cost_by("tenant", since=since)) or []
    return Seen(
        board,
        user,
        True,
        [one.key for one in everybody],
        read(lambda: ledger.cost_by("day", since=since, **who)),
        costs,
        read(lambda: [*ledger.refusals(limit=_ROWS, **who).items]),
        read(lambda: [*ledger.answers(limit=_ANSWERS, **who).items]),
        read(lambda: [*ledger.events(tenant=board.tenant, limit=_ROWS).items]),
    )
