"""A figure that a benchmark has taken, what it must hold, and how figures are shown and handed on."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

_COLUMNS = ("of", "what", "figure", "beside", "must hold", "")
_PRECISE = 10


@dataclass(frozen=True)
class Figure:
    """One row of a table.

    Attributes:
        of, what: of what it is, and what was done.
        value, unit: the figure; the unit is ``x`` where it is a multiple of what stands in `beside`.
        beside: what it is a multiple of or what else there is to know, with its own figure.
        most, least: what it may be, None if it is only shown.
        low, high: its 95 % confidence interval where there is one; a limit is missed when all of it is beyond.
    """

    of: str
    what: str
    value: float
    unit: str = "x"
    beside: str = ""
    most: float | None = None
    least: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def passed(self) -> bool:
        """Whether it holds what it must."""
        low = self.value if self.low is None else self.low
        high = self.value if self.high is None else self.high
        return (self.most is None or low <= self.most) and (self.least is None or high >= self.least)

    @property
    def cells(self) -> tuple[str, ...]:
        """What a table shows of it."""
        shown = f"{number(self.value)} {self.unit}".strip()
        if self.low is not None and self.high is not None:
            shown += f" ({number(self.low)} to {number(self.high)})"
        held = [f"{word} {number(limit)}" for word, limit in (("≤", self.most), ("≥", self.least)) if limit is not None]
        verdict = "" if not held else "ok" if self.passed else "MISSED"
        return self.of, self.what, shown, self.beside, " ".join(held), verdict


def number(value: float) -> str:
    """A number with no more digits than it deserves."""
    if value == int(value):
        return f"{int(value):,}"
    return (
        f"{value:,.2f}" if abs(value) < _PRECISE else f"{value:,.1f}" if abs(value) < _PRECISE**2 else f"{value:,.0f}"
    )


def terminal(found: Iterable[Figure], title: str) -> Table:
    """The figures as a table for a terminal."""
    made = Table(title=title, title_justify="left")
    for name in _COLUMNS:
        made.add_column(name, justify="right" if name in ("figure", "must hold") else "left")
    for figure in found:
        made.add_row(*figure.cells, style=None if figure.passed else "bold red")
    return made


def markdown(found: Iterable[Figure]) -> str:
    """The figures as a table in Markdown."""
    rows = [_COLUMNS, (":--", ":--", "--:", ":--", "--:", ":--"), *(figure.cells for figure in found)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def options(doc: str | None) -> argparse.ArgumentParser:
    """What the command line of every benchmark takes."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="fewer rounds: rougher figures, sooner")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too, for report.py")
    return parser


def closed(found: Sequence[Figure], title: str, json_path: Path | None) -> int:
    """Show and hand on what was taken.

    Returns:
        the exit code: 1 if a figure does not hold what it must.
    """
    if json_path is not None:
        json_path.write_text(json.dumps([asdict(figure) for figure in found]))
    console = Console()
    Console(width=None if console.is_terminal else 160).print(terminal(found, title))
    missed = sum(not figure.passed for figure in found)
    print(f"{len(found)} figures, {missed} beyond their limit")
    return int(missed > 0)


def read(path: Path) -> list[Figure]:
    """What a benchmark has handed on."""
    return [Figure(**each) for each in json.loads(path.read_text())]
