"""A PostgreSQL that takes a connection and then does not answer delays no call, and gets every row once it does."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from postgres_server import PostgresServer

from llm_budget_hooks import BudgetEngine, Call

POLICY = {
    "store_timeout": "20s",
    "budgets": [{"name": "user-day", "scope": "user", "limit": "$100", "window": "fixed:24h"}],
}
CALLS = 200
STATEMENT_S = 30


@contextmanager
def stalled(url: str) -> Iterator[None]:
    """Nobody else gets to the runs in this block."""
    with psycopg.connect(url) as connection:
        connection.execute("LOCK TABLE ledger_runs IN ACCESS EXCLUSIVE MODE")
        yield


def test_a_ledger_that_does_not_answer_delays_no_call(shared_url: str, postgres: PostgresServer) -> None:
    url = postgres.new_database()
    with BudgetEngine.open(shared_url, POLICY, ledger=url) as engine:
        spend(engine, 1)
        engine.flush()
        with stalled(url):
            spend(engine, 1)
            time.sleep(0.5)  # the drain is waiting for PostgreSQL by now
            began = time.monotonic()
            spend(engine, CALLS)
            assert time.monotonic() - began < STATEMENT_S / 2
        (line,) = engine.status(tenant="acme", user="u1")
        engine.flush()
        (cost,) = engine.ledger.cost_by("user")
        assert (cost.calls, cost.cost) == (CALLS + 2, line.spent)


def spend(engine: BudgetEngine, calls: int) -> None:
    call = Call(model="any", tenant="acme", user="u1", amount="0.02")
    for _ in range(calls):
        engine.settle(engine.reserve(call), cost="0.01")


def test_an_engine_that_was_not_used_closes_at_once_on_an_empty_store(
    shared_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    BudgetEngine.open(shared_url, POLICY, ledger=f"sqlite:///{tmp_path / 'ledger.db'}").close()
    assert "behind" not in caplog.text
    assert "not written" not in caplog.text
