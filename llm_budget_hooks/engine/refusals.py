"""From the rules that said no to an error with its numbers and its two messages. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Literal, get_args
from zoneinfo import ZoneInfo

from llm_budget_hooks.engine.settings import Killed
from llm_budget_hooks.errors import BudgetExceeded, Code
from llm_budget_hooks.keys import DEFAULT_TENANT, normalised
from llm_budget_hooks.models import Call, Policy, instant
from llm_budget_hooks.money import format_usd, to_decimal
from llm_budget_hooks.transitions import Failure, Meter, Rule
from llm_budget_hooks.windows import Window

_CODES: dict[int, Code] = {
    Meter.USD: "spend",
    Meter.TOKENS: "tokens",
    Meter.CALLS: "calls",
    Meter.UTTERANCES: "utterances",
    Meter.IN_FLIGHT: "in_flight",
}
_NOUNS = {
    Meter.USD: "limit",
    Meter.TOKENS: "token limit",
    Meter.CALLS: "call limit",
    Meter.UTTERANCES: "request limit",
    Meter.IN_FLIGHT: "limit of calls in flight",
}
_MAX_SHOWN = 64
Stage = Literal["call", "start", "end"]
assert set(_CODES.values()) <= set(get_args(Code))  # noqa: S101 - a wrong word here is a bug of this file


def refusal(
    call: Call,
    policy: Policy,
    rules: tuple[Rule, ...],
    failures: tuple[Failure, ...],
    windows: dict[str, Window | None],
    now_ms: int,
    stage: Stage = "call",
) -> BudgetExceeded:
    """The refusal that names the first rule that said no and lists all that did.

    Args:
        call: what was asked.
        policy: for its time zone.
        rules: of the call's shape.
        failures: of those rules, in order.
        windows: the window of each budget by name.
        now_ms: the store's time.
        stage: when it was refused.
    """
    first = failures[0]
    rule = rules[first.index]
    window = windows[rule.budget]
    resets = instant(first.resets_ms) if first.resets_ms else None
    busy = all(failure.busy for failure in failures)
    retries = [failure.retry_ms for failure in failures]
    amounts = _amounts(rule, first)
    return BudgetExceeded(
        _message(call, policy, rule, first, window, busy),
        code="answer_estimate" if rule.scope == "answer" and rule.meter == Meter.USD else _CODES[rule.meter],
        budget=rule.budget,
        scope=rule.scope,
        failed=tuple(rules[failure.index].budget for failure in failures),
        stage=stage,
        busy=busy,
        resets_at=resets,
        retry_after=max(max(retries) - now_ms, 0) / 1000 if all(retries) else None,
        public_message=public_message(rule, window, busy, resets, policy, now_ms, bool(first.retry_ms)),
        **amounts,
    )


def killed(switch: Killed, tenant: str | None) -> BudgetExceeded:
    """The refusal of a call whose tenant, or everybody, was stopped."""
    name = _shown(tenant, DEFAULT_TENANT)
    whom = f"tenant {name}" if switch.tenant else "everybody"
    taken_back = f"engine.revive(tenant={name!r})" if switch.tenant else "engine.revive()"
    why = f": {_clean(switch.reason)}" if switch.reason else ""
    return BudgetExceeded(
        f"The kill switch is on for {whom} since {instant(switch.at_ms):%Y-%m-%d %H:%M:%S} UTC{why}. "
        f"Nothing is held; {taken_back} ends it.",
        code="killed",
        scope="tenant" if switch.tenant else "global",
        public_message="This service is switched off at the moment.",
    )


def answer_estimate(budget: str, limit: int, estimate: int) -> BudgetExceeded:
    """The refusal of an answer before it begins: its steps are expected to cost more than its ceiling."""
    return BudgetExceeded(
        f"This answer would cost about {format_usd(estimate)}, above its ceiling of {format_usd(limit)}. "
        "Ask more narrowly, or plan fewer steps.",
        code="answer_estimate",
        budget=budget,
        scope="answer",
        limit=to_decimal(limit),
        spent=Decimal(0),
        reserved=Decimal(0),
        requested=to_decimal(estimate),
        available=to_decimal(limit),
        failed=(budget,),
        stage="start",
        public_message="This question is too expensive to answer. Ask more narrowly.",
    )


def answer_refusal(budget: str, limit: int, spent: int, reserved: int, output: Any) -> BudgetExceeded:
    """The refusal of an answer at its end: it cost more than its ceiling."""
    return BudgetExceeded(
        f"This answer cost {format_usd(spent + reserved)}, above its ceiling of {format_usd(limit)}. "
        "It was paid for, and is attached as output.",
        code="answer_actual",
        budget=budget,
        scope="answer",
        limit=to_decimal(limit),
        spent=to_decimal(spent),
        reserved=to_decimal(reserved),
        requested=Decimal(0),
        available=Decimal(0),
        failed=(budget,),
        stage="end",
        public_message="This question is too expensive to answer. Ask more narrowly.",
        output=output,
    )


def _amounts(rule: Rule, failure: Failure) -> dict[str, Any]:
    numbers = {
        "limit": rule.limit,
        "spent": failure.spent,
        "reserved": failure.reserved,
        "requested": failure.requested,
        "available": max(rule.limit - failure.spent - failure.reserved, 0),
    }
    return {name: in_units(rule.meter, number) for name, number in numbers.items()}


def in_units(meter: int, amount: int) -> Decimal | int:
    """An account's number as people see it: dollars for ``usd``, else itself."""
    return to_decimal(amount) if meter == Meter.USD else amount


def _message(call: Call, policy: Policy, rule: Rule, failure: Failure, window: Window | None, busy: bool) -> str:
    show = format_usd if rule.meter == Meter.USD else str
    what = f"{window.adjective} {_NOUNS[Meter(rule.meter)]}" if window else _NOUNS[Meter(rule.meter)].capitalize()
    whom = {
        "global": "all tenants",
        "tenant": f"tenant {_shown(call.tenant, DEFAULT_TENANT)}",
        "user": f"user {_shown(call.user, 'anonymous')}",
        "answer": "one answer",
    }[rule.scope]
    state = f"{show(failure.spent)} spent"
    if failure.reserved:
        state += f", {show(failure.reserved)} held"
    if rule.meter in (Meter.USD, Meter.TOKENS) and (rule.scope == "answer" or failure.requested > rule.limit):
        state += f", this call asks for {show(failure.requested)}"
    return f"{what} of {show(rule.limit)} for {whom} reached ({state}). {_when(policy, failure, rule, busy)}"


def _when(policy: Policy, failure: Failure, rule: Rule, busy: bool) -> str:
    if not failure.retry_ms:
        if failure.requested > rule.limit:
            return "No call of this size ever fits: make it smaller or raise the limit."
        return "Ask more narrowly." if rule.scope == "answer" else "Raise the limit to let it in."
    at = instant(failure.retry_ms).astimezone(ZoneInfo(policy.timezone))
    shown = at.strftime("%Y-%m-%d %H:%M" if at.second == 0 and at.microsecond == 0 else "%Y-%m-%d %H:%M:%S")
    if busy:
        return f"Calls under way are in the way; they end by {shown} {policy.timezone}."
    return f"Next at {shown} {policy.timezone}."


def public_message(
    rule: Rule, window: Window | None, busy: bool, resets: datetime | None, policy: Policy, now_ms: int, ever: bool
) -> str:
    """A text for the end user, with no figure and no name."""
    if rule.scope == "answer":
        return "This question is too expensive to answer. Ask more narrowly."
    if busy:
        return "Too much is going on at once. Try again in a moment."
    if not ever:
        return "This request is too large. Ask more narrowly."
    name = "Limit" if window is None or window.kind != "calendar" else f"{window.adjective} limit"
    if rule.meter in (Meter.CALLS, Meter.UTTERANCES) and window is not None and window.length_ms <= 3_600_000:
        return "Too many requests. Try again in a moment."
    return f"{name} reached. {_again(resets, policy, now_ms)}"


def _again(resets: datetime | None, policy: Policy, now_ms: int) -> str:
    if resets is None:
        return "Try again later."
    zone = ZoneInfo(policy.timezone)
    days = (resets.astimezone(zone).date() - instant(now_ms).astimezone(zone).date()) / timedelta(days=1)
    if days == 0:
        return "Try again later."
    if days == 1:
        return "Try again tomorrow."
    return f"Try again on {resets.astimezone(zone):%Y-%m-%d}."


def _shown(text: str | None, otherwise: str) -> str:
    """An id for a message: printable and short, so that it can forge no line of a log."""
    return _clean(normalised(text) or otherwise)


def _clean(text: str) -> str:
    clean = "".join(letter if letter.isprintable() else "?" for letter in text[: _MAX_SHOWN + 1])
    return clean if len(clean) <= _MAX_SHOWN else clean[:_MAX_SHOWN] + "..."
