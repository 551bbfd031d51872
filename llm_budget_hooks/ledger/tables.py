"""The tables of the ledger, and the steps from each version of them to the next.

All names begin with ``ledger_``, so that a ledger can live in the file of an SQLite store. Amounts are integer
nano-dollars, times are milliseconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    UniqueConstraint,
)

from llm_budget_hooks.models.trail import COUNTS

metadata: Final = MetaData()
_Long: Final = BigInteger().with_variant(Integer(), "sqlite")


def _text(name: str) -> Column[str]:
    return Column(name, String, nullable=False, default="")


def _whole(name: str, *, nullable: bool = False) -> Column[int]:
    return Column(name, _Long, nullable=nullable)


def _number() -> Column[int]:
    return Column("no", _Long, primary_key=True, autoincrement=True)


schema: Final = Table("ledger_schema", metadata, Column("version", Integer, nullable=False))

runs: Final = Table(
    "ledger_runs", metadata,
    _number(), _text("id"), _text("kind"), _text("status"), _whole("at_ms"),
    _text("tenant"), _text("user"), _text("utterance"), _text("feature"), _text("step"), _text("model"),
    _text("served"), _whole("estimate_nusd"), _text("basis"), _whole("cost_nusd"), _whole("booked_nusd"),
    Column("exact", Boolean, nullable=False), _text("flags"), *(_whole(name) for name in COUNTS),
    UniqueConstraint("id", "kind"),
    Index("ledger_runs_at", "at_ms"),
    Index("ledger_runs_who", "tenant", "user", "at_ms"),
    Index("ledger_runs_answer", "tenant", "user", "utterance"),
)  # fmt: skip

refusals: Final = Table(
    "ledger_refusals", metadata,
    _number(), Column("id", String, nullable=False, unique=True), _whole("at_ms"), _text("code"), _text("stage"),
    _text("budget"), _text("scope"), _text("meter"), _text("failed"), _text("tenant"), _text("user"),
    _text("utterance"), _text("feature"), _text("step"), _text("model"), _whole("limit", nullable=True),
    _whole("spent", nullable=True), _whole("reserved", nullable=True), _whole("requested", nullable=True),
    _whole("count"), Index("ledger_refusals_at", "at_ms"),
)  # fmt: skip

events: Final = Table(
    "ledger_events", metadata,
    _number(), Column("id", String, nullable=False, unique=True), _whole("at_ms"), _text("name"), _text("tenant"),
    _text("user"), _text("feature"), _text("utterance"), _text("by"), _text("text"),
    Index("ledger_events_at", "at_ms"),
)  # fmt: skip

overrides: Final = Table(
    "ledger_overrides", metadata,
    _number(), _text("id"), _text("kind"), _whole("at_ms"), _text("tenant"), _text("user"), _text("budget"),
    _text("limit"), _whole("expires_ms", nullable=True), Column("booked_nusd", _Long, nullable=False, default=0),
    _text("by"), _text("reason"), UniqueConstraint("id", "kind"),
)  # fmt: skip

months: Final = Table(
    "ledger_months", metadata,
    Column("key", String, primary_key=True), _text("month"), _text("tenant"), _text("user"), _text("feature"),
    _text("step"), _text("model"), _whole("calls"), _whole("booked_nusd"), _whole("input_tokens"),
    _whole("output_tokens"), Index("ledger_months_month", "month"),
)  # fmt: skip
"""What pruned runs add up to, by local month."""

pruned: Final = Table(
    "ledger_pruned", metadata, Column("id", String, primary_key=True), Column("kind", String, primary_key=True)
)
"""The ids of pruned runs, so that none is booked again."""


def _first(connection: Connection) -> None:
    metadata.create_all(connection, checkfirst=True)


MIGRATIONS: tuple[Callable[[Connection], Any], ...] = (_first,)
"""Step n makes version n + 1 out of version n."""
