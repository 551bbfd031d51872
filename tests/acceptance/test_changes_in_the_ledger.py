"""Who changed what at run time is in the ledger and told to observers, on every store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from llm_budget_hooks import BudgetEngine
from llm_budget_hooks.models.events import Event

NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)
USER_DAY = {"name": "user-day", "scope": "user", "limit": "$1", "window": "day"}
ALL_DAY = {"name": "all-day", "scope": "global", "limit": "$9", "window": "day"}


@pytest.fixture
def told() -> list[Event]:
    return []


@pytest.fixture
def engine(engine_url: str, tmp_path: Path, told: list[Event]) -> Iterator[BudgetEngine]:
    rules = {"budgets": [USER_DAY, ALL_DAY], "store_timeout": "10s"}
    ledger = f"sqlite:///{tmp_path / 'ledger.db'}"
    opened = BudgetEngine.open(engine_url, rules, ledger=ledger, clock=lambda: NOON, observers=(told.append,))
    yield opened
    opened.close()


def events(engine: BudgetEngine) -> list[tuple[str, str, str, str]]:
    engine.flush()
    return sorted((row.name, row.tenant, row.by, row.text) for row in engine.ledger.events().items)


def test_each_kill_and_revival_is_an_event_with_who_and_why(engine: BudgetEngine, told: list[Event]) -> None:
    engine.kill("acme", reason="a loop", by="ada")
    engine.kill("acme", reason="again", by="bob")
    engine.kill(reason="night", by="cron")
    engine.revive("acme", by="eve")
    engine.revive("acme", by="eve")
    assert events(engine) == [
        ("killed", "", "cron", "night"),
        ("killed", "acme", "ada", "a loop"),
        ("revived", "acme", "eve", ""),
    ]
    assert [(event.kind, event.tenant, event.by) for event in told] == [
        ("killed", "acme", "ada"),
        ("killed", None, "cron"),
        ("revived", "acme", "eve"),
    ]


def test_the_third_injection_is_one_event_and_a_fourth_is_none(engine: BudgetEngine, told: list[Event]) -> None:
    assert [engine.report_injection("acme") for _ in range(4)] == [False, False, True, False]
    assert events(engine) == [("auto_engaged", "acme", "", "3 injections were reported within 5 minutes")]
    assert [event.kind for event in told] == ["auto_engaged"]


def test_each_override_is_a_row_with_who_what_and_until_when(engine: BudgetEngine, told: list[Event]) -> None:
    until = NOON + timedelta(hours=1)
    engine.override("user-day", "$2", tenant="acme", by="ada", reason="a demo", expires_at=until)
    engine.override("user-day", None, tenant="acme", by="bob")
    engine.override("user-day", None, tenant="acme", by="bob")
    engine.override("all-day", 50, by="ada")
    engine.flush()
    rows = sorted(engine.ledger.overrides().items, key=lambda row: (row.tenant, row.limit))
    assert [(row.tenant, row.budget, row.limit, row.by, row.reason) for row in rows] == [
        ("", "all-day", "50", "ada", ""),
        ("acme", "user-day", "", "bob", ""),
        ("acme", "user-day", "$2", "ada", "a demo"),
    ]
    assert [row.expires_ms for row in rows] == [None, None, round(until.timestamp() * 1000)]
    limits = [(event.kind, event.budget, event.limit) for event in told]
    dollar = 10**9
    assert limits == [
        ("override", "user-day", 2 * dollar),
        ("override", "user-day", None),
        ("override", "all-day", 50 * dollar),
    ]


def test_a_change_that_is_refused_leaves_nothing(engine: BudgetEngine, told: list[Event]) -> None:
    with pytest.raises(ValueError, match="no budget"):
        engine.override("unheard-of", "$2", tenant="acme")
    assert not engine.revive("acme")
    engine.flush()
    assert not engine.ledger.overrides().items
    assert events(engine) == []
    assert not told


def test_awaited_changes_are_noted_too(engine: BudgetEngine) -> None:
    async def change() -> None:
        await engine.akill("acme", by="ada")
        await engine.arevive("acme", by="bob")
        await engine.aoverride("user-day", "$2", tenant="acme", by="eve")
        await engine.aclose()

    asyncio.run(change())
    assert [row[2] for row in events(engine)] == ["ada", "bob"]
    assert [row.by for row in engine.ledger.overrides().items] == ["eve"]
