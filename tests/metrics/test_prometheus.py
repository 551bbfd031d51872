"""What a scrape of a real registry shows of events and balances."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from llm_budget_hooks import BudgetEngine, BudgetExceeded, Call, ConfigurationError, PriceUnknown, Reservation, Usage
from llm_budget_hooks.metrics.prometheus import PrometheusBalances, PrometheusObserver
from llm_budget_hooks.models.events import Event, EventKind

POLICY = {
    "store_timeout": "10s",
    "budgets": [
        {"name": "all", "scope": "global", "limit": "$50", "window": "day"},
        {"name": "tenant", "scope": "tenant", "limit": "$2", "window": "month"},
        {"name": "rate", "scope": "tenant", "meter": "calls", "limit": 60, "window": "rolling:60s"},
    ],
}


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def event(kind: EventKind = "settled", **facts: object) -> Event:
    return Event(kind=kind, at_ms=1_796_000_000_000, tenant="acme", user="ada", model="gpt-4o-mini", **facts)  # type: ignore[arg-type]  # any facts


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(name, labels)


def test_costs_and_tokens_are_counted_by_tenant_feature_step_and_model(registry: CollectorRegistry) -> None:
    observe = PrometheusObserver(registry)
    for _ in range(3):
        observe(
            event(
                feature="chat",
                cost_nusd=250_000_000,
                booked_nusd=250_000_000,
                estimate_nusd=200_000_000,
                output_tokens=88,
            )
        )
    labels = {"tenant": "acme", "feature": "chat", "step": "", "model": "gpt-4o-mini"}
    assert value(registry, "llm_budget_cost_dollars_total", **labels) == 0.75
    assert value(registry, "llm_budget_overage_dollars_total") == pytest.approx(0.15)
    assert value(registry, "llm_budget_tokens_total", type="output", **labels) == 264


def test_refusals_are_counted_by_code_with_those_that_were_only_numbered(registry: CollectorRegistry) -> None:
    observe = PrometheusObserver(registry)
    observe(event("refused", code="spend", budget="user-day", scope="user"))
    observe(event("refused", code="spend", budget="user-day", scope="user", times=40))
    counted = value(registry, "llm_budget_refusals_total", code="spend", budget="user-day", scope="user")
    assert counted == value(registry, "llm_budget_events_total", kind="refused") == 41


def test_ages_latencies_and_the_states_are_there(registry: CollectorRegistry) -> None:
    observe = PrometheusObserver(registry)
    observe(event("late", held_s=600.0))
    observe(event("reserved", latency_s=0.002))
    observe(event("degraded"))
    assert value(registry, "llm_budget_hold_age_seconds_sum", kind="late") == 600
    assert value(registry, "llm_budget_store_seconds_bucket", kind="reserved", le="0.0025") == 1
    assert value(registry, "llm_budget_store_seconds_bucket", kind="reserved", le="0.001") == 0
    assert value(registry, "llm_budget_degraded") == 1
    observe(event("restored"))
    assert value(registry, "llm_budget_degraded") == 0


def test_an_engine_tells_costs_tokens_ages_and_the_waits_for_its_store(
    registry: CollectorRegistry, engine_url: str
) -> None:
    with BudgetEngine.open(engine_url, POLICY, observers=(PrometheusObserver(registry),)) as engine:
        held = engine.reserve(Call(model="gpt-4o-mini", tenant="acme", amount="0.25"))
        engine.settle(held, usage=Usage(input_tokens=1000, cached_input_tokens=200, output_tokens=100))
        engine.charge(Call(model="gpt-4o-mini", tenant="acme"), cost="0.5")
        with pytest.raises(BudgetExceeded):
            engine.reserve(Call(model="gpt-4o-mini", tenant="acme", amount="3"))
        asyncio.run(released(engine))
    labels = {"tenant": "acme", "feature": "", "step": "", "model": "gpt-4o-mini"}
    assert value(registry, "llm_budget_cost_dollars_total", **labels) == pytest.approx(0.500195)
    used = {kind: value(registry, "llm_budget_tokens_total", type=kind, **labels) for kind in ("input", "output")}
    assert used == {"input": 1000, "output": 100}
    for kind, times in (("reserved", 2), ("settled", 2), ("refused", 1), ("released", 1)):
        assert value(registry, "llm_budget_store_seconds_count", kind=kind) == times
        assert 0 < (value(registry, "llm_budget_store_seconds_sum", kind=kind) or 0) < 20
    assert value(registry, "llm_budget_hold_age_seconds_count", kind="settled") == 2


def test_an_outcome_that_comes_late_is_not_counted_twice(registry: CollectorRegistry, engine_url: str) -> None:
    now = datetime(2026, 11, 30, 12, tzinfo=UTC)

    def counted() -> float:
        labels = {"tenant": "acme", "feature": "", "step": "", "model": "gpt-4o-mini"}
        names = ("llm_budget_cost_dollars_total", "llm_budget_returned_dollars_total")
        cost, returned = (value(registry, name, **labels) or 0 for name in names)
        return cost - returned

    observers = (PrometheusObserver(registry),)
    with BudgetEngine.open(engine_url, POLICY, clock=lambda: now, observers=observers) as engine:

        def held() -> Reservation:
            return engine.reserve(Call(model="gpt-4o-mini", tenant="acme", amount="0.5"))

        def spent() -> float:
            return float(engine.status()[0].spent or 0)

        for cost in ("0.125", "0.75"):
            late = held()
            engine.settle(late)
            assert counted() == pytest.approx(spent())
            assert engine.settle(late, cost=cost).status == "late"
            assert counted() == pytest.approx(spent())
        given_back = held()
        engine.settle(given_back)
        engine.release(given_back)
        assert counted() == pytest.approx(spent()) == 0.875
        expired = held()
        now += timedelta(minutes=11)
        assert engine.settle(expired, cost="0.25").status == "late"
        assert counted() == pytest.approx(spent()) == 1.125
    assert value(registry, "llm_budget_overage_dollars_total") == 0.25


def test_half_a_letter_in_a_name_ends_no_scrape(registry: CollectorRegistry) -> None:
    PrometheusObserver(registry)(event(feature="\ud800", booked_nusd=1, input_tokens=1))
    assert b'feature="?"' in generate_latest(registry)


def test_what_is_settled_while_the_store_is_away_is_told_once(registry: CollectorRegistry) -> None:
    with BudgetEngine.open("redis://127.0.0.1:1/0", POLICY, observers=(PrometheusObserver(registry),)) as engine:
        for _ in range(2):
            held = engine.reserve(Call(model="gpt-4o-mini", tenant="acme", amount="0.02"))
            engine.settle(held, cost="0.01")
        engine.release(engine.reserve(Call(model="gpt-4o-mini", tenant="acme", amount="0.02")))
    labels = {"tenant": "acme", "feature": "", "step": "", "model": "gpt-4o-mini"}
    assert value(registry, "llm_budget_cost_dollars_total", **labels) == 0.02
    for kind, times in (("degraded", 1), ("settled", 2), ("released", 1)):
        assert value(registry, "llm_budget_events_total", kind=kind) == times


async def released(engine: BudgetEngine) -> None:
    await engine.arelease(await engine.areserve(Call(model="gpt-4o-mini", tenant="acme", amount="0.1")))
    await engine.aclose()


def test_a_refusal_that_asked_no_store_has_no_wait(registry: CollectorRegistry) -> None:
    with BudgetEngine.open("memory://", POLICY, observers=(PrometheusObserver(registry),)) as engine:
        engine.status()
        with pytest.raises(PriceUnknown):
            engine.reserve(Call(model="made-up"))
    assert value(registry, "llm_budget_events_total", kind="refused") == 1
    assert value(registry, "llm_budget_store_seconds_count", kind="refused") is None


def test_a_user_is_a_label_only_if_asked_for(registry: CollectorRegistry) -> None:
    PrometheusObserver(registry)(event(booked_nusd=1, input_tokens=1))
    assert b"ada" not in generate_latest(registry)
    asked = CollectorRegistry()
    PrometheusObserver(asked, labels=("user",))(event(booked_nusd=1))
    assert value(asked, "llm_budget_cost_dollars_total", user="ada") == 1e-9


def test_b136_made_up_names_do_not_make_a_series_each(registry: CollectorRegistry) -> None:
    observe = PrometheusObserver(registry, labels=("tenant",), most=5)
    for number in range(1000):
        observe(Event(kind="settled", at_ms=1, tenant=f"t{number}" * 100, booked_nusd=10**9))
    (family,) = (f for f in registry.collect() if f.name == "llm_budget_cost_dollars")
    totals = [s for s in family.samples if s.name.endswith("_total")]
    assert len(totals) == 6
    assert sum(s.value for s in totals) == 1000
    assert value(registry, "llm_budget_cost_dollars_total", tenant="other") == 995


def test_an_unknown_label_is_a_mistake(registry: CollectorRegistry) -> None:
    with pytest.raises(ConfigurationError, match="'prompt'"):
        PrometheusObserver(registry, labels=("prompt",))  # type: ignore[arg-type]  # what a caller may write


def test_a_scrape_shows_the_balances_of_global_and_tenant_budgets(registry: CollectorRegistry, engine_url: str) -> None:
    with BudgetEngine.open(engine_url, POLICY) as engine:
        PrometheusBalances(engine, ["acme", " acme "], registry=registry)
        engine.charge(Call(model="any", tenant="acme", amount="0.5"), cost="0.5")
        held = engine.reserve(Call(model="any", tenant="acme", amount="0.25"))
        account = {"budget": "tenant", "scope": "tenant", "meter": "usd", "tenant": "acme"}
        shown = [value(registry, f"llm_budget_{n}", **account) for n in ("limit", "spent", "reserved", "available")]
        assert shown == [2, 0.5, 0.25, 1.25]
        rate = {"budget": "rate", "scope": "tenant", "meter": "calls", "tenant": "acme"}
        assert value(registry, "llm_budget_spent", **rate) == 2
        everybody = {"budget": "all", "scope": "global", "meter": "usd", "tenant": ""}
        assert value(registry, "llm_budget_spent", **everybody) == 0.5
        engine.release(held)
        assert value(registry, "llm_budget_reserved", **account) == 0
        assert value(registry, "llm_budget_unread") == 0
        assert generate_latest(registry).count(b'llm_budget_spent{budget="tenant"') == 1


def test_a_scrape_shows_open_and_expired_holds_and_the_kill_switches_of_all_processes(
    registry: CollectorRegistry, engine_url: str
) -> None:
    now = datetime(2026, 11, 30, 12, tzinfo=UTC)
    with BudgetEngine.open(engine_url, POLICY, clock=lambda: now) as engine:
        PrometheusBalances(engine, registry=registry)
        engine.reserve(Call(model="any", tenant="acme", amount="0.1"))
        now += timedelta(minutes=4)
        engine.reserve(Call(model="any", tenant="acme", amount="0.1"))
        assert value(registry, "llm_budget_holds", state="open") == 2
        assert value(registry, "llm_budget_oldest_hold_seconds") == 240
        now += timedelta(minutes=7)
        engine.kill("acme")
        held = [value(registry, "llm_budget_holds", state=state) for state in ("open", "expired")]
        assert (held, value(registry, "llm_budget_oldest_hold_seconds")) == ([1, 1], 420)
        assert [value(registry, "llm_budget_killed", scope=scope) for scope in ("global", "tenant")] == [0, 1]


def test_a_balance_that_could_not_be_read_has_no_sample(registry: CollectorRegistry) -> None:
    with BudgetEngine.open("redis://127.0.0.1:1/0", POLICY) as engine:
        PrometheusBalances(engine, ["acme"], registry=registry)
        assert value(registry, "llm_budget_unread") == 3
        shown = generate_latest(registry).decode()
    assert 'llm_budget_limit{budget="all"' in shown
    assert not any(name in shown for name in ("llm_budget_spent{", "llm_budget_holds{", "llm_budget_killed{"))
