"""What came of a replay: `WhatIf`, with who was refused, when, and what it saved."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Literal

from llm_budget_hooks import html
from llm_budget_hooks.whatif.chart import drawn

Dimension = Literal["budget", "tenant", "user", "feature", "step", "model", "code"]
_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Refused:
    """One call or answer that the policy would have turned away, and what came after it in the same answer.

    Attributes:
        at: when.
        code, stage, budget: as in `BudgetExceeded`.
        failed: the names of all budgets that said no.
        tenant, user: for whom; the user is empty for the tenant's anonymous one.
        utterance, feature, step, model: of the first call that was refused.
        calls: how many calls were not made: it, and those after it in the same answer.
        saved: what they have cost, in dollars.
    """

    at: datetime
    code: str
    stage: str
    budget: str
    failed: tuple[str, ...]
    tenant: str
    user: str
    utterance: str
    feature: str
    step: str
    model: str
    calls: int
    saved: Decimal


@dataclass(frozen=True, slots=True)
class Day:
    """One day of the policy's zone.

    Attributes:
        name: ``2026-11-30``.
        spent: what the calls that ended on it have cost, in dollars, as far as the span knows.
        saved: the part of it that the policy would have saved.
        refused: how many calls or answers it would have turned away.
    """

    name: str
    spent: Decimal
    saved: Decimal
    refused: int


@dataclass(frozen=True, slots=True)
class Share:
    """The refusals of one budget, tenant, user, feature, step, model or code.

    Attributes:
        key: its name; a user stands beside its tenant.
        tenant: the tenant of a user, else empty.
        refused: how many calls or answers were turned away.
        calls: how many calls were not made.
        saved: what those have cost, in dollars.
        first, last: when the first and the last of them was.
    """

    key: str
    tenant: str
    refused: int
    calls: int
    saved: Decimal
    first: datetime
    last: datetime


@dataclass(frozen=True, slots=True)
class WhatIf:
    """What a policy would have done to the calls of a ledger. Notebooks show it as tables and a chart.

    Attributes:
        calls: how many calls were replayed.
        spent: what they have cost, in dollars.
        refused: what would have been turned away, in order.
        days: all days on which a call ended or something was refused, in order.
    """

    calls: int
    spent: Decimal
    refused: tuple[Refused, ...]
    days: tuple[Day, ...]

    @property
    def saved(self) -> Decimal:
        """What the calls that would not have been made have cost, in dollars."""
        return sum((one.saved for one in self.refused), Decimal(0))

    @property
    def not_made(self) -> int:
        """How many calls would not have been made."""
        return sum(one.calls for one in self.refused)

    def by(self, dimension: Dimension) -> list[Share]:
        """The refusals of each budget, tenant, user, feature, step, model or code; what saves most comes first."""
        found: dict[tuple[str, str], list[Refused]] = {}
        for one in self.refused:
            key = one.tenant if dimension == "user" else "", getattr(one, dimension)
            found.setdefault(key, []).append(one)
        shares = [_share(tenant, key, of_it) for (tenant, key), of_it in found.items()]
        return sorted(shares, key=lambda share: (-share.saved, -share.refused, share.tenant, share.key))

    def chart(self) -> str:
        """The days as a picture in SVG: what was spent, and the part of it that would have been saved."""
        return drawn(self.days)

    def _repr_html_(self) -> str:
        told = f"{len(self.refused):,} refusals, {self.not_made:,} of {self.calls:,} calls not made, "
        told += f"{html.amount('usd', self.saved)} of {html.amount('usd', self.spent)} saved"
        users = self.by("user")
        more = f", the {_SHOWN} that save most of {len(users):,}" if len(users) > _SHOWN else ""
        budgets = _table("budget", self.by("budget"), told)
        return budgets + _table("user", users[:_SHOWN], f"For whom{more}") + self.chart() if users else budgets


def _share(tenant: str, key: str, refused: list[Refused]) -> Share:
    calls, saved = sum(one.calls for one in refused), sum((one.saved for one in refused), Decimal(0))
    return Share(key, tenant, len(refused), calls, saved, refused[0].at, refused[-1].at)


def _table(name: str, shares: list[Share], caption: str) -> str:
    rows = [
        (f"{s.tenant} / {s.key or 'anonymous'}" if s.tenant else s.key, f"{s.refused:,}", f"{s.calls:,}",
         html.amount("usd", s.saved), f"{s.first:%Y-%m-%d %H:%M}", f"{s.last:%Y-%m-%d %H:%M}")
        for s in shares
    ]  # fmt: skip
    return html.table((name, "refused", "calls not made", "saved", "first (UTC)", "last (UTC)"), rows, caption)
