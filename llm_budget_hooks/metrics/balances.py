"""The balances of an engine as they stand when a scrape or an export asks for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from llm_budget_hooks.models import BudgetStatus

NUMBERS: Final = ("limit", "spent", "reserved", "available")


class Readable(Protocol):
    """What has balances: a `BudgetEngine`."""

    def status(self, tenant: str | None = None, user: str | None = None) -> Sequence[BudgetStatus]:
        """The balances of all budgets that are about a tenant and a user."""


class Sample(NamedTuple):
    """One balance: dollars for the meter ``usd``, else a count. A number that could not be read is None."""

    budget: str
    scope: str
    meter: str
    tenant: str
    number: str
    value: float | None


def samples(engine: Readable, tenants: Sequence[str] = ()) -> Iterator[Sample]:
    """The balances of the global budgets and of those of some tenants, none of them twice.

    Args:
        engine: whose balances.
        tenants: whose budgets are read beside the global ones.
    """
    for tenant in (None, *tenants):
        for line in engine.status(tenant=tenant):
            if tenant is None or line.scope != "global":
                yield from _samples(line, tenant or "")


def _samples(line: BudgetStatus, tenant: str) -> Iterator[Sample]:
    for number in NUMBERS:
        value = getattr(line, number)
        shown = None if value is None else float(value)  # what a scrape and an export carry are doubles
        yield Sample(line.budget, line.scope, line.meter, tenant, number, shown)
