"""The journal as a file that any number of processes of one machine share.

What is written in it is with the operating system before the provider is called: it survives the process, and of a
power cut all but the last moments. Each entry has a number that is
never used again; the store knows by the journal's own id and that number what it has booked. An entry is removed
after the store has answered, so a crash in between repeats it, and the store changes nothing then.

The allowance of an outage is counted here as well, so neither a restart nor a store that comes and goes renews it.
It is whole again when all entries are booked and no process has seen trouble for `HEALTH_MS`.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from llm_budget_hooks.journal.texts import Kept, text_of
from llm_budget_hooks.transitions import Ending, Finish, Post, Reserve

HEALTH_MS: Final = 60_000
"""How long a store has to be well before the allowance is whole again."""

_TROUBLE_EVERY_MS: Final = 1_000
_SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS state (one INTEGER PRIMARY KEY CHECK (one = 1), journal TEXT NOT NULL, "
    "used INTEGER NOT NULL, trouble_ms INTEGER NOT NULL)",
    "CREATE TABLE IF NOT EXISTS entries (number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL, "
    "nusd INTEGER, body TEXT NOT NULL)",
    "CREATE INDEX IF NOT EXISTS of_hold ON entries (id)",
)
_abandoned: list[sqlite3.Connection] = []
_all: weakref.WeakSet[Journal] = weakref.WeakSet()
_stopped: list[Journal] = []


class JournalError(Exception):
    """The journal cannot be read or written; what is in it stays."""


def default_path(url: str, namespace: str) -> Path:
    """Where the journal of a namespace of a store is kept: in the user's state directory.

    Args:
        url: of the store; a password in it does not matter.
        namespace: the policy's.
    """
    from platformdirs import user_state_path

    parts = urlsplit(url)
    where = f"{parts.netloc.rpartition('@')[2].lower()}{parts.path}"
    if parts.scheme == "sqlite":
        where = str(Path(parts.path[1:]).absolute())
    name = blake2b(where.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
    return user_state_path("llm_budget_hooks", appauthor=False) / f"{namespace}-{name}.journal"


class Journal:
    """A journal. It serves threads, and after a fork each process has a connection of its own.

    Args:
        path: of the file; it and its folder are made when they are missing.
        most: how many entries wait at most.
        timeout_s: how long another process that writes is waited for.
    """

    def __init__(self, path: str | os.PathLike[str], most: int = 1_000_000, timeout_s: float = 1.0) -> None:
        self.path = Path(path)
        self._most = most
        self._timeout_s = timeout_s
        self._seen_ms = 0
        self._connection: sqlite3.Connection | None = None
        self._lock = threading.Lock()
        _all.add(self)

    def check(self) -> None:
        """Make the file if there is none.

        Raises:
            JournalError: it cannot be written.
        """
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600))
        except OSError as error:
            raise JournalError(f"the journal {self.path.name} cannot be written ({error.strerror})") from None

    def waiting(self) -> bool:
        """Whether there are entries that the store has not booked yet, as far as can be told."""
        try:
            if not self.path.stat().st_size:
                return False
            with self._open() as connection:
                return connection.execute("SELECT 1 FROM entries LIMIT 1").fetchone() is not None
        except (OSError, JournalError):
            return False

    def hold(self, command: Reserve, nusd: int, allowance_nusd: int | None, now_ms: int) -> bool:
        """Write down a call that is let through.

        Args:
            command: what would have been asked of the store.
            nusd: what the call is expected to cost.
            allowance_nusd: up to how much all such calls of an outage may cost; None: as much as they like.
            now_ms: the time.

        Returns:
            False if the allowance does not cover it; nothing is written then.

        Raises:
            JournalError: it cannot be written.
        """
        with self._open() as connection:
            used = self._used(connection, now_ms)
            fits = allowance_nusd is None or used + nusd <= allowance_nusd
            self._trouble(connection, used + nusd if fits else used, now_ms)
            if fits:
                self._append(connection, command, nusd)
            return fits

    def left(self, allowance_nusd: int, now_ms: int) -> int:
        """What is left of the allowance now, in nano-dollars."""
        with self._open() as connection:
            return max(allowance_nusd - self._used(connection, now_ms), 0)

    def finish(self, command: Finish, now_ms: int) -> None:
        """Write down the end of a hold that the store could not be told; what it cost counts from now on.

        Raises:
            JournalError: it cannot be written.
        """
        with self._open() as connection:
            found = connection.execute(
                "SELECT nusd FROM entries WHERE id = ? AND nusd IS NOT NULL", (command.id,)
            ).fetchone()
            cost = 0 if command.ending == Ending.RELEASE else command.cost_nusd
            more = cost - found[0] if found is not None and cost is not None else 0
            self._trouble(connection, self._used(connection, now_ms) + more, now_ms)
            self._append(connection, command, None)

    def post(self, command: Post) -> None:
        """Write down entries of the trail.

        Raises:
            JournalError: it cannot be written.
        """
        with self._open() as connection:
            self._append(connection, command, None)

    def trouble(self, now_ms: int) -> None:
        """Take note that the store is not well; at most once a second and process.

        Raises:
            JournalError: it cannot be written.
        """
        if 0 <= now_ms - self._seen_ms < _TROUBLE_EVERY_MS:
            return
        with self._open() as connection:
            self._trouble(connection, self._used(connection, now_ms), now_ms)
        self._seen_ms = now_ms

    def next(self, limit: int) -> tuple[str, list[tuple[int, str]]]:
        """The journal's own id, and number and text of the first entries.

        Raises:
            JournalError: it cannot be read.
        """
        with self._open() as connection:
            name = connection.execute("SELECT journal FROM state").fetchone()[0]
            rows = connection.execute("SELECT number, body FROM entries ORDER BY number LIMIT ?", (limit,)).fetchall()
            return name, rows

    def done(self, number: int, now_ms: int) -> None:
        """Remove the entries up to a number: the store has booked them.

        Raises:
            JournalError: it cannot be written.
        """
        with self._open() as connection:
            connection.execute("DELETE FROM entries WHERE number <= ?", (number,))
            connection.execute("UPDATE state SET trouble_ms = max(trouble_ms, ?)", (now_ms,))

    def _trouble(self, connection: sqlite3.Connection, used: int, now_ms: int) -> None:
        connection.execute("UPDATE state SET used = ?, trouble_ms = max(trouble_ms, ?)", (max(used, 0), now_ms))

    def _append(self, connection: sqlite3.Connection, command: Kept, nusd: int | None) -> None:
        first, last = connection.execute("SELECT min(number), max(number) FROM entries").fetchone()
        if first is not None and last - first >= self._most:
            raise JournalError(f"the journal {self.path.name} is full")
        connection.execute(
            "INSERT INTO entries (id, nusd, body) VALUES (?,?,?)", (getattr(command, "id", ""), nusd, text_of(command))
        )

    def _used(self, connection: sqlite3.Connection, now_ms: int) -> int:
        """How much of the allowance is used, none after a while without trouble and entries."""
        used, trouble_ms = connection.execute("SELECT used, trouble_ms FROM state").fetchone()
        if not used or now_ms - trouble_ms < HEALTH_MS:
            return int(used)
        return 0 if connection.execute("SELECT 1 FROM entries LIMIT 1").fetchone() is None else int(used)

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """One transaction; anything that goes wrong leaves the file as it was."""
        with self._lock:
            try:
                yield from self._transaction()
            except sqlite3.Error as error:
                raise JournalError(f"the journal {self.path.name} cannot be used ({error})") from None

    def _transaction(self) -> Iterator[sqlite3.Connection]:
        connection = self._connected()
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            made = sqlite3.connect(self.path, timeout=self._timeout_s, isolation_level=None, check_same_thread=False)
            try:
                self._prepare(made)
            except BaseException:
                made.close()
                raise
            self._connection = made
        return self._connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        if connection.execute("PRAGMA user_version").fetchone()[0]:
            return
        connection.execute("BEGIN IMMEDIATE")
        if not connection.execute("PRAGMA user_version").fetchone()[0]:
            for statement in _SCHEMA:
                connection.execute(statement)
            connection.execute("INSERT OR IGNORE INTO state VALUES (1, ?, 0, 0)", (os.urandom(12).hex(),))
            connection.execute("PRAGMA user_version = 1")
        connection.execute("COMMIT")

    def _renew(self) -> None:
        """Begin anew after a fork. The connection stays open: closing it would drop the parent's locks."""
        if self._connection is not None:
            _abandoned.append(self._connection)
        self._connection = None
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close the connection of this process. What is written stays, and the journal may be used again."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None


def _before_fork() -> None:
    """Let no other thread be inside SQLite while a fork copies its locks, which nobody would open in the child."""
    _stopped.extend(journal for journal in list(_all) if journal._lock.acquire(timeout=journal._timeout_s))


def _after_fork_in_parent() -> None:
    while _stopped:
        _stopped.pop()._lock.release()


def _after_fork_in_child() -> None:
    _stopped.clear()
    for journal in list(_all):
        journal._renew()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
