"""A hold keeps the canonical name that its price was found under, for whoever settles it by its id alone."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from llm_budget_hooks import BudgetEngine, Call, Usage

BUDGETS = [{"name": "all", "scope": "global", "limit": "$10", "window": "day"}]
PRICES = {"dear": {"input": "10", "output": "10"}, "cheap": {"input": "1", "output": "1"}}


def rules(target: str) -> dict[str, Any]:
    return {"budgets": BUDGETS, "prices": PRICES, "aliases": {"prod-chat": target}, "store_timeout": "10s"}


@pytest.mark.parametrize("kept", [True, False], ids=["with a ledger", "without"])
def test_b091_an_alias_that_is_changed_meanwhile_does_not_change_what_a_hold_is_priced_as(
    shared_url: str, tmp_path: Path, kept: bool
) -> None:
    ledger = f"sqlite:///{tmp_path / 'ledger.db'}" if kept else None
    with (
        BudgetEngine.open(shared_url, rules("dear"), ledger=ledger) as before,
        BudgetEngine.open(shared_url, rules("cheap"), ledger=ledger) as after,
    ):
        held = before.reserve(Call(model="prod-chat", input_tokens=1000, max_output_tokens=1000))
        assert after.orphans()[0].model == "prod-chat"
        settled = after.settle(held.id, usage=Usage(input_tokens=1000, output_tokens=1000))
        assert (settled.cost, after.status()[0].spent) == (Decimal("0.02"), Decimal("0.02"))
        if kept:
            after.flush()
            (row,) = after.ledger.runs().items
            assert (row.model, row.cost_nusd) == ("prod-chat", 20_000_000)


def test_a_model_that_is_not_priced_any_more_is_priced_as_it_was_called(shared_url: str) -> None:
    later = {"budgets": BUDGETS, "prices": {"prod-chat": PRICES["cheap"]}, "store_timeout": "10s"}
    with BudgetEngine.open(shared_url, rules("dear")) as before, BudgetEngine.open(shared_url, later) as after:
        held = before.reserve(Call(model="prod-chat", input_tokens=1000, max_output_tokens=0))
        assert after.settle(held.id, usage=Usage(input_tokens=1000)).cost == Decimal("0.001")


def test_b072_b092_the_ledger_says_what_there_is_to_say_of_a_cost(tmp_path: Path) -> None:
    ledger = f"sqlite:///{tmp_path / 'ledger.db'}"
    cached, dated = Usage(input_tokens=1000, cached_input_tokens=400), "cheap-2099-01-01"
    with BudgetEngine.open("memory://", rules("dear"), ledger=ledger) as engine:
        for model in ("cheap", dated):
            engine.settle(engine.reserve(Call(model=model, input_tokens=1000, max_output_tokens=0)), usage=cached)
            engine.charge(Call(model=model), usage=cached)
        engine.settle(engine.reserve(Call(model="cheap", input_tokens=1, max_output_tokens=9)).id, usage=cached)
        alone = engine.reserve(Call(model="cheap", input_tokens=1, max_output_tokens=9))
        engine.settle(alone, usage=Usage(output_tokens=9, reasoning_tokens=5))
        engine.flush()
        flags = [row.flags for row in reversed(engine.ledger.runs().items)]
    plain = "cached_input_tokens at the plain rate"
    assert flags == [plain, plain, *[f"priced as cheap,{plain}"] * 2, plain, ""]
