from __future__ import annotations

import copy
import pickle
from bisect import bisect
from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError
from datetime import UTC, date, datetime, timedelta
from functools import cache
from itertools import pairwise
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_budget_hooks.windows import DAY_MS, HOUR_MS, Window

FROM, TO = (int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) for year in (1990, 2041))
ZONES = sorted(available_timezones())


def window(spec: str, zone: str = "UTC") -> Window:
    parsed = Window.parse(spec, zone)
    assert parsed is not None
    return parsed


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def start(spec: str, zone: str, at: str) -> str:
    return iso(window(spec, zone).bounds(ms(at))[0])


def end(spec: str, zone: str, at: str) -> str:
    return iso(window(spec, zone).bounds(ms(at))[1])


def iso(instant_ms: int) -> str:
    assert instant_ms % 1000 == 0
    return datetime.fromtimestamp(instant_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def hours(spec: str, zone: str, at: str) -> float:
    first, last = window(spec, zone).bounds(ms(at))
    return (last - first) / HOUR_MS


def test_b058_the_month_of_tokyo_ends_when_tokyo_s_month_ends() -> None:
    july = window("month", "Asia/Tokyo").bounds(ms("2026-07-20T00:00:00Z"))
    assert july[0] <= ms("2026-07-31T14:59:59Z") < july[1] == ms("2026-07-31T15:00:00Z")
    assert end("day", "Asia/Tokyo", "2026-07-31T14:59:59.999Z") == "2026-07-31T15:00:00Z"


def test_b059_a_midnight_that_does_not_exist() -> None:
    assert start("day", "Africa/Cairo", "2026-04-24T10:00:00Z") == "2026-04-23T22:00:00Z"
    assert hours("day", "Africa/Cairo", "2026-04-24T10:00:00Z") == 23
    assert start("day", "America/Havana", "2026-03-08T12:00:00Z") == "2026-03-08T05:00:00Z"
    assert hours("day", "Europe/Prague", "2026-03-29T10:00:00Z") == 23


def test_b059_an_hour_that_comes_twice_belongs_to_one_day() -> None:
    assert hours("day", "America/New_York", "2026-11-01T12:00:00Z") == 25
    assert window("day", "America/New_York").bounds(ms("2026-11-01T05:30:00Z")) == window(
        "day", "America/New_York"
    ).bounds(ms("2026-11-01T06:30:00Z"))


def test_b059_midnight_that_comes_twice_starts_the_day_once() -> None:
    assert start("day", "America/Havana", "2026-11-01T12:00:00Z") == "2026-11-01T04:00:00Z"
    assert hours("day", "America/Havana", "2026-11-01T05:30:00Z") == 25


def test_a_clock_that_falls_back_over_midnight_stays_in_the_new_day() -> None:
    before, after = "2010-11-07T02:30:00Z", "2010-11-07T02:31:30Z"
    zone = "America/St_Johns"
    local = datetime.fromisoformat(after).astimezone(ZoneInfo(zone))
    assert local.date() == date(2010, 11, 6)
    assert start("day", zone, after) == start("day", zone, "2010-11-07T12:00:00Z") == before
    assert window("day", zone).label(ms(after)) == "2010-11-07"


def test_a_date_that_a_zone_skipped_has_no_window() -> None:
    assert start("day", "Pacific/Apia", "2011-12-30T09:59:59Z") == "2011-12-29T10:00:00Z"
    assert end("day", "Pacific/Apia", "2011-12-30T09:59:59Z") == "2011-12-30T10:00:00Z"
    assert window("day", "Pacific/Apia").label(ms("2011-12-30T10:00:00Z")) == "2011-12-31"
    assert hours("month", "Pacific/Apia", "2011-12-20T00:00:00Z") == 30 * 24


def test_b060_a_month_is_a_month_of_the_calendar() -> None:
    assert end("month", "Europe/Prague", "2026-03-10T15:43:00Z") == "2026-03-31T22:00:00Z"
    assert hours("month", "UTC", "2026-02-10T00:00:00Z") == 28 * 24
    assert hours("month", "UTC", "2028-02-29T23:59:59Z") == 29 * 24
    assert window("month").label(ms("2026-02-28T00:00:00Z")) == "2026-02"
    assert window("month").label(ms("2028-02-29T00:00:00Z")) == "2028-02"
    assert end("month", "UTC", "2026-12-31T23:59:59Z") == "2027-01-01T00:00:00Z"


@pytest.mark.parametrize(
    "zone", ["Europe/Pragu", "", "Mars/Base", "../etc/passwd", "/etc/localtime", "Europe", "a\x00b"]
)
def test_b061_an_unknown_zone_is_refused_by_name(zone: str) -> None:
    for spec in ("day", "rolling:60s", None):
        with pytest.raises(ValueError, match="unknown time zone") as refusal:
            Window.parse(spec, zone)
        assert repr(zone) in str(refusal.value)


def test_b061_a_zone_that_is_no_text_is_refused() -> None:
    for zone in (None, 1, ZoneInfo("UTC")):
        with pytest.raises(ValueError, match="unknown time zone"):
            Window.parse("day", zone)  # type: ignore[arg-type]  # what the type forbids is what is tested


def test_b061_the_day_is_the_zone_s_day() -> None:
    los_angeles = window("day", "America/Los_Angeles")
    assert los_angeles.label(ms("2026-05-22T06:30:00Z")) == "2026-05-21"
    assert iso(los_angeles.bounds(ms("2026-05-22T06:30:00Z"))[0]) == "2026-05-21T07:00:00Z"


def test_b061_every_zone_of_the_database_is_known() -> None:
    assert len(ZONES) > 500
    for zone in ZONES:
        window("day", zone)


@pytest.mark.parametrize("spec", ["minute", "hour", "day", "week", "month"])
def test_b063_asking_again_does_not_move_a_window(spec: str) -> None:
    kept = window(spec, "Europe/Prague")
    now = ms("2026-11-29T12:34:56.789Z")
    first = kept.bounds(now)
    assert {kept.bounds(now + i % 2) for i in range(50)} == {first}
    kept.bounds(now + 400 * DAY_MS)
    assert kept.bounds(now) == first


@pytest.mark.parametrize("spec", ["day", "month"])
def test_b064_the_next_period_begins_with_no_job(spec: str) -> None:
    first, last = window(spec).bounds(ms("2026-11-29T12:00:00Z"))
    assert window(spec).bounds(last - 1) == (first, last)
    assert window(spec).bounds(last)[0] == last


def test_a_week_starts_on_monday() -> None:
    assert start("week", "UTC", "2026-11-29T23:59:59Z") == "2026-11-23T00:00:00Z"
    assert start("week", "Europe/Prague", "2026-11-29T23:00:00Z") == "2026-11-29T23:00:00Z"
    assert window("week").label(ms("2027-01-01T00:00:00Z")) == "2026-W53"


def test_hours_and_minutes_are_local() -> None:
    assert start("hour", "Asia/Kolkata", "2026-11-29T12:45:00Z") == "2026-11-29T12:30:00Z"
    assert start("hour", "UTC", "2026-11-29T12:45:00Z") == "2026-11-29T12:00:00Z"
    assert start("minute", "Asia/Kolkata", "2026-11-29T12:45:59.999Z") == "2026-11-29T12:45:00Z"
    assert window("hour", "Asia/Kolkata").label(ms("2026-11-29T12:45:00Z")) == "2026-11-29T18"
    assert window("minute").label(ms("2026-11-29T12:45:07Z")) == "2026-11-29T12:45"


@pytest.mark.parametrize(
    ("spec", "kind", "unit", "length_ms", "adjective", "key"),
    [
        ("minute", "calendar", "minute", 60_000, "Per-minute", "minute@Asia/Tokyo"),
        ("hour", "calendar", "hour", 3_600_000, "Hourly", "hour@Asia/Tokyo"),
        ("day", "calendar", "day", 86_400_000, "Daily", "day@Asia/Tokyo"),
        ("week", "calendar", "week", 604_800_000, "Weekly", "week@Asia/Tokyo"),
        ("month", "calendar", "month", 2_678_400_000, "Monthly", "month@Asia/Tokyo"),
        ("rolling:60s", "rolling", "second", 60_000, "60-second", "rolling:60000ms"),
        ("rolling:15m", "rolling", "minute", 900_000, "15-minute", "rolling:900000ms"),
        ("fixed:24h", "fixed", "hour", 86_400_000, "24-hour", "fixed:86400000ms"),
        ("fixed:7d", "fixed", "day", 604_800_000, "7-day", "fixed:604800000ms"),
        ("rolling:366d", "rolling", "day", 31_622_400_000, "366-day", "rolling:31622400000ms"),
    ],
)
def test_a_window_is_read_and_named(spec: str, kind: str, unit: str, length_ms: int, adjective: str, key: str) -> None:
    read = window(spec, "Asia/Tokyo")
    assert (read.kind, read.unit, read.length_ms, read.spec) == (kind, unit, length_ms, spec)
    assert (read.adjective, read.key) == (adjective, key)


@pytest.mark.parametrize(
    "spec",
    ["", "daily", "Day", "year", "rolling", "rolling:", "rolling:0s", "rolling:-1s", "rolling:60", "rolling:1.5h",
     "rolling: 60s", "fixed:1w", "fixed:367d", "rolling:99999999999s", "day ", "sliding:60s", "rolling:\u0666s"],
)  # fmt: skip
def test_an_unknown_window_is_refused_with_the_accepted_ones(spec: str) -> None:
    with pytest.raises(ValueError, match=r"window .*accepted: minute, hour, day, week, month") as refusal:
        Window.parse(spec)
    assert repr(spec) in str(refusal.value)


@pytest.mark.parametrize("spec", [60, 1.5, True, ["day"], b"day", {}])
def test_a_window_that_is_no_text_is_refused(spec: object) -> None:
    with pytest.raises(ValueError, match="unknown window"):
        Window.parse(spec)  # type: ignore[arg-type]  # what the type forbids is what is tested


def test_no_window_is_none() -> None:
    assert Window.parse(None) is None


def test_windows_that_cut_time_alike_are_equal() -> None:
    assert window("rolling:60s") == window("rolling:1m", "Asia/Tokyo")
    assert hash(window("rolling:60s")) == hash(window("rolling:1m"))
    assert window("rolling:60s") != window("fixed:60s")
    assert window("day") != window("fixed:24h")
    assert window("day") != window("day", "Asia/Tokyo")
    used = window("day")
    used.bounds(0)
    assert used == window("day")


def test_a_window_is_frozen_and_travels() -> None:
    day = window("day", "Asia/Tokyo")
    bounds = day.bounds(ms("2026-11-29T12:00:00Z"))
    with pytest.raises(FrozenInstanceError):
        day.zone = "UTC"  # type: ignore[misc]  # what the type forbids is what is tested
    for twin in (pickle.loads(pickle.dumps(day)), copy.deepcopy(day)):
        assert twin == day
        assert twin.bounds(ms("2026-11-29T12:00:00Z")) == bounds


@pytest.mark.parametrize("spec", ["rolling:60s", "fixed:24h"])
def test_only_the_calendar_has_bounds(spec: str) -> None:
    with pytest.raises(ValueError):
        window(spec).bounds(0)
    with pytest.raises(ValueError):
        window(spec).label(0)


def test_threads_that_share_a_window_see_their_own_bounds() -> None:
    shared = window("day", "Europe/Prague")
    instants = [ms("2026-03-01T12:00:00Z") + i * DAY_MS for i in range(60)] * 20
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(shared.bounds, instants))
    assert found == [window("day", "Europe/Prague").bounds(instant) for instant in instants]


@cache
def pieces(zone: str) -> list[tuple[int, int, int]]:
    """(from, to, offset) of a zone, found by looking at its clock and no other way."""
    info = ZoneInfo(zone)

    def offset(second: int) -> int:
        return int(datetime.fromtimestamp(second, info).utcoffset().total_seconds())  # type: ignore[union-attr]  # an aware datetime has an offset

    cuts = [FROM - 400 * 86_400]
    for low, high in pairwise(range(FROM - 400 * 86_400, TO + 400 * 86_400, 5 * 86_400)):
        if offset(low) == offset(high):
            continue
        below, above = low, high
        while above - below > 1:
            middle = (below + above) // 2
            below, above = (middle, above) if offset(middle) == offset(low) else (below, middle)
        cuts.append(above)
    return [(a, b, offset(a)) for a, b in pairwise([*cuts, TO + 400 * 86_400])]


def first_second(zone: str, day: date) -> int:
    wall = int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp())
    cuts = pieces(zone)
    nearby = cuts[max(0, bisect(cuts, (wall, 0, 0)) - 3) :]
    reached = ((max(a, wall - offset), b) for a, b, offset in nearby)
    return next(second for second, b in reached if second < b)


def expected(spec: str, zone: str, now: int) -> tuple[int, int]:
    """The window by the definition: the last start of a period that is not later than now, and the next."""
    around = datetime.fromtimestamp(now, UTC).date()
    reach = {"day": 4, "week": 10, "month": 35}[spec]
    days = [around + timedelta(days=i) for i in range(-reach, reach + 1)]
    firsts = [d for d in days if spec == "day" or (d.isoweekday() == 1 if spec == "week" else d.day == 1)]
    starts = sorted({first_second(zone, d) for d in firsts})
    return max(s for s in starts if s <= now), min(s for s in starts if s > now)


@given(st.sampled_from(ZONES), st.sampled_from(["day", "week", "month"]), st.integers(FROM, TO - 1))
def test_any_instant_lies_in_the_window_of_the_definition(zone: str, spec: str, now: int) -> None:
    first, last = expected(spec, zone, now)
    assert window(spec, zone).bounds(now * 1000 + 999) == (first * 1000, last * 1000)


@given(st.sampled_from(ZONES), st.sampled_from(["minute", "hour", "day", "week", "month"]), st.integers(FROM, TO - 1))
def test_windows_tile_time(zone: str, spec: str, now: int) -> None:
    cut = window(spec, zone)
    first, last = cut.bounds(now * 1000)
    assert first <= now * 1000 < last
    assert {window(spec, zone).bounds(t) for t in (first, last - 1, (first + last) // 2)} == {(first, last)}
    assert window(spec, zone).bounds(last)[0] == last
    assert window(spec, zone).bounds(first - 1)[1] == first


def switches() -> list[tuple[str, int]]:
    """Where clocks change, one zone for each way in which they do."""
    seen: dict[tuple[int, int], str] = {}
    for zone in ZONES:
        for (_, _, before), (at, _, after) in pairwise(pieces(zone)):
            if FROM <= at < TO and before != after:
                seen.setdefault((at, after), zone)
    return [(zone, at) for (at, _), zone in seen.items()]


def test_windows_tile_time_wherever_clocks_change() -> None:
    found = switches()
    assert len(found) > 2000
    for zone, at in found:
        for spec in ("day", "week", "month"):
            first, last = window(spec, zone).bounds(at * 1000)
            assert (first // 1000, last // 1000) == expected(spec, zone, at)
            assert window(spec, zone).bounds(first - 1)[1] == first
            assert window(spec, zone).bounds(last)[0] == last
        for spec in ("minute", "hour"):
            first, last = window(spec, zone).bounds(at * 1000)
            assert window(spec, zone).bounds(first - 1)[1] == first
            assert window(spec, zone).bounds(last)[0] == last
            assert window(spec, zone).bounds(last - 1) == (first, last)
