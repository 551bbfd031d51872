"""Days as a picture: no scripts, no outside styles, readable on light and dark."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Protocol

_WIDTH, _HEIGHT, _LEFT, _TOP = 820, 150, 70, 24
_KEPT, _SAVED = "#2d8a4e", "#c0392b"


class Spending(Protocol):
    """What is drawn of a day."""

    @property
    def name(self) -> str: ...
    @property
    def spent(self) -> Decimal: ...
    @property
    def saved(self) -> Decimal: ...


def drawn(days: Sequence[Spending]) -> str:
    """An SVG with a bar for each day: what was spent, and on top the part that would have been saved."""
    most = max((day.spent for day in days), default=Decimal(0)) or Decimal(1)
    step = (_WIDTH - _LEFT) / max(len(days), 1)
    parts = [*_legend(), _text(_LEFT - 6, _TOP + 8, f"${most:.2f}", "end"), _text(_LEFT - 6, _bottom(), "$0", "end")]
    for at, day in enumerate(days):
        parts += _bar(day, _LEFT + at * step, step, most)
    for at in range(0, len(days), max(len(days) // 6, 1)):
        parts.append(_text(_LEFT + at * step, _bottom() + 16, days[at].name, "start"))
    size = f'width="{_WIDTH}" height="{_bottom() + 24}" font-family="sans-serif"'
    back = '<rect width="100%" height="100%" fill="#fff"/>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{back}{"".join(parts)}</svg>'


def _bottom() -> int:
    return _TOP + _HEIGHT


def _bar(day: Spending, x: float, step: float, most: Decimal) -> list[str]:
    spent, saved = float(day.spent / most) * _HEIGHT, float(day.saved / most) * _HEIGHT
    width = max(step * 0.8, 1)
    title = f"<title>{day.name}: ${day.spent:.2f} spent, ${day.saved:.2f} of it saved</title>"
    parts = [_rect(x, _bottom() - max(spent - saved, 0), width, max(spent - saved, 0), _KEPT, title)]
    return parts + ([_rect(x, _bottom() - spent, width, saved, _SAVED, title)] if saved > 0 else [])


def _rect(x: float, y: float, width: float, height: float, fill: str, inside: str = "") -> str:
    at = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f'<rect {at} fill="{fill}">{inside}</rect>'


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y}" font-size="11" fill="#444" text-anchor="{anchor}">{words}</text>'


def _legend() -> list[str]:
    return [
        _rect(_LEFT, 6, 10, 10, _KEPT), _text(_LEFT + 14, 15, "spent all the same", "start"),
        _rect(_LEFT + 140, 6, 10, 10, _SAVED), _text(_LEFT + 154, 15, "saved by refusals", "start"),
    ]  # fmt: skip
