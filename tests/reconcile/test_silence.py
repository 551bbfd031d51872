"""What books do not speak of: days, models and providers, of which nothing is ever taken back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from books_server import (
    BooksServer,
    anthropic_bucket,
    anthropic_cost,
    anthropic_usage,
    openai_bucket,
    openai_usage,
    paged,
    spend_logs,
    spend_row,
)
from ledgers import DAY, NEXT, NOON, Kept, Written

from llm_budget_hooks import BudgetEngine, Call
from llm_budget_hooks.errors import ConfigurationError
from llm_budget_hooks.reconcile import AnthropicBooks, Billed, Books, LiteLLMBooks, OpenAIBooks, book, reconcile

RULES = {"budgets": [{"name": "all", "scope": "global", "limit": "$50", "window": "month"}]}
LATER = NOON + timedelta(days=10)
END = date(2026, 11, 4)


class Owner:
    """Somebody who has calls in a ledger and books their bills."""

    def __init__(self, store: str, folder: Path, rules: dict[str, Any]) -> None:
        self.now = NOON
        self.engine = BudgetEngine.open(
            store, RULES | rules, clock=lambda: self.now, ledger=f"sqlite:///{folder / 'ledger.db'}"
        )

    def call(self, model: str, cost: str, *, day: date = DAY, served: str | None = None) -> None:
        self.now = NOON + (day - DAY)
        self.engine.settle(self.engine.reserve(Call(model=model, amount="0.50")), cost=cost, model=served)

    def compare(self, books: Books) -> Any:
        self.engine.flush()
        return reconcile(self.engine.ledger, books, DAY, END, now=LATER, prices=self.engine.prices)

    def book(self, books: Books) -> Decimal:
        return book(self.engine, self.compare(books))

    @property
    def spent(self) -> Decimal:
        return self.engine.status()[0].spent


@pytest.fixture
def owner(shared_url: str, tmp_path: Path) -> Iterator[Callable[..., Owner]]:
    with ExitStack() as opened:

        def make(**rules: Any) -> Owner:
            made = Owner(shared_url, tmp_path, rules)
            opened.callback(made.engine.close)
            return made

        yield make


def test_books_without_a_row_are_no_statement_and_nothing_is_booked(
    owner: Callable[..., Owner], server: BooksServer
) -> None:
    one = owner()
    one.call("gpt-4o", "0.40")
    nothing = paged([openai_bucket(1793491200)])
    server.routes = {f"/v1/organization/{each}": nothing for each in ("costs", "usage/completions", "usage/embeddings")}
    books = OpenAIBooks("sk", server.url)
    (line,) = one.compare(books).flagged
    assert (line.cause, line.owed) == ("the books have no amount of this day", 0)
    with pytest.raises(ConfigurationError, match=r"no amount of this span.*nothing is booked"):
        one.book(books)
    assert one.spent == Decimal("0.4")


def test_use_without_any_cost_is_no_bill_of_nothing(owner: Callable[..., Owner], server: BooksServer) -> None:
    one = owner()
    one.call("gpt-4o", "0.40")
    used = paged([openai_bucket(1793491200, openai_usage("gpt-4o", 1, 1000, 100))])
    server.routes = {
        "/v1/organization/costs": paged([openai_bucket(1793491200)]),
        "/v1/organization/usage/completions": used, "/v1/organization/usage/embeddings": paged([]),
    }  # fmt: skip
    with pytest.raises(ConfigurationError, match="nothing is booked"):
        one.book(OpenAIBooks("sk", server.url))
    assert one.spent == Decimal("0.4")


def test_days_and_models_without_a_row_are_not_taken_back(owner: Callable[..., Owner]) -> None:
    one = owner()
    one.call("gpt-4o", "0.40")
    one.call("gpt-4o", "0.30", day=NEXT)
    one.call("gpt-4o-mini", "0.20")
    bill = Written(Billed(DAY, "gpt-4o", Decimal("0.35")), provider="openai")
    flagged = {(line.day, line.model): (line.cause, line.owed) for line in one.compare(bill).flagged}
    assert flagged == {
        (DAY, "gpt-4o"): ("not known", Decimal("-0.05")),
        (DAY, "gpt-4o-mini"): ("the books have no amount of this model", 0),
        (NEXT, "gpt-4o"): ("the books have no amount of this day", 0),
    }
    assert one.book(bill) == Decimal("-0.05")
    assert one.spent == Decimal("0.85")
    assert one.book(bill) == 0


def test_a_model_that_the_books_have_on_other_days_only_is_billed_nothing(owner: Callable[..., Owner]) -> None:
    one = owner()
    one.call("gpt-4o-mini", "0.20", day=NEXT)
    bill = Written(Billed(DAY, "gpt-4o-mini", Decimal("0.20")), Billed(NEXT, "gpt-4o", Decimal(1)), provider="openai")
    assert {(line.day, line.model): line.owed for line in one.compare(bill).flagged} == {
        (DAY, "gpt-4o-mini"): Decimal("0.2"), (NEXT, "gpt-4o"): 1, (NEXT, "gpt-4o-mini"): Decimal("-0.2"),
    }  # fmt: skip


def test_books_of_nobody_named_are_compared_with_what_they_speak_of(owner: Callable[..., Owner]) -> None:
    one = owner()
    one.call("gpt-4o", "0.40")
    one.call("claude-sonnet-4-5", "0.30")
    one.call("bedrock/anthropic.claude-3-haiku-20240307-v1:0", "0.20")
    bill = Written(Billed(DAY, "gpt-4o-2024-08-06", Decimal("0.35")))
    assert [line.model for line in one.compare(bill).lines] == ["gpt-4o"]
    assert one.book(bill) == Decimal("-0.05")
    assert one.spent == Decimal("0.85")


@pytest.mark.parametrize(
    ("calls", "model"),
    [
        (("gpt-4o", "azure/gpt-4o"), "gpt-4o"),
        (("azure/gpt-4o",), "gpt-4o"),
        (("gpt-4o",), "azure/gpt-4o"),
        (("openrouter/openai/gpt-4o",), "gpt-4o"),
    ],
)
def test_whose_bill_it_is_has_to_be_said_where_it_cannot_be_told(
    owner: Callable[..., Owner], calls: tuple[str, ...], model: str
) -> None:
    one = owner()
    for name in calls:
        one.call(name, "0.40")
    with pytest.raises(ConfigurationError, match=r"whose books these are.*--provider.*nothing is booked"):
        one.book(Written(Billed(DAY, model, Decimal("0.1"))))
    assert one.spent == Decimal("0.4") * len(calls)


def test_a_call_is_its_providers_whatever_model_it_names_and_whoever_prices_it(tmp_path: Path) -> None:
    price = {"input": "1", "output": "2"}
    one = Owner("memory://", tmp_path, {"prices": {"azure/gpt-4o": price, "gpt-4o": price, "azure/eu-4o": price}})
    one.call("azure/gpt-4o", "0.40", served="gpt-4o-2024-08-06")
    one.call("azure/eu-4o", "0.30", served="gpt-4o")
    one.call("openrouter/openai/gpt-4o", "0.20", served="openai/gpt-4o")
    one.call("gpt-4o", "0.10")
    bill = Billed(DAY, "gpt-4o", Decimal("0.1"))
    for provider, ours in (("openai", "0.1"), ("azure", "0.7"), ("openrouter", "0.2")):
        (line,) = one.compare(Written(bill, provider=provider)).lines
        assert line.ledger == Decimal(ours), provider
    one.engine.close()


def proxy(server: BooksServer, *rows: dict[str, Any]) -> LiteLLMBooks:
    server.routes["/spend/logs/v2"] = spend_logs(list(rows))
    return LiteLLMBooks("sk", server.url)


def test_calls_past_a_proxy_are_not_taken_back_by_its_logs(owner: Callable[..., Owner], server: BooksServer) -> None:
    one = owner()
    one.call("gpt-4o", "0.40")
    one.call("gpt-4o", "0.30")
    one.call("gpt-4o", "0.20", day=NEXT)
    one.call("o3", "0.10")
    books = proxy(server, spend_row(1, "2026-11-01T10:00:00+00:00", 0.40), spend_row(2, "2026-11-03T10:00:00+00:00", 0))
    result = one.compare(books)
    assert [(line.day, line.flagged, line.cause) for line in result.lines if line.ledger] == [
        (DAY, False, "the ledger has calls that these books do not know of"),
        (NEXT, False, "the ledger has calls that these books do not know of"),
    ]
    assert (book(one.engine, result), one.spent) == (0, 1)


def test_calls_from_a_proxys_cache_cost_nothing_and_hide_no_calls_past_it(kept: Kept, server: BooksServer) -> None:
    for _ in range(2):
        kept.call("gpt-4o", "0.40")
    rows = [spend_row(n, "2026-11-01T10:00:00+00:00", 0.4 * (n == 0), cache_hit=str(n > 0)) for n in range(2)]
    (line,) = kept.against(proxy(server, *rows)).lines
    assert (line.flagged, line.cause) == (False, "the ledger has calls that these books do not know of")


def test_what_a_proxys_logs_added_they_take_back_and_no_more(owner: Callable[..., Owner], server: BooksServer) -> None:
    one = owner()
    one.call("gpt-4o", "0.40")
    rows = [spend_row(n, "2026-11-01T10:00:00+00:00", 0.40) for n in range(2)]
    assert one.book(proxy(server, *rows)) == Decimal("0.4")
    one.call("gpt-4o", "0.60")  # the ledger of another process comes late
    (line,) = one.compare(proxy(server, *rows)).flagged
    assert (line.difference, line.owed) == (Decimal("-0.6"), Decimal("-0.4"))
    assert one.book(proxy(server, *rows)) == Decimal("-0.4")
    assert (one.book(proxy(server, *rows)), one.spent) == (0, 1)


def test_calls_in_a_tier_that_no_report_has_the_cost_of_are_not_taken_back(
    owner: Callable[..., Owner], server: BooksServer
) -> None:
    one = owner()
    model = "claude-sonnet-4-5"
    one.call(f"anthropic/{model}", "0.40")
    cost, used = anthropic_cost(model, "10"), anthropic_usage(model, 10, 0, 0, 9)
    routes = {"/v1/organizations/cost_report": paged([anthropic_bucket(str(DAY), cost)])}
    for tier, flagged in (("standard", True), ("priority", False)):
        bucket = anthropic_bucket(str(DAY), used, anthropic_usage(model, 10, 0, 0, 9, tier))
        server.routes = routes | {"/v1/organizations/usage_report/messages": paged([bucket])}
        (line,) = one.compare(AnthropicBooks("sk", server.url)).lines
        assert (line.flagged, bool(line.owed)) == (flagged, flagged), tier


def test_calls_that_may_be_another_providers_are_neither_taken_back_nor_added_again(
    owner: Callable[..., Owner],
) -> None:
    one = owner()
    one.call("gpt-4o", "0.30")
    one.call("litellm_proxy/gpt-4o", "0.40")
    for billed, owed in (("0.30", "0"), ("0.50", "0"), ("0.70", "0"), ("0.20", "-0.10"), ("0.90", "0.20")):
        bill = Written(Billed(DAY, "gpt-4o", Decimal(billed)), provider="openai")
        (line,) = one.compare(bill).lines
        assert (line.ledger, line.owed) == (Decimal("0.7"), Decimal(owed)), billed
    assert line.cause == "not known"
    (line,) = one.compare(Written(Billed(DAY, "gpt-4o", Decimal("0.50")), provider="openai")).flagged
    assert line.cause == "it cannot be told whose calls some of these are"


def test_a_deployment_is_found_by_its_name_too(owner: Callable[..., Owner]) -> None:
    one = owner(prices={"azure/prod-4o": {"input": "1", "output": "2"}})
    one.call("azure/prod-4o", "0.40", served="gpt-4o-2024-08-06")
    for name in ("prod-4o", "gpt-4o"):
        bill = Written(Billed(DAY, name, Decimal("0.40")), provider="azure")
        assert [(line.model, line.flagged) for line in one.compare(bill).lines] == [(name, False)]


def test_calls_that_the_books_may_have_by_another_name_are_not_booked_twice(owner: Callable[..., Owner]) -> None:
    one = owner()
    one.call("gpt-4o", "0.40")
    one.call("gpt-4o-mini", "0.40", day=NEXT)
    bill = Written(
        Billed(DAY, "our gpt", Decimal("0.40")), Billed(DAY, "o3", Decimal("0.10")),
        Billed(NEXT, "our gpt", Decimal("0.30")), provider="openai",
    )  # fmt: skip
    assert {(line.day, line.model): line.owed for line in one.compare(bill).flagged} == {
        (DAY, "gpt-4o"): 0, (DAY, "o3"): 0, (DAY, "our gpt"): Decimal("0.1"),
        (NEXT, "gpt-4o-mini"): 0, (NEXT, "our gpt"): 0,
    }  # fmt: skip
    assert (one.book(bill), one.book(bill)) == (Decimal("0.1"), 0)


def test_days_whose_calls_were_pruned_are_not_booked(owner: Callable[..., Owner]) -> None:
    one = owner()
    for day in (date(2026, 10, 30), date(2026, 10, 31), DAY, END):
        one.call("gpt-4o", "0.40", day=day)
    bill = Written(Billed(DAY, "gpt-4o", Decimal("0.80")), provider="openai")
    one.engine.flush()
    one.engine.ledger.prune(NOON - timedelta(days=1))
    assert one.compare(bill).doubt == ""
    one.engine.ledger.prune(NOON + timedelta(days=1))
    with pytest.raises(ConfigurationError, match=r"pruned.*nothing is booked"):
        one.book(bill)
