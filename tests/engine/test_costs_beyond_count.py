"""Usage that no call can have, and costs above what is counted: booked as the most that is, and nothing breaks."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from one_user import Clock

from llm_budget_hooks import BudgetEngine, BudgetExceeded, Call, Reservation, Usage
from llm_budget_hooks.money import MAX_EXACT, to_decimal
from llm_budget_hooks.usage import usage_from

PRICES = {"x": {"input": "3", "output": "15", "per_search": "$100000", "per_image": "$0.04", "per_file_search": "$1"}}
BUDGETS = [
    {"name": "day", "scope": "tenant", "limit": "$9000000", "window": "day"},
    {"name": "rolling", "scope": "tenant", "limit": "$9000000", "window": "rolling:60s"},
    {"name": "fixed", "scope": "user", "limit": "$9000000", "window": "fixed:24h"},
    {"name": "tokens", "scope": "tenant", "meter": "tokens", "limit": 10**15, "window": "rolling:60s"},
    {"name": "answer", "scope": "answer", "limit": "$9000000"},
]
POLICY = {"prices": PRICES, "budgets": BUDGETS, "store_timeout": "10s"}
MOST = to_decimal(MAX_EXACT)
ABSURD = Usage(searches=10**12)
COUNTS = [name for name in Usage.__slots__ if name not in ("service_tier", "exact")]


@pytest.fixture
def engine(engine_url: str, clock: Clock, tmp_path: Path) -> Iterator[BudgetEngine]:
    engine = BudgetEngine.open(engine_url, POLICY, ledger=f"sqlite:///{tmp_path / 'ledger.db'}", clock=clock)
    yield engine
    engine.close()


def call(**more: Any) -> Call:
    return Call(**{"model": "x", "tenant": "acme", "user": "u1", "amount": "1", "input_tokens": 10, **more})


def balances(engine: BudgetEngine, tenant: str = "acme") -> dict[str, tuple[Any, Any]]:
    return {s.budget: (s.spent, s.reserved) for s in engine.status(tenant=tenant, user="u1")}


def test_a_cost_above_what_is_counted_is_booked_as_the_most_that_is(engine: BudgetEngine, clock: Clock) -> None:
    done = engine.settle(engine.reserve(call()), usage=ABSURD)
    assert (done.status, done.cost, done.exact) == ("settled", MOST, False)
    assert balances(engine) == {
        "day": (MOST, 0), "rolling": (MOST, 0), "fixed": (MOST, 0), "tokens": (0, 0),
    }  # fmt: skip
    with pytest.raises(BudgetExceeded) as refused:
        engine.reserve(call())
    assert (refused.value.code, refused.value.budget) == ("spend", "day")
    assert engine.reserve(call(tenant="other")).estimate == 1, "nobody else is touched"
    engine.flush()
    (run,) = engine.ledger.runs(tenant="acme").items
    assert (run.cost_nusd, run.booked_nusd, run.exact, run.searches) == (MAX_EXACT, MAX_EXACT, False, 10**12)
    assert "it cost more than is counted" in run.flags
    clock.now += timedelta(minutes=2)
    assert balances(engine)["rolling"] == (0, 0)


def test_sums_of_such_costs_stop_at_the_most_that_is_counted_and_leave_a_window_whole(
    engine: BudgetEngine, clock: Clock
) -> None:
    for held in [engine.reserve(call()) for _ in range(3)]:
        engine.settle(held, usage=ABSURD)
    assert engine.charge(call(), usage=ABSURD, force=True).cost == MOST
    engine.charge(call(), cost="5", force=True)
    assert {name: balances(engine)[name] for name in ("day", "rolling", "fixed")} == dict.fromkeys(
        ("day", "rolling", "fixed"), (MOST, 0)
    )
    clock.now += timedelta(minutes=2)
    assert balances(engine)["rolling"] == (0, 0)
    engine.adjust(tenant="acme", user="u1", cost="-9000000", reason="nobody searched so much")
    assert balances(engine)["day"] == (MOST - 9_000_000, 0)
    assert engine.reserve(call(user="u2")).estimate == 1


def test_a_late_truth_about_a_hold_that_no_sum_had_room_for_gives_no_credit(engine: BudgetEngine, clock: Clock) -> None:
    late = [engine.reserve(call(amount="100000")) for _ in range(2)]
    engine.settle(engine.reserve(call()), usage=ABSURD)
    for held in late:
        engine.settle(held)
    clock.now += timedelta(seconds=30)
    for held in late:
        assert engine.settle(held, cost=0).status == "late"
    engine.charge(call(), cost="2", force=True)
    clock.now += timedelta(seconds=31)
    assert balances(engine)["rolling"][0] >= 2
    clock.now += timedelta(seconds=30)
    assert balances(engine)["rolling"] == (0, 0)


def test_the_history_of_a_step_does_not_learn_from_what_no_call_can_have_cost(engine: BudgetEngine) -> None:
    for _ in range(6):
        held = engine.reserve(call(amount=None, max_output_tokens=1000))
        engine.settle(held, usage=Usage(input_tokens=10, output_tokens=5))
    held = engine.reserve(call(amount=None, max_output_tokens=1000))
    engine.settle(held, usage=Usage(input_tokens=10, output_tokens=10**10))
    assert engine.reserve(call(amount=None)).estimate < 1


numbers = itertools.count()
whole = st.one_of(st.integers(0, 10**30), st.sampled_from([0, 1, 2**31, 2**53, 2**63, 10**12, 10**15]))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(made=st.dictionaries(st.sampled_from(COUNTS), whole, min_size=1), forced=st.booleans())
def test_any_usage_is_booked_and_the_engine_works_on(engine: BudgetEngine, made: dict[str, int], forced: bool) -> None:
    tenant = f"t{next(numbers)}"
    said = usage_from({"usage": {**made, "prompt_tokens": made.get("input_tokens", 0)}})
    by_hand = Usage(**{name: min(count, 10**12) for name, count in made.items()})
    for usage in (by_hand, by_hand if said is None else said):
        held = engine.reserve(call(tenant=tenant)) if not forced else None
        if held is None:
            done = engine.charge(call(tenant=tenant), usage=usage, force=True)
        else:
            done = engine.settle(held, usage=usage)
        assert done.status == "settled"
        assert 0 <= done.cost <= MOST
        for spent, reserved in balances(engine, tenant).values():
            assert 0 <= spent <= MAX_EXACT
            assert reserved == 0
        engine.adjust(tenant=tenant, user="u1", cost="-9000000", reason="again")
    engine.flush()
    booked = [run.booked_nusd for run in engine.ledger.runs(tenant=tenant).items]
    assert len(booked) == 2
    assert all(0 <= nusd <= MAX_EXACT for nusd in booked)


@contextmanager
def broken(path: Path) -> Iterator[None]:
    """Rolling accounts that cannot be read, for as long as this lasts."""
    read = "SELECT key, body FROM cells WHERE body LIKE 'L %'"
    with closing(sqlite3.connect(path)) as file:
        kept = file.execute(read).fetchall()
        with file:
            file.execute("UPDATE cells SET body = 'L not a number' WHERE body LIKE 'L %'")
        yield
        with file:
            file.executemany("UPDATE cells SET body = ?2 WHERE key = ?1", kept)


def settle_while_locked(path: Path, engine: BudgetEngine, held: Reservation) -> None:
    """Settle a hold that the store is to be told of later, as somebody else writes to its file."""
    with closing(sqlite3.connect(path)) as file:
        file.execute("BEGIN IMMEDIATE")
        assert engine.settle(held, usage=Usage(input_tokens=1)).pending


def test_what_makes_a_store_fail_is_not_in_the_way_of_other_calls(tmp_path: Path) -> None:
    path = tmp_path / "budget.db"
    with BudgetEngine.open(f"sqlite:///{path}", POLICY) as engine:
        held, other = engine.reserve(call()), engine.reserve(call(tenant="other"))
        engine.release(other)
        with broken(path), pytest.raises(ValueError, match="not"):
            engine.settle(held, usage=Usage(input_tokens=1))
        assert engine.status(tenant="other")[0].spent == 0
        assert engine.reserve(call(tenant="other")).estimate == 1
        assert engine.settle(held, usage=Usage(input_tokens=1)).status == "settled", "it can be asked for again"


def test_what_is_sent_later_and_makes_a_store_fail_is_dropped_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "budget.db"
    with BudgetEngine.open(f"sqlite:///{path}", POLICY | {"on_store_error": "deny", "store_timeout": "50ms"}) as engine:
        held = engine.reserve(call(user="somebody"))
        settle_while_locked(path, engine, held)
        with broken(path):
            assert engine.reserve(call(tenant="other")).estimate == 1
        assert "dropped" in caplog.text
        assert "somebody" not in caplog.text
        assert engine.status(tenant="acme")[0].reserved == 1, "it is charged what it held once it expires"


def test_what_the_journal_has_and_makes_a_store_fail_is_dropped_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "budget.db"
    policy = POLICY | {"on_store_error": "bounded", "degraded_allowance": "$10", "store_timeout": "50ms"}
    with BudgetEngine.open(f"sqlite:///{path}", policy) as engine:
        held = engine.reserve(call())
        settle_while_locked(path, engine, held)
        with broken(path):
            assert engine.reserve(call(tenant="other")).estimate == 1
        assert "dropped" in caplog.text
        assert engine.reserve(call(tenant="other")).estimate == 1
