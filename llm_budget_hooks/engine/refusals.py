"""From the rules that said no to an error with its numbers and its two messages. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any, Literal, get_args
from zoneinfo import ZoneInfo

from llm_budget_hooks.engine.settings import Killed
from llm_budget_hooks.errors import BudgetExceeded, Code
from llm_budget_hooks.keys import DEFAULT_TENANT, normalised
from llm_budget_hooks.models import Call, Policy, instant
from llm_budget_hooks.money import format_usd, to_decimal
from llm_budget_hooks.transitions import NO_LIMIT, Failure, Meter, Rule
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
_SOON_MS = 3_600_000
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
    retries = [failure.retry_ms for failure in failures]
    next_ms = max(retries) if all(retries) else 0
    spent = next((failure for failure in failures if not failure.busy), first)
    told = first if not first.busy else spent
    return BudgetExceeded(
        f"{_message(call, rule, first, windows[rule.budget])} {_when(policy, rule, first, next_ms)}",
        code="answer_estimate" if rule.scope == "answer" and rule.meter == Meter.USD else _CODES[rule.meter],
        budget=rule.budget,
        scope=rule.scope,
        failed=tuple(rules[failure.index].budget for failure in failures),
        stage=stage,
        busy=first.busy,
        resets_at=instant(first.resets_ms) if first.resets_ms else None,
        retry_after=max(next_ms - now_ms, 0) / 1000 if next_ms else None,
        public_message=_public_message(rules[told.index], told, next_ms or told.retry_ms, windows, policy, now_ms),
        **_amounts(rule, first),
    )


Ends = Mapping[str, tuple[int, int]]
"""By budget, when the limit of now ends, and which one is in its place then; 0: none."""


def rules_to_come(rules: tuple[Rule, ...], ends: Ends) -> tuple[Rule, ...]:
    """The rules of a call's shape with the limits that come after those of now."""
    return tuple(replace(rule, limit=_to_come(rule, ends[rule.budget][1])) if rule.budget in ends else rule
                 for rule in rules)  # fmt: skip


def _to_come(rule: Rule, limit: int) -> int:
    if not limit:
        return NO_LIMIT
    return limit * rule.limit // rule.base if rule.base else limit  # a soft cutoff stretches both alike


def with_ends(
    failures: Iterable[Failure], to_come: Iterable[Failure], rules: tuple[Rule, ...], ends: Ends
) -> tuple[Failure, ...]:
    """The failures with the instants at which there is room, where a limit is another one from some instant on.

    Args:
        failures: of the rules, as the store found them by the limits of now.
        to_come: the same by the limits that come after them.
        rules: of the call's shape.
        ends: when those of now end.
    """
    later = {failure.index: failure.retry_ms for failure in to_come}
    found = []
    for failure in failures:
        until_ms = ends.get(rules[failure.index].budget, (0, 0))[0]
        if until_ms and not 0 < failure.retry_ms < until_ms:
            retry_ms = later.get(failure.index, until_ms)
            failure = replace(failure, retry_ms=max(retry_ms, until_ms) if retry_ms else 0)
        found.append(failure)
    return tuple(found)


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


def _message(call: Call, rule: Rule, failure: Failure, window: Window | None) -> str:
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
    return f"{what} of {show(rule.limit)} for {whom} reached ({state})."


def _when(policy: Policy, rule: Rule, failure: Failure, next_ms: int) -> str:
    if not failure.retry_ms:
        if failure.requested > rule.limit:
            return "No call of this size ever fits: make it smaller or raise the limit."
        return "Ask more narrowly." if rule.scope == "answer" else "Raise the limit to let it in."
    later = f"Next at {_shown_instant(next_ms, policy)}." if next_ms else "Another budget never lets it in."
    if not failure.busy:
        return later
    under_way = f"Calls under way are in the way; they end by {_shown_instant(failure.retry_ms, policy)}."
    return under_way if next_ms == failure.retry_ms else f"{under_way} {later}"


def _shown_instant(at_ms: int, policy: Policy) -> str:
    at = instant(at_ms).astimezone(ZoneInfo(policy.timezone))
    shown = at.strftime("%Y-%m-%d %H:%M" if at.second == 0 and at.microsecond == 0 else "%Y-%m-%d %H:%M:%S")
    return f"{shown} {policy.timezone}"


def _public_message(
    rule: Rule, failure: Failure, next_ms: int, windows: dict[str, Window | None], policy: Policy, now_ms: int
) -> str:
    """A text for the end user, with no figure and no name."""
    window = windows[rule.budget]
    if failure.busy:
        return "Too much is going on at once. Try again in a moment."
    if rule.scope == "answer":
        what = "is too expensive" if rule.meter in (Meter.USD, Meter.TOKENS) else "takes too many steps"
        return f"This question {what} to answer. Ask more narrowly."
    if not failure.retry_ms:
        return "This request is too large. Ask more narrowly."
    name = "Limit" if window is None or window.kind != "calendar" else f"{window.adjective} limit"
    if rule.meter in (Meter.CALLS, Meter.UTTERANCES) and next_ms - now_ms <= _SOON_MS:
        return "Too many requests. Try again in a moment."
    return f"{name} reached. {_again(next_ms, policy, now_ms)}"


def _again(next_ms: int, policy: Policy, now_ms: int) -> str:
    zone = ZoneInfo(policy.timezone)
    at = instant(next_ms).astimezone(zone)
    days = (at.date() - instant(now_ms).astimezone(zone).date()).days
    if days == 0:
        return "Try again later."
    if days == 1:
        return "Try again tomorrow."
    return f"Try again on {at:%Y-%m-%d}."


def _shown(text: str | None, otherwise: str) -> str:
    """An id for a message: printable and short, so that it can forge no line of a log."""
    return _clean(normalised(text) or otherwise)


def _clean(text: str) -> str:
    clean = "".join(letter if letter.isprintable() else "?" for letter in text[: _MAX_SHOWN + 1])
    return clean if len(clean) <= _MAX_SHOWN else clean[:_MAX_SHOWN] + "..."
