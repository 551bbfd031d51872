"""What an operator changes at run time, for all processes at once: the kill switch and overrides of limits."""

from __future__ import annotations

import logging
from datetime import datetime
from decimal import Decimal
from typing import Any

from llm_budget_hooks.engine import settings
from llm_budget_hooks.engine.corrections import Corrections
from llm_budget_hooks.engine.planning import Steps
from llm_budget_hooks.engine.settings import Killed, Override, Role
from llm_budget_hooks.errors import ConfigurationError
from llm_budget_hooks.keys import tenant_name
from llm_budget_hooks.models import Budget
from llm_budget_hooks.models.calls import checked_text
from llm_budget_hooks.models.events import Event, EventKind
from llm_budget_hooks.models.results import LAST_MS
from llm_budget_hooks.models.trail import event_facts, override_facts

_log = logging.getLogger("llm_budget_hooks")


class Administration(Corrections):
    """The operations of an operator, as steps without I/O."""

    def _kill(self, tenant: str | None, reason: str, by: str, role: Role) -> Steps[bool]:
        name = _switch_of("kill", tenant, role, reason=reason, by=by)
        engaged = yield from self._change(lambda now, at_ms: settings.kill(now, name, reason, by, role, at_ms))
        if engaged:
            _log.warning("The kill switch is on for %s.", "one tenant" if name else "everybody")
            yield from self._noted("killed", name, by, reason)
        return engaged

    def _revive(self, tenant: str | None, by: str, role: Role) -> Steps[bool]:
        name = _switch_of("revive", tenant, role, by=by)
        revived = yield from self._change(lambda now, _: settings.revive(now, name, role))
        if revived:
            yield from self._noted("revived", name, by)
        return revived

    def _noted(self, kind: EventKind, tenant: str, by: str, reason: str = "") -> Steps[None]:
        """Tell observers and the ledger of a change that was made."""
        event = Event(kind, self.now_ms(), tenant=tenant or None, by=by or None, reason=reason or None)
        self._trail.tell(event)
        yield from self._post("event", event_facts(kind, tenant=tenant, by=by, text=reason), change=True)

    def _report_injection(self, tenant: str) -> Steps[bool]:
        checked_text("report_injection", "tenant", tenant)
        name, engaged = tenant_name(tenant), False

        def noted(now: settings.LiveSettings, at_ms: int) -> settings.Changes:
            nonlocal engaged
            changes, engaged = settings.report_injection(now, name, at_ms)
            return changes

        yield from self._change(noted)
        if engaged:
            _log.warning("auto_engaged: the kill switch is on for one tenant after reported injections.")
            yield from self._noted("auto_engaged", name, "", settings.INJECTED)
        return engaged

    def _override(
        self,
        budget: str,
        limit: Decimal | int | str | None,
        tenant: str | None,
        expires_at: datetime | None,
        by: str,
        reason: str,
        role: Role,
    ) -> Steps[bool]:
        _checked_texts("override", tenant=tenant, budget=budget, by=by, reason=reason)
        name = _whose(tenant)
        if limit is None and role == "operator":
            yield from self._refresh()
            known = self._settings.overrides.get(name, {})  # its budget may be another one by now, or none
        else:
            known = {}
        found = self._budgets(tenant).get(budget) if budget in known else self._overridable(budget, tenant, role)
        units = None if limit is None or found is None else _units(found, limit)
        until_ms = 0 if expires_at is None else _until(expires_at, self.now_ms())
        subject = "" if found is None else found.subject
        changed = yield from self._change(
            lambda now, at_ms: settings.override(now, name, budget, subject, units, until_ms, by, reason, at_ms)
        )
        if changed:
            event = Event(
                "override", self.now_ms(), tenant=name or None, budget=budget, scope=found.scope if found else None,
                meter=found.meter if found else None, limit=units, by=by or None, reason=reason or None,
            )  # fmt: skip
            self._trail.tell(event)
            written = "" if limit is None else str(limit)
            facts = {"limit": written, "expires_ms": until_ms or None, "by": by, "reason": reason}
            yield from self._post("override", override_facts(tenant=name, budget=budget, **facts), change=True)
        return changed

    def _budgets(self, tenant: str | None) -> dict[str, Budget]:
        return {b.name: b for b in self.policy.budgets_of(_whose(tenant), switched_off=True)}

    def _overridable(self, budget: str, tenant: str | None, role: str) -> Budget:
        budgets = self._budgets(tenant)
        found = budgets.get(budget)
        if found is None:
            raise ConfigurationError(f"there is no budget {budget!r}; there are {', '.join(map(repr, budgets))}")
        if found.scope == "global" and tenant is not None:
            raise ConfigurationError(f"budget {budget!r} is global; leave out the tenant")
        if found.scope != "global" and tenant is None:
            raise ConfigurationError(f"budget {budget!r} is about single tenants; name the tenant")
        if role != "operator" and (found.managed or found.scope == "global"):
            raise ConfigurationError(f"budget {budget!r} is managed: only an operator may change it")
        return found

    def _forget(self, step: str, by: str) -> Steps[None]:
        if not isinstance(step, str):
            raise ConfigurationError(f"forget.step is text, not {step!r:.60}")
        checked_text("forget", "by", by)
        yield from self._change(lambda now, at_ms: settings.forget(now, step, at_ms))
        yield from self._noted("forgotten", "", by, f"The history of step {step} begins anew.")

    def _overrides(self) -> Steps[list[Override]]:
        yield from self._refresh()
        now = self.now_ms()
        found = [one for of_tenant in self._settings.overrides.values() for one in of_tenant.values()]
        return [one for one in found if not 0 < one.until_ms <= now]

    def _kills(self) -> Steps[list[Killed]]:
        yield from self._refresh()
        return list(self._settings.kills.values())

    def kill(self, tenant: str | None = None, *, reason: str = "", by: str = "", role: Role = "operator") -> bool:
        """Refuse every call of a tenant from the next reserve on, in every process.

        Args:
            tenant: None: of everybody.
            reason, by: why, and who says so.
            role: what an ``operator`` has stopped, an ``admin`` of the tenant may not `revive`, and nobody but an
                operator stops everybody.

        Returns:
            False if the switch was on already.

        Raises:
            StoreUnavailable: the store did not answer; nothing is changed.
        """
        return self.run(self._kill(tenant, reason, by, role))

    async def akill(
        self, tenant: str | None = None, *, reason: str = "", by: str = "", role: Role = "operator"
    ) -> bool:
        """Same as `kill`, awaited."""
        return await self.arun(self._kill(tenant, reason, by, role))

    def revive(self, tenant: str | None = None, *, by: str = "", role: Role = "operator") -> bool:
        """Let a tenant's calls in again; without a tenant, take the switch for everybody back.

        Args:
            tenant: whose.
            by: who says so.
            role: an ``admin`` of the tenant may not take back what an operator has engaged.

        Returns:
            False if the switch was not on.

        Raises:
            ConfigurationError: the role may not take it back; that of everybody is an operator's.
            StoreUnavailable: the store did not answer; nothing is changed.
        """
        return self.run(self._revive(tenant, by, role))

    async def arevive(self, tenant: str | None = None, *, by: str = "", role: Role = "operator") -> bool:
        """Same as `revive`, awaited."""
        return await self.arun(self._revive(tenant, by, role))

    def forget(self, step: str, *, by: str = "") -> None:
        """Let the history of a step begin anew: its runs until now no longer count, for any tenant and feature.

        For a step whose prompt or model has changed. Other processes hear of it with their next reserve.

        Args:
            step: the step's name, or the model's where calls name no step.
            by: who says so.

        Raises:
            StoreUnavailable: the store did not answer; nothing is changed.
        """
        self.run(self._forget(step, by))

    async def aforget(self, step: str, *, by: str = "") -> None:
        """Same as `forget`, awaited."""
        await self.arun(self._forget(step, by))

    def report_injection(self, tenant: str) -> bool:
        """Note an attempt to inject a prompt; the third within 5 minutes engages the tenant's kill switch.

        Returns:
            True if this report engaged it, which happens once, however many processes report.
        """
        return self.run(self._report_injection(tenant))

    async def areport_injection(self, tenant: str) -> bool:
        """Same as `report_injection`, awaited."""
        return await self.arun(self._report_injection(tenant))

    def override(
        self,
        budget: str,
        limit: Decimal | int | str | None,
        *,
        tenant: str | None = None,
        expires_at: datetime | None = None,
        by: str = "",
        reason: str = "",
        role: Role = "operator",
    ) -> bool:
        """Change a limit for one tenant, from the next reserve on, in every process.

        Raising it lets the next call pass; lowering it below what is spent refuses, and takes nothing back.

        Args:
            budget: the budget's name.
            limit: the new one, as in a policy; 0 switches the budget off; None takes the override back.
            tenant: whose; None for a budget of scope ``global``.
            expires_at: when the policy's own limit holds again; None: never.
            by, reason: who changes it and why.
            role: an ``admin`` of the tenant may not change budgets that the policy marks ``managed``.

        Returns:
            whether anything was changed.

        Raises:
            ConfigurationError: there is no such budget, the limit is none, or the role may not change it.
            StoreUnavailable: the store did not answer; nothing is changed.
        """
        return self.run(self._override(budget, limit, tenant, expires_at, by, reason, role))

    async def aoverride(
        self,
        budget: str,
        limit: Decimal | int | str | None,
        *,
        tenant: str | None = None,
        expires_at: datetime | None = None,
        by: str = "",
        reason: str = "",
        role: Role = "operator",
    ) -> bool:
        """Same as `override`, awaited."""
        return await self.arun(self._override(budget, limit, tenant, expires_at, by, reason, role))

    def overrides(self) -> list[Override]:
        """The overrides of limits that have not ended. One whose stored limit is no limit has None, and is ignored."""
        return self.run(self._overrides())

    async def aoverrides(self) -> list[Override]:
        """Same as `overrides`, awaited."""
        return await self.arun(self._overrides())

    def kills(self) -> list[Killed]:
        """The kill switches that are on."""
        return self.run(self._kills())

    async def akills(self) -> list[Killed]:
        """Same as `kills`, awaited."""
        return await self.arun(self._kills())


def _checked_texts(owner: str, **texts: object) -> None:
    for name, value in texts.items():
        checked_text(owner, name, value)


def _switch_of(owner: str, tenant: str | None, role: Role, **texts: object) -> str:
    """Whose kill switch is meant: a tenant's name, empty for everybody."""
    _checked_texts(owner, tenant=tenant, **texts)
    if tenant is None and role != "operator":
        raise ConfigurationError(f"{owner}: the switch for everybody is an operator's; name the tenant")
    return _whose(tenant)


def _whose(tenant: str | None) -> str:
    return "" if tenant is None else tenant_name(tenant)


def _units(budget: Budget, limit: Decimal | int | str) -> int:
    facts: dict[str, Any] = {"scope": budget.scope, "meter": budget.meter, "window": budget.window, "name": budget.name}
    return Budget(limit=limit, **facts).limit_units


def _until(expires_at: datetime, now_ms: int) -> int:
    if not isinstance(expires_at, datetime):
        raise ConfigurationError(f"override.expires_at is an aware datetime, not {expires_at!r:.60}")
    if expires_at.tzinfo is None:
        raise ConfigurationError("expires_at has no time zone; use an aware datetime")
    until_ms = round(expires_at.timestamp() * 1000)
    if until_ms <= now_ms:
        raise ConfigurationError("expires_at is in the past; to take an override back, set limit=None")
    if until_ms > LAST_MS:
        raise ConfigurationError("expires_at is beyond the year 9999; for an override without an end leave it out")
    return until_ms
