"""What can be read without taking anything: balances and holds. Due holds were ended before."""

from __future__ import annotations

from llm_budget_hooks.transitions import rolling
from llm_budget_hooks.transitions.accounts import current, roll
from llm_budget_hooks.transitions.cells import Cells
from llm_budget_hooks.transitions.commands import (
    Balance,
    Balances,
    Hold,
    Kind,
    OrphanList,
    Orphans,
    Read,
    Rule,
    State,
    Verdict,
)


def read(cells: Cells, command: Read, now: int) -> Balances:
    """The balances of accounts."""
    if not command.from_ms <= now < command.until_ms:
        return Balances(Verdict.CLOCK, now)
    utterance = cells.load((command.utterance,))[0] if command.utterance else None
    if utterance is not None and now >= utterance[1] + command.terms.utterance_timeout_ms + command.terms.timeout_ms:
        utterance = None
    accounts = cells.load(command.keys)
    found = []
    for at, rule in enumerate(command.shape.rules):
        if rule.kind == Kind.ROLLING:
            found.append(_rolling_balance(cells, command.keys[at], accounts[at], rule, now))
            continue
        spent, held, start = current(accounts[at], rule, utterance, now)
        fixed = rule.kind == Kind.FIXED and accounts[at] is not None and start == accounts[at][2]
        resets = start + rule.length_ms if fixed else rule.ends_ms
        found.append(Balance(spent, held, resets))
    return Balances(Verdict.ADMITTED, now, tuple(found), utterance[2] if utterance else 0, cells.revision())


def _rolling_balance(cells: Cells, key: str, log: rolling.Log | None, rule: Rule, now: int) -> Balance:
    if log is None:
        return Balance(0, 0, 0)
    roll(cells, key, log, rule, now)
    resets = rolling.frees_at(log, cells.entries(key), 1, rule.length_ms) if log.total else 0
    return Balance(log.total, log.reserved, resets)


def orphans(cells: Cells, command: Orphans, now: int) -> OrphanList:
    """Open holds, then the expired ones that are still remembered; or one hold."""
    if command.id is not None:
        ids = [command.id]
    else:
        ids = [id for _, id in cells.first("", command.limit)]
        ids += cells.orphans(now, command.limit)
    holds = [(id, _known(cells.hold(id), now)) for id in ids[: command.limit]]
    return OrphanList(now, tuple((id, hold) for id, hold in holds if hold is not None))


def _known(hold: Hold | None, now: int) -> Hold | None:
    return None if hold is None or (hold.state != State.OPEN and now >= hold.until_ms) else hold
