"""What the page says of spend and answers, read from the ledger once for all who look at it.

That takes the longer, the more the ledger has. So a reading serves for twenty times as long as it took: whoever leaves
pages open keeps no more than a twentieth of a core busy with them. Balances, switches, refusals and events are not
kept; one that could not be made is not either.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from llm_budget_hooks.admin.overview import month, unless_away
from llm_budget_hooks.engine import BudgetEngine
from llm_budget_hooks.ledger import AnswerCost, Cost, Ledger
from llm_budget_hooks.ledger.reading import Dimension

DIMENSIONS: Final[tuple[Dimension, ...]] = ("feature", "step", "model", "user", "tenant")
_SERVES: Final = 20
_MOST: Final = 100
_DAYS: Final = 30
_ANSWERS: Final = 8
Who = tuple[str | None, str | None]


@dataclass(frozen=True)
class Spend:
    """What was spent, as of an instant; None is unread.

    Attributes:
        at: the instant.
        month: what the month has cost and where it is heading, as `Overview` has them.
        tenants: those that have spent, to choose from.
        days: spend of the last 30 days.
        costs: spend of the same time by feature, step, model, user and tenant.
        answers: the latest.
    """

    at: datetime
    month: Mapping[str, Any]
    tenants: list[str]
    days: list[Cost] | None
    costs: Mapping[Dimension, list[Cost]]
    answers: list[AnswerCost] | None


class SpendReader:
    """Reads what was spent, one reading at a time.

    Args:
        engine: whose.
    """

    def __init__(self, engine: BudgetEngine) -> None:
        self._engine = engine
        self._kept: dict[Who, tuple[Spend, float]] = {}
        self._reading = threading.Lock()

    def of(self, ledger: Ledger, tenant: str | None, user: str | None, now: datetime) -> Spend:
        """What everybody, a tenant or a user has spent.

        While somebody else is reading, it is what was read last.

        Args:
            ledger: the engine's.
            tenant, user: whose; None: of all.
            now: the engine's time.
        """
        kept, until_s = self._kept.get((tenant, user), (None, 0.0))
        if kept is not None and time.monotonic() < until_s:
            return kept
        if not self._reading.acquire(blocking=kept is None):
            assert kept is not None  # noqa: S101 - else it was waited for
            return kept
        try:
            kept, until_s = self._kept.get((tenant, user), (None, 0.0))
            if kept is not None and time.monotonic() < until_s:
                return kept
            return self._read(ledger, tenant, user, now)
        finally:
            self._reading.release()

    def _read(self, ledger: Ledger, tenant: str | None, user: str | None, now: datetime) -> Spend:
        began_s, since = time.monotonic(), now - timedelta(days=_DAYS)
        who: dict[str, Any] = {"tenant": tenant, "user": user}
        costs = unless_away(lambda: ledger.costs_by((*DIMENSIONS, "day"), since=since, **who))
        answers = unless_away(lambda: [*ledger.answers(limit=_ANSWERS, **who).items])
        found = Spend(
            now, month(self._engine, now, tenant), self._tenants(ledger, tenant, since, costs),
            None if costs is None else costs["day"], costs or {}, answers,
        )  # fmt: skip
        if len(self._kept) >= _MOST:
            self._kept.clear()
        read = costs is not None and answers is not None
        ended_s = time.monotonic()
        self._kept[tenant, user] = found, ended_s + (ended_s - began_s) * _SERVES if read else 0.0
        return found

    def _tenants(
        self, ledger: Ledger, tenant: str | None, since: datetime, costs: Mapping[Dimension, list[Cost]] | None
    ) -> list[str]:
        if tenant is None:
            return [one.key for one in (costs or {}).get("tenant", ())]
        everybody, _ = self._kept.get((None, None), (None, 0.0))
        if everybody is not None:
            return everybody.tenants
        return [one.key for one in unless_away(lambda: ledger.cost_by("tenant", since=since)) or ()]
