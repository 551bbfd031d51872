"""``llm-budget refusals``, ``events`` and ``runs``: what the ledger has, the newest first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel
from rich import box
from rich.console import Console
from rich.table import Table

from llm_budget_hooks.admin.rows import EventRow, RefusalRow, RunRow
from llm_budget_hooks.cli.opened import print_json, printable
from llm_budget_hooks.ledger import Ledger


@dataclass(frozen=True)
class Asked:
    """What the options ask for.

    Attributes:
        names: columns and the values that they have; None is not asked for.
        since, until: the span.
        after: goes on after a page.
        limit: rows of a page.
        as_json: print JSON.
    """

    names: dict[str, str | None]
    since: datetime | None
    until: datetime | None
    after: str | None
    limit: int
    as_json: bool


def refusals(ledger: Ledger, asked: Asked) -> None:
    """Print who was turned away, by which budget."""
    columns = ("at (UTC)", "code", "budget", "tenant", "user", "model", "asked for", "times")
    _show(ledger, "refusals", asked, RefusalRow.of, columns, _refusal)


def events(ledger: Ledger, asked: Asked) -> None:
    """Print what happened that is no call."""
    _show(ledger, "events", asked, EventRow.of, ("at (UTC)", "event", "tenant", "by", "text"), _event)


def runs(ledger: Ledger, asked: Asked) -> None:
    """Print what calls cost."""
    columns = ("at (UTC)", "status", "tenant", "user", "step", "model", "cost", "tokens")
    _show(ledger, "runs", asked, RunRow.of, columns, _run)


def _show(
    ledger: Ledger, what: str, asked: Asked, row_of: Callable[[Any], BaseModel], columns: Sequence[str],
    cells: Callable[[Any], Sequence[str]],
) -> None:  # fmt: skip
    page = getattr(ledger, what)(
        **asked.names, since=asked.since, until=asked.until, after=asked.after, limit=asked.limit
    )
    rows = [row_of(item) for item in page.items]
    if asked.as_json:
        print_json({"items": [row.model_dump(mode="json") for row in rows], "after": page.after})
        return
    table = Table(*columns, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for row in rows:
        table.add_row(*map(printable, cells(row)))
    out = Console(markup=False, highlight=False, emoji=False)
    out.print(table if rows else f"There are no {what}.")
    if page.after is not None:
        out.print(f"There are more: --after {page.after}")


def _refusal(row: RefusalRow) -> Sequence[str]:
    asked = "" if row.requested is None else f"${row.requested}" if row.meter == "usd" else str(row.requested)
    return (_at(row.at), row.code, row.budget, row.tenant, row.user, row.model, asked, str(row.count))


def _event(row: EventRow) -> Sequence[str]:
    return (_at(row.at), row.name, row.tenant or "everybody", row.by, row.text)


def _run(row: RunRow) -> Sequence[str]:
    tokens = f"{row.input_tokens:,} + {row.output_tokens:,}"
    cost = f"${row.cost}" if row.exact else f"about ${row.cost}"
    return (_at(row.at), row.status, row.tenant, row.user, row.step, row.served or row.model, cost, tokens)


def _at(at: datetime) -> str:
    return f"{at.astimezone(UTC):%m-%d %H:%M:%S}"
