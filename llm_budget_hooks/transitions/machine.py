"""The two-phase state machine: what a store does in its one atomic step.

Pure: it knows no I/O and no clock. It is what the stores in Python run, and the oracle that the Lua of the
Redis store is held equal to. Each function reads, then checks, then writes; a refusal writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from llm_budget_hooks.transitions import rolling
from llm_budget_hooks.transitions.commands import (
    MAX_AMOUNT,
    SWEEP_LIMIT,
    Answer,
    Balance,
    Balances,
    Command,
    Ended,
    Ending,
    Failure,
    Finish,
    Finished,
    Hold,
    Kind,
    Meter,
    Mode,
    OrphanList,
    Orphans,
    Read,
    Reserve,
    Reserved,
    Rule,
    Shape,
    State,
    Terms,
    Verdict,
)

EMPTY = Shape(())
GAUGE_TTL_MS = 2 * 86_400_000

_USD, _TOKENS, _CALLS, _UTTERANCES, _IN_FLIGHT = (int(m) for m in Meter)
_CALENDAR, _FIXED, _ROLLING, _ANSWER, _GAUGE = (int(k) for k in Kind)
_OPEN, _EXPIRED, _RELEASED, _CHARGED, _SETTLED = (int(s) for s in State)


class Cells(Protocol):
    """The records of one namespace, within one atomic step.

    A cell is a list ``[spent, reserved, start_ms]`` (an account), ``[start_ms, last_ms, calls, hits]`` (an
    utterance), a `rolling.Log`, or a list of `rolling.Entry`. A loaded cell may be changed in place, and is
    then saved. `until_ms` says when a cell may be forgotten; no decision depends on whether it was.
    """

    def load(self, keys: Sequence[str]) -> list[Any]:
        """The cells under these keys, None where there is none; an empty key has none."""

    def save(self, key: str, cell: Any, until_ms: int) -> None:
        """Store a cell."""

    def append(self, key: str, entry: rolling.Entry, until_ms: int) -> None:
        """Add an entry to the list of entries under a key."""

    def hold(self, id: str) -> Hold | None:
        """The hold, open or ended."""

    def save_hold(self, id: str, hold: Hold) -> None:
        """Store a hold; an ended one may be forgotten after its `until_ms`."""

    def enter(self, id: str, scopes: Sequence[str], deadline_ms: int) -> None:
        """Put an open hold into the indexes of these scopes."""

    def leave(self, id: str, scopes: Sequence[str], deadline_ms: int) -> None:
        """Take a hold out of the indexes of these scopes."""

    def first(self, scope: str, limit: int) -> list[tuple[int, str]]:
        """Deadline and id of the first open holds of a scope, by deadline, then id."""

    def due_at(self) -> int:
        """The deadline of the first open hold, or a time that never comes."""

    def expired(self, id: str, until_ms: int) -> None:
        """List an expired hold as an orphan; 0 takes it off the list."""

    def orphans(self, now_ms: int, limit: int) -> list[str]:
        """The ids of orphans that are still remembered."""


def apply(cells: Cells, command: Command, now_ms: int) -> Answer:
    """Carry out one command.

    Args:
        cells: the store's records, in one atomic step.
        command: what is asked.
        now_ms: the store's time; the command's own `now_ms` goes before it.
    """
    now = now_ms if command.now_ms is None else command.now_ms
    if type(command) is Reserve:
        return reserve(cells, command, now)
    if type(command) is Finish:
        return finish(cells, command, now)
    if type(command) is Read:
        return read(cells, command, now)
    assert isinstance(command, Orphans)  # noqa: S101 - the union has no other member
    return orphans(cells, command, now)


def reserve(cells: Cells, command: Reserve, now: int) -> Reserved:
    """Hold, check or charge, all or nothing."""
    sweep(cells, command.scopes, command.terms, now)
    known = _known(cells.hold(command.id), now)
    if known is not None:
        return _again(command, known, now)
    if not command.from_ms <= now < command.until_ms:
        return Reserved(Verdict.CLOCK, now)
    utterance, fresh = _utterance(cells, command, now)
    accounts = cells.load(command.keys)
    amounts = _amounts(command, utterance, fresh)
    starts = [0] * len(amounts)
    failures = _check(cells, command, amounts, accounts, starts, utterance, now)
    if failures and command.mode != Mode.FORCE:
        return Reserved(Verdict.REFUSED, now, failures=tuple(failures))
    if command.mode == Mode.CHECK:
        return Reserved(Verdict.ADMITTED, now)
    return _admit(cells, command, amounts, accounts, starts, utterance, now)


def _known(hold: Hold | None, now: int) -> Hold | None:
    return None if hold is None or (hold.state != _OPEN and now >= hold.until_ms) else hold


def _again(command: Reserve, hold: Hold, now: int) -> Reserved:
    if hold.content and hold.content != command.content:
        return Reserved(Verdict.CONFLICT, now)
    if hold.state != _OPEN:
        return Reserved(Verdict.ENDED, now, state=hold.state)
    return Reserved(Verdict.DUPLICATE, now, hold.created_ms, hold.deadline_ms)


def _utterance(cells: Cells, command: Reserve, now: int) -> tuple[list[Any] | None, bool]:
    """The utterance's cell, and whether it begins with this call."""
    if not command.utterance:
        return None, True
    cell = cells.load((command.utterance,))[0]
    terms = command.terms
    if cell is None:
        return [now, now, 0, []], True
    if now - cell[1] > terms.utterance_timeout_ms or cell[2] >= terms.utterance_max_calls:
        return [max(now, cell[0] + 1), now, 0, []], True
    return cell, False


def _amounts(command: Reserve, utterance: list[Any] | None, fresh: bool) -> list[int]:
    amounts = list(command.amounts)
    if utterance is not None and not fresh:
        for at, rule in enumerate(command.shape.rules):
            if rule.meter == _UTTERANCES and base(command.keys[at]) in utterance[3]:
                amounts[at] = 0
    return amounts


def base(key: str) -> str:
    """An account's key without the start of its window."""
    return key.partition(":")[0]


def _check(
    cells: Cells,
    command: Reserve,
    amounts: list[int],
    accounts: list[Any],
    starts: list[int],
    utterance: list[Any] | None,
    now: int,
) -> list[Failure]:
    """Bring the accounts up to now and find the rules that say no."""
    failures = []
    for at, rule in enumerate(command.shape.rules):
        account = accounts[at]
        kind = rule.kind
        if kind == _CALENDAR:
            if account is None:
                account = accounts[at] = [0, 0, 0]
            spent, held, _ = account
        elif kind == _ROLLING:
            account = accounts[at] = account if account is not None else rolling.Log()
            spent = _rolled(cells, command.keys[at], account, rule, now)[0]
            held = account.reserved
        else:
            account = accounts[at] = _current(account, rule, utterance, now)
            spent, held, starts[at] = account
        amount = amounts[at]
        if amount and spent + held + amount > rule.limit:
            failures.append(_failure(cells, command, at, (spent, held, amount), account, now))
    return failures


def _current(account: list[int] | None, rule: Rule, utterance: list[Any] | None, now: int) -> list[int]:
    """The account of the window that runs now; a new one if the stored one's window is over."""
    if rule.kind == _ANSWER:
        start = utterance[0] if utterance is not None else 0
        return account if account is not None and account[2] == start else [0, 0, start]
    if rule.kind == _FIXED:
        return account if account is not None and now < account[2] + rule.length_ms else [0, 0, now]
    return account if account is not None else [0, 0, 0]


def _rolled(cells: Cells, key: str, log: rolling.Log, rule: Rule, now: int) -> tuple[int, int]:
    """What is spent in a rolling account now, and how many single entries live."""
    rolling.trim(log, rule.length_ms, now)
    oldest = rolling.leaving(rule.length_ms, now)
    if not log.slots or log.slots[0][0] != oldest:
        return log.total, log.count
    entries = cells.load((f"{key}/{oldest}",))[0] or []
    total, count = rolling.dead(entries, rule.length_ms, now)
    return log.total - total, log.count - count


def _failure(cells: Cells, command: Reserve, at: int, numbers: tuple[int, int, int], account: Any, now: int) -> Failure:
    rule = command.shape.rules[at]
    spent, held, amount = numbers
    busy = spent + amount <= rule.limit
    resets = {_CALENDAR: rule.ends_ms, _FIXED: account[2] + rule.length_ms if rule.kind == _FIXED else 0}.get(
        rule.kind, 0
    )
    retry = 0
    if amount <= rule.limit:
        if busy:
            due = _earliest(cells, command, at, now)
            retry = min(resets, due) if resets else due
        elif rule.kind == _ROLLING:
            retry = _rolls_at(cells, command, at, numbers, account, now)
        else:
            retry = resets
    if rule.kind == _ROLLING:
        resets = retry
    return Failure(at, spent, held, amount, busy, resets, retry)


def _earliest(cells: Cells, command: Reserve, at: int, now: int) -> int:
    """The earliest deadline of a hold in the account; looked for among the first of its scope."""
    first = cells.first(scope_of(command.shape.rules[at], command.scopes), SWEEP_LIMIT)
    key = command.keys[at]
    for deadline, id in first:
        hold = cells.hold(id)
        if hold is not None and key in hold.keys:
            return max(deadline, now)
    return max(first[0][0], now) if first else now


def scope_of(rule: Rule, scopes: Sequence[str]) -> str:
    """The index that holds against this rule are in: scopes are the narrowest first, the global one last."""
    if rule.scope == "global":
        return scopes[-1]
    if rule.scope == "tenant":
        return scopes[-2]
    return scopes[0]


def _rolls_at(
    cells: Cells, command: Reserve, at: int, numbers: tuple[int, int, int], log: rolling.Log, now: int
) -> int:
    rule = command.shape.rules[at]
    spent, held, amount = numbers
    entries = _entries(cells, command.keys[at])
    retry = rolling.frees_at(log, entries, spent + held + amount - rule.limit, rule.length_ms, now)
    if retry:
        return retry
    retry = rolling.frees_at(log, entries, spent + amount - rule.limit, rule.length_ms, now)
    return max(retry, _earliest(cells, command, at, now))


def _entries(cells: Cells, key: str) -> Callable[[int], list[rolling.Entry]]:
    def of_slot(number: int) -> list[rolling.Entry]:
        return cells.load((f"{key}/{number}",))[0] or []

    return of_slot


def _admit(
    cells: Cells,
    command: Reserve,
    amounts: list[int],
    accounts: list[Any],
    starts: list[int],
    utterance: list[Any] | None,
    now: int,
) -> Reserved:
    terms = command.terms
    charged = command.mode in (Mode.CHARGE, Mode.FORCE)
    for at, rule in enumerate(command.shape.rules):
        if charged and rule.meter == _IN_FLIGHT:
            amounts[at] = 0
        if command.keys[at] and (amounts[at] or rule.kind in (_FIXED, _ANSWER)):
            _take(cells, command.keys[at], rule, accounts[at], amounts[at], charged or rule.kept, terms, now)
    if utterance is not None:
        hits = [base(k) for k, r in zip(command.keys, command.shape.rules, strict=True) if r.meter == _UTTERANCES]
        utterance[1] = now
        utterance[2] += 1
        utterance[3] = utterance[3] + [hit for hit in hits if hit not in utterance[3]]
        cells.save(command.utterance, utterance, now + terms.utterance_timeout_ms + terms.timeout_ms)
    hold = Hold(
        command.content, _OPEN, now, now + terms.timeout_ms, terms.timeout_ms,
        command.shape, command.keys, command.scopes, tuple(amounts), tuple(starts), command.note,
    )  # fmt: skip
    if charged:
        _close(hold, _SETTLED, None, None, terms, now)
    else:
        cells.enter(command.id, command.scopes, hold.deadline_ms)
    cells.save_hold(command.id, hold)
    return Reserved(Verdict.ADMITTED, now, now, hold.deadline_ms, tuple(amounts), tuple(starts))


def _take(cells: Cells, key: str, rule: Rule, account: Any, amount: int, kept: bool, terms: Terms, now: int) -> None:
    """Put an amount into an account: as spent if it is kept, else as reserved."""
    kind = rule.kind
    if kind != _ROLLING:
        at = 0 if kept else 1
        total = account[at] + amount
        account[at] = total if total < MAX_AMOUNT else MAX_AMOUNT
        until = rule.ends_ms + rule.length_ms if kind == _CALENDAR else expiry(rule, account[2], terms, now)
        cells.save(key, account, until)
    elif kept:
        _log(cells, key, account, rule, now, amount, terms, now)
    else:
        account.reserved = min(account.reserved + amount, MAX_AMOUNT)
        cells.save(key, account, expiry(rule, 0, terms, now))


def _log(cells: Cells, key: str, log: rolling.Log, rule: Rule, at_ms: int, amount: int, terms: Terms, now: int) -> None:
    """Book an amount at its reserve instant, unless that has left the window, and save the account."""
    live = _rolled(cells, key, log, rule, now)[1]
    until = expiry(rule, 0, terms, now)
    if amount and at_ms > now - rule.length_ms:
        single = live < terms.exact_entries
        number = rolling.insert(log, at_ms, amount, single, rule.length_ms)
        if single:
            cells.append(f"{key}/{number}", (at_ms, amount), until)
    cells.save(key, log, until)


def expiry(rule: Rule, start_ms: int, terms: Terms, now: int) -> int:
    """Until when an account is kept: until nothing can ask for it or settle in it any more."""
    if rule.kind == _CALENDAR:
        return rule.ends_ms + rule.length_ms
    if rule.kind == _FIXED:
        return start_ms + 2 * rule.length_ms
    if rule.kind == _ANSWER:
        return now + terms.utterance_timeout_ms + terms.timeout_ms
    if rule.kind == _ROLLING:
        return now + rule.length_ms + rolling.width_ms(rule.length_ms) + terms.timeout_ms
    return now + max(GAUGE_TTL_MS, 2 * terms.timeout_ms)


def finish(cells: Cells, command: Finish, now: int) -> Finished:
    """Settle, release or extend one hold."""
    sweep(cells, command.hold.scopes if command.hold else (), command.terms, now)
    hold = _known(cells.hold(command.id), now)
    if hold is None:
        hold = command.hold
        if hold is None:
            return _unknown(cells, command, now)
    if command.ending == Ending.EXTEND:
        return _extend(cells, command, hold, now)
    if command.ending == Ending.RELEASE:
        return _release(cells, command, hold, now)
    return _settle(cells, command, hold, now)


def _unknown(cells: Cells, command: Finish, now: int) -> Finished:
    if command.bury:
        mark = Hold("", _RELEASED, now, now, 0, EMPTY, (), (), (), ())
        mark.until_ms = now + command.terms.remember_ms
        cells.save_hold(command.id, mark)
    return Finished(Ended.UNKNOWN, now)


def _extend(cells: Cells, command: Finish, hold: Hold, now: int) -> Finished:
    if hold.state != _OPEN:
        return Finished(
            Ended.ALREADY_RELEASED if hold.state == _RELEASED else Ended.ALREADY_SETTLED, now, state=hold.state
        )
    cells.leave(command.id, hold.scopes, hold.deadline_ms)
    hold.timeout_ms = command.terms.timeout_ms
    hold.deadline_ms = now + hold.timeout_ms
    cells.enter(command.id, hold.scopes, hold.deadline_ms)
    cells.save_hold(command.id, hold)
    return Finished(Ended.EXTENDED, now, hold.deadline_ms)


def _release(cells: Cells, command: Finish, hold: Hold, now: int) -> Finished:
    if hold.state == _SETTLED:
        return Finished(Ended.ALREADY_SETTLED, now, state=hold.state)
    if hold.state == _RELEASED:
        return Finished(Ended.ALREADY_RELEASED, now, state=hold.state)
    _end(cells, command.id, hold, _RELEASED, (0, 0), command.terms, now)
    return Finished(Ended.RELEASED, now, state=_RELEASED)


def _settle(cells: Cells, command: Finish, hold: Hold, now: int) -> Finished:
    if hold.state == _SETTLED:
        return Finished(Ended.ALREADY_SETTLED, now, differs=_differs(command, hold), state=hold.state)
    if hold.state != _OPEN and not command.final:
        ended = Ended.ALREADY_RELEASED if hold.state == _RELEASED else Ended.ALREADY_SETTLED
        return Finished(ended, now, state=hold.state)
    late = hold.state != _OPEN
    state = _SETTLED if command.final else _CHARGED
    actual = (command.cost_nusd, command.tokens) if command.final else (None, None)
    _end(cells, command.id, hold, state, actual, command.terms, now)
    return Finished(Ended.LATE if late else Ended.SETTLED, now, state=state)


def _differs(command: Finish, hold: Hold) -> bool:
    if not command.final:
        return False
    pairs = ((command.cost_nusd, hold.cost_nusd), (command.tokens, hold.tokens))
    return any(now is not None and then is not None and now != then for now, then in pairs)


def _end(
    cells: Cells, id: str, hold: Hold, state: int, actual: tuple[int | None, int | None], terms: Terms, now: int
) -> None:
    """Move a hold into an ended state: in each account what was booked so far gives way to the actual."""
    accounts = cells.load(hold.keys)
    for at, rule in enumerate(hold.shape.rules):
        if rule.kept or not hold.keys[at]:
            continue
        held = hold.held[at]
        target = 0 if rule.meter == _IN_FLIGHT else actual[0 if rule.meter == _USD else 1]
        if target is None:
            target = held
        before = 0 if rule.meter == _IN_FLIGHT or hold.state in (_OPEN, _RELEASED) else held
        freed = held if hold.state == _OPEN else 0
        if freed or target != before:
            _replace(cells, hold, at, accounts[at], (freed, target - before), terms, now)
    if hold.state == _OPEN:
        cells.leave(id, hold.scopes, hold.deadline_ms)
    if hold.state == _EXPIRED:
        cells.expired(id, 0)
    _close(hold, state, actual[0], actual[1], terms, now)
    if state == _EXPIRED:
        cells.expired(id, hold.until_ms)
    cells.save_hold(id, hold)


def _replace(cells: Cells, hold: Hold, at: int, account: Any, change: tuple[int, int], terms: Terms, now: int) -> None:
    """In one account, free what was reserved and add to what is spent, if its window is still known."""
    rule, key, start = hold.shape.rules[at], hold.keys[at], hold.starts[at]
    freed, spent = change
    kind = rule.kind
    if kind == _ROLLING:
        log = account if account is not None else rolling.Log()
        log.reserved = max(log.reserved - freed, 0)
        _log(cells, key, log, rule, hold.created_ms, spent, terms, now)
        return
    if account is None:
        account = [0, 0, start]
    if kind != _CALENDAR and kind != _GAUGE and account[2] != start:
        return
    until = rule.ends_ms + rule.length_ms if kind == _CALENDAR else expiry(rule, start, terms, now)
    if now >= until:
        return
    booked, reserved = account[0] + spent, account[1] - freed
    account[0] = 0 if booked < 0 else booked if booked < MAX_AMOUNT else MAX_AMOUNT
    account[1] = reserved if reserved > 0 else 0
    cells.save(key, account, until)


def _close(hold: Hold, state: int, cost_nusd: int | None, tokens: int | None, terms: Terms, now: int) -> None:
    hold.state = state
    hold.until_ms = now + terms.remember_ms
    if state == _SETTLED:
        hold.cost_nusd, hold.tokens = cost_nusd, tokens
        hold.shape, hold.keys, hold.scopes, hold.held, hold.starts = EMPTY, (), (), (), ()


def sweep(cells: Cells, scopes: Iterable[str], terms: Terms, now: int) -> None:
    """End due holds, at most `SWEEP_LIMIT`, in the order of the given scopes, the last of which is the global one."""
    if cells.due_at() > now:
        return
    room = SWEEP_LIMIT
    for scope in tuple(scopes) or ("",):
        for deadline, id in cells.first(scope, room) if room else ():
            if deadline > now:
                break
            hold = cells.hold(id)
            if hold is not None:
                _end(cells, id, hold, _EXPIRED, (None, None), terms, now)
                room -= 1


def read(cells: Cells, command: Read, now: int) -> Balances:
    """The balances of accounts; due holds are ended first."""
    sweep(cells, command.scopes, command.terms, now)
    if not command.from_ms <= now < command.until_ms:
        return Balances(Verdict.CLOCK, now)
    utterance = cells.load((command.utterance,))[0] if command.utterance else None
    if utterance is not None and now >= utterance[1] + command.terms.utterance_timeout_ms + command.terms.timeout_ms:
        utterance = None
    accounts = cells.load(command.keys)
    found = []
    for at, rule in enumerate(command.shape.rules):
        if rule.kind == _ROLLING:
            found.append(_rolling_balance(cells, command.keys[at], accounts[at], rule, now))
            continue
        spent, held, start = _current(accounts[at], rule, utterance, now)
        fixed = rule.kind == _FIXED and accounts[at] is not None and start == accounts[at][2]
        resets = start + rule.length_ms if fixed else rule.ends_ms
        found.append(Balance(spent, held, resets))
    return Balances(Verdict.ADMITTED, now, tuple(found), utterance[2] if utterance else 0)


def _rolling_balance(cells: Cells, key: str, log: rolling.Log | None, rule: Rule, now: int) -> Balance:
    if log is None:
        return Balance(0, 0, 0)
    spent = _rolled(cells, key, log, rule, now)[0]
    resets = rolling.frees_at(log, _entries(cells, key), 1, rule.length_ms, now) if spent else 0
    return Balance(spent, log.reserved, resets)


def orphans(cells: Cells, command: Orphans, now: int) -> OrphanList:
    """Open holds, then the expired ones that are still remembered; or one hold."""
    sweep(cells, (), command.terms, now)
    if command.id is not None:
        ids = [command.id]
    else:
        ids = [id for _, id in cells.first("", command.limit)]
        ids += cells.orphans(now, command.limit)
    holds = [(id, _known(cells.hold(id), now)) for id in ids[: command.limit]]
    return OrphanList(now, tuple((id, hold) for id, hold in holds if hold is not None))
