"""Balances that a store has lost or that were set back, put back from the ledger.

For each account that is still kept, what the ledger has is added up and held against what the store has; the
difference is booked as the end of a hold that nobody took, so balances only go up, and a second rebuilding finds
nothing to do. Ends of the last minutes are marked as known, so that a process which books its own again changes
nothing, and one that settles late corrects what was charged. Open holds and ceilings of single answers are not put
back, and windows that start at the first use only as far as the ledger tells when that was.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

from llm_budget_hooks.errors import StoreUnavailable
from llm_budget_hooks.keys import digest
from llm_budget_hooks.models import Call, instant
from llm_budget_hooks.models.trail import Entry, Run
from llm_budget_hooks.plan import Planner
from llm_budget_hooks.stores.base import Store
from llm_budget_hooks.transitions import (
    MAX_AMOUNT,
    Ending,
    Epoch,
    Finish,
    Hold,
    Kind,
    Meter,
    Once,
    Read,
    Rule,
    Shape,
    State,
    Take,
    Taken,
)
from llm_budget_hooks.windows import Window

RECENT_MS: Final = 120_000
_log = logging.getLogger("llm_budget_hooks")
_ALONE_MS: Final = 30_000
_WAIT_S: Final = 1.0
_PAGE: Final = 1_000
_CHUNK: Final = 40
_KINDS: Final = (Kind.CALENDAR, Kind.FIXED, Kind.ROLLING)
_EMPTY: Final = Shape(())


@dataclass(slots=True)
class _Account:
    """One account as the ledger knows it: its rule, when its window began, and what was booked when."""

    rule: Rule
    start_ms: int = 0
    entries: list[tuple[int, int]] = field(default_factory=list)

    @property
    def total(self) -> int:
        return sum(amount for _, amount in self.entries)


def recover(store: Any, ledger: Any, planner: Planner, now_ms: int | None, lost: StoreUnavailable) -> None:
    """Let a store whose balances were lost be asked again: somebody has put them back, or it is done here.

    Args:
        store: the one that said so.
        ledger: where the balances are; None: nobody has them.
        planner: of the policy in force.
        now_ms: the time, where the caller's clock rules; else None.
        lost: what the store said.

    Raises:
        StoreUnavailable: they are not back yet.
    """
    known = store.epoch  # another thread of this process may adopt the next one meanwhile
    if not _is_lost(store):
        return
    repair = store.repairing()
    try:
        found = repair.execute(Epoch()).stamp
        epoch = found.partition(" ")[0]
        if ledger is not None and epoch in ("", known):
            if until_s := _turn(store, repair, epoch):
                try:
                    _rebuild_or_begin(repair, ledger, planner, now_ms, new=known is None)
                    start(store, repair, epoch)
                except BaseException:
                    store.unfinished[epoch] = until_s
                    raise
                return
            found = _others(repair, epoch)
        if found.partition(" ")[0] in ("", known):
            raise lost
        store.adopt(found)
    finally:
        repair.close()


def _turn(store: Any, repair: Store, epoch: str) -> float:
    """Until when, by `time.monotonic`, this process alone may rebuild what is lost; 0: another one may."""
    until_s: float = store.unfinished.pop(epoch, 0.0)
    now_s = time.monotonic()
    if now_s < until_s:
        return until_s
    first: Any = repair.execute(Once(digest("rebuild", epoch), 0, _ALONE_MS, 2 * _ALONE_MS))
    return now_s + _ALONE_MS / 1000 if first.yes else 0.0


def _is_lost(store: Store) -> bool:
    """Whether the store still says so: another task may have put the balances back since."""
    try:
        store.execute(Epoch())
    except StoreUnavailable as error:
        if not error.lost:
            raise
        return True
    return False


def _rebuild_or_begin(repair: Store, ledger: Any, planner: Planner, now_ms: int | None, *, new: bool) -> None:
    """Rebuild; a process that has never seen the balances begins without if their ledger is down."""
    try:
        _drain(repair, ledger, now_ms)
        rebuild(repair, ledger, planner, now_ms)
    except StoreUnavailable:
        raise
    except Exception as error:
        if not new:
            raise
        _log.warning("The ledger cannot tell whether there were balances before: %s", error)


def _drain(repair: Store, ledger: Any, now_ms: int | None) -> None:
    """Let the ledger have what the store still has for it, such as of processes that have not noticed, for a moment."""
    owner, done, ends = os.urandom(8).hex(), "", time.monotonic() + _WAIT_S
    while time.monotonic() < ends:
        taken: Any = repair.execute(Take(owner, done, _PAGE, now_ms))
        if taken.leased and not taken.rows:
            return
        if taken.leased:
            ledger.write(entries_of(taken))
            done = taken.rows[-1][0]
        else:
            time.sleep(0.02)


def entries_of(taken: Taken) -> list[Entry]:
    """The rows of an outbox as a ledger takes them."""
    return [
        Entry(number, at_ms, kind, id, was, facts, actual) for number, kind, id, was, at_ms, facts, actual in taken.rows
    ]


def _others(repair: Any, epoch: str) -> str:
    """Wait for a moment until somebody else has put the balances back, and give what there is then."""
    ends = time.monotonic() + _WAIT_S
    while (found := str(repair.execute(Epoch()).stamp)).partition(" ")[0] == epoch and time.monotonic() < ends:
        time.sleep(0.02)
    return found


def start(store: Any, repair: Store, epoch: str) -> None:
    """Let what a store has now be its balances, under an epoch that every process notices."""
    made: Any = repair.execute(Epoch(epoch, os.urandom(8).hex()))
    store.adopt(made.stamp)


def rebuild_now(store: Any, ledger: Any, planner: Planner, now_ms: int | None) -> int:
    """Same as `rebuild`, because somebody asks for it: without a ledger what the store has is taken as it is."""
    if not store.forgets:
        return rebuild(store, ledger, planner, now_ms) if ledger is not None else 0
    repair = store.repairing()
    try:
        raised = rebuild(repair, ledger, planner, now_ms) if ledger is not None else 0
        if _is_lost(store):
            start(store, repair, repair.execute(Epoch()).stamp.partition(" ")[0])
        return raised
    finally:
        repair.close()


def rebuild(store: Store, ledger: Any, planner: Planner, now_ms: int | None) -> int:
    """Raise the balances of a store to what the ledger says.

    Args:
        store: is asked and told, command by command.
        ledger: a `Ledger` that has everything.
        planner: of the policy in force.
        now_ms: the time, where the caller's clock rules; else None.

    Returns:
        how many accounts were raised.

    Raises:
        StoreUnavailable: the store does not answer.
    """
    now = store.now_ms() if now_ms is None else now_ms
    runs = sorted(_runs(ledger, _longest_ms(planner), now), key=lambda run: run.at_ms)
    accounts = _accounts(runs, planner, now)
    _adjust(accounts, ledger, planner, now)
    for run in runs:
        if run.at_ms > now - RECENT_MS:
            store.execute(_mark(run, accounts, planner, now_ms))
    raised, keys = 0, [*accounts]
    for at in range(0, len(keys), _CHUNK):
        some = {key: accounts[key] for key in keys[at : at + _CHUNK]}
        raised += _raise(store, some, planner, now_ms)
    return raised


def _longest_ms(planner: Planner) -> int:
    policy = planner.policy
    windows = [Window.parse(spec, policy.timezone) for spec in {budget.window for _, budget in policy.written()}]
    return 2 * max((window.length_ms for window in windows if window is not None), default=0)


def _runs(ledger: Any, length_ms: int, now_ms: int) -> Iterator[Run]:
    after = None
    since = instant(max(now_ms - length_ms - RECENT_MS, 0))
    while True:
        page = ledger.runs(since=since, after=after, limit=_PAGE)
        yield from page.items
        after = page.after
        if after is None:
            return


def _accounts(runs: list[Run], planner: Planner, now_ms: int) -> dict[str, _Account]:
    accounts: dict[str, _Account] = {}
    seen: set[tuple[str, ...]] = set()
    for run in runs:
        command = planner.plan(_call(run), run.at_ms).command
        amounts = _amounts(run, seen)
        for rule, key in zip(command.shape.rules, command.keys, strict=True):
            amount = amounts.get(rule.meter, 0)
            if rule.kind in _KINDS and key and amount and not (rule.until_ms and rule.until_ms <= now_ms):
                _enter(accounts.setdefault(key, _Account(rule)), run.at_ms, amount, now_ms)
    return accounts


def _call(run: Run) -> Call:
    return Call(model=run.model, tenant=run.tenant, user=run.user or None, feature=run.feature or None, amount=0)


def _adjust(accounts: dict[str, _Account], ledger: Any, planner: Planner, now_ms: int) -> None:
    """Add the corrections of administrators."""
    after = None
    while True:
        page = ledger.adjustments(after=after, limit=_PAGE)
        for row in page.items:
            command, lines = planner.read(row.tenant, row.user or None, row.at_ms)
            for line, rule, key in zip(lines, command.shape.rules, command.keys, strict=True):
                chosen = row.budget in ("", line.budget.name) and rule.meter == Meter.USD and rule.kind in _KINDS
                if chosen and not (rule.until_ms and rule.until_ms <= now_ms):
                    _enter(accounts.setdefault(key, _Account(rule)), row.at_ms, row.booked_nusd, now_ms)
        after = page.after
        if after is None:
            return


def _enter(account: _Account, at_ms: int, amount: int, now_ms: int) -> None:
    rule = account.rule
    if rule.kind == Kind.FIXED and at_ms >= account.start_ms + rule.length_ms:
        account.start_ms, account.entries = at_ms, []
    if rule.kind == Kind.CALENDAR or at_ms > now_ms - rule.length_ms:
        account.entries.append((at_ms, amount))


def _amounts(run: Run, seen: set[tuple[str, ...]]) -> dict[int, int]:
    """What a row of the ledger adds to each meter."""
    first = not run.is_again
    asked = (run.tenant, run.user, run.utterance)
    new = first and asked not in seen
    seen.add(asked)
    tokens = run.input_tokens + run.output_tokens if run.kind == "settled" else 0
    return {Meter.USD: run.booked_nusd, Meter.TOKENS: tokens, Meter.CALLS: int(first), Meter.UTTERANCES: int(new)}


def _mark(run: Run, accounts: dict[str, _Account], planner: Planner, now_ms: int | None) -> Finish:
    """Let the store know that a hold has ended: for good, or so that a late settle still corrects its charge."""
    terms = replace(planner.terms, outbox_max=0)
    if run.kind == "settled":
        known = Hold("", State.RELEASED, run.at_ms, run.at_ms, 0, _EMPTY, (), (), (), ())
        return Finish(run.id, Ending.SETTLE, terms, run.cost_nusd, None, True, known, now_ms=now_ms)
    plan = planner.plan(_call(run), run.at_ms).command
    rules = plan.shape.rules
    keys = tuple(key if key in accounts else "" for key in plan.keys)
    held = tuple(run.booked_nusd if rule.meter == Meter.USD and run.kind != "released" else 0 for rule in rules)
    starts = tuple(accounts[key].start_ms if key else 0 for key in keys)
    hold = Hold("", State.OPEN, run.at_ms, run.at_ms, 0, plan.shape, keys, plan.scopes, held, starts)
    ending = Ending.RELEASE if run.kind == "released" else Ending.SETTLE
    return Finish(run.id, ending, terms, hold=hold, now_ms=now_ms)


def _raise(store: Store, accounts: dict[str, _Account], planner: Planner, now_ms: int | None) -> int:
    rules, keys = tuple(account.rule for account in accounts.values()), tuple(accounts)
    read: Any = store.execute(Read(Shape(rules), keys, ("",), planner.terms, now_ms=now_ms))
    raised = 0
    for (key, account), balance in zip(accounts.items(), read.accounts, strict=True):
        missing = min(account.total, MAX_AMOUNT) - balance.spent
        if missing > 0:
            raised += 1
            for at_ms, amount in _missing(account, missing):
                store.execute(_booking(key, account, at_ms, amount, planner, now_ms))
    return raised


def _missing(account: _Account, missing: int) -> Iterator[tuple[int, int]]:
    """The newest entries that add up to what is missing; those of a rolling window by sixtieths of it."""
    if account.rule.kind != Kind.ROLLING:
        yield account.start_ms, missing
        return
    width = max(account.rule.length_ms // 60, 1)
    slots: dict[int, tuple[int, int]] = {}
    for at_ms, amount in reversed(account.entries):
        last, total = slots.get(at_ms // width, (at_ms, 0))
        slots[at_ms // width] = (last, total + amount)
    for at_ms, total in slots.values():
        amount = min(total, missing)
        missing -= amount
        if amount > 0:
            yield at_ms, amount


def _booking(key: str, account: _Account, at_ms: int, amount: int, planner: Planner, now_ms: int | None) -> Finish:
    rule = account.rule
    if rule.kept:
        rule = replace(rule, meter=int(Meter.TOKENS))
    hold = Hold("", State.RELEASED, at_ms, at_ms, 0, Shape((rule,)), (key,), ("",), (0,), (account.start_ms,))
    terms = replace(planner.terms, outbox_max=0)
    id = "x" + digest("rebuild", key, str(at_ms), str(amount), str(account.total))
    usd = amount if rule.meter == Meter.USD else 0
    return Finish(id, Ending.SETTLE, terms, usd, amount if not usd else 0, True, hold, now_ms=now_ms)
