"""Prometheus: counters and histograms of what an engine tells; its balances, holds and switches at each scrape."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from llm_budget_hooks.metrics.balances import NUMBERS, Holds, Readable, holds, killed, samples
from llm_budget_hooks.metrics.labels import AGE_S, LATENCY_S, USUAL, Label, Labels, overage_nusd
from llm_budget_hooks.models.events import Event

_NUSD: Final = 10**9
_TOKENS: Final = ("input_tokens", "cached_input_tokens", "output_tokens", "reasoning_tokens")


class PrometheusObserver:
    """Counts what it is told: ``BudgetEngine.open(..., observers=(PrometheusObserver(),))``.

    What a call cost is ``llm_budget_cost_dollars`` less ``llm_budget_returned_dollars``: a call of unknown outcome is
    counted at its estimate, and what its outcome takes back when it comes late is counted there.

    Args:
        registry: where the series go.
        labels: of costs and tokens; ``user`` makes a series for each user, up to `most`.
        most: how many values each label may take before they are counted as ``other``.

    Raises:
        ConfigurationError: there is no such label.
    """

    def __init__(
        self, registry: CollectorRegistry = REGISTRY, *, labels: tuple[Label, ...] = USUAL, most: int = 200
    ) -> None:
        self._labels = Labels(labels, most)
        self._events = Counter("llm_budget_events", "What happened, by kind.", ["kind"], registry=registry)
        self._refusals = Counter(
            "llm_budget_refusals", "Calls and answers turned away.", ["code", "budget", "scope"], registry=registry
        )
        self._cost = Counter("llm_budget_cost_dollars", "What was booked.", labels, registry=registry)
        self._returned = Counter(
            "llm_budget_returned_dollars", "What was booked and taken back.", labels, registry=registry
        )
        self._overage = Counter("llm_budget_overage_dollars", "What was booked above the holds.", registry=registry)
        self._tokens = Counter("llm_budget_tokens", "What was used.", ["type", *labels], registry=registry)
        self._age = Histogram(
            "llm_budget_hold_age_seconds", "Age of holds at their end.", ["kind"], buckets=AGE_S, registry=registry
        )
        self._latency = Histogram(
            "llm_budget_store_seconds", "Waits for the store.", ["kind"], buckets=LATENCY_S, registry=registry
        )
        self._degraded = Gauge("llm_budget_degraded", "1 while the store does not answer.", registry=registry)

    def __call__(self, event: Event) -> None:
        """Count one event."""
        kind = event.kind
        self._events.labels(kind).inc(event.times)
        if event.latency_s is not None:
            self._latency.labels(kind).observe(event.latency_s)
        if event.held_s is not None:
            self._age.labels(kind).observe(event.held_s)
        if kind == "refused":
            self._refusals.labels(event.code or "", event.budget or "", event.scope or "").inc(event.times)
        elif kind in ("degraded", "restored"):
            self._degraded.set(kind == "degraded")
        elif event.booked_nusd is not None:
            self._book(event, event.booked_nusd)

    def _book(self, event: Event, booked_nusd: int) -> None:
        labels = self._labels.of(event)
        if booked_nusd:
            counter = self._cost if booked_nusd > 0 else self._returned
            (counter.labels(*labels) if labels else counter).inc(abs(booked_nusd) / _NUSD)
            self._overage.inc(overage_nusd(event) / _NUSD)
        for name in _TOKENS:
            count = getattr(event, name)
            if count:
                self._tokens.labels(name.removesuffix("_tokens"), *labels).inc(count)


class PrometheusBalances(Collector):
    """The balances at each scrape: limit, spent, reserved, available, and how many could not be read.

    Beside them: open and expired holds, the age of the oldest open one, and the kill switches that are on. What could
    not be read has no sample, never 0.

    Args:
        engine: whose balances.
        tenants: whose budgets are read beside the global ones.
        registry: where the series go.
    """

    def __init__(
        self, engine: Readable, tenants: Sequence[str] = (), *, registry: CollectorRegistry = REGISTRY
    ) -> None:
        self._engine = engine
        self._tenants = tuple(tenants)
        registry.register(self)

    def describe(self) -> Iterable[Metric]:
        """The series without samples, so that registering reads nothing."""
        return [*_families().values(), _unread(), *_holds(None), _killed(None)]

    def collect(self) -> Iterable[Metric]:
        """Read them all."""
        families, unread = _families(), 0
        for sample in samples(self._engine, self._tenants):
            if sample.value is None:
                unread += sample.number == "spent"
            else:
                families[sample.number].add_metric(list(sample[:4]), sample.value)
        return [*families.values(), _unread(unread), *_holds(holds(self._engine)), _killed(killed(self._engine))]


def _families() -> dict[str, GaugeMetricFamily]:
    labels = ["budget", "scope", "meter", "tenant"]
    text = "of an account, in dollars or in the meter's own unit."
    return {n: GaugeMetricFamily(f"llm_budget_{n}", f"{n.capitalize()} {text}", labels=labels) for n in NUMBERS}


def _unread(count: int | None = None) -> GaugeMetricFamily:
    return GaugeMetricFamily("llm_budget_unread", "Accounts that could not be read.", value=count)


def _holds(found: Holds | None) -> list[GaugeMetricFamily]:
    counts = GaugeMetricFamily("llm_budget_holds", "Holds that nobody has settled.", labels=["state"])
    oldest = GaugeMetricFamily("llm_budget_oldest_hold_seconds", "Age of the oldest open hold.")
    if found is not None:
        counts.add_metric(["open"], found.open)
        counts.add_metric(["expired"], found.expired)
        oldest.add_metric([], found.oldest_s)
    return [counts, oldest]


def _killed(found: Mapping[str, int] | None) -> GaugeMetricFamily:
    switches = GaugeMetricFamily("llm_budget_killed", "Kill switches that are on.", labels=["scope"])
    for scope, count in (found or {}).items():
        switches.add_metric([scope], count)
    return switches
