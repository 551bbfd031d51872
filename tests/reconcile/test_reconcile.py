"""The ledger against books: what is flagged, with which cause."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from ledgers import DAY, NEXT, Kept, Written, found

from llm_budget_hooks import Call, Usage
from llm_budget_hooks.errors import ConfigurationError
from llm_budget_hooks.pricing import PriceBook
from llm_budget_hooks.reconcile import Billed


def test_five_per_cent_is_tolerated_and_more_is_flagged(kept: Kept) -> None:
    kept.call("gpt-4o", "0.95")
    kept.call("gpt-4o-mini", "0.949")
    result = kept.against(Written(Billed(DAY, "gpt-4o", Decimal(1)), Billed(DAY, "gpt-4o-mini", Decimal(1))))
    assert found(result) == [("gpt-4o", Decimal("0.95"), 1, False), ("gpt-4o-mini", Decimal("0.949"), 1, True)]
    assert result.flagged == (result.lines[1],)
    assert (result.lines[1].difference, result.lines[1].share) == (Decimal("0.051"), Decimal("0.051"))
    assert kept.against(Written(Billed(DAY, "gpt-4o", Decimal(1))), tolerance=Decimal("0.01")).flagged


def test_days_are_utc_and_names_meet_without_provider_and_date(kept: Kept) -> None:
    kept.now = datetime(2026, 11, 1, 23, 59, 59, tzinfo=UTC)
    kept.call("openai/gpt-4o-mini", "0.10")
    kept.now = datetime(2026, 11, 2, 0, 0, tzinfo=UTC)
    kept.call("gpt-4o-mini-2024-07-18", "0.20")
    billed = (Billed(DAY, "gpt-4o-mini-2024-07-18", Decimal("0.1")), Billed(NEXT, "GPT-4o-mini", Decimal("0.2")))
    result = kept.against(Written(*billed), until=date(2026, 11, 3))
    assert [(line.day, line.model, line.flagged) for line in result.lines] == [
        (DAY, "gpt-4o-mini", False),
        (NEXT, "gpt-4o-mini", False),
    ]


def test_an_alias_is_the_model_it_stands_for_and_mini_is_another(kept: Kept) -> None:
    kept.call("prod-chat", "0.10")
    prices = PriceBook(aliases={"prod-chat": "gpt-4o"})
    books = Written(Billed(DAY, "gpt-4o", Decimal("0.1")), Billed(DAY, "gpt-4o-mini", Decimal("0.1")))
    assert [line.model for line in kept.against(books, prices=prices).flagged] == ["gpt-4o-mini"]


CAUSES: list[tuple[str, list[tuple[Any, ...]], Billed, str]] = [
    ("unseen", [], Billed(DAY, "gpt-4o", Decimal(1), 5), "calls the ledger never saw"),
    (
        "some unseen", [("0.10",)] * 3, Billed(DAY, "gpt-4o", Decimal("0.5"), 5, 5000, 0, 500),
        "calls the ledger never saw: 2 of 5",
    ),
    (
        "tokens unseen", [("0.10",)], Billed(DAY, "gpt-4o", Decimal("0.5"), None, 5000, 0, 500),
        "use the ledger never saw",
    ),
    ("not theirs", [("0.10",)], Billed(DAY, "gpt-4o", Decimal(0)), "the provider has no such calls: another account"),
    (
        "unknown", [("0.10",), (None,)], Billed(DAY, "gpt-4o", Decimal("0.2"), 2),
        "unknown outcomes, charged at their estimate",
    ),
    (
        "cached", [("0.10", 1000, 100, 0)], Billed(DAY, "gpt-4o", Decimal("0.05"), 1, 1000, 800, 100),
        "cached tokens: the sides count them differently",
    ),
    (
        "batch", [("0.10",)], Billed(DAY, "gpt-4o", Decimal("0.05"), 1, 1000, 0, 100, True),
        "batch: the provider billed some of it at the lower rate",
    ),
    (
        "price", [("0.10",)], Billed(DAY, "gpt-4o", Decimal("0.12"), 1, 1000, 0, 100),
        "price drift: the same tokens at other prices",
    ),
    ("else", [("0.10",)], Billed(DAY, "gpt-4o", Decimal("0.12")), "not known"),
]  # fmt: skip


@pytest.mark.parametrize(("calls", "billed", "cause"), [case[1:] for case in CAUSES], ids=[case[0] for case in CAUSES])
def test_a_difference_has_its_likely_cause(kept: Kept, calls: list[Any], billed: Billed, cause: str) -> None:
    for call in calls:
        kept.call("gpt-4o", *call)
    (line,) = kept.against(Written(billed)).flagged
    assert line.cause.startswith(cause)


def test_a_late_settle_is_no_unknown_outcome_any_more(kept: Kept) -> None:
    held = kept.engine.reserve(Call(model="gpt-4o", amount="0.50"))
    kept.engine.settle(held)
    kept.engine.settle(held, cost="0.40", usage=Usage(input_tokens=10, output_tokens=1))
    (line,) = kept.against(Written(Billed(DAY, "gpt-4o", Decimal("0.2"), 1, 10, 0, 1))).flagged
    assert (line.ledger, line.cause) == (Decimal("0.4"), "price drift: the same tokens at other prices")


def test_a_day_that_may_still_grow_is_shown_and_not_flagged(kept: Kept) -> None:
    kept.call("gpt-4o", "0.10")
    books = Written(Billed(DAY, "gpt-4o", Decimal("0.02")))
    (line,) = kept.against(books, now=datetime(2026, 11, 2, 5, 59, tzinfo=UTC)).lines
    assert (line.flagged, line.final, line.cause) == (False, False, "the day may still grow")
    assert kept.against(books, now=datetime(2026, 11, 2, 6, 0, tzinfo=UTC)).flagged


def test_books_of_one_provider_say_nothing_of_others(kept: Kept) -> None:
    kept.call("claude-sonnet-4-5-20250929", "0.10")
    kept.call("gpt-4o", "0.10")
    assert [line.model for line in kept.against(Written(provider="openai")).lines] == ["gpt-4o"]
    assert [line.model for line in kept.against(Written(provider="anthropic")).lines] == ["claude-sonnet-4-5"]
    assert len(kept.against(Written()).lines) == 2


def test_calls_of_the_same_model_through_another_provider_are_not_on_its_bill(kept: Kept) -> None:
    kept.call("gpt-4o", "0.10")
    kept.call("azure/gpt-4o", "0.30")
    kept.call("claude-sonnet-4-5", "0.20")
    kept.call("vertex_ai/claude-sonnet-4-5@20250929", "0.40")
    kept.call("gpt-4o-of-nobody", "0.50")
    openai = Written(Billed(DAY, "gpt-4o-2024-08-06", Decimal("0.1")), provider="openai")
    assert found(kept.against(openai)) == [("gpt-4o", Decimal("0.1"), Decimal("0.1"), False)]
    anthropic = Written(Billed(DAY, "claude-sonnet-4-5-20250929", Decimal("0.2")), provider="anthropic")
    assert [line[1:] for line in found(kept.against(anthropic))] == [(Decimal("0.2"), Decimal("0.2"), False)]


def test_a_span_without_a_day_is_a_mistake(kept: Kept) -> None:
    with pytest.raises(ConfigurationError, match="span"):
        kept.against(Written(), until=DAY)
