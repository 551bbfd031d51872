"""Balances as HTML, for notebooks: no scripts, no outside styles, readable on light and dark."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from html import escape
from typing import Protocol

Number = Decimal | int | None
_NUMBERS = ("spent", "held", "free", "limit")
_TEXT = "padding:2px 10px;white-space:nowrap"


class Balance(Protocol):
    """What is shown of a balance; `BudgetStatus` has it."""

    @property
    def budget(self) -> str: ...
    @property
    def meter(self) -> str: ...
    @property
    def limit(self) -> Decimal | int: ...
    @property
    def spent(self) -> Number: ...
    @property
    def reserved(self) -> Number: ...
    @property
    def available(self) -> Number: ...
    @property
    def resets_at(self) -> datetime | None: ...


def balances(lines: Sequence[Balance], caption: str = "") -> str:
    """A table of balances with a bar for each: spent, held, free.

    Args:
        lines: one balance for each row.
        caption: plain text above the table.
    """
    names = ("budget", "", *_NUMBERS, "resets")
    head = "".join(_cell(name, name in _NUMBERS, "th") for name in names)
    title = f"<caption style='text-align:left'>{escape(caption)}</caption>" if caption else ""
    return f"<table>{title}<tr>{head}</tr>{''.join(map(_row, lines))}</table>"


def table(names: Sequence[str], rows: Sequence[Sequence[str]], caption: str) -> str:
    """A table of texts: the first column is to the left, all others are figures, to the right."""
    head = "".join(_cell(name, at > 0, "th") for at, name in enumerate(names))
    lines = ["".join(_cell(text, at > 0) for at, text in enumerate(row)) for row in rows]
    title = f"<caption style='text-align:left'>{escape(caption)}</caption>"
    return f"<table>{title}<tr>{head}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def facts(title: str, pairs: Sequence[tuple[str, object]]) -> str:
    """A table of names and values under a title."""
    rows = "".join(f"<tr>{_cell(name)}{_cell(str(value))}</tr>" for name, value in pairs)
    return f"<table><caption style='text-align:left'>{escape(title)}</caption>{rows}</table>"


def amount(meter: str, value: Number) -> str:
    """A number of a balance, for people; ``unread`` where there is none."""
    if value is None:
        return "unread"
    return f"${value:,f}" if meter == "usd" else f"{value:,}"


def _row(line: Balance) -> str:
    numbers = (line.spent, line.reserved, line.available, line.limit)
    resets = "" if line.resets_at is None else f"{line.resets_at:%Y-%m-%d %H:%M} UTC"
    shown = "".join(_cell(amount(line.meter, number), right=True) for number in numbers)
    return f"<tr>{_cell(line.budget)}<td>{_bar(line)}</td>{shown}{_cell(resets)}</tr>"


def _cell(text: str, right: bool = False, tag: str = "td") -> str:
    return f"<{tag} style='text-align:{'right' if right else 'left'};{_TEXT}'>{escape(text)}</{tag}>"


def _bar(line: Balance) -> str:
    """Three stretches of one line; nothing is drawn where nothing was read."""
    if line.spent is None or not line.limit:
        return ""
    spent = min(Decimal(line.spent) / line.limit, Decimal(1))
    held = min(Decimal(line.reserved or 0) / line.limit, 1 - spent)
    color = "#c0392b" if spent == 1 else "#d68910" if spent >= Decimal("0.8") else "#2d8a4e"
    parts = ((spent, color), (held, "#2d6a9f"), (1 - spent - held, "#8884"))
    boxes = "".join(f"<div style='width:{share * 100:.1f}%;background:{fill}'></div>" for share, fill in parts)
    return f"<div style='display:flex;width:120px;height:10px' title='{spent:.0%} spent'>{boxes}</div>"
