"""The balances of an engine, its holds and kill switches, as they stand when a scrape or an export asks for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from llm_budget_hooks.engine.settings import Killed
from llm_budget_hooks.errors import StoreUnavailable
from llm_budget_hooks.keys import tenant_name
from llm_budget_hooks.models import BudgetStatus, Orphan, instant

NUMBERS: Final = ("limit", "spent", "reserved", "available")


class Readable(Protocol):
    """What has balances: a `BudgetEngine`."""

    def status(self, tenant: str | None = None, user: str | None = None) -> Sequence[BudgetStatus]:
        """The balances of all budgets that are about a tenant and a user."""

    def orphans(self) -> Sequence[Orphan]:
        """The holds that nobody has settled."""

    def kills(self) -> Sequence[Killed]:
        """The kill switches that are on."""

    def now_ms(self) -> int:
        """About what the store's clock shows."""


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
    for tenant in (None, *dict.fromkeys(map(tenant_name, tenants))):
        for line in engine.status(tenant=tenant):
            if tenant is None or line.scope != "global":
                yield from _samples(line, tenant or "")


class Holds(NamedTuple):
    """The holds that nobody has settled: how many, and the seconds since the first open one was taken."""

    open: int
    expired: int
    oldest_s: float


def holds(engine: Readable) -> Holds | None:
    """Open holds, and those of the last hour that expired and were charged; a thousand at most. None: not read."""
    try:
        found = engine.orphans()
    except StoreUnavailable:
        return None
    began = [one.created_at for one in found if one.status == "open"]
    oldest_s = (instant(engine.now_ms()) - min(began)).total_seconds() if began else 0.0
    return Holds(len(began), len(found) - len(began), max(oldest_s, 0.0))


def killed(engine: Readable) -> dict[str, int] | None:
    """How many kill switches are on, by their scope; None: not read."""
    try:
        found = engine.kills()
    except StoreUnavailable:
        return None
    wide = sum(not one.tenant for one in found)
    return {"global": wide, "tenant": len(found) - wide}


def _samples(line: BudgetStatus, tenant: str) -> Iterator[Sample]:
    for number in NUMBERS:
        value = getattr(line, number)
        shown = None if value is None else float(value)  # what a scrape and an export carry are doubles
        yield Sample(line.budget, line.scope, line.meter, tenant, number, shown)
