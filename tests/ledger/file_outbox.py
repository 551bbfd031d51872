"""An outbox that several processes share: the protocol's promises on an SQLite file."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing, contextmanager
from dataclasses import astuple
from typing import TYPE_CHECKING

from llm_budget_hooks.ledger.drain import LEASE_S, Batch
from llm_budget_hooks.models.trail import Entry

if TYPE_CHECKING:
    from collections.abc import Iterator


class FileOutbox:
    """Entries in a table, the lease in another; each take is one transaction."""

    def __init__(self, path: str) -> None:
        self._path = path
        with self._open() as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS entries (no INTEGER PRIMARY KEY, a, k, i, w, f, t)")
            connection.execute("CREATE TABLE IF NOT EXISTS lease (owner, until)")

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self._path, timeout=30, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.execute("COMMIT")

    def append(self, *entries: Entry) -> None:
        with self._open() as connection:
            rows = [astuple(entry)[1:] for entry in entries]
            connection.executemany("INSERT INTO entries (a, k, i, w, f, t) VALUES (?, ?, ?, ?, ?, ?)", rows)

    def count(self) -> int:
        with self._open() as connection:
            return int(connection.execute("SELECT count(*) FROM entries").fetchone()[0])

    def end_lease(self) -> None:
        with self._open() as connection:
            connection.execute("DELETE FROM lease")

    def take(self, owner: str, done: str, limit: int) -> Batch:
        with self._open() as connection:
            connection.execute("DELETE FROM entries WHERE no <= ?", (int(done or 0),))
            held = connection.execute("SELECT owner, until FROM lease").fetchone()
            if held and held[0] != owner and time.time() < held[1]:
                return Batch((), leased=False)
            connection.execute("DELETE FROM lease")
            connection.execute("INSERT INTO lease VALUES (?, ?)", (owner, time.time() + LEASE_S))
            rows = connection.execute("SELECT * FROM entries ORDER BY no LIMIT ?", (limit,)).fetchall()
            return Batch([Entry(f"{row[0]:09d}", *row[1:]) for row in rows])
