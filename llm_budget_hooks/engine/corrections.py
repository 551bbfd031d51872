"""An administrator's correction of what is spent, as steps without I/O."""

from __future__ import annotations

import logging
from dataclasses import replace
from decimal import Decimal
from typing import Any

from llm_budget_hooks.engine.operations import Operations
from llm_budget_hooks.engine.planning import Steps
from llm_budget_hooks.engine.trail import unique
from llm_budget_hooks.errors import ConfigurationError, StoreUnavailable
from llm_budget_hooks.keys import hold_key, tenant_name
from llm_budget_hooks.models.events import Event
from llm_budget_hooks.models.trail import adjustment_facts
from llm_budget_hooks.money import parse_correction
from llm_budget_hooks.transitions import Balance, Ending, Finish, Hold, Kind, Meter, Rule, Shape, State

_log = logging.getLogger("llm_budget_hooks")


class Corrections(Operations):
    """What an administrator adds to what is spent, or takes back."""

    def _adjust(
        self, tenant: str | None, user: str | None, budget: str | None, cost: object, reason: str, by: str
    ) -> Steps[None]:
        nusd = _checked(cost, tenant, user)
        answer, command, lines = yield from self._read(lambda now: self._planner.read(tenant, user, now))
        chosen = [at for at, line in enumerate(lines) if _counts(line) and budget in (None, line.budget.name)]
        if budget is not None and not chosen:
            names = ", ".join(repr(line.budget.name) for line in lines if _counts(line)) or "none"
            raise ConfigurationError(f"no budget {budget!r} counts money in a window here; those that do: {names}")
        rules = command.shape.rules
        changes = [(at, made) for at in chosen if (made := _change(rules[at], answer.accounts[at], nusd)) is not None]
        for at, (change, start_ms, at_ms) in changes:
            hold = Hold(
                "", State.RELEASED if change > 0 else State.CHARGED, at_ms or answer.now_ms, answer.now_ms, 0,
                Shape((rules[at],)), (command.keys[at],), command.scopes, (max(-change, 0),), (start_ms,),
            )  # fmt: skip
            yield from self._correct(hold, max(change, 0))
        amounts = [change for _, (change, _, _) in changes]
        booked = (min(amounts) if nusd < 0 else max(amounts)) if amounts else 0
        yield from self._told_of_correction(tenant, user, budget, booked, reason, by)

    def _correct(self, hold: Hold, cost_nusd: int) -> Steps[None]:
        """Book one account's correction as the end of a hold that nobody took; kept for later without a store."""
        terms = replace(self._planner.terms, outbox_max=0)
        command = Finish(
            hold_key(f"adjust-{unique()}"), Ending.SETTLE, terms, cost_nusd, 0, True, hold, now_ms=self._given_ms()
        )
        try:
            yield command
        except StoreUnavailable as error:
            self._pending.append(command)
            _log.warning("A correction is kept until the store answers again: %s", error)

    def _told_of_correction(
        self, tenant: str | None, user: str | None, budget: str | None, nusd: int, reason: str, by: str
    ) -> Steps[None]:
        name = tenant_name(tenant)
        event = Event(
            "adjusted", self.now_ms(), tenant=tenant, user=user, budget=budget, cost_nusd=nusd, by=by or None,
            reason=reason or None,
        )  # fmt: skip
        self._trail.tell(event)
        more = {"user": user, "budget": budget, "reason": reason, "by": by}
        yield from self._post("adjust", adjustment_facts(tenant=name, booked_nusd=nusd, **more))

    def adjust(
        self,
        *,
        tenant: str | None = None,
        user: str | None = None,
        budget: str | None = None,
        cost: Decimal | int | str,
        reason: str,
        by: str = "",
    ) -> None:
        """Correct what is spent in the windows of now, in every budget of money that is about these, or in one.

        It can pass a limit, and takes an account to 0 at the least. It is a row of the ledger, and changes none of
        those that are there. A ``fixed`` window that nothing has begun stays so.

        Args:
            tenant: None: only the budgets of scope ``global``.
            user: None: without the budgets of scope ``user``.
            budget: only the budget of this name.
            cost: dollars to add, such as ``"0.40"``, or to take back, such as ``"-0.40"``.
            reason, by: why, and who says so.

        Raises:
            ConfigurationError: an amount that cannot be, or no such budget; nothing is changed.
            StoreUnavailable: the store did not answer; nothing is changed.
        """
        self.run(self._adjust(tenant, user, budget, cost, reason, by))

    async def aadjust(
        self,
        *,
        tenant: str | None = None,
        user: str | None = None,
        budget: str | None = None,
        cost: Decimal | int | str,
        reason: str,
        by: str = "",
    ) -> None:
        """Same as `adjust`, awaited."""
        await self.arun(self._adjust(tenant, user, budget, cost, reason, by))


def _checked(cost: object, tenant: str | None, user: str | None) -> int:
    if user is not None and tenant is None:
        raise ConfigurationError("adjust: a user is one of a tenant; name the tenant too")
    try:
        return parse_correction(cost)
    except ValueError as error:
        raise ConfigurationError(f"adjust.cost: {error}") from None


def _counts(line: Any) -> bool:
    return line.meter == Meter.USD and line.window is not None


def _change(rule: Rule, account: Balance, nusd: int) -> tuple[int, int, int] | None:
    """What an account takes of a correction, the start of its window, and the instant to book it at (0: now).

    Money that is taken back from a rolling window leaves it with the oldest that is in it, so that the sum over
    what is left never errs towards letting through.
    """
    change = max(nusd, -account.spent)
    if not change or (rule.kind == Kind.FIXED and not account.resets_ms):
        return None
    start_ms = account.resets_ms - rule.length_ms if rule.kind == Kind.FIXED else 0
    at_ms = account.resets_ms - rule.length_ms if rule.kind == Kind.ROLLING and change < 0 else 0
    return change, start_ms, at_ms
