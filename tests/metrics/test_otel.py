"""What the SDK of OpenTelemetry reads of events and balances, and what is on the span."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.semconv._incubating.attributes.gen_ai_attributes import GenAiProviderNameValues

from llm_budget_hooks import BudgetEngine, Call, Usage
from llm_budget_hooks.metrics.otel import OpenTelemetryObserver, observe_balances
from llm_budget_hooks.models.events import Event

POLICY = {"budgets": [{"name": "all", "scope": "global", "limit": "$50", "window": "day"}]}
SETTLED = Event(
    kind="settled", at_ms=1_796_000_000_000, tenant="acme", user="ada", feature="chat", model="gemini-2.0-flash",
    provider="vertex_ai", cost_nusd=2 * 10**9, booked_nusd=2 * 10**9, estimate_nusd=10**9, input_tokens=1200,
    output_tokens=88, held_s=1.5,
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


def test_what_a_late_outcome_takes_back_is_recorded_apart(reading: Reading) -> None:
    OpenTelemetryObserver(reading.provider)(SETTLED._replace(kind="late", cost_nusd=1, booked_nusd=-(10**9)))
    points = reading.points()
    (returned,) = points["llm_budget.returned"]
    assert (returned.value, points.get("llm_budget.cost")) == (1, None)


def test_the_buckets_tell_short_waits_and_large_prompts_apart(reading: Reading) -> None:
    observe = OpenTelemetryObserver(reading.provider)
    for latency_s, tokens in ((0.0004, 900), (0.04, 90_000)):
        observe(SETTLED._replace(latency_s=latency_s, input_tokens=tokens, output_tokens=None))
    points = reading.points()
    for name in ("llm_budget.store.duration", "gen_ai.client.token.usage"):
        (point,) = points[name]
        assert sorted(point.bucket_counts)[-2:] == [1, 1]


@pytest.mark.parametrize(
    ("listed", "named"),
    [
        ("bedrock_converse", "aws.bedrock"), ("vertex_ai-language-models", "gcp.vertex_ai"), ("cohere_chat", "cohere"),
        ("azure_text", "azure.ai.openai"), ("text-completion-openai", "openai"), ("mistral", "mistral_ai"),
        ("xai", "x_ai"), ("watsonx", "ibm.watsonx.ai"), ("gemini", "gcp.gemini"), ("azure_ai", "azure.ai.inference"),
    ],
)  # fmt: skip
def test_providers_have_the_names_of_the_conventions(reading: Reading, listed: str, named: str) -> None:
    OpenTelemetryObserver(reading.provider)(SETTLED._replace(provider=listed))
    (seen,) = {p.attributes["gen_ai.provider.name"] for p in reading.points()["gen_ai.client.token.usage"]}
    assert seen == named
    assert named in {one.value for one in GenAiProviderNameValues}


def test_an_engine_tells_tokens_by_the_gen_ai_conventions_and_the_waits_for_its_store(
    reading: Reading, engine_url: str
) -> None:
    observers = (OpenTelemetryObserver(reading.provider),)
    with BudgetEngine.open(engine_url, {**POLICY, "store_timeout": "10s"}, observers=observers) as engine:
        held = engine.reserve(Call(model="gpt-4o", tenant="acme", step="answer", amount="0.1"))
        engine.settle(held, usage=Usage(input_tokens=1200, output_tokens=88), model="gpt-4o-2024-08-06")
        points = reading.points()
    used = {p.attributes["gen_ai.token.type"]: p for p in points["gen_ai.client.token.usage"]}
    assert {which: p.sum for which, p in used.items()} == {"input": 1200, "output": 88}
    assert dict(used["output"].attributes) == {
        "gen_ai.token.type": "output", "gen_ai.operation.name": "chat", "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "gpt-4o", "gen_ai.response.model": "gpt-4o-2024-08-06", "llm_budget.tenant": "acme",
        "llm_budget.step": "answer",
    }  # fmt: skip
    waits = {p.attributes["llm_budget.event"]: p for p in points["llm_budget.store.duration"]}
    assert {kind: (p.count, 0 < p.sum < 20) for kind, p in waits.items()} == {
        "reserved": (1, True), "settled": (1, True),
    }  # fmt: skip


def test_a_store_that_is_away_shows_until_it_is_back(reading: Reading) -> None:
    observe = OpenTelemetryObserver(reading.provider)

    def degraded() -> list[int]:
        return [point.value for point in reading.points()["llm_budget.degraded"]]

    assert degraded() == [0]
    with BudgetEngine.open("redis://127.0.0.1:1/0", POLICY, observers=(observe,)) as engine:
        engine.reserve(Call(model="any", amount="0.01"))
        assert degraded() == [1]
    observe(Event(kind="restored", at_ms=1))
    assert degraded() == [0]


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
    (open_, expired), (oldest,) = points["llm_budget.holds"], points["llm_budget.hold.oldest"]
    assert (open_.value, expired.value, oldest.value) == (0, 0, 0)
    assert [p.value for p in points["llm_budget.killed"]] == [0, 0]
    assert spent.attributes == {"llm_budget.budget": "all", "llm_budget.scope": "global", "llm_budget.meter": "usd"}


def test_what_could_not_be_read_is_not_observed(reading: Reading) -> None:
    with BudgetEngine.open("redis://127.0.0.1:1/0", POLICY) as engine:
        observe_balances(engine, meter_provider=reading.provider)
        points = reading.points()
    assert [p.value for p in points["llm_budget.limit"]] == [50]
    assert not any(points.get(f"llm_budget.{name}") for name in ("spent", "holds", "hold.oldest", "killed"))
