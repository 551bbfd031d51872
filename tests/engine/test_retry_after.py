"""`retry_after` names the first millisecond at which the same call is let in, over zones and windows."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llm_budget_hooks import BudgetEngine, Call

WINDOWS = ("minute", "hour", "day", "week", "month", "rolling:60s", "rolling:24h", "fixed:90s", "fixed:24h")
ZONES = ("UTC", "Europe/Prague", "America/New_York", "Asia/Kathmandu", "Africa/Cairo", "Pacific/Chatham")
NUMBERS = itertools.count()
MILLISECOND = timedelta(milliseconds=1)
began = st.datetimes(datetime(2026, 1, 1), datetime(2028, 1, 1), timezones=st.just(UTC))
rules = st.lists(st.tuples(st.sampled_from(["usd", "calls", "tokens"]), st.sampled_from(WINDOWS), st.integers(1, 6)),
                 min_size=1, max_size=3)  # fmt: skip
pauses = st.integers(0, 20_000) | st.integers(0, 200_000)
used = st.lists(st.tuples(st.integers(0, 4), pauses, st.booleans()), min_size=1, max_size=12)
timeouts = st.sampled_from(["10s", "90s", "10m", "4h"])


cases = given(began, st.sampled_from(ZONES), rules, used, st.integers(0, 4), timeouts)


@settings(max_examples=200, deadline=None)
@cases
def test_a_call_is_let_in_at_the_instant_that_its_refusal_named_and_not_before(
    start: datetime, zone: str, limits: Any, uses: Any, size: int, timeout: str
) -> None:
    let_in_when_it_was_said("memory://", "any", start, zone, limits, uses, size, timeout)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@cases
def test_and_so_on_every_shared_store(
    shared_url: str, start: datetime, zone: str, limits: Any, uses: Any, size: int, timeout: str
) -> None:
    let_in_when_it_was_said(shared_url, f"n{next(NUMBERS)}", start, zone, limits, uses, size, timeout)


def let_in_when_it_was_said(
    url: str, namespace: str, start: datetime, zone: str, limits: Any, uses: Any, size: int, timeout: str
) -> None:
    now = [start.replace(microsecond=0)]
    budgets = [
        {"name": f"b{at}", "scope": "user", "meter": meter, "window": window, "limit": limit}
        for at, (meter, window, limit) in enumerate(limits)
    ]
    times = {"timezone": zone, "store_timeout": "10s", "reservation_timeout": timeout}
    policy = {"namespace": namespace, "budgets": budgets, **times}
    with BudgetEngine.open(url, policy, clock=lambda: now[0]) as engine:
        for amount, pause_ms, held in uses:
            if not held:
                engine.charge(sized(amount), cost=amount, force=True)
            elif engine.check(sized(amount)):
                engine.reserve(sized(amount))  # nobody settles it: it is charged what it held
            now[0] += timedelta(milliseconds=pause_ms)
        refused = engine.check(sized(size)).refusal
        if refused is None:
            return
        if refused.retry_after is None:
            assert any(meter != "calls" and size > limit for meter, _, limit in limits)
            return
        assert refused.retry_after > 0
        if any(s.budget in refused.failed and is_busy(s, size) for s in engine.status("acme", "u1")):
            return
        at = now[0] + timedelta(milliseconds=round(refused.retry_after * 1000))
        assert [allowed(engine, now, instant, size) for instant in (at - MILLISECOND, at)] == [False, True]


@settings(max_examples=100, deadline=None)
@given(
    began, st.sampled_from(("minute", "hour", "day", "fixed:24h", "rolling:24h")), st.integers(1, 4), st.integers(1, 4),
    st.lists(st.integers(0, 3), max_size=4), st.integers(1, 4), st.integers(1, 50 * 3_600_000),
)  # fmt: skip
def test_a_limit_that_was_set_until_some_instant_is_counted_with(
    start: datetime, window: str, limit: int, override: int, spent: list[int], size: int, until_ms: int
) -> None:
    now = [start.replace(microsecond=0)]
    budget = {"name": "cap", "scope": "tenant", "window": window, "limit": limit}
    with BudgetEngine.open("memory://", {"budgets": [budget]}, clock=lambda: now[0]) as engine:
        for amount in spent:
            engine.charge(sized(amount), cost=amount, force=True)
            now[0] += timedelta(minutes=7)
        engine.override("cap", override, tenant="acme", expires_at=now[0] + timedelta(milliseconds=until_ms))
        refused = engine.check(sized(size)).refusal
        if refused is None:
            return
        if refused.retry_after is None:
            assert size > limit
            return
        at = now[0] + timedelta(milliseconds=round(refused.retry_after * 1000))
        assert [allowed(engine, now, instant, size) for instant in (at - MILLISECOND, at)] == [False, True]


@pytest.mark.parametrize(
    ("steps", "wanted"),
    [
        ([("charge", 5), ("hold", 2), ("hold", 2)], {6: 24, 8: 25, 9: 26}),
        ([("hold", 2), ("charge", 2), ("charge", 4)], {5: 25, 9: 26}),
    ],
)
def test_what_is_held_in_a_rolling_window_leaves_it_a_window_after_it_was_reserved(
    engine_url: str, steps: list[tuple[str, int]], wanted: dict[int, int]
) -> None:
    start = datetime(2026, 11, 3, 5, tzinfo=UTC)
    now = [start]
    rolling = {"name": "r", "scope": "user", "limit": "$10", "window": "rolling:24h"}
    policy = {"reservation_timeout": "4h", "store_timeout": "20s", "budgets": [rolling]}
    with BudgetEngine.open(engine_url, policy, clock=lambda: now[0]) as engine:
        for hour, (what, amount) in enumerate(steps):
            now[0] = start + timedelta(hours=hour)
            if what == "charge":
                engine.charge(sized(amount), cost=amount)
            else:
                engine.reserve(sized(amount))
        named = {}
        for size in wanted:
            refused = engine.check(sized(size)).refusal
            assert refused is not None
            assert refused.retry_after is not None
            assert not refused.busy
            named[size] = (now[0] - start).total_seconds() / 3600 + refused.retry_after / 3600
        assert named == wanted


def test_of_many_holds_the_first_are_counted_with_singly_and_the_rest_as_if_taken_now(engine_url: str) -> None:
    start = datetime(2026, 11, 3, 5, tzinfo=UTC)
    now = [start]
    rolling = {"name": "r", "scope": "user", "limit": "$100", "window": "rolling:24h"}
    policy = {"reservation_timeout": "4h", "store_timeout": "20s", "budgets": [rolling]}
    with BudgetEngine.open(engine_url, policy, clock=lambda: now[0]) as engine:
        engine.charge(sized(10), cost=10)
        for second in range(1, 71):
            now[0] = start + timedelta(seconds=second)
            engine.reserve(sized(1))
        named = []
        for size in (91, 95):  # which need 61 and 65 of the holds to leave
            refused = engine.check(sized(size)).refusal
            assert refused is not None
            assert refused.retry_after is not None
            named.append(now[0] - start + timedelta(seconds=refused.retry_after) - timedelta(hours=24))
        assert [at.total_seconds() for at in named] == [61, 70]


def is_busy(status: Any, size: int) -> bool:
    return bool(status.spent + (1 if status.meter == "calls" else size) <= status.limit)


def allowed(engine: BudgetEngine, now: list[datetime], instant: datetime, size: int) -> bool:
    now[0] = instant
    return engine.check(sized(size)).allowed


def sized(size: int) -> Call:
    return Call(model="any", tenant="acme", user="u1", amount=size, input_tokens=size, max_output_tokens=0)
