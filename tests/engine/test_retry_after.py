"""`retry_after` names the first millisecond at which the same call is let in, over zones and windows."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

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
used = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 200_000)), min_size=1, max_size=12)


cases = given(began, st.sampled_from(ZONES), rules, used, st.integers(0, 4))


@settings(max_examples=100, deadline=None)
@cases
def test_a_call_is_let_in_at_the_instant_that_its_refusal_named_and_not_before(
    start: datetime, zone: str, limits: Any, uses: Any, size: int
) -> None:
    let_in_when_it_was_said("memory://", "any", start, zone, limits, uses, size)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@cases
def test_and_so_on_every_shared_store(
    shared_url: str, start: datetime, zone: str, limits: Any, uses: Any, size: int
) -> None:
    let_in_when_it_was_said(shared_url, f"n{next(NUMBERS)}", start, zone, limits, uses, size)


def let_in_when_it_was_said(
    url: str, namespace: str, start: datetime, zone: str, limits: Any, uses: Any, size: int
) -> None:
    now = [start.replace(microsecond=0)]
    budgets = [
        {"name": f"b{at}", "scope": "user", "meter": meter, "window": window, "limit": limit}
        for at, (meter, window, limit) in enumerate(limits)
    ]
    policy = {"namespace": namespace, "timezone": zone, "budgets": budgets, "store_timeout": "10s"}
    with BudgetEngine.open(url, policy, clock=lambda: now[0]) as engine:
        for amount, pause_ms in uses:
            engine.charge(sized(amount), cost=amount, force=True)
            now[0] += timedelta(milliseconds=pause_ms)
        refused = engine.check(sized(size)).refusal
        if refused is None:
            return
        if refused.retry_after is None:
            assert any(meter != "calls" and size > limit for meter, _, limit in limits)
            return
        assert refused.retry_after > 0
        at = now[0] + timedelta(milliseconds=round(refused.retry_after * 1000))
        assert [allowed(engine, now, instant, size) for instant in (at - MILLISECOND, at)] == [False, True]


@settings(max_examples=100, deadline=None)
@given(
    began, st.sampled_from(("minute", "hour", "day", "fixed:24h")), st.integers(1, 4), st.integers(1, 4),
    st.integers(0, 4), st.integers(1, 4), st.integers(1, 50 * 3_600_000),
)  # fmt: skip
def test_a_limit_that_was_set_until_some_instant_is_counted_with(
    start: datetime, window: str, limit: int, override: int, spent: int, size: int, until_ms: int
) -> None:
    now = [start.replace(microsecond=0)]
    budget = {"name": "cap", "scope": "tenant", "window": window, "limit": limit}
    with BudgetEngine.open("memory://", {"budgets": [budget]}, clock=lambda: now[0]) as engine:
        engine.charge(sized(spent), cost=spent, force=True)
        engine.override("cap", override, tenant="acme", expires_at=now[0] + timedelta(milliseconds=until_ms))
        refused = engine.check(sized(size)).refusal
        if refused is None:
            return
        if refused.retry_after is None:
            assert size > limit
            return
        at = now[0] + timedelta(milliseconds=round(refused.retry_after * 1000))
        assert [allowed(engine, now, instant, size) for instant in (at - MILLISECOND, at)] == [False, True]


def allowed(engine: BudgetEngine, now: list[datetime], instant: datetime, size: int) -> bool:
    now[0] = instant
    return engine.check(sized(size)).allowed


def sized(size: int) -> Call:
    return Call(model="any", tenant="acme", user="u1", amount=size, input_tokens=size, max_output_tokens=0)
