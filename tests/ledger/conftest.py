"""A ledger on each kind of database; PostgreSQL is a real server that a wheel brings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from postgres_server import PostgresServer

from llm_budget_hooks.ledger import Ledger


@pytest.fixture(params=["sqlite", "postgres"])
def ledger_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'ledger.db'}"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.new_database()


@pytest.fixture
def ledger(ledger_url: str) -> Iterator[Ledger]:
    """An empty ledger."""
    made = Ledger.open(ledger_url, zone="Europe/Prague")
    yield made
    made.close()
