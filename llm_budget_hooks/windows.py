"""The windows of time that limits hold for.

A calendar window is cut where the local calendar of its zone turns. A day starts at the first instant whose
local date is that date or a later one; a week starts with its Monday and a month with its first day. So a day
whose midnight does not exist starts when the clocks have jumped, one whose midnight comes twice starts at the
first, and a date that a zone skipped has no window. Windows follow each other without gap or overlap.

An hour or a minute is cut where the local clock shows a full one, and also where the clocks change by a part
of it. All instants are epoch milliseconds.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Final, Literal, cast, get_args
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

Kind = Literal["calendar", "rolling", "fixed"]
CalendarUnit = Literal["minute", "hour", "day", "week", "month"]
Unit = Literal["second", "minute", "hour", "day", "week", "month"]

SECOND_MS: Final = 1_000
MINUTE_MS: Final = 60_000
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 86_400_000
MAX_LENGTH_MS: Final = 366 * DAY_MS
"""The longest rolling or fixed window."""

_NOMINAL_MS: Final[dict[str, int]] = {
    "minute": MINUTE_MS,
    "hour": HOUR_MS,
    "day": DAY_MS,
    "week": 7 * DAY_MS,
    "month": 31 * DAY_MS,
}
_SUFFIXES: Final[dict[str, tuple[Unit, int]]] = {
    "s": ("second", SECOND_MS),
    "m": ("minute", MINUTE_MS),
    "h": ("hour", HOUR_MS),
    "d": ("day", DAY_MS),
}
_ADJECTIVES: Final = {"minute": "Per-minute", "hour": "Hourly", "day": "Daily", "week": "Weekly", "month": "Monthly"}
_LABELS: Final = {
    "minute": "%Y-%m-%dT%H:%M",
    "hour": "%Y-%m-%dT%H",
    "day": "%Y-%m-%d",
    "week": "%G-W%V",
    "month": "%Y-%m",
}
_SPAN: Final = re.compile(r"(rolling|fixed):([1-9][0-9]{0,9})([smhd])")
_ACCEPTED: Final = 'minute, hour, day, week, month, "rolling:60s" or "fixed:24h" (suffix s, m, h or d, up to 366d)'
_EPOCH: Final = datetime(1970, 1, 1)
_NEVER: Final = (0, 0)


@dataclass(frozen=True, slots=True)
class Window:
    """A window of time, equal to another one that cuts time the same way.

    Attributes:
        kind: ``calendar``; ``rolling`` (the last so many milliseconds); ``fixed`` (starts at its first use).
        unit: the calendar's unit, or the unit that the length was written in.
        length_ms: exact for rolling and fixed windows; for calendar windows the nominal length, 31 days for a month.
        zone: the time zone of a calendar window; ``UTC`` for the other kinds, which no zone changes.
        spec: the window as it was written.
    """

    kind: Kind
    unit: Unit = field(compare=False)
    length_ms: int
    zone: str = "UTC"
    spec: str = field(default="", compare=False)
    _last: tuple[int, int] = field(default=_NEVER, init=False, repr=False, compare=False)

    @classmethod
    def parse(cls, spec: str | None, zone: str = "UTC") -> Window | None:
        """The window that a policy names, or None for no window.

        Args:
            spec: ``minute``, ``hour``, ``day``, ``week``, ``month``, ``rolling:60s``, ``fixed:24h`` or None.
            zone: an IANA time zone.

        Raises:
            ValueError: for an unknown window or zone; names it and what is accepted.
        """
        check_zone(zone)
        if spec is None:
            return None
        if spec in get_args(CalendarUnit):
            return cls("calendar", cast("Unit", spec), _NOMINAL_MS[spec], zone, spec)
        return cls._span(spec)

    @classmethod
    def _span(cls, spec: object) -> Window:
        match = _SPAN.fullmatch(spec) if isinstance(spec, str) else None
        if match is None:
            raise ValueError(f"unknown window {_shown(spec)}; accepted: {_ACCEPTED}")
        unit, unit_ms = _SUFFIXES[match[3]]
        length_ms = int(match[2]) * unit_ms
        if length_ms > MAX_LENGTH_MS:
            raise ValueError(f"window {spec!r} is longer than 366 days; accepted: {_ACCEPTED}")
        return cls("rolling" if match[1] == "rolling" else "fixed", unit, length_ms, "UTC", match[0])

    @property
    def adjective(self) -> str:
        """The window before the word "limit": ``Daily``, ``Monthly``, ``60-second``, ``24-hour``."""
        if self.kind == "calendar":
            return _ADJECTIVES[self.unit]
        unit_ms = next(ms for unit, ms in _SUFFIXES.values() if unit == self.unit)
        return f"{self.length_ms // unit_ms}-{self.unit}"

    @property
    def key(self) -> str:
        """A short text that is the same for equal windows and for no others."""
        return f"{self.unit}@{self.zone}" if self.kind == "calendar" else f"{self.kind}:{self.length_ms}ms"

    def bounds(self, now_ms: int) -> tuple[int, int]:
        """The calendar window that an instant lies in.

        Args:
            now_ms: the instant.

        Returns:
            the start, inclusive, and the end, exclusive.

        Raises:
            ValueError: for a rolling or fixed window, which the calendar does not cut.
        """
        last = self._last
        if last[0] <= now_ms < last[1]:
            return last
        found = self._cut(now_ms)
        object.__setattr__(self, "_last", found)
        return found

    def label(self, now_ms: int) -> str:
        """The local name of the calendar window of an instant: ``2026-02``, ``2026-11-29``, ``2026-W48``."""
        form = _LABELS[self.unit] if self.kind == "calendar" else ""
        if not form:
            raise ValueError(f"a {self.kind} window has no name in the calendar")
        if self.unit in ("minute", "hour"):
            return f"{_local(ZoneInfo(self.zone), self.bounds(now_ms)[0] // 1000):{form}}"
        return f"{_DATES[self.unit].containing(ZoneInfo(self.zone), now_ms // 1000):{form}}"

    def _cut(self, now_ms: int) -> tuple[int, int]:
        if self.kind != "calendar":
            raise ValueError(f"a {self.kind} window has no bounds in the calendar")
        zone, now = ZoneInfo(self.zone), now_ms // 1000
        dates = _DATES.get(self.unit)
        start, end = dates.bounds(zone, now) if dates else _clock_bounds(zone, now, self.length_ms // 1000)
        return start * 1000, end * 1000


@dataclass(frozen=True, slots=True)
class _Dates:
    """Windows that are cut where a local date begins."""

    first: Callable[[date], date]
    following: Callable[[date], date]

    def containing(self, zone: ZoneInfo, now: int) -> date:
        first = self.first(_local(zone, now).date())
        while _start_of(zone, following := self.following(first)) <= now:
            first = following
        return first

    def bounds(self, zone: ZoneInfo, now: int) -> tuple[int, int]:
        first = self.containing(zone, now)
        return _start_of(zone, first), _start_of(zone, self.following(first))


_DATES: Final = {
    "day": _Dates(lambda d: d, lambda d: d + timedelta(days=1)),
    "week": _Dates(lambda d: d - timedelta(days=d.weekday()), lambda d: d + timedelta(days=7)),
    "month": _Dates(lambda d: d.replace(day=1), lambda d: (d.replace(day=1) + timedelta(days=32)).replace(day=1)),
}


def check_zone(name: str) -> None:
    """Raise a ValueError that names the zone, unless it is an IANA time zone known here."""
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, TypeError, AttributeError, OSError) as error:
        raise ValueError(f'unknown time zone {_shown(name)}; accepted: IANA names such as "Europe/Prague"') from error


def _start_of(zone: ZoneInfo, day: date) -> int:
    """The first second whose local date is that day or a later one."""
    wall = (datetime(day.year, day.month, day.day) - _EPOCH) // timedelta(seconds=1)
    local = datetime(day.year, day.month, day.day, tzinfo=zone)
    first, second = wall - _offset(local), wall - _offset(local.replace(fold=1))
    if first <= second:
        return first
    return _earliest(second, first, lambda t: t + _offset(_local(zone, t)) >= wall)


def _clock_bounds(zone: ZoneInfo, now: int, length: int) -> tuple[int, int]:
    phase = _offset(_local(zone, now)) % length
    start = now - (now + phase) % length
    end = start + length

    def in_phase(t: int) -> bool:
        return _offset(_local(zone, t)) % length == phase

    if not in_phase(start):
        start = _earliest(start, now, in_phase)
    if not in_phase(end - 1):
        end = _earliest(now, end - 1, lambda t: not in_phase(t))
    return start, end


def _earliest(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The first second in (low, high] for which a condition holds that stays true once it is."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _local(zone: ZoneInfo, seconds: int) -> datetime:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)).astimezone(zone)


def _offset(local: datetime) -> int:
    return (local.utcoffset() or timedelta()) // timedelta(seconds=1)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
