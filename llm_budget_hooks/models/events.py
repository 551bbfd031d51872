"""What an engine tells its observers: `Event`, one thing that happened, and `Observer`, who is told."""

from __future__ import annotations

from decimal import Decimal
from typing import Literal, NamedTuple, Protocol

from llm_budget_hooks.money import to_decimal

EventKind = Literal[
    "reserved",
    "refused",
    "settled",
    "late",
    "released",
    "degraded",
    "restored",
    "alert",
    "warned",
    "killed",
    "revived",
    "auto_engaged",
    "override",
    "adjusted",
    "forgotten",
]


class Event(NamedTuple):
    """One thing that happened, in numbers; what does not apply is None.

    It is made in the way of calls, and a named tuple takes a quarter of the time that a frozen dataclass takes.

    Attributes:
        kind: what happened. ``late`` is a final settle after a provisional end; ``degraded``
            and ``restored`` the store going away and coming back; ``alert`` a threshold that was reached; ``warned`` a
            call above a limit that only warns; ``auto_engaged`` a kill switch that engaged itself.
        at_ms: when, in milliseconds since the epoch, on the store's clock.
        id: of the hold.
        tenant, user: whose it is; the user is personal data, and no observer of this package shows it unless asked.
        feature, step, utterance: as in the call.
        model: what was asked for.
        served: what served it, if that is another model.
        provider: LiteLLM's name of the provider.
        budget: the budget that said no, or that the event is about.
        scope, meter: that budget's.
        code: of a refusal, as `BudgetExceeded.code`.
        stage: of a refusal, as `BudgetExceeded.stage`.
        busy: of a refusal, as `BudgetExceeded.busy`.
        times: how many such events this one stands for, where more were counted than told.
        limit, spent, reserved, requested: the account's, in nano-dollars or in the meter's own unit.
        threshold: of an alert, as a share of the limit.
        estimate_nusd: what the call was expected to cost.
        cost_nusd: what it cost, as far as is known.
        booked_nusd: what of that was not told before: what an outcome that came late, or a release, adds to the cost
            of an earlier event about the same hold, or takes from it.
        basis: where the estimate came from.
        exact: False if the cost is a guess.
        input_tokens, cached_input_tokens, output_tokens, reasoning_tokens: what was used.
        latency_s: how long the last trip to the store took that it tells of.
        held_s: how old the hold was when it ended.
        by, reason: who changed something, and why.
    """

    kind: EventKind
    at_ms: int
    id: str | None = None
    tenant: str | None = None
    user: str | None = None
    feature: str | None = None
    step: str | None = None
    utterance: str | None = None
    model: str | None = None
    served: str | None = None
    provider: str | None = None
    budget: str | None = None
    scope: str | None = None
    meter: str | None = None
    code: str | None = None
    stage: str | None = None
    busy: bool | None = None
    times: int = 1
    limit: int | None = None
    spent: int | None = None
    reserved: int | None = None
    requested: int | None = None
    threshold: float | None = None
    estimate_nusd: int | None = None
    cost_nusd: int | None = None
    booked_nusd: int | None = None
    basis: str | None = None
    exact: bool | None = None
    input_tokens: int | None = None
    cached_input_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    latency_s: float | None = None
    held_s: float | None = None
    by: str | None = None
    reason: str | None = None

    @property
    def cost(self) -> Decimal | None:
        """What it cost, in dollars; None if it is not the end of a hold."""
        return None if self.cost_nusd is None else to_decimal(self.cost_nusd)

    @property
    def estimate(self) -> Decimal | None:
        """What the call was expected to cost, in dollars; None if it is not about a call."""
        return None if self.estimate_nusd is None else to_decimal(self.estimate_nusd)


class Observer(Protocol):
    """Is told of events, one after the other, by whichever thread or task they happen in.

    It must be quick and must not call the engine; what it raises is logged and changes nothing.
    """

    def __call__(self, event: Event) -> None:
        """Take note of one event."""
