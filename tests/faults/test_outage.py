"""What passes while the store is away, where it is written down, and that it is booked once."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from llm_budget_hooks import BudgetEngine, BudgetExceeded, Call, StoreUnavailable, Usage
from llm_budget_hooks.engine.outage import Unsent
from llm_budget_hooks.models.events import Event
from llm_budget_hooks.testing import DelayProxy, RedisServer

BUDGETS: list[dict[str, Any]] = [
    {"scope": "global", "limit": "$5", "window": "day"},
    {"scope": "user", "meter": "calls", "limit": 100, "window": "day"},
]
POLICY: dict[str, Any] = {"budgets": BUDGETS, "store_timeout": "200ms", "degraded_allowance": "$0.30"}
CALL = Call(model="m", tenant="acme", user="u1", amount="0.10")


@pytest.fixture
def proxy(redis_server: RedisServer) -> Iterator[DelayProxy]:
    with DelayProxy(redis_server.port) as proxy:
        yield proxy


def spent(engine: BudgetEngine) -> list[Any]:
    return [(s.spent, s.reserved) for s in engine.status("acme", "u1")]


def test_b032_bounded_lets_the_allowance_through_and_books_it_once(proxy: DelayProxy, state_home: Path) -> None:
    told: list[Any] = []
    with BudgetEngine.open(proxy.url, POLICY, on_degraded=told.append) as engine:
        engine.charge(CALL, cost="1")
        proxy.stall = True
        held = [engine.reserve(CALL) for _ in range(3)]
        with pytest.raises(StoreUnavailable, match=r"allowance of \$0\.30 .* used up"):
            engine.reserve(CALL)
        assert engine.degraded
        assert [one["kind"] for one in told] == ["degraded"]
        assert [s.spent for s in engine.status()] == [None]
        assert engine.settle(held[0], cost="0.04").pending
        proxy.stall = False
        engine.flush()
        assert spent(engine) == [(Decimal("1.04"), Decimal("0.20")), (4, 0)]
        assert engine.settle(held[1], cost="0.06").status == "settled"
        assert engine.release(held[2]).status == "released"
        assert spent(engine) == [(Decimal("1.10"), 0), (4, 0)]
        assert not engine.degraded
    assert len(list(state_home.rglob("*.journal"))) == 1


def test_questions_that_need_no_model_are_counted_once_the_store_is_back(proxy: DelayProxy) -> None:
    counted = {"scope": "tenant", "meter": "utterances", "limit": 500, "window": "rolling:24h"}
    budgets = [{**counted, "name": "asked", "count": "entry"}, {**counted, "name": "called"}]
    with BudgetEngine.open(proxy.url, {**POLICY, "budgets": budgets}) as engine:

        def ask(id: str, *, calls: int = 0) -> None:
            with engine.utterance(tenant="acme", user="u1", id=id):
                for _ in range(calls):
                    engine.settle(engine.reserve(Call(model="m", amount="0.01")), cost="0.01")

        ask("before")
        proxy.stall = True
        for number in range(3):
            ask(f"away-{number}")
        ask("with a model", calls=2)
        proxy.stall = False
        engine.flush()
        ask("after")
        ask("away-0")
        assert {line.budget: line.spent for line in engine.status("acme")} == {"asked": 6, "called": 1}


def test_the_allowance_is_not_renewed_by_a_restart_or_a_store_that_comes_and_goes(
    proxy: DelayProxy, tmp_path: Path
) -> None:
    now = datetime(2026, 3, 1, tzinfo=UTC)
    journal = tmp_path / "a.journal"

    def opened() -> BudgetEngine:
        return BudgetEngine.open(proxy.url, POLICY, journal=journal, clock=lambda: now)

    engine = opened()
    proxy.stall = True
    for _ in range(2):
        engine.reserve(CALL)
    engine.close()
    engine = opened()
    proxy.stall = False
    engine.flush()
    proxy.stall = True
    engine.reserve(CALL)
    with pytest.raises(StoreUnavailable):
        engine.reserve(CALL)
    assert not engine.check(CALL)
    proxy.stall = False
    engine.flush()
    now += timedelta(seconds=59)
    proxy.stall = True
    with pytest.raises(StoreUnavailable):
        engine.reserve(CALL)
    proxy.stall = False
    engine.flush()
    now += timedelta(seconds=61)
    proxy.stall = True
    assert engine.check(CALL)
    engine.reserve(CALL)
    proxy.stall = False
    engine.close()


def test_the_allowance_holds_while_entries_wait_however_long(proxy: DelayProxy, tmp_path: Path) -> None:
    now = datetime(2026, 3, 1, tzinfo=UTC)
    engine = BudgetEngine.open(proxy.url, POLICY, journal=tmp_path / "j", clock=lambda: now)
    proxy.stall = True
    for _ in range(3):
        engine.reserve(CALL)
    now += timedelta(hours=3)
    with pytest.raises(StoreUnavailable):
        engine.reserve(CALL)
    proxy.stall = False
    engine.close()


def test_deny_lets_nothing_through_and_keeps_settles_in_memory(proxy: DelayProxy, state_home: Path) -> None:
    with BudgetEngine.open(proxy.url, {**POLICY, "on_store_error": "deny"}) as engine:
        held = engine.reserve(CALL)
        proxy.stall = True
        with pytest.raises(StoreUnavailable) as refused:
            engine.reserve(CALL)
        assert (refused.value.code, refused.value.http_status) == ("store_unavailable", 503)
        assert engine.settle(held, cost="0.05").pending
        proxy.stall = False
        engine.flush()
        assert spent(engine)[0] == (Decimal("0.05"), 0)
    assert not list(state_home.rglob("*.journal"))


def test_settles_that_give_way_in_memory_are_counted_and_said(
    proxy: DelayProxy, caplog: pytest.LogCaptureFixture
) -> None:
    with BudgetEngine.open(proxy.url, {**POLICY, "on_store_error": "deny"}) as engine:
        engine._pending = Unsent(2)
        held = [engine.reserve(CALL) for _ in range(3)]
        proxy.stall = True
        for one in held:
            assert engine.settle(one, cost="0.02").pending
        assert engine._pending.dropped == 1
        assert "the oldest are dropped, 1 so far" in caplog.text
        proxy.stall = False
        engine.flush()
        assert spent(engine)[0] == (Decimal("0.04"), Decimal("0.10"))


def test_allow_lets_everything_through_and_books_it(proxy: DelayProxy) -> None:
    with BudgetEngine.open(proxy.url, {**POLICY, "on_store_error": "allow"}) as engine:
        proxy.stall = True
        for _ in range(20):
            engine.settle(engine.reserve(CALL), cost="0.20")
        proxy.stall = False
        engine.flush()
        assert spent(engine) == [(Decimal(4), 0), (20, 0)]


def test_the_awaited_face_does_the_same(proxy: DelayProxy) -> None:
    async def work() -> list[Any]:
        async with BudgetEngine.open(proxy.url, POLICY) as engine:
            proxy.stall = True
            held = await asyncio.gather(*(engine.areserve(CALL) for _ in range(5)), return_exceptions=True)
            passed = [one for one in held if not isinstance(one, BaseException)]
            assert all(isinstance(one, StoreUnavailable) for one in held if isinstance(one, BaseException))
            assert len(passed) == 3
            for one in passed:
                assert (await engine.asettle(one, usage=Usage(input_tokens=1, output_tokens=1), cost="0.05")).pending
            proxy.stall = False
            await engine.aflush()
            return [(s.spent, s.reserved) for s in await engine.astatus("acme", "u1")]

    assert asyncio.run(work()) == [(Decimal("0.15"), 0), (3, 0)]


def test_a_charge_in_an_outage_is_booked_once(proxy: DelayProxy) -> None:
    with BudgetEngine.open(proxy.url, POLICY) as engine:
        proxy.stall = True
        assert engine.charge(CALL, cost="0.25").cost == Decimal("0.25")
        with pytest.raises(StoreUnavailable):
            engine.charge(CALL, cost="0.25")
        engine.charge(CALL, cost="0.25", force=True)
        proxy.stall = False
        engine.flush()
        assert spent(engine) == [(Decimal("0.50"), 0), (2, 0)]


def test_rates_ceilings_and_the_kill_switch_hold_in_an_outage(proxy: DelayProxy) -> None:
    budgets = [
        {"scope": "user", "meter": "calls", "limit": 2, "window": "rolling:60s"},
        {"scope": "answer", "limit": "$0.05"},
        {"scope": "tenant", "limit": "$9", "window": "day"},
    ]
    with BudgetEngine.open(proxy.url, {**POLICY, "budgets": budgets, "on_store_error": "allow"}) as engine:
        engine.kill("evil")
        proxy.stall = True
        small = Call(model="m", tenant="acme", user="u1", amount="0.03", utterance="a")
        engine.reserve(small)
        with pytest.raises(BudgetExceeded) as refused:
            engine.reserve(small)
        assert refused.value.code == "answer_estimate"
        engine.reserve(Call(model="m", tenant="acme", user="u1", amount="0.03", utterance="b"))
        with pytest.raises(BudgetExceeded) as refused:
            engine.reserve(Call(model="m", tenant="acme", user="u1", amount="0.03", utterance="c"))
        assert refused.value.code == "calls"
        with pytest.raises(BudgetExceeded) as refused:
            engine.reserve(Call(model="m", tenant="evil", amount="0.01"))
        assert refused.value.code == "killed"
        proxy.stall = False


@pytest.mark.parametrize("cut", ["before", "after"])
def test_b028_a_connection_that_is_cut_books_the_degraded_call_once(proxy: DelayProxy, cut: str) -> None:
    with BudgetEngine.open(proxy.url, POLICY) as engine:
        engine.charge(CALL, cost="1")
        proxy.match = b"EVALSHA"
        setattr(proxy, f"cut_{cut}_request", 1)
        held = engine.reserve(CALL)
        engine.settle(held, cost="0.07")
        assert spent(engine) == [(Decimal("1.07"), 0), (2, 0)]


def test_b027_settles_that_were_not_answered_survive_the_process(proxy: DelayProxy) -> None:
    engine = BudgetEngine.open(proxy.url, POLICY)
    held = engine.reserve(CALL)
    proxy.stall = True
    assert engine.settle(held, cost="0.40").pending
    proxy.stall = False
    other = BudgetEngine.open(proxy.url, POLICY)
    other.flush()
    engine.flush()
    assert spent(other) == [(Decimal("0.40"), 0), (1, 0)]
    other.close()
    engine.close()


def test_a_settle_in_another_process_comes_after_its_call(proxy: DelayProxy) -> None:
    engine, other = (BudgetEngine.open(proxy.url, POLICY) for _ in range(2))
    open_calls = [engine.reserve(CALL) for _ in range(2)]
    proxy.stall = True
    held = pickle.loads(pickle.dumps(engine.reserve(CALL)))
    proxy.stall = False
    assert other.settle(held, cost="0.02").status == "settled"
    assert spent(other) == [(Decimal("0.02"), Decimal("0.20")), (3, 0)]
    engine.flush()
    assert spent(other) == [(Decimal("0.02"), Decimal("0.20")), (3, 0)]
    for one in open_calls:
        engine.release(one)
    engine.close()
    other.close()


CHILD = """
import sys, os, signal
from llm_budget_hooks import BudgetEngine, Call
from llm_budget_hooks.stores.redis.topology import Topology
url, journal, how = sys.argv[1:]
policy = {"budgets": [{"scope": "global", "limit": "$5", "window": "day"}], "store_timeout": "200ms",
          "degraded_allowance": "$2"}
engine = BudgetEngine.open(url, policy, journal=journal)
call = Call(model="m", amount="0.10")
engine.settle(engine.reserve(call), cost="0.03")
engine.reserve(call)
if how == "replayed":
    engine._store._breaker.close()
    engine._store._topology = Topology(f"redis://127.0.0.1:{os.environ['UPSTREAM']}/0")
    engine._store._reset()
    outage = engine._outage
    outage.done = lambda number, now_ms: os.kill(os.getpid(), signal.SIGKILL)
    engine.flush()
os.kill(os.getpid(), signal.SIGKILL) if how == "kill" else os._exit(9)
"""


@pytest.mark.parametrize("how", ["kill", "exit", "replayed"])
def test_b129_a_process_that_dies_leaves_what_it_let_through(
    redis_server: RedisServer, proxy: DelayProxy, tmp_path: Path, how: str
) -> None:
    journal = tmp_path / "j"
    proxy.stall = True
    environ = {**os.environ, "UPSTREAM": str(redis_server.port)}
    child = subprocess.run([sys.executable, "-c", CHILD, proxy.url, str(journal), how], env=environ, check=False)
    assert child.returncode == (9 if how == "exit" else -signal.SIGKILL)
    proxy.stall = False
    policy = {**POLICY, "budgets": BUDGETS[:1]}
    for _ in range(2):
        with BudgetEngine.open(proxy.url, policy, journal=journal) as engine:
            engine.flush()
            assert [(s.spent, s.reserved) for s in engine.status()] == [(Decimal("0.03"), Decimal("0.10"))]


def test_a_journal_that_was_copied_back_is_booked_once(proxy: DelayProxy, tmp_path: Path) -> None:
    policy = {**POLICY, "remember": "1ms"}
    with BudgetEngine.open(proxy.url, policy, journal=tmp_path / "j") as engine:
        proxy.stall = True
        engine.settle(engine.reserve(CALL), cost="0.08")
        with sqlite3.connect(tmp_path / "j") as journal, sqlite3.connect(tmp_path / "copy") as copy:
            journal.backup(copy)
        journal.close()
        copy.close()
        proxy.stall = False
    time.sleep(0.01)
    for _ in range(2):
        with BudgetEngine.open(proxy.url, policy, journal=tmp_path / "copy") as engine:
            engine.flush()
            assert spent(engine) == [(Decimal("0.08"), 0), (1, 0)]


def test_a_journal_that_cannot_be_written_makes_bounded_deny_and_says_so(
    proxy: DelayProxy, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "llm_budget_hooks"):
        engine = BudgetEngine.open(proxy.url, POLICY, journal="/dev/null/j")
    assert "bounded acts as deny" in caplog.text
    proxy.stall = True
    with pytest.raises(StoreUnavailable):
        engine.reserve(CALL)
    proxy.stall = False
    engine.close()


def test_a_full_disk_lets_nothing_through_and_loses_nothing(proxy: DelayProxy, tmp_path: Path) -> None:
    journal = tmp_path / "j"
    with BudgetEngine.open(proxy.url, {**POLICY, "degraded_allowance": "$4"}, journal=journal) as engine:
        first = engine.reserve(CALL)
        proxy.stall = True
        engine.settle(engine.reserve(CALL), cost="0.01")
        connection = engine._outage._journal._connection  # type: ignore[union-attr]  # there is one
        assert connection is not None
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")  # SQLite's own way to a full disk
        large = Call(model="m" * 50_000, tenant="acme", user="u1", amount="0.10")
        with pytest.raises(StoreUnavailable, match="full"):
            engine.reserve(large)
        connection.execute("PRAGMA max_page_count = 100000")
        assert engine.settle(first, cost="0.02").pending
        proxy.stall = False
        engine.flush()
        assert spent(engine) == [(Decimal("0.03"), 0), (2, 0)]


def test_an_outage_costs_one_timeout_and_not_one_per_call(proxy: DelayProxy) -> None:
    policy = {**POLICY, "store_timeout": "500ms", "on_store_error": "deny"}
    with BudgetEngine.open(proxy.url, policy) as engine:
        engine.reserve(CALL)
        proxy.stall = True
        began = time.monotonic()
        for _ in range(50):
            with pytest.raises(StoreUnavailable):
                engine.reserve(CALL)
        assert time.monotonic() - began < 2.0
        proxy.stall = False
        deadline = time.monotonic() + 20
        while engine.degraded and time.monotonic() < deadline:
            try:
                engine.reserve(CALL)
            except StoreUnavailable:
                time.sleep(0.05)
        assert not engine.degraded


@pytest.mark.parametrize("awaited", [False, True])
@pytest.mark.parametrize("way", ["unreachable", "stalled"])
def test_closing_while_the_store_is_away_costs_one_timeout_and_loses_nothing(
    redis_server: RedisServer, tmp_path: Path, way: str, awaited: bool
) -> None:
    with DelayProxy(redis_server.port) as proxy:
        opened = {"ledger": f"sqlite:///{tmp_path / 'l.db'}", "journal": tmp_path / "j"}
        engine = BudgetEngine.open(proxy.url, POLICY, **opened)
        held = engine.reserve(CALL)
        if way == "stalled":
            proxy.stall = True
        else:
            proxy.close()
        engine.settle(held, cost="0.04")
        began = time.monotonic()
        asyncio.run(engine.aclose()) if awaited else engine.close()
        assert time.monotonic() - began < 1.5  # two seconds, if it waited for the ledger
    with BudgetEngine.open(redis_server.url, POLICY, **opened) as engine:
        engine.flush()
        assert spent(engine)[0] == (Decimal("0.04"), 0)
        assert [run.booked_nusd for run in engine.ledger.runs().items] == [40_000_000]


def test_observers_are_told_when_it_begins_and_when_it_is_over(proxy: DelayProxy) -> None:
    events: list[Event] = []
    with BudgetEngine.open(proxy.url, POLICY, observers=(events.append,)) as engine:
        proxy.stall = True
        engine.settle(engine.reserve(CALL), cost="0.01")
        proxy.stall = False
        engine.flush()
    assert [event.kind for event in events] == ["degraded", "reserved", "settled", "restored"]


def test_a_file_that_cannot_be_written_is_store_trouble_too(tmp_path: Path) -> None:
    with BudgetEngine.open(f"sqlite:///{tmp_path / 'a.db'}", POLICY) as engine:
        engine.charge(CALL, cost="1")
        connection = engine._store._connection  # type: ignore[attr-defined]  # of SQLite
        connection.execute("PRAGMA query_only = ON")  # as on a read-only disk
        held = [engine.reserve(CALL) for _ in range(3)]
        with pytest.raises(StoreUnavailable):
            engine.reserve(CALL)
        engine.settle(held[0], cost="0.04")
        connection.execute("PRAGMA query_only = OFF")
        engine.release(held[1])
        engine.settle(held[2])
        assert spent(engine) == [(Decimal("1.14"), 0), (4, 0)]


def test_a_call_of_yesterday_is_booked_yesterday(proxy: DelayProxy, tmp_path: Path) -> None:
    now = datetime(2026, 3, 1, 23, 59, 59, tzinfo=UTC)
    with BudgetEngine.open(proxy.url, POLICY, journal=tmp_path / "j", clock=lambda: now) as engine:
        proxy.stall = True
        engine.settle(engine.reserve(CALL), cost="0.09")
        now += timedelta(seconds=2)
        proxy.stall = False
        engine.flush()
        assert spent(engine) == [(0, 0), (0, 0)]
        now -= timedelta(seconds=2)
        assert spent(engine) == [(Decimal("0.09"), 0), (1, 0)]


@pytest.mark.parametrize("known", [False, True])
def test_a_step_whose_history_cannot_be_read_passes_at_its_budget(proxy: DelayProxy, known: bool) -> None:
    prices = {"m": {"input": "$1", "output": "$2", "max_input_tokens": 1000, "max_output_tokens": 1000}}
    with BudgetEngine.open(proxy.url, {**POLICY, "prices": prices}) as engine:
        asked = Call(model="m", tenant="acme", user="u1", input_tokens=100)
        for _ in range(5 if known else 0):
            engine.settle(engine.reserve(asked), usage=Usage(input_tokens=100, output_tokens=50))
        proxy.stall = True
        held = engine.reserve(asked)
        assert held.basis == ("p90" if known else "step")
        assert engine.settle(held, usage=Usage(input_tokens=100, output_tokens=50)).pending
        proxy.stall = False
        engine.flush()
        assert spent(engine)[0] == (Decimal("0.0002") * (6 if known else 1), 0)


def test_refusals_of_an_outage_are_in_the_ledger_afterwards(proxy: DelayProxy, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.db"
    with BudgetEngine.open(proxy.url, POLICY, ledger=f"sqlite:///{ledger}") as engine:
        proxy.stall = True
        held = [engine.reserve(CALL) for _ in range(3)]
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                engine.reserve(CALL)
        engine.settle(held[0], cost="0.04")
        proxy.stall = False
        engine.flush()
        with sqlite3.connect(ledger) as rows:
            refused = rows.execute("SELECT code, sum(count) FROM ledger_refusals GROUP BY code").fetchall()
            runs = rows.execute("SELECT booked_nusd, status, tenant, user FROM ledger_runs").fetchall()
        rows.close()
        assert refused == [("store_unavailable", 2)]
        assert runs == [(40_000_000, "settled", "acme", "u1")]
