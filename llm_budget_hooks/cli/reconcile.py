"""``llm-budget reconcile``: the ledger against the provider's books, as a table or as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from llm_budget_hooks.cli.opened import FINDING, print_json, printable, say
from llm_budget_hooks.cli.progress import Tell, progress
from llm_budget_hooks.ledger import Ledger
from llm_budget_hooks.models import Policy
from llm_budget_hooks.money import plain
from llm_budget_hooks.pricing import PriceBook
from llm_budget_hooks.reconcile import Billed, Books, Line, Reconciliation, reconcile

_SPAN = timedelta(days=7)
_DOING = "Reading the books"


def run(
    ledger: Ledger, books: Books, policy: Policy, since: datetime | None, until: datetime | None, as_json: bool,
    booking: Callable[[Reconciliation], Decimal] | None = None,
) -> None:  # fmt: skip
    """Compare, print what came of it, and exit with 1 if a line is off by more than 5 %.

    Args:
        ledger: what was booked here.
        books: the provider's.
        policy: for its prices and aliases.
        since, until: in the first UTC day, and in the day after the last, in UTC where no offset is given; None: the
            seven days before today.
        as_json: print JSON.
        booking: books what is flagged, and says how many dollars that were; None: nothing is booked.
    """
    last = _day(datetime.now(UTC) if until is None else until)
    first = last - _SPAN if since is None else _day(since)
    prices = PriceBook.of(policy)
    with progress(_DOING, quiet=as_json) as tell:
        found = reconcile(ledger, books if tell is None else _Watched(books, tell), first, last, prices=prices)
    if not as_json:
        show(found, Console())
    booked = booking(found) if booking is not None and found.flagged else None
    if as_json:
        print_json(_figures(first, last, found) | ({} if booking is None else {"booked": plain(booked or Decimal(0))}))
    elif booked is not None:
        say(_told(booked, sum(1 for line in found.flagged if line.owed)))
    if found.flagged:
        raise typer.Exit(FINDING)


class _Watched:
    """Books that tell how many of their lines were read."""

    def __init__(self, books: Books, tell: Tell) -> None:
        self.provider = books.provider
        self._books = books
        self._tell = tell

    def lines(self, since: date, until: date) -> Iterator[Billed]:
        """See `Books.lines`."""
        days = (until - since).days
        for line in self._books.lines(since, until):
            self._tell(f"{_DOING}, {line.day}", (line.day - since).days, days)
            yield line
        self._tell("Comparing with the ledger", 0, None)


def _day(at: datetime) -> date:
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).astimezone(UTC).date()


def _told(booked: Decimal, lines: int) -> str:
    if not lines:
        return "Nothing is booked: these books cannot say how much is owed."
    if not booked:
        return "Booked nothing: it is booked already and not in the ledger yet, or there is nothing to take back."
    amount = f"{'-' if booked < 0 else '+'}${abs(booked):,.4f}"
    many = f"{lines} correction{'s' if lines > 1 else ''}"
    return f"Booked {amount} as {many}, in the windows of today, whatever day the lines are of."


def _figures(first: date, last: date, found: Reconciliation) -> dict[str, Any]:
    return {
        "since": str(first),
        "until": str(last),
        "flagged": len(found.flagged),
        "lines": [_plain(line) for line in found.lines],
    } | ({"doubt": found.doubt} if found.doubt else {})


def _plain(line: Line) -> dict[str, Any]:
    return {
        "day": str(line.day), "model": line.model, "ledger": plain(line.ledger), "billed": plain(line.billed),
        "difference": plain(line.difference), "flagged": line.flagged, "final": line.final, "cause": line.cause,
    }  # fmt: skip


def show(found: Reconciliation, out: Console) -> None:
    """Print the lines as a table, and last what was seen in all."""
    if not found.lines:
        out.print("Neither the ledger nor the books have anything in this span.")
        return
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("day (UTC)", no_wrap=True)
    table.add_column("model", overflow="fold")
    for name in ("ledger", "billed", "off"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("likely cause")
    for line in found.lines:
        off = "" if line.share is None else f"{line.share:+.1%}"
        style = "red" if line.flagged else "dim" if not line.final else ""
        amounts = (f"${line.ledger:,.4f}", f"${line.billed:,.4f}", off)
        table.add_row(str(line.day), Text(printable(line.model)), *amounts, line.cause, style=style)
    out.print(table)
    out.print(_seen(found))


def _seen(found: Reconciliation) -> Text:
    many, growing = len(found.lines), sum(1 for line in found.lines if not line.final)
    beyond = sum(1 for line in found.lines if line.final and line.cause and not line.flagged)
    if found.flagged:
        said = [f"{len(found.flagged)} of {many} are off by more than 5 %."]
    elif growing + beyond == many:
        said = ["Nothing can be compared." if beyond else "Nothing is final yet."]
    else:
        which = "Of what can be compared, nothing" if beyond else "Of what is final, nothing" if growing else "Nothing"
        said = [f"{which} is off by more than 5 %."]
    if growing:
        said.append(f"{growing} of {many} {'is of a day' if growing == 1 else 'are of days'} that may still grow.")
    if beyond:
        said.append(f"{beyond} of {many} {'has' if beyond == 1 else 'have'} calls that these books do not know of.")
    if found.doubt:
        said.append(f"{found.doubt}.")
    return Text(" ".join(said), "red" if found.flagged else "yellow" if said[1:] else "green")
