"""How the records of the state machine lie in SQLite.

A cell is a row of up to three numbers and a text: whole numbers parted by spaces, led by a letter that says what it
is. Open holds are found by scope and deadline through partial indexes, which their row keeps by itself.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from llm_budget_hooks.transitions import MAX_AMOUNT, PROVISIONAL_MS, History, Hold, Rule, Shape, State
from llm_budget_hooks.transitions.rolling import NEVER, Entry, Log

SCHEMA_VERSION = 3
SCHEMA = (
    """CREATE TABLE cells (
        key TEXT PRIMARY KEY, a INTEGER, b INTEGER, c INTEGER, body TEXT, until INTEGER NOT NULL) WITHOUT ROWID""",
    """CREATE TABLE entries (
        key TEXT, at INTEGER, serial INTEGER, amount INTEGER NOT NULL, until INTEGER NOT NULL,
        PRIMARY KEY (key, at, serial)) WITHOUT ROWID""",
    """CREATE TABLE holds (
        id TEXT PRIMARY KEY, state INTEGER NOT NULL, deadline INTEGER NOT NULL, until INTEGER NOT NULL,
        rules TEXT NOT NULL, body TEXT NOT NULL, content TEXT NOT NULL, note TEXT NOT NULL,
        cost INTEGER, tokens INTEGER, space TEXT NOT NULL, narrow TEXT, wide TEXT) WITHOUT ROWID""",
    "CREATE INDEX expired ON holds (until) WHERE state = 1",
    "CREATE INDEX open ON holds (space, deadline, id) WHERE state = 0",
    "CREATE INDEX open_narrow ON holds (narrow, deadline, id) WHERE state = 0 AND narrow IS NOT NULL",
    "CREATE INDEX open_wide ON holds (wide, deadline, id) WHERE state = 0 AND wide IS NOT NULL",
    "CREATE TABLE settings (space TEXT, name TEXT, value TEXT NOT NULL, PRIMARY KEY (space, name)) WITHOUT ROWID",
    "CREATE TABLE outbox (number INTEGER PRIMARY KEY AUTOINCREMENT, space TEXT NOT NULL, entry TEXT NOT NULL)",
    "CREATE INDEX outbox_of ON outbox (space, number)",
)
TABLES = ("cells", "entries", "holds", "settings", "outbox")
_PURGE_ROWS = 256
_FORGOTTEN = (
    f"state <> {int(State.OPEN)} AND until < ? - CASE WHEN state IN ({int(State.EXPIRED)}, {int(State.CHARGED)}) "
    f"THEN {PROVISIONAL_MS} ELSE 0 END"
)
_DROPPED = "!dropped"
_FIRST = "SELECT deadline, id FROM holds WHERE state = 0 AND space = ? ORDER BY deadline, id LIMIT ?"
_FIRST_OF = (
    "SELECT deadline, id FROM holds WHERE state = 0 AND narrow = ? "
    "UNION ALL SELECT deadline, id FROM holds WHERE state = 0 AND wide = ? ORDER BY deadline, id LIMIT ?"
)
_BEGIN = (
    "SELECT (SELECT deadline FROM holds WHERE state = 0 AND space = ?1 ORDER BY deadline LIMIT 1), "
    "(SELECT value FROM settings WHERE space = ?1 AND name = ''), (SELECT 1 FROM holds WHERE id = ?2)"
)
_OUTBOX_ENDS = (  # asked for in one SELECT, both ends together are found by reading all that is between them
    "SELECT (SELECT min(number) FROM outbox WHERE space = ?1), (SELECT max(number) FROM outbox WHERE space = ?1)"
)
_HOLD = "SELECT state, deadline, until, rules, body, content, note, cost, tokens FROM holds WHERE id = ?"
_CHANGE = "UPDATE holds SET state = ?, deadline = ?, until = ?, rules = ?, body = ?, cost = ?, tokens = ? WHERE id = ?"


class SqliteCells:
    """The records of a namespace in one transaction; changed cells are written at its end."""

    def __init__(self, connection: sqlite3.Connection, namespace: str) -> None:
        self._execute = connection.execute
        self._executemany = connection.executemany
        self._prefix = f"{namespace}/"
        self._changed: dict[str, tuple[Any, int | None]] = {}
        self._cursors = {"cells": "", "holds": ""}
        self._first: int | None = None
        self._revision = 0
        self._full: tuple[int, int] | None = None
        self._read: dict[str, Hold | None] = {}

    def begin(self, id: str) -> None:
        """Read what every operation on a hold asks first, in one trip."""
        space = self._prefix
        first, revision, known = self._execute(_BEGIN, (space, space + id)).fetchone()
        self._first = MAX_AMOUNT if first is None else first
        self._revision = int(revision) if revision else 0
        if not known:
            self._read[id] = None

    def load(self, keys: Sequence[str]) -> list[Any]:
        """See `Cells.load`."""
        if not keys:
            return []
        prefix, changed = self._prefix, self._changed
        names = [prefix + key for key in keys]
        found = {row[0]: row for row in self._execute(_select(len(names)), names)}
        if not changed:
            return [_read(found[name]) if name in found else None for name in names]
        return [
            changed[name][0] if name in changed else _read(found[name]) if name in found else None for name in names
        ]

    def save(self, key: str, cell: Any, until_ms: int) -> None:
        """See `Cells.save`."""
        self._changed[self._prefix + key] = (cell, until_ms)

    def change(self, key: str, cell: Any) -> None:
        """See `Cells.change`."""
        name = self._prefix + key
        self._changed[name] = (cell, self._changed[name][1] if name in self._changed else None)

    def append(self, key: str, entry: tuple[int, int, int], until_ms: int) -> None:
        """See `Cells.append`."""
        self._execute("INSERT INTO entries VALUES (?,?,?,?,?)", (self._prefix + key, *entry, until_ms))

    def drop(self, key: str, at_ms: int) -> tuple[int, int, int]:
        """See `Cells.drop`."""
        name = self._prefix + key
        rows = self._execute("DELETE FROM entries WHERE key = ? AND at <= ? RETURNING amount", (name, at_ms)).fetchall()
        left = self._execute("SELECT at FROM entries WHERE key = ? ORDER BY at LIMIT 1", (name,)).fetchone()
        return sum([row[0] for row in rows]), len(rows), left[0] if left else NEVER

    def entries(self, key: str) -> Iterable[Entry]:
        """See `Cells.entries`."""
        return self._execute("SELECT at, amount FROM entries WHERE key = ? ORDER BY at, serial", (self._prefix + key,))

    def hold(self, id: str) -> Hold | None:
        """See `Cells.hold`."""
        if id not in self._read:
            row = self._execute(_HOLD, (self._prefix + id,)).fetchone()
            self._read[id] = _hold(row) if row is not None else None
        return self._read[id]

    def save_hold(self, id: str, hold: Hold) -> None:
        """See `Cells.save_hold`."""
        name = self._prefix + id
        rules, body = _rules(hold.shape), _body(hold)
        if self._read.get(id) is hold:
            changed = (hold.state, hold.deadline_ms, hold.until_ms, rules, body, hold.cost_nusd, hold.tokens, name)
            self._execute(_CHANGE, changed)
        else:
            self._execute(
                "INSERT OR REPLACE INTO holds VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)",
                (
                    name, hold.state, hold.deadline_ms, hold.until_ms, rules, body, hold.content, hold.note,
                    hold.cost_nusd, hold.tokens, self._prefix, *self._indexes(hold.scopes),
                ),
            )  # fmt: skip
        self._first = None
        self._read[id] = hold

    def _indexes(self, scopes: Sequence[str]) -> list[str | None]:
        names = [self._prefix + scope for scope in scopes if scope]
        return [*names, None, None][:2]

    def enter(self, id: str, scopes: Sequence[str], deadline_ms: int) -> None:
        """Nothing to do: the hold's own row is in the indexes."""

    def leave(self, id: str, scopes: Sequence[str], deadline_ms: int) -> None:
        """Nothing to do: the hold's own row leaves the indexes."""

    def first(self, scope: str, limit: int) -> list[tuple[int, str]]:
        """See `Cells.first`."""
        name = self._prefix + scope
        rows = self._execute(_FIRST_OF, (name, name, limit)) if scope else self._execute(_FIRST, (self._prefix, limit))
        cut = len(self._prefix)
        return [(deadline, id[cut:]) for deadline, id in rows]

    def due_at(self) -> int:
        """See `Cells.due_at`."""
        if self._first is None:
            first = self.first("", 1)
            self._first = first[0][0] if first else MAX_AMOUNT
        return self._first

    def expired(self, id: str, until_ms: int) -> None:
        """Nothing to do: expired holds are found by their state."""

    def orphans(self, now_ms: int, limit: int) -> list[str]:
        """See `Cells.orphans`."""
        rows = self._execute(
            "SELECT id FROM holds WHERE state = ? AND until > ? AND id > ? AND id < ? ORDER BY until LIMIT ?",
            (int(State.EXPIRED), now_ms, self._prefix, self._prefix[:-1] + "0", limit),
        )
        return [row[0][len(self._prefix) :] for row in rows]

    def revision(self) -> int:
        """See `Cells.revision`."""
        return self._revision

    def settings(self) -> dict[str, str]:
        """See `Cells.settings`."""
        return dict(self._execute("SELECT name, value FROM settings WHERE space = ? AND name <> ''", (self._prefix,)))

    def change_settings(self, revision: int, changes: Sequence[tuple[str, str | None]]) -> None:
        """See `Cells.change_settings`."""
        self._revision = revision
        for name, text in (*changes, ("", str(revision))):
            if text is None:
                self._execute("DELETE FROM settings WHERE space = ? AND name = ?", (self._prefix, name))
            else:
                self._execute("INSERT OR REPLACE INTO settings VALUES (?,?,?)", (self._prefix, name, text))

    def post(self, entry: tuple[str, str, str, int, str, str], most: int) -> None:
        """See `Cells.post`."""
        space = self._prefix
        first, last = self._execute(_OUTBOX_ENDS, (space,)).fetchone()
        if first is not None and last - first + 1 >= most and self._is_full(first, most):
            self.save(_DROPPED, [self.dropped() + 1, 0, 0], NEVER)
            return
        self._execute("INSERT INTO outbox (space, entry) VALUES (?,?)", (space, json.dumps(entry)))

    def _is_full(self, first: int, most: int) -> bool:
        """Whether so many rows wait. Once it was full it stays so until its first row is gone, and is not counted."""
        if self._full != (first, most):
            count = self._execute("SELECT count(*) FROM outbox WHERE space = ?", (self._prefix,)).fetchone()[0]
            self._full = (first, most) if count >= most else None
        return self._full is not None

    def acknowledge(self, number: str) -> None:
        """See `Cells.acknowledge`."""
        self._execute("DELETE FROM outbox WHERE space = ? AND number <= ?", (self._prefix, int(number)))

    def posted(self, limit: int) -> list[tuple[str, tuple[str, str, str, int, str, str]]]:
        """See `Cells.posted`."""
        rows = self._execute(
            "SELECT number, entry FROM outbox WHERE space = ? ORDER BY number LIMIT ?", (self._prefix, limit)
        )
        return [(str(number), tuple(json.loads(entry))) for number, entry in rows]

    def dropped(self) -> int:
        """See `Cells.dropped`."""
        cell = self.load((_DROPPED,))[0]
        return cell[0] if cell is not None else 0

    def lease(self) -> tuple[str, int]:
        """See `Cells.lease`."""
        found = self._execute(
            "SELECT value FROM settings WHERE space = ? AND name = ''", (f"{self._prefix}lease",)
        ).fetchone()
        if found is None:
            return "", 0
        until, _, owner = found[0].partition(" ")
        return owner, int(until)

    def save_lease(self, owner: str, until_ms: int) -> None:
        """See `Cells.save_lease`."""
        self._execute(
            "INSERT OR REPLACE INTO settings VALUES (?, '', ?)", (f"{self._prefix}lease", f"{until_ms} {owner}")
        )

    def write(self) -> None:
        """Write the changed cells."""
        if self._changed:
            rows, kept = [], []
            for name, (cell, until) in self._changed.items():
                if until is None:
                    kept.append((*_columns(cell), name))
                else:
                    rows.append((name, *_columns(cell), until))
            if rows:
                self._executemany(
                    "INSERT INTO cells VALUES (?,?,?,?,?,?) ON CONFLICT (key) DO UPDATE SET "
                    "a = excluded.a, b = excluded.b, c = excluded.c, body = excluded.body, until = excluded.until",
                    rows,
                )
            if kept:
                self._executemany("UPDATE cells SET a = ?, b = ?, c = ?, body = ? WHERE key = ?", kept)
        self.forget()

    def forget(self) -> None:
        """Drop what one transaction knows and has not written."""
        self._changed.clear()
        self._read.clear()
        self._first = None

    def purge(self, now_ms: int) -> None:
        """Delete the old ones among the next few rows; the whole table is passed through in time."""
        for table, key, old in (("cells", "key", "until < ?"), ("holds", "id", _FORGOTTEN)):
            rows = f"SELECT {key} FROM {table} WHERE {key} > ? ORDER BY {key} LIMIT {_PURGE_ROWS}"  # noqa: S608 - fixed words
            last = self._execute(f"SELECT max({key}) FROM ({rows})", (self._cursors[table],)).fetchone()[0]  # noqa: S608 - fixed words
            if last is not None:
                gone = self._execute(
                    f"DELETE FROM {table} WHERE {key} > ? AND {key} <= ? AND {old} RETURNING {key}",  # noqa: S608 - fixed words
                    (self._cursors[table], last, now_ms),
                ).fetchall()
                if table == "cells" and gone:
                    self._executemany("DELETE FROM entries WHERE key = ?", gone)
            self._cursors[table] = last or ""


@lru_cache(maxsize=128)
def _select(count: int) -> str:
    return " UNION ALL ".join(["SELECT key, a, b, c, body FROM cells WHERE key = ?"] * count)


def _read(row: Sequence[Any]) -> Any:
    _, a, b, c, body = row
    if body is None:
        return [a, b, c]
    head, *parts = body.split(" ")
    if head == "U":
        return [a, b, c, parts]
    numbers = [*map(int, parts)]
    if head == "S":
        return History([*zip(numbers[::2], numbers[1::2], strict=True)])
    slots = [numbers[at : at + 2] for at in range(3, len(numbers), 2)]
    return Log(b, a, numbers[0], c, numbers[1], numbers[2], slots)


def _columns(cell: Any) -> tuple[int | None, int | None, int | None, str | None]:
    if type(cell) is list:
        if len(cell) == 3:
            return cell[0], cell[1], cell[2], None
        return cell[0], cell[1], cell[2], " ".join(("U", *cell[3]))
    if type(cell) is History:
        return None, None, None, "S " + " ".join([f"{at_ms} {value}" for at_ms, value in cell.runs])
    slots = "".join([f" {number} {total}" for number, total in cell.slots])
    return cell.total, cell.reserved, cell.oldest, f"L {cell.count} {cell.serial} {cell.left_ms}{slots}"


def _body(hold: Hold) -> str:
    if not hold.keys:
        return f"{hold.created_ms} {hold.timeout_ms}"
    numbers = " ".join([*map(str, hold.held), *map(str, hold.starts)])
    return f"{' '.join(hold.keys)} {' '.join(hold.scopes)}\n{hold.created_ms} {hold.timeout_ms} {numbers}"


def _rules(shape: Shape) -> str:
    text: str | None = shape.encoded
    if text is None:
        rules = [
            "\t".join((r.budget, r.scope, *map(str, (r.meter, r.kind, r.limit, r.ends_ms, r.length_ms))))
            for r in shape.rules
        ]
        text = shape.encoded = "\n".join(rules)
    return text


def _hold(row: Sequence[Any]) -> Hold:
    state, deadline, until, rules, body, content, note, cost, tokens = row
    shape = _shape(rules)
    if not rules:
        created, timeout = body.split(" ")
        times = (int(created), deadline, int(timeout))
        return Hold(content, state, *times, shape, (), (), (), (), note, cost, tokens, until)
    names, _, figures = body.partition("\n")
    texts, numbers = names.split(" "), [*map(int, figures.split(" "))]
    count = len(shape.rules)
    return Hold(
        content, state, numbers[0], deadline, numbers[1], shape, tuple(texts[:count]), tuple(texts[count:]),
        tuple(numbers[2 : 2 + count]), tuple(numbers[2 + count :]), note, cost, tokens, until,
    )  # fmt: skip


@lru_cache(maxsize=1024)
def _shape(text: str) -> Shape:
    rules = []
    for line in text.split("\n") if text else ():
        budget, scope, *numbers = line.split("\t")
        meter, kind, limit, ends_ms, length_ms = map(int, numbers)
        rules.append(Rule(budget, scope, meter, kind, limit, ends_ms, length_ms))
    return Shape(tuple(rules))
