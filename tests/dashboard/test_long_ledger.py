"""A ledger that takes long to be read, as a large one does: its tables are locked for a while."""

from __future__ import annotations

import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_budget_hooks import BudgetEngine, Call
from llm_budget_hooks.dashboard import dashboard_app

if TYPE_CHECKING:
    from postgres_server import PostgresServer

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from starlette.testclient import TestClient

POLICY = {"store_timeout": "10s", "budgets": [{"name": "all", "scope": "global", "limit": "$50", "window": "day"}]}
LOCKED_S = 2.0


def test_what_was_spent_is_read_the_more_seldom_the_longer_it_takes(tmp_path: Path, postgres: PostgresServer) -> None:
    import psycopg

    now, url = [datetime(2026, 11, 20, 12, tzinfo=UTC)], postgres.new_database()
    with BudgetEngine.open(f"sqlite:///{tmp_path / 'b.db'}", POLICY, ledger=url, clock=lambda: now[0]) as engine:
        client = TestClient(dashboard_app(engine), base_url="http://127.0.0.1:8383")

        def spend(cost: str) -> None:
            engine.charge(Call(model="any", amount=cost), cost=cost)
            engine.flush()

        def page() -> str:
            return str(client.get("/").text)

        spend("0.25")
        now[0] += timedelta(seconds=1)
        with psycopg.connect(url) as locking, ThreadPoolExecutor(2) as visitors:
            locking.execute("LOCK TABLE ledger_runs IN ACCESS EXCLUSIVE MODE")
            asked = [visitors.submit(page) for _ in range(2)]
            time.sleep(LOCKED_S)
            assert not any(one.done() for one in asked)
            locking.rollback()
            assert [month(one.result()) for one in asked] == ["$0.25", "$0.25"]
        spend("0.50")
        now[0] += timedelta(seconds=1)
        seen = page()
        assert (month(seen), "$0.75" in seen, "as of" in seen) == ("$0.25", True, False)
        now[0] += timedelta(seconds=6)
        assert "What was spent, and the answers, as of" in page()
        assert month(TestClient(dashboard_app(engine), base_url="http://127.0.0.1:8383").get("/").text) == "$0.75"


def month(page: str) -> Any:
    return page.partition("<dt>this month</dt><dd>")[2].partition("</span>")[0].partition(">")[2]
