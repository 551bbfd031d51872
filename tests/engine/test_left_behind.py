"""What an engine leaves in the ledger, tells its observers, and alerts of, on every store."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from llm_budget_hooks import BudgetEngine, BudgetExceeded, Call, Usage
from llm_budget_hooks.models.events import Event
from llm_budget_hooks.transitions import MAX_AMOUNT

USER_DAY = {"name": "user-day", "scope": "user", "limit": "$1", "window": "day"}
PRICES = {"made-up": {"input": "1", "output": "10"}}
Opened = Callable[..., BudgetEngine]


@pytest.fixture
def opened(engine_url: str, tmp_path: Path) -> Iterator[Opened]:
    """Opens an engine with a ledger of its own."""
    engines = []

    def make(*budgets: dict[str, Any], more: dict[str, Any] | None = None, **policy: Any) -> BudgetEngine:
        rules = {"budgets": budgets, "prices": PRICES, "store_timeout": "10s", **policy}
        ledger = f"sqlite:///{tmp_path / 'ledger.db'}"
        engines.append(BudgetEngine.open(engine_url, rules, ledger=ledger, **(more or {})))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


def call(amount: str = "0.10", **more: Any) -> Call:
    return Call(**{"model": "made-up", "tenant": "acme", "user": "u1", "amount": amount, **more})


def runs_of(engine: BudgetEngine) -> list[Any]:
    engine.flush()
    return list(engine.ledger.runs().items)


def test_every_end_of_a_hold_is_a_row_and_rows_add_up_to_the_balance(opened: Opened) -> None:
    engine = opened(USER_DAY)
    used = Usage(input_tokens=1000, output_tokens=100, reasoning_tokens=40)
    engine.settle(engine.reserve(call(step="answer", feature="chat", utterance="x")), usage=used, model="made-up")
    engine.settle(engine.reserve(call("0.02")))
    engine.release(engine.reserve(call()))
    engine.charge(call(), cost="0.03")
    late = engine.reserve(call("0.05"))
    engine.settle(late)
    engine.settle(late, cost="0.04")
    rows = runs_of(engine)
    assert sorted(row.status for row in rows) == ["charged", "charged", "late", "released", "settled", "settled"]
    spent = engine.status(tenant="acme", user="u1")[0].spent
    assert sum(row.booked_nusd for row in rows) == int(spent * 10**9) == 92_000_000
    first = next(row for row in rows if row.step == "answer")
    assert (first.tenant, first.user, first.feature, first.utterance) == ("acme", "u1", "chat", "x")
    assert first.served == "made-up"
    assert (first.input_tokens, first.output_tokens, first.reasoning_tokens, first.exact) == (1000, 100, 40, True)
    assert (first.estimate_nusd, first.basis) == (100_000_000, "amount")


def test_an_expired_hold_is_a_row(opened: Opened) -> None:
    engine = opened(USER_DAY, reservation_timeout="50ms")
    held = engine.reserve(call())
    time.sleep(0.1)
    assert engine.orphans()[0].model == "made-up"
    assert [(row.status, row.booked_nusd, row.exact) for row in runs_of(engine)] == [("expired", 100_000_000, False)]
    assert engine.settle(held.id, cost="0.01").status == "late"
    assert sum(row.booked_nusd for row in runs_of(engine)) == 10_000_000


def test_refusals_are_rows_at_most_ten_a_minute_and_the_rest_a_number(opened: Opened) -> None:
    now = [datetime(2026, 11, 29, 12, tzinfo=UTC)]
    engine = opened(USER_DAY, more={"clock": lambda: now[0]})
    for _ in range(25):
        with pytest.raises(BudgetExceeded):
            engine.reserve(call("5", feature="chat"))
    engine.flush()
    rows = engine.ledger.refusals().items
    assert len(rows) == 10
    assert {(row.code, row.budget, row.limit, row.requested, row.feature) for row in rows} == {
        ("spend", "user-day", 10**9, 5 * 10**9, "chat")
    }
    now[0] += timedelta(minutes=1)
    with pytest.raises(BudgetExceeded):
        engine.reserve(call("5"))
    engine.flush()
    assert sum(row.count for row in engine.ledger.refusals().items) == 26


def test_a_model_without_a_price_is_a_refusal_in_the_trail(opened: Opened) -> None:
    engine = opened(USER_DAY)
    with pytest.raises(BudgetExceeded):
        engine.reserve(call(model="unheard-of", amount=None))
    engine.flush()
    assert [row.code for row in engine.ledger.refusals().items] == ["price_unknown"]


def test_each_way_to_be_turned_away_is_in_the_trail_and_told_once(opened: Opened) -> None:
    told: list[Event] = []
    entry = {"scope": "user", "meter": "utterances", "count": "entry", "limit": 9, "window": "day"}
    engine = opened(USER_DAY, entry, more={"observers": (told.append,)})
    odd, used = call(model="unheard-of", amount=None, input_tokens=5), Usage(input_tokens=5)
    engine.kill("stopped")
    ways: list[tuple[str, str, Callable[[], Any]]] = [
        ("killed", "call", lambda: engine.reserve(call(tenant="stopped"))),
        ("killed", "call", lambda: engine.charge(call(tenant="stopped"), cost="0.1")),
        ("killed", "start", lambda: engine.utterance(tenant="stopped").__enter__()),
        ("price_unknown", "call", lambda: engine.reserve(odd)),
        ("price_unknown", "call", lambda: engine.charge(odd, usage=used)),
        ("spend", "call", lambda: engine.charge(call("2"), cost="2")),
    ]
    for code, stage, way in ways:
        told.clear()
        with pytest.raises(BudgetExceeded) as caught:
            way()
        assert (caught.value.code, caught.value.stage) == (code, stage)
        assert [(event.kind, event.code, event.stage) for event in told] == [("refused", code, stage)]
    engine.flush()
    rows = [(row.code, row.stage) for row in reversed(engine.ledger.refusals().items)]
    assert rows == [(code, stage) for code, stage, _ in ways]


def test_changes_made_without_a_ledger_are_in_the_ledger_of_whoever_has_one(shared_url: str, tmp_path: Path) -> None:
    rules = {"budgets": [USER_DAY], "store_timeout": "10s"}
    with (
        BudgetEngine.open(shared_url, rules) as operator,
        BudgetEngine.open(shared_url, rules, ledger=f"sqlite:///{tmp_path / 'ledger.db'}") as service,
    ):
        service.charge(call(), cost="0.10")
        operator.kill("acme", reason="a loop", by="ann")
        operator.revive("acme", by="ben")
        operator.override("user-day", "5", tenant="acme", by="ann", reason="a launch")
        operator.adjust(tenant="acme", user="u1", cost="0.40", by="ann", reason="a bill")
        operator.charge(call(), cost="0.01")
        service.flush()
        events = [(one.name, one.tenant, one.by, one.text) for one in reversed(service.ledger.events().items)]
        assert events == [("killed", "acme", "ann", "a loop"), ("revived", "acme", "ben", "")]
        (limit,), (booked,) = service.ledger.overrides().items, service.ledger.adjustments().items
        assert (limit.budget, limit.limit, limit.by, limit.reason) == ("user-day", "5", "ann", "a launch")
        assert (booked.booked_nusd, booked.by, booked.reason) == (400_000_000, "ann", "a bill")
        assert [run.booked_nusd for run in service.ledger.runs().items] == [100_000_000]


def test_a_hold_that_somebody_without_a_ledger_ends_is_in_the_ledger_of_who_took_it(
    shared_url: str, tmp_path: Path
) -> None:
    rules = {"budgets": [USER_DAY], "prices": PRICES, "store_timeout": "10s", "reservation_timeout": "1500ms"}
    used = Usage(input_tokens=1000, output_tokens=100)
    with (
        BudgetEngine.open(shared_url, rules) as other,
        BudgetEngine.open(shared_url, rules, ledger=f"sqlite:///{tmp_path / 'ledger.db'}") as service,
    ):
        held = service.reserve(call("0.20"))
        other.settle(pickle.loads(pickle.dumps(service.reserve(call()))), usage=used)
        other.settle(service.reserve(call()).id, usage=used)
        other.release(service.reserve(call()).id)
        other.settle(other.reserve(call()), cost="0.07")
        other.charge(call(), cost="0.05")
        time.sleep(1.6)
        assert other.status(tenant="acme", user="u1")[0].spent == Decimal("0.324")
        assert sorted((row.status, row.booked_nusd, row.output_tokens) for row in runs_of(service)) == [
            ("expired", 200_000_000, 0),
            ("released", 0, 0),
            ("settled", 2_000_000, 100),
            ("settled", 2_000_000, 100),
        ]
        other.settle(held.id, cost="0.01")
        assert sum(row.booked_nusd for row in runs_of(service)) == 14_000_000


def test_a_usage_without_a_price_is_charged_at_its_estimate_and_flagged_b020(opened: Opened) -> None:
    engine = opened(USER_DAY)
    engine.settle(engine.reserve(call("0.08", model="unheard-of")), usage=Usage(input_tokens=5, output_tokens=7))
    (row,) = runs_of(engine)
    assert (row.booked_nusd, row.exact, row.flags, row.output_tokens) == (80_000_000, False, "unpriced", 7)


def test_an_alert_fires_once_per_account_threshold_and_window(opened: Opened) -> None:
    told: list[Any] = []
    now = [datetime(2026, 11, 29, 12, tzinfo=UTC)]
    engine = opened(USER_DAY, alert_at=[0.5, 0.8], more={"on_alert": told.append, "clock": lambda: now[0]})
    for cost in ("0.45", "0.10", "0.20", "0.10"):
        engine.settle(engine.reserve(call(cost)), cost=cost)
    assert [(alert["budget"], alert["threshold"], alert["tenant"], alert["user"]) for alert in told] == [
        ("user-day", 0.5, "acme", "u1"),
        ("user-day", 0.8, "acme", "u1"),
    ]
    now[0] += timedelta(days=1)
    engine.charge(call(), cost="0.60")
    assert [alert["threshold"] for alert in told] == [0.5, 0.8, 0.5]


def test_an_account_that_nobody_settled_to_its_limit_alerts_as_well(opened: Opened) -> None:
    told: list[Any] = []
    now = [datetime(2026, 11, 29, 12, tzinfo=UTC)]
    rules = {"alert_at": [0.8, 1.0], "more": {"on_alert": told.append, "clock": lambda: now[0]}}
    engine = opened(USER_DAY, **rules)
    lost = engine.reserve(call("0.90", user="expired"))
    now[0] += timedelta(minutes=11)
    with pytest.raises(BudgetExceeded):
        engine.reserve(call("0.20", user="expired"))
    assert [(alert["user"], alert["threshold"]) for alert in told] == [("expired", 0.8)]
    assert engine.settle(lost, cost="1.10").status == "late"
    assert [(alert["user"], alert["threshold"]) for alert in told[1:]] == [("expired", 1.0)]
    engine.adjust(tenant="acme", user="adjusted", cost="1.20", reason="the provider's books")
    assert [(alert["user"], alert["threshold"]) for alert in told[2:]] == [("adjusted", 0.8), ("adjusted", 1.0)]


def test_an_alert_fires_in_one_process_only(shared_url: str) -> None:
    told: list[Any] = []
    rules = {"budgets": [USER_DAY], "store_timeout": "10s"}
    with (
        BudgetEngine.open(shared_url, rules, on_alert=told.append) as mine,
        BudgetEngine.open(shared_url, rules, on_alert=told.append) as theirs,
    ):
        mine.settle(mine.reserve(call("0.85")), cost="0.85")
        theirs.settle(theirs.reserve(call("0.05")), cost="0.05")
    assert len(told) == 1


def test_an_alert_that_fails_and_an_observer_that_fails_change_nothing(opened: Opened) -> None:
    def fail(_: Any) -> None:
        raise RuntimeError("broken")

    engine = opened(USER_DAY, more={"on_alert": fail, "observers": (fail,)})
    assert engine.settle(engine.reserve(call("0.90")), cost="0.90").cost == Decimal("0.90")


def test_observers_are_told_of_reserves_ends_and_refusals(opened: Opened) -> None:
    told: list[Any] = []
    engine = opened(USER_DAY, more={"observers": (told.append,)})
    engine.settle(engine.reserve(call(step="answer")), cost="0.01")
    engine.release(engine.reserve(call()))
    with pytest.raises(BudgetExceeded):
        engine.reserve(call("5"))
    assert [event.kind for event in told] == ["reserved", "settled", "reserved", "released", "refused"]
    assert (told[1].cost_nusd, told[1].step, told[1].held_s >= 0) == (10_000_000, "answer", True)
    assert (told[4].code, told[4].budget, told[4].limit) == ("spend", "user-day", 10**9)


def test_asked_questions_are_read_without_using_one_up(opened: Opened) -> None:
    asked = {"scope": "tenant", "meter": "utterances", "count": "entry", "limit": 5, "window": "rolling:24h"}
    engine = opened({**asked, "features": ["ask"]})
    for _ in range(2):
        with engine.utterance(tenant="acme", user="u1", feature="ask"):
            pass
    engine.flush()
    assert [event.name for event in engine.ledger.events().items] == ["asked", "asked"]
    assert engine.status(tenant="acme", user="u1")[0].spent == 2


def test_what_the_owner_carries_has_its_note_when_the_store_forgot_it(opened: Opened) -> None:
    engine = opened(USER_DAY, remember="1ms", reservation_timeout="20ms")
    held = pickle.loads(pickle.dumps(engine.reserve(call(step="answer"))))
    time.sleep(0.1)
    engine.orphans()
    time.sleep(0.1)
    assert engine.settle(held, cost="0.02").status == "late"
    rows = {row.status: row for row in runs_of(engine)}
    assert rows["late"].step == "answer"
    assert sum(row.booked_nusd for row in rows.values()) == 20_000_000


def test_a_ledger_that_is_down_delays_nothing(engine_url: str, tmp_path: Path) -> None:
    missing = f"sqlite:///{tmp_path / 'no-such-folder' / 'ledger.db'}"
    with BudgetEngine.open(engine_url, {"budgets": [USER_DAY], "store_timeout": "10s"}, ledger=missing) as engine:
        assert engine.settle(engine.reserve(call()), cost="0.01").status == "settled"


def test_limits_stay_below_what_an_amount_can_be() -> None:
    assert MAX_AMOUNT > 9_000_000 * 10**9


def test_a_limit_that_only_warns_tells_once_that_it_was_passed(engine_url: str, tmp_path: Path) -> None:
    told: list[Event] = []
    day = {"name": "user-day", "scope": "user", "limit": "$1", "window": "day"}
    rules = {"budgets": [day], "cutoff": "warn", "store_timeout": "10s", "alert_at": [1.0]}
    ledger = f"sqlite:///{tmp_path / 'ledger.db'}"
    with BudgetEngine.open(engine_url, rules, ledger=ledger, observers=(told.append,)) as engine:
        for _ in range(3):
            engine.settle(engine.reserve(Call(model="m", tenant="acme", user="u1", amount="0.60")), cost="0.60")
        engine.flush()
        events = sorted(row.name for row in engine.ledger.events().items)
    found = [(event.kind, event.spent, event.threshold) for event in told if event.kind in ("alert", "warned")]
    assert found == [("alert", 1_200_000_000, 1.0), ("warned", 1_200_000_000, None)]
    assert events == ["alert", "warned"]
