"""Corrections for what a comparison has flagged: new rows in the ledger, and in the balances of now."""

from __future__ import annotations

from decimal import Decimal

from llm_budget_hooks.engine import BudgetEngine
from llm_budget_hooks.errors import ConfigurationError
from llm_budget_hooks.ledger import every
from llm_budget_hooks.money import parse_correction
from llm_budget_hooks.reconcile.comparison import Line, Reconciliation


def book(engine: BudgetEngine, found: Reconciliation, *, tenant: str | None = None, by: str = "") -> Decimal:
    """Book what each line owes through `BudgetEngine.adjust`, so that limits see it.

    The correction is in the windows of now, whatever day the line is of. It names its line, and the next comparison
    counts it there. Its id is that of the line's next correction, so it is booked once, also where several compare at
    the same time, the same findings are booked again, or the ledger cannot be written yet.

    Args:
        engine: with the ledger that was compared.
        found: what came of the comparison.
        tenant: whose budgets are corrected too, as a bill names nobody; None: only those of scope ``global``.
        by: who says so.

    Returns:
        what was booked, in dollars: less is given back than the differences say where less was spent, and nothing is
        booked that somebody else has booked meanwhile.

    Raises:
        ConfigurationError: the engine has no ledger, no budget of money is about these, the books say nothing or it
            cannot be told whose they are, or a difference is more than a correction can be; nothing is booked.
        StoreUnavailable: the store did not answer; what was booked until then is booked.
    """
    if engine.ledger is None:
        raise ConfigurationError("Corrections are rows of a ledger, and this engine has none.")
    if not any(line.meter == "usd" for line in engine.status(tenant=tenant)):
        raise ConfigurationError("No budget of money is global: name the tenant whose budgets are to be corrected.")
    if found.flagged and found.doubt:
        raise ConfigurationError(found.doubt)
    owed = sorted((line for line in found.flagged if line.owed), key=lambda line: -line.owed)
    for line in owed:
        _bookable(line)
    known = {row.id for row in every(engine.ledger.adjustments)}
    booked = Decimal(0)
    for line in owed:  # what is added first, as an account takes back what is in it at the most
        if line.id not in known:
            booked += engine.adjust(tenant=tenant, cost=line.owed, reason=line.reason, by=by, id=line.id)
    engine.flush()
    return booked


def _bookable(line: Line) -> None:
    try:
        parse_correction(line.owed)
    except ValueError as error:
        raise ConfigurationError(f"{line.day} {line.model}: {error}; nothing is booked") from None
