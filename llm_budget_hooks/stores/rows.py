"""How the records of the state machine lie in SQLite.

A cell is a row of text: whole numbers parted by spaces, led by a letter that says what it is. Open holds are
listed by scope and deadline in a table of their own, so that due ones are found without an index on holds.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from llm_budget_hooks.transitions import MAX_AMOUNT, Hold, Rule, Shape, State
from llm_budget_hooks.transitions.rolling import Entry, Log

SCHEMA_VERSION = 1
SCHEMA = (
    "CREATE TABLE cells (key TEXT PRIMARY KEY, value TEXT NOT NULL, until INTEGER NOT NULL) WITHOUT ROWID",
    """CREATE TABLE holds (
        id TEXT PRIMARY KEY, content TEXT NOT NULL, state INTEGER NOT NULL, created INTEGER NOT NULL,
        deadline INTEGER NOT NULL, timeout INTEGER NOT NULL, shape TEXT NOT NULL, keys TEXT NOT NULL,
        scopes TEXT NOT NULL, held TEXT NOT NULL, starts TEXT NOT NULL, note TEXT NOT NULL, cost INTEGER,
        tokens INTEGER, until INTEGER NOT NULL) WITHOUT ROWID""",
    "CREATE INDEX expired ON holds (until) WHERE state = 1",
    "CREATE TABLE open (scope TEXT, deadline INTEGER, id TEXT, PRIMARY KEY (scope, deadline, id)) WITHOUT ROWID",
)
_PURGE_ROWS = 256


class SqliteCells:
    """The records of a namespace in one transaction; changed cells are written at its end."""

    def __init__(self, connection: sqlite3.Connection, namespace: str) -> None:
        self._execute = connection.execute
        self._executemany = connection.executemany
        self._prefix = f"{namespace}/"
        self._changed: dict[str, tuple[Any, int]] = {}
        self._cursors = {"cells": "", "holds": ""}

    def load(self, keys: Sequence[str]) -> list[Any]:
        """See `Cells.load`."""
        prefix = self._prefix
        names = [prefix + key for key in keys]
        found = dict(self._execute(_select(len(names)), names))
        if not self._changed:
            return [_read(found[name]) if name in found else None for name in names]
        return [
            self._changed[name][0] if name in self._changed else _read(found[name]) if name in found else None
            for name in names
        ]

    def save(self, key: str, cell: Any, until_ms: int) -> None:
        """See `Cells.save`."""
        self._changed[self._prefix + key] = (cell, until_ms)

    def append(self, key: str, entry: Entry, until_ms: int) -> None:
        """See `Cells.append`."""
        self._execute(
            "INSERT INTO cells VALUES (?, 'E' || ?, ?) ON CONFLICT (key) "
            "DO UPDATE SET value = value || substr(excluded.value, 2), until = excluded.until",
            (self._prefix + key, f" {entry[0]} {entry[1]}", until_ms),
        )

    def hold(self, id: str) -> Hold | None:
        """See `Cells.hold`."""
        row = self._execute("SELECT * FROM holds WHERE id = ?", (self._prefix + id,)).fetchone()
        return _hold(row) if row is not None else None

    def save_hold(self, id: str, hold: Hold) -> None:
        """See `Cells.save_hold`."""
        self._execute(
            "INSERT OR REPLACE INTO holds VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
            (
                self._prefix + id, hold.content, hold.state, hold.created_ms, hold.deadline_ms, hold.timeout_ms,
                _shape_text(hold.shape), " ".join(hold.keys), " ".join(hold.scopes), _numbers(hold.held),
                _numbers(hold.starts), hold.note, hold.cost_nusd, hold.tokens, hold.until_ms,
            ),
        )  # fmt: skip

    def enter(self, id: str, scopes: Sequence[str], deadline_ms: int) -> None:
        """See `Cells.enter`."""
        prefix = self._prefix
        self._executemany("INSERT OR IGNORE INTO open VALUES (?,?,?)", [(prefix + s, deadline_ms, id) for s in scopes])

    def leave(self, id: str, scopes: Sequence[str], deadline_ms: int) -> None:
        """See `Cells.leave`."""
        prefix = self._prefix
        self._executemany(
            "DELETE FROM open WHERE scope = ? AND deadline = ? AND id = ?",
            [(prefix + s, deadline_ms, id) for s in scopes],
        )

    def first(self, scope: str, limit: int) -> list[tuple[int, str]]:
        """See `Cells.first`."""
        return self._execute(
            "SELECT deadline, id FROM open WHERE scope = ? ORDER BY deadline, id LIMIT ?", (self._prefix + scope, limit)
        ).fetchall()

    def due_at(self) -> int:
        """See `Cells.due_at`."""
        first = self.first("", 1)
        return first[0][0] if first else MAX_AMOUNT

    def expired(self, id: str, until_ms: int) -> None:
        """Nothing to do: expired holds are found by their state."""

    def orphans(self, now_ms: int, limit: int) -> list[str]:
        """See `Cells.orphans`."""
        rows = self._execute(
            "SELECT id FROM holds WHERE state = ? AND until > ? AND id > ? AND id < ? ORDER BY until LIMIT ?",
            (int(State.EXPIRED), now_ms, self._prefix, self._prefix[:-1] + "0", limit),
        )
        return [row[0][len(self._prefix) :] for row in rows]

    def write(self) -> None:
        """Write the changed cells."""
        if self._changed:
            rows = [(name, _text(cell), until) for name, (cell, until) in self._changed.items()]
            self._changed.clear()
            self._executemany(
                "INSERT INTO cells VALUES (?,?,?) ON CONFLICT (key) "
                "DO UPDATE SET value = excluded.value, until = excluded.until",
                rows,
            )

    def forget(self) -> None:
        """Drop the changes of a transaction that failed."""
        self._changed.clear()

    def purge(self, now_ms: int) -> None:
        """Delete the old ones among the next few rows; the whole table is passed through in time."""
        for table, key, old in (("cells", "key", "until < ?"), ("holds", "id", "state <> 0 AND until < ?")):
            rows = f"SELECT {key} FROM {table} WHERE {key} > ? ORDER BY {key} LIMIT {_PURGE_ROWS}"  # noqa: S608 - fixed words
            last = self._execute(f"SELECT max({key}) FROM ({rows})", (self._cursors[table],)).fetchone()[0]  # noqa: S608 - fixed words
            if last is not None:
                self._execute(
                    f"DELETE FROM {table} WHERE {key} > ? AND {key} <= ? AND {old}",  # noqa: S608 - fixed words
                    (self._cursors[table], last, now_ms),
                )
            self._cursors[table] = last or ""


@lru_cache(maxsize=128)
def _select(count: int) -> str:
    return f"SELECT key, value FROM cells WHERE key IN ({','.join('?' * count)})"  # noqa: S608 - only question marks


def _read(text: str) -> Any:
    head = text[0]
    if head == "A":
        return [*map(int, text[1:].split(" "))]
    parts = text.split(" ")
    if head == "U":
        return [int(parts[1]), int(parts[2]), int(parts[3]), parts[4:]]
    numbers = [*map(int, parts[1:])]
    if head == "E":
        return [*zip(numbers[::2], numbers[1::2], strict=True)]
    slots = [numbers[at : at + 3] for at in range(3, len(numbers), 3)]
    return Log(numbers[0], numbers[1], numbers[2], slots)


def _text(cell: Any) -> str:
    if type(cell) is Log:
        slots = "".join([f" {number} {total} {count}" for number, total, count in cell.slots])
        return f"L {cell.reserved} {cell.total} {cell.count}{slots}"
    if len(cell) == 3:
        return f"A{cell[0]} {cell[1]} {cell[2]}"
    hits = "".join([f" {hit}" for hit in cell[3]])
    return f"U {cell[0]} {cell[1]} {cell[2]}{hits}"


def _numbers(numbers: Sequence[int]) -> str:
    return " ".join(map(str, numbers))


def _shape_text(shape: Shape) -> str:
    if shape.encoded is None:
        rules = [
            "\t".join((r.budget, r.scope, *map(str, (r.meter, r.kind, r.limit, r.ends_ms, r.length_ms))))
            for r in shape.rules
        ]
        shape.encoded = "\n".join(rules).encode()
    return shape.encoded.decode()


@lru_cache(maxsize=1024)
def _shape(text: str) -> Shape:
    rules = []
    for line in text.split("\n") if text else ():
        budget, scope, *numbers = line.split("\t")
        meter, kind, limit, ends_ms, length_ms = map(int, numbers)
        rules.append(Rule(budget, scope, meter, kind, limit, ends_ms, length_ms))
    return Shape(tuple(rules))


def _hold(row: Sequence[Any]) -> Hold:
    shape = _shape(row[6])
    count = len(shape.rules)
    return Hold(
        row[1], row[2], row[3], row[4], row[5], shape,
        tuple(row[7].split(" ")) if count else (),
        tuple(row[8].split(" ")),
        tuple(map(int, row[9].split(" "))) if count else (),
        tuple(map(int, row[10].split(" "))) if count else (),
        row[11], row[12], row[13], row[14],
    )  # fmt: skip
