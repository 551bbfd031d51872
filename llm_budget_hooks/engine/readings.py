"""What an engine reads without taking anything."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, cast

from llm_budget_hooks.engine.planning import REPLANS, Planning, Steps
from llm_budget_hooks.engine.refusals import in_units
from llm_budget_hooks.engine.trail import note_of
from llm_budget_hooks.errors import (
    BudgetExceeded,
    StoreUnavailable,
)
from llm_budget_hooks.models import (
    BudgetStatus,
    Call,
    Orphan,
    Outcome,
    instant,
)
from llm_budget_hooks.models.calls import checked_text
from llm_budget_hooks.money import to_decimal
from llm_budget_hooks.transitions import (
    Balances,
    Hold,
    Meter,
    Mode,
    OrphanList,
    Orphans,
    Read,
    State,
    Verdict,
)

_log = logging.getLogger("llm_budget_hooks")


class Readings(Planning):
    """The readings of an engine, as steps without I/O."""

    def is_cheap(self, model: str) -> bool:
        """Whether a model is of the tier ``cheap``, which survives a soft cutoff."""
        return self._planner.is_cheap(model)

    def _check_balances(self, call: Call) -> Steps[Outcome]:
        """Would the balances let a call in?"""
        call, _ = self._joined(call)
        try:
            plan, answer = yield from self._planned(call, Mode.CHECK)
        except BudgetExceeded as error:
            return Outcome(False, error)
        estimate = to_decimal(plan.estimate_nusd)
        if answer.verdict == Verdict.ADMITTED:
            return Outcome(True, None, estimate)
        refused = yield from self._refused(call, plan, answer)
        return Outcome(False, cast("BudgetExceeded", refused), estimate)

    def _read(self, plan: Callable[[int], tuple[Read, Any]]) -> Steps[tuple[Balances, Read, Any]]:
        now = given = self._given_ms()
        if now is None:
            now = self._store.now_ms()
        for _ in range(REPLANS):
            command, lines = plan(now)
            command.now_ms = given
            answer: Balances = yield command
            if answer.verdict == Verdict.CLOCK:
                now = answer.now_ms
            elif answer.revision != self._planner.revision:
                yield from self._refresh()
            else:
                return answer, command, lines
        raise StoreUnavailable("The store's clock or its settings move faster than a reading can be planned.")

    def _status(self, tenant: str | None, user: str | None) -> Steps[list[BudgetStatus]]:
        checked_text("status", "tenant", tenant)
        checked_text("status", "user", user)
        if self._pending or self._outage.waiting:
            yield from self._resend_quietly()
        try:
            answer, _, lines = yield from self._read(lambda now: self._planner.read(tenant, user, now))
        except StoreUnavailable as error:
            self._away(error)
            _, lines = self._planner.read(tenant, user, self.now_ms())
            return [_unread(line.budget) for line in lines]
        if self._outage.active and not self._outage.unwritten:
            self._restored()
        return [_status(line, balance) for line, balance in zip(lines, answer.accounts, strict=True)]

    def _orphans(self) -> Steps[list[Orphan]]:
        answer: OrphanList = yield Orphans(self._planner.terms, now_ms=self._given_ms())
        return [_orphan(id, hold) for id, hold in answer.holds]


def money_of(hold: Hold) -> int | None:
    held = [held for rule, held in zip(hold.shape.rules, hold.held, strict=True) if rule.meter == Meter.USD]
    return max(held, default=None)


def _orphan(id: str, hold: Hold) -> Orphan:
    money = money_of(hold)
    return Orphan(
        id,
        "open" if hold.state == State.OPEN else "expired",
        note_of(hold.note).model,
        None if money is None else to_decimal(money),
        instant(hold.created_ms),
        instant(hold.deadline_ms),
    )


def _status(line: Any, balance: Any) -> BudgetStatus:
    budget = line.budget
    free = max(line.limit - balance.spent - balance.reserved, 0)
    spent, reserved, available = (in_units(line.meter, n) for n in (balance.spent, balance.reserved, free))
    resets = instant(balance.resets_ms) if balance.resets_ms else None
    return BudgetStatus(
        budget.name, budget.scope, budget.meter, budget.window, budget.limit, spent, reserved, available, resets
    )


def _unread(budget: Any) -> BudgetStatus:
    return BudgetStatus(budget.name, budget.scope, budget.meter, budget.window, budget.limit, None, None, None, None)
