"""When what is spent is free again: windows that roll, that start at the first use, and that follow a calendar."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from one_user import NOON, Clock, call, spent

from llm_budget_hooks import BudgetEngine, BudgetExceeded


def test_b035_b040_a_rolling_window_ends_and_refusals_do_not_count(
    opened: Callable[..., BudgetEngine], clock: Clock
) -> None:
    engine = opened({"scope": "tenant", "meter": "calls", "limit": 60, "window": "rolling:60s"})
    for second in range(180):
        engine.reserve(call(None))
        if second > 60:
            with pytest.raises(BudgetExceeded) as refused:
                engine.reserve(call(None))
            assert refused.value.retry_after == 1
        clock.ahead(seconds=1)
    assert spent(engine)[0] == 59


def test_b041_no_sixty_seconds_hold_more_than_sixty_calls(opened: Callable[..., BudgetEngine], clock: Clock) -> None:
    engine = opened({"scope": "user", "meter": "calls", "limit": 60, "window": "rolling:60s"})
    clock.ahead(seconds=59.9)
    for _ in range(60):
        engine.reserve(call(None))
    clock.ahead(seconds=0.2)
    assert not engine.check(call(None))
    clock.ahead(seconds=59.7)
    assert not engine.check(call(None))
    clock.ahead(seconds=0.1)
    assert engine.check(call(None))


def test_a_fixed_window_starts_at_the_first_admitted_use_and_nothing_lengthens_it(
    opened: Callable[..., BudgetEngine], clock: Clock
) -> None:
    engine = opened({"scope": "user", "limit": "$1", "window": "fixed:24h"})
    with pytest.raises(BudgetExceeded):
        engine.reserve(call("1.01"))
    clock.ahead(hours=5)
    engine.settle(engine.reserve(call("1.00")), cost="1.00")
    clock.ahead(hours=23)
    with pytest.raises(BudgetExceeded) as refused:
        engine.reserve(call("0.10"))
    assert (refused.value.retry_after, refused.value.resets_at) == (3600, NOON + timedelta(hours=29))
    clock.ahead(hours=1)
    engine.reserve(call("0.10"))


def test_b058_a_day_ends_with_the_calendar_of_its_zone(opened: Callable[..., BudgetEngine], clock: Clock) -> None:
    engine = opened({"scope": "user", "limit": "$1", "window": "month"}, timezone="Asia/Tokyo")
    clock.now = datetime(2026, 7, 31, 14, 59, 59, tzinfo=UTC)
    engine.charge(call(None), cost="1")
    with pytest.raises(BudgetExceeded) as refused:
        engine.reserve(call())
    assert refused.value.retry_after == 1
    clock.now = datetime(2026, 7, 31, 15, tzinfo=UTC)
    engine.reserve(call())
