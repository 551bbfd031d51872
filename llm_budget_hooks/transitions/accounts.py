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
    if log.slots:
        rolling.trim(log, rule.length_ms, now)
    gone_ms = now - rule.length_ms
    if log.oldest <= gone_ms:
        total, count, log.oldest = cells.drop(key, gone_ms)
        log.total -= total
        log.count -= count
        cells.change(key, log)


def take(cells: Cells, key: str, rule: Rule, account: Any, amount: int, kept: bool, terms: Terms, now: int) -> None:
    """Put an amount into an account that is up to now: as spent if it is kept, else as reserved."""
    if rule.kind == _ROLLING:
        if kept:
            enter(cells, key, account, rule, now, amount, terms, now)
        else:
            account.reserved = min(account.reserved + amount, MAX_AMOUNT)
            cells.save(key, account, expiry(rule, 0, terms, now))
        return
    at = 0 if kept else 1
    total = account[at] + amount
    account[at] = total if total < MAX_AMOUNT else MAX_AMOUNT
    cells.save(key, account, rule.until_ms or expiry(rule, account[2], terms, now))


def enter(
    cells: Cells, key: str, log: rolling.Log, rule: Rule, at_ms: int, amount: int, terms: Terms, now: int
) -> None:
    """Book an amount at its reserve instant, unless that has left the window, and save the account."""
    length = rule.length_ms
    until = now + length + rolling.width_ms(length) + terms.timeout_ms
    if amount and at_ms > now - length:
        if log.count < terms.exact_entries:
            log.serial += 1
            log.count += 1
            log.total += amount
            if at_ms < log.oldest:
                log.oldest = at_ms
            cells.append(key, (at_ms, log.serial, amount), until)
        else:
            rolling.coarse(log, at_ms, amount, length)
    cells.save(key, log, until)


def replace(cells: Cells, hold: Hold, at: int, account: Any, freed: int, spent: int, terms: Terms, now: int) -> int:
    """In one account of a hold, free what was reserved and add to what is spent, if its window is still known.

    Returns:
        what is spent in the account now, 0 if its window is gone.
    """
    rule, key, start = hold.shape.rules[at], hold.keys[at], hold.starts[at]
    kind = rule.kind
    if kind == _ROLLING:
        log = account if account is not None else rolling.Log()
        roll(cells, key, log, rule, now)
        log.reserved = max(log.reserved - freed, 0)
        enter(cells, key, log, rule, hold.created_ms, spent, terms, now)
        return log.total
    if account is None:
        account = [0, 0, start]
    elif (kind in (_FIXED, _ANSWER)) and account[2] != start:
        return 0
    until = rule.until_ms or expiry(rule, start, terms, now)
    if now >= until:
        return 0
    booked, reserved = account[0] + spent, account[1] - freed
    account[0] = booked = 0 if booked < 0 else booked if booked < MAX_AMOUNT else MAX_AMOUNT
    account[1] = reserved if reserved > 0 else 0
    cells.save(key, account, until)
    return booked


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
        return now + max(GAUGE_TTL_MS, 2 * terms.timeout_ms)
    if kind == _CALENDAR:
        return rule.until_ms
    if kind == _FIXED:
        return start_ms + 2 * rule.length_ms
    if kind == _ANSWER:
        return now + terms.utterance_timeout_ms + terms.timeout_ms
    return now + rule.length_ms + rolling.width_ms(rule.length_ms) + terms.timeout_ms
