"""The main promise: what a limit has room for is let through, and no call more, whoever asks at once."""

from __future__ import annotations

import asyncio
import os
import pickle
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from proof_workers import AtCost, Four, FrozenClock, attempt, in_threads, killed_in_mid_call

from llm_budget_hooks import BudgetEngine, BudgetExceeded, BudgetStatus, Call, ConfigurationError, Reservation, Usage

ROOT = Path(__file__).parent.parent
MODEL = "made-up"
PRICES = {MODEL: {"input": "1", "output": "10"}}
CALL = Call(model=MODEL, tenant="acme", user="u1", input_tokens=1_000, max_output_tokens=900)
USAGE = Usage(input_tokens=1_000, output_tokens=900)
WORTH_TEN = {
    "calls": {"scope": "user", "meter": "calls", "limit": 10, "window": "day"},
    "usd": {"scope": "user", "limit": "$0.10", "window": "day"},
}


def at_bound(engine: BudgetEngine, held: Reservation) -> Any:
    return engine.settle(held, usage=USAGE)


def opened(url: str, *budgets: dict[str, Any], clock: FrozenClock | None = None, **policy: Any) -> BudgetEngine:
    """An engine on a store, with a clock that stands. A partial of this can be sent to other processes."""
    rules = {"estimate": "bound", "prices": PRICES, "store_timeout": "30s", "budgets": budgets, **policy}
    return BudgetEngine.open(url, rules, clock=clock or FrozenClock())


def costing(amount: str, **more: Any) -> Call:
    return Call(model=MODEL, tenant="acme", user="u1", amount=amount, **more)


def balance(engine: BudgetEngine, scope: str = "user", meter: str = "usd") -> BudgetStatus:
    found = [s for s in engine.status(tenant="acme", user="u1") if (s.scope, s.meter) == (scope, meter)]
    assert len(found) == 1
    return found[0]


def swept(engine: BudgetEngine) -> BudgetStatus:
    """The user's balance once all due holds have ended; one reading ends 64 of them."""
    for _ in range(100):
        found = balance(engine)
        if not found.reserved:
            break
    return found


@pytest.fixture(scope="module")
def four() -> Iterator[Four]:
    processes = Four()
    yield processes
    processes.close()


@pytest.fixture(params=WORTH_TEN)
def worth_ten(request: pytest.FixtureRequest) -> dict[str, Any]:
    """A budget that has room for ten calls."""
    return WORTH_TEN[request.param]


def assert_ten_spent(engine: BudgetEngine, meter: str) -> None:
    found = balance(engine, meter=meter)
    assert (found.spent, found.reserved, found.available) == (found.limit, 0, 0)


class TestFiftyCallsWhereTenFit:
    def test_tasks(self, engine_url: str, worth_ten: dict[str, Any]) -> None:
        async def one(engine: BudgetEngine) -> bool:
            try:
                held = await engine.areserve(CALL)
            except BudgetExceeded:
                return False
            await asyncio.sleep(0.002)
            await engine.asettle(held, usage=USAGE)
            return True

        async def fifty() -> int:
            async with opened(engine_url, worth_ten) as engine:
                let_through = sum(await asyncio.gather(*(one(engine) for _ in range(50))))
                assert_ten_spent(engine, worth_ten.get("meter", "usd"))
                return let_through

        assert asyncio.run(fifty()) == 10

    def test_threads(self, engine_url: str, worth_ten: dict[str, Any]) -> None:
        with opened(engine_url, worth_ten) as engine:
            assert in_threads(engine, [CALL] * 50, at_bound) == 10
            assert_ten_spent(engine, worth_ten.get("meter", "usd"))

    def test_four_processes(self, shared_url: str, worth_ten: dict[str, Any], four: Four) -> None:
        opens = partial(opened, shared_url, worth_ten)
        with opens() as engine:
            assert four(opens, [CALL] * 50, at_bound) == 10
            assert_ten_spent(engine, worth_ten.get("meter", "usd"))


class TestAdmissionRaces:
    def test_b001_ten_at_once_of_which_three_fit(self, engine_url: str) -> None:
        with opened(engine_url, {"scope": "user", "limit": "$1.00", "window": "day"}) as engine:
            assert in_threads(engine, [costing("0.30")] * 10, AtCost("0.30")) == 3
            assert balance(engine).spent == Decimal("0.90")

    def test_b001_four_processes_of_ten_calls_each(self, shared_url: str, four: Four) -> None:
        opens = partial(opened, shared_url, {"scope": "user", "limit": "$1.00", "window": "day"})
        with opens() as engine:
            assert four(opens, [costing("0.30")] * 40, AtCost("0.30")) == 3
            assert balance(engine).spent == Decimal("0.90")

    def test_b003_spend_above_the_cap_refuses_every_call(self, engine_url: str) -> None:
        with opened(engine_url, {"scope": "user", "limit": "$0.05", "window": "day"}) as engine:
            assert balance(engine).spent == 0
            engine.settle(engine.reserve(costing("0.05")), cost="0.06")
            with pytest.raises(BudgetExceeded) as refused:
                engine.reserve(costing("0.000000001"))
            assert (refused.value.spent, refused.value.busy) == (Decimal("0.06"), False)
            assert attempt(engine, costing("0"), AtCost("0"))

    @pytest.mark.parametrize("amount", ["NaN", "inf", Decimal("NaN"), Decimal("-Infinity"), float("nan"), "-1"])
    def test_b003_an_estimate_that_is_no_amount_is_refused(self, amount: Any) -> None:
        with pytest.raises(ConfigurationError):
            Call(model=MODEL, amount=amount)

    def test_b004_processes_do_not_have_counters_of_their_own(self, shared_url: str, four: Four) -> None:
        opens = partial(opened, shared_url, {"scope": "user", "limit": "$1.00", "window": "day"})
        with opens() as engine:
            assert engine.shared
            assert four(opens, [costing("0.10")] * 40, AtCost("0.10")) == 10

    def test_b004_a_pickled_engine_counts_against_the_same_limit(self, shared_url: str) -> None:
        with opened(shared_url, WORTH_TEN["calls"]) as engine:
            copy = pickle.loads(pickle.dumps(engine))
            assert sum(attempt(each, CALL, at_bound) for each in (engine, copy) * 10) == 10
            copy.close()

    def test_b004_a_private_store_says_so(self) -> None:
        assert not BudgetEngine.open("memory://").shared
        with pytest.raises(ConfigurationError, match="require_shared"):
            BudgetEngine.open("memory://", require_shared=True)

    def test_b006_an_estimate_equal_to_the_cap_is_admitted_once(self, engine_url: str) -> None:
        with opened(engine_url, {"scope": "user", "limit": "$1.00", "window": "day"}) as engine:
            held = engine.reserve(costing("1.00", id="attempt-1"))
            assert engine.reserve(costing("1.00", id="attempt-1")).id == held.id
            assert balance(engine).reserved == 1
            assert engine.settle(held, cost="1.00").status == "settled"
            assert engine.settle("attempt-1", cost="1.00").status == "already_settled"
            assert balance(engine).spent == 1
            assert not engine.check(costing("0.01"))

    def test_b007_a_refusal_of_one_level_takes_nothing_from_the_others(self, engine_url: str) -> None:
        levels = [
            {"scope": "global", "limit": "$1", "window": "day"},
            {"scope": "tenant", "limit": "$1", "window": "day"},
            {"scope": "user", "limit": "$0.05", "window": "day"},
            {"scope": "tenant", "meter": "calls", "limit": 60, "window": "rolling:60s"},
        ]
        with opened(engine_url, *levels) as engine:
            for _ in range(1_000):
                with pytest.raises(BudgetExceeded) as refused:
                    engine.reserve(costing("0.10"))
                assert (refused.value.scope, refused.value.failed) == ("user", ("user-usd-day",))
            assert {(s.spent, s.reserved) for s in engine.status(tenant="acme", user="u1")} == {(0, 0)}


class TestHoldsThatNobodyGivesBack:
    def test_b008_calls_that_raise_anywhere_leave_no_hold(self, engine_url: str) -> None:
        clock, expected = FrozenClock(), Decimal(0)
        chance = random.Random(8)  # noqa: S311 - the same calls in every run
        budget = {"scope": "user", "limit": "$1000", "window": "day"}
        with opened(engine_url, budget, clock=clock, reservation_timeout="10s") as engine:
            for _ in range(1_000):
                expected += self._one_of_b008(engine, chance)
                clock.advance(0.01)
            clock.advance(11)
            found = swept(engine)
            assert (found.spent, found.reserved) == (expected, 0)
            assert {orphan.status for orphan in engine.orphans()} == {"expired"}

    @staticmethod
    def _one_of_b008(engine: BudgetEngine, chance: random.Random) -> Decimal:
        """A call that is to cost $0.10 and costs $0.05; what it is charged in the end."""
        held = engine.reserve(costing("0.10"))
        fate = chance.choices(["well", "before send", "after send", "in settle", "dropped"], [70, 8, 8, 7, 7])[0]
        if fate == "before send":
            engine.release(held)
            return Decimal(0)
        if fate == "after send":
            engine.settle(held)
            return Decimal("0.10")
        if fate == "in settle":
            with pytest.raises(ConfigurationError):
                engine.settle(held, cost="NaN")
        if fate in ("in settle", "dropped"):
            return Decimal("0.10")
        engine.settle(held, cost="0.05")
        return Decimal("0.05")

    def test_b010_ten_calls_that_fail_before_their_first_chunk(self, engine_url: str) -> None:
        with opened(engine_url, {"scope": "user", "limit": "$1.00", "window": "day"}) as engine:
            for _ in range(10):
                engine.release(engine.reserve(costing("0.20")))
            assert balance(engine).reserved == 0
            assert attempt(engine, costing("0.20"), AtCost("0.20"))

    def test_b010_a_hold_does_not_survive_its_period(self, engine_url: str) -> None:
        clock = FrozenClock()
        clock.advance(11.9 * 3600)
        with opened(engine_url, {"scope": "user", "limit": "$1.00", "window": "day"}, clock=clock) as engine:
            engine.reserve(costing("1.00"))
            assert not engine.check(costing("0.01"))
            clock.advance(0.2 * 3600)
            assert (balance(engine).spent, balance(engine).reserved) == (0, 0)
            assert engine.check(costing("1.00"))

    def test_b012_slots_of_a_killed_process_come_back(self, shared_url: str) -> None:
        clock = FrozenClock()
        two = {"scope": "user", "meter": "in_flight", "limit": 2}
        opens = partial(opened, shared_url, two, clock=clock, reservation_timeout="120s")
        with opens() as engine:
            assert killed_in_mid_call(opens, [CALL, CALL]) == -signal.SIGKILL
            with pytest.raises(BudgetExceeded) as refused:
                engine.reserve(CALL)
            assert (refused.value.busy, refused.value.retry_after) == (True, 120)
            clock.advance(120)
            engine.reserve(CALL)

    def test_b012_slots_of_forgotten_calls_come_back(self, engine_url: str) -> None:
        clock = FrozenClock()
        two = {"scope": "user", "meter": "in_flight", "limit": 2}
        with opened(engine_url, two, clock=clock, reservation_timeout="120s") as engine:
            engine.reserve(CALL), engine.reserve(CALL)
            clock.advance(119.999)
            assert not engine.check(CALL)
            clock.advance(0.001)
            engine.reserve(CALL)


def test_the_short_proof_holds() -> None:
    command = [sys.executable, "benchmarks/overshoot.py", "--short", "--store", "sqlite"]
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
