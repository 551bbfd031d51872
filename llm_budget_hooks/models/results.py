"""What the engine answers: `Settlement`, `Outcome`, `BudgetStatus`, `Orphan`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final, Literal

from llm_budget_hooks.errors import BudgetExceeded
from llm_budget_hooks.models.slots import quick_init
from llm_budget_hooks.money import to_decimal

Basis = Literal["amount", "bound", "p90", "step", "flat", "actual"]
SettlementStatus = Literal["settled", "released", "late", "already_settled", "already_released", "unknown"]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

LAST_MS: Final = 253_402_300_799_999
"""The last millisecond that a datetime in UTC can say, the end of the year 9999."""


def instant(at_ms: int) -> datetime:
    """An aware datetime in UTC from milliseconds since the epoch."""
    return _EPOCH + timedelta(milliseconds=at_ms)


@quick_init
@dataclass(frozen=True, slots=True)
class Settlement:
    """How a settle, a release or a charge ended.

    Attributes:
        id: of the hold.
        status: ``settled`` or ``released``: done now; ``late``: a final settle after a provisional end, the
            difference was booked; ``already_settled`` and ``already_released``: nothing was changed;
            ``unknown``: no such hold is known, or the store could not be reached and the settle is kept for later.
        cost_nusd: what was booked, in nano-dollars; None if nothing was or it is not known.
        estimate_nusd: what was held, in nano-dollars; None for a bare id.
        exact: False if the cost is a guess: an unknown outcome, or usage without a price or that is a guess.
        differs: a second final settle named another amount; nothing was changed.
        pending: the store could not be reached; the settle is sent again with a later operation.
    """

    id: str
    status: SettlementStatus
    cost_nusd: int | None = None
    estimate_nusd: int | None = None
    exact: bool = True
    differs: bool = False
    pending: bool = False

    @property
    def cost(self) -> Decimal | None:
        """What was booked, in dollars; None if nothing was or it is not known."""
        return None if self.cost_nusd is None else to_decimal(self.cost_nusd)

    @property
    def estimate(self) -> Decimal | None:
        """What was held, in dollars; None for a bare id."""
        return None if self.estimate_nusd is None else to_decimal(self.estimate_nusd)

    @property
    def overage(self) -> Decimal:
        """How far the cost was above the hold, in dollars."""
        if self.cost_nusd is None or self.estimate_nusd is None:
            return Decimal(0)
        return to_decimal(max(self.cost_nusd - self.estimate_nusd, 0))


@dataclass(frozen=True, slots=True)
class Outcome:
    """Whether a call would be let in; true in a condition if it would.

    Attributes:
        allowed: whether it would.
        refusal: the error that `reserve` would raise, else None.
        estimate: what would be held, in dollars.
    """

    allowed: bool
    refusal: BudgetExceeded | None = None
    estimate: Decimal | None = None

    def __bool__(self) -> bool:
        return self.allowed


@dataclass(frozen=True, slots=True)
class BudgetStatus:
    """One balance. Amounts are `Decimal` dollars for ``usd``, ints for other meters, None where unread.

    Attributes:
        budget: the budget's name.
        scope, meter, window: as in the policy.
        limit: as in the policy.
        spent: booked in this window.
        reserved: held by open calls.
        available: what a call may still ask for.
        resets_at: when the window ends; for a rolling window, when the oldest amount leaves it; None without an end.
    """

    budget: str
    scope: str
    meter: str
    window: str | None
    limit: Decimal | int
    spent: Decimal | int | None
    reserved: Decimal | int | None
    available: Decimal | int | None
    resets_at: datetime | None

    def _repr_html_(self) -> str:
        from llm_budget_hooks import html

        return html.balances([self])


@dataclass(frozen=True, slots=True)
class Orphan:
    """A hold that nobody has settled: open, or expired and charged what it held.

    Attributes:
        id: of the hold; ids that a caller chose are shown as their hash.
        status: ``open`` or ``expired``.
        model: what was called.
        amount: the dollars that it holds or was charged, the most in one account; None if it counts no money.
        created_at, expires_at: its times.
    """

    id: str
    status: Literal["open", "expired"]
    model: str
    amount: Decimal | None
    created_at: datetime
    expires_at: datetime
