"""Writing the ledger: idempotent, in one transaction per batch, pruned by age with month totals kept."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from datetime import datetime
from hashlib import blake2b
from typing import Any, Final, cast

from sqlalchemy import Connection, Insert, Table, delete, select
from sqlalchemy.dialects import postgresql, sqlite

from llm_budget_hooks.errors import ConfigurationError
from llm_budget_hooks.ledger import tables
from llm_budget_hooks.ledger.database import Database
from llm_budget_hooks.ledger.reading import Reading
from llm_budget_hooks.models.trail import (
    Adjustment,
    Entry,
    Event,
    Override,
    Refusal,
    Row,
    Run,
    row_of,
    stored_text,
)
from llm_budget_hooks.windows import Window, check_zone

_log = logging.getLogger("llm_budget_hooks")
_PRUNED_AT_ONCE: Final = 500
_OF_MONTH: Final = ("month", "tenant", "user", "feature", "step", "model")
_SUMS: Final = ("calls", "booked_nusd", "input_tokens", "output_tokens")
_TABLES: Final[dict[type[Any], tuple[Table, tuple[str, ...]]]] = {
    Run: (tables.runs, ("id", "kind")),
    Refusal: (tables.refusals, ("id",)),
    Event: (tables.events, ("id",)),
    Override: (tables.overrides, ("id", "kind")),
    Adjustment: (tables.overrides, ("id", "kind")),
}
_KINDS: Final[dict[type[Any], str]] = {Override: "override", Adjustment: "adjust"}


class Ledger(Reading):
    """Runs, refusals, events and overrides in SQLite or PostgreSQL. Safe for threads, and for processes that fork."""

    def __init__(self, database: Database, zone: str = "UTC") -> None:
        self._database = database
        self._zone = zone

    @classmethod
    def open(cls, url: str, *, zone: str = "UTC") -> Ledger:
        """A ledger by its URL; nothing is connected yet. Its tables are made, or migrated, at the first use.

        Args:
            url: ``sqlite:///path`` (it may be the file of an SQLite store) or ``postgresql://user@host/name``.
            zone: the policy's time zone, which months and days are cut in.

        Raises:
            ConfigurationError: the URL names no ledger, or the zone is not known.
        """
        try:
            check_zone(zone)
        except ValueError as error:
            raise ConfigurationError(str(error)) from None
        return cls(Database(url), zone)

    def write(self, entries: Sequence[Entry]) -> None:
        """Write entries as rows, in one transaction; those that are there already change nothing.

        An entry that this version cannot read becomes an event ``unreadable``, so that it holds nothing up.

        Raises:
            LedgerUnavailable: the database cannot be written; nothing is.
        """
        rows = [_readable(entry) for entry in entries]
        chosen = {made: [_values(row) for row in rows if type(row) is made] for made in _TABLES}
        with self._database.writing() as connection:
            chosen[Run] = _not_pruned(connection, chosen[Run])
            for made, values in chosen.items():
                if values:
                    connection.execute(self._insert(made), values)

    def prune(self, older_than: datetime) -> int:
        """Remove runs, refusals and events from before an instant; months keep what their runs add up to.

        A run that was removed can never be booked again. Corrections and overrides stay.

        Args:
            older_than: an aware datetime.

        Returns:
            how many rows were removed.

        Raises:
            LedgerUnavailable: the database cannot be written; what was removed until then is in the totals.
        """
        if older_than.tzinfo is None:
            raise ConfigurationError("prune takes a datetime with a time zone")
        before_ms = round(older_than.timestamp() * 1000)
        removed = 0
        while count := self._prune_runs(before_ms):
            removed += count
        with self._database.writing() as connection:
            for table in (tables.refusals, tables.events):
                removed += connection.execute(delete(table).where(table.c.at_ms < before_ms)).rowcount
        return removed

    def close(self) -> None:
        """Close the connections of this process. The ledger may be used again."""
        self._database.close()

    def _insert(self, made: type[Any]) -> Insert:
        table, unique = _TABLES[made]
        return self._into(table).on_conflict_do_nothing(index_elements=list(unique))

    def _into(self, table: Table) -> postgresql.Insert:
        """An insert of the dialect; both have the same words for conflicts."""
        dialect = postgresql if self._database.postgres else sqlite
        return cast("postgresql.Insert", dialect.insert(table))

    def _prune_runs(self, before_ms: int) -> int:
        """Fold some old runs into the months: totals, tombstones and removal are one transaction."""
        runs = tables.runs
        with self._database.writing(alone=True) as connection:
            old = connection.execute(
                select(runs).where(runs.c.at_ms < before_ms).order_by(runs.c.no).limit(_PRUNED_AT_ONCE)
            ).all()
            if old:
                connection.execute(tables.pruned.insert(), [{"id": row.id, "kind": row.kind} for row in old])
                connection.execute(self._add_to_months(), self._totals(old))
                connection.execute(delete(runs).where(runs.c.no.in_([row.no for row in old])))
        return len(old)

    def _totals(self, old: Iterable[Any]) -> list[dict[str, Any]]:
        month = Window.parse("month", self._zone)
        assert month is not None  # noqa: S101 - only no window at all is None
        totals: dict[tuple[str, ...], list[int]] = {}
        for row in old:
            names = (month.label(row.at_ms), row.tenant, row.user, row.feature, row.step, row.served or row.model)
            sums = totals.setdefault(names, [0, 0, 0, 0])
            first = row.status != "late" and not (row.kind == "released" and row.booked_nusd)
            for at, number in enumerate((int(first), row.booked_nusd, row.input_tokens, row.output_tokens)):
                sums[at] += number
        return [
            {"key": _key(names), **dict(zip(_OF_MONTH, names, strict=True)), **dict(zip(_SUMS, sums, strict=True))}
            for names, sums in totals.items()
        ]

    def _add_to_months(self) -> Insert:
        table = tables.months
        made = self._into(table)
        return made.on_conflict_do_update(
            index_elements=["key"], set_={name: table.c[name] + made.excluded[name] for name in _SUMS}
        )


def _readable(entry: Entry) -> Row:
    try:
        return row_of(entry)
    except ValueError as error:
        _log.warning("An entry of the trail is kept as an event, as this version cannot read it.")
        text = stored_text(f"{error}: {entry.kind} {entry.was} {entry.facts} {entry.actual}", 4000)
        return Event(id=f"{stored_text(entry.id)}-{entry.kind[:40]}", at_ms=entry.at_ms, name="unreadable", text=text)


def _values(row: Row) -> dict[str, Any]:
    values = {name: getattr(row, name) for name in row.__slots__}
    if type(row) in _KINDS:
        values["kind"] = _KINDS[type(row)]
    return values


def _not_pruned(connection: Connection, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows that were not removed before. Those that are there already are left to the insert."""
    if not rows:
        return rows
    gone = tables.pruned.c
    asked = select(gone.id, gone.kind).where(gone.id.in_([row["id"] for row in rows]))
    found = {tuple(row) for row in connection.execute(asked)}
    return [row for row in rows if (row["id"], row["kind"]) not in found]


def _key(names: Iterable[str]) -> str:
    hashed = blake2b(digest_size=16)
    for name in names:
        encoded = name.encode()
        hashed.update(b"%d:" % len(encoded))
        hashed.update(encoded)
    return hashed.hexdigest()
