"""Connections to the database of a ledger: made at the first use, one pool per process, errors typed.

A database that hangs is given up after seconds, never waited for without end; who asks a moment later does not wait.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from sqlalchemy import Connection, Engine, create_engine, event, insert, select, text, update
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, OperationalError, SQLAlchemyError

from llm_budget_hooks.errors import ConfigurationError
from llm_budget_hooks.ledger import tables
from llm_budget_hooks.ledger.errors import LedgerUnavailable

_ACCEPTED: Final = "sqlite:///path/to/file.db or postgresql://user@host/name"
_CONNECT_TIMEOUT_S: Final = 5
_ANSWER_S = 10
"""How long the server may take for one statement."""
_SPARE_S: Final = 1
_PAUSE_S = 5
"""How long a database that was waited for in vain is not asked."""
_CANCELED: Final = "57014"
_LOCK: Final = 0x6C6C6D62
_abandoned: Final[list[Engine]] = []
_all: Final[weakref.WeakSet[Database]] = weakref.WeakSet()


class Database:
    """One SQLite file or PostgreSQL database, as a ledger uses it.

    Attributes:
        postgres: whether it is PostgreSQL.
    """

    def __init__(self, url: str) -> None:
        self._url = _checked(url)
        self._kind = self._url.get_backend_name()
        self.postgres = self._kind == "postgresql"
        self._lock = threading.Lock()
        self._engine: Engine | None = None
        self._ready = False
        self._again_s = 0.0
        _all.add(self)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection in a transaction that reads.

        Raises:
            LedgerUnavailable: the database cannot be reached or used.
        """
        with self._typed(), self._connected().connect() as connection:
            yield connection

    @contextmanager
    def writing(self, *, alone: bool = False) -> Iterator[Connection]:
        """A connection in a transaction that writes, committed at the end.

        Args:
            alone: no other writer of a ledger is at work meanwhile. On SQLite there never is one.

        Raises:
            LedgerUnavailable: the database cannot be reached or used; nothing is written.
        """
        with self._typed(), self._connected().execution_options(immediate=True).begin() as connection:
            if self.postgres:
                self._take_turn(connection, alone)
            yield connection

    def close(self) -> None:
        """Close the connections of this process; the next use makes new ones."""
        with self._lock:
            if self._engine is not None:
                self._engine.dispose()
            self._engine, self._ready = None, False

    def _connected(self) -> Engine:
        with self._lock:
            if time.monotonic() < self._again_s:
                raise LedgerUnavailable(f"The ledger ({self._kind}) did not answer, and is asked again in a moment.")
            if self._engine is None:
                self._engine = self._made()
            if not self._ready:
                self._migrate(self._engine)
                self._ready = True
            return self._engine

    def _leave_to_parent(self) -> None:
        """Let go of connections that a fork copied, without closing what the parent uses."""
        if self._engine is not None:
            _abandoned.append(self._engine)
        self._lock, self._engine = threading.Lock(), None

    def _made(self) -> Engine:
        try:
            return _postgres(self._url) if self.postgres else _sqlite(self._url)
        except ImportError:
            raise ConfigurationError(
                "A ledger on PostgreSQL needs psycopg: pip install 'llm_budget_hooks[postgres]'."
            ) from None

    def _migrate(self, engine: Engine) -> None:
        with engine.execution_options(immediate=True).begin() as connection:
            if self.postgres:
                self._take_turn(connection, alone=True)
            found = _version(connection)
            steps = tables.MIGRATIONS
            if found > len(steps):
                raise ConfigurationError(
                    f"The ledger was made by a later version of this package (schema {found}, this one knows "
                    f"{len(steps)}). Update llm_budget_hooks."
                )
            for step in steps[found:]:
                step(connection)
            if not found:
                connection.execute(insert(tables.schema).values(version=len(steps)))
            elif found < len(steps):
                connection.execute(update(tables.schema).values(version=len(steps)))

    def _take_turn(self, connection: Connection, alone: bool) -> None:
        name = "pg_advisory_xact_lock" if alone else "pg_advisory_xact_lock_shared"
        connection.execute(text(f"SELECT {name}({_LOCK})"))

    @contextmanager
    def _typed(self) -> Iterator[None]:
        began_s = time.monotonic()
        try:
            yield
        except SQLAlchemyError as error:
            self._ready = False
            if self.postgres and _stands_still(error) and time.monotonic() - began_s >= _CONNECT_TIMEOUT_S:
                self._again_s = time.monotonic() + _PAUSE_S
            raise LedgerUnavailable(f"The ledger ({self._kind}): {_described(error)}") from None


def _version(connection: Connection) -> int:
    if not connection.dialect.has_table(connection, tables.schema.name):
        return 0
    return connection.execute(select(tables.schema.c.version)).scalar() or 0


def _stands_still(error: SQLAlchemyError) -> bool:
    """Whether it is the server that failed, and not one statement that took too long."""
    return isinstance(error, OperationalError) and getattr(error.orig, "sqlstate", None) != _CANCELED


def _described(error: SQLAlchemyError) -> str:
    """What went wrong, without the values of any row and without a password."""
    if isinstance(error, OperationalError):
        return str(error.orig).strip().partition("\n")[0]
    return type(error.orig if isinstance(error, DBAPIError) else error).__name__


def _checked(url: str) -> URL:
    try:
        made = make_url(url)
        backend = made.get_backend_name()
    except (ArgumentError, NoSuchModuleError, ValueError, AttributeError, TypeError):
        raise ConfigurationError(f"this is no URL of a ledger; accepted: {_ACCEPTED}") from None
    if backend in ("postgresql", "postgres"):
        driver = made.drivername.partition("+")[2] or "psycopg"
        return made.set(drivername=f"postgresql+{driver}")
    if backend != "sqlite":
        raise ConfigurationError(f"a ledger on {backend!r} is not supported; accepted: {_ACCEPTED}")
    if made.host or not made.database or made.database == ":memory:":
        raise ConfigurationError(f"a ledger on SQLite is a file; accepted: {_ACCEPTED}")
    return made


def _postgres(url: URL) -> Engine:
    options: dict[str, Any] = {}
    if url.get_driver_name() == "psycopg":
        options["connect_args"] = {
            "connect_timeout": _CONNECT_TIMEOUT_S,
            "options": f"-c statement_timeout={_ANSWER_S * 1000}",
            "tcp_user_timeout": _ANSWER_S * 1000,
        }
    engine = create_engine(url, hide_parameters=True, pool_size=2, max_overflow=8, pool_pre_ping=True, **options)
    if url.get_driver_name() == "psycopg":
        event.listen(engine, "do_connect", _connect)
    return engine


def _connect(_dialect: object, _record: object, arguments: list[Any], options: dict[str, Any]) -> object:
    """A connection that gives up a server which does not even say that it took too long."""
    from llm_budget_hooks.ledger.postgres import PostgresConnection

    connection = PostgresConnection.connect(*arguments, **options)
    connection.answer_s = _ANSWER_S + _SPARE_S
    return connection


def _sqlite(url: URL) -> Engine:
    arguments = {"timeout": _CONNECT_TIMEOUT_S, "check_same_thread": False}
    engine = create_engine(url, hide_parameters=True, connect_args=arguments)
    event.listen(engine, "connect", _prepare)
    event.listen(engine, "begin", _begin)
    return engine


def _prepare(connection: Any, _: object) -> None:
    connection.isolation_level = None
    connection.execute("PRAGMA journal_mode = WAL")
    beside_store = connection.execute("PRAGMA user_version").fetchone()[0]  # one log keeps both in order
    connection.execute(f"PRAGMA synchronous = {'NORMAL' if beside_store else 'FULL'}")


def _begin(connection: Connection) -> None:
    immediate = connection.get_execution_options().get("immediate")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")


def _after_fork() -> None:
    for database in list(_all):
        database._leave_to_parent()


os.register_at_fork(after_in_child=_after_fork)
