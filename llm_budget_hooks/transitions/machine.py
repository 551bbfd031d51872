"""The two-phase state machine: what a store does in its one atomic step.

Pure: it knows no I/O and no clock. It is what the stores in Python run, and the oracle that the Lua of the
Redis store is held equal to. Each function reads, then checks, then writes; a refusal writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from llm_budget_hooks.transitions import reading, records, rolling
from llm_budget_hooks.transitions.accounts import current, expiry, log_end, log_take, prolong, roll
from llm_budget_hooks.transitions.cells import Cells
from llm_budget_hooks.transitions.commands import (
    MAX_AMOUNT,
    SWEEP_LIMIT,
    Balances,
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
    Shape,
    State,
    Terms,
    Verdict,
    for_ledger,
)
from llm_budget_hooks.transitions.failures import failure

Command = (
    Reserve
    | Finish
    | Read
    | Orphans
    | records.Settings
    | records.Samples
    | records.Once
    | records.Post
    | records.Take
    | records.Epoch
)
Answer = (
    Reserved
    | Finished
    | Balances
    | OrphanList
    | records.SettingsNow
    | records.Sampled
    | records.OnceAnswer
    | records.Taken
    | records.EpochNow
)

EMPTY = Shape(())

_USD, _TOKENS, _CALLS, _UTTERANCES, _IN_FLIGHT = (int(m) for m in Meter)
_CALENDAR, _FIXED, _ROLLING, _ANSWER, _GAUGE = (int(k) for k in Kind)
_OPEN, _EXPIRED, _RELEASED, _CHARGED, _SETTLED = (int(s) for s in State)
_STARTED = (_FIXED, _ANSWER)
_NOTHING_SPENT = (_OPEN, _RELEASED)
_KINDS = ("open", "expired", "released", "charged", "settled")


def apply(cells: Cells, command: Command, now_ms: int) -> Answer:
    """Carry out one command.

    Args:
        cells: the store's records, in one atomic step.
        command: what is asked.
        now_ms: the store's time; the command's own `now_ms` goes before it.
    """
    now = now_ms if command.now_ms is None else command.now_ms
    return _STEPS[type(command)](cells, command, now)


def reserve(cells: Cells, command: Reserve, now: int) -> Reserved:
    """Hold, check or charge, all or nothing."""
    if cells.due_at() <= now:
        sweep(cells, command.scopes, command.terms, now)
    mode = command.mode
    if mode == Mode.REPLAY and not records.advance(cells, command.actual, now):
        return Reserved(Verdict.ENDED, now, state=_SETTLED)
    hold = _known(cells, command.id, now, longer=mode == Mode.REPLAY)
    if hold is not None:
        return _again(command, hold, now)
    if mode != Mode.REPLAY and cells.revision() != command.revision:
        return Reserved(Verdict.STALE, now)
    if mode != Mode.REPLAY and not command.from_ms <= now < command.until_ms:
        return Reserved(Verdict.CLOCK, now)
    amounts = list(command.amounts)
    utterance, runs = None, None
    if command.utterance or command.history:
        history = f"y:{command.history}" if command.history else ""
        utterance, known, *accounts = cells.load((command.utterance, history, *command.keys))
        if history:
            runs = tuple(known.runs) if known is not None else ()
            if sum([at_ms > command.since_ms for at_ms, _ in runs]) >= records.FEWEST:
                return Reserved(Verdict.LEARN, now, runs=runs)
        if command.utterance:
            utterance = _utterance(command, amounts, utterance, now)
    else:
        accounts = cells.load(command.keys)
    starts = [0] * len(amounts)
    failures = _check(cells, command, amounts, accounts, starts, utterance, now)
    if failures and mode not in (Mode.FORCE, Mode.REPLAY):
        return Reserved(Verdict.REFUSED, now, failures=tuple(failures))
    if mode == Mode.CHECK:
        return Reserved(Verdict.ADMITTED, now)
    answer = _admit(cells, command, amounts, accounts, starts, utterance, now)
    answer.runs = runs
    return answer


def _again(command: Reserve, hold: Hold, now: int) -> Reserved:
    if hold.content and hold.content != command.content:
        return Reserved(Verdict.CONFLICT, now)
    if hold.state != _OPEN:
        return Reserved(Verdict.ENDED, now, state=hold.state)
    return Reserved(Verdict.DUPLICATE, now, hold.created_ms, hold.deadline_ms)


def _utterance(command: Reserve, amounts: list[int], cell: list[Any] | None, now: int) -> list[Any]:
    """The utterance's cell, a new one if it begins with this call; what it was counted in asks for nothing more."""
    terms = command.terms
    if cell is None:
        return [now, now, 0, []]
    if now - cell[1] > terms.utterance_timeout_ms or cell[2] >= terms.utterance_max_calls:
        return [max(now, cell[0] + 1), now, 0, []]
    for at, rule in enumerate(command.shape.rules):
        if rule.meter == _UTTERANCES and base(command.keys[at]) in cell[3]:
            amounts[at] = 0
    return cell


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
        if kind == _ROLLING:
            if account is None:
                account = accounts[at] = rolling.Log(left_ms=now - 1)
            else:
                roll(cells, command.keys[at], account, rule, now)
            spent, held = account.total, account.reserved
        else:
            if account is None or kind in _STARTED:
                account = accounts[at] = current(account, rule, utterance, now)
            spent, held, starts[at] = account
        amount = amounts[at]
        if spent + held + amount > rule.limit and amount:
            failures.append(failure(cells, command, at, (spent, held, amount), account, now))
    return failures


def _admit(
    cells: Cells,
    command: Reserve,
    amounts: list[int],
    accounts: list[Any],
    starts: list[int],
    utterance: list[Any] | None,
    now: int,
) -> Reserved:
    terms, keys, mode = command.terms, command.keys, command.mode
    charged = mode > Mode.HOLD
    enters = mode == Mode.ENTER or not command.id
    _take(cells, command, amounts, accounts, now)
    if utterance is not None:
        hits = [base(k) for k, r in zip(keys, command.shape.rules, strict=True) if r.meter == _UTTERANCES]
        utterance[1] = now
        utterance[2] += not enters
        utterance[3] = utterance[3] + [hit for hit in hits if hit not in utterance[3]]
        cells.save(command.utterance, utterance, now + terms.utterance_timeout_ms + terms.timeout_ms)
    if enters:
        return Reserved(Verdict.ADMITTED, now, now, now, tuple(amounts), tuple(starts))
    deadline = now + terms.timeout_ms
    held = tuple(amounts)
    hold = Hold(
        command.content, _OPEN, now, deadline, terms.timeout_ms,
        command.shape, keys, command.scopes, held, tuple(starts), command.note,
    )  # fmt: skip
    spent: tuple[int, ...] = ()
    if charged:
        spent = tuple([a.total if type(a) is rolling.Log else a[0] for a in accounts])
        _close(hold, _SETTLED, None, None, terms, now)
        if terms.outbox_max and for_ledger(command.note):
            cells.post(("settled", command.id, "", now, command.note, command.actual), terms.outbox_max)
    else:
        cells.enter(command.id, command.scopes, deadline)
    cells.save_hold(command.id, hold)
    return Reserved(Verdict.ADMITTED, now, now, deadline, held, tuple(starts), spent=spent)


def _take(cells: Cells, command: Reserve, amounts: list[int], accounts: list[Any], now: int) -> None:
    """Put the amounts into the accounts, which are up to now: as spent where they are kept, else as reserved."""
    terms, keys, save, charged = command.terms, command.keys, cells.save, command.mode > Mode.HOLD
    for at, rule in enumerate(command.shape.rules):
        kind, until = rule.kind, rule.until_ms
        if until and now >= until:
            continue
        if charged and rule.meter == _IN_FLIGHT:
            amounts[at] = 0
        key, amount, account = keys[at], amounts[at], accounts[at]
        if not key or not (amount or kind in _STARTED):
            continue
        if kind == _ROLLING:
            log_take(cells, key, rule, account, amount, charged or rule.kept, terms, now)
            continue
        side = 0 if charged or rule.kept else 1
        total = account[side] + amount
        account[side] = total if total < MAX_AMOUNT else MAX_AMOUNT
        save(key, account, until or expiry(rule, account[2], terms, now))


def finish(cells: Cells, command: Finish, now: int) -> Finished:
    """Settle, release or extend one hold."""
    if cells.due_at() <= now:
        sweep(cells, command.hold.scopes if command.hold else (), command.terms, now)
    if command.place and not records.advance(cells, command.place, now):
        return Finished(Ended.ALREADY_SETTLED, now, state=_SETTLED)
    carried = command.hold
    hold = _known(cells, command.id, now, longer=carried is not None)
    if hold is None:
        if carried is None or _may_be_booked(carried, command.terms, now):
            return _unknown(cells, command, now)
        hold = carried
    if command.ending == Ending.SETTLE:
        return _settle(cells, command, hold, now)
    ended = _release if command.ending == Ending.RELEASE else _extend
    return ended(cells, command, hold, now)


def _known(cells: Cells, id: str, now: int, *, longer: bool) -> Hold | None:
    """A hold that is open or remembered; `longer`: also one of which all is kept, as it was charged what it held."""
    hold = cells.hold(id)
    if hold is None or hold.state == _OPEN or now < (hold.kept_until_ms if longer else hold.until_ms):
        return hold
    return None


def _may_be_booked(carried: Hold, terms: Terms, now: int) -> bool:
    """Whether a hold may have had a final end, from another copy, which is forgotten after `remember_ms`."""
    last_open_ms = carried.deadline_ms - carried.timeout_ms
    return carried.state in (_OPEN, _EXPIRED) and now - last_open_ms >= terms.remember_ms


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
    prolong(cells, hold, command.terms, now)
    return Finished(Ended.EXTENDED, now, hold.deadline_ms)


def _release(cells: Cells, command: Finish, hold: Hold, now: int) -> Finished:
    if hold.state == _SETTLED:
        return Finished(Ended.ALREADY_SETTLED, now, state=hold.state)
    if hold.state == _RELEASED:
        return Finished(Ended.ALREADY_RELEASED, now, state=hold.state)
    lost = hold is command.hold
    spent = _end(cells, command.id, hold, _RELEASED, 0, 0, command.terms, now, command.actual, lost=lost)
    return Finished(Ended.RELEASED, now, 0, False, _RELEASED, spent)


def _settle(cells: Cells, command: Finish, hold: Hold, now: int) -> Finished:
    was, lost = hold.state, hold is command.hold
    if was == _SETTLED:
        return Finished(Ended.ALREADY_SETTLED, now, differs=_differs(command, hold), state=was)
    if not command.final:
        if was != _OPEN:
            return Finished(Ended.ALREADY_RELEASED if was == _RELEASED else Ended.ALREADY_SETTLED, now, state=was)
        spent = _end(cells, command.id, hold, _CHARGED, None, None, command.terms, now, command.actual, lost=lost)
        return Finished(Ended.SETTLED, now, 0, False, _CHARGED, spent)
    spent = _end(
        cells, command.id, hold, _SETTLED, command.cost_nusd, command.tokens, command.terms, now, command.actual,
        command.samples, lost=lost,
    )  # fmt: skip
    return Finished(Ended.SETTLED if was == _OPEN else Ended.LATE, now, 0, False, _SETTLED, spent)


def _differs(command: Finish, hold: Hold) -> bool:
    if not command.final:
        return False
    pairs = ((command.cost_nusd, hold.cost_nusd), (command.tokens, hold.tokens))
    return any(now is not None and then is not None and now != then for now, then in pairs)


def _end(
    cells: Cells,
    id: str,
    hold: Hold,
    state: int,
    cost_nusd: int | None,
    tokens: int | None,
    terms: Terms,
    now: int,
    actual: str = "",
    samples: tuple[tuple[str, int], ...] = (),
    *,
    lost: bool = False,
) -> tuple[int, ...]:
    """Move a hold into an ended state: in each account what was booked so far gives way to the actual.

    Of a hold that is lost, and known from its owner alone, nothing is reserved that could be freed.

    Returns:
        what is spent in each account now, 0 where nothing was changed.
    """
    keys, was = hold.keys, hold.state
    accounts = cells.load((*keys, *[f"y:{key}" for key, _ in samples]) if samples else keys)
    for (key, value), known in zip(samples, accounts[len(keys) :], strict=True):
        records.put_sample(cells, key, known, value, now)
    spent = _give_way(cells, hold, accounts, cost_nusd, tokens, terms, now, lost=lost)
    if was == _OPEN:
        cells.leave(id, hold.scopes, hold.deadline_ms)
    elif was == _EXPIRED:
        cells.expired(id, 0)
    if terms.outbox_max and for_ledger(hold.note):
        cells.post((_KINDS[state], id, _KINDS[was], now, hold.note, actual), terms.outbox_max)
    _close(hold, state, cost_nusd, tokens, terms, now)
    if state == _EXPIRED:
        cells.expired(id, hold.until_ms)
    cells.save_hold(id, hold)
    return spent


def _give_way(
    cells: Cells, hold: Hold, accounts: list[Any], cost_nusd: int | None, tokens: int | None, terms: Terms, now: int,
    *, lost: bool,
) -> tuple[int, ...]:  # fmt: skip
    """See `_end`: what the accounts of a hold have of it, before it is another state's."""
    keys, rules, was, save = hold.keys, hold.shape.rules, hold.state, cells.save
    spent = [0] * len(keys)
    for at, held in enumerate(hold.held):
        rule = rules[at]
        if rule.kept or not keys[at]:
            continue
        gauge = rule.meter == _IN_FLIGHT
        target = 0 if gauge else cost_nusd if rule.meter == _USD else tokens
        if target is None:
            target = held
        freed = held if was == _OPEN and not lost else 0
        more = target if gauge or was in _NOTHING_SPENT else target - held
        if not freed and not more:
            continue
        account, key, kind, start = accounts[at], keys[at], rule.kind, hold.starts[at]
        if kind == _ROLLING:
            spent[at] = log_end(cells, key, rule, account, freed, more, hold.created_ms, terms, now)
            continue
        if account is None:
            account = [0, 0, start]
        elif kind in _STARTED and account[2] != start:
            continue
        until = rule.until_ms or expiry(rule, start, terms, now)
        if now < until:
            total, left = account[0] + more, account[1] - freed
            spent[at] = account[0] = 0 if total < 0 else total if total < MAX_AMOUNT else MAX_AMOUNT
            account[1] = left if left > 0 else 0
            save(key, account, until)
    return tuple(spent)


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
                _end(cells, id, hold, _EXPIRED, None, None, terms, now)
                room -= 1


def _read(cells: Cells, command: Read, now: int) -> Balances:
    sweep(cells, command.scopes, command.terms, now)
    return reading.read(cells, command, now)


def _orphans(cells: Cells, command: Orphans, now: int) -> OrphanList:
    sweep(cells, (), command.terms, now)
    return reading.orphans(cells, command, now)


_STEPS: dict[type, Callable[[Cells, Any, int], Answer]] = {
    Reserve: reserve,
    Finish: finish,
    Read: _read,
    Orphans: _orphans,
    records.Settings: records.settings,
    records.Samples: records.samples,
    records.Once: records.once,
    records.Post: records.post,
    records.Take: records.take,
    records.Epoch: records.epoch,
}
