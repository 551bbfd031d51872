"""Budgets in sentences, for people who read a policy before it is in force."""

from __future__ import annotations

from llm_budget_hooks.models import Budget
from llm_budget_hooks.money import format_usd
from llm_budget_hooks.windows import Window

_WHO = {
    "global": "everybody together",
    "tenant": "each tenant",
    "user": "each user of a tenant",
    "answer": "one answer",
}
_WHAT = {
    "tokens": "may use {} tokens, input and output together",
    "calls": "may make {} model calls",
    "utterances": "may make {} requests",
    "in_flight": "may have {} model calls open at once",
}
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def sentence(budget: Budget, zone: str, tenant: str | None = None) -> str:
    """What a budget says, in a sentence.

    Args:
        budget: the rule.
        zone: the policy's time zone, for calendar windows.
        tenant: whose own rule it is; None: everybody's.
    """
    who = _WHO[budget.scope] if tenant is None else _of_tenant(budget, tenant)
    if not budget.limit_units:
        return f"{who[0].upper()}{who[1:]}: switched off, a limit of 0 asks nobody."
    text = f"{who} {_what(budget)}{_when(budget, zone)}{_where(budget)}"
    return f"{text[0].upper()}{text[1:]}.{_besides(budget)}"


def _of_tenant(budget: Budget, tenant: str) -> str:
    return {"tenant": f"tenant {tenant}", "user": f"each user of tenant {tenant}"}.get(
        budget.scope, f"one answer of tenant {tenant}"
    )


def _what(budget: Budget) -> str:
    if budget.meter == "usd":
        verb = "may cost" if budget.scope == "answer" else "may spend"
        return f"{verb} {format_usd(budget.limit_units)}"
    return _WHAT[budget.meter].format(f"{budget.limit_units:,}")


def _when(budget: Budget, zone: str) -> str:
    window = Window.parse(budget.window, zone)
    if window is None:
        return ""
    if window.kind == "calendar":
        return f" in each {budget.window} ({zone})"
    length = _length(budget.window or "")
    return f" in any {length}" if window.kind == "rolling" else f" in the {length} that begin with the first use"


def _length(spec: str) -> str:
    count, unit = spec.partition(":")[2][:-1], spec[-1]
    return f"{count} {_UNITS[unit]}"


def _where(budget: Budget) -> str:
    features = f", in the feature{'s' * (len(budget.features) > 1)} {' and '.join(budget.features)}"
    models = f", with models like {' or '.join(budget.models)}"
    return features * bool(budget.features) + models * bool(budget.models)


def _besides(budget: Budget) -> str:
    entry = " A request counts when it begins, even if no model runs."
    fan_out = " However many model calls a request takes, it counts once."
    managed = " Only an operator may change it."
    return fan_out * (budget.meter == "utterances") + entry * (budget.count == "entry") + managed * budget.managed
