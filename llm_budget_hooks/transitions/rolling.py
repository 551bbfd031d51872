"""A rolling window's account: exact while few entries live, then in slots of 1/60 of the window.

Each amount is an entry that leaves on its own; entries lie apart from the account, by their instant, so that a
decision touches only those that have just left. Above `exact_entries` live entries a new one goes into the sum of
its slot, and counts until the whole slot has left: that errs towards refusing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

Entry = tuple[int, int]
"""When an amount was reserved, in ms, and the amount; a correction is an entry of its own."""

SLOTS = 60
NEVER = 2**53


@dataclass(slots=True)
class Log:
    """One account of a rolling window.

    Attributes:
        reserved: what open holds hold; it counts as long as they are open.
        total: the sum over all that lives.
        count: how many entries are kept singly.
        oldest: the instant of the first of these, `NEVER` if there is none.
        serial: how many entries there ever were; tells entries of one instant apart.
        left_ms: all up to this instant has left, and stays so where the clock steps back: nothing of it can be
            taken back.
        slots: ``[number, sum]`` of what is not kept singly, oldest first.
    """

    reserved: int = 0
    total: int = 0
    count: int = 0
    oldest: int = NEVER
    serial: int = 0
    left_ms: int = 0
    slots: list[list[int]] = field(default_factory=list)


def width_ms(length_ms: int) -> int:
    """How long one slot is."""
    return -(-length_ms // SLOTS)


def _oldest_slot(length_ms: int, now_ms: int) -> int:
    return (now_ms - length_ms + 1) // width_ms(length_ms)


def trim(log: Log, length_ms: int, now_ms: int) -> bool:
    """Drop the slots that have left the window wholly; whether there were any."""
    oldest, count = _oldest_slot(length_ms, now_ms), len(log.slots)
    while log.slots and log.slots[0][0] < oldest:
        log.total = max(log.total - log.slots.pop(0)[1], 0)
    return len(log.slots) < count


def coarse(log: Log, at_ms: int, amount: int, length_ms: int, now_ms: int) -> None:
    """Add an amount to its slot's sum.

    What is taken back goes a slot before, so that it leaves no later than the amount it is about, which may be kept
    singly: after it the sum is too high for as long as a slot, and never too low.
    """
    number = at_ms // width_ms(length_ms)
    if amount < 0:
        number -= 1
        if number < _oldest_slot(length_ms, now_ms):
            return
    slots = log.slots
    at = len(slots)
    while at and slots[at - 1][0] > number:
        at -= 1
    if at and slots[at - 1][0] == number:
        slots[at - 1][1] += amount
    else:
        slots.insert(at, [number, amount])
    log.total += amount


def frees_at(log: Log, entries: Iterable[Entry], need: int, length_ms: int, holds: Iterable[Entry] = ()) -> int:
    """The first instant at which so much has left the window.

    Args:
        log: the account, without what has left.
        entries: its single entries by their instant.
        need: how much has to leave.
        length_ms: the window.
        holds: what is reserved, as entries.

    Returns:
        the instant in ms, or 0 if not so much will ever leave.
    """
    freed, last_ms = 0, None
    for at_ms, amount in _by_instant(log, entries, length_ms, holds):
        if last_ms is not None and at_ms != last_ms and freed >= need:
            break
        freed, last_ms = freed + amount, at_ms
    return last_ms + length_ms if last_ms is not None and freed >= need else 0


def _by_instant(log: Log, entries: Iterable[Entry], length_ms: int, holds: Iterable[Entry]) -> Iterator[Entry]:
    """Entries, slots and holds in the order in which they leave; a slot is as old as the last instant in it."""
    width = width_ms(length_ms)
    others = sorted([*(((number + 1) * width - 1, amount) for number, amount in log.slots), *holds])
    at = 0
    for entry in entries:
        while at < len(others) and others[at][0] < entry[0]:
            yield others[at]
            at += 1
        yield entry
    yield from others[at:]
