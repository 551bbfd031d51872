"""The sum of a rolling window is never below what was really spent in it, and says rightly when there is room."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_budget_hooks import BudgetEngine, BudgetExceeded, Call, Usage
from llm_budget_hooks.stores.memory import MemoryCells
from llm_budget_hooks.transitions import Kind, Meter, Rule, Terms
from llm_budget_hooks.transitions.accounts import enter, roll
from llm_budget_hooks.transitions.rolling import Log

LENGTH = 600
RULE = Rule("b", "user", int(Meter.TOKENS), int(Kind.ROLLING), 10**9, 0, LENGTH)
TERMS = Terms(timeout_ms=10_000, remember_ms=10_000, utterance_timeout_ms=1, utterance_max_calls=1, exact_entries=3)

WAITS = st.integers(-100, 200) | st.sampled_from([-650, -30, 610, 1_300])
STEPS = st.lists(
    st.tuples(WAITS, st.sampled_from(["spend", "correct"]), st.integers(1, 50), st.integers(0, 30)), max_size=40
)


@settings(max_examples=500, deadline=None)
@given(steps=STEPS)
def test_the_sum_is_never_below_the_truth_whichever_way_the_clock_steps(steps: list[tuple[int, str, int, int]]) -> None:
    cells, log, now = MemoryCells(), Log(), 1_000_000
    booked: list[list[int]] = []
    latest = now
    for wait, what, amount, which in steps:
        now += wait
        latest = max(latest, now)
        roll(cells, "k", log, RULE, now)
        for spent in booked:  # what has left does not come back where the clock steps back
            spent[2] |= spent[0] <= now - LENGTH
        if what == "spend":
            booked.append([now, amount, False])
            enter(cells, "k", log, RULE, now, amount, TERMS, now)
        elif booked:
            of = booked[which % len(booked)]
            change = min(amount, of[1]) - of[1]
            of[1] += change
            enter(cells, "k", log, RULE, of[0], change, TERMS, now)
        roll(cells, "k", log, RULE, now)
        assert log.total >= sum(spent for _, spent, gone in booked if not gone)
    roll(cells, "k", log, RULE, latest + 2 * LENGTH)
    assert log.total == 0


class Clock:
    def __init__(self) -> None:
        self.now = datetime(2026, 3, 1, 12, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


def tokens(count: int) -> Call:
    return Call(model="gpt-4o", tenant="a", user="u", input_tokens=count, max_output_tokens=0)


def opened(url: str, clock: Clock, **budget: Any) -> BudgetEngine:
    rule = {"scope": "user", "meter": "tokens", "name": "m", **budget}
    return BudgetEngine.open(url, {"budgets": [rule], "estimate": "bound", "store_timeout": "20s"}, clock=clock)


def test_late_truths_of_many_calls_let_nothing_extra_through() -> None:
    clock = Clock()
    with opened("memory://", clock, limit=2_000_000, window="rolling:1h") as engine:
        holds = [engine.reserve(tokens(100)) for _ in range(10_500)]
        for held in holds:
            engine.settle(held)
        for held in holds:
            engine.settle(held, usage=Usage(input_tokens=10))
        spent: Any = engine.status("a", "u")[0].spent
        assert spent >= 105_000
        clock.now += timedelta(seconds=3600)
        spent = engine.status("a", "u")[0].spent
        assert spent >= 0


def test_retry_after_knows_what_was_taken_back(engine_url: str) -> None:
    clock = Clock()
    with opened(engine_url, clock, limit=100, window="rolling:60s") as engine:
        held = engine.reserve(tokens(90))
        engine.settle(held)
        engine.settle(held, usage=Usage(input_tokens=10))
        clock.now += timedelta(seconds=16)
        engine.charge(tokens(80), usage=Usage(input_tokens=80))
        with pytest.raises(BudgetExceeded) as refused:
            engine.reserve(tokens(60))
        assert refused.value.retry_after == 60
        clock.now += timedelta(seconds=refused.value.retry_after)
        engine.reserve(tokens(60))


@pytest.mark.parametrize("ahead_s", [60.5, 86_400])
def test_a_late_truth_takes_nothing_back_of_what_has_left_before_the_clock_stepped_back(
    engine_url: str, ahead_s: float
) -> None:
    clock = Clock()
    with opened(engine_url, clock, limit=100, window="rolling:60s") as engine:
        held = engine.reserve(tokens(90))
        engine.settle(held)
        clock.now += timedelta(seconds=ahead_s)
        for number in range(140):  # each so-manieth operation clears old records away
            engine.charge(Call(model="gpt-4o", tenant="a", user=f"u{number}"), usage=Usage(input_tokens=1))
        assert engine.status("a", "u")[0].spent == 0
        clock.now -= timedelta(seconds=ahead_s - 59.5)
        engine.charge(tokens(50), usage=Usage(input_tokens=50))
        engine.settle(held, usage=Usage(input_tokens=10))
        assert engine.status("a", "u")[0].spent == 50
        with pytest.raises(BudgetExceeded):
            engine.reserve(tokens(51))
