"""Balances in one SQLite file that any number of processes of one machine share.

A command is one ``BEGIN IMMEDIATE`` transaction around the pure transition. The file is in WAL mode with
``synchronous = NORMAL``: what was answered survives the process; the last transactions before a power cut may
be lost. A file on a network share is not supported, as SQLite's locks do not hold there. Async callers run
the transaction inline, which takes some 0.1 ms, and await only while another process holds the file.
"""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
import threading
import time
import weakref
from contextlib import closing
from pathlib import Path
from urllib.parse import unquote, urlsplit

from llm_budget_hooks.errors import ConfigurationError, StoreUnavailable
from llm_budget_hooks.models import Policy
from llm_budget_hooks.stores.rows import SCHEMA, SCHEMA_VERSION, TABLES, SqliteCells
from llm_budget_hooks.transitions import CLOCK_STEP_MS, Answer, Command, apply

_HEADER = b"SQLite format 3\x00"
_TABLES = "SELECT user_version FROM pragma_user_version UNION ALL SELECT name FROM sqlite_master WHERE type = 'table'"
_PURGE_EVERY = 64
_CHECKPOINT_PAGES = 4000
_abandoned: list[sqlite3.Connection] = []
_all: weakref.WeakSet[SqliteStore] = weakref.WeakSet()
_stopped: list[SqliteStore] = []


def path_of(url: str) -> Path:
    """The file that a URL names.

    Raises:
        ConfigurationError: it names none.
    """
    parts = urlsplit(url)
    path = unquote(parts.path)[1:]
    if parts.netloc or not path or path == ":memory:" or parts.query:
        raise ConfigurationError(
            f"{url!r} names no file: write sqlite:///relative/path.db or sqlite:////absolute/path.db "
            "(balances that live in this process alone are memory://)."
        )
    return Path(path)


class SqliteStore:
    """A store in one file."""

    shared = True
    forgets = False
    kept_elsewhere = False

    def __init__(self, path: str | os.PathLike[str], *, namespace: str = "default", timeout_s: float = 1.0) -> None:
        self._path = Path(path)
        self._namespace = namespace
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._cells: SqliteCells | None = None
        self._count = 0
        self._check_file()
        _all.add(self)

    @classmethod
    def from_url(cls, url: str, policy: Policy) -> SqliteStore:
        """A store from ``sqlite:///relative/path.db`` or ``sqlite:////absolute/path.db``.

        Raises:
            ConfigurationError: there is no path, its folder does not exist, or the file is no SQLite database.
        """
        return cls(path_of(url), namespace=policy.namespace, timeout_s=policy.store_timeout.total_seconds())

    def execute(self, command: Command) -> Answer:
        """See `Store.execute`."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            answer = self._attempt(command, deadline - time.monotonic())
            if answer is not None:
                return answer
            self._wait_or_refuse(deadline)
            time.sleep(_pause())

    async def aexecute(self, command: Command) -> Answer:
        """See `Store.aexecute`."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            answer = self._attempt(command, 0)
            if answer is not None:
                return answer
            self._wait_or_refuse(deadline)
            await asyncio.sleep(_pause())

    def now_ms(self) -> int:
        """See `Store.now_ms`."""
        return time.time_ns() // 1_000_000

    def probe(self) -> None:
        """See `Store.probe`; what cannot be read now is left for later."""
        if not self._path.exists():
            return
        try:
            with closing(sqlite3.connect(f"{self._path.absolute().as_uri()}?mode=ro", uri=True, timeout=0)) as file:
                version, *names = [row[0] for row in file.execute(_TABLES)]
        except sqlite3.Error:
            return
        ours = [name for name in names if name in TABLES]
        if (ours and not version) or (version == SCHEMA_VERSION and len(ours) < len(TABLES)):
            raise ConfigurationError(f"{self._path.name} is the database of another program; name another file.")

    def ask_again(self) -> None:
        """Nothing to do: every command asks."""

    def close(self) -> None:
        """See `Store.close`."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
            self._connection = self._cells = None

    async def aclose(self) -> None:
        """See `Store.aclose`."""
        self.close()

    def _attempt(self, command: Command, wait_s: float) -> Answer | None:
        """Carry out a command, or None if another thread or process holds the file."""
        if not self._lock.acquire(timeout=max(wait_s, 0)) if wait_s > 0 else not self._lock.acquire(blocking=False):
            return None
        try:
            return self._transact(command)
        except sqlite3.Error as error:
            if _is_busy(error):
                return None
            raise self._described(error) from error
        finally:
            self._lock.release()

    def _transact(self, command: Command) -> Answer:
        connection, cells = self._connected()
        connection.execute("BEGIN IMMEDIATE")
        try:
            now = self.now_ms() if command.now_ms is None else command.now_ms
            cells.begin(getattr(command, "id", None) or "")
            answer = apply(cells, command, now)
            self._count += 1
            cells.write()
            if self._count % _PURGE_EVERY == 0:
                cells.purge(now - CLOCK_STEP_MS)
            connection.execute("COMMIT")
        except BaseException:
            cells.forget()
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        return answer

    def _connected(self) -> tuple[sqlite3.Connection, SqliteCells]:
        if self._connection is None or self._cells is None:
            connection = sqlite3.connect(
                self._path, timeout=0, isolation_level=None, check_same_thread=False, cached_statements=256
            )
            try:
                self._prepare(connection)
            except BaseException:
                connection.close()
                raise
            self._connection, self._cells = connection, SqliteCells(connection, self._namespace)
        return self._connection, self._cells

    def _leave_to_parent(self) -> None:
        """Let go of what a fork copied: closing the connection would drop the locks of the parent, and the lock may be
        that of a thread which this process does not have.
        """
        if self._connection is not None:
            _abandoned.append(self._connection)
        self._connection = self._cells = None
        self._lock = threading.Lock()

    def _prepare(self, connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
        if self._has_schema(connection):
            return
        connection.execute("BEGIN IMMEDIATE")
        try:
            if not self._has_schema(connection):  # others may have made it while this one waited for the lock
                for statement in SCHEMA:
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def _has_schema(self, connection: sqlite3.Connection) -> bool:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, SCHEMA_VERSION):
            raise ConfigurationError(
                f"{self._path.name} was made by another version of this package (schema {version}, "
                f"this one reads {SCHEMA_VERSION}); use a new file."
            )
        return bool(version)

    def _check_file(self) -> None:
        if self._path.is_dir():
            raise ConfigurationError(f"{self._path.name} is a folder; the store is a file in one.")
        if not self._path.absolute().parent.is_dir():
            raise ConfigurationError(f"the folder of {self._path.name} does not exist; make it, or name another path.")
        try:
            with self._path.open("rb") as file:
                head = file.read(len(_HEADER))
        except FileNotFoundError:
            return
        except OSError as error:
            raise ConfigurationError(f"{self._path.name} cannot be read ({error.strerror}).") from None
        if head and head != _HEADER:
            raise ConfigurationError(f"{self._path.name} is not an SQLite database; name another file.")

    def _wait_or_refuse(self, deadline: float) -> None:
        if time.monotonic() >= deadline:
            raise StoreUnavailable(
                f"{self._path.name} was locked by others for {self._timeout_s:g} s. Nothing is held. "
                "If that is normal here, raise store_timeout.",
                busy=True,
            )

    def _described(self, error: sqlite3.Error) -> StoreUnavailable:
        return StoreUnavailable(f"{self._path.name} cannot be used: {error}. Nothing is held.")


def _pause() -> float:
    return random.uniform(0.0002, 0.001)  # noqa: S311 - spreads waiting processes, nothing secret


def _is_busy(error: sqlite3.Error) -> bool:
    return (getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _before_fork() -> None:
    """Let no other thread be inside SQLite while a fork copies its locks, which nobody would open in the child."""
    _stopped.extend(store for store in list(_all) if store._lock.acquire(timeout=store._timeout_s))


def _after_fork_in_parent() -> None:
    while _stopped:
        _stopped.pop()._lock.release()


def _after_fork_in_child() -> None:
    _stopped.clear()
    for store in list(_all):
        store._leave_to_parent()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
