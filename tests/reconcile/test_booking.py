"""Corrections of what is flagged: in the balances of now and in the ledger, each once."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from ledgers import DAY, NEXT, NOON, Written

from llm_budget_hooks import BudgetEngine, BudgetExceeded, Call
from llm_budget_hooks.errors import ConfigurationError
from llm_budget_hooks.reconcile import Billed, book, reconcile


def test_a_correction_that_cannot_be_keeps_the_others_from_being_booked(tmp_path: Path) -> None:
    rules = {"budgets": [{"name": "all", "scope": "global", "limit": "$50", "window": "day"}]}
    ledger = f"sqlite:///{tmp_path / 'ledger.db'}"
    with BudgetEngine.open("memory://", rules, ledger=ledger, clock=lambda: NOON) as engine:
        engine.charge(Call(model="claude-sonnet-4-5"), cost="0.50")
        engine.flush()
        books = Written(Billed(DAY, "claude-sonnet-4-5", Decimal(1)), Billed(DAY, "gpt-4o", Decimal(99_999_999)))
        result = reconcile(engine.ledger, books, DAY, NEXT, now=NOON + timedelta(days=10))
        assert len(result.flagged) == 2
        with pytest.raises(ConfigurationError, match=r"gpt-4o: .* nothing is booked"):
            book(engine, result)
        assert [status.spent for status in engine.status()] == [Decimal("0.5")]


def test_corrections_are_seen_by_limits_and_by_the_next_comparison(tmp_path: Path) -> None:
    now = [NOON]
    rules = {"budgets": [
        {"name": "all", "scope": "global", "limit": "$1", "window": "month"},
        {"name": "acme", "scope": "tenant", "limit": "$10", "window": "month"},
    ]}  # fmt: skip
    ledger = f"sqlite:///{tmp_path / 'ledger.db'}"
    with BudgetEngine.open("memory://", rules, clock=lambda: now[0], ledger=ledger) as engine:
        engine.charge(Call(model="gpt-4o", tenant="acme"), cost="0.40")
        engine.charge(Call(model="gpt-4o-mini", tenant="acme"), cost="0.30")
        engine.flush()
        now[0] += timedelta(days=2)
        books = Written(Billed(DAY, "gpt-4o", Decimal("0.75")), Billed(DAY, "gpt-4o-mini", Decimal("0.20")))
        found = reconcile(engine.ledger, books, DAY, NEXT, now=now[0])
        assert book(engine, found, by="me") == Decimal("0.25")
        assert [line.spent for line in engine.status(tenant="acme")] == [Decimal("0.95"), Decimal("0.7")]
        with pytest.raises(BudgetExceeded):
            engine.reserve(Call(model="gpt-4o", amount="0.10"))
        rows = engine.ledger.adjustments().items
        assert [(row.booked_nusd, row.by, row.reason) for row in reversed(rows)] == [
            (350_000_000, "me", "reconcile 2026-11-01 gpt-4o: not known"),
            (-100_000_000, "me", "reconcile 2026-11-01 gpt-4o-mini: not known"),
        ]
        again = reconcile(engine.ledger, books, DAY, NEXT, now=now[0])
        assert (again.flagged, [line.ledger for line in again.lines]) == ((), [Decimal("0.75"), Decimal("0.2")])
        assert book(engine, again) == 0


def test_corrections_of_a_tenant_reach_its_budgets(tmp_path: Path) -> None:
    rules = {"budgets": [{"name": "acme", "scope": "tenant", "limit": "$10", "window": "month"}]}
    ledger = f"sqlite:///{tmp_path / 'ledger.db'}"
    with BudgetEngine.open("memory://", rules, ledger=ledger, clock=lambda: NOON) as engine:
        found = reconcile(engine.ledger, Written(Billed(DAY, "gpt-4o", Decimal("0.75"))), DAY, NEXT)
        with pytest.raises(ConfigurationError, match="name the tenant"):
            book(engine, found)
        book(engine, found, tenant="acme")
        assert engine.status(tenant="acme")[0].spent == Decimal("0.75")
    with BudgetEngine.open("memory://", rules) as without, pytest.raises(ConfigurationError, match="ledger"):
        book(without, found, tenant="acme")


RULES = {"budgets": [{"name": "all", "scope": "global", "limit": "$50", "window": "day"}]}
BILL = Written(Billed(DAY, "gpt-4o", Decimal("0.75")))
LATER = NOON + timedelta(days=10)


@pytest.fixture
def shared(shared_url: str, tmp_path: Path) -> Iterator[Callable[[], BudgetEngine]]:
    """Opens engines on one store and one ledger, in which there is a call of $0.40."""
    ledger = f"sqlite:///{tmp_path / 'ledger.db'}"
    with ExitStack() as opened:

        def engine() -> BudgetEngine:
            return opened.enter_context(BudgetEngine.open(shared_url, RULES, ledger=ledger, clock=lambda: NOON))

        with BudgetEngine.open(shared_url, RULES, ledger=ledger, clock=lambda: NOON) as first:
            first.charge(Call(model="gpt-4o"), cost="0.40")
        yield engine


def test_two_runs_that_overlap_book_once(shared: Callable[[], BudgetEngine]) -> None:
    one, other = shared(), shared()
    found = [reconcile(engine.ledger, BILL, DAY, NEXT, now=LATER) for engine in (one, other)]
    assert [book(engine, each) for engine, each in zip((one, other), found, strict=True)] == [Decimal("0.35"), 0]
    assert book(one, found[0]) == 0
    assert one.status()[0].spent == Decimal("0.75")
    assert [row.booked_nusd for row in one.ledger.adjustments().items] == [350_000_000]


def test_runs_that_overlap_with_other_amounts_book_the_first(shared: Callable[[], BudgetEngine]) -> None:
    one, other = shared(), shared()
    found = reconcile(one.ledger, BILL, DAY, NEXT, now=LATER)
    grown = Written(Billed(DAY, "gpt-4o", Decimal("0.90")))
    assert book(other, reconcile(other.ledger, grown, DAY, NEXT, now=LATER)) == Decimal("0.50")
    assert book(one, found) == 0
    assert book(one, reconcile(one.ledger, BILL, DAY, NEXT, now=LATER)) == Decimal("-0.15")
    assert book(one, reconcile(one.ledger, grown, DAY, NEXT, now=LATER)) == Decimal("0.15")
    assert one.status()[0].spent == Decimal("0.90")


def test_a_ledger_that_cannot_be_written_is_no_reason_to_book_again(tmp_path: Path) -> None:
    store, ledger = f"sqlite:///{tmp_path / 'store.db'}", f"sqlite:///{tmp_path / 'ledger.db'}"
    with ExitStack() as opened:
        engines = [
            opened.enter_context(BudgetEngine.open(store, RULES, ledger=ledger, clock=lambda: NOON)) for _ in range(2)
        ]
        other = opened.enter_context(closing(sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)))
        for engine in engines:
            assert engine.ledger.adjustments().items == ()
        other.execute("BEGIN IMMEDIATE")
        for engine, booked in zip(engines, (Decimal("0.75"), 0), strict=True):
            assert book(engine, reconcile(engine.ledger, BILL, DAY, NEXT, now=LATER)) == booked
        other.execute("ROLLBACK")
        engines[0].flush()
        assert reconcile(engines[0].ledger, BILL, DAY, NEXT, now=LATER).flagged == ()
        assert [status.spent for status in engines[0].status()] == [Decimal("0.75")]


def test_what_is_taken_back_at_the_same_time_is_taken_back_once(shared: Callable[[], BudgetEngine]) -> None:
    engines = [shared() for _ in range(4)]
    less = Written(Billed(DAY, "gpt-4o", Decimal("0.30")))
    found = [reconcile(engine.ledger, less, DAY, NEXT, now=LATER) for engine in engines]
    with ThreadPoolExecutor(4) as threads:
        booked = list(threads.map(book, engines, found))
    assert sum(booked) == Decimal("-0.10")
    assert engines[0].status()[0].spent == Decimal("0.30")
    assert [row.booked_nusd for row in engines[0].ledger.adjustments().items] == [-100_000_000]


def test_a_correction_by_the_books_of_one_provider_is_none_of_anothers(shared: Callable[[], BudgetEngine]) -> None:
    engine = shared()
    engine.charge(Call(model="azure/gpt-4o"), cost="0.40")
    engine.flush()
    bills = {name: Written(Billed(DAY, "gpt-4o", Decimal("0.75")), provider=name) for name in ("openai", "azure")}
    for name in bills:
        assert book(engine, reconcile(engine.ledger, bills[name], DAY, NEXT, now=LATER)) == Decimal("0.35"), name
    for bill in bills.values():
        assert reconcile(engine.ledger, bill, DAY, NEXT, now=LATER).flagged == ()
    both = Written(Billed(DAY, "gpt-4o", Decimal("1.50")))
    assert reconcile(engine.ledger, both, DAY, NEXT, now=LATER).flagged == ()


def test_what_is_owed_is_booked_before_what_is_taken_back(shared: Callable[[], BudgetEngine]) -> None:
    engine = shared()
    engine.charge(Call(model="gpt-4o-mini"), cost="0.20")
    engine.flush()
    bill = Written(
        Billed(DAY, "gpt-4o", Decimal(0)), Billed(DAY, "gpt-4o-mini", Decimal(0)), Billed(DAY, "o3", Decimal(1)),
        provider="openai",
    )  # fmt: skip
    engine.adjust(cost="-0.50", reason="a gift")
    assert book(engine, reconcile(engine.ledger, bill, DAY, NEXT, now=LATER)) == Decimal("0.4")
    assert engine.status()[0].spent == Decimal("0.5")
    assert reconcile(engine.ledger, bill, DAY, NEXT, now=LATER).flagged == ()
