"""The dashboard as HTML. Every text from outside goes through `escape`; numbers that are None are ``unread``."""

from __future__ import annotations

from calendar import monthrange
from collections.abc import Iterable, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from html import escape
from typing import Final
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

from llm_budget_hooks.admin.limits import OFF
from llm_budget_hooks.admin.overview import Balance, Rule
from llm_budget_hooks.admin.switches import SetLimit
from llm_budget_hooks.dashboard.seen import Seen
from llm_budget_hooks.dashboard.spend import DIMENSIONS, Spend
from llm_budget_hooks.keys import digest
from llm_budget_hooks.ledger import AnswerCost, Cost
from llm_budget_hooks.ledger.reading import Dimension
from llm_budget_hooks.models import instant
from llm_budget_hooks.models.trail import Run
from llm_budget_hooks.money import plain, to_decimal

SHORTEST_TOKEN: Final = 16
UNREAD: Final = "<span class=unread>unread</span>"
_WHOSE: Final = {"global": "everybody", "tenant": "the tenant", "user": "each user", "answer": "one answer"}
_MOST_ROWS: Final = 8
_FRACTION: Final = 4
_STALE_S: Final = 5
_PARTS: Final = (("k-spent", "spent", "spent"), ("k-held", "held", "reserved"), ("k-free", "free", "available"))


def dashboard(seen: Seen, csrf: str, said: str) -> str:
    """The whole page.

    Args:
        seen: what is on it.
        csrf: goes with every form.
        said: what came of the last change.
    """
    board = seen.board
    user = "" if seen.user is None else f" · {seen.user or 'without a name'}"
    whose = "Everybody" if board.tenant is None else board.tenant + user
    anonymous = "yes" if seen.user == "" else ""
    hidden = _hidden(csrf=csrf, tenant=board.tenant or "", user=seen.user or "", anonymous=anonymous)
    told = f"<p class=said role=status>{_time(board.now)} {escape(said)}</p>" if said else ""
    parts = [_budgets(seen, hidden), _spend(seen), _costs(seen), _refusals(seen), _answers(seen), _events(seen)]
    now = f"<span id=now data-live>{_time(board.now, full=True)}</span>"
    head = f"<h1>{escape(whose)}</h1><p class=muted>{escape(board.namespace)} · {now}</p>"
    alone = "" if board.shared else "<p class=said>These are the balances of one process alone, not of all.</p>"
    live = f"<div id=live>{alone}{_switches(seen, hidden)}{''.join(parts)}</div>"
    return _html(f"{whose} · budgets", f"<header>{head}{_chooser(seen)}</header><main>{told}{live}</main>", script=True)


def sign_in(said: str) -> str:
    """The form that asks for the token."""
    told = f"<p class=said role=alert>{escape(said)}</p>" if said else ""
    field = "<label>Token <input type=password name=token required autofocus autocomplete=current-password></label>"
    form = f"<form method=post action=/sign-in class=card>{field}<button>Sign in</button></form>"
    return _html("Sign in · budgets", f"<main class=narrow><h1>Budgets</h1>{told}{form}</main>", script=False)


def _html(title: str, body: str, *, script: bool) -> str:
    live = "<script src=/live.js defer></script>" if script else ""
    return (
        "<!doctype html><html lang=en><head><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width, initial-scale=1'>"
        "<meta name=color-scheme content='light dark'>"
        f"<title>{escape(title)}</title><link rel=stylesheet href=/style.css><link rel=icon href='data:,'>{live}"
        f"</head><body>{body}</body></html>"
    )


def _chooser(seen: Seen) -> str:
    options = "".join(f"<option value='{escape(name)}'>" for name in (seen.spend.tenants if seen.spend else ()))
    return (
        "<form method=get action=/ class=row aria-label='Whose budgets'>"
        "<label>Tenant "
        f"<input name=tenant list=tenants placeholder=everybody value='{_value(seen.board.tenant)}'></label>"
        f"<datalist id=tenants>{options}</datalist>"
        f"<label>User <input name=user value='{_value(seen.user)}'></label><button>Show</button>"
        "<a href=/>everybody</a></form>"
    )


def _switches(seen: Seen, hidden: str) -> str:
    board = seen.board
    if board.killed is None:
        return f"<section class=card id=switch data-live><h2>Kill switch</h2><p>{UNREAD}</p></section>"
    on = "".join(
        f"<p><strong>Stopped: {escape(one.tenant or 'everybody')}.</strong> {escape(one.reason)} "
        f"<span class=muted>{escape(one.by or 'by itself')}, {_time(one.since)}</span></p>"
        f"<form method=post action=/revive>{hidden}{_hidden(of=one.tenant or '')}"
        "<button>Let calls in again</button></form>"
        for one in board.killed
    )
    whom = "everybody" if board.tenant is None else f"tenant {board.tenant}"
    stop = (
        f"<details><summary>Stop all calls of {escape(whom)} …</summary><form method=post action=/kill class=stack>"
        f"{hidden}<label>Why <input name=reason maxlength=500></label>"
        "<label class=tick><input type=checkbox name=sure value=yes required> "
        f"Yes, refuse every call of {escape(whom)} from now on</label>"
        "<button class=danger>Stop</button></form></details>"
    )
    off = "" if any((one.tenant or None) == board.tenant for one in board.killed) else stop
    kind = "card alarm" if on else "card"
    return f"<section class='{kind}' id=switch data-live><h2>Kill switch</h2>{on or '<p>Off.</p>'}{off}</section>"


def _budgets(seen: Seen, hidden: str) -> str:
    rules = {rule.name: rule for rule in seen.board.rules}
    changed = {one.budget: one for one in seen.board.overrides or () if one.tenant in (None, seen.board.tenant)}

    def editor(rule: Rule | None) -> str:
        return "" if rule is None else _editor(rule, changed.get(rule.name), hidden)

    cards = "".join(_budget(line, editor(rules.get(line.budget))) for line in seen.board.budgets)
    read = {line.budget for line in seen.board.budgets}
    wide = seen.board.tenant is None  # then those of single tenants are not for here
    others = [r for r in seen.board.rules if r.name not in read and (not wide or r.scope == "global")]
    more = "".join(
        f"<li><strong>{escape(rule.name)}</strong> <span class=muted>{_WHOSE[rule.scope]}, "
        f"{f'limit {_amount(rule.meter, rule.limit)}' if _is_on(rule) else 'switched off'}</span>"
        f"{editor(rule)}</li>"
        for rule in others
    )
    listed = f"<ul class=plain>{more}</ul>" if more else ""
    shown = cards or "<p>No budget is about this.</p>"
    return f"<section><h2>Budgets</h2><div class=grid>{shown}</div>{listed}</section>"


def _budget(line: Balance, editor: str) -> str:
    resets = "" if line.resets_at is None else f" · resets {_time(line.resets_at)}"
    numbers = "".join(
        f"<div class={key}><dt>{name}</dt><dd>{_amount(line.meter, getattr(line, field))}</dd></div>"
        for key, name, field in _PARTS
    )
    return (
        f"<article class=card><h3>{escape(line.budget)}</h3><div id='budget-{digest(line.budget)}' data-live>"
        f"<p class=muted>{escape(line.scope)} · {escape(line.window or 'now')} · "
        f"limit {_amount(line.meter, line.limit)}{resets}</p>{_bar(line)}<dl>{numbers}</dl></div>"
        f"{editor}</article>"
    )


def _editor(rule: Rule, changed: SetLimit | None, hidden: str) -> str:
    own = "" if rule.limit == rule.policy_limit else f" (the policy says {_amount(rule.meter, rule.policy_limit)})"
    hint = "dollars" if rule.meter == "usd" else rule.meter
    return (
        f"<details><summary>Edit limit{own}</summary>{_changed(changed)}"
        f"<form method=post action=/limit class=row>{hidden}{_hidden(budget=rule.name)}"
        f"<label>Limit in {escape(hint)} "
        f"<input name=limit value='{_written(rule)}' inputmode=decimal size=8></label>"
        "<label>For <input name=lasts placeholder=24h size=5></label><button>Set</button>"
        "<p class=muted>“off” switches it off; empty goes back to the policy; without a time it stays.</p>"
        "</form></details>"
    )


def _changed(one: SetLimit | None) -> str:
    """Who has set a limit, until when and why."""
    if one is None:
        return ""
    until = "" if one.expires_at is None else f", until {_time(one.expires_at)}"
    why = f": {escape(one.reason)}" if one.reason else ""
    return f"<p class=muted>Set {_time(one.since)} by {escape(one.by or 'somebody')}{until}{why}.</p>"


def _written(rule: Rule) -> str:
    return _value(rule.limit) if _is_on(rule) else OFF


def _is_on(rule: Rule) -> bool:
    return bool(Decimal(rule.limit or 0))


def _bar(line: Balance) -> str:
    if line.spent is None or not Decimal(line.limit or 0):
        return f"<p>{UNREAD}</p>"
    spent = min(Decimal(line.spent) * 100 / Decimal(line.limit or 1), Decimal(100))
    held = min(Decimal(line.reserved or 0) * 100 / Decimal(line.limit or 1), 100 - spent)
    kind = "full" if spent == 100 else "near" if spent >= 80 else "spent"
    return (
        "<svg class=bar viewBox='0 0 100 8' preserveAspectRatio=none role=img "
        f"aria-label='{spent:.0f} % spent, {held:.0f} % held'>"
        f"<rect class=free width=100 height=8 /><rect class={kind} width={spent:.2f} height=8 />"
        f"<rect class=held x={spent:.2f} width={held:.2f} height=8 /></svg>"
    )


def _spend(seen: Seen) -> str:
    if seen.spend is None:
        text = "There is no ledger: open the engine with one to see spend, refusals and answers."
        return f"<section><h2>Spend</h2><p>{text}</p></section>"
    board = seen.board
    month = (
        f"<dl><div><dt>this month</dt><dd>{_dollars(board.month_spent)}</dd></div>"
        "<div><dt>at its end, at this pace</dt>"
        f"<dd>{_projected(board.month_spent, board.month_projection)}</dd></div></dl>"
    )
    days = _days(seen, seen.spend.days)
    return (
        f"<section class=card id=spend data-live><h2>Spend by day</h2>{month}{days}{_as_of(seen, seen.spend)}</section>"
    )


def _as_of(seen: Seen, spend: Spend) -> str:
    """When a long ledger was read, where that was some time ago."""
    late = (seen.board.now - spend.at).total_seconds() >= _STALE_S
    return f"<p class=muted>What was spent, and the answers, as of {_time(spend.at, full=True)}</p>" if late else ""


def _projected(spent: str | None, projected: str | None) -> str:
    early = "<span class=muted>too early to say</span>"
    return early if spent is not None and projected is None else _dollars(projected)


def _days(seen: Seen, found: Sequence[Cost] | None) -> str:
    if found is None:
        return f"<p>{UNREAD}</p>"
    if not found:
        return "<p class=muted>Nothing was spent in 30 days.</p>"
    today = seen.board.now.astimezone(ZoneInfo(seen.board.timezone)).date()
    ahead, pace = _ahead(seen, today)
    first, last = date.fromisoformat(found[0].key), today + timedelta(days=ahead)
    spent = {day.key: max(day.cost, Decimal(0)) for day in found}
    coming = {(today + timedelta(days=at + 1)).isoformat() for at in range(ahead)}
    most = max(seen.most, pace) or Decimal(1)
    days = [*_calendar(first, last)]
    bars = "".join(
        _day(at, (pace if day in coming else spent.get(day, Decimal(0))) * 100 / most, day in coming)
        for at, day in enumerate(days)
    )
    rows = [(escape(day.key), _dollars(plain(day.cost))) for day in found]
    then = f", and {ahead} days to come at this pace" if ahead else ""
    return (
        f"<svg class=days viewBox='0 0 {max(len(days), 10) * 10} 100' preserveAspectRatio=none role=img "
        f"aria-label='Spend by day from {first} to {today}{then}'>{bars}</svg>"
        f"<p class='muted ends'><span>{first}</span><span>most: {_dollars(plain(seen.most))}</span>"
        f"<span>{last}</span></p><details id=table><summary>As a table</summary>"
        f"{_table(('day', 'spent'), rows, right=(1,))}</details>"
    )


def _ahead(seen: Seen, today: date) -> tuple[int, Decimal]:
    """How many days of the month are to come, and what each will cost at this pace; none where that is not known."""
    spent, projected = seen.board.month_spent, seen.board.month_projection
    left = monthrange(today.year, today.month)[1] - today.day
    if not left or spent is None or projected is None:
        return 0, Decimal(0)
    return left, max(Decimal(projected) - Decimal(spent), Decimal(0)) / left


def _day(at: int, height: Decimal, coming: bool) -> str:
    kind = "ahead" if coming else "spent"
    return f"<rect class={kind} x={at * 10 + 1} width=8 y={100 - height:.1f} height={height:.1f} />"


def _calendar(first: date, last: date) -> Iterable[str]:
    """Every day of a span, those on which nothing was spent too."""
    return ((first + timedelta(days=at)).isoformat() for at in range((last - first).days + 1))


def _costs(seen: Seen) -> str:
    if seen.spend is None:
        return ""
    names = [name for name in DIMENSIONS if not (name == "tenant" and seen.board.tenant)]
    tables = "".join(
        f"<article class=card><h3>By {name}</h3>{_cost(name, seen.spend.costs.get(name))}</article>" for name in names
    )
    return f"<section id=costs data-live><h2>30 days by …</h2><div class=grid>{tables}</div></section>"


def _cost(name: Dimension, costs: Sequence[Cost] | None) -> str:
    if costs is None:
        return f"<p>{UNREAD}</p>"
    rows = [(_named(name, one), f"{one.calls:,}", _dollars(plain(one.cost))) for one in costs[:_MOST_ROWS]]
    left = f"<p class=muted>and {len(costs) - _MOST_ROWS} more</p>" if len(costs) > _MOST_ROWS else ""
    return _table(("", "calls", "cost"), rows, right=(1, 2)) + left


def _named(name: Dimension, one: Cost) -> str:
    """What a row is about; tenants and users lead to the page that is about them."""
    whose = f" <span class=muted>{escape(one.tenant)}</span>" if one.tenant else ""
    text = escape(one.key) or "<span class=muted>not named</span>"
    if name not in ("tenant", "user"):
        return text + whose
    who = {"tenant": one.key} if name == "tenant" else {"tenant": one.tenant, "user": one.key}
    if name == "user" and not one.key:
        who["anonymous"] = "yes"
    return f"<a href='/?{escape(urlencode(who, errors='replace'))}'>{text}</a>{whose}"


def _refusals(seen: Seen) -> str:
    if seen.spend is None:
        return ""
    rows = None if seen.refusals is None else [
        (_time(instant(one.at_ms)), escape(one.code), escape(one.budget),
         f"{escape(one.tenant)} {escape(one.user)}", _asked(one.meter, one.requested), f"{one.count:,}")
        for one in seen.refusals
    ]  # fmt: skip
    columns = ("when", "why", "budget", "who", "asked for", "times")
    shown = _listed(columns, rows, "Nobody was refused.", (4, 5))
    return f"<section class=card id=refusals data-live><h2>Refusals</h2>{shown}</section>"


def _asked(meter: str, units: int | None) -> str:
    if units is None:
        return ""
    return _amount(meter, plain(to_decimal(units)) if meter == "usd" else units)


def _answers(seen: Seen) -> str:
    if seen.spend is None:
        return ""
    if seen.spend.answers is None:
        return f"<section class=card id=answers data-live><h2>Answers</h2><p>{UNREAD}</p></section>"
    shown = "".join(map(_answer, seen.spend.answers)) or "<p class=muted>There are no answers.</p>"
    return f"<section class=card id=answers data-live><h2>Answers</h2>{shown}</section>"


def _answer(answer: AnswerCost) -> str:
    def begun(run: Run) -> float:
        return (instant(run.at_ms) - answer.began_at).total_seconds()

    span = max((answer.ended_at - answer.began_at).total_seconds(), 0.001)
    rows = "".join(
        f"<li><span class=step>{escape(run.step)}</span>{_mark(begun(run) / span)}"
        f"<span class=n>{_cost_of(run)}</span></li>"
        for run in answer.runs
    )
    refused = f" · {answer.refusals} refused" if answer.refusals else ""
    return (
        f"<details id='answer-{_key(answer)}'><summary>{_time(answer.began_at)} "
        f"{escape(answer.feature or 'an answer')} · "
        f"{escape(answer.tenant)} {escape(answer.user)} · {_calls(answer)} · "
        f"{_dollars(plain(answer.cost))}{refused}</summary>"
        f"<ol class=fan aria-label='{_calls(answer)}, by when each ended'>{rows}</ol>"
        f"<p class='muted ends'><span>A mark is the end of a call.</span><span>{span:.1f} s</span></p></details>"
    )


def _key(answer: AnswerCost) -> str:
    return digest(answer.tenant, answer.user, answer.utterance, answer.began_at.isoformat())


def _calls(answer: AnswerCost) -> str:
    return f"{answer.calls:,} call{'' if answer.calls == 1 else 's'}"


def _cost_of(run: Run) -> str:
    return f"{_dollars(plain(to_decimal(run.booked_nusd)))}{'' if run.exact else ' about'}"


def _mark(share: float) -> str:
    return (
        "<svg class=line viewBox='0 0 100 8' preserveAspectRatio=none aria-hidden=true>"
        "<rect class=free y=3 width=100 height=2 />"
        f"<rect class=spent x={min(share, 1) * 97:.1f} width=3 height=8 /></svg>"
    )


def _events(seen: Seen) -> str:
    if seen.spend is None:
        return ""
    rows = None if seen.events is None else [
        (_time(instant(one.at_ms)), escape(one.name), escape(one.tenant or "everybody"), escape(one.by),
         escape(one.text))
        for one in seen.events
    ]  # fmt: skip
    columns = ("when", "what", "tenant", "by", "")
    shown = _listed(columns, rows, "Nothing happened.")
    return f"<section class=card id=events data-live><h2>Events</h2>{shown}</section>"


def _listed(columns: Sequence[str], rows: Sequence[Sequence[str]] | None, none: str, right: Sequence[int] = ()) -> str:
    if rows is None:
        return f"<p>{UNREAD}</p>"
    return _table(columns, rows, right, " class=wide") if rows else f"<p class=muted>{none}</p>"


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[int] = (), kind: str = "") -> str:
    """A table of cells that are HTML already; numbers bring their column's name along, for narrow windows."""
    kinds = [f" class=n data-of='{name}'" if at in right else "" for at, name in enumerate(columns)]
    head = "".join(f"<th scope=col{of}>{name}</th>" for name, of in zip(columns, kinds, strict=True))
    body = "".join(
        f"<tr>{''.join(f'<td{of}>{cell}</td>' for cell, of in zip(row, kinds, strict=True))}</tr>" for row in rows
    )
    table = f"<table{kind}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f"<div class=scroll tabindex=0>{table}</div>"


def _hidden(**fields: str) -> str:
    return "".join(f"<input type=hidden name={name} value='{escape(value)}'>" for name, value in fields.items())


def _value(text: str | int | None) -> str:
    return "" if text is None else escape(str(text))


def _amount(meter: str, value: str | int | None) -> str:
    if meter == "usd":
        return _dollars(None if value is None else str(value))
    return UNREAD if value is None else f"{value:,}"


def _dollars(amount: str | None) -> str:
    if amount is None:
        return UNREAD
    value = Decimal(amount)
    digits = 2 if value * 100 % 1 == 0 else max(_FRACTION, 1 - value.adjusted())
    shown = f"{value:,.{digits}f}"
    return f"<span title='${amount}'>${shown.rstrip('0') if digits > _FRACTION else shown}</span>"


def _time(at: datetime, full: bool = False) -> str:
    shown = f"{at:%Y-%m-%d %H:%M:%S} UTC" if full else f"{at:%m-%d %H:%M}"
    return f"<time datetime={at:%Y-%m-%dT%H:%M:%SZ}>{shown}</time>"
