"""The rows of the ledger as JSON has them: dollars as exact texts, instants in UTC."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, Field

from llm_budget_hooks.models import instant
from llm_budget_hooks.models.trail import Event, Refusal, Run, RunStatus
from llm_budget_hooks.money import plain, to_decimal

if TYPE_CHECKING:
    from llm_budget_hooks.ledger import AnswerCost

Dollars = Annotated[str, Field(pattern=r"^-?[0-9]+(\.[0-9]+)?$", examples=["0.0031"], description="Exact dollars.")]
Number = Annotated[
    str | int | None, Field(description="Exact dollars as a text for the meter usd, a count else; null where unread.")
]


class RunRow(BaseModel):
    """One end of one hold: what a call cost, and what of it this row books."""

    id: str
    at: datetime
    status: RunStatus
    tenant: str
    user: str
    utterance: str
    feature: str
    step: str
    model: str
    served: str
    estimate: Dollars
    basis: str
    cost: Dollars
    booked: Dollars
    exact: bool
    flags: str
    input_tokens: int
    cached_input_tokens: int
    output_tokens: int
    reasoning_tokens: int

    @classmethod
    def of(cls, run: Run) -> RunRow:
        """The row of a run."""
        return cls(
            at=instant(run.at_ms),
            estimate=dollars(run.estimate_nusd),
            cost=dollars(run.cost_nusd),
            booked=dollars(run.booked_nusd),
            **_same(cls, run),
        )


class RefusalRow(BaseModel):
    """A call or an answer that was turned away, or `count` of them."""

    id: str
    at: datetime
    code: str
    stage: Literal["call", "start", "end"]
    budget: str
    scope: str
    meter: str
    failed: list[str]
    tenant: str
    user: str
    utterance: str
    feature: str
    step: str
    model: str
    limit: Number
    spent: Number
    reserved: Number
    requested: Number
    count: int

    @classmethod
    def of(cls, refusal: Refusal) -> RefusalRow:
        """The row of a refusal."""
        numbers = {
            name: _number(refusal.meter, getattr(refusal, name)) for name in ("limit", "spent", "reserved", "requested")
        }
        failed = [name for name in refusal.failed.split(",") if name]
        return cls(at=instant(refusal.at_ms), failed=failed, **numbers, **_same(cls, refusal, "failed", *numbers))

    def narrowed(self) -> RefusalRow:
        """The same without the figures of everybody together, for those who see one tenant."""
        if self.scope != "global":
            return self
        return self.model_copy(update={"limit": None, "spent": None, "reserved": None})


class EventRow(BaseModel):
    """Something that happened and is no call: the kill switch, an alert, a changed limit."""

    id: str
    at: datetime
    name: str
    tenant: str
    user: str
    feature: str
    utterance: str
    by: str
    text: str

    @classmethod
    def of(cls, event: Event) -> EventRow:
        """The row of an event."""
        return cls(at=instant(event.at_ms), **_same(cls, event))


class AnswerRow(BaseModel):
    """One answer and its fan-out, the runs in the order in which they were booked."""

    tenant: str
    user: str
    utterance: str
    feature: str
    began_at: datetime
    ended_at: datetime
    cost: Dollars
    calls: int
    refusals: int
    runs: list[RunRow]

    @classmethod
    def of(cls, answer: AnswerCost) -> AnswerRow:
        """The row of an answer."""
        runs = [RunRow.of(run) for run in answer.runs]
        return cls(cost=plain(answer.cost), runs=runs, **_same(cls, answer, "cost", "runs"))


def dollars(nusd: int) -> str:
    """Nano-dollars as the text of exact dollars."""
    return plain(to_decimal(nusd))


def _number(meter: str, units: int | None) -> str | int | None:
    return dollars(units) if meter == "usd" and units is not None else units


def _same(made: type[BaseModel], row: object, *but: str) -> dict[str, object]:
    names = [name for name in made.model_fields if name not in but and hasattr(row, name)]
    return {name: getattr(row, name) for name in names}
