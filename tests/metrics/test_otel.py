"""What the SDK of OpenTelemetry reads of events and balances, and what is on the span."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider

from llm_budget_hooks import BudgetEngine, Call
from llm_budget_hooks.metrics.otel import OpenTelemetryObserver, observe_balances
from llm_budget_hooks.models.events import Event

POLICY = {"budgets": [{"name": "all", "scope": "global", "limit": "$50", "window": "day"}]}
SETTLED = Event(
    kind="settled", at_ms=1_796_000_000_000, tenant="acme", user="ada", feature="chat", model="gemini-2.0-flash",
    provider="vertex_ai", cost_nusd=2 * 10**9, estimate_nusd=10**9, input_tokens=1200, output_tokens=88, held_s=1.5,
)  # fmt: skip


class Reading:
    """A meter provider, and what was recorded with it."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self.provider = MeterProvider(metric_readers=[self._reader])

    def points(self) -> dict[str, list[Any]]:
        found = self._reader.get_metrics_data()
        scopes = [scope for resource in found.resource_metrics for scope in resource.scope_metrics] if found else []
        return {metric.name: list(metric.data.data_points) for scope in scopes for metric in scope.metrics}


@pytest.fixture
def reading() -> Any:
    made = Reading()
    yield made
    made.provider.shutdown()


def test_tokens_are_recorded_by_the_gen_ai_conventions(reading: Reading) -> None:
    OpenTelemetryObserver(reading.provider)(SETTLED)
    points = {p.attributes["gen_ai.token.type"]: p for p in reading.points()["gen_ai.client.token.usage"]}
    assert {which: p.sum for which, p in points.items()} == {"input": 1200, "output": 88}
    shown = points["input"].attributes
    assert shown["gen_ai.operation.name"] == "chat"
    assert shown["gen_ai.provider.name"] == "gcp.vertex_ai"
    assert shown["gen_ai.request.model"] == "gemini-2.0-flash"


def test_the_cost_what_came_above_the_hold_and_its_age_are_recorded(reading: Reading) -> None:
    OpenTelemetryObserver(reading.provider)(SETTLED)
    points = reading.points()
    (cost,), (overage,), (age,) = (points[f"llm_budget.{n}"] for n in ("cost", "overage", "hold.duration"))
    assert (cost.value, overage.value, age.sum) == (2, 1, 1.5)
    assert cost.attributes["llm_budget.tenant"] == "acme"


def test_no_attribute_names_a_user_unless_asked(reading: Reading) -> None:
    OpenTelemetryObserver(reading.provider)(SETTLED)
    assert "ada" not in repr(reading.points())
    asked = Reading()
    OpenTelemetryObserver(asked.provider, labels=("user",))(SETTLED)
    assert "ada" in repr(asked.points())
    asked.provider.shutdown()


def test_a_refusal_is_an_event_on_the_current_span(reading: Reading) -> None:
    observe = OpenTelemetryObserver(reading.provider)
    refused = Event(kind="refused", at_ms=1, user="ada", model="gpt-4o", code="spend", budget="user-day", scope="user")
    observe(refused)
    with TracerProvider().get_tracer("test").start_as_current_span("asks") as span:
        observe(refused)
        observe(SETTLED)
    (told,) = span.events  # type: ignore[attr-defined]  # the SDK's span has them
    assert told.name == "llm_budget.refused"
    assert dict(told.attributes) == {
        "gen_ai.request.model": "gpt-4o",
        "llm_budget.code": "spend",
        "llm_budget.budget": "user-day",
        "llm_budget.scope": "user",
    }
    (counted,) = reading.points()["llm_budget.refusals"]
    assert counted.value == 2


def test_balances_are_observed_when_they_are_exported(reading: Reading) -> None:
    with BudgetEngine.open("memory://", POLICY) as engine:
        observe_balances(engine, meter_provider=reading.provider)
        engine.charge(Call(model="any", amount="0.5"), cost="0.5")
        points = reading.points()
    (spent,), (available,) = points["llm_budget.spent"], points["llm_budget.available"]
    assert (spent.value, available.value) == (0.5, 49.5)
    assert spent.attributes == {"llm_budget.budget": "all", "llm_budget.scope": "global", "llm_budget.meter": "usd"}


def test_what_could_not_be_read_is_not_observed(reading: Reading) -> None:
    with BudgetEngine.open("redis://127.0.0.1:1/0", POLICY) as engine:
        observe_balances(engine, meter_provider=reading.provider)
        points = reading.points()
    assert [p.value for p in points["llm_budget.limit"]] == [50]
    assert not points.get("llm_budget.spent")
