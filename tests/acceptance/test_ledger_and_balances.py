"""Four processes on Redis and PostgreSQL, one of them killed: the ledger and the balances say the same."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from decimal import Decimal
from multiprocessing import get_context
from typing import Any

from fan_out_workers import MODEL, TASKS, Crowd, run_tasks
from postgres_server import PostgresServer

from llm_budget_hooks import BudgetEngine
from llm_budget_hooks.testing import RedisServer, available_servers

PROCESSES = 4
DEADLINE_S = 60
TENANTS, USERS = ("t0", "t1", "t2"), tuple(f"u{n}" for n in range(7))
POLICY: dict[str, Any] = {
    "prices": {MODEL: {"input": "1", "output": "10"}},
    "store_timeout": "20s",
    "reservation_timeout": "2s",
    "budgets": [
        {"name": "all", "scope": "global", "limit": "$1000", "window": "fixed:24h"},
        {"name": "tenant", "scope": "tenant", "limit": "$1000", "window": "fixed:24h"},
        {"name": "user", "scope": "user", "limit": "$1000", "window": "rolling:24h"},
    ],
}


def test_the_ledger_adds_up_to_the_balances_though_a_process_was_killed_in_mid_run(
    redis_servers: Mapping[str, RedisServer], postgres: PostgresServer
) -> None:
    server = redis_servers[next(iter(available_servers()))]
    server.flush()
    crowd = Crowd(server.url, postgres.new_database(), POLICY)
    assert run_together(crowd, dies_after=TASKS + 20) == [-9, 0, 0, 0]
    with crowd.open() as engine:
        sweep(engine)
        drain(engine)
        assert booked(engine) == balances(engine, "all") > 0
        assert by_user(engine, "user") == {
            (cost.tenant, cost.key): cost.cost for cost in engine.ledger.cost_by("user") if cost.cost
        }
        assert sum(by_user(engine, "tenant").values()) == booked(engine)
        ends = Counter(run.kind for run in all_runs(engine))
        assert min(ends[kind] for kind in ("settled", "charged", "released", "expired")) > 0
        assert all(line.reserved == 0 for line in engine.status(tenant="t0", user="u0"))


def run_together(crowd: Crowd, dies_after: int) -> list[int | None]:
    """The exit codes of all processes, of which the first dies."""
    context = get_context("spawn")
    made = [
        context.Process(target=run_tasks, args=(crowd, number, None if number else dies_after))
        for number in range(PROCESSES)
    ]
    for process in made:
        process.start()
    for process in made:
        process.join(DEADLINE_S)
    return [process.exitcode for process in made]


def sweep(engine: BudgetEngine) -> None:
    """Wait until all abandoned holds are due, and let readings end them."""
    deadline = time.monotonic() + DEADLINE_S
    while any(orphan.status == "open" for orphan in engine.orphans()):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def drain(engine: BudgetEngine) -> None:
    """Flush until the lease of those who have ended is over, and the outbox is empty."""
    deadline = time.monotonic() + DEADLINE_S
    while not engine._trail.drain.flush():  # type: ignore[union-attr]  # it has one
        assert time.monotonic() < deadline


def all_runs(engine: BudgetEngine) -> list[Any]:
    found, after = [], None
    while True:
        page = engine.ledger.runs(after=after, limit=1000)
        found += page.items
        after = page.after
        if after is None:
            return found


def booked(engine: BudgetEngine) -> Decimal:
    return Decimal(sum(run.booked_nusd for run in all_runs(engine))).scaleb(-9)


def balances(engine: BudgetEngine, budget: str, tenant: str = "t0", user: str = "u0") -> Decimal:
    (line,) = [line for line in engine.status(tenant=tenant, user=user) if line.budget == budget]
    assert isinstance(line.spent, Decimal)
    return line.spent


def by_user(engine: BudgetEngine, budget: str) -> dict[tuple[str, str], Decimal]:
    users = USERS if budget == "user" else ("",)
    found = {(t, u): balances(engine, budget, t, u) for t in TENANTS for u in users}
    return {who: spent for who, spent in found.items() if spent}
