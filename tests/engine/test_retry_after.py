"""`retry_after` names the first millisecond at which the same call is let in, over zones and windows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from llm_budget_hooks import BudgetEngine, Call

WINDOWS = ("minute", "hour", "day", "week", "month", "rolling:60s", "rolling:24h", "fixed:90s", "fixed:24h")
ZONES = ("UTC", "Europe/Prague", "America/New_York", "Asia/Kathmandu", "Africa/Cairo", "Pacific/Chatham")
MILLISECOND = timedelta(milliseconds=1)
began = st.datetimes(datetime(2026, 1, 1), datetime(2028, 1, 1), timezones=st.just(UTC))
rules = st.lists(st.tuples(st.sampled_from(["usd", "calls", "tokens"]), st.sampled_from(WINDOWS), st.integers(1, 6)),
                 min_size=1, max_size=3)  # fmt: skip
used = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 200_000)), min_size=1, max_size=12)


@settings(max_examples=100, deadline=None)
@given(began, st.sampled_from(ZONES), rules, used, st.integers(0, 4))
def test_a_call_is_let_in_at_the_instant_that_its_refusal_named_and_not_before(
    start: datetime, zone: str, limits: Any, uses: Any, size: int
) -> None:
    now = [start.replace(microsecond=0)]
    budgets = [
        {"name": f"b{at}", "scope": "user", "meter": meter, "window": window, "limit": limit}
        for at, (meter, window, limit) in enumerate(limits)
    ]
    with BudgetEngine.open("memory://", {"timezone": zone, "budgets": budgets}, clock=lambda: now[0]) as engine:
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


def allowed(engine: BudgetEngine, now: list[datetime], instant: datetime, size: int) -> bool:
    now[0] = instant
    return engine.check(sized(size)).allowed


def sized(size: int) -> Call:
    return Call(model="any", tenant="acme", user="u1", amount=size, input_tokens=size, max_output_tokens=0)
