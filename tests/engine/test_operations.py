"""What the engine's operations promise, on every store, by its public names alone."""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from one_user import Clock, call, day, spent

from llm_budget_hooks import (
    AlreadyResolved,
    BudgetEngine,
    BudgetExceeded,
    Call,
    ConfigurationError,
    PriceUnknown,
    ReservationConflict,
    Usage,
)


def test_a_hold_is_replaced_by_what_was_used(opened: Callable[..., BudgetEngine]) -> None:
    engine = opened(day())
    held = engine.reserve(call(None, input_tokens=1000, max_output_tokens=500))
    assert held.estimate == Decimal("0.00045")
    assert spent(engine) == (0, Decimal("0.00045"))
    settled = engine.settle(held, usage=Usage(input_tokens=1000, output_tokens=100))
    assert (settled.status, settled.cost) == ("settled", Decimal("0.00021"))
    assert spent(engine) == (Decimal("0.00021"), 0)


def test_overage_is_booked_and_seen_by_the_next_reserve(opened: Callable[..., BudgetEngine]) -> None:
    engine = opened(day("$1"))
    settled = engine.settle(engine.reserve(call("0.10")), cost="0.95")
    assert settled.overage == Decimal("0.85")
    with pytest.raises(BudgetExceeded) as refused:
        engine.reserve(call("0.06"))
    assert (refused.value.spent, refused.value.available) == (Decimal("0.95"), Decimal("0.05"))
    engine.reserve(call("0.05"))


def test_release_gives_back_money_but_neither_calls_nor_utterances(opened: Callable[..., BudgetEngine]) -> None:
    engine = opened(
        day(),
        {"scope": "user", "meter": "calls", "limit": 10, "window": "day"},
        {"scope": "user", "meter": "utterances", "limit": 10, "window": "rolling:60s"},
        {"scope": "user", "meter": "in_flight", "limit": 10},
    )
    assert engine.release(engine.reserve(call())).status == "released"
    assert [spent(engine, at) for at in range(4)] == [(0, 0), (1, 0), (1, 0), (0, 0)]


def test_an_expired_hold_is_charged_and_corrected_by_a_late_settle(
    opened: Callable[..., BudgetEngine], clock: Clock
) -> None:
    engine = opened(day())
    held = engine.reserve(call())
    clock.ahead(minutes=10)
    assert spent(engine) == (Decimal("0.10"), 0)
    assert [orphan.status for orphan in engine.orphans()] == ["expired"]
    assert engine.settle(held, cost="0.03").status == "late"
    assert spent(engine) == (Decimal("0.03"), 0)
    assert engine.settle(held, cost="0.04").differs
    assert engine.orphans() == []


def test_a_reservation_settles_once_though_the_store_forgot_it(
    opened: Callable[..., BudgetEngine], clock: Clock
) -> None:
    engine = opened(day())
    held = pickle.loads(pickle.dumps(engine.reserve(call())))
    clock.ahead(minutes=10)
    engine.status()
    clock.ahead(hours=1, minutes=1)
    assert engine.settle(held.id, cost="0.03").status == "unknown"
    assert engine.settle(held, cost="0.03").status == "late"
    assert spent(engine) == (Decimal("0.03"), 0)
    assert engine.settle(held, cost="0.03").status == "already_settled"
    clock.ahead(hours=2)
    assert engine.settle(held, cost="0.03").status == "already_settled"
    assert spent(engine) == (Decimal("0.03"), 0)


@pytest.mark.parametrize("first", ["settle", "release"])
def test_another_copy_of_a_reservation_books_nothing_after_a_final_end_that_is_forgotten(
    opened: Callable[..., BudgetEngine], clock: Clock, first: str
) -> None:
    engine = opened(day())
    engine.settle(engine.reserve(call()), cost="0.20")
    held = engine.reserve(call())
    copies = [pickle.loads(pickle.dumps(held)) for _ in range(3)]
    if first == "settle":
        engine.settle(held, cost="0.09")
    else:
        engine.release(held)
    before = spent(engine)
    for other, hours in zip(copies, (1.02, 3, 30), strict=True):
        clock.ahead(hours=hours)
        if hours > 3:
            before = (0, 0)  # another day
        assert engine.settle(other, cost="0.02").status == "unknown"
        assert engine.release(other).status == "unknown"
        assert spent(engine) == before


def test_a_copy_settles_no_second_time_where_ended_holds_are_forgotten_before_the_deadline(
    opened: Callable[..., BudgetEngine], clock: Clock
) -> None:
    engine = opened(day(), remember="1s")
    held = engine.reserve(call())
    other = pickle.loads(pickle.dumps(held))
    engine.settle(held, cost="0.09")
    clock.ahead(seconds=2)
    assert engine.settle(other, cost="0.06").status == "unknown"
    assert spent(engine) == (Decimal("0.09"), 0)


def test_an_unknown_outcome_is_corrected_by_another_copy_though_it_is_forgotten(
    opened: Callable[..., BudgetEngine], clock: Clock
) -> None:
    engine = opened(day())
    held = engine.reserve(call())
    first, second = (pickle.loads(pickle.dumps(held)) for _ in range(2))
    engine.settle(held)
    clock.ahead(hours=3)
    assert engine.settle(first, cost="0.04").status == "late"
    clock.ahead(hours=3)
    assert engine.settle(second, cost="0.06").status == "unknown"
    assert spent(engine) == (Decimal("0.04"), 0)


@pytest.mark.parametrize("tier", ["priority", "batch", "flex", None])
@pytest.mark.parametrize("trail", [False, True])
def test_a_settle_by_id_costs_what_a_settle_of_the_reservation_does(
    engine_url: str, tmp_path: Path, tier: str | None, trail: bool
) -> None:
    ledger = f"sqlite:///{tmp_path / 'ledger.db'}" if trail else None
    policy = {"budgets": [day(limit="$5")], "store_timeout": "10s"}
    with BudgetEngine.open(engine_url, policy, ledger=ledger) as engine:
        asked = Call(
            model="gpt-4o", tenant="acme", user="u1", input_tokens=1000, max_output_tokens=100, service_tier=tier
        )
        usage = Usage(input_tokens=1000, output_tokens=100)
        carried, by_id = engine.reserve(asked), engine.reserve(asked)
        assert engine.settle(carried, usage=usage).cost == engine.settle(by_id.id, usage=usage).cost


def test_extend_lets_a_hold_live_longer_and_refuses_an_ended_one(
    opened: Callable[..., BudgetEngine], clock: Clock
) -> None:
    engine = opened(day())
    held = engine.reserve(call())
    clock.ahead(minutes=9)
    assert engine.extend(held) == clock.now + timedelta(minutes=10)
    clock.ahead(minutes=9)
    assert spent(engine) == (0, Decimal("0.10"))
    engine.release(held)
    with pytest.raises(AlreadyResolved):
        engine.extend(held)
    with pytest.raises(AlreadyResolved):
        engine.extend("never seen")


def test_b006_the_same_attempt_is_held_once_and_equality_is_let_in(opened: Callable[..., BudgetEngine]) -> None:
    engine = opened(day("$1"))
    first = engine.reserve(call("1.00", id="call-1"))
    again = engine.reserve(call("1.00", id="call-1"))
    assert (first.id, first.holds) == (again.id, again.holds)
    assert spent(engine) == (0, 1)
    with pytest.raises(ReservationConflict):
        engine.reserve(call("0.99", id="call-1"))
    engine.settle(again, cost="0.5")
    with pytest.raises(AlreadyResolved):
        engine.reserve(call("1.00", id="call-1"))


def test_charge_books_in_one_trip_and_force_books_above_the_limit(opened: Callable[..., BudgetEngine]) -> None:
    engine = opened(day("$1"))
    assert engine.charge(call(None), cost="0.90").status == "settled"
    with pytest.raises(BudgetExceeded):
        engine.charge(call(None), cost="0.20")
    engine.charge(call(None), cost="0.20", force=True)
    assert spent(engine) == (Decimal("1.10"), 0)
    assert engine.charge(call(None, id="c"), cost="0.01", force=True).status == "settled"
    assert engine.charge(call(None, id="c"), cost="0.01", force=True).status == "already_settled"


def test_check_takes_nothing(opened: Callable[..., BudgetEngine]) -> None:
    engine = opened(day("$1"), {"scope": "user", "meter": "utterances", "limit": 1, "window": "day"})
    assert engine.check(call())
    refused = engine.check(call("1.01"))
    assert not refused
    assert refused.refusal is not None
    assert refused.refusal.code == "spend"
    assert [spent(engine, at) for at in (0, 1)] == [(0, 0), (0, 0)]


def test_the_first_rule_that_fails_is_named_and_all_are_listed(opened: Callable[..., BudgetEngine]) -> None:
    budgets = (
        {"scope": "user", "meter": "calls", "limit": 1, "window": "day"},
        day("$0.10", "user"),
        day("$0.10", "tenant"),
        day("$0.10", "global"),
        {"scope": "answer", "limit": "$0.05"},
    )
    engine = opened(*budgets)
    with pytest.raises(BudgetExceeded) as refused:
        engine.reserve(call("0.20"))
    assert refused.value.failed == ("global-usd-day", "tenant-usd-day", "user-usd-day", "answer-usd")
    engine.reserve(call("0.05"))
    rates = opened(*budgets, report_first="rates", namespace="rates")
    rates.reserve(call("0.05"))
    with pytest.raises(BudgetExceeded) as refused:
        rates.reserve(call("0.20"))
    assert refused.value.budget == "user-calls-day"


def test_b138_a_fan_out_counts_once_and_every_call_is_billed(opened: Callable[..., BudgetEngine]) -> None:
    engine = opened(day("$10"), {"scope": "user", "meter": "utterances", "limit": 10, "window": "rolling:60s"})
    for _ in range(10):
        with engine.utterance(tenant="acme", user="u1") as scope:
            for _ in range(25):
                engine.settle(engine.reserve(Call(model="gpt-4o-mini", amount="0.01")), cost="0.01")
        assert (scope.calls, scope.spent) == (25, Decimal("0.25"))
    assert [spent(engine, at)[0] for at in (0, 1)] == [Decimal("2.50"), 10]
    with pytest.raises(BudgetExceeded) as refused, engine.utterance(tenant="acme", user="u1"):
        engine.reserve(Call(model="gpt-4o-mini", amount="0.01"))
    assert (refused.value.code, refused.value.retry_after) == ("utterances", 60)


def test_an_utterance_ends_after_its_timeout_and_after_its_calls(
    opened: Callable[..., BudgetEngine], clock: Clock
) -> None:
    engine = opened({"scope": "user", "meter": "utterances", "limit": 9, "window": "day"}, utterance_max_calls=3)
    for _ in range(4):
        engine.reserve(call(None, utterance="ut"))
    assert spent(engine)[0] == 2
    clock.ahead(minutes=10, milliseconds=1)
    engine.reserve(call(None, utterance="ut"))
    assert spent(engine)[0] == 3


def test_the_identity_of_the_scope_cannot_be_overridden_inside(opened: Callable[..., BudgetEngine]) -> None:
    engine = opened(day())
    with engine.utterance(tenant="acme", user="u1") as outer, engine.utterance(tenant="evil", user="victim") as inner:
        engine.reserve(Call(model="m", tenant="evil", user="victim", amount="0.10"))
        assert inner.id == outer.id
    assert spent(engine) == (0, Decimal("0.10"))
    assert engine.status(tenant="evil", user="victim")[0].reserved == 0


def test_b023_the_answer_ceiling_holds_while_it_runs_and_at_its_end(opened: Callable[..., BudgetEngine]) -> None:
    engine = opened({"scope": "answer", "limit": "$0.50"})
    with pytest.raises(BudgetExceeded) as refused, engine.utterance(tenant="acme", user="u1"):
        engine.reserve(Call(model="m", amount="1.30"))
    assert (refused.value.code, refused.value.retry_after) == ("answer_estimate", None)
    scope = engine.utterance(tenant="acme", user="u1")
    scope.output = "an answer"
    with pytest.raises(BudgetExceeded) as refused, scope:
        engine.settle(engine.reserve(Call(model="m", amount="0.40")), cost="0.60")
    assert (refused.value.code, refused.value.output, scope.served) == ("answer_actual", "an answer", False)
    with pytest.raises(BudgetExceeded) as refused, engine.utterance(plan=("a",) * 101):
        pass
    assert (refused.value.code, refused.value.stage) == ("answer_estimate", "start")


def test_an_utterance_knows_the_last_word_on_each_call(opened: Callable[..., BudgetEngine]) -> None:
    engine = opened(day())
    with engine.utterance(tenant="acme", user="u1") as scope:
        corrected, given_back = (engine.reserve(Call(model="m", amount="0.10")) for _ in range(2))
        engine.settle(corrected)
        engine.settle(given_back)
        assert scope.spent == Decimal("0.20")
        assert engine.settle(corrected, cost="0.03").status == "late"
        assert engine.release(given_back).status == "released"
    assert (scope.spent, scope.reserved, scope.calls) == (Decimal("0.03"), 0, 2)


def test_an_exception_on_its_way_is_not_replaced_at_the_end_of_an_answer(opened: Callable[..., BudgetEngine]) -> None:
    engine = opened({"scope": "answer", "limit": "$0.50"})
    scope = engine.utterance(tenant="acme", user="u1")
    scope.__enter__()
    engine.settle(engine.reserve(Call(model="m", amount="0.40")), cost="0.60")
    scope.__exit__(KeyError, KeyError(), None)
    assert scope.served is False


def test_busy_is_told_from_spent(opened: Callable[..., BudgetEngine], clock: Clock) -> None:
    engine = opened(day("$1"))
    engine.reserve(call("0.60"))
    clock.ahead(minutes=4)
    with pytest.raises(BudgetExceeded) as refused:
        engine.reserve(call("0.60"))
    assert (refused.value.busy, refused.value.retry_after) == (True, 360)
    with pytest.raises(BudgetExceeded) as refused:
        engine.reserve(call("1.60"))
    assert (refused.value.busy, refused.value.retry_after) == (False, None)


def test_b012_in_flight_is_free_again_when_its_owner_died(opened: Callable[..., BudgetEngine], clock: Clock) -> None:
    engine = opened({"scope": "user", "meter": "in_flight", "limit": 2})
    engine.reserve(call(None))
    engine.reserve(call(None))
    assert not engine.check(call(None))
    clock.ahead(minutes=10)
    assert engine.check(call(None))


def test_the_due_holds_of_the_own_account_end_first(opened: Callable[..., BudgetEngine], clock: Clock) -> None:
    engine = opened({"scope": "user", "meter": "in_flight", "limit": 1}, day("$90", "tenant"))
    for number in range(100):
        engine.reserve(call(user=f"other-{number}"))
    engine.reserve(call(user="u1"))
    clock.ahead(minutes=11)
    assert engine.reserve(call(user="u1")).holds["user-in_flight"] == 1


def test_b054_b056_sums_are_exact(opened: Callable[..., BudgetEngine]) -> None:
    engine = opened(day("$1"))
    for _ in range(10):
        engine.charge(call(None), cost="0.1")
    with pytest.raises(BudgetExceeded):
        engine.charge(call(None), cost="0.000000001")
    assert repr(spent(engine)[0]) == "Decimal('1')"


def test_b021_a_limit_of_calls_needs_no_price(opened: Callable[..., BudgetEngine]) -> None:
    engine = opened({"scope": "user", "meter": "calls", "limit": 60, "window": "minute"})
    settled = engine.settle(engine.reserve(call(None, model="nobody-knows-it")), usage=Usage(input_tokens=5))
    assert settled.status == "settled"


def test_b019_b088_an_unknown_model_is_refused_or_held_flat(opened: Callable[..., BudgetEngine]) -> None:
    engine = opened(day("$1"))
    with pytest.raises(PriceUnknown, match="aliases"):
        engine.reserve(call(None, model="nobody-knows-it"))
    flat = opened(day("$1"), unknown_price="$0.25")
    held = [flat.reserve(call(None, model="nobody-knows-it")) for _ in range(4)]
    assert not flat.check(call(None, model="nobody-knows-it"))
    assert flat.settle(held[0], usage=Usage(input_tokens=5)).cost == Decimal("0.25")


def test_features_and_models_choose_the_budgets(opened: Callable[..., BudgetEngine]) -> None:
    engine = opened(day("$1", features=["ask"]), day("$1", name="mini", models=["*-mini"]))
    engine.reserve(call(feature="ask", model="gpt-4o"))
    engine.reserve(call(feature="chat", model="gpt-4o-mini"))
    assert [spent(engine, at)[1] for at in (0, 1)] == [Decimal("0.10")] * 2


def test_tenants_have_their_own_limits_and_zero_is_off(opened: Callable[..., BudgetEngine]) -> None:
    engine = opened(
        day("$1", name="user-day"),
        day("$0.50", "tenant", name="tenant-day"),
        tenants={"acme": {"budgets": [day("$5", name="user-day"), day("0", "tenant", name="tenant-day")]}},
    )
    engine.reserve(call("4"))
    assert [status.budget for status in engine.status(tenant="acme", user="u1")] == ["user-day"]
    with pytest.raises(BudgetExceeded):
        engine.reserve(call("4", tenant="other"))


@pytest.mark.parametrize("amount", [-1, "-1", 0.1, float("nan"), "nan", "inf", True, "100001", "1e9", b"1", "abc"])
def test_bad_amounts_change_nothing(opened: Callable[..., BudgetEngine], amount: Any) -> None:
    engine = opened(day())
    held = engine.reserve(call())
    with pytest.raises(ConfigurationError):
        engine.settle(held, cost=amount)
    with pytest.raises(ConfigurationError):
        call(amount)
    assert spent(engine) == (0, Decimal("0.10"))


def test_hostile_ids_do_not_meet(opened: Callable[..., BudgetEngine]) -> None:
    engine = opened(day())
    ids = ["a:b", "a", "a\0b", "{x}", "a\nb", "\ud800", "é", "x" * 10_000, "🙂", " a : b "]
    for tenant in ids:
        for user in ids:
            engine.charge(call(None, tenant=tenant, user=user), cost="0.01")
    for tenant in ids:
        for user in ids:
            assert engine.status(tenant=tenant, user=user)[0].spent == Decimal("0.01")
    assert engine.check(call("1", tenant="a", user="b:c"))


def test_the_awaited_face_does_the_same(opened: Callable[..., BudgetEngine]) -> None:
    engine = opened(day("$1"))

    async def work() -> list[Any]:
        async with engine.utterance(tenant="acme", user="u1") as scope:
            calls = [engine.areserve(Call(model="m", amount="0.10")) for _ in range(50)]
            found = await asyncio.gather(*calls, return_exceptions=True)
            held = [one for one in found if not isinstance(one, BaseException)]
            await asyncio.gather(*(engine.asettle(one, cost="0.10") for one in held))
        status = await engine.astatus(tenant="acme", user="u1")
        await engine.aclose()
        return [len(held), scope.spent, status[0].spent]

    assert asyncio.run(work()) == [10, 1, 1]


def test_errors_survive_pickling(opened: Callable[..., BudgetEngine]) -> None:
    engine = opened(day("$1"))
    with pytest.raises(BudgetExceeded) as refused:
        engine.reserve(call("2"))
    again = pickle.loads(pickle.dumps(refused.value))
    assert (type(again), str(again), vars(again)) == (BudgetExceeded, str(refused.value), vars(refused.value))


def test_b133_an_engine_travels_or_says_why_not(engine_url: str) -> None:
    engine = BudgetEngine.open(engine_url, {"budgets": [day()], "store_timeout": "10s"})
    engine.charge(call(None), cost="0.40")
    assert copy.deepcopy(engine) is engine
    if engine_url == "memory://":
        with pytest.raises(ConfigurationError, match="memory"):
            pickle.dumps(engine)
    else:
        other = pickle.loads(pickle.dumps(engine))
        assert spent(other)[0] == Decimal("0.40")
        other.close()
    engine.close()
