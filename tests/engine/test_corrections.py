"""Corrections of what is spent, on every store."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from one_user import Clock

from llm_budget_hooks import BudgetEngine, BudgetExceeded, Call, ConfigurationError

BUDGETS: list[dict[str, Any]] = [
    {"name": "all-day", "scope": "global", "limit": "$100", "window": "day"},
    {"name": "month", "scope": "tenant", "limit": "$100", "window": "month"},
    {"name": "fixed", "scope": "tenant", "limit": "$100", "window": "fixed:24h"},
    {"name": "rolling", "scope": "user", "limit": "$1", "window": "rolling:60s"},
    {"name": "calls", "scope": "user", "meter": "calls", "limit": 100, "window": "day"},
    {"name": "answers", "scope": "answer", "limit": "$50"},
]
Spent = dict[str, Decimal | int | None]


@pytest.fixture
def engine(engine_url: str, clock: Clock, tmp_path: Path) -> Iterator[BudgetEngine]:
    rules = {"budgets": BUDGETS, "store_timeout": "10s"}
    with BudgetEngine.open(engine_url, rules, clock=clock, ledger=f"sqlite:///{tmp_path / 'ledger.db'}") as opened:
        yield opened


def spend(engine: BudgetEngine, dollars: str) -> None:
    engine.settle(engine.reserve(Call(model="m", tenant="acme", user="u1", amount=dollars)), cost=dollars)


def spent(engine: BudgetEngine) -> Spent:
    return {status.budget: status.spent for status in engine.status("acme", "u1")}


def all_of(dollars: str, calls: int) -> Spent:
    return dict.fromkeys(("all-day", "month", "fixed", "rolling"), Decimal(dollars)) | {"calls": calls}


def test_b097_a_correction_brings_the_spend_back_and_the_row_stays(engine: BudgetEngine) -> None:
    spend(engine, "0.76")
    engine.adjust(tenant="acme", user="u1", cost="-0.40", reason="a price per million", by="ada")
    assert spent(engine) == all_of("0.36", 1)
    engine.adjust(tenant="acme", user="u1", cost="$0.10", reason="a line that was missing")
    assert spent(engine) == all_of("0.46", 1)
    engine.flush()
    assert [run.cost_nusd for run in engine.ledger.runs().items] == [760_000_000]
    rows = engine.ledger.adjustments().items
    assert sorted((row.booked_nusd, row.tenant, row.user, row.by) for row in rows) == [
        (-400_000_000, "acme", "u1", "ada"),
        (100_000_000, "acme", "u1", ""),
    ]


def test_a_correction_takes_an_account_to_zero_at_the_least(engine: BudgetEngine) -> None:
    spend(engine, "0.30")
    engine.adjust(tenant="acme", user="u1", cost="-5", reason="a reset")
    assert spent(engine) == all_of("0", 1)
    engine.flush()
    assert [row.booked_nusd for row in engine.ledger.adjustments().items] == [-300_000_000]


def test_one_budget_is_corrected_by_its_name(engine: BudgetEngine) -> None:
    spend(engine, "0.30")
    engine.adjust(tenant="acme", budget="month", cost="-0.10", reason="a refund")
    assert spent(engine) == all_of("0.3", 1) | {"month": Decimal("0.2")}


def test_what_is_taken_back_from_a_rolling_window_leaves_with_its_oldest(engine: BudgetEngine, clock: Clock) -> None:
    spend(engine, "0.20")
    clock.now += timedelta(seconds=30)
    spend(engine, "0.70")
    engine.adjust(tenant="acme", user="u1", budget="rolling", cost="-0.50", reason="too much")
    assert spent(engine)["rolling"] == Decimal("0.4")
    clock.now += timedelta(seconds=30)
    assert spent(engine)["rolling"] == Decimal("0.7")
    with pytest.raises(BudgetExceeded):
        spend(engine, "0.31")
    clock.now += timedelta(seconds=30)
    assert spent(engine)["rolling"] == 0


def test_a_correction_may_pass_a_limit_and_begins_no_window(engine: BudgetEngine) -> None:
    engine.adjust(tenant="acme", user="u1", cost="150", reason="a bill")
    found = spent(engine)
    assert (found["month"], found["fixed"], found["all-day"]) == (150, 0, 150)
    assert all(status.resets_at is None for status in engine.status("acme") if status.budget == "fixed")
    with pytest.raises(BudgetExceeded) as caught:
        spend(engine, "0.01")
    assert caught.value.failed == ("all-day", "month", "rolling")


def test_holds_stay_as_they_are(engine: BudgetEngine) -> None:
    held = engine.reserve(Call(model="m", tenant="acme", user="u1", amount="0.50"))
    engine.adjust(tenant="acme", user="u1", cost="-0.40", reason="nothing is spent")
    assert [status.reserved for status in engine.status("acme", "u1")][:4] == [Decimal("0.5")] * 4
    engine.settle(held, cost="0.50")
    assert spent(engine) == all_of("0.5", 1)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"cost": 0.4}, "float"),
        ({"cost": "NaN"}, "NaN"),
        ({"cost": "-1e9"}, "9,000,000"),
        ({"cost": "1", "budget": "calls"}, "'month'"),
        ({"cost": "1", "budget": "answers"}, "'month'"),
        ({"cost": "1", "tenant": None, "user": "u1"}, "name the tenant"),
        ({"cost": "1", "id": " "}, "adjust.id"),
    ],
)
def test_a_bad_correction_changes_nothing(engine: BudgetEngine, asked: dict[str, Any], says: str) -> None:
    spend(engine, "0.30")
    with pytest.raises(ConfigurationError, match=says):
        engine.adjust(**{"tenant": "acme", "user": "u1", "reason": "a test", **asked})
    assert spent(engine) == all_of("0.3", 1)


def test_nobody_without_a_tenant_is_corrected_but_everybody(engine: BudgetEngine) -> None:
    spend(engine, "0.30")
    engine.adjust(cost="1", reason="a bill for all")
    assert spent(engine) == all_of("0.3", 1) | {"all-day": Decimal("1.3")}


def test_a_correction_with_an_id_is_booked_once(engine: BudgetEngine, clock: Clock) -> None:
    spend(engine, "0.50")
    asked: dict[str, Any] = {"cost": "-0.20", "reason": "a bill", "id": "bill-7"}
    assert engine.adjust(tenant="acme", user="u1", **asked) == Decimal("-0.20")
    assert engine.adjust(tenant="acme", user="u1", **asked) == 0
    clock.now += timedelta(days=39)
    spend(engine, "0.50")
    assert engine.adjust(tenant="acme", user="u1", **asked) == 0
    assert engine.adjust(tenant="acme", user="u1", **asked | {"id": "bill-8"}) == Decimal("-0.20")
    engine.flush()
    rows = engine.ledger.adjustments().items
    assert [(row.id, row.booked_nusd) for row in rows] == [("bill-8", -200_000_000), ("bill-7", -200_000_000)]


def test_one_bill_for_all_and_for_a_tenant_is_once_in_what_both_share(engine: BudgetEngine) -> None:
    assert engine.adjust(cost="1", reason="a bill", id="bill") == 1
    assert engine.adjust(tenant="acme", cost="1", reason="a bill", id="bill") == 1
    assert {s.budget: s.spent for s in engine.status("acme")}["all-day"] == 1
    assert {s.budget: s.spent for s in engine.status("acme")}["month"] == 1


def test_a_row_that_was_not_written_is_written_by_who_asks_again(engine_url: str, clock: Clock, tmp_path: Path) -> None:
    rules = {"budgets": BUDGETS, "store_timeout": "10s", "namespace": "again"}
    with BudgetEngine.open(engine_url, rules, clock=clock, ledger=f"sqlite:///{tmp_path / 'l.db'}") as engine:
        engine._trail.drain, drain = None, engine._trail.drain  # its process dies before the row is in the outbox
        engine.adjust(tenant="acme", cost="1", reason="a bill", id="bill")
        engine._trail.drain = drain
        assert engine.adjust(tenant="acme", cost="1", reason="a bill", id="bill") == 0
        engine.flush()
        assert [(row.id, row.booked_nusd) for row in engine.ledger.adjustments().items] == [("bill", 10**9)]


def test_many_at_once_with_one_id_book_it_once(engine: BudgetEngine) -> None:
    engine.status("acme")
    with ThreadPoolExecutor(8) as threads:
        booked = list(threads.map(lambda _: engine.adjust(cost="1", reason="a bill", id="bill"), range(16)))
    assert sum(booked) == 1
    assert {s.budget: s.spent for s in engine.status("acme")}["all-day"] == 1
