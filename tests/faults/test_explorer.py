"""The protocol, exhaustively: every order of steps, with one fault at any point."""

from __future__ import annotations

import pytest
from explorer import COMBINATIONS, FAULTS, LOSSES, Broken, explore

from llm_budget_hooks.engine import rebuilding
from llm_budget_hooks.transitions import Read, Shape, Terms, machine

WHOLE = ("dear", "release", "alone")


def test_every_order_with_one_fault_keeps_the_books() -> None:
    assert explore([WHOLE], faults=FAULTS) == 90 * 7 * 25


def test_some_orders_of_all_combinations_keep_the_books() -> None:
    assert explore(COMBINATIONS, every=701) > 2_500


@pytest.mark.parametrize("name", ["_mark", "_raise"])
def test_the_explorer_finds_a_rebuilding_that_is_broken_on_purpose(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    idle = {"_mark": lambda *_: Read(Shape(()), (), ("",), Terms()), "_raise": lambda *_: 0}
    monkeypatch.setattr(rebuilding, name, idle[name])
    with pytest.raises(Broken):
        explore([WHOLE], faults=LOSSES)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("_unknown", lambda cells, command, now: machine.Finished(machine.Ended.UNKNOWN, now)),
        ("sweep", lambda cells, scopes, terms, now: None),
        ("_again", lambda command, hold, now: machine.Reserved(machine.Verdict.ADMITTED, now)),
    ],
)
def test_the_explorer_finds_what_is_broken_on_purpose(
    monkeypatch: pytest.MonkeyPatch, name: str, wrong: object
) -> None:
    monkeypatch.setattr(machine, name, wrong)
    with pytest.raises(Broken):
        explore([WHOLE], faults=FAULTS)
