"""An administrator's correction of what is spent, as steps without I/O."""

from __future__ import annotations

import logging
from dataclasses import replace
from decimal import Decimal
from typing import Any, NamedTuple

from llm_budget_hooks.engine.operations import Operations
from llm_budget_hooks.engine.planning import Steps
from llm_budget_hooks.engine.trail import unique
from llm_budget_hooks.errors import ConfigurationError, StoreUnavailable
from llm_budget_hooks.keys import digest, hold_key, normalised, tenant_name
from llm_budget_hooks.models import Call
from llm_budget_hooks.models.calls import checked_text
from llm_budget_hooks.models.events import Event
from llm_budget_hooks.models.trail import adjustment_facts
from llm_budget_hooks.money import parse_correction, to_decimal
from llm_budget_hooks.transitions import Balance, Ended, Ending, Finish, Finished, Hold, Kind, Meter, Rule, Shape, State

_log = logging.getLogger("llm_budget_hooks")


class _Asked(NamedTuple):
    """Which correction is asked for, without its amount."""

    tenant: str | None
    user: str | None
    budget: str | None
    reason: str
    by: str
    id: str | None

    def place(self, rule: Rule) -> str:
        """What stands for this correction in one account, of whichever window; empty without an id."""
        if self.id is None:
            return ""
        whose = {"global": [], "tenant": [tenant_name(self.tenant)]}
        named = whose.get(rule.scope, [tenant_name(self.tenant), normalised(self.user)])
        return f"{digest('adjust', self.id, rule.budget, *named)} 1"

    def facts(self, nusd: int) -> str:
        """The row of the ledger, with what was booked."""
        whose = {"user": self.user, "budget": self.budget, "reason": self.reason, "by": self.by}
        return adjustment_facts(tenant=tenant_name(self.tenant), booked_nusd=nusd, **whose)


class Corrections(Operations):
    """What an administrator adds to what is spent, or takes back."""

    def _adjust(self, asked: _Asked, nusd: int) -> Steps[Decimal]:
        tenant, user, budget = asked.tenant, asked.user, asked.budget
        answer, command, lines = yield from self._read(lambda now: self._planner.read(tenant, user, now))
        chosen = [at for at, line in enumerate(lines) if _counts(line) and budget in (None, line.budget.name)]
        if budget is not None and not chosen:
            names = ", ".join(repr(line.budget.name) for line in lines if _counts(line)) or "none"
            raise ConfigurationError(f"no budget {budget!r} counts money in a window here; those that do: {names}")
        rules = command.shape.rules
        changes = [(at, made) for at in chosen if (made := _change(rules[at], answer.accounts[at], nusd)) is not None]
        amounts = []
        for at, (change, start_ms, at_ms) in changes:
            hold = Hold(
                "", State.RELEASED if change > 0 else State.CHARGED, at_ms or answer.now_ms, answer.now_ms, 0,
                Shape((rules[at],)), (command.keys[at],), command.scopes, (max(-change, 0),), (start_ms,),
            )  # fmt: skip
            if (yield from self._correct(hold, max(change, 0), asked, asked.place(rules[at]))):
                amounts.append(change)
        booked = max(amounts, key=abs, default=0)
        if booked or asked.id is None:
            yield from self._told_of_correction(asked, booked)
        elif changes and nusd > 0:  # whoever booked it may have died before the row was written; it is the same row
            yield from self._post("adjust", asked.facts(nusd), asked.id, change=True)
        return to_decimal(booked)

    def _correct(self, hold: Hold, cost_nusd: int, asked: _Asked, place: str) -> Steps[bool]:
        """Book one account's correction as the end of a hold that nobody took; kept for later without a store.

        Returns:
            False if it was booked before.
        """
        terms = replace(self._planner.terms, outbox_max=0)
        shape, keys = hold.shape, hold.keys  # a store in memory ends this very hold
        command = Finish(
            hold_key(f"adjust-{unique()}"), Ending.SETTLE, terms, cost_nusd, 0, True, hold, now_ms=self._given_ms(),
            place=place,
        )  # fmt: skip
        try:
            answer: Finished = yield command
        except StoreUnavailable as error:
            self._pending.append(command)
            _log.warning("A correction is kept until the store answers again: %s", error)
            return True
        whose = Call(model="*", tenant=asked.tenant, user=asked.user, amount=0)
        yield from self._alert(shape, keys, answer.spent, whose, answer.now_ms)
        return answer.ended != Ended.ALREADY_SETTLED

    def _told_of_correction(self, asked: _Asked, nusd: int) -> Steps[None]:
        event = Event(
            "adjusted", self.now_ms(), tenant=asked.tenant, user=asked.user, budget=asked.budget, cost_nusd=nusd,
            by=asked.by or None, reason=asked.reason or None,
        )  # fmt: skip
        self._trail.tell(event)
        yield from self._post("adjust", asked.facts(nusd), asked.id, change=True)

    def adjust(
        self,
        *,
        tenant: str | None = None,
        user: str | None = None,
        budget: str | None = None,
        cost: Decimal | int | str,
        reason: str,
        by: str = "",
        id: str | None = None,
    ) -> Decimal:
        """Correct what is spent in the windows of now, in every budget of money that is about these, or in one.

        It can pass a limit, and takes an account to 0 at the least. It is a row of the ledger, and changes none of
        those that are there. A ``fixed`` window that nothing has begun stays so.

        Args:
            tenant: None: only the budgets of scope ``global``.
            user: None: without the budgets of scope ``user``.
            budget: only the budget of this name.
            cost: dollars to add, such as ``"0.40"``, or to take back, such as ``"-0.40"``.
            reason, by: why, and who says so.
            id: names this correction, so that it is booked once, however often and from wherever it is asked for. The
                store knows it for 40 days, the ledger for ever. None: it is booked each time.

        Returns:
            what was booked, in dollars: where less is spent, less is taken back; 0 if it was booked before.

        Raises:
            ConfigurationError: an amount that cannot be, or no such budget; nothing is changed.
            StoreUnavailable: the store did not answer; nothing is changed.
        """
        asked = _Asked(tenant, user, budget, reason, by, id)
        return self.run(self._adjust(asked, _checked(cost, tenant, user, id)))

    async def aadjust(
        self,
        *,
        tenant: str | None = None,
        user: str | None = None,
        budget: str | None = None,
        cost: Decimal | int | str,
        reason: str,
        by: str = "",
        id: str | None = None,
    ) -> Decimal:
        """Same as `adjust`, awaited."""
        asked = _Asked(tenant, user, budget, reason, by, id)
        return await self.arun(self._adjust(asked, _checked(cost, tenant, user, id)))


def _checked(cost: object, tenant: str | None, user: str | None, id: object) -> int:
    if id is not None and (not isinstance(id, str) or not id.strip()):
        raise ConfigurationError(f"adjust.id is text that names this correction, not {id!r:.60}")
    checked_text("adjust", "tenant", tenant)
    checked_text("adjust", "user", user)
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
