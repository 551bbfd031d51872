"""Tests in a real browser are left out unless LLM_BUDGET_BROWSER names one, and the summary says so."""

from __future__ import annotations

import os

import pytest

_LEFT_OUT: list[pytest.Item] = []


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if os.environ.get("LLM_BUDGET_BROWSER"):
        return
    _LEFT_OUT.extend(item for item in items if item.get_closest_marker("browser"))
    config.hook.pytest_deselected(items=list(_LEFT_OUT))
    items[:] = [item for item in items if item not in _LEFT_OUT]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _LEFT_OUT:
        terminalreporter.write_line(
            f"Left out: {len(_LEFT_OUT)} tests of the dashboard in a browser. With Chromium and playwright installed, "
            "LLM_BUDGET_BROWSER=/usr/bin/chromium runs them."
        )
