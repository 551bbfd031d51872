"""One account at a time: what it holds now, what it takes, how long it is kept."""

from __future__ import annotations

from typing import Any

from llm_budget_hooks.transitions import rolling
from llm_budget_hooks.transitions.cells import Cells
from llm_budget_hooks.transitions.commands import MAX_AMOUNT, Hold, Kind, Rule, Terms

GAUGE_TTL_MS = 2 * 86_400_000

_CALENDAR, _FIXED, _ROLLING, _ANSWER, _GAUGE = (int(k) for k in Kind)


def current(account: list[int] | None, rule: Rule, utterance: list[Any] | None, now: int) -> list[int]:
    """The account of the window that runs now; a new one if the stored one's window is over."""
    if rule.kind == _ANSWER:
        start = utterance[0] if utterance is not None else 0
        return account if account is not None and account[2] == start else [0, 0, start]
    if rule.kind == _FIXED:
        return account if account is not None and now < account[2] + rule.length_ms else [0, 0, now]
    return account if account is not None else [0, 0, 0]


def roll(cells: Cells, key: str, log: rolling.Log, rule: Rule, now: int) -> None:
    """Take what has left the window out of a rolling account."""
    changed = bool(log.slots) and rolling.trim(log, rule.length_ms, now)
    gone_ms = now - rule.length_ms
    if log.oldest <= gone_ms:
        total, count, log.oldest = cells.drop(key, gone_ms)
        log.total = max(log.total - total, 0)
        log.count -= count
        changed = True
    if changed:
        log.left_ms = max(log.left_ms, gone_ms)
        cells.change(key, log)


def log_take(
    cells: Cells, key: str, rule: Rule, log: rolling.Log, amount: int, kept: bool, terms: Terms, now: int
) -> None:
    """Put an amount into a rolling account that is up to now: as spent if it is kept, else as reserved."""
    if kept:
        enter(cells, key, log, rule, now, amount, terms, now)
    else:
        log.reserved = min(log.reserved + amount, MAX_AMOUNT)
        cells.save(key, log, expiry(rule, 0, terms, now))


def enter(
    cells: Cells, key: str, log: rolling.Log, rule: Rule, at_ms: int, amount: int, terms: Terms, now: int
) -> None:
    """Book an amount at its reserve instant, unless that has left the window, and save the account.

    What is taken back is booked only while what it is about is in the sum, whatever the clock shows. The sum stays
    from 0 to `MAX_AMOUNT`, as what it has no room for is cut.
    """
    length = rule.length_ms
    amount = max(min(amount, MAX_AMOUNT - log.total), -log.total)
    until = now + length + rolling.width_ms(length) + terms.timeout_ms
    if amount and at_ms > now - length and (amount > 0 or at_ms > log.left_ms):
        if log.count < terms.exact_entries:
            log.serial += 1
            log.count += 1
            log.total += amount
            if at_ms < log.oldest:
                log.oldest = at_ms
            cells.append(key, (at_ms, log.serial, amount), until)
        else:
            rolling.coarse(log, at_ms, amount, length, now)
    cells.save(key, log, until)


def log_end(
    cells: Cells,
    key: str,
    rule: Rule,
    known: rolling.Log | None,
    freed: int,
    spent: int,
    created_ms: int,
    terms: Terms,
    now: int,
) -> int:
    """In a rolling account, free what a hold reserved and book what it spent; what is spent there now."""
    log = known if known is not None else rolling.Log(left_ms=0 if spent > 0 else now)
    roll(cells, key, log, rule, now)
    log.reserved = max(log.reserved - freed, 0)
    enter(cells, key, log, rule, created_ms, spent, terms, now)
    return log.total


def prolong(cells: Cells, hold: Hold, terms: Terms, now: int) -> None:
    """Keep the accounts without a window of their own, in which an extended hold counts as long as it is open."""
    for key, rule, account in zip(hold.keys, hold.shape.rules, cells.load(hold.keys), strict=True):
        if account is None or rule.kind not in (_ROLLING, _GAUGE):
            continue
        if rule.kind == _ROLLING:
            roll(cells, key, account, rule, now)
        cells.save(key, account, expiry(rule, 0, terms, now))


def expiry(rule: Rule, start_ms: int, terms: Terms, now: int) -> int:
    """Until when an account is kept: until nothing can ask for it or settle in it any more."""
    kind = rule.kind
    if kind == _GAUGE:
        twice_ms = 2 * terms.timeout_ms
        return now + (twice_ms if twice_ms > GAUGE_TTL_MS else GAUGE_TTL_MS)
    if kind == _CALENDAR:
        return rule.until_ms
    if kind == _FIXED:
        return start_ms + 2 * rule.length_ms
    if kind == _ANSWER:
        return now + terms.utterance_timeout_ms + terms.timeout_ms
    return now + rule.length_ms + rolling.width_ms(rule.length_ms) + terms.timeout_ms
