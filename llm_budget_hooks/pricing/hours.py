"""The hours at which a provider charges less."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timezone
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

_SPAN: Final = re.compile(r"([0-9]{2}):([0-9]{2})-([0-9]{2}):([0-9]{2})")
_DAY: Final = 24 * 60


@dataclass(frozen=True, slots=True)
class Hours:
    """Spans of the day in UTC, each on some days of the week.

    Attributes:
        spans: first minute of the day, minute after the last, and the ISO weekdays (1: Monday) on which it holds.
        zone: whose calendar names the weekday; the hours stay UTC.
    """

    spans: tuple[tuple[int, int, frozenset[int]], ...]
    zone: str = "UTC"

    def have(self, ms: int) -> bool:
        """Whether an instant, in ms since the epoch, is among them."""
        at = datetime.fromtimestamp(ms / 1000, UTC)
        minute = at.hour * 60 + at.minute
        weekday = at.astimezone(_zone(self.zone)).isoweekday()
        return any(first <= minute < end and weekday in days for first, end, days in self.spans)


def hours_of(table: Mapping[str, Any]) -> Hours | None:
    """The hours that LiteLLM's list writes down as ``hours_utc`` or ``windows``; None if they cannot be read."""
    windows: Any = table.get("windows") or ({"hours_utc": table.get("hours_utc")},)
    spans: list[tuple[int, int, frozenset[int]]] = []
    try:
        for window in windows:
            days = frozenset(int(day) for day in window.get("weekdays") or range(1, 8))
            written: Any = window["hours_utc"]
            for text in (written,) if isinstance(written, str) else written:
                spans += ((first, end, days) for first, end in _minutes(text))
        zone = str(table.get("weekday_timezone") or "UTC")
        _zone(zone)
    except (AttributeError, KeyError, TypeError, ValueError, ZoneInfoNotFoundError):
        return None
    return Hours(tuple(spans), zone) if spans else None


def _minutes(text: str) -> Iterator[tuple[int, int]]:
    """A span as minutes of the day; one across midnight as two, and 00:00-00:00 as the whole day."""
    match = _SPAN.fullmatch(text)
    if match is None:
        raise ValueError("not a span of hours")
    first, end = int(match[1]) * 60 + int(match[2]), int(match[3]) * 60 + int(match[4])
    if first < end:
        yield first, end
        return
    yield first, _DAY
    if end:
        yield 0, end


def _zone(name: str) -> ZoneInfo | timezone:
    return UTC if name == "UTC" else ZoneInfo(name)
