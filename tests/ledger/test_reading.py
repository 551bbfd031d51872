"""What the ledger answers, on SQLite and on PostgreSQL."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from outboxes import settled

from llm_budget_hooks import BudgetEngine, Call
from llm_budget_hooks.errors import ConfigurationError
from llm_budget_hooks.ledger import Ledger, LedgerUnavailable, Page
from llm_budget_hooks.models import Budget, Policy
from llm_budget_hooks.models.trail import (
    Entry,
    Run,
    adjustment_facts,
    event_facts,
    override_facts,
    refusal_facts,
    run_actual,
)

NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)
FAR = datetime(2100, 1, 1, tzinfo=UTC)
PAST = datetime(2000, 1, 1, tzinfo=UTC)
CENT = 10_000_000


def ms(at: datetime) -> int:
    return round(at.timestamp() * 1000)


def run(number: int, cents: int = 1, at: datetime = NOW, **facts: str) -> Entry:
    return settled(number, cents * CENT, ms(at), **facts)


def adjusted(id: str, cents: int, at: datetime = NOW, **facts: str) -> Entry:
    return Entry("", ms(at), "adjust", id, "", adjustment_facts(tenant="acme", booked_nusd=cents * CENT, **facts))


def pages(read: Any, **wanted: Any) -> list[Any]:
    items: list[Any] = []
    after: str | None = None
    while True:
        page: Page[Any] = read(after=after, **wanted)
        items += page.items
        after = page.after
        if after is None:
            return items
        assert page.items


def test_runs_come_back_in_pages_that_stay_as_they_were(ledger: Ledger) -> None:
    ledger.write([run(n) for n in range(25)])
    first = ledger.runs(limit=10)
    assert [r.id for r in first.items] == [f"r-{n}" for n in range(24, 14, -1)]
    ledger.write([run(n) for n in range(25, 40)])
    rest = ledger.runs(limit=100, after=first.after)
    assert [r.id for r in rest.items] == [f"r-{n}" for n in range(14, -1, -1)]
    assert rest.after is None
    assert len(pages(ledger.runs, limit=10)) == 40


def test_a_run_is_read_as_it_was_written(ledger: Ledger) -> None:
    ledger.write([run(1, feature="ask")])
    (found,) = ledger.runs().items
    assert found == Run(
        id="r-1", kind="settled", status="settled", at_ms=ms(NOW), tenant="acme", user="u1", utterance="r-1",
        feature="ask", step="answer", model="gpt-4o-mini", served="", estimate_nusd=2_000, basis="p90",
        cost_nusd=CENT, booked_nusd=CENT, exact=True, flags="", input_tokens=10, output_tokens=3,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("wanted", "ids"),
    [
        ({"tenant": "acme"}, "21"),
        ({"tenant": " acme "}, "21"),
        ({"tenant": "acme", "user": "u2"}, "2"),
        ({"feature": "ask"}, "3"),
        ({"step": "router"}, "2"),
        ({"model": "gpt-4o"}, "3"),
        ({"utterance": "r-1"}, "1"),
        ({"status": "late"}, ""),
        ({"since": NOW + timedelta(seconds=1)}, "3"),
        ({"until": NOW + timedelta(seconds=1)}, "21"),
    ],
)
def test_runs_can_be_asked_for(ledger: Ledger, wanted: dict[str, Any], ids: str) -> None:
    later = NOW + timedelta(seconds=1)
    ledger.write([
        run(1), run(2, user="u2", step="router"), run(3, at=later, tenant="other", feature="ask", model="gpt-4o")
    ])  # fmt: skip
    assert "".join(r.id[2:] for r in ledger.runs(**wanted).items) == ids


def test_refusals_events_overrides_and_corrections_have_pages(ledger: Ledger) -> None:
    at = ms(NOW)
    for n in range(3):
        said = refusal_facts(code="spend", tenant="acme", user=f"u{n}", count=n + 1)
        ledger.write([
            Entry("", at, "refusal", f"f{n}", "", said),
            Entry("", at, "event", f"e{n}", "", event_facts("killed", tenant="acme")),
            Entry("", at, "override", f"o{n}", "", override_facts(tenant="acme", budget="user-day", limit="$5")),
            adjusted(f"a{n}", -40, reason="price"),
        ])  # fmt: skip
    assert [r.count for r in pages(ledger.refusals, limit=2, code="spend")] == [3, 2, 1]
    assert [r.id for r in ledger.refusals(user="u1").items] == ["f1"]
    assert [e.id for e in pages(ledger.events, limit=1, name="killed", until=FAR)] == ["e2", "e1", "e0"]
    assert [(o.limit, o.expires_ms) for o in pages(ledger.overrides, limit=2)] == [("$5", None)] * 3
    assert [a.booked_nusd for a in pages(ledger.adjustments, limit=2, tenant="acme")] == [-40 * CENT] * 3
    assert ledger.adjustments(tenant="other").items == ()


def test_answers_have_their_fan_out_in_order(ledger: Ledger) -> None:
    ledger.write([run(n, utterance="ut-1", at=NOW + timedelta(seconds=n)) for n in range(3)])
    ledger.write([run(n, 2, user="u2", utterance="ut-1") for n in range(3, 5)])
    ledger.write([run(5, utterance="ut-1", at=NOW + timedelta(seconds=9)), run(6)])
    said = refusal_facts(code="answer_estimate", tenant="acme", user="u1", utterance="ut-1", count=2)
    ledger.write([Entry("", ms(NOW), "refusal", "f", "", said)])
    found = pages(ledger.answers, limit=1)
    assert [(a.user, a.utterance, a.calls, a.cost, a.refusals) for a in found] == [
        ("u1", "r-6", 1, Decimal("0.01"), 0),
        ("u2", "ut-1", 2, Decimal("0.04"), 0),
        ("u1", "ut-1", 4, Decimal("0.04"), 2),
    ]
    assert [r.id for r in found[2].runs] == ["r-0", "r-1", "r-2", "r-5"]
    assert (found[2].began_at, found[2].ended_at) == (NOW, NOW + timedelta(seconds=9))
    assert pages(ledger.answers, user="nobody") == []


def test_cost_by_feature_step_model_user_and_tenant(ledger: Ledger) -> None:
    late = run(4, 4)
    ledger.write([
        run(1, 1), run(2, 2, user="u2", step="router", model="gpt-4o"), run(3, 3, tenant="b", feature="ask"),
        Entry("", ms(NOW), "expired", "r-4", "open", late.facts),
        Entry("", ms(NOW), "settled", "r-4", "expired", late.facts, run_actual("gpt-4o", 4 * CENT)),
    ])  # fmt: skip

    def by(dimension: Any, **wanted: Any) -> list[tuple[str, str, Decimal, int]]:
        return [(c.tenant, c.key, c.cost, c.calls) for c in ledger.cost_by(dimension, **wanted)]

    assert by("feature") == [("", "chat", Decimal("0.07"), 3), ("", "ask", Decimal("0.03"), 1)]
    assert by("step") == [("", "answer", Decimal("0.08"), 3), ("", "router", Decimal("0.02"), 1)]
    assert by("user") == [
        ("acme", "u1", Decimal("0.05"), 2), ("b", "u1", Decimal("0.03"), 1), ("acme", "u2", Decimal("0.02"), 1)
    ]  # fmt: skip
    assert by("tenant", since=NOW, until=FAR) == [("", "acme", Decimal("0.07"), 3), ("", "b", Decimal("0.03"), 1)]
    assert sum(cost for *_, cost, _ in by("model")) == Decimal("0.1")
    assert by("tenant", user="u2") == [("", "acme", Decimal("0.02"), 1)]
    assert by("feature", since=FAR) == []
    (ask,) = ledger.cost_by("feature", feature="ask")
    assert (ask.input_tokens, ask.output_tokens) == (10, 3)
    with pytest.raises(ConfigurationError):
        ledger.cost_by("colour")  # type: ignore[arg-type]  # wrong on purpose
    every: tuple[Any, ...] = ("day", "user", "model", "tenant", "step", "feature")
    for wanted in ({}, {"tenant": "acme"}, {"since": FAR}):
        assert ledger.costs_by(every, **wanted) == {name: ledger.cost_by(name, **wanted) for name in every}  # type: ignore[arg-type]  # of one kind each


def test_b059_days_are_those_of_the_zone(ledger: Ledger) -> None:
    edge = datetime(2026, 10, 24, 22, tzinfo=UTC)
    instants = [edge - timedelta(milliseconds=1), edge, edge + timedelta(hours=25, milliseconds=-1)]
    ledger.write([run(n, 1, at) for n, at in enumerate([*instants, edge + timedelta(hours=25)])])
    days = [(c.key, c.cost, c.calls) for c in ledger.cost_by("day")]
    assert days == [
        ("2026-10-24", Decimal("0.01"), 1), ("2026-10-25", Decimal("0.02"), 2), ("2026-10-26", Decimal("0.01"), 1)
    ]  # fmt: skip


def test_b097_spend_between_two_instants_counts_corrections_of_spend_itself(ledger: Ledger) -> None:
    ledger.write([run(1, 7_616), run(2, 5, at=NOW + timedelta(hours=1)), run(3, 1, user="u2")])
    ledger.write([adjusted("a", -7_616, user="u1", reason="price"), adjusted("b", -1, budget="user-day", user="u1")])
    end = NOW + timedelta(hours=1)
    assert ledger.spent(NOW, end, tenant="acme", user="u1") == 0
    assert ledger.spent(NOW, end, tenant="acme") == Decimal("0.01")
    assert ledger.spent(NOW, FAR) == Decimal("0.06")
    assert ledger.spent(NOW, FAR, feature="chat") == Decimal("76.22")
    assert len(ledger.runs().items) == 3


def test_b056_a_sum_of_many_small_amounts_is_exact(ledger: Ledger) -> None:
    ledger.write([settled(n, 1_500, ms(NOW)) for n in range(1_000)] + [settled(10**6, 2**53, ms(NOW))])
    assert ledger.spent(PAST, FAR) == Decimal("0.0015") + Decimal(2**53).scaleb(-9)


def test_a_month_is_projected_at_its_pace(ledger: Ledger) -> None:
    begins = datetime(2026, 10, 31, 23, tzinfo=UTC)
    ledger.write([run(1, 100, begins), run(2, 500, begins - timedelta(milliseconds=1))])
    assert ledger.projection(begins + timedelta(minutes=59)) is None
    assert ledger.projection(begins + timedelta(hours=1)) == 720
    assert ledger.projection(begins + timedelta(days=15)) == 2
    assert ledger.projection(begins + timedelta(days=7)) == Decimal("4.285714286")
    assert ledger.projection(begins + timedelta(days=7), tenant="other") == 0


def test_who_is_over_a_share_of_a_limit(ledger: Ledger) -> None:
    policy = Policy.load({
        "timezone": "UTC",
        "budgets": [
            {"scope": "global", "limit": "$10", "window": "month"},
            {"name": "user-day", "scope": "user", "limit": "$1", "window": "day"},
            {"name": "ask-hour", "scope": "tenant", "limit": "$1", "window": "rolling:1h", "features": ["ask"]},
            {"scope": "user", "meter": "calls", "limit": 1, "window": "day"},
        ],
        "tenants": {"big": {"budgets": [{"name": "user-day", "scope": "user", "limit": "$8", "window": "day"}]}},
    })  # fmt: skip
    ledger.write([
        run(1, 80), run(2, 79, user="u2"), run(3, 500, tenant="big"), run(4, 300, NOW - timedelta(days=1), user="u3"),
        run(5, 90, NOW - timedelta(minutes=30), tenant="c", user="x", feature="ask"),
        run(6, 90, NOW - timedelta(minutes=90), tenant="d", user="y", feature="ask"),
        run(7, 99, user="u4"), adjusted("a", -50, user="u4", budget="user-day"),
    ])  # fmt: skip
    assert [(s.budget, s.tenant, s.user, s.spent, s.share) for s in ledger.over_share(policy, NOW)] == [
        ("global-usd-month", "", "", Decimal("12.38"), Decimal("1.238")),
        ("ask-hour", "c", "", Decimal("0.9"), Decimal("0.9")),
        ("user-day", "c", "x", Decimal("0.9"), Decimal("0.9")),
        ("user-day", "d", "y", Decimal("0.9"), Decimal("0.9")),
        ("user-day", "acme", "u1", Decimal("0.8"), Decimal("0.8")),
    ]
    big = [s for s in ledger.over_share(policy, NOW, Decimal("0.6")) if s.tenant == "big"]
    assert [(s.limit, s.share) for s in big] == [(8, Decimal("0.625"))]


def test_who_is_over_a_share_of_a_limit_that_was_set_at_run_time(tmp_path: Path) -> None:
    budgets = [
        {"name": "all", "scope": "global", "limit": "$1000", "window": "day"},
        {"name": "user-day", "scope": "user", "limit": "$2", "window": "day"},
        {"name": "off", "scope": "tenant", "limit": 0, "window": "day"},
    ]
    own = {"own": {"budgets": [{"name": "user-day", "scope": "user", "limit": "$50", "window": "day"}]}}
    now = [NOW]
    with BudgetEngine.open(
        f"sqlite:///{tmp_path / 'a.db'}", {"budgets": budgets, "tenants": own}, ledger=f"sqlite:///{tmp_path / 'a.db'}",
        clock=lambda: now[0],
    ) as engine:  # fmt: skip
        engine.override("user-day", "$1", tenant="small")
        engine.override("user-day", "$100", tenant="big")
        engine.override("user-day", "$2", tenant="own")
        engine.override("user-day", 0, tenant="none")
        engine.override("off", "$1", tenant="small")
        engine.override("all", "$8", expires_at=NOW + timedelta(hours=1))
        for tenant, cost in {"small": "0.95", "big": "1.90", "own": "1.80", "none": "1.90", "any": "1.70"}.items():
            engine.charge(Call(model="m", tenant=tenant, user="u"), cost=cost, force=True)
        engine.flush()

        def over() -> list[tuple[str, str, Any, Any]]:
            found = engine.ledger.over_share(engine.policy, now[0], overrides=engine.overrides())
            return [(s.budget, s.tenant, s.limit, s.share) for s in found]

        set_now = [
            ("off", "small", 1, Decimal("0.95")), ("user-day", "small", 1, Decimal("0.95")),
            ("user-day", "own", 2, Decimal("0.9")), ("user-day", "any", 2, Decimal("0.85")),
        ]  # fmt: skip
        assert over() == [("all", "", 8, Decimal("1.03125")), *set_now]
        now[0] += timedelta(hours=1)
        assert over() == set_now


def test_who_is_over_a_share_of_a_limit_of_tokens(ledger: Ledger) -> None:
    policy = Policy.load({"budgets": [
        {"name": "tokens", "scope": "user", "meter": "tokens", "limit": 52, "window": "day", "features": ["chat"]},
        {"name": "all", "scope": "global", "meter": "tokens", "limit": 100, "window": "rolling:1h"},
    ]})  # fmt: skip
    guessed = run(9, user="u2")
    ledger.write([
        *(run(n) for n in range(3)), run(3, at=NOW - timedelta(hours=2)), run(4, user="u2", feature="ask"),
        *(run(n, user="u2") for n in (5, 6, 7)), adjusted("a", -9, user="u1"),
        Entry("", ms(NOW), "charged", "r-9", "open", guessed.facts),
    ])  # fmt: skip
    assert [(s.budget, s.user, s.limit, s.spent, s.share) for s in ledger.over_share(policy, NOW)] == [
        ("tokens", "u1", 52, 52, 1), ("all", "", 100, 91, Decimal("0.91")),
    ]  # fmt: skip


def test_who_is_over_a_share_in_a_window_that_begins_with_its_first_use(ledger: Ledger) -> None:
    fixed = {"scope": "user", "limit": "$1", "window": "fixed:24h", "models": ["gpt-*"]}
    policy = Policy.load({"budgets": [{"name": "user", **fixed}, {"name": "ask", **fixed, "features": ["ask"]}]})
    hour = timedelta(hours=1)
    late = run(31, 90, NOW, user="late")
    ledger.write([
        # steady: windows begin 70, 46 and 22 hours ago, and the first two have nothing to do with now
        *(run(n, 30, NOW - n * hour, user="steady") for n in (70, 60, 47, 46, 23, 22, 5, 1)),
        # over: the window that began 25 hours ago is over, and nothing came after it
        run(100, 90, NOW - 25 * hour, user="over"), run(101, 90, NOW - 2 * hour, user="over", model="claude"),
        # just: the window of 24 hours ends now
        run(102, 10, NOW - 24 * hour, user="just"), run(103, 90, NOW - 23 * hour, user="just"),
        run(104, 85, NOW - hour, user="asks", feature="ask"),
        Entry("", ms(NOW - 30 * hour), "expired", "r-31", "open", late.facts),
        Entry("", ms(NOW - 3 * hour), "settled", "r-31", "expired", late.facts, run_actual("gpt-4o", 95 * CENT)),
    ])  # fmt: skip
    assert [(s.budget, s.user, s.spent) for s in ledger.over_share(policy, NOW)] == [
        ("user", "steady", Decimal("0.9")), ("ask", "asks", Decimal("0.85")), ("user", "asks", Decimal("0.85")),
    ]  # fmt: skip
    before = ledger.over_share(policy, NOW - timedelta(milliseconds=1))
    assert [s.spent for s in before if s.budget == "user" and s.user in ("just", "steady")] == [1, Decimal("0.9")]


def test_b026_the_accounts_of_a_budget_can_be_read_to_the_nano_dollar(ledger: Ledger) -> None:
    budget = Budget(scope="user", limit="$1", window="day", models=("gpt-4o*",), features=("chat",))
    ledger.write([
        settled(1, 1, ms(NOW)), settled(2, 2, ms(NOW)), settled(3, 4, ms(NOW), user="u2"),
        settled(4, 8, ms(NOW), model="claude"), settled(5, 16, ms(NOW), feature="ask"),
        settled(6, 32, ms(NOW) + 1_000), settled(7, 64, ms(NOW), tenant="b"),
        adjusted("a", 1, user="u2", budget=budget.name), adjusted("b", 7, user="u2", budget="another"),
    ])  # fmt: skip
    until = NOW + timedelta(seconds=1)
    wanted = {("acme", "u1"): 3, ("acme", "u2"): 4 + CENT}
    assert ledger.accounts(budget, NOW, until) == {**wanted, ("b", "u1"): 64}
    assert ledger.accounts(budget, NOW, until, without=["b"]) == wanted
    assert ledger.accounts(budget, NOW, until, tenant="b") == {("b", "u1"): 64}


def test_the_accounts_of_a_budget_of_a_model_count_it_under_all_its_names(ledger: Ledger) -> None:
    budget = {"name": "dear", "scope": "user", "limit": "$1", "models": ["gpt-4o"]}
    ledger.write([
        run(1, 40, NOW, model="openai/gpt-4o"), run(2, 50, NOW, model="ours"), run(3, 99, NOW, model="gpt-4o-mini"),
    ])  # fmt: skip
    for window in ("day", "fixed:24h"):
        policy = Policy.load({"aliases": {"ours": "gpt-4o"}, "budgets": [{**budget, "window": window}]})
        assert [s.spent for s in ledger.over_share(policy, NOW)] == [Decimal("0.9")]


def test_questions_of_the_last_day_are_counted_once(ledger: Ledger) -> None:
    asked = event_facts("asked", tenant="acme", user="u1", feature="ask", utterance="q-9")
    again = event_facts("asked", tenant="acme", user="u1", feature="ask", utterance="q-1")
    ledger.write([
        *(run(n, utterance="q-1", feature="ask") for n in range(25)),
        run(30, utterance="q-1", user="u2", feature="ask"),
        run(31, utterance="q-2"), run(32, 1, NOW - timedelta(hours=25), utterance="q-3"),
        run(33, 1, NOW - timedelta(hours=24), utterance="q-4"),
        Entry("", ms(NOW), "event", "1", "", asked), Entry("", ms(NOW), "event", "2", "", again),
    ])  # fmt: skip
    assert ledger.questions(NOW) == 5
    assert ledger.questions(NOW, tenant="acme", user="u1") == 4
    assert ledger.questions(NOW, feature="ask") == 3
    assert ledger.questions(NOW, within=timedelta(hours=1), tenant="acme", user="u1", feature="chat") == 1
    assert ledger.questions(NOW, tenant="nobody") == 0


def test_months_count_pruned_rows_and_rows_that_are_there(ledger: Ledger) -> None:
    october = datetime(2026, 10, 31, 22, 59, tzinfo=UTC)
    ledger.write([run(1, 1, october), run(2, 2, october + timedelta(minutes=1)), run(3, 4), adjusted("a", -1)])
    wanted = {"2026-10": Decimal("0.01"), "2026-11": Decimal("0.05")}
    assert ledger.months() == wanted
    ledger.prune(NOW)
    assert (ledger.months(), len(ledger.runs().items)) == (wanted, 1)
    ledger.prune(FAR)
    assert ledger.months(tenant="acme") == wanted
    assert ledger.months(tenant="other") == {}


def test_a_number_that_cannot_be_read_is_none_and_a_page_raises() -> None:
    ledger = Ledger.open("postgresql://nobody@127.0.0.1:1/none")
    assert ledger.spent(PAST, FAR) is None
    assert ledger.projection(NOW) is None
    assert ledger.questions(NOW) is None
    with pytest.raises(LedgerUnavailable):
        ledger.runs()


def test_instants_need_a_zone_and_cursors_come_from_pages(ledger: Ledger) -> None:
    with pytest.raises(ConfigurationError, match="time zone"):
        ledger.runs(since=datetime(2026, 1, 1))
    for after in ("x", "", "-1", "9" * 30, "\u0661"):
        with pytest.raises(ConfigurationError, match="after"):
            ledger.runs(after=after)
