"""A PostgreSQL that stands still: its connections are open, and nothing answers."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest
from postgres_server import PostgresServer

from llm_budget_hooks.ledger import Ledger, LedgerUnavailable
from llm_budget_hooks.ledger import database as databases

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(databases, "_ANSWER_S", 2)
    monkeypatch.setattr(databases, "_PAUSE_S", 4)


def test_it_is_waited_for_once_and_then_left_in_peace(postgres: PostgresServer) -> None:
    ledger = Ledger.open(postgres.new_database())
    assert ledger.runs().items == ()
    with postgres.frozen():
        with pytest.raises(LedgerUnavailable):
            ledger.runs()
        with pytest.raises(LedgerUnavailable, match="asked again in a moment"):
            ledger.runs()
        assert ledger.projection(NOW) is None
    time.sleep(4.1)
    assert ledger.runs().items == ()
    ledger.close()


def test_a_statement_under_way_is_given_up(postgres: PostgresServer) -> None:
    database = databases.Database(postgres.new_database())
    with pytest.raises(LedgerUnavailable, match="did not answer within 3 s"):
        ask_frozen(postgres, database)
    database.close()


def ask_frozen(postgres: PostgresServer, database: databases.Database) -> None:
    with database.reading() as connection, postgres.frozen():
        connection.exec_driver_sql("SELECT 1")


def test_a_statement_that_takes_too_long_is_ended_by_the_server_and_others_go_on(postgres: PostgresServer) -> None:
    database = databases.Database(postgres.new_database())
    with pytest.raises(LedgerUnavailable, match="statement timeout"), database.reading() as connection:
        connection.exec_driver_sql("SELECT pg_sleep(30)")
    with database.reading() as connection:
        assert connection.exec_driver_sql("SELECT 1").scalar() == 1
    database.close()


def test_one_that_stands_still_from_the_beginning_is_waited_for_once(postgres: PostgresServer) -> None:
    ledger = Ledger.open(postgres.new_database())
    with postgres.frozen():
        with pytest.raises(LedgerUnavailable):
            ledger.runs()
        with pytest.raises(LedgerUnavailable, match="asked again in a moment"):
            ledger.runs()
    time.sleep(4.1)
    assert ledger.runs().items == ()
    ledger.close()
