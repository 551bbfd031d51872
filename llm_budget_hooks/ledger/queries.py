"""Parts of the questions that are asked of a ledger's tables."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Table

from llm_budget_hooks.errors import ConfigurationError
from llm_budget_hooks.ledger import tables
from llm_budget_hooks.models.trail import stored_text
from llm_budget_hooks.windows import Window


def same(table: Table, **names: str | None) -> list[ColumnElement[bool]]:
    """The columns that have to be these texts; None is not asked for."""
    return [table.c[name] == stored_text(value) for name, value in names.items() if value is not None]


def between(table: Table, since: datetime | None, until: datetime | None) -> list[ColumnElement[bool]]:
    """From an instant on, and before another."""
    spans = [] if since is None else [table.c.at_ms >= ms_of(since)]
    return spans if until is None else [*spans, table.c.at_ms < ms_of(until)]


def whose(table: Table) -> tuple[ColumnElement[Any], ...]:
    """The columns that name an answer."""
    return table.c.tenant, table.c.user, table.c.utterance


def again() -> ColumnElement[bool]:
    """Whether a run is another end of a call that has ended before."""
    run = tables.runs.c
    return (run.status == "late") | ((run.kind == "released") & (run.booked_nusd != 0))


def window_of(spec: str, zone: str) -> Window:
    """A window that is certain to be one."""
    window = Window.parse(spec, zone)
    assert window is not None  # noqa: S101 - only no window at all is None
    return window


def ms_of(at: datetime) -> int:
    """Milliseconds since the epoch.

    Raises:
        ConfigurationError: the instant has no time zone.
    """
    if at.tzinfo is None:
        raise ConfigurationError("an instant is a datetime with a time zone")
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
