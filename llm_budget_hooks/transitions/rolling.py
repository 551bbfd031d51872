"""A rolling window's account: exact while few entries live, then in slots of 1/60 of the window.

The account keeps a sum per slot; the entries of a slot lie apart, so that a decision reads the one slot that
is leaving the window, and never all entries. Above `exact_entries` live entries a new one is only in its
slot's sum, and counts until the whole slot has left: that errs towards refusing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

Entry = tuple[int, int]
"""When an amount was reserved, in ms, and the amount; a correction is an entry of its own."""

SLOTS = 60


@dataclass(slots=True)
class Log:
    """One account of a rolling window.

    Attributes:
        reserved: what open holds hold; it counts as long as they are open.
        total: the sum over `slots`.
        count: how many entries of these slots are kept singly.
        slots: ``[number, sum, entries kept singly]``, oldest first.
    """

    reserved: int = 0
    total: int = 0
    count: int = 0
    slots: list[list[int]] = field(default_factory=list)


def width_ms(length_ms: int) -> int:
    """How long one slot is."""
    return -(-length_ms // SLOTS)


def leaving(length_ms: int, now_ms: int) -> int:
    """The number of the oldest slot that may still have a living entry."""
    return (now_ms - length_ms + 1) // width_ms(length_ms)


def trim(log: Log, length_ms: int, now_ms: int) -> None:
    """Drop the slots that have left the window wholly."""
    oldest = leaving(length_ms, now_ms)
    if not log.slots or log.slots[0][0] >= oldest:
        return
    gone = 0
    for slot in log.slots:
        if slot[0] >= oldest:
            break
        log.total -= slot[1]
        log.count -= slot[2]
        gone += 1
    if gone:
        del log.slots[:gone]


def dead(entries: list[Entry], length_ms: int, now_ms: int) -> tuple[int, int]:
    """Sum and number of the entries of the leaving slot that have left the window."""
    total = count = 0
    for at_ms, amount in entries:
        if at_ms <= now_ms - length_ms:
            total += amount
            count += 1
    return total, count


def insert(log: Log, at_ms: int, amount: int, single: bool, length_ms: int) -> int:
    """Add an amount to its slot's sum.

    Args:
        log: the account, trimmed.
        at_ms: the reserve instant.
        amount: what to add.
        single: whether the entry is kept singly too.
        length_ms: the window.

    Returns:
        the number of the slot.
    """
    number = at_ms // width_ms(length_ms)
    slots = log.slots
    at = len(slots)
    while at and slots[at - 1][0] > number:
        at -= 1
    if at and slots[at - 1][0] == number:
        slots[at - 1][1] += amount
        slots[at - 1][2] += single
    else:
        slots.insert(at, [number, amount, int(single)])
    log.total += amount
    log.count += single
    return number


def frees_at(log: Log, entries: Callable[[int], list[Entry]], need: int, length_ms: int, now_ms: int) -> int:
    """The first instant at which so much has left the window.

    Args:
        log: the account, trimmed.
        entries: gives the single entries of a slot by its number.
        need: how much has to leave.
        length_ms: the window.
        now_ms: the time.

    Returns:
        the instant in ms, or 0 if not so much will ever leave.
    """
    freed = 0
    for number, total, _ in log.slots:
        singles = sorted(entries(number))
        for at_ms, amount in singles:
            if at_ms > now_ms - length_ms:
                freed += amount
                if freed >= need:
                    return at_ms + length_ms
        freed += total - sum(amount for _, amount in singles)
        if freed >= need:
            return (number + 1) * width_ms(length_ms) + length_ms - 1
    return 0
