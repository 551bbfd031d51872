"""Long work shows on a terminal how far it is, and says nothing of that to a program."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from llm_budget_hooks import BudgetEngine, Call

START = "from llm_budget_hooks.cli import app; app()"
NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)


def on_a_terminal(*args: str) -> tuple[str, str]:
    """What the command prints, and what it shows on a terminal meanwhile."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    run = [sys.executable, "-c", START, *args]
    with subprocess.Popen(run, stdout=subprocess.PIPE, stderr=theirs, text=True, env=env) as running:
        os.close(theirs)
        shown = b""
        try:
            while some := os.read(ours, 65536):
                shown += some
        except OSError:
            pass  # so a terminal ends when nobody writes to it any more
        assert running.stdout is not None
        printed = running.stdout.read()
    os.close(ours)
    return printed, shown.decode("utf-8", "replace")


@pytest.fixture
def ledger(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    with BudgetEngine.open("memory://", {}, clock=lambda: NOON, ledger=url) as engine:
        engine.charge(Call(model="gpt-4o"), cost="0.40")
    return url


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("demo",), "50 calls at once, check-then-charge"),
        (("whatif", "--preset", "zeno"), "Replaying"),
        (("reconcile", "BILL", "--since", "2026-11-01", "--until", "2026-11-02"), "Comparing with the ledger"),
    ],
    ids=lambda one: one[0] if isinstance(one, tuple) else "",
)
def test_a_terminal_sees_how_far_it_is(args: tuple[str, ...], said: str, ledger: str, tmp_path: Path) -> None:
    bill = tmp_path / "bill.csv"
    bill.write_text("date,model,cost\n2026-11-01,gpt-4o-2024-08-06,0.41\n", encoding="utf-8")
    named = [str(bill) if arg == "BILL" else arg for arg in args]
    more = () if args == ("demo",) else ("--ledger", ledger)
    printed, shown = on_a_terminal(*named, *more)
    assert (said in shown, said in printed, printed != "") == (True, False, True), shown
    if args != ("demo",):
        assert on_a_terminal(*named, *more, "--json")[1] == ""
