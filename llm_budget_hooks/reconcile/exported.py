"""Books as an exported file: CSV with a head line, or JSON with a list of objects.

Of the columns, those that name a day, a model and a cost are needed; requests and tokens help to find a cause. The
names are those of the usual exports, in any case: ``date`` or ``start_time``, ``model`` or ``line_item``, ``cost`` or
``amount`` in dollars. A row is about one day, also where it says when it ends. A line about a tool, such as web search,
needs no model where ``cost_type`` names it. A row with a day and nothing else, as OpenAI's costs have for days without
any, says nothing.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, timedelta
from decimal import Decimal
from io import StringIO
from os import PathLike
from pathlib import Path
from typing import Any, Final

from llm_budget_hooks.errors import ConfigurationError
from llm_budget_hooks.reconcile.books import Billed
from llm_budget_hooks.reconcile.values import (
    Unreadable,
    begin_of,
    check_currency,
    count_of,
    day_of,
    dollars,
    instant_of,
    model_of_item,
    tool_of,
)

_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "day": ("day", "date", "usage_date", "usage_date_utc", "start_time", "start_time_iso", "starttime", "starting_at"),
    "end": ("end_time", "end_time_iso", "ending_at", "end_date"),
    "model": ("model", "model_version", "snapshot", "line_item"),
    "cost": ("cost", "cost_usd", "amount", "amount_value", "spend"),
    "requests": ("requests", "num_model_requests", "calls", "n_requests"),
    "input_tokens": ("input_tokens", "prompt_tokens", "n_context_tokens_total"),
    "cached_input_tokens": ("cached_input_tokens", "input_cached_tokens", "cache_read_input_tokens"),
    "output_tokens": ("output_tokens", "completion_tokens", "n_generated_tokens_total"),
}
_WHEN: Final = ("day", "end")
_COUNTS: Final = ("requests", "input_tokens", "cached_input_tokens", "output_tokens")


class ExportedBooks:
    """Books as an exported CSV or JSON file.

    Attributes:
        provider: whose models alone the file is about; None: of any.
    """

    def __init__(self, path: str | PathLike[str], provider: str | None = None) -> None:
        self.provider = provider
        self._path = Path(path)

    def lines(self, since: date, until: date) -> Iterator[Billed]:
        """See `Books.lines`.

        Raises:
            ConfigurationError: the file cannot be read, or a row of it is not what it should be; the place is named.
        """
        found = False
        for at, row in enumerate(self._rows(), 1):
            try:
                line = _billed(_named(row))
            except Unreadable as error:
                raise ConfigurationError(f"{self._path.name}: row {at}: {error}") from None
            if line is not None and since <= line.day < until:
                found = True
                yield line
        if not found:
            raise ConfigurationError(
                f"{self._path.name}: there is no row of {since} to {until}, the day after the last; "
                "an export without rows is not taken for a bill of nothing"
            )

    def _rows(self) -> Iterable[Mapping[Any, Any]]:
        try:
            text = self._path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"{self._path.name}: the file cannot be read ({type(error).__name__})") from None
        if self._path.suffix.lower() == ".csv":
            try:
                return list(csv.DictReader(StringIO(text, newline="")))
            except csv.Error as error:
                raise ConfigurationError(f"{self._path.name}: this is no CSV ({error})") from None
        try:
            found = json.loads(text, parse_float=Decimal)
        except (ValueError, RecursionError) as error:
            raise ConfigurationError(f"{self._path.name}: this is neither .csv nor JSON ({error})") from None
        rows = found.get("data") if isinstance(found, dict) else found
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise ConfigurationError(f"{self._path.name}: this is no list of objects")
        return rows


def _named(row: Mapping[Any, Any]) -> dict[str, Any]:
    if None in row:  # where the csv module puts them
        raise Unreadable("it has more values than the head has names; an amount with a comma stands in quotes")
    return {name.strip().lower(): value for name, value in row.items() if isinstance(name, str)}


def _billed(named: Mapping[str, Any]) -> Billed | None:
    """What a row has; None if it has nothing but a day."""
    if not any(_of(named, name) is not None for name in _NAMES if name not in _WHEN) and _of(named, "day") is not None:
        return None
    for name, value in named.items():
        if name.endswith("currency"):
            check_currency(value)
    tool = tool_of(_of(named, "model") or named.get("cost_type"))
    model = tool or model_of_item(_needed(named, "model"))
    if not model:
        raise Unreadable(f"it names no model; accepted columns: {', '.join(_NAMES['model'])}")
    requests, inputs, cached, outputs = (_counted(name, _of(named, name)) for name in _COUNTS)
    tier = str(named.get("service_tier") or named.get("batch") or "").lower()
    cost = dollars(_needed(named, "cost"))
    day = day_of(_needed(named, "day"))
    end = _of(named, "end")
    if end is not None and instant_of(end) > begin_of(day) + timedelta(days=1):
        raise Unreadable("it is about more than one UTC day; export the costs by day")
    batch = tier in ("batch", "true", "1")
    return Billed(day, model, cost, requests, inputs, cached, outputs, batch, tool is not None)


def _counted(name: str, value: object) -> int | None:
    try:
        return None if value is None else count_of(value)
    except Unreadable as error:
        raise Unreadable(f"{name}: {error}") from None


def _of(row: Mapping[str, Any], name: str) -> Any:
    return next((row[column] for column in _NAMES[name] if row.get(column) not in (None, "")), None)


def _needed(row: Mapping[str, Any], name: str) -> Any:
    found = _of(row, name)
    if found is None:
        raise Unreadable(f"it names no {name}; accepted columns: {', '.join(_NAMES[name])}")
    return found
