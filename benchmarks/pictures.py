"""Figures as bars: SVG without scripts and outside styles, readable on light and dark."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from figures import Figure, number

_WIDTH, _LEFT, _RIGHT, _ROW, _TOP = 860, 330, 90, 26, 34
_HELD, _MISSED, _SHOWN, _LIMIT = "#2d8a4e", "#c0392b", "#2d6a9f", "#555"


def pictures(found: Sequence[Figure]) -> dict[str, str]:
    """The pictures by name; none of what was not measured."""
    judged = [figure for figure in found if figure.unit == "x" and figure.most and figure.of.startswith(_STORES)]
    pairs = [figure for figure in judged if "the same with" not in figure.beside]
    growth = [figure for figure in judged if "the same with" in figure.beside]
    drawn = {
        "pairs": ("A pair of reserve and settle over five budgets, as a multiple of what stands in brackets", pairs),
        "growth": ("What a pair costs with so much more in the store, as a multiple", growth),
    }
    return {name: bars(title, figures) for name, (title, figures) in drawn.items() if figures}


_STORES = ("memory", "sqlite", "redis")


def bars(title: str, figures: Sequence[Figure]) -> str:
    """A bar for each figure, with a line where it must end; each has a scale of its own, so that all limits meet."""
    height = _TOP + _ROW * len(figures) + 10
    parts = [_text(10, 20, title, "start", 13)]
    for at, figure in enumerate(figures):
        parts += _bar(figure, _TOP + at * _ROW)
    size = f'width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif"'
    back = '<rect width="100%" height="100%" fill="#fff"/>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{back}{"".join(parts)}</svg>\n'


def _bar(figure: Figure, y: int) -> list[str]:
    most = figure.most or figure.value
    unit = (_WIDTH - _LEFT - _RIGHT) * 0.6 / most
    width = min(figure.value * unit, _WIDTH - _LEFT - _RIGHT)
    what, beside = figure.what.split(":")[0], figure.beside.split(":")[0]
    name = f"{figure.of}, {what} ({beside})"
    fill = _HELD if figure.passed else _MISSED
    return [
        _text(_LEFT - 8, y + 15, name if len(name) < 58 else f"{name[:56]}…)", "end"),
        f'<rect x="{_LEFT}" y="{y + 3}" width="{width:.1f}" height="16" fill="{fill}">'
        f"<title>{escape(', '.join(figure.cells))}</title></rect>",
        f'<rect x="{_LEFT + most * unit:.1f}" y="{y}" width="1.5" height="22" fill="{_LIMIT}"/>',
        _text(_LEFT + max(width, most * unit) + 6, y + 15, f"{number(figure.value)} of {number(most)}", "start"),
    ]


def _text(x: float, y: float, words: str, anchor: str, size: int = 11) -> str:
    return f'<text x="{x:.1f}" y="{y}" font-size="{size}" fill="#333" text-anchor="{anchor}">{escape(words)}</text>'
