"""What the ledger keeps, on SQLite and on PostgreSQL: once, whoever writes, and after rows are pruned."""

from __future__ import annotations

import os
import sqlite3
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest
import sqlalchemy as sa
from outboxes import AT_MS, settled
from postgres_server import PostgresServer

from llm_budget_hooks.errors import BudgetError, ConfigurationError
from llm_budget_hooks.ledger import Ledger, LedgerUnavailable, tables
from llm_budget_hooks.ledger.database import Database
from llm_budget_hooks.models.trail import Entry, adjustment_facts, event_facts, override_facts, refusal_facts
from llm_budget_hooks.stores.sqlite import SqliteStore
from llm_budget_hooks.transitions import Orphans, Terms

FAR = datetime(2100, 1, 1, tzinfo=UTC)
OTHERS = [
    Entry("1", AT_MS, "refusal", "x", "", refusal_facts(code="spend", limit=5)),
    Entry("2", AT_MS, "event", "x", "", event_facts("killed")),
    Entry("3", AT_MS, "override", "x", "", override_facts(tenant="acme", budget="user-day")),
    Entry("4", AT_MS, "adjust", "x", "", adjustment_facts(tenant="acme", booked_nusd=-400)),
]


def rows(ledger: Ledger, table: sa.Table) -> int:
    with ledger._database.reading() as connection:
        return connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()


def booked(ledger: Ledger) -> int:
    total = 0
    with ledger._database.reading() as connection:
        for table in (tables.runs, tables.months):
            total += int(connection.execute(sa.select(sa.func.sum(table.c.booked_nusd))).scalar() or 0)
    return total


def test_every_kind_of_entry_is_a_row_once(ledger: Ledger) -> None:
    for _ in range(2):
        ledger.write([settled(1), settled(2), settled(1), *OTHERS])
    counts = {t.name: rows(ledger, t) for t in (tables.runs, tables.refusals, tables.events, tables.overrides)}
    assert counts == {"ledger_runs": 2, "ledger_refusals": 1, "ledger_events": 1, "ledger_overrides": 2}
    assert booked(ledger) == 2_000


def test_the_ends_of_one_hold_are_rows_of_their_own(ledger: Ledger) -> None:
    final = settled(1, 700)
    expired = Entry("", AT_MS, "expired", "r-1", "open", final.facts)
    late = Entry("", AT_MS + 9, "settled", "r-1", "expired", final.facts, final.actual)
    ledger.write([expired, late])
    assert (rows(ledger, tables.runs), booked(ledger)) == (2, 700)


def test_an_entry_that_cannot_be_read_is_kept_and_holds_nothing_up(ledger: Ledger) -> None:
    ledger.write([settled(1), Entry("2", AT_MS, "settled", "r-2", "open", "not json"), settled(3)])
    assert (rows(ledger, tables.runs), rows(ledger, tables.events)) == (2, 1)


def test_b136_any_id_can_be_written(ledger: Ledger) -> None:
    users = ["a\0b", "{x}", "\ud800", "🦊" * 10_000, "'; drop table ledger_runs; --", " spaced ", "é"]
    ledger.write([settled(n, user=user, tenant=user, utterance=user) for n, user in enumerate(users)])
    assert rows(ledger, tables.runs) == len(users)


def test_many_writers_of_the_same_rows_write_each_once(ledger: Ledger) -> None:
    entries = [settled(n) for n in range(300)]
    failures: list[BaseException] = []

    def write(first: int) -> None:
        try:
            for at in range(first, 300, 50):
                ledger.write(entries[at : at + 100])
        except BaseException as error:  # noqa: BLE001 - handed to the test
            failures.append(error)

    threads = [threading.Thread(target=write, args=(first,)) for first in (0, 0, 25, 50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert (rows(ledger, tables.runs), booked(ledger)) == (300, 300_000)


def test_pruned_rows_are_kept_as_month_totals_and_cannot_be_booked_again(ledger: Ledger) -> None:
    old = [settled(n, at_ms=AT_MS) for n in range(700)]
    new = [settled(n, at_ms=AT_MS + 9_000) for n in range(700, 710)]
    ledger.write([*old, *new, *OTHERS])
    cut = datetime.fromtimestamp(AT_MS / 1000 + 5, UTC)
    assert ledger.prune(cut) == 702
    assert ledger.prune(cut) == 0
    ledger.write([*old, *new])
    assert (rows(ledger, tables.runs), booked(ledger)) == (10, 710_000)
    assert rows(ledger, tables.overrides) == 2
    with ledger._database.reading() as connection:
        kept = connection.execute(sa.select(tables.months)).all()
    assert [(row.month, row.calls, row.input_tokens, row.booked_nusd) for row in kept] == [
        ("2026-05", 700, 7_000, 700_000)
    ]


def test_pruning_while_the_same_rows_are_written_books_them_once(ledger: Ledger) -> None:
    entries = [settled(n) for n in range(400)]
    ledger.write(entries)
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            ledger.write(entries[100:300])

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(5):
            ledger.prune(FAR)
    finally:
        stop.set()
        writer.join()
    assert booked(ledger) == 400_000


def test_months_are_those_of_the_zone(ledger: Ledger) -> None:
    edge = round(datetime(2026, 10, 31, 23, 30, tzinfo=UTC).timestamp() * 1000)
    ledger.write([settled(1, at_ms=edge), settled(2, at_ms=edge - 3_600_000)])
    ledger.prune(FAR)
    with ledger._database.reading() as connection:
        months = connection.execute(sa.select(tables.months.c.month).order_by("month")).scalars().all()
    assert months == ["2026-10", "2026-11"]


def test_an_old_schema_is_migrated_and_a_later_one_is_refused(ledger_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = Ledger.open(ledger_url)
    before.write([settled(1)])
    before.close()

    def add_column(connection: sa.Connection) -> None:
        connection.execute(sa.text("ALTER TABLE ledger_runs ADD COLUMN colour VARCHAR"))

    with monkeypatch.context() as later:
        later.setattr(tables, "MIGRATIONS", (*tables.MIGRATIONS, add_column))
        for _ in range(2):
            after = Ledger.open(ledger_url)
            after.write([settled(2)])
            assert rows(after, tables.runs) == 2
            with after._database.reading() as connection:
                assert connection.execute(sa.text("SELECT colour FROM ledger_runs")).scalars().all() == [None, None]
            after.close()
    with pytest.raises(ConfigurationError, match="later version"):
        before.write([settled(3)])
    before.close()


def test_tables_are_made_once_by_many_at_a_time(ledger_url: str) -> None:
    ledgers = [Ledger.open(ledger_url) for _ in range(6)]
    threads = [threading.Thread(target=made.write, args=([settled(n)],)) for n, made in enumerate(ledgers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert rows(ledgers[0], tables.runs) == 6
    for made in ledgers:
        made.close()


def test_a_forked_copy_has_connections_of_its_own(ledger: Ledger) -> None:
    ledger.write([settled(1)])
    child = os.fork()
    if not child:
        try:
            ledger.write([settled(2)])
            os._exit(0)
        except BaseException:  # noqa: BLE001 - a forked test process must not go on
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    ledger.write([settled(3)])
    assert rows(ledger, tables.runs) == 3


def test_it_lives_in_the_file_of_a_store_whichever_comes_first(tmp_path: Path) -> None:
    for name in ("store", "ledger"):
        store = SqliteStore(tmp_path / f"{name}.db")
        ledger = Ledger.open(f"sqlite:///{tmp_path / f'{name}.db'}")
        steps = [lambda store=store: store.execute(Orphans(Terms())), lambda ledger=ledger: ledger.write([settled(1)])]
        for step in steps if name == "store" else reversed(steps):
            step()
        assert rows(ledger, tables.runs) == 1
        assert store.execute(Orphans(Terms())).holds == ()  # type: ignore[union-attr]  # it is so answered
        store.close()
        ledger.close()


def test_a_file_of_its_own_is_synced_at_each_commit_and_the_file_of_a_store_as_the_store_does(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.db")
    store.execute(Orphans(Terms()))
    levels = {}
    for name in ("store", "own"):
        ledger = Ledger.open(f"sqlite:///{tmp_path / name}.db")
        with ledger._database.reading() as connection:
            levels[name] = connection.exec_driver_sql("PRAGMA synchronous").scalar()
        ledger.close()
    assert levels == {"store": 1, "own": 2}
    store.close()


def test_a_store_answers_while_a_ledger_in_its_file_is_written(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "both.db")
    store.execute(Orphans(Terms()))
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'both.db'}")
    writer = threading.Thread(
        target=lambda: [ledger.write([settled(m) for m in range(n, n + 100)]) for n in range(0, 2_000, 100)]
    )
    writer.start()
    answers = 0
    while writer.is_alive():
        store.execute(Orphans(Terms()))
        answers += 1
    writer.join()
    assert answers > 20
    assert rows(ledger, tables.runs) == 2_000
    store.close()
    ledger.close()


def test_a_database_that_is_locked_is_an_error_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llm_budget_hooks.ledger.database._CONNECT_TIMEOUT_S", 0.05)
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}")
    ledger.write([settled(1)])
    other = sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(LedgerUnavailable, match="locked"):
        ledger.write([settled(2)])
    other.execute("ROLLBACK")
    other.close()
    ledger.write([settled(2)])
    assert rows(ledger, tables.runs) == 2
    ledger.close()


def test_a_server_that_is_away_is_an_error_that_names_no_password() -> None:
    ledger = Ledger.open("postgresql://someone:hunter2@127.0.0.1:1/none")
    with pytest.raises(LedgerUnavailable) as caught:
        ledger.write([settled(1)])
    assert isinstance(caught.value, BudgetError)
    assert "hunter2" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_a_server_that_comes_back_is_written_again() -> None:
    with PostgresServer() as server:
        ledger = Ledger.open(server.new_database())
        ledger.write([settled(1)])
        server.stop()
        with pytest.raises(LedgerUnavailable):
            ledger.write([settled(2)])
        server.start()
        ledger.write([settled(2)])
        assert rows(ledger, tables.runs) == 2
        ledger.close()


@pytest.mark.parametrize(
    "url", ["", "nonsense", "mysql://a/b", "sqlite://", "sqlite:///:memory:", "sqlite://host/x", None, "redis://x"]
)
def test_a_url_that_names_no_ledger_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError):
        Ledger.open(url)


def test_a_zone_has_to_exist() -> None:
    with pytest.raises(ConfigurationError, match="Pragu"):
        Ledger.open("sqlite:///x.db", zone="Europe/Pragu")


def test_opening_connects_to_nothing(tmp_path: Path) -> None:
    Ledger.open(f"sqlite:///{tmp_path / 'none.db'}").close()
    assert list(tmp_path.iterdir()) == []


def test_short_forms_of_a_url_mean_the_driver_that_is_there() -> None:
    assert Database("postgres://a@h/b").postgres
    assert Database("postgresql+psycopg://a@h/b").postgres
