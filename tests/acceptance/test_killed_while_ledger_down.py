"""A process that is killed while the ledger is down, or between its commit and its word to the store."""

from __future__ import annotations

import os
import signal
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from postgres_server import PostgresServer

from llm_budget_hooks import BudgetEngine, Call

POLICY: dict[str, Any] = {
    "store_timeout": "20s",
    "budgets": [{"name": "user-day", "scope": "user", "limit": "$100", "window": "fixed:24h"}],
}
CALLS = 150  # more than a drain takes at once


def spend(engine: BudgetEngine, calls: int) -> None:
    for number in range(calls):
        held = engine.reserve(Call(model="any", tenant="acme", user="u1", amount="0.02"))
        engine.settle(held, cost=f"0.01{number:03d}")


def spend_and_die(store: str, ledger: str) -> None:
    """Make calls whose rows nobody takes, and be killed."""
    engine = BudgetEngine.open(store, POLICY, ledger=ledger)
    spend(engine, CALLS)
    time.sleep(0.5)  # the drain has tried, and waits
    os.kill(os.getpid(), signal.SIGKILL)


def die_after_the_commit(store: str, ledger: str) -> None:
    """Make calls, and be killed when the first of their rows are in the ledger and the store was not told yet."""
    engine = BudgetEngine.open(store, POLICY, ledger=ledger)
    write = engine.ledger.write

    def written(entries: Any) -> None:
        write(entries)
        if entries:
            os.kill(os.getpid(), signal.SIGKILL)

    engine.ledger.write = written
    spend(engine, CALLS)
    engine.flush()


def killed(work: Any, *arguments: str) -> int | None:
    process = get_context("spawn").Process(target=work, args=arguments)
    process.start()
    process.join(60)
    return process.exitcode


def in_ledger(engine: BudgetEngine) -> tuple[int, int, Any]:
    deadline = time.monotonic() + 60
    while not engine._trail.drain.flush():  # type: ignore[union-attr]  # the lease of the dead runs out
        assert time.monotonic() < deadline
    runs = engine.ledger.runs(limit=5_000).items
    (cost,) = engine.ledger.cost_by("user")
    return len(runs), len({run.id for run in runs}), cost.cost


def test_killed_while_postgresql_is_down_loses_and_doubles_nothing(shared_url: str) -> None:
    with PostgresServer() as server:
        ledger = server.new_database()
        with BudgetEngine.open(shared_url, POLICY, ledger=ledger) as engine:
            spend(engine, 1)
        server.stop()
        assert killed(spend_and_die, shared_url, ledger) == -signal.SIGKILL
        server.start()
        with BudgetEngine.open(shared_url, POLICY, ledger=ledger) as engine:
            (line,) = engine.status("acme", "u1")
            assert in_ledger(engine) == (CALLS + 1, CALLS + 1, line.spent)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_killed_between_the_commit_and_its_acknowledgement_doubles_nothing(
    shared_url: str, kind: str, tmp_path: Path, postgres: PostgresServer
) -> None:
    ledger = postgres.new_database() if kind == "postgres" else f"sqlite:///{tmp_path / 'ledger.db'}"
    assert killed(die_after_the_commit, shared_url, ledger) == -signal.SIGKILL
    with BudgetEngine.open(shared_url, POLICY, ledger=ledger) as engine:
        written = len(engine.ledger.runs(limit=5_000).items)
        assert 0 < written < CALLS + 1
        (line,) = engine.status("acme", "u1")
        made, ids, cost = in_ledger(engine)
        assert (made, cost) == (ids, line.spent)
