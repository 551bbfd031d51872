"""The state machine of rule 3, as a table, on every store."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from llm_budget_hooks.config import open_store
from llm_budget_hooks.models import Policy
from llm_budget_hooks.stores.base import Store
from llm_budget_hooks.transitions import (
    Ended,
    Ending,
    Finish,
    Finished,
    Kind,
    Meter,
    Read,
    Reserve,
    Reserved,
    Rule,
    Shape,
    Terms,
    Verdict,
)

T0 = 1_000_000_000_000
DAY = 86_400_000
TERMS = Terms(timeout_ms=600_000, remember_ms=3_600_000)
RULE = Rule("day", "user", Meter.USD, Kind.CALENDAR, 1_000, T0 + DAY, DAY)
HELD, ACTUAL = 100, 30

ENDS = {"open", "released", "expired", "settled without usage", "settled"}
WANTED = {
    # state, operation: what is answered, then spent and reserved
    ("open", "settle"): (Ended.SETTLED, ACTUAL, 0),
    ("open", "settle without usage"): (Ended.SETTLED, HELD, 0),
    ("open", "release"): (Ended.RELEASED, 0, 0),
    ("open", "extend"): (Ended.EXTENDED, 0, HELD),
    ("open", "reserve again"): (Verdict.DUPLICATE, 0, HELD),
    ("open", "expire"): (None, HELD, 0),
    ("released", "settle"): (Ended.LATE, ACTUAL, 0),
    ("released", "settle without usage"): (Ended.ALREADY_RELEASED, 0, 0),
    ("released", "release"): (Ended.ALREADY_RELEASED, 0, 0),
    ("released", "extend"): (Ended.ALREADY_RELEASED, 0, 0),
    ("released", "reserve again"): (Verdict.ENDED, 0, 0),
    ("released", "expire"): (None, 0, 0),
    ("expired", "settle"): (Ended.LATE, ACTUAL, 0),
    ("expired", "settle without usage"): (Ended.ALREADY_SETTLED, HELD, 0),
    ("expired", "release"): (Ended.RELEASED, 0, 0),
    ("expired", "extend"): (Ended.ALREADY_SETTLED, HELD, 0),
    ("expired", "reserve again"): (Verdict.ENDED, HELD, 0),
    ("expired", "expire"): (None, HELD, 0),
    ("settled without usage", "settle"): (Ended.LATE, ACTUAL, 0),
    ("settled without usage", "settle without usage"): (Ended.ALREADY_SETTLED, HELD, 0),
    ("settled without usage", "release"): (Ended.RELEASED, 0, 0),
    ("settled without usage", "extend"): (Ended.ALREADY_SETTLED, HELD, 0),
    ("settled without usage", "reserve again"): (Verdict.ENDED, HELD, 0),
    ("settled without usage", "expire"): (None, HELD, 0),
    ("settled", "settle"): (Ended.ALREADY_SETTLED, ACTUAL, 0),
    ("settled", "settle without usage"): (Ended.ALREADY_SETTLED, ACTUAL, 0),
    ("settled", "release"): (Ended.ALREADY_SETTLED, ACTUAL, 0),
    ("settled", "extend"): (Ended.ALREADY_SETTLED, ACTUAL, 0),
    ("settled", "reserve again"): (Verdict.ENDED, ACTUAL, 0),
    ("settled", "expire"): (None, ACTUAL, 0),
}


@pytest.fixture
def store(engine_url: str) -> Iterator[Store]:
    made = open_store(engine_url, Policy(store_timeout="10s"))
    yield made
    made.close()


def do(store: Store, operation: str, now: int) -> int | None:
    if operation in ("reserve", "reserve again"):
        answer = store.execute(
            Reserve("h", "same", Shape((RULE,)), ("a:1",), (HELD,), ("u", ""), "", TERMS, now_ms=now)
        )
        assert isinstance(answer, Reserved)
        return answer.verdict
    if operation == "expire":
        store.execute(Read(Shape((RULE,)), ("a:1",), ("u", ""), TERMS, now_ms=now + TERMS.timeout_ms))
        return None
    ending = {"release": Ending.RELEASE, "extend": Ending.EXTEND}.get(operation, Ending.SETTLE)
    final = operation == "settle"
    finished = store.execute(Finish("h", ending, TERMS, ACTUAL if final else None, final=final, now_ms=now))
    assert isinstance(finished, Finished)
    return finished.ended


@pytest.mark.parametrize(("state", "operation"), WANTED)
def test_every_state_meets_every_operation(store: Store, state: str, operation: str) -> None:
    do(store, "reserve", T0)
    reach = {"released": "release", "expired": "expire", "open": None}.get(state, state.replace("settled", "settle"))
    if reach:
        do(store, reach, T0 + 1)
    now = T0 + 2 if state != "expired" else T0 + TERMS.timeout_ms + 2
    answer = do(store, operation, now)
    end = store.execute(Read(Shape((RULE,)), ("a:1",), ("u", ""), TERMS, now_ms=now))
    wanted, spent, reserved = WANTED[(state, operation)]
    assert (answer, end.accounts[0].spent, end.accounts[0].reserved) == (wanted, spent, reserved)


@pytest.mark.parametrize("reach", [None, "release", "settle", "settle without usage", "expire"])
def test_reserving_again_with_other_content_is_a_conflict_in_every_state(store: Store, reach: str | None) -> None:
    do(store, "reserve", T0)
    if reach:
        do(store, reach, T0 + 1)
    other = Reserve("h", "other", Shape((RULE,)), ("a:1",), (HELD,), ("u", ""), "", TERMS, now_ms=T0 + 2)
    assert store.execute(other).verdict == Verdict.CONFLICT


def test_a_second_final_settle_of_another_amount_changes_nothing_and_says_so(store: Store) -> None:
    do(store, "reserve", T0)
    do(store, "settle", T0)
    again = store.execute(Finish("h", Ending.SETTLE, TERMS, ACTUAL + 1, final=True, now_ms=T0))
    assert again.differs
    assert store.execute(Read(Shape((RULE,)), ("a:1",), ("u", ""), TERMS, now_ms=T0)).accounts[0].spent == ACTUAL


def test_a_reserve_that_arrives_after_its_release_takes_nothing(store: Store) -> None:
    store.execute(Finish("h", Ending.RELEASE, TERMS, bury=True, now_ms=T0))
    assert do(store, "reserve", T0 + 1) == Verdict.ENDED
    assert store.execute(Read(Shape((RULE,)), ("a:1",), ("u", ""), TERMS, now_ms=T0 + 1)).accounts[0].reserved == 0
