"""An outbox that a ledger has left to grow costs a call nothing."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from llm_budget_hooks.stores.sqlite import SqliteStore
from llm_budget_hooks.transitions import Post, Take

WAITING = 100_000


def best_of_some(store: SqliteStore, most: int) -> float:
    """Seconds that one more row takes."""
    taken = []
    for number in range(40):
        started = time.perf_counter()
        store.execute(Post((("event", f"more-{number}", "x"),), most))
        taken.append(time.perf_counter() - started)
    return min(taken)


@pytest.mark.parametrize("most", [WAITING, 10 * WAITING], ids=["full", "with room"])
def test_a_row_takes_no_longer_behind_100_000_others_on_sqlite(tmp_path: Path, most: int) -> None:
    store = SqliteStore(tmp_path / "budget.db", timeout_s=60)
    empty = best_of_some(store, most)
    store.execute(Post(tuple(("event", str(number), "x") for number in range(WAITING)), most))
    behind = best_of_some(store, most)
    dropped = store.execute(Take("me", "", 1)).dropped  # type: ignore[union-attr]  # what a Take is answered with
    store.close()
    assert behind < 4 * empty, f"{behind * 1e6:.0f} us behind {WAITING:,} rows, {empty * 1e6:.0f} us before"
    assert dropped == (80 if most == WAITING else 0)
