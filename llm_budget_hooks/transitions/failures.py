"""Why a rule says no, and when a call of this size has room."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llm_budget_hooks.transitions import rolling
from llm_budget_hooks.transitions.cells import Cells
from llm_budget_hooks.transitions.commands import SWEEP_LIMIT, Failure, Kind, Reserve, Rule

_CALENDAR, _FIXED, _ROLLING = int(Kind.CALENDAR), int(Kind.FIXED), int(Kind.ROLLING)


def failure(cells: Cells, command: Reserve, at: int, numbers: tuple[int, int, int], account: Any, now: int) -> Failure:
    """The rule that said no.

    Args:
        cells: the store's records.
        command: what was asked.
        at: the place of the rule.
        numbers: what is spent and reserved in its account, and what was asked of it.
        account: its account, which is up to now.
        now: the time in ms.
    """
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
            holds = _holds(cells, command, at, held, now) if held else ()
            need = spent + held + amount - rule.limit
            retry = rolling.frees_at(account, cells.entries(command.keys[at]), need, rule.length_ms, holds)
        else:
            retry = resets
    if rule.kind == _ROLLING:
        resets = retry
    return Failure(at, spent, held, amount, busy, resets, retry)


def _earliest(cells: Cells, command: Reserve, at: int, now: int) -> int:
    """The earliest deadline of a hold in the account; looked for among the first of its scope."""
    first = _first(cells, command, at)
    key = command.keys[at]
    for deadline, id in first:
        hold = cells.hold(id)
        if hold is not None and key in hold.keys:
            return max(deadline, now)
    return max(first[0][0], now) if first else now


def _holds(cells: Cells, command: Reserve, at: int, held: int, now: int) -> list[rolling.Entry]:
    """What the holds in a rolling account will be in it, if each is charged what it holds.

    Of those that are not among the first of their scope, it is as if they had been taken now.
    """
    key, length = command.keys[at], command.shape.rules[at].length_ms
    found = []
    for deadline, id in _first(cells, command, at):
        hold = cells.hold(id)
        if hold is not None and key in hold.keys:
            amount = hold.held[hold.keys.index(key)]
            found.append((max(hold.created_ms, deadline - length), amount))
            held -= amount
    if held > 0:
        found.append((now, held))
    return found


def _first(cells: Cells, command: Reserve, at: int) -> list[tuple[int, str]]:
    """The first holds of the scope of a rule."""
    return cells.first(_scope_of(command.shape.rules[at], command.scopes), SWEEP_LIMIT)


def _scope_of(rule: Rule, scopes: Sequence[str]) -> str:
    """The index that holds against this rule are in: scopes are the narrowest first, the global one last."""
    if rule.scope == "global":
        return scopes[-1]
    if rule.scope == "tenant":
        return scopes[-2]
    return scopes[0]
