"""``llm-budget whatif``: what another policy would have refused, in tables and a chart, or as JSON."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from llm_budget_hooks.cli.opened import FINDING, print_json, say
from llm_budget_hooks.cli.progress import progress
from llm_budget_hooks.ledger import Ledger
from llm_budget_hooks.models import Policy
from llm_budget_hooks.money import plain
from llm_budget_hooks.whatif import Share, WhatIf, whatif

_DOING = "Replaying"
_BAR = 40
_SHOWN = 10


def run(
    ledger: Ledger, policy: Policy, since: datetime | None, until: datetime | None, tenant: str | None, as_json: bool
) -> None:
    """Replay the ledger, print what came of it, and exit with 1 if something would have been refused.

    Args:
        ledger: whose calls.
        policy: under which rules.
        since, until: the span; without a time zone they are of the policy's.
        tenant: only this one's calls; None: everybody's.
        as_json: print JSON.
    """
    zone = ZoneInfo(policy.timezone)
    span = [None if at is None else at if at.tzinfo else at.replace(tzinfo=zone) for at in (since, until)]
    with progress(_DOING, quiet=as_json) as tell:
        told = None if tell is None else partial(tell, _DOING)
        found = whatif(ledger, policy, since=span[0], until=span[1], tenant=tenant, progress=told)
    off = _switched_off(policy)
    if as_json:
        print_json(_figures(found) | {"off": off})
    else:
        _show(found, Console())
        for name in off:
            say(f"{name} refuses nobody: a limit of 0 switches it off.")
    if found.refused:
        raise typer.Exit(FINDING)


def _switched_off(policy: Policy) -> list[str]:
    """The budgets with a limit of 0, a tenant's own after its name."""
    off = [(tenant, budget.name) for tenant, budget in policy.written() if not budget.limit_units]
    return [name if tenant is None else f"{tenant}.{name}" for tenant, name in off]


def _show(found: WhatIf, out: Console) -> None:
    if not found.calls:
        out.print("The ledger has no calls in this span.")
        return
    told = f"{len(found.refused):,} refusals, {found.not_made:,} of {found.calls:,} calls not made, "
    out.print(Text(told + f"${found.saved:,.2f} of ${found.spent:,.2f} saved", style="bold"))
    if not found.refused:
        return
    out.print(_table("budget", found.by("budget")))
    users = found.by("user")
    out.print(_table("user", users[:_SHOWN]))
    if len(users) > _SHOWN:
        out.print(Text(f"and {len(users) - _SHOWN:,} more users; --json has all", "dim"))
    out.print(_days(found))


def _table(name: str, shares: list[Share]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column(name, overflow="fold")
    for column in ("refused", "calls not made", "saved", "first (UTC)", "last (UTC)"):
        table.add_column(column, justify="right", no_wrap=True)
    for share in shares:
        key = f"{share.tenant} / {share.key or 'anonymous'}" if share.tenant else share.key or "none"
        table.add_row(
            Text(key), f"{share.refused:,}", f"{share.calls:,}", f"${share.saved:,.2f}", f"{share.first:%m-%d %H:%M}",
            f"{share.last:%m-%d %H:%M}",
        )  # fmt: skip
    return table


def _days(found: WhatIf) -> Table:
    """A bar for each day: what was spent, and the part of it that would have been saved."""
    most = max(day.spent for day in found.days)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), caption="█ spent all the same  ░ saved")
    table.add_column("day", no_wrap=True)
    table.add_column("", no_wrap=True)
    for column in ("spent", "saved", "refused"):
        table.add_column(column, justify="right", no_wrap=True)
    for day in found.days:
        spent = int(day.spent * _BAR / most) if most else 0
        saved = min(int(day.saved * _BAR / most), spent) if most else 0
        bar = Text.assemble(("█" * (spent - saved), "green"), ("░" * saved, "red"))
        table.add_row(day.name, bar, f"${day.spent:,.2f}", f"${day.saved:,.2f}", f"{day.refused:,}")
    return table


def _figures(found: WhatIf) -> dict[str, Any]:
    """The same as plain values; amounts are dollars as text, so that nothing is rounded."""
    names = ("code", "stage", "budget", "tenant", "user", "utterance", "feature", "step", "model", "calls")
    return {
        "calls": found.calls,
        "not_made": found.not_made,
        "spent": plain(found.spent),
        "saved": plain(found.saved),
        "refused": [
            {"at": one.at.isoformat(), "saved": plain(one.saved), **{name: getattr(one, name) for name in names}}
            for one in found.refused
        ],
        "days": [
            {"day": day.name, "spent": plain(day.spent), "saved": plain(day.saved), "refused": day.refused}
            for day in found.days
        ],
    }
