"""What another policy would have refused, held against what it does refuse when it is in force."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from llm_budget_hooks import BudgetEngine, BudgetExceeded, Call, Policy, Usage
from llm_budget_hooks.errors import ConfigurationError
from llm_budget_hooks.models.trail import Entry, run_actual, run_facts
from llm_budget_hooks.whatif import WhatIf, whatif

BEGAN = datetime(2026, 11, 1, 9, tzinfo=UTC)
USER_DAY = {"name": "user-day", "scope": "user", "limit": "$1", "window": "day"}


class Traffic:
    """Calls into a ledger, at instants of their own."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder / 'ledger.db'}"
        self.now = BEGAN
        self.engine = self.opened({})

    def opened(self, policy: dict[str, Any], ledger: bool = True) -> BudgetEngine:
        """An engine with a policy, on the same clock."""
        kept = self.url if ledger else None
        return BudgetEngine.open("memory://", policy, clock=lambda: self.now, ledger=kept)

    def call(self, cost: str, minutes: float = 1, estimate: str | None = None, **more: Any) -> None:
        """One call that ended some minutes after the one before."""
        self.now += timedelta(minutes=minutes)
        facts = {"model": "gpt-4o", "tenant": "acme", "user": "u1", "amount": estimate or cost, **more}
        self.engine.settle(self.engine.reserve(Call(**facts)), cost=cost)

    def under(self, *budgets: dict[str, Any], policy: dict[str, Any] | None = None, **more: Any) -> WhatIf:
        """The replay under a policy of these budgets."""
        self.engine.flush()
        return whatif(self.url, {"budgets": budgets, **(policy or {})}, **more)


@pytest.fixture
def traffic(tmp_path: Path) -> Iterator[Traffic]:
    made = Traffic(tmp_path)
    yield made
    made.engine.close()


def test_a_limit_refuses_from_where_it_is_reached_and_saves_the_rest_of_the_day(traffic: Traffic) -> None:
    for _ in range(5):
        traffic.call("0.30")
    traffic.call("0.30", minutes=24 * 60)
    found = traffic.under(USER_DAY)
    assert [(one.at, one.code, one.budget, one.tenant, one.user, one.saved) for one in found.refused] == [
        (BEGAN + timedelta(minutes=at), "spend", "user-day", "acme", "u1", Decimal("0.3")) for at in (4, 5)
    ]
    assert (found.calls, found.not_made, found.spent, found.saved) == (6, 2, Decimal("1.8"), Decimal("0.6"))
    assert [(day.name, day.spent, day.saved, day.refused) for day in found.days] == [
        ("2026-11-01", Decimal("1.5"), Decimal("0.6"), 2),
        ("2026-11-02", Decimal("0.3"), Decimal(0), 0),
    ]


def test_a_call_is_held_at_its_estimate_and_booked_at_its_cost(traffic: Traffic) -> None:
    traffic.call("0.10", estimate="0.90")
    traffic.call("0.10", estimate="0.90")
    traffic.call("0.05", estimate="0.91")
    assert [one.saved for one in traffic.under(USER_DAY).refused] == [Decimal("0.05")]


def test_an_answer_ends_with_its_first_refusal(traffic: Traffic) -> None:
    traffic.call("0.90", utterance="x", step="router")
    traffic.call("0.20", utterance="x", step="answer")
    traffic.call("0.01", utterance="x", step="check")
    traffic.call("0.02")
    (one,) = traffic.under(USER_DAY).refused
    assert (one.utterance, one.step, one.model, one.calls, one.saved) == ("x", "answer", "gpt-4o", 2, Decimal("0.21"))


def test_an_id_is_a_new_answer_after_a_pause(traffic: Traffic) -> None:
    for minutes in (1, 1, 30):
        traffic.call("0.60", minutes=minutes, utterance="session")
    answer = {"name": "answer", "scope": "answer", "limit": "$1"}
    assert [one.calls for one in traffic.under(answer).refused] == [1]


def test_an_answer_above_its_ceiling_at_its_end_is_refused_and_saves_nothing(traffic: Traffic) -> None:
    traffic.call("0.70", estimate="0.10", utterance="dear", feature="ask")
    traffic.call("0.10", utterance="cheap", feature="ask")
    (one,) = traffic.under({"name": "answer", "scope": "answer", "limit": "$0.50"}).refused
    assert (one.code, one.stage, one.utterance, one.calls, one.saved) == ("answer_actual", "end", "dear", 0, 0)


def test_utterances_are_counted_when_they_begin_even_without_a_call(traffic: Traffic) -> None:
    asked = {"name": "asked", "scope": "tenant", "meter": "utterances", "window": "day", "features": ["ask"]}
    traffic.engine = traffic.opened({"budgets": [{**asked, "limit": 100, "count": "entry"}]})
    for number in range(4):
        traffic.now += timedelta(minutes=1)
        with traffic.engine.utterance(tenant="acme", user="u1", feature="ask"):
            if number == 3:
                traffic.call("0.10")
    traffic.engine.flush()
    found = traffic.under({**asked, "limit": 2, "count": "entry"})
    assert [(one.code, one.stage, one.calls, one.saved) for one in found.refused] == [
        ("utterances", "start", 0, 0),
        ("utterances", "start", 1, Decimal("0.1")),
    ]
    assert traffic.under({**asked, "limit": 1}).refused == ()


def test_unknown_outcomes_and_late_settles_are_replayed_in_their_order(traffic: Traffic) -> None:
    late = traffic.engine.reserve(Call(model="gpt-4o", tenant="acme", user="u1", amount="0.90"))
    traffic.engine.settle(late)
    traffic.call("0.20")
    traffic.now += timedelta(minutes=1)
    traffic.engine.settle(late, cost="0.10")
    traffic.call("0.20")
    found = traffic.under(USER_DAY)
    assert (found.calls, [one.at for one in found.refused]) == (3, [BEGAN + timedelta(minutes=1)])
    refused = traffic.under({**USER_DAY, "limit": "$0.50"})
    assert [(one.calls, one.saved) for one in refused.refused] == [(1, Decimal("0.1"))]
    assert refused.spent == Decimal("0.5")


def test_released_calls_give_back_money_and_not_rates(traffic: Traffic) -> None:
    for _ in range(3):
        traffic.engine.release(traffic.engine.reserve(Call(model="m", tenant="acme", user="u1", amount="0.90")))
    assert traffic.under(USER_DAY).refused == ()
    rate = {"name": "rate", "scope": "user", "meter": "calls", "limit": 2, "window": "rolling:60s"}
    assert [(one.code, one.saved) for one in traffic.under(rate).refused] == [("calls", 0)]


def test_token_budgets_count_what_was_used(traffic: Traffic) -> None:
    engine = traffic.engine
    for _ in range(3):
        held = engine.reserve(Call(model="m", tenant="acme", user="u1", amount="0.1"))
        engine.settle(held, usage=Usage(input_tokens=300, output_tokens=100), cost="0.1")
    tokens = {"name": "tokens", "scope": "user", "meter": "tokens", "limit": 1000, "window": "day"}
    assert [one.code for one in traffic.under(tokens).refused] == ["tokens"]


def _spans(seed: int) -> list[tuple[float, str, str, str, str, Decimal]]:
    made, calls = random.Random(seed), []  # noqa: S311 - traffic that is made up
    for number in range(150):
        who = made.choice(("acme", "zeta")), made.choice(("u1", "u2", "u3"))
        utterance, minutes = f"ut-{number}", made.choice((0.05, 2, 240))
        for at in range(made.randint(1, 3)):
            cost = Decimal(made.randint(1, 400)).scaleb(-3)
            calls.append((0.0 if at else minutes, *who, utterance, made.choice(("ask", "chat")), cost))
    return calls


POLICIES: list[dict[str, Any]] = [
    {"budgets": [USER_DAY, {"scope": "global", "limit": "$2", "window": "day"}], "timezone": "Asia/Tokyo"},
    {"budgets": [{"scope": "tenant", "limit": "$1", "window": "rolling:6h"}], "cutoff": "warn"},
    {"budgets": [{"scope": "user", "meter": "utterances", "limit": 2, "window": "rolling:10m"}]},
    {"budgets": [{"scope": "tenant", "limit": "$1.50", "window": "fixed:24h", "features": ["ask"]}]},
    {"budgets": [{"scope": "answer", "limit": "$0.45"}, USER_DAY], "tenants": {"zeta": {"budgets": [
        {"name": "user-day", "scope": "user", "limit": "$3", "window": "day"}]}}},
]  # fmt: skip


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy["budgets"][0]["scope"])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_replay_refuses_what_the_policy_refuses_when_it_is_in_force(
    traffic: Traffic, policy: dict[str, Any], seed: int
) -> None:
    live, refused, over = traffic.opened(policy, ledger=False), [], set()
    for minutes, tenant, user, utterance, feature, cost in _spans(seed):
        facts = {"tenant": tenant, "user": user, "utterance": utterance, "feature": feature}
        traffic.call(str(cost), minutes=minutes, **facts)
        try:
            if utterance not in over:
                live.settle(live.reserve(Call(model="gpt-4o", amount=cost, **facts)), cost=cost)
        except BudgetExceeded as error:
            refused.append((traffic.now, error.code, error.budget, utterance))
            over.add(utterance)
    found = traffic.under(policy=policy)
    assert [(one.at, one.code, one.budget, one.utterance) for one in found.refused] == refused
    assert refused or policy.get("cutoff") == "warn"
    assert found.saved == sum(day.saved for day in found.days)


def test_the_policy_in_force_refuses_none_of_its_own_calls(traffic: Traffic) -> None:
    traffic.engine = traffic.opened({"budgets": [USER_DAY]})
    for _ in range(3):
        traffic.call("0.30")
    for _ in range(7):
        with pytest.raises(BudgetExceeded):
            traffic.call("0.30")
    found = traffic.under(USER_DAY)
    assert (found.calls, found.refused) == (3, ())


def test_a_span_and_a_tenant_can_be_chosen_and_progress_is_told(traffic: Traffic) -> None:
    for _ in range(3):
        traffic.call("0.60", minutes=24 * 60)
        traffic.call("0.60", tenant="zeta")
    told: list[tuple[int, int]] = []
    found = traffic.under(
        {**USER_DAY, "limit": "$0.50"}, tenant="zeta", since=BEGAN + timedelta(days=2),
        progress=lambda done, of: told.append((done, of)),
    )  # fmt: skip
    assert (found.calls, len(found.refused), told[-1]) == (2, 2, (2, 2))
    until = traffic.under({**USER_DAY, "limit": "$0.50"}, until=BEGAN + timedelta(days=1, minutes=1))
    assert until.calls == 1


def test_refusals_add_up_by_budget_user_and_feature(traffic: Traffic) -> None:
    for user, feature in (("u1", "ask"), ("u2", "chat"), ("u2", "ask"), ("u2", "chat")):
        traffic.call("0.80", user=user, feature=feature)
    traffic.call("2", tenant="zeta", feature="chat")
    found = traffic.under(USER_DAY)
    assert [(share.tenant, share.key, share.refused, share.saved) for share in found.by("user")] == [
        ("zeta", "u1", 1, Decimal(2)),
        ("acme", "u2", 2, Decimal("1.6")),
    ]
    assert [(share.key, share.calls) for share in found.by("feature")] == [("chat", 2), ("ask", 1)]
    (budget,) = found.by("budget")
    assert (budget.key, budget.first, budget.last) == ("user-day", found.refused[0].at, found.refused[-1].at)


def test_a_notebook_shows_tables_and_a_chart(traffic: Traffic) -> None:
    for _ in range(5):
        traffic.call("0.30", user="<b>ada</b>")
    found = traffic.under(USER_DAY)
    shown = found._repr_html_()
    assert "2 refusals, 2 of 5 calls not made, $0.6 of $1.5 saved" in shown
    assert "acme / &lt;b&gt;ada" in shown
    assert "<b>" not in shown
    assert "2026-11-01: $1.50 spent, $0.60 of it saved" in found.chart()
    assert found.chart().count("<rect") == 5
    assert "0 refusals" in traffic.under()._repr_html_()


def test_a_replay_fires_no_alert_and_leaves_the_ledger_as_it_is(traffic: Traffic, caplog: Any) -> None:
    traffic.call("0.90")
    rows = traffic.under(USER_DAY, policy={"alert_at": [0.5]}).calls
    assert (rows, traffic.under(USER_DAY).calls, caplog.records) == (1, 1, [])


def test_a_wrong_policy_is_told_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="unknown key"):
        whatif(f"sqlite:///{tmp_path / 'none.db'}", {"budget": []})
    assert not (tmp_path / "none.db").exists()


def test_a_span_that_is_none_is_a_mistake(traffic: Traffic) -> None:
    with pytest.raises(ConfigurationError, match="a first instant and a later one"):
        traffic.under(USER_DAY, since=BEGAN, until=BEGAN)
    with pytest.raises(ConfigurationError, match="until has no time zone"):
        traffic.under(USER_DAY, until=BEGAN.replace(tzinfo=None))


def test_a_run_that_names_no_model_is_replayed_like_any_other(traffic: Traffic) -> None:
    traffic.call("0.90")
    traffic.engine.flush()
    facts = run_facts("acme", "u1", None, None, None, "", 900_000_000, "bound")
    at_ms = round(traffic.now.timestamp() * 1000) + 1
    assert traffic.engine.ledger is not None
    traffic.engine.ledger.write([Entry(99, at_ms, "settled", "other", "", facts, run_actual(None, 900_000_000))])
    assert [one.saved for one in traffic.under(USER_DAY).refused] == [Decimal("0.9")]


def test_a_policy_of_a_preset_is_replayed_too(traffic: Traffic) -> None:
    for _ in range(4):
        traffic.call("0.60")
    traffic.engine.flush()
    assert [one.budget for one in whatif(traffic.url, Policy.preset("zeno")).refused] == ["user-day"]


def test_rows_above_what_a_call_may_hold_are_replayed_at_what_they_cost(traffic: Traffic) -> None:
    policy = {"prices": {"x": {"input": 3, "output": 15, "per_search": "$1000"}}}
    engine = traffic.opened(policy)
    engine.settle(engine.reserve(Call(model="x", tenant="acme", user="u1", amount=1)), usage=Usage(searches=150))
    traffic.now += timedelta(minutes=1)
    engine.charge(Call(model="x", tenant="acme", user="u1"), usage=Usage(searches=10**12), force=True)
    engine.flush()
    engine.close()
    traffic.call("1", user="u2")
    traffic.call("1")
    found = traffic.under(USER_DAY | {"limit": "$150000"})
    assert (found.calls, found.spent) == (4, Decimal("9157201.254740992"))
    assert [(one.calls, one.user, one.saved) for one in found.refused] == [
        (1, "u1", Decimal("9007199.254740992")), (1, "u1", Decimal(1)),
    ]  # fmt: skip


def test_any_row_that_a_ledger_can_hold_is_replayed(traffic: Traffic) -> None:
    most = 2**60
    facts = run_facts("acme", "u1", None, None, None, "", most, "")
    actual = json.dumps([None, most, True, [], most, 0, 0, 0, most, 0, 0, 0, 0, 0])
    at_ms = round(BEGAN.timestamp() * 1000)
    kinds = ("settled", "charged", "expired", "released")
    traffic.engine.ledger.write([
        Entry(str(at), at_ms + at, kind, f"r{at}", "open", facts, actual) for at, kind in enumerate(kinds)
    ])  # fmt: skip
    tokens = {"name": "tokens", "scope": "user", "meter": "tokens", "limit": 10**15, "window": "day"}
    found = traffic.under(tokens, USER_DAY)
    assert found.calls == 4


@pytest.mark.parametrize("end", ["settle", "release"])
def test_a_call_counts_where_it_ended_first_and_what_is_learnt_later_counts_there_too(
    traffic: Traffic, end: str
) -> None:
    held = [traffic.engine.reserve(Call(model="gpt-4o", tenant="acme", user="u1", amount=5)) for _ in range(2)]
    for one in held:
        traffic.engine.settle(one)
    traffic.now += timedelta(minutes=30)
    between = traffic.now
    traffic.call("0.50")
    traffic.now += timedelta(days=1)
    for one in held:
        if end == "settle":
            traffic.engine.settle(one, cost=1)
        else:
            traffic.engine.release(one)
    told = 1 if end == "settle" else 0
    found = traffic.under(USER_DAY | {"limit": "$6"})
    assert [(day.name, day.spent, day.saved) for day in found.days] == [
        ("2026-11-01", Decimal("0.5") + 2 * told, Decimal(told)),
    ]  # fmt: skip
    late = traffic.under(USER_DAY | {"limit": "$6"}, since=between)
    assert (late.calls, late.spent, late.saved) == (1, Decimal("0.5"), 0)
    assert [(day.name, day.spent) for day in late.days] == [("2026-11-01", Decimal("0.5"))]


def test_tokens_of_unknown_outcomes_are_those_that_cost_what_was_held(traffic: Traffic) -> None:
    engine = traffic.engine

    def unknown(model: str, user: str) -> None:
        traffic.now += timedelta(minutes=1)
        engine.settle(engine.reserve(Call(model=model, tenant="acme", user=user, amount="0.1")))

    unknown("gpt-4o", "first")
    traffic.now += timedelta(minutes=1)
    held = engine.reserve(Call(model="gpt-4o", tenant="acme", user="u1", amount="0.1"))
    engine.settle(held, usage=Usage(input_tokens=300, output_tokens=100), cost="0.05")
    for model, user in (("gpt-4o", "u1"), ("gpt-4o", "u1"), ("nobody-knows", "u2")):
        unknown(model, user)

    def refused(limit: int) -> list[str]:
        tokens = {"name": "tokens", "scope": "user", "meter": "tokens", "limit": limit, "window": "day"}
        return [one.user for one in traffic.under(tokens).refused]

    assert refused(39_999) == ["first"], "at the price of input, $2.50 per million, where nothing else is known"
    assert refused(40_000) == []
    assert refused(400 + 2 * 800) == ["first"], "as many for a dollar as of the same model's calls before"
    assert refused(400 + 2 * 800 - 1) == ["first", "u1"]


def test_tokens_of_an_unknown_outcome_give_way_to_those_that_are_learnt(traffic: Traffic) -> None:
    engine = traffic.engine
    held = engine.reserve(Call(model="gpt-4o", tenant="acme", user="u1", amount="0.1"))
    engine.settle(held)
    traffic.now += timedelta(minutes=1)
    engine.settle(held, usage=Usage(input_tokens=30, output_tokens=10))
    traffic.now += timedelta(minutes=1)
    last = engine.reserve(Call(model="gpt-4o", tenant="acme", user="u1", amount="0.1"))
    engine.settle(last, usage=Usage(input_tokens=30, output_tokens=10))
    tokens = {"name": "tokens", "scope": "user", "meter": "tokens", "limit": 40_000, "window": "day"}
    assert traffic.under(tokens).refused == ()
