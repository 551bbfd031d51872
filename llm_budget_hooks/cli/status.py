"""``llm-budget status``: the balances as they stand, once or live."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

import typer
from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from llm_budget_hooks.cli.opened import FINDING, print_json
from llm_budget_hooks.engine import BudgetEngine
from llm_budget_hooks.models import BudgetStatus

_WIDTH = 10
_FULL, _HELD, _FREE = "█", "▒", "·"
UNREAD = "unread"


def run(engine: BudgetEngine, tenant: str | None, user: str | None, as_json: bool, every_s: float | None) -> None:
    """Print the balances, and exit with 1 if one of them could not be read.

    Args:
        engine: whose balances.
        tenant, user: whose budgets; None: only the global ones.
        as_json: print a line of JSON for each reading.
        every_s: read again after so many seconds, until it is interrupted; None: once.
    """
    if every_s is not None:
        _watch(engine, tenant, user, as_json, every_s)
        return
    lines = engine.status(tenant=tenant, user=user)
    if as_json:
        print_json(_figures(engine, lines))
    else:
        Console().print(_screen(engine, lines))
    if any(line.spent is None for line in lines):
        raise typer.Exit(FINDING)


def _watch(engine: BudgetEngine, tenant: str | None, user: str | None, as_json: bool, every_s: float) -> None:
    try:
        if as_json:
            while True:
                print_json(_figures(engine, engine.status(tenant=tenant, user=user)))
                time.sleep(every_s)
        with Live(console=Console(), auto_refresh=False) as live:
            while True:
                live.update(_screen(engine, engine.status(tenant=tenant, user=user)), refresh=True)
                time.sleep(every_s)
    except KeyboardInterrupt:
        return


def _figures(engine: BudgetEngine, lines: Sequence[BudgetStatus]) -> dict[str, Any]:
    return {"namespace": engine.policy.namespace, "shared": engine.shared, "budgets": [_plain(line) for line in lines]}


def _plain(line: BudgetStatus) -> dict[str, Any]:
    names = ("budget", "scope", "meter", "window", "limit", "spent", "reserved", "available", "resets_at")
    return {name: _value(getattr(line, name)) for name in names}


def _value(value: Any) -> Any:
    if isinstance(value, Decimal):
        return str(value)
    return value.isoformat() if isinstance(value, datetime) else value


def _screen(engine: BudgetEngine, lines: Sequence[BudgetStatus]) -> Group:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("budget", overflow="fold")
    table.add_column("", no_wrap=True)
    for name in ("spent", "held", "free", "limit"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("resets (UTC)", no_wrap=True)
    for line in lines:
        numbers = (line.spent, line.reserved, line.available, line.limit)
        resets = "" if line.resets_at is None else f"{line.resets_at:%m-%d %H:%M}"
        table.add_row(line.budget, _bar(line), *(shown(line.meter, number) for number in numbers), resets)
    remarks = [] if engine.shared else [Text("This store is private to one process: nobody else's spending is in it.")]
    if any(line.spent is None for line in lines):
        remarks.append(Text("The store did not answer; what is unread is not 0.", "red"))
    if not lines:
        remarks.append(Text("No budget is about these. Name a --tenant, and a --user of it."))
    return Group(table, *remarks)


def _bar(line: BudgetStatus) -> Text:
    if line.spent is None:
        return Text(UNREAD, "red")
    spent = min(int(line.spent * _WIDTH // line.limit), _WIDTH)
    used = min(int((line.spent + (line.reserved or 0)) * _WIDTH // line.limit), _WIDTH)
    color = "red" if spent == _WIDTH else "yellow" if spent >= _WIDTH * 4 // 5 else "green"
    return Text.assemble(
        (_FULL * spent, color), (_HELD * (used - spent), "cyan"), (_FREE * (_WIDTH - used), "dim")
    )


def shown(meter: str, value: Decimal | int | None) -> str:
    """A number of a balance, for people; ``unread`` where there is none."""
    if value is None:
        return UNREAD
    if meter != "usd":
        return f"{value:,}"
    return f"${value:,.2f}" if value * 100 % 1 == 0 else f"${value:,.4f}"
