"""OpenTelemetry: metrics by the gen_ai semantic conventions, budget metrics, and events on the current span."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from opentelemetry import metrics, trace
from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation

from llm_budget_hooks.metrics.balances import NUMBERS, Readable, Sample, holds, killed, samples
from llm_budget_hooks.metrics.labels import AGE_S, LATENCY_S, USUAL, Label, Labels, overage_nusd
from llm_budget_hooks.models.events import Event
from llm_budget_hooks.pricing.names import provider_of

Attributes = dict[str, str | int | float | bool]
_NAME: Final = "llm_budget_hooks"
_NUSD: Final = 10**9
_TOLD: Final = ("refused", "degraded", "restored", "alert", "warned", "killed", "revived", "auto_engaged")
_KEYS: Final = {
    "tenant": "llm_budget.tenant",
    "user": "llm_budget.user",
    "feature": "llm_budget.feature",
    "step": "llm_budget.step",
    "model": "gen_ai.request.model",
}
# The names of the gen_ai conventions, where LiteLLM has others.
_PROVIDERS: Final = {
    "azure": "azure.ai.openai",
    "azure_ai": "azure.ai.inference",
    "bedrock": "aws.bedrock",
    "bedrock_mantle": "aws.bedrock",
    "gemini": "gcp.gemini",
    "mistral": "mistral_ai",
    "vertex_ai": "gcp.vertex_ai",
    "watsonx": "ibm.watsonx.ai",
    "xai": "x_ai",
}


class OpenTelemetryObserver:
    """Records what it is told: ``BudgetEngine.open(..., observers=(OpenTelemetryObserver(),))``.

    Metrics: ``gen_ai.client.token.usage`` and ``llm_budget.cost``, ``.returned`` (what an outcome that came late took
    back from it), ``.overage``, ``.refusals``, ``.events``,
    ``.hold.duration``, ``.store.duration``, and ``.degraded``, 1 while the store does not answer. A refusal, an outage,
    an alert and the kill switch are also events on the span that is current. Events do not say which operation a call
    was: one without output is taken for ``embeddings``.

    Args:
        meter_provider: where the metrics go; None: the global one.
        labels: the attributes of costs and tokens; ``user`` only if it is asked for.
        most: how many values each attribute may take before they are ``other``.

    Raises:
        ConfigurationError: there is no such label.
    """

    def __init__(
        self, meter_provider: MeterProvider | None = None, *, labels: tuple[Label, ...] = USUAL, most: int = 200
    ) -> None:
        self._labels = Labels(labels, most)
        self._models = Labels(("model",), most)
        meter = metrics.get_meter(_NAME, meter_provider=meter_provider)
        self._usage = meter.create_histogram(
            "gen_ai.client.token.usage", "{token}", "Input and output tokens used.",
            explicit_bucket_boundaries_advisory=[4**power for power in range(14)],
        )  # fmt: skip
        self._cost = meter.create_counter("llm_budget.cost", "{USD}", "What was booked.")
        self._returned = meter.create_counter("llm_budget.returned", "{USD}", "What was booked and taken back.")
        self._overage = meter.create_counter("llm_budget.overage", "{USD}", "What was booked above the holds.")
        self._refusals = meter.create_counter("llm_budget.refusals", "{refusal}", "Calls and answers turned away.")
        self._events = meter.create_counter("llm_budget.events", "{event}", "What happened, by kind.")
        self._age = meter.create_histogram(
            "llm_budget.hold.duration", "s", "Age of holds at their end.", explicit_bucket_boundaries_advisory=AGE_S
        )
        self._latency = meter.create_histogram(
            "llm_budget.store.duration", "s", "Waits for the store.", explicit_bucket_boundaries_advisory=LATENCY_S
        )
        self._degraded = meter.create_gauge("llm_budget.degraded", "1", "1 while the store does not answer.")
        self._degraded.set(0)

    def __call__(self, event: Event) -> None:
        """Record one event."""
        kind: Attributes = {"llm_budget.event": event.kind}
        self._events.add(event.times, kind)
        if event.latency_s is not None:
            self._latency.record(event.latency_s, kind)
        if event.held_s is not None:
            self._age.record(event.held_s, kind)
        if event.kind == "refused":
            self._refusals.add(event.times, _refused(event))
        elif event.kind in ("degraded", "restored"):
            self._degraded.set(event.kind == "degraded")
        elif event.booked_nusd is not None:
            self._book(event, event.booked_nusd)
        if event.kind in _TOLD:
            self._on_span(event)

    def _book(self, event: Event, booked_nusd: int) -> None:
        picked = zip(self._labels.names, self._labels.of(event), strict=True)
        labels: Attributes = {_KEYS[name]: value for name, value in picked if value}
        if booked_nusd:
            (self._cost if booked_nusd > 0 else self._returned).add(abs(booked_nusd) / _NUSD, labels)
            self._overage.add(overage_nusd(event) / _NUSD, labels)
        for which, count in (("input", event.input_tokens), ("output", event.output_tokens)):
            if count is not None:
                self._usage.record(count, {**labels, **_gen_ai(event), "gen_ai.token.type": which})

    def _on_span(self, event: Event) -> None:
        span = trace.get_current_span()
        if span.is_recording():
            (model,) = self._models.of(event)
            more: Attributes = {"gen_ai.request.model": model} if model else {}
            span.add_event(f"llm_budget.{event.kind}", {**more, **_refused(event)})


def observe_balances(
    engine: Readable, tenants: Sequence[str] = (), *, meter_provider: MeterProvider | None = None
) -> None:
    """Export the balances of an engine: ``llm_budget.limit``, ``.spent``, ``.reserved`` and ``.available``.

    Beside them ``llm_budget.holds`` by state, ``llm_budget.hold.oldest`` in seconds, and ``llm_budget.killed``, the
    kill switches that are on. What could not be read has no observation, never 0.

    Args:
        engine: whose balances.
        tenants: whose budgets are read beside the global ones.
        meter_provider: where the metrics go; None: the global one.
    """
    meter = metrics.get_meter(_NAME, meter_provider=meter_provider)

    def observing(number: str) -> None:
        def observed(_: CallbackOptions) -> Iterator[Observation]:
            for sample in samples(engine, tenants):
                if sample.number == number and sample.value is not None:
                    yield Observation(sample.value, _account(sample))

        meter.create_observable_gauge(f"llm_budget.{number}", [observed], "1", f"{number.capitalize()} of an account.")

    def held(_: CallbackOptions) -> Iterator[Observation]:
        found = holds(engine)
        if found is not None:
            yield Observation(found.open, {"llm_budget.state": "open"})
            yield Observation(found.expired, {"llm_budget.state": "expired"})

    def oldest(_: CallbackOptions) -> Iterator[Observation]:
        found = holds(engine)
        if found is not None:
            yield Observation(found.oldest_s)

    def switched(_: CallbackOptions) -> Iterator[Observation]:
        for scope, count in (killed(engine) or {}).items():
            yield Observation(count, {"llm_budget.scope": scope})

    for number in NUMBERS:
        observing(number)
    meter.create_observable_gauge("llm_budget.holds", [held], "{hold}", "Holds that nobody has settled.")
    meter.create_observable_gauge("llm_budget.hold.oldest", [oldest], "s", "Age of the oldest open hold.")
    meter.create_observable_gauge("llm_budget.killed", [switched], "1", "Kill switches that are on.")


def _account(sample: Sample) -> Attributes:
    return {f"llm_budget.{name}": getattr(sample, name) for name in sample._fields[:4] if getattr(sample, name)}


def _refused(event: Event) -> Attributes:
    facts = {
        "llm_budget.code": event.code,
        "llm_budget.budget": event.budget,
        "llm_budget.scope": event.scope,
        "llm_budget.meter": event.meter,
        "llm_budget.busy": event.busy,
        "llm_budget.threshold": event.threshold,
    }
    return {name: value for name, value in facts.items() if value is not None}


def _gen_ai(event: Event) -> Attributes:
    provider = provider_of(event.provider or "unknown")
    facts: Attributes = {
        "gen_ai.operation.name": "chat" if event.output_tokens else "embeddings",
        "gen_ai.provider.name": _PROVIDERS.get(provider, provider),
    }
    if event.served:
        facts["gen_ai.response.model"] = event.served
    return facts
