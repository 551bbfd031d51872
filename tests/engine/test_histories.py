"""Estimates from the last runs, and what an answer will probably cost, on every store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from one_user import NOON, Clock

from llm_budget_hooks import BudgetEngine, BudgetExceeded, Call, Usage

USER_DAY = {"name": "user-day", "scope": "user", "limit": "$100", "window": "day"}
ANSWER = {"name": "ceiling", "scope": "answer", "limit": "$0.05"}
PRICES = {"m": {"input": "$1", "output": "$2", "max_input_tokens": 100_000, "max_output_tokens": 64_000}}
STEP = Decimal("0.005")
Opened = Callable[..., BudgetEngine]


def engines(url: str, clock: Clock) -> Iterator[Opened]:
    made = []

    def make(*budgets: dict[str, Any], **policy: Any) -> BudgetEngine:
        rules = {"budgets": budgets, "store_timeout": "10s", "prices": PRICES, **policy}
        made.append(BudgetEngine.open(url, rules, clock=clock))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


@pytest.fixture
def opened(engine_url: str, clock: Clock) -> Iterator[Opened]:
    yield from engines(engine_url, clock)


@pytest.fixture
def shared(shared_url: str, clock: Clock) -> Iterator[Opened]:
    """Same as `opened`, where a second engine sees what the first one does."""
    yield from engines(shared_url, clock)


def call(step: str = "answer", bound: int | None = None, **more: Any) -> Call:
    names = {"tenant": "acme", "user": "u1", "feature": "chat"} | more
    return Call(model="m", input_tokens=1000, max_output_tokens=bound, step=step, **names)


def runs(engine: BudgetEngine, *outputs: int, **more: Any) -> None:
    for output in outputs:
        engine.settle(engine.reserve(call(**more)), usage=Usage(input_tokens=1000, output_tokens=output))


def estimate(engine: BudgetEngine, **more: Any) -> tuple[Decimal, str]:
    held = engine.reserve(call(**more))
    engine.release(held)
    return held.estimate, held.basis


@pytest.mark.parametrize(
    ("outputs", "expected", "basis"),
    [
        ((), Decimal("0.001") + STEP, "step"),
        ((100, 200, 300, 400), Decimal("0.001") + STEP, "step"),
        ((500, 100, 200, 300, 400), Decimal("0.002"), "p90"),
        (tuple(range(1, 21)), Decimal("0.001036"), "p90"),
        ((*range(1, 19), 9999, 9998, 9997), Decimal("0.020994"), "p90"),
        ((*range(1, 20), 9999, 9998), Decimal("0.001038"), "p90"),
    ],
    ids=["none", "four", "five", "twenty", "three-of-21", "two-of-21"],
)
def test_b017_without_a_bound_the_hold_is_the_90th_percentile_of_the_last_20_runs(
    opened: Opened, outputs: tuple[int, ...], expected: Decimal, basis: str
) -> None:
    engine = opened(USER_DAY)
    runs(engine, *outputs)
    assert estimate(engine) == (expected, basis)


def test_a_history_is_in_the_store_and_holds_for_the_next_process(shared: Opened) -> None:
    runs(shared(USER_DAY), *[180] * 5)
    assert estimate(shared(USER_DAY)) == (Decimal("0.00136"), "p90")


def test_runs_of_31_days_ago_are_none(shared: Opened, clock: Clock) -> None:
    engine = shared(USER_DAY)
    runs(engine, *[180] * 5)
    clock.now = NOON + timedelta(days=31)
    assert estimate(engine)[1] == estimate(shared(USER_DAY))[1] == "step"


def test_each_tenant_feature_step_and_model_has_a_history_of_its_own(opened: Opened) -> None:
    engine = opened(USER_DAY)
    runs(engine, *[180] * 5)
    others: list[dict[str, Any]] = [{"tenant": "other"}, {"feature": "voice"}, {"step": "router"}]
    assert [estimate(engine, **other)[1] for other in others] == ["step"] * 3
    assert estimate(engine, user="u2")[1] == "p90"


@pytest.mark.parametrize(
    ("mode", "bound", "expected", "basis"),
    [
        ("auto", 500, Decimal("0.00136"), "p90"),
        ("auto", 100, Decimal("0.0012"), "bound"),
        ("p90", 500, Decimal("0.00136"), "p90"),
        ("p90", 100, Decimal("0.0012"), "bound"),
        ("bound", 500, Decimal("0.002"), "bound"),
        ("bound", None, Decimal("0.129"), "bound"),
    ],
)
def test_the_mode_says_whether_history_or_bound_is_held(
    opened: Opened, mode: str, bound: int | None, expected: Decimal, basis: str
) -> None:
    engine = opened(USER_DAY, estimate=mode)
    runs(engine, *[180] * 5)
    assert estimate(engine, bound=bound) == (expected, basis)


def test_a_budget_of_tokens_holds_the_percentile_too(opened: Opened) -> None:
    engine = opened({"name": "tokens", "scope": "user", "meter": "tokens", "limit": 10**6, "window": "day"})
    held = engine.reserve(call())
    assert held.holds["tokens"] == 1000 + 4000
    engine.release(held)
    runs(engine, *[180] * 5)
    assert engine.reserve(call()).holds["tokens"] == 1000 + 180


def test_cache_hits_aborted_and_estimated_runs_are_no_samples(opened: Opened) -> None:
    engine = opened(USER_DAY)
    runs(engine, *[180] * 4)
    engine.settle(engine.reserve(call()), usage=Usage(), cost=0)
    engine.settle(engine.reserve(call()), cost=0)
    engine.settle(engine.reserve(call()))
    engine.settle(engine.reserve(call()), usage=Usage(input_tokens=1000, output_tokens=9, exact=False))
    engine.release(engine.reserve(call()))
    assert estimate(engine)[1] == "step"
    runs(engine, 180)
    assert estimate(engine)[1] == "p90"


def test_a_late_settle_is_a_sample_and_a_second_one_is_none(shared: Opened, clock: Clock) -> None:
    engine = shared(USER_DAY)
    runs(engine, *[180] * 3)
    held = engine.reserve(call())
    clock.now += timedelta(minutes=11)
    for _ in range(3):
        engine.settle(held, usage=Usage(input_tokens=1000, output_tokens=180))
    assert estimate(engine)[1] == estimate(shared(USER_DAY))[1] == "step"
    runs(engine, 180)
    assert estimate(engine)[1] == estimate(shared(USER_DAY))[1] == "p90"


def test_a_forgotten_step_begins_anew_in_every_process(shared: Opened, clock: Clock) -> None:
    engine, other = shared(USER_DAY), shared(USER_DAY)
    runs(engine, *[180] * 5)
    runs(engine, *[90] * 5, step="router")
    assert estimate(other)[1] == "p90"
    engine.forget("answer", by="ops")
    clock.now += timedelta(seconds=1)
    assert estimate(engine)[1] == estimate(other)[1] == "step"
    assert estimate(engine, step="router")[1] == "p90"
    runs(engine, *[90] * 5)
    assert estimate(engine) == (Decimal("0.00118"), "p90")


def test_awaited_calls_learn_as_well(opened: Opened) -> None:
    engine = opened(USER_DAY)

    async def some() -> str:
        for _ in range(5):
            held = await engine.areserve(call())
            await engine.asettle(held, usage=Usage(input_tokens=1000, output_tokens=180))
        held = await engine.areserve(call())
        await engine.aforget("answer")
        await engine.aclose()
        return held.basis

    assert asyncio.run(some()) == "p90"


def test_b016_a_burst_of_40_holds_what_nine_of_ten_take_and_not_the_most(opened: Opened) -> None:
    prices = {"m": {"input": "$3", "output": "$15", "max_input_tokens": 200_000, "max_output_tokens": 64_000}}
    engine = opened({"scope": "user", "name": "cap", "limit": "$25", "window": "day"}, prices=prices)
    asked = {"model": "m", "tenant": "acme", "user": "u1", "input_tokens": 30_000, "max_output_tokens": 64_000}
    for _ in range(5):
        usage = Usage(input_tokens=30_000, output_tokens=2_000)
        engine.settle(engine.reserve(Call(**asked)), usage=usage, cost="0")
    held = [engine.reserve(Call(**asked)) for _ in range(40)]
    assert {one.estimate for one in held} == {Decimal("0.12")}
    held += [engine.reserve(Call(**asked)) for _ in range(168)]
    with pytest.raises(BudgetExceeded, match="held"):
        engine.reserve(Call(**asked))


def refused(engine: BudgetEngine, **more: Any) -> BudgetExceeded:
    with pytest.raises(BudgetExceeded) as caught, engine.utterance(tenant="acme", user="u1", feature="chat", **more):
        engine.reserve(call())
    return caught.value


def test_a_plan_is_the_sum_of_what_its_steps_cost_in_nine_of_ten_runs(opened: Opened) -> None:
    engine = opened(USER_DAY, ANSWER, steps={"router": "$0.001"})
    with engine.utterance(tenant="acme", feature="chat", plan=("router", "answer", "other")) as scope:
        assert scope.estimate == Decimal("0.001") + STEP + STEP
    runs(engine, *[10_000] * 5)
    with engine.utterance(tenant="acme", feature="chat", plan=("router", "answer", "other")) as scope:
        assert scope.estimate == Decimal("0.001") + Decimal("0.021") + STEP
    error = refused(engine, plan=("answer", "answer", "answer"))
    assert (error.code, error.stage, error.requested) == ("answer_estimate", "start", Decimal("0.063"))
    assert "$0.063" in str(error)
    assert "narrow" in str(error)
    assert [status.spent for status in engine.status("acme", "u1")] == [Decimal("0.105")]


def test_a_step_that_costs_nothing_counts_as_nothing(opened: Opened) -> None:
    free = {"input": "$0", "output": "$0", "max_input_tokens": 100_000, "max_output_tokens": 64_000}
    engine = opened(USER_DAY, ANSWER, prices=PRICES | {"free": free}, step_budget="$0.04")
    asked = Call(model="free", tenant="acme", user="u1", feature="chat", step="router", input_tokens=9)
    for _ in range(5):
        engine.settle(engine.reserve(asked), usage=Usage(input_tokens=9, output_tokens=9))
    with engine.utterance(tenant="acme", feature="chat", plan=("router", "answer")) as scope:
        assert scope.estimate == Decimal("0.04")


@pytest.mark.parametrize("answers", [4, 5, 21])
def test_without_a_plan_the_last_answers_tell_from_five_on(shared: Opened, answers: int) -> None:
    engine = shared(USER_DAY, ANSWER | {"limit": "$0.10"})
    for _ in range(answers):
        with engine.utterance(tenant="acme", user="u1", feature="chat") as scope:
            runs(engine, 19_500, 19_500)
            assert scope.estimate is None or scope.estimate == Decimal("0.08")
    lower = shared(USER_DAY, ANSWER)
    if answers < 5:
        with lower.utterance(tenant="acme", user="u1", feature="chat"):
            assert lower.reserve(call())
        return
    error = refused(lower)
    assert (error.code, error.requested, error.limit) == ("answer_estimate", Decimal("0.08"), Decimal("0.05"))
    assert lower.check(call(utterance=None)).refusal is not None
    with lower.utterance(tenant="acme", user="u1", feature="chat", plan=()):
        assert lower.reserve(call())
    with lower.utterance(tenant="acme", user="u1", feature="voice"):
        assert lower.reserve(call(feature="voice"))
    with lower.utterance(tenant="acme", user="u1", feature="chat") as scope:
        assert scope.calls == 0  # an answer that needs no model is never refused for cost


def test_answers_above_their_ceiling_are_what_the_next_estimate_learns_from(shared: Opened) -> None:
    engine = shared(USER_DAY, ANSWER)
    for _ in range(5):
        with pytest.raises(BudgetExceeded, match="cost"), engine.utterance(tenant="acme", user="u1", feature="chat"):
            engine.settle(engine.reserve(call()), cost="0.08")
    error = refused(shared(USER_DAY, ANSWER))
    assert (error.code, error.stage, error.requested) == ("answer_estimate", "start", Decimal("0.08"))
    assert engine.status("acme", "u1")[0].spent == Decimal("0.40")


def test_after_ten_refusals_in_a_row_one_answer_in_ten_minutes_runs(shared: Opened, clock: Clock) -> None:
    engine = shared(USER_DAY, ANSWER, steps={"slow": "$0.06"})
    for _ in range(10):
        assert refused(engine, plan=("slow",)).code == "answer_estimate"
    other = shared(USER_DAY, ANSWER, steps={"slow": "$0.06"})
    with other.utterance(tenant="acme", user="u1", feature="chat", plan=("slow",)):
        other.settle(other.reserve(call()), usage=Usage(input_tokens=10, output_tokens=10))
    for probing in (engine, other):
        assert refused(probing, plan=("slow",)).code == "answer_estimate"
    clock.now += timedelta(minutes=10)
    with engine.utterance(tenant="acme", user="u1", feature="chat", plan=("slow",)):
        pass
    assert refused(engine, plan=("slow",)).code == "answer_estimate"


def test_an_answer_that_passes_ends_the_row_of_refusals(opened: Opened) -> None:
    engine = opened(USER_DAY, ANSWER, steps={"slow": "$0.06", "quick": "$0.01"})
    for _ in range(2):
        for _ in range(9):
            assert refused(engine, plan=("slow",)).code == "answer_estimate"
        with engine.utterance(tenant="acme", user="u1", feature="chat", plan=("quick",)):
            pass
    assert refused(engine, plan=("slow",)).code == "answer_estimate"
    assert refused(engine, plan=("slow",)).code == "answer_estimate"


def test_a_spent_user_is_told_so_before_the_ceiling_is_mentioned(shared: Opened) -> None:
    engine = shared(USER_DAY | {"limit": "$0.60"}, ANSWER | {"limit": "$1"})
    for _ in range(5):
        with engine.utterance(tenant="acme", user="u1", feature="chat"):
            engine.settle(engine.reserve(call()), cost="0.12")
    assert refused(shared(USER_DAY | {"limit": "$0.60"}, ANSWER)).code == "spend"


def test_an_answer_above_its_ceiling_is_in_the_ledger(engine_url: str, tmp_path: Any) -> None:
    rules = {"budgets": [USER_DAY, ANSWER], "store_timeout": "10s", "prices": PRICES, "steps": {"slow": "$0.06"}}
    with BudgetEngine.open(engine_url, rules, ledger=f"sqlite:///{tmp_path / 'ledger.db'}") as engine:
        with pytest.raises(BudgetExceeded, match="cost"), engine.utterance(tenant="acme", user="u1"):
            engine.settle(engine.reserve(call(feature=None)), cost="0.08")
        with pytest.raises(BudgetExceeded), engine.utterance(tenant="acme", user="u1", plan=("slow",)):
            raise AssertionError
        engine.flush()
        rows = engine.ledger.refusals().items
        assert sorted((row.code, row.stage) for row in rows) == [("answer_actual", "end"), ("answer_estimate", "start")]


def test_a_settlement_whose_usage_is_a_guess_is_not_exact_and_its_answer_is_no_sample(opened: Opened) -> None:
    engine = opened(USER_DAY, ANSWER)
    for _ in range(6):
        with engine.utterance(tenant="acme", user="u1", feature="chat") as scope:
            guess = Usage(input_tokens=1000, output_tokens=9, exact=False)
            settled = engine.settle(engine.reserve(call()), usage=guess)
            assert (settled.status, settled.exact) == ("settled", False)
            assert scope.estimate is None
