"""The report of the benchmarks marks what does not hold what it must, and its exit code says so."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
FIGURE = {
    "of": "redis 6.2.5",
    "what": "reserve + settle: 300 µs",
    "value": 3.9,
    "most": 4.0,
    "beside": "EVALSHA: 76 µs",
}


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("report")


def run(report: ModuleType, monkeypatch: pytest.MonkeyPatch, folder: Path, script: str, **more: Any) -> int:
    """Run the report over one benchmark with this source."""
    (folder / "one.py").write_text(script)
    monkeypatch.setattr(report, "HERE", folder)
    monkeypatch.setattr(report, "ALL", (report.Benchmark("one", "what it is about", **more),))
    monkeypatch.setattr(sys, "argv", ["report.py", "--short", "--out", str(folder)])
    return int(report.main())


def handing_on(*figures: dict[str, Any]) -> str:
    """The source of a benchmark that hands these figures on."""
    path = str(BENCHMARKS)
    return (
        f"import sys; sys.path.insert(0, {path!r})\n"
        "from figures import Figure, closed, options\n"
        f"sys.exit(closed([Figure(**each) for each in {figures!r}], 'one', options('').parse_args().json))\n"
    )


def test_all_figures_within_their_limits_are_a_table_and_a_picture(
    report: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert run(report, monkeypatch, tmp_path, handing_on(FIGURE)) == 0
    table = (tmp_path / "results.md").read_text()
    assert "| redis 6.2.5 | reserve + settle: 300 µs | 3.90 x | EVALSHA: 76 µs | ≤ 4 | ok |" in table
    assert "3.90 of 4" in (tmp_path / "pictures" / "pairs.svg").read_text()


def test_a_figure_beyond_its_limit_is_marked_and_is_the_exit_code(
    report: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(report, monkeypatch, tmp_path, handing_on(FIGURE, {**FIGURE, "value": 4.2})) == 1
    assert "| 4.20 x | EVALSHA: 76 µs | ≤ 4 | MISSED |" in (tmp_path / "results.md").read_text()
    assert "2 figures, 1 beyond their limit" in capsys.readouterr().out


@pytest.mark.parametrize("script", ["raise SystemExit('it broke')", "raise ZeroDivisionError"])
def test_a_benchmark_that_breaks_is_no_success(
    report: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str
) -> None:
    assert run(report, monkeypatch, tmp_path, script) == 1
    assert "ended without figures" in (tmp_path / "results.md").read_text()


@pytest.mark.parametrize("code", [0, 1])
def test_a_benchmark_without_figures_is_judged_by_its_exit_code(
    report: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: int
) -> None:
    script = f"import sys; print('overshoot: none'); sys.exit({code})"
    assert run(report, monkeypatch, tmp_path, script, judges=True) == code
    assert "overshoot: none" in (tmp_path / "results.md").read_text()


@pytest.mark.parametrize(
    ("low", "high", "most", "least", "passed"),
    [
        (1.04, 1.09, 1.05, None, True),
        (1.06, 1.09, 1.05, None, False),
        (0.7, 0.81, None, 0.8, True),
        (0.7, 0.79, None, 0.8, False),
        (None, None, 1.07, None, True),
        (None, None, None, 1.08, False),
    ],
)
def test_a_limit_is_missed_when_the_whole_interval_is_beyond_it(
    report: ModuleType, low: float | None, high: float | None, most: float | None, least: float | None, passed: bool
) -> None:
    figure = report.Figure("a", "b", 1.07, low=low, high=high, most=most, least=least)
    assert figure.passed is passed
