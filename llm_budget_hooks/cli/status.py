"""``llm-budget status``: the balances, kill switches and overrides as they stand, once or live."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple

import typer
from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from llm_budget_hooks.admin.switches import KillSwitch, SetLimit, kills_of, overrides_of
from llm_budget_hooks.cli.opened import FINDING, print_json, printable
from llm_budget_hooks.engine import BudgetEngine
from llm_budget_hooks.keys import tenant_name
from llm_budget_hooks.models import BudgetStatus
from llm_budget_hooks.money import plain

_WIDTH = 10
_FULL, _HELD, _FREE = "█", "▒", "·"
UNREAD = "unread"


class Seen(NamedTuple):
    """What is shown: balances, and what was changed at run time; None is unread."""

    lines: Sequence[BudgetStatus]
    killed: list[KillSwitch] | None
    overrides: list[SetLimit] | None

    @classmethod
    def of(cls, engine: BudgetEngine, tenant: str | None, user: str | None) -> Seen:
        """As it stands."""
        name = None if tenant is None else tenant_name(tenant)
        lines, changed = engine.status(tenant=tenant, user=user), overrides_of(engine, name)
        limits = None if changed is None else [SetLimit.of(one, engine.policy) for one in changed]
        return cls(lines, kills_of(engine, name), limits)

    @property
    def unread(self) -> bool:
        """Whether something could not be read."""
        return self.killed is None or self.overrides is None or any(line.spent is None for line in self.lines)


def run(engine: BudgetEngine, tenant: str | None, user: str | None, as_json: bool, every_s: float | None) -> None:
    """Print the balances and what was changed, and exit with 1 if something could not be read.

    Args:
        engine: whose balances.
        tenant, user: whose budgets; None: only the global ones.
        as_json: print a line of JSON for each reading.
        every_s: read again after so many seconds, until it is interrupted; None: once.
    """
    if every_s is not None:
        _watch(engine, tenant, user, as_json, every_s)
        return
    seen = Seen.of(engine, tenant, user)
    if as_json:
        print_json(_figures(engine, seen))
    else:
        Console().print(_screen(engine, seen))
    if seen.unread:
        raise typer.Exit(FINDING)


def _watch(engine: BudgetEngine, tenant: str | None, user: str | None, as_json: bool, every_s: float) -> None:
    try:
        if as_json:
            while True:
                print_json(_figures(engine, Seen.of(engine, tenant, user)))
                time.sleep(every_s)
        with Live(console=Console(), auto_refresh=False) as live:
            while True:
                live.update(_screen(engine, Seen.of(engine, tenant, user)), refresh=True)
                time.sleep(every_s)
    except KeyboardInterrupt:
        return


def _figures(engine: BudgetEngine, seen: Seen) -> dict[str, Any]:
    switches = [one.model_dump(mode="json") for one in seen.killed or ()]
    limits = [one.model_dump(mode="json") for one in seen.overrides or ()]
    return {
        "namespace": engine.policy.namespace,
        "shared": engine.shared,
        "budgets": [_plain(line) for line in seen.lines],
        "killed": None if seen.killed is None else switches,
        "overrides": None if seen.overrides is None else limits,
    }


def _plain(line: BudgetStatus) -> dict[str, Any]:
    names = ("budget", "scope", "meter", "window", "limit", "spent", "reserved", "available", "resets_at")
    return {name: _value(getattr(line, name)) for name in names}


def _value(value: Any) -> Any:
    if isinstance(value, Decimal):
        return plain(value)
    return value.isoformat() if isinstance(value, datetime) else value


def _screen(engine: BudgetEngine, seen: Seen) -> Group:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("budget", overflow="fold")
    table.add_column("", no_wrap=True)
    for name in ("spent", "held", "free", "limit"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("resets (UTC)", no_wrap=True)
    for line in seen.lines:
        numbers = (line.spent, line.reserved, line.available, line.limit)
        resets = "" if line.resets_at is None else f"{line.resets_at:%m-%d %H:%M}"
        table.add_row(line.budget, _bar(line), *(shown(line.meter, number) for number in numbers), resets)
    remarks = [Text(_stopped(one), "bold red") for one in seen.killed or ()]
    remarks += [Text(_overridden(one)) for one in seen.overrides or ()]
    if not engine.shared:
        remarks.append(Text("This store is private to one process: nobody else's spending is in it."))
    if seen.unread:
        remarks.append(Text("The store did not answer; what is unread is not 0.", "red"))
    if not seen.lines:
        remarks.append(Text("No budget is about these. Name a --tenant, and a --user of it."))
    return Group(table, *remarks)


def _stopped(one: KillSwitch) -> str:
    whose = "everybody" if one.tenant is None else f"tenant {one.tenant}"
    who = "the switch itself" if one.automatic else one.by or "somebody"
    return printable(f"Stopped: {whose}, since {one.since:%m-%d %H:%M} by {who}. {one.reason}").strip()


def _overridden(one: SetLimit) -> str:
    whose = "everybody" if one.tenant is None else f"tenant {one.tenant}"
    limit = f"${one.limit}" if isinstance(one.limit, str) else "no limit" if one.limit is None else f"{one.limit:,}"
    limit = "off" if one.limit is not None and not Decimal(one.limit) else limit
    until = "" if one.expires_at is None else f", until {one.expires_at:%m-%d %H:%M}"
    why = f": {one.reason}" if one.reason else ""
    return printable(f"Set: {one.budget} is {limit} for {whose}{until}, by {one.by or 'somebody'}{why}.")


def _bar(line: BudgetStatus) -> Text:
    if line.spent is None:
        return Text(UNREAD, "red")
    spent = min(int(line.spent * _WIDTH // line.limit), _WIDTH)
    used = min(int((line.spent + (line.reserved or 0)) * _WIDTH // line.limit), _WIDTH)
    color = "red" if spent == _WIDTH else "yellow" if spent >= _WIDTH * 4 // 5 else "green"
    return Text.assemble((_FULL * spent, color), (_HELD * (used - spent), "cyan"), (_FREE * (_WIDTH - used), "dim"))


def shown(meter: str, value: Decimal | int | None) -> str:
    """A number of a balance, for people; ``unread`` where there is none."""
    if value is None:
        return UNREAD
    if meter != "usd":
        return f"{value:,}"
    text = f"{value:,.9f}".rstrip("0")
    return f"${text}{'0' * (2 - len(text.partition('.')[2]))}"
